//! The processes of a recording: who they are, which live.

use std::collections::HashMap;

use probe_common::wire::{MessageKind, ProcessMessage};

use super::clock::now_ns;
use crate::sample::{Process, ProcessId, Record};
use crate::target;

/// Processes seen so far.
#[derive(Debug, Default)]
pub struct Processes {
    known: HashMap<ProcessId, Process>,
    /// Start times of pids whose messages carry none, on kernels that do not tell them.
    starts: HashMap<u32, u64>,
}

impl Processes {
    /// The identity of a process a message speaks of.
    pub fn identify(&mut self, pid: u32, start_ns: u64) -> ProcessId {
        if start_ns != 0 {
            return ProcessId { pid, start_ns };
        }
        let start_ns = *self.starts.entry(pid).or_insert_with(|| target::start_ns_of(pid).unwrap_or(0));
        ProcessId { pid, start_ns }
    }

    /// Makes sure the trace says who this process is; the answer is a record where it did not yet.
    pub fn meet(&mut self, id: ProcessId) -> Option<Record> {
        if self.known.contains_key(&id) {
            return None;
        }
        let nobody = || Process { id, t_ns: now_ns(), ..Process::default() };
        let found = target::process(id.pid).filter(|found| found.id == id).unwrap_or_else(nobody);
        self.known.insert(id, found.clone());
        Some(Record::Process(found))
    }

    /// Takes in what a probe told of a process.
    pub fn told(&mut self, kind: MessageKind, message: &ProcessMessage) -> Option<Record> {
        let id = self.identify(message.header.tgid, message.header.start_ns);
        if kind == MessageKind::Exit && !self.known.contains_key(&id) {
            // Somebody who never made a watched call, with the whole host watched.
            return None;
        }
        let before = self.known.get(&id).cloned();
        // A program's path and groups are in /proc, if it still lives; its name is in the message in any case.
        let fresh =
            if kind == MessageKind::Exit { None } else { target::process(id.pid).filter(|p| p.id == id) };
        let nobody = Process { id, uid: message.uid, ..Process::default() };
        let mut now = fresh.or_else(|| before.clone()).unwrap_or(nobody);
        now.comm = comm_of(message).unwrap_or(now.comm);
        if message.parent_tgid != 0 {
            now.parent_pid = message.parent_tgid;
        }
        now.exited |= kind == MessageKind::Exit;
        now.t_ns = message.header.t_ns;
        self.known.insert(id, now.clone());
        Some(Record::Process(now))
    }

    /// Processes that were told to have ended and by now do nothing any more, with what the trace shall say of those
    /// whose end was not told.
    pub fn ended(&mut self) -> (Vec<ProcessId>, Vec<Record>) {
        let mut gone = Vec::new();
        let mut records = Vec::new();
        for (id, process) in &mut self.known {
            if target::has_ended(*id) {
                gone.push(*id);
                if !process.exited {
                    process.exited = true;
                    process.t_ns = now_ns();
                    records.push(Record::Process(process.clone()));
                }
            }
        }
        (gone, records)
    }

    /// Forgets a process that is no more.
    pub fn forget(&mut self, id: ProcessId) {
        self.known.remove(&id);
        if self.starts.get(&id.pid) == Some(&id.start_ns) {
            self.starts.remove(&id.pid);
        }
    }

    /// Processes that, as far as is known, live.
    pub fn living(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.known.iter().filter(|(_, process)| !process.exited).map(|(id, _)| *id)
    }
}

fn comm_of(message: &ProcessMessage) -> Option<String> {
    let end = memchr::memchr(0, &message.comm).unwrap_or(message.comm.len());
    let comm = String::from_utf8_lossy(&message.comm[..end]).into_owned();
    (!comm.is_empty()).then_some(comm)
}

#[cfg(test)]
mod tests {
    use probe_common::wire::Header;

    use super::*;

    fn message(kind: MessageKind, tgid: u32, start_ns: u64, comm: &str) -> ProcessMessage {
        let mut name = [0; 16];
        name[..comm.len()].copy_from_slice(comm.as_bytes());
        let header = Header { kind: kind as u32, tgid, tid: tgid, zero: 0, start_ns, t_ns: 5 };
        ProcessMessage { header, parent_tgid: 1, uid: 1000, comm: name }
    }

    const GONE: u32 = u32::MAX - 1;

    #[test]
    fn a_process_that_ended_before_it_could_be_read_keeps_its_name() {
        let mut processes = Processes::default();
        let fork = message(MessageKind::Fork, GONE, 70, "sh");
        assert!(processes.told(MessageKind::Fork, &fork).is_some());
        let exec = message(MessageKind::Exec, GONE, 70, "short");
        let Some(Record::Process(told)) = processes.told(MessageKind::Exec, &exec) else {
            panic!("not told")
        };
        assert_eq!((told.comm.as_str(), told.uid, told.parent_pid), ("short", 1000, 1));
        assert!(processes.meet(ProcessId { pid: GONE, start_ns: 70 }).is_none());
    }

    #[test]
    fn the_end_of_a_process_never_met_is_not_told() {
        let mut processes = Processes::default();
        let exit = message(MessageKind::Exit, GONE, 70, "other");
        assert!(processes.told(MessageKind::Exit, &exit).is_none());
    }

    #[test]
    fn one_pid_with_two_start_times_is_two_processes() {
        let mut processes = Processes::default();
        assert!(processes.meet(ProcessId { pid: GONE, start_ns: 70 }).is_some());
        assert!(processes.meet(ProcessId { pid: GONE, start_ns: 80 }).is_some());
        assert_eq!(processes.living().count(), 2);
    }

    #[test]
    fn a_process_that_is_gone_without_word_is_told_once() {
        let mut processes = Processes::default();
        processes.meet(ProcessId { pid: GONE, start_ns: 70 });
        let (gone, records) = processes.ended();
        assert_eq!((gone.len(), records.len()), (1, 1));
        let (gone, records) = processes.ended();
        assert_eq!((gone.len(), records.len()), (1, 0));
    }
}
