//! What is played on the stage: closed loops over several queue pairs, and locks in remote memory.

use super::stage::{Regions, Script, token};
use crate::load::{Load, Op, Walker};
use crate::suite::Lock;
use rnic_emu::model::time::Ps;
use rnic_emu::model::{self, Completion, Request};
use std::collections::VecDeque;

/// The model's name for an operation.
pub fn op(op: Op) -> model::Op {
    match op {
        Op::Write => model::Op::Write,
        Op::Read => model::Op::Read,
        Op::CompareSwap => model::Op::CompareSwap,
        Op::FetchAdd => model::Op::FetchAdd,
    }
}

/// A closed loop of single, signalled requests: each queue pair keeps its window full.
pub struct ClosedLoop {
    load: Load,
    regions: Regions,
    queues: Vec<Queue>,
}

struct Queue {
    posted: u64,
    walker: Walker,
    started: VecDeque<Ps>,
}

impl ClosedLoop {
    /// The loop that a load describes.
    pub fn new(load: &Load, regions: Regions) -> ClosedLoop {
        let queues = (0..u64::from(load.qps))
            .map(|seed| Queue { posted: 0, walker: Walker::new(load, seed), started: VecDeque::new() })
            .collect();
        ClosedLoop { load: load.clone(), regions, queues }
    }

    fn next(&mut self, qp: usize, at: Ps) -> Request {
        let queue = &mut self.queues[qp];
        let what = self.load.mix.op(qp, queue.posted);
        queue.posted += 1;
        queue.started.push_back(at);
        let request = Request {
            op: op(what),
            bytes: self.load.size,
            inline: self.load.inline && what == Op::Write,
            token: token(qp, 0),
            ..Request::default()
        };
        let local = queue.posted % 512 * 64;
        let remote = queue.walker.next_offset();
        self.regions.place(request, local, remote)
    }
}

impl Script for ClosedLoop {
    fn open(&mut self, qp: usize, at: Ps, list: &mut Vec<Request>) {
        for _ in 0..self.load.window {
            list.push(self.next(qp, at));
        }
    }

    fn reaped(&mut self, qp: usize, _done: &Completion, at: Ps, list: &mut Vec<Request>) -> Option<Ps> {
        list.push(self.next(qp, at));
        // Requests of a queue pair complete in order.
        self.queues[qp].started.pop_front()
    }
}

/// Clients that take and release locks, one queue pair and one attempt each.
pub struct Locks {
    kind: Lock,
    regions: Regions,
    /// Since when each lock is free; `None` while it is held.
    free_from: Vec<Option<Ps>>,
    clients: Vec<(bool, Ps)>,
}

const RELEASE: u32 = 1;
/// As in the workload: not a multiple of 4096, by whose low bits NICs tell locks apart.
const APART: u64 = 320;

impl Locks {
    /// That many clients.
    pub fn new(kind: Lock, clients: usize, regions: Regions) -> Locks {
        let locks = if kind == Lock::Spread { clients } else { 1 };
        Locks { kind, regions, free_from: vec![Some(0); locks], clients: vec![(false, 0); clients] }
    }

    fn lock_of(&self, client: usize) -> usize {
        if self.kind == Lock::Spread { client } else { 0 }
    }

    fn take(&mut self, client: usize, list: &mut Vec<Request>) {
        let word = self.lock_of(client) as u64 * APART;
        let local = client as u64 % 4096 * 64;
        let request = Request { bytes: 8, token: token(client, 0), ..Request::default() };
        if self.kind == Lock::WriteRead {
            let mark = Request { op: model::Op::Write, signalled: false, ..request };
            list.push(self.regions.place(mark, local, word));
            list.push(self.regions.place(Request { op: model::Op::Read, ..request }, local, word));
        } else {
            list.push(self.regions.place(Request { op: model::Op::CompareSwap, ..request }, local, word));
        }
    }
}

impl Script for Locks {
    fn open(&mut self, client: usize, at: Ps, list: &mut Vec<Request>) {
        self.clients[client] = (false, at);
        self.take(client, list);
    }

    fn reaped(&mut self, client: usize, done: &Completion, at: Ps, list: &mut Vec<Request>) -> Option<Ps> {
        let (holding, started) = self.clients[client];
        let lock = self.lock_of(client);
        if self.kind == Lock::WriteRead || holding {
            self.clients[client] = (false, at);
            self.take(client, list);
            return Some(started);
        }
        // The compare-and-swap saw the word as it was when it was carried out at the responder.
        if self.free_from[lock].is_some_and(|since| since <= done.delivered) {
            self.free_from[lock] = None;
            self.clients[client].0 = true;
            let release = Request {
                op: model::Op::Write,
                bytes: 8,
                notify: true,
                token: token(client, RELEASE),
                ..Request::default()
            };
            list.push(self.regions.place(release, client as u64 % 4096 * 64, lock as u64 * APART));
        } else {
            self.take(client, list);
        }
        None
    }

    fn delivered(&mut self, token: u64, at: Ps) {
        let lock = self.lock_of((token >> 32) as usize);
        self.free_from[lock] = Some(at);
    }
}
