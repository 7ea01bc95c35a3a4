//! From the addresses of a stack to the code they lie in, while the process that has them is still there.

mod spaces;
mod symbols;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::mappings::Mappings;
use crate::sample::{ProcessId, Record};

pub use spaces::Spaces;
use symbols::{Request, Symboliser};

/// Addresses asked for so far; beyond this many, what was asked for is forgotten and may be told again.
const MAX_KNOWN: usize = 1 << 17;

/// How long the end of a recording waits for the names of addresses.
const PATIENCE: Duration = Duration::from_secs(3);

/// The stacks of a recording.
#[derive(Debug)]
pub struct Stacks {
    spaces: Arc<Mutex<Spaces>>,
    mappings: Option<Mappings>,
    known: HashSet<(ProcessId, u64)>,
    symboliser: Option<Symboliser>,
}

impl Stacks {
    /// Begins with no address known; `spaces` is told of new mappings by `mappings`. Without a thread, addresses stay
    /// numbers.
    pub fn new(spaces: Arc<Mutex<Spaces>>, mappings: Option<Mappings>) -> Self {
        Self { spaces, mappings, known: HashSet::new(), symboliser: Symboliser::start().ok() }
    }

    /// Cuts off what cannot be a caller, and asks for the names of the rest.
    pub fn take(&mut self, id: ProcessId, stack: &mut Vec<u64>) {
        let mut spaces = self.spaces.lock().unwrap_or_else(PoisonError::into_inner);
        for (depth, address) in stack.iter().copied().enumerate() {
            if self.known.contains(&(id, address)) {
                continue;
            }
            // A return address is behind its call, which may be the last instruction of its function.
            let address_of_call = address.saturating_sub(1);
            let mut found = spaces.find(id.pid, address_of_call);
            if let (None, Some(mappings)) = (&found, &self.mappings) {
                // What the process had mapped before it called was told before its call was.
                drop(spaces);
                mappings.catch_up();
                spaces = self.spaces.lock().unwrap_or_else(PoisonError::into_inner);
                found = spaces.find(id.pid, address_of_call);
            }
            let Some(place) = found else {
                // Where the register holds no frame pointer, the chain leads to words that are no code. The first
                // address is no part of that chain.
                if depth > 0 && spaces.knows(id.pid) {
                    stack.truncate(depth);
                    return;
                }
                continue;
            };
            if self.known.len() >= MAX_KNOWN {
                self.known.clear();
            }
            let request = Request { id, address, place };
            if self.symboliser.as_ref().is_some_and(|symboliser| symboliser.ask(request)) {
                self.known.insert((id, address));
            }
        }
    }

    /// A process has begun with the address space of another.
    pub fn forked(&self, parent: u32, child: u32) {
        self.spaces.lock().unwrap_or_else(PoisonError::into_inner).inherit(parent, child);
    }

    /// A process is no more.
    pub fn forget(&mut self, id: ProcessId) {
        self.spaces.lock().unwrap_or_else(PoisonError::into_inner).forget(id.pid);
        self.known.retain(|(process, _)| *process != id);
    }

    /// What has been found since the last call.
    pub fn found(&self) -> impl Iterator<Item = Record> + '_ {
        self.symboliser.iter().flat_map(Symboliser::found)
    }

    /// What was still to be found, as far as that takes no more than a few seconds.
    pub fn finish(self) -> Vec<Record> {
        self.symboliser.map(|symboliser| symboliser.finish(PATIENCE)).unwrap_or_default()
    }
}
