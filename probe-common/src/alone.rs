//! What a site says of a post of one work request: all that a walk would read of it, in registers.
//!
//! A probe sees every register at its site. Reading the memory of the program instead costs it two calls of the kernel,
//! more than all else it does there. Of a work request alone with at most one buffer the digest says how many bytes it
//! has, which opcode, whether it is signalled and inline; the rest fits four more registers. [`Flags::ALONE`] says that
//! they are filled: `rax` with its number (`wr_id`), `r10` with its remote address, `r11` with the address of its buffer,
//! `r12` with its keys.

use core::ptr;

use crate::site::Flags;

/// What the registers say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Alone {
    /// The program's number for it.
    pub wr_id: u64,
    /// What stands at the place of its remote address, whether its opcode names remote memory or not.
    pub remote_addr: u64,
    /// Address of its buffer; `None` where it has none.
    pub addr: Option<u64>,
    /// Its remote key (of a datagram the number of the queue pair it goes to) in the low half, the key of its buffer in
    /// the high one.
    pub keys: u64,
}

/// A digest, as a `…_posted` site is given it; see [`crate::site`].
#[derive(Debug, Clone, Copy)]
pub struct Digest {
    /// Address of the queue.
    pub queue: usize,
    /// Work requests.
    pub wrs: u64,
    /// Bytes of their payload.
    pub bytes: u64,
    /// The rest.
    pub flags: Flags,
    /// Their scatter/gather entries.
    pub sges: u64,
    /// Address of the first one; 0 where none is shown.
    pub first: usize,
}

/// A `…_posted` site.
pub type Site = unsafe extern "C" fn(usize, u64, u64, u64, u64, usize);

impl Digest {
    /// Calls a site, with more registers filled where it is of one send work request with at most one buffer.
    ///
    /// # Safety
    /// `site` is one of ours, and `first` is 0 or a `struct ibv_send_wr`, whose list has as many entries as are said.
    #[inline(never)]
    pub unsafe fn tell_sends(self, site: Site) {
        let may_be_alone = cfg!(target_arch = "x86_64") && self.wrs == 1 && self.first != 0;
        // SAFETY: as promised.
        unsafe {
            match may_be_alone.then(|| Alone::of(self.first)).flatten() {
                Some(alone) => self.tell_alone(site, alone),
                None => site(self.queue, self.wrs, self.bytes, self.flags.0, self.sges, self.first),
            }
        }
    }

    /// # Safety
    /// As for [`Self::tell_sends`].
    #[cfg(target_arch = "x86_64")]
    unsafe fn tell_alone(self, site: Site, alone: Alone) {
        // SAFETY: a call of a function with these arguments; that it takes more registers for said is nothing to it.
        unsafe {
            core::arch::asm!(
                "call {site}",
                site = in(reg) site,
                inlateout("rdi") self.queue => _,
                inlateout("rsi") self.wrs => _,
                inlateout("rdx") self.bytes => _,
                inlateout("rcx") self.flags.alone(alone.addr.is_some()).0 => _,
                inlateout("r8") self.sges => _,
                inlateout("r9") self.first => _,
                inlateout("rax") alone.wr_id => _,
                inlateout("r10") alone.remote_addr => _,
                inlateout("r11") alone.addr.unwrap_or(0) => _,
                in("r12") alone.keys,
            );
        }
    }

    /// # Safety
    /// As for [`Self::tell_sends`].
    #[cfg(not(target_arch = "x86_64"))]
    unsafe fn tell_alone(self, _: Site, _: Alone) {}
}

impl Alone {
    /// `struct ibv_send_wr`: `wr_id` 0, `sg_list` 16, `num_sge` 24, `opcode` 28; what depends on the opcode from 40 on:
    /// `remote_addr` 40, `rkey` (or `remote_qpn`) 48, of an atomic 64. `struct ibv_sge`: `addr` 0, `lkey` 12.
    ///
    /// `None` where it has several buffers.
    ///
    /// # Safety
    /// `wr` is one.
    unsafe fn of(wr: usize) -> Option<Self> {
        // SAFETY: as promised; programs leave fields unset that their opcode does not have, so they are read as they lie.
        unsafe {
            let word = |at: usize| ptr::with_exposed_provenance::<u64>(at).read_volatile();
            let half = |at: usize| ptr::with_exposed_provenance::<u32>(at).read_volatile();
            let opcode = half(wr + 28);
            let rkey = half(wr + if ATOMICS.contains(&opcode) { 64 } else { 48 });
            // Those without a list leave it unset.
            let buffers = if WITHOUT_LIST.contains(&opcode) { 0 } else { half(wr + 24) };
            let list = word(wr + 16) as usize;
            let (addr, lkey) = match buffers {
                1 if list != 0 => (Some(word(list)), half(list + 12)),
                0 => (None, 0),
                _ => return None,
            };
            let keys = u64::from(rkey) | u64::from(lkey) << 32;
            Some(Self { wr_id: word(wr), remote_addr: word(wr + 40), addr, keys })
        }
    }
}

/// `IBV_WR_ATOMIC_CMP_AND_SWP` and `IBV_WR_ATOMIC_FETCH_AND_ADD`.
const ATOMICS: [u32; 2] = [5, 6];
/// `IBV_WR_LOCAL_INV` and `IBV_WR_BIND_MW`.
const WITHOUT_LIST: [u32; 2] = [7, 8];

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::site::Queue;
    use core::arch::naked_asm;

    /// What the site was called with.
    static mut SEEN: [u64; 10] = [0; 10];

    #[unsafe(naked)]
    unsafe extern "C" fn site(_: usize, _: u64, _: u64, _: u64, _: u64, _: usize) {
        naked_asm!(
            "push r13",
            "lea r13, [rip + {seen}]",
            "mov [r13], rdi",
            "mov [r13 + 8], rsi",
            "mov [r13 + 16], rdx",
            "mov [r13 + 24], rcx",
            "mov [r13 + 32], r8",
            "mov [r13 + 40], r9",
            "mov [r13 + 48], rax",
            "mov [r13 + 56], r10",
            "mov [r13 + 64], r11",
            "mov [r13 + 72], r12",
            "pop r13",
            "ret",
            seen = sym SEEN,
        )
    }

    fn told(wrs: u64, sges: u64, words: &[u64; 16]) -> [u64; 10] {
        let flags = Flags::pack(1, 0, 1, Queue::Send, false);
        let first = words.as_ptr().expose_provenance();
        // SAFETY: a site, and a work request of ours; one test alone uses what it writes.
        unsafe {
            Digest { queue: 7, wrs, bytes: 64, flags, sges, first }.tell_sends(site);
            (&raw const SEEN).read()
        }
    }

    #[test]
    fn a_request_alone_is_told_in_registers_and_others_are_not() {
        let sge = [0x4000_u64, 64 | 9 << 32];
        let mut wr = [0_u64; 16];
        (wr[0], wr[2]) = (42, sge.as_ptr().expose_provenance() as u64);
        (wr[3], wr[5], wr[6], wr[8]) = (1, 0x5000, 77, 88);
        let first = wr.as_ptr().expose_provenance() as u64;
        let plain = Flags::pack(1, 0, 1, Queue::Send, false);
        let seen = told(1, 1, &wr);
        assert_eq!(seen, [7, 1, 64, plain.alone(true).0, 1, first, 42, 0x5000, 0x4000, 77 | 9 << 32]);
        assert!(Flags(seen[3]).is_alone() && !plain.is_alone());
        // Fetch and add, whose key is elsewhere.
        wr[3] = 1 | 6 << 32;
        assert_eq!(told(1, 1, &wr)[9], 88 | 9 << 32);
        wr[3] = 6 << 32;
        let seen = told(1, 0, &wr);
        assert_eq!((Flags(seen[3]).has_buffer(), &seen[8..]), (false, &[0, 88][..]));
        // A chain, several buffers, and one that leaves its list unset.
        assert_eq!(told(2, 1, &wr)[..6], [7, 2, 64, plain.0, 1, first]);
        wr[3] = 2;
        assert_eq!(told(1, 2, &wr)[3], plain.0);
        (wr[2], wr[3]) = (1, 1 | 7 << 32);
        assert_eq!(told(1, 0, &wr)[3], plain.alone(false).0);
    }
}
