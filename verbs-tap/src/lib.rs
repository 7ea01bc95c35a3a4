//! `libverbs_tap.so`: preloaded before libibverbs, it puts its own functions on the data path of any provider.
//!
//! `ibv_post_send`, `ibv_poll_cq` and their kin are inline calls through `context->ops` and through the extended
//! objects; there is nothing in libibverbs to attach to. The tap replaces the pointers there ([`contexts`],
//! [`extended`]), counts exactly in memory shared with a profiler ([`shared`], [`thread`]), and calls digested probe
//! sites ([`sites`]) when the profiler asks for them. The program sees none of it: results, `errno`, `bad_wr`, error
//! paths and forked children are as without it. It has no dependency on libibverbs, starts no thread, and does nothing
//! in a program that uses no verbs.
//!
//! What it does not see: work requests that a program builds with a provider's own calls (mlx5dv, DEVX, GPU-initiated),
//! programs linked to the verbs of 2006 (`IBVERBS_1.0`), and the verbs of a second libibverbs in one process, which it
//! counts as such.

mod abi;
#[cfg(all(test, target_arch = "x86_64"))]
mod abi_layout;
mod classic;
mod contexts;
mod digest;
mod exports;
mod extended;
mod fork;
mod made;
mod memfd;
mod messages;
mod next;
mod objects;
mod quiet;
mod shared;
mod shown;
mod sites;
mod thread;
