//! Folded stacks for flame graphs: who registers memory (or makes whatever other call), from which call sites.
//!
//! One line per stack: `comm;outermost;…;innermost;call weight`, as flamegraph.pl, inferno and speedscope read it.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use crate::sample::{Call, Event, ProcessId, Record, Symbol};

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
    /// What the addresses are; they may be told after the events that have them.
    symbols: HashMap<(ProcessId, u64), String>,
    stacks: HashMap<(ProcessId, Call, Vec<u64>), u64>,
    other: u64,
}

impl<W: Write> Folded<W> {
    /// Writes to `out` the stacks of `calls`.
    pub fn new(out: W, weight: Weight, calls: Vec<Call>) -> Self {
        Self {
            out,
            weight,
            calls,
            names: HashMap::new(),
            symbols: HashMap::new(),
            stacks: HashMap::new(),
            other: 0,
        }
    }

    fn symbol(&mut self, symbol: &Symbol) {
        if self.symbols.len() < MAX_STACKS {
            // Without the line: frames of one function are one frame of the graph.
            let words = if symbol.name.is_empty() { symbol.words() } else { symbol.name.clone() };
            self.symbols.insert((symbol.id, symbol.addr), frame(&words));
        }
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

impl<W: Write> Folded<W> {
    fn words(&self, id: ProcessId, address: u64) -> String {
        match self.symbols.get(&(id, address)) {
            Some(name) => format!(";{name}"),
            None => format!(";{address:#x}"),
        }
    }
}

impl<W: Write> Exporter for Folded<W> {
    fn record(&mut self, record: &Record) -> io::Result<()> {
        match record {
            Record::Process(process) => {
                self.names.insert(process.id, frame(&process.comm));
            }
            Record::Event(event) => self.event(event),
            Record::Symbol(symbol) => self.symbol(symbol),
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        // Different addresses of one function are one frame.
        let mut lines: BTreeMap<String, u64> = BTreeMap::new();
        for ((id, call, stack), weight) in &self.stacks {
            let name = self.names.get(id).cloned().unwrap_or_else(|| format!("pid {}", id.pid));
            let frames: String = stack.iter().rev().map(|address| self.words(*id, *address)).collect();
            let sum = lines.entry(format!("{name}{frames};{}", call_name(*call))).or_default();
            *sum = sum.saturating_add(*weight);
        }
        lines.insert("[other]".to_owned(), self.other);
        for (line, weight) in lines.iter().filter(|(_, weight)| **weight > 0) {
            writeln!(self.out, "{line} {weight}")?;
        }
        self.out.flush()
    }
}

/// A name that cannot be mistaken for more than one frame or a weight.
fn frame(name: &str) -> String {
    name.chars().map(|c| if c == ';' || c.is_whitespace() || c.is_control() { '_' } else { c }).collect()
}
