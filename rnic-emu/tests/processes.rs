//! Two processes on one host: nothing in common but the name of a socket.

mod kit;

use kit::other::{Other, fill, sum};
use kit::{End, Link, Options, atomic, remote, request};
use rnic_emu::abi::consts::*;
use std::time::{Duration, Instant};

#[test]
#[ignore = "main of the other process in these tests"]
fn other_process() {
    kit::other::main();
}

fn end() -> End {
    End::new(Options { memory: 16 << 20, ..Options::default() })
}

#[test]
fn one_sided_operations_complete_while_the_target_does_something_else() {
    let mut a = end();
    let mut b = Other::connected(&a, Link::default());
    // The other process now sits in a read of its pipe and calls no verbs.
    fill(&mut a.memory[..5000], 1);
    assert_eq!(a.post(remote(IBV_WR_RDMA_WRITE, 1, b.addr + 64, b.rkey), &mut [a.sge(0, 5000)]), 0);
    assert_eq!(a.sent().status, IBV_WC_SUCCESS);
    assert_eq!(a.post(remote(IBV_WR_RDMA_READ, 2, b.addr + 64, b.rkey), &mut [a.sge(10_000, 5000)]), 0);
    let wc = a.sent();
    assert_eq!((wc.status, wc.byte_len), (IBV_WC_SUCCESS, 5000));
    assert_eq!(a.memory[..5000], a.memory[10_000..15_000]);
    let aligned = b.addr / 8 * 8 + 8192;
    for expected in [0u64, 5, 10] {
        let wr = atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 3, aligned, b.rkey, 5, 0);
        assert_eq!(a.post(wr, &mut [a.sge(20_000, 8)]), 0);
        assert_eq!(a.sent().status, IBV_WC_SUCCESS);
        assert_eq!(a.memory[20_000..20_008], expected.to_ne_bytes());
    }
    assert_eq!(b.tell("sum 64 5000"), sum(&a.memory[..5000]).to_string());
}

#[test]
fn megabytes_cross_in_both_directions_at_once_whole() {
    let mut a = end();
    let mut b = Other::connected(&a, Link { timeout: 18, ..Link::default() });
    const LEN: usize = 7 << 20;
    fill(&mut a.memory[..LEN], 5);
    let ours = sum(&a.memory[..LEN]);
    b.tell(&format!("fill 0 {LEN} 6"));
    let theirs = b.tell(&format!("sum 0 {LEN}"));
    // Each writes into the other's upper half, and we read their lower half over our own as well.
    let upper = 8 << 20;
    assert_eq!(b.tell(&format!("write 9 {} {} 0 {LEN}", a.addr(upper), a.lkey())), "0");
    assert_eq!(
        a.post(
            remote(IBV_WR_RDMA_WRITE, 1, b.addr + upper as u64, b.rkey),
            &mut [a.sge(0, 1_000_003), a.sge(1_000_003, LEN as u32 - 1_000_003)]
        ),
        0
    );
    assert_eq!(a.post(remote(IBV_WR_RDMA_READ, 2, b.addr, b.rkey), &mut [a.sge(0, LEN as u32)]), 0);
    assert_eq!((a.sent().status, a.sent().status), (IBV_WC_SUCCESS, IBV_WC_SUCCESS));
    assert_eq!(b.tell("completion send"), format!("9 0 {LEN}"));
    assert_eq!(b.tell(&format!("sum {upper} {LEN}")), ours.to_string());
    assert_eq!(sum(&a.memory[..LEN]).to_string(), theirs);
    assert_eq!(sum(&a.memory[upper..upper + LEN]).to_string(), theirs);
}

#[test]
fn sends_wait_for_receives_and_arrive_in_order() {
    let mut a = end();
    let link = Link { rnr_retry: 7, ..Link::default() };
    let mut b = Other::connected(&a, link);
    fill(&mut a.memory[..100_000], 3);
    for id in 0..8 {
        assert_eq!(a.post(request(IBV_WR_SEND, id), &mut [a.sge(id as usize * 10_000, 10_000)]), 0);
    }
    std::thread::sleep(Duration::from_millis(3));
    for id in 0..8 {
        assert_eq!(b.tell(&format!("receive {id} {} 20000", id * 20_000)), "0");
    }
    for id in 0..8usize {
        assert_eq!(a.sent().wr_id, id as u64);
        assert_eq!(b.tell("completion recv"), format!("{id} 0 10000"));
        let there = b.tell(&format!("sum {} 10000", id * 20_000));
        assert_eq!(there, sum(&a.memory[id * 10_000..(id + 1) * 10_000]).to_string());
    }
}

#[test]
fn a_wrong_key_fails_both_ends_across_processes() {
    let a = end();
    let mut b = Other::connected(&a, Link::default());
    let mut ok = remote(IBV_WR_RDMA_WRITE, 1, b.addr, b.rkey);
    ok.send_flags = 0;
    assert_eq!(a.post(ok, &mut [a.sge(0, 8)]), 0);
    assert_eq!(a.post(remote(IBV_WR_RDMA_WRITE, 2, b.addr, b.rkey ^ 1), &mut [a.sge(0, 40_000)]), 0);
    assert_eq!(a.post(remote(IBV_WR_RDMA_WRITE, 3, b.addr, b.rkey), &mut [a.sge(0, 8)]), 0);
    let first = a.sent();
    assert_eq!((first.wr_id, first.status), (2, IBV_WC_REM_ACCESS_ERR));
    let second = a.sent();
    assert_eq!((second.wr_id, second.status), (3, IBV_WC_WR_FLUSH_ERR));
    assert_eq!(b.tell("state"), IBV_QPS_ERR.to_string());
}

#[test]
fn a_killed_peer_is_found_out_by_the_timeout_and_its_place_is_free_again() {
    let a = end();
    // Code 12 is 16.8 ms.
    let mut b = Other::connected(&a, Link { timeout: 12, retry_cnt: 1, ..Link::default() });
    assert_eq!(a.post(remote(IBV_WR_RDMA_WRITE, 1, b.addr, b.rkey), &mut [a.sge(0, 8)]), 0);
    assert_eq!(a.sent().status, IBV_WC_SUCCESS);
    let slot = b.qpn >> 16;
    let place = sockets(slot);
    assert_eq!(place.len(), 1);
    b.child.kill().expect("kill -9");
    b.child.wait().expect("gone");
    let start = Instant::now();
    assert_eq!(a.post(remote(IBV_WR_RDMA_WRITE, 2, b.addr, b.rkey), &mut [a.sge(0, 8)]), 0);
    assert_eq!(a.post(remote(IBV_WR_RDMA_WRITE, 3, b.addr, b.rkey), &mut [a.sge(0, 8)]), 0);
    assert_eq!((a.sent().status, a.sent().status), (IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR));
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(33) && took < Duration::from_secs(2), "{took:?}");
    assert!(!sockets(slot).contains(&place[0]), "the name went with the process");
}

/// The sockets that hold a slot's name, by inode.
fn sockets(slot: u32) -> Vec<String> {
    // SAFETY: takes no arguments.
    let name = format!("@rnic-emu/{}/{slot}", unsafe { libc::getuid() });
    let all = std::fs::read_to_string("/proc/net/unix").expect("proc");
    let listening = |w: &[&str]| w.len() > 7 && w[7] == name && w[3] == "00010000";
    all.lines()
        .map(|l| l.split_whitespace().collect::<Vec<_>>())
        .filter(|w| listening(w))
        .map(|w| w[6].to_string())
        .collect()
}

/// Stops a process, which stands for a debugger, a frozen container, or a machine that sleeps.
fn stop(b: &Other) -> i32 {
    let pid = b.child.id() as i32;
    let mut status = 0;
    // SAFETY: a signal to our own child, and a wait for it to stop.
    let stopped = unsafe {
        libc::kill(pid, libc::SIGSTOP) == 0 && libc::waitpid(pid, &mut status, libc::WUNTRACED) == pid
    };
    assert!(stopped && libc::WIFSTOPPED(status));
    pid
}

/// Nothing completes for far longer than the ACK timeout and all retries.
fn assert_patient(a: &End) {
    let patience = Instant::now() + Duration::from_millis(100);
    while Instant::now() < patience {
        assert!(kit::poll(a.send_cq).is_none());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Code 10 is 4.2 ms; without patience requests fail after 13 ms.
const IMPATIENT: Link = Link { timeout: 10, retry_cnt: 2, ..DEFAULT };
const DEFAULT: Link = Link {
    path_mtu: 3,
    timeout: 8,
    retry_cnt: 2,
    rnr_retry: 2,
    min_rnr_timer: 1,
    max_rd_atomic: 4,
    max_dest_rd_atomic: 4,
};

#[test]
fn a_stopped_peer_is_not_a_dead_one() {
    let a = end();
    let b = Other::connected(&a, IMPATIENT);
    let pid = stop(&b);
    assert_eq!(a.post(remote(IBV_WR_RDMA_WRITE, 1, b.addr, b.rkey), &mut [a.sge(0, 8)]), 0);
    assert_eq!(a.post(remote(IBV_WR_RDMA_READ, 2, b.addr, b.rkey), &mut [a.sge(0, 8)]), 0);
    assert_patient(&a);
    // SAFETY: a signal to our own child.
    unsafe { libc::kill(pid, libc::SIGCONT) };
    for id in 1..=2 {
        let wc = a.sent();
        assert_eq!((wc.wr_id, wc.status), (id, IBV_WC_SUCCESS));
    }
}

#[test]
fn a_stopped_peer_that_is_then_killed_is_a_dead_one() {
    let a = end();
    let mut b = Other::connected(&a, IMPATIENT);
    stop(&b);
    assert_eq!(a.post(remote(IBV_WR_RDMA_WRITE, 1, b.addr, b.rkey), &mut [a.sge(0, 8)]), 0);
    assert_eq!(a.post(remote(IBV_WR_RDMA_WRITE, 2, b.addr, b.rkey), &mut [a.sge(0, 8)]), 0);
    assert_patient(&a);
    b.child.kill().expect("kill -9");
    b.child.wait().expect("gone");
    assert_eq!((a.sent().status, a.sent().status), (IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR));
}

#[test]
fn one_sided_operations_complete_while_the_target_hangs_in_its_own_code() {
    let mut a = end();
    let mut b = Other::connected(&a, IMPATIENT);
    b.begin("hang 400");
    assert_eq!(b.answer(), "hanging");
    let start = Instant::now();
    fill(&mut a.memory[..5000], 4);
    assert_eq!(a.post(remote(IBV_WR_RDMA_WRITE, 1, b.addr, b.rkey), &mut [a.sge(0, 5000)]), 0);
    assert_eq!(a.post(remote(IBV_WR_RDMA_READ, 2, b.addr, b.rkey), &mut [a.sge(6000, 5000)]), 0);
    assert_eq!((a.sent().status, a.sent().status), (IBV_WC_SUCCESS, IBV_WC_SUCCESS));
    assert!(start.elapsed() < Duration::from_millis(350), "before the target came back");
    assert_eq!(a.memory[..5000], a.memory[6000..11_000]);
    assert_eq!(b.answer(), "hung");
}

#[test]
fn many_peers_talk_to_one_process() {
    let ends: Vec<End> = (0..6).map(|_| End::new(Options::default())).collect();
    let others: Vec<Other> = ends.iter().map(|e| Other::connected(e, Link::default())).collect();
    for round in 0..200u64 {
        for (e, o) in ends.iter().zip(&others) {
            let wr = remote(IBV_WR_RDMA_WRITE, round, o.addr, o.rkey);
            assert_eq!(e.post(wr, &mut [e.sge(0, 4096)]), 0);
        }
        for e in &ends {
            let wc = e.sent();
            assert_eq!((wc.wr_id, wc.status), (round, IBV_WC_SUCCESS));
        }
    }
}
