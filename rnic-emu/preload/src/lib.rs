//! `librnic_emu.so`: the emulated RNIC, preloaded beside libibverbs.
//!
//! Every libibverbs export that takes an object is defined here: the dynamic linker gives a program these instead of
//! the library's, and each hands calls on emulated devices to `rnic-emu` and all others to the library it shadows, so
//! that real devices go on working through it. The inline verbs need nothing of the kind: they go through the tables of
//! the context.

mod control;
mod device;
mod dispatch;
mod dlsym;
mod elf;
mod next;
mod rdmacm;
