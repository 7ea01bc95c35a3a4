//! Folded stacks for flame graphs: who registers memory (or makes whatever other call), from which call sites.
//!
//! One line per stack: `comm;outermost;…;innermost;call weight`, as flamegraph.pl, inferno and speedscope read it.

use std::collections::HashMap;
use std::io::{self, Write};

use crate::sample::{Call, Event, ProcessId, Record};

use super::Exporter;
use super::perfetto::call_name;

/// Different stacks held at once; the rest is summed under `[other]`.
const MAX_STACKS: usize = 1 << 18;

/// What the width of a frame stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// Calls.
    Calls,
    /// Time inside them, ns.
    Time,
    /// Bytes registered or pinned.
    Bytes,
}

/// Sums up stacks and writes them at the end.
pub struct Folded<W> {
    out: W,
    weight: Weight,
    calls: Vec<Call>,
    names: HashMap<ProcessId, String>,
    stacks: HashMap<(ProcessId, Call, Vec<u64>), u64>,
    other: u64,
}

impl<W: Write> Folded<W> {
    /// Writes to `out` the stacks of `calls`.
    pub fn new(out: W, weight: Weight, calls: Vec<Call>) -> Self {
        Self { out, weight, calls, names: HashMap::new(), stacks: HashMap::new(), other: 0 }
    }

    fn event(&mut self, event: &Event) {
        if !self.calls.contains(&event.call) {
            return;
        }
        let weight = match self.weight {
            Weight::Calls => 1,
            Weight::Time => event.duration_ns,
            Weight::Bytes if event.errno == 0 => event.detail.length_bytes().unwrap_or(0),
            Weight::Bytes => 0,
        };
        let key = (event.id, event.call, event.stack.clone());
        let room = self.stacks.len() < MAX_STACKS || self.stacks.contains_key(&key);
        let sum = if room { self.stacks.entry(key).or_default() } else { &mut self.other };
        *sum = sum.saturating_add(weight);
    }
}

impl<W: Write> Exporter for Folded<W> {
    fn record(&mut self, record: &Record) -> io::Result<()> {
        match record {
            Record::Process(process) => {
                self.names.insert(process.id, frame(&process.comm));
            }
            Record::Event(event) => self.event(event),
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        let mut lines: Vec<String> = self
            .stacks
            .iter()
            .filter(|(_, weight)| **weight > 0)
            .map(|((id, call, stack), weight)| {
                let name = self.names.get(id).cloned().unwrap_or_else(|| format!("pid {}", id.pid));
                let frames: String = stack.iter().rev().map(|address| format!(";{address:#x}")).collect();
                format!("{name}{frames};{} {weight}", call_name(*call))
            })
            .collect();
        if self.other > 0 {
            lines.push(format!("[other] {}", self.other));
        }
        lines.sort_unstable();
        lines.iter().try_for_each(|line| writeln!(self.out, "{line}"))?;
        self.out.flush()
    }
}

/// A name that cannot be mistaken for more than one frame or a weight.
fn frame(name: &str) -> String {
    name.chars().map(|c| if c == ';' || c.is_whitespace() || c.is_control() { '_' } else { c }).collect()
}
