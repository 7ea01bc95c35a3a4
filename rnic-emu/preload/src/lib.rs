//! `librnic_emu.so`: the emulated RNIC, preloaded beside libibverbs.
