//! The probe sites: where tracers attach.
//!
//! Each is an exported function of one 16-byte slot: a 5-byte nop, which Linux 6.18 turns into a call when probed, then a
//! `jmp` to the work, which older kernels emulate. The slots are 16-byte aligned, so that no nop crosses a page (it
//! would never be optimised), and lie together, so that a fork handler can refresh them (see `sys::fork`).
//!
//! Entry sites have the signature of the verb. The *digest* sites are called once per operation, as
//! [`probe_common::site`] describes them for this device and the tap alike:
//!
//! * `rnic_emu_posted(queue, n_wr, bytes, flags, n_sge, wr)` when a post to a send or receive queue has been taken and
//!   before anything is done about it, so that no completion of it can have been polled yet. It tells of the requests
//!   *really* posted; `flags` are [`probe_common::site::Flags`]; `wr` is the first request, in the extended API of a chain
//!   made up for the purpose (`post::shown`).
//! * `rnic_emu_post_failed(queue, 0, 0, flags, 0, why)` after it, when the call returns an error: nothing is to be
//!   subtracted from what `posted` told.
//! * `rnic_emu_polled(cq, n, wc, exponent)` after a poll: `n` completions (0 for an empty poll, negative for an error) at `wc`,
//!   an array of `ibv_wc`. An extended poll is reported when it ends, and every 256 completions before that.
//!
//! The digest sites are called for every operation, unless a profiler asks for fewer (see `told`).

use crate::abi::*;
use crate::{control, poll, post};
use libc::c_int;
use std::arch::naked_asm;

macro_rules! sites {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $kind:ty),*) $(-> $ret:ty)? => $($inner:path)?;)+) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As the verb of `verbs.h` it stands for.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            #[unsafe(link_section = ".text.rnic_emu_sites")]
            pub unsafe extern "C" fn $name($($arg: $kind),*) $(-> $ret)? {
                sites!(@body $($inner)?)
            }
        )+

        /// Name and address of every site.
        pub fn all() -> [(&'static str, usize); [$(stringify!($name)),+].len()] {
            [$((stringify!($name), $name as *const () as usize)),+]
        }
    };
    (@body $inner:path) => {
        naked_asm!(".p2align 4", ".byte 0x0f,0x1f,0x44,0,0", "jmp {}", ".p2align 4, 0xcc", sym $inner)
    };
    (@body) => {
        naked_asm!(".p2align 4", ".byte 0x0f,0x1f,0x44,0,0", "jmp 2f", "2: ret", ".p2align 4, 0xcc")
    };
}

sites! {
    /// `ibv_post_send`.
    fn rnic_emu_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int
        => post::send::post_send;
    /// `ibv_post_recv`.
    fn rnic_emu_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int
        => post::recv::post_recv;
    /// `ibv_post_srq_recv`.
    fn rnic_emu_post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int
        => post::recv::post_srq_recv;
    /// `ibv_poll_cq`.
    fn rnic_emu_poll_cq(cq: *mut ibv_cq, n: c_int, wc: *mut ibv_wc) -> c_int => poll::poll_cq;
    /// `ibv_req_notify_cq`.
    fn rnic_emu_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int => poll::req_notify_cq;
    /// `ibv_wr_complete`.
    fn rnic_emu_wr_complete(qp: *mut ibv_qp_ex) -> c_int => post::wr_api::wr_complete;
    /// `ibv_start_poll`.
    fn rnic_emu_start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int => poll::ex::start_poll;
    /// `ibv_next_poll`.
    fn rnic_emu_next_poll(cq: *mut ibv_cq_ex) -> c_int => poll::ex::next_poll;
    /// `ibv_end_poll`.
    fn rnic_emu_end_poll(cq: *mut ibv_cq_ex) => poll::ex::end_poll;
    /// `ibv_create_qp_ex`, behind the inline function.
    fn rnic_emu_create_qp_ex(context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp
        => control::qp::create_qp_ex;
    /// `ibv_create_cq_ex`, behind the inline function.
    fn rnic_emu_create_cq_ex(context: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex
        => control::cq::create_cq_ex;
    /// `ibv_create_srq_ex`, behind the inline function.
    fn rnic_emu_create_srq_ex(context: *mut ibv_context, attr: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq
        => control::srq::create_srq_ex;
    /// Digest of a post: `queue` is the `ibv_qp` or `ibv_srq`, `wr` the first request.
    fn rnic_emu_posted(queue: usize, n: u64, bytes: u64, flags: u64, n_sge: u64, wr: usize) => ;
    /// A post failed; `why` is a [`probe_common::site::Refused`].
    fn rnic_emu_post_failed(queue: usize, n: u64, bytes: u64, flags: u64, n_sge: u64, why: u64) => ;
    /// Digest of a poll.
    fn rnic_emu_polled(cq: *mut ibv_cq, n: i64, wc: *const ibv_wc, exponent: u32) => ;
}

/// First and last byte of the sites.
pub fn code_range() -> (usize, usize) {
    let all = all();
    let first = all.iter().map(|(_, at)| *at).min().unwrap_or(0);
    let last = all.iter().map(|(_, at)| *at + 15).max().unwrap_or(0);
    (first, last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_begin_with_the_nop_and_the_jump_and_lie_together() {
        for (name, at) in all() {
            // SAFETY: code of this program.
            let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, 6) };
            assert_eq!(bytes[..5], [0x0f, 0x1f, 0x44, 0, 0], "{name}");
            assert!(matches!(bytes[5], 0xe9 | 0xeb), "{name}: {:#x}", bytes[5]);
            assert_eq!(at % 16, 0, "{name}");
        }
        let (first, last) = code_range();
        assert_eq!(last + 1 - first, 16 * all().len());
    }
}
