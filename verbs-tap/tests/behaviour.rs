//! What the tap counts, and that the program sees none of it, on a provider made of memory.
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "attributes on the stack of the test, calls without arguments"
)]

mod fake;

use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use fake::abi::{self, QpInitAttrEx, RecvWr, SendWr, Sge, Wc, before_context, op, wr};
use fake::{LEFT_ERRNO, adopt, chain, context, cq, create_ex, qp};
use probe_user::tap::{Kind, Object, Reading, Tap};

fn read() -> Reading {
    Tap::of(std::process::id()).expect("own process").expect("a tap").read().expect("a reading")
}

fn object(address: usize) -> Object {
    let mut found = read().objects.into_iter().filter(|o| o.address == address as u64 && !o.gone);
    found.next_back().unwrap_or_else(|| panic!("no object at {address:#x}"))
}

fn errno() -> i32 {
    unsafe { *libc::__errno_location() }
}

fn tapped() -> *mut abi::Context {
    let context = context();
    adopt(context);
    context
}

/// A post whose result and `bad_wr` are what the fake provider gave.
fn post(qp: &fake::FakeQp, wrs: &[SendWr]) -> (i32, *mut SendWr) {
    let mut bad = ptr::dangling_mut();
    (qp.post_send(wrs.as_ptr(), &mut bad), bad)
}

#[test]
fn posts_are_counted_per_queue_pair() {
    let context = tapped();
    let (a, b) = (qp(context, 11), qp(context, 12));
    let (wrs, _sge) = chain(10, 64, |n| if n == 9 { abi::SEND_SIGNALED } else { abi::SEND_INLINE });
    for _ in 0..3 {
        assert_eq!(post(a, &wrs).0, 0);
    }
    assert_eq!(post(b, &wrs[9..]).0, 0);
    let (a, b) = (object(a.address()), object(b.address()));
    let c = &a.counts;
    assert_eq!((c.post_calls, c.wrs, c.signalled, c.inline, c.bytes, c.sges), (3, 30, 3, 27, 1920, 30));
    assert_eq!((c.longest_unsignalled, c.opcodes["rdma_write"], a.number), (9, 30, 11));
    assert_eq!((b.counts.wrs, b.counts.signalled, b.number), (1, 1, 12));
    assert_eq!(a.signal_all, None, "made out of the tap's sight");
}

#[test]
fn only_work_requests_before_the_bad_one_count() {
    let context = tapped();
    let qp = qp(context, 21);
    let (wrs, _sge) = chain(8, 100, |n| if n % 2 == 0 { abi::SEND_SIGNALED } else { 0 });
    qp.accepts.store(3, Relaxed);
    let (result, bad) = post(qp, &wrs);
    assert_eq!((result, bad.cast_const(), errno()), (libc::ENOMEM, &raw const wrs[3], LEFT_ERRNO));
    let counts = object(qp.address()).counts;
    assert_eq!(
        (counts.post_calls, counts.post_failed, counts.wrs, counts.signalled, counts.bytes),
        (1, 1, 3, 2, 300)
    );
}

#[test]
fn opcodes_of_what_was_not_posted_do_not_count() {
    let context = tapped();
    let qp = qp(context, 25);
    let (mut wrs, _sge) = chain(6, 8, |_| 0);
    for (wr, opcode) in wrs.iter_mut().zip([2, 4, 2, 0, 4, 2]) {
        wr.opcode = opcode;
    }
    qp.accepts.store(3, Relaxed);
    assert_eq!(post(qp, &wrs).0, libc::ENOMEM);
    let counts = object(qp.address()).counts;
    assert_eq!(counts.opcodes.into_iter().collect::<Vec<_>>(), [("rdma_read", 1), ("send", 2)]);
}

#[test]
fn a_provider_that_names_no_bad_work_request_leaves_the_programs_variable_alone() {
    let context = tapped();
    let qp = qp(context, 22);
    let (wrs, _sge) = chain(4, 100, |_| 0);
    qp.accepts.store(0, Relaxed);
    qp.names_bad.store(0, Relaxed);
    let (result, bad) = post(qp, &wrs);
    assert_eq!((result, bad), (libc::ENOMEM, ptr::dangling_mut()));
    assert_eq!(object(qp.address()).counts.wrs, 0);
}

#[test]
fn a_success_does_not_touch_errno_or_bad_wr() {
    let context = tapped();
    let qp = qp(context, 23);
    let (wrs, _sge) = chain(1, 8, |_| 0);
    for _ in 0..2 {
        // The first call takes the slow path, the second the fast one.
        unsafe { *libc::__errno_location() = 31 };
        assert_eq!(post(qp, &wrs), (0, ptr::dangling_mut()));
        assert_eq!(errno(), 31);
    }
}

#[test]
fn receives_are_counted_and_corrected() {
    let context = tapped();
    let qp = qp(context, 24);
    let mut sge = Sge { addr: 0, length: 256, lkey: 0 };
    let list: *mut Sge = &mut sge;
    let recv = |id: u64, next: *mut RecvWr| RecvWr { wr_id: id, next, sg_list: list, num_sge: 1 };
    let mut last = recv(666, ptr::null_mut());
    let mut second = recv(2, &mut last);
    let first = recv(1, &mut second);
    let mut bad = ptr::null_mut();
    assert_eq!(qp.post_recv(&first, &mut bad), libc::ENOMEM);
    assert_eq!(bad.cast_const(), &raw const last);
    assert_eq!(qp.post_recv(&last, &mut bad), libc::EINVAL);
    let counts = object(qp.address()).counts;
    assert_eq!((counts.recv_calls, counts.recv_failed, counts.recv_wrs, counts.recv_bytes), (2, 2, 2, 512));
}

#[test]
fn polls_are_counted_with_their_statuses() {
    let context = tapped();
    let cq = cq(context, 31);
    let mut wc: [Wc; 4] = unsafe { std::mem::zeroed() };
    cq.ready.store(6, Relaxed);
    assert_eq!((cq.poll(&mut wc), cq.poll(&mut wc), cq.poll(&mut wc)), (4, 2, 0));
    cq.ready.store(1, Relaxed);
    cq.status.store(12, Relaxed);
    assert_eq!(cq.poll(&mut wc), 1);
    cq.ready.store(-1, Relaxed);
    assert_eq!((cq.poll(&mut wc), errno()), (-1, LEFT_ERRNO));
    let c = object(cq.address()).counts;
    assert_eq!((c.polls, c.empty_polls, c.failed_polls, c.cqes, c.cqe_errors), (5, 1, 1, 7, 1));
    assert_eq!(c.statuses.into_iter().collect::<Vec<_>>(), [(0, 6), (12, 1)]);
}

/// An extended queue pair, made as `ibv_create_qp_ex` makes it.
fn extended_qp(context: *mut abi::Context, signal_all: bool) -> &'static fake::FakeQp {
    let mut attr: QpInitAttrEx = unsafe { std::mem::zeroed() };
    attr.comp_mask = abi::INIT_SEND_OPS_FLAGS;
    attr.sq_sig_all = i32::from(signal_all);
    let made = create_ex(context, before_context::CREATE_QP_EX, (&raw mut attr).cast());
    unsafe { &*(made as *const fake::FakeQp) }
}

#[test]
fn batches_of_the_extended_api_are_counted_when_they_are_completed() {
    let qp = extended_qp(tapped(), false);
    for round in 0..3 {
        qp.extended(wr::START);
        qp.set_flags(0);
        qp.extended3(wr::RDMA_WRITE, 1, 2, 0);
        qp.extended3(wr::SET_SGE, 1, 0x1000, 512);
        qp.set_flags(abi::SEND_SIGNALED);
        qp.extended(wr::SEND);
        qp.extended3(wr::SET_INLINE_DATA, 0x1000, 16, 0);
        match round {
            0 => assert_eq!(qp.extended(wr::COMPLETE), 0),
            1 => drop(qp.extended(wr::ABORT)),
            _ => {
                qp.accepts.store(0, Relaxed);
                assert_eq!(qp.extended(wr::COMPLETE), libc::ENOMEM);
            }
        }
    }
    let qp = object(qp.address());
    let c = qp.counts;
    assert_eq!((c.post_calls, c.post_failed, c.aborted, c.wrs), (2, 1, 1, 2));
    assert_eq!((c.signalled, c.inline, c.bytes, c.sges), (1, 1, 528, 2));
    assert_eq!((c.opcodes["rdma_write"], c.opcodes["send"], qp.signal_all), (1, 1, Some(false)));
}

#[test]
fn a_queue_pair_that_signals_all_is_known_as_such() {
    let qp = extended_qp(tapped(), true);
    qp.extended(wr::START);
    qp.extended(wr::SEND);
    assert_eq!(qp.extended(wr::COMPLETE), 0);
    let qp = object(qp.address());
    assert_eq!((qp.counts.wrs, qp.counts.signalled, qp.signal_all), (1, 1, Some(true)));
}

#[test]
fn walks_of_an_extended_completion_queue_are_counted() {
    let context = tapped();
    let made = create_ex(context, before_context::CREATE_CQ_EX, ptr::null_mut());
    let cq = unsafe { &*(made as *const fake::FakeCq) };
    assert_eq!(cq.extended(0), libc::ENOENT);
    cq.ready.store(3, Relaxed);
    assert_eq!(cq.extended(0), 0);
    cq.status.store(5, Relaxed);
    assert_eq!((cq.extended(1), cq.extended(1), cq.extended(1)), (0, 0, libc::ENOENT));
    cq.extended(2);
    let c = object(cq.address()).counts;
    assert_eq!((c.polls, c.empty_polls, c.cqes, c.cqe_errors), (2, 1, 3, 2));
    assert_eq!(object(cq.address()).kind, Kind::Cq);
}

#[test]
fn a_function_the_provider_replaces_is_tapped_again() {
    unsafe extern "C-unwind" fn refuses(_qp: usize, _wr: usize, _bad: usize) -> i32 {
        libc::EPERM
    }
    let context = tapped();
    let qp = qp(context, 41);
    let (wrs, _sge) = chain(1, 8, |_| 0);
    assert_eq!(post(qp, &wrs).0, 0);
    let before = read().retapped;
    unsafe { &*context }.ops[op::POST_SEND].store(refuses as *const () as usize, Relaxed);
    assert_eq!(post(qp, &wrs).0, libc::EPERM);
    assert_eq!(object(qp.address()).counts.post_calls, 1, "not seen until the context passes a verb");
    adopt(context);
    assert_eq!(post(qp, &wrs).0, libc::EPERM);
    assert_eq!(object(qp.address()).counts.post_failed, 1);
    assert!(read().retapped > before);
}

#[test]
fn someone_elses_wrapper_is_not_wrapped_again() {
    let context = tapped();
    // A function of another library: if the tap called it as the original, and it called the tap, neither would return.
    let foreign = libc::getpid as *const () as usize;
    unsafe { &*context }.ops[op::POST_SEND].store(foreign, Relaxed);
    adopt(context);
    assert_eq!(unsafe { &*context }.ops[op::POST_SEND].load(Relaxed), foreign);
}

#[test]
fn a_context_whose_operations_cannot_be_written_is_left_alone() {
    const LENGTH: usize = 4096;
    let page = unsafe {
        let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(ptr::null_mut(), LENGTH, libc::PROT_READ | libc::PROT_WRITE, how, -1, 0);
        let context = page.cast::<u8>().add(1024).cast::<abi::Context>();
        ptr::copy_nonoverlapping(self::context(), context, 1);
        (*context).abi_compat = 0;
        libc::mprotect(page, LENGTH, libc::PROT_READ);
        context
    };
    let before = unsafe { &*page }.ops[op::POST_SEND].load(Relaxed);
    adopt(page);
    assert_eq!(unsafe { &*page }.ops[op::POST_SEND].load(Relaxed), before);
    assert!(read().untapped_contexts >= 1);
}

#[test]
fn counts_of_ended_threads_stand_and_threads_are_kept_apart() {
    let context = tapped();
    let qp = qp(context, 51);
    let (wrs, _sge) = chain(2, 8, |_| 0);
    let first = wrs.as_ptr() as usize;
    for _ in 0..5 {
        thread::spawn(move || {
            let mut bad = ptr::null_mut();
            for _ in 0..1000 {
                assert_eq!(qp.post_send(first as *const SendWr, &mut bad), 0);
            }
        })
        .join()
        .expect("thread");
    }
    let qp = object(qp.address());
    assert_eq!((qp.counts.post_calls, qp.counts.wrs), (5_000, 10_000));
    assert_eq!(qp.threads.iter().map(|t| t.threads).sum::<u32>(), 5);
    assert!(qp.threads.iter().all(|t| t.counts.wrs.is_multiple_of(2_000)));
}

#[test]
fn threads_that_post_at_the_same_time_lose_nothing() {
    let context = tapped();
    let qps: Vec<_> = (0..8).map(|n| qp(context, 60 + n)).collect();
    let (wrs, _sge) = chain(1, 8, |_| 0);
    let first = wrs.as_ptr() as usize;
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut bad = ptr::null_mut();
                for round in 0..20_000 {
                    assert_eq!(qps[round % 8].post_send(first as *const SendWr, &mut bad), 0);
                }
            });
        }
    });
    let wrs: u64 = qps.iter().map(|qp| object(qp.address()).counts.wrs).sum();
    let seen: u64 = qps.iter().map(|qp| qp.seen.load(Relaxed)).sum();
    assert_eq!((wrs, seen), (80_000, 80_000));
}
