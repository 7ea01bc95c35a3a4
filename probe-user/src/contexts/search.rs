//! The search itself: a pure function of an address space.
//!
//! A context is told by its `abi_compat` (all ones), by operations that point into code of files, by the size of the
//! struct around it and by its device descriptor; queue pairs and completion queues by pointing back to a context, as
//! does everything they point to. Memory that merely looks so does not occur by chance; what does occur are copies in
//! freed memory, which `sort_out` removes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use super::layout::{CQ_EX, DEVICE_NAME, OPS, QP_EX, context, cq, qp};
use super::memory::{Memory, PAGE};
use super::regions::{Region, Regions};
use crate::providers::Role;

/// Limits of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Bytes read from the process.
    pub bytes: u64,
    /// Time spent.
    pub time: Duration,
}

impl Default for Budget {
    /// 8 GiB and 5 s: a process with 1 GiB of touched memory takes about half a second.
    fn default() -> Self {
        Self { bytes: 8 << 30, time: Duration::from_secs(5) }
    }
}

/// Why a search ended before it had seen everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The bytes were spent.
    Bytes,
    /// The time was spent.
    Time,
    /// There are more objects than are listed.
    Objects,
}

/// Whose device a context is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Device {
    /// A device of the kernel's: an open uverbs descriptor.
    Uverbs,
    /// The emulated device.
    Emulated,
}

/// What a descriptor of the process leads to.
pub trait Descriptors {
    /// The link of `/proc/PID/fd/N`.
    fn link(&self, fd: u32) -> Option<String>;
}

/// A context, as found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundContext {
    pub address: u64,
    pub device: Device,
    pub device_name: String,
    pub cmd_fd: u32,
    pub functions: BTreeMap<Role, u64>,
    /// Objects that point to it.
    pub references: u64,
}

/// A queue pair, as found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundQp {
    pub address: u64,
    pub context: u64,
    pub number: u32,
    pub state: u32,
    pub qp_type: u32,
    pub send_cq: u64,
    pub recv_cq: u64,
    /// Empty for a queue pair without the extended API.
    pub functions: BTreeMap<Role, u64>,
}

/// A completion queue, as found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundCq {
    pub address: u64,
    pub context: u64,
    pub handle: u32,
    pub cqe: u32,
    /// Empty for one without the extended API.
    pub functions: BTreeMap<Role, u64>,
}

/// What a search has found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Result {
    pub contexts: Vec<FoundContext>,
    pub qps: Vec<FoundQp>,
    pub cqs: Vec<FoundCq>,
    pub bytes_read: u64,
    pub cut: Option<Cut>,
}

/// Objects listed of each kind.
const MOST_OBJECTS: usize = 65_536;
/// Contexts listed.
const MOST_CONTEXTS: usize = 256;
/// Memory copied out at a time.
const CHUNK_PAGES: usize = 256;
/// Read beyond a chunk, so that an object across its end is seen whole.
const OVERLAP_PAGES: usize = 1;
/// Libraries of this product whose functions mark an emulated device. Behind the tap it shows the tap's functions.
const OWN_LIBRARIES: [&str; 2] = ["librnic_emu.so", "libverbs_tap.so"];

/// Searches an address space; `confirmed` are the queue pair numbers the kernel lists for the process, where it was
/// asked: others are copies of queue pairs that are gone.
///
/// # Errors
/// When it cannot be told which pages are present.
pub fn search(
    memory: &mut impl Memory,
    regions: &Regions,
    descriptors: &impl Descriptors,
    confirmed: Option<&BTreeSet<u32>>,
    budget: &Budget,
) -> io::Result<Result> {
    let mut search = Search {
        memory,
        regions,
        deadline: Instant::now().checked_add(budget.time),
        budget: budget.bytes,
        found: Result::default(),
    };
    let mut contexts = Vec::new();
    search.scan(|search, chunk| {
        for at in chunk.words() {
            if chunk.word(at, context::ABI_COMPAT) == Some(u64::MAX) && contexts.len() < MOST_CONTEXTS {
                contexts.extend(search.context(chunk, at, descriptors));
            }
        }
    })?;
    search.found.contexts = contexts;
    if !search.found.contexts.is_empty() {
        let known: BTreeSet<u64> = search.found.contexts.iter().map(|c| c.address).collect();
        // One comparison for most words: contexts lie close together.
        let (first, last) = (known.first().copied().unwrap_or(0), known.last().copied().unwrap_or(0));
        search.scan(|search, chunk| {
            for at in chunk.words() {
                if let Some(word) = chunk.word(at, 0)
                    && (first..=last).contains(&word)
                    && known.contains(&word)
                {
                    search.object(chunk, at, word);
                }
            }
        })?;
    }
    let mut found = search.found;
    sort_out(&mut found, confirmed);
    Ok(found)
}

struct Search<'a, M> {
    memory: &'a mut M,
    regions: &'a Regions,
    deadline: Option<Instant>,
    budget: u64,
    found: Result,
}

/// Memory copied out. Words are looked for in its body; the rest belongs to the next chunk.
struct Chunk {
    start: u64,
    body: u64,
    bytes: Vec<u8>,
}

impl Chunk {
    /// Offsets of all words of the body.
    fn words(&self) -> impl Iterator<Item = u64> + use<> {
        (0..self.body).step_by(8)
    }

    /// The word `field` bytes behind offset `at`.
    #[inline]
    fn word(&self, at: u64, field: u64) -> Option<u64> {
        let from = usize::try_from(at + field).ok()?;
        let bytes = self.bytes.get(from..from.checked_add(8)?)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    }

    fn address(&self, at: u64) -> u64 {
        self.start.wrapping_add(at)
    }
}

impl<M: Memory> Search<'_, M> {
    /// Passes over all present memory in which objects may live.
    fn scan(&mut self, mut look: impl FnMut(&mut Self, &Chunk)) -> io::Result<()> {
        let regions = self.regions;
        for region in regions.data() {
            let mut at = region.start;
            while at < region.end {
                if self.is_spent() {
                    return Ok(());
                }
                let (absent, chunk) = self.next_chunk(region, at)?;
                at = at.saturating_add(absent);
                if let Some(chunk) = chunk {
                    at = at.saturating_add(chunk.body.max(PAGE));
                    look(self, &chunk);
                }
            }
        }
        Ok(())
    }

    fn is_spent(&mut self) -> bool {
        if self.found.bytes_read >= self.budget {
            self.found.cut = Some(Cut::Bytes);
        } else if self.deadline.is_some_and(|d| Instant::now() >= d) {
            self.found.cut = Some(Cut::Time);
        }
        matches!(self.found.cut, Some(Cut::Bytes | Cut::Time))
    }

    /// The bytes to pass over, and what is present behind them.
    fn next_chunk(&mut self, region: &Region, at: u64) -> io::Result<(u64, Option<Chunk>)> {
        let mut present = [false; CHUNK_PAGES + OVERLAP_PAGES];
        let left = usize::try_from((region.end - at) / PAGE).unwrap_or(usize::MAX);
        let pages = present.get_mut(..left.min(CHUNK_PAGES + OVERLAP_PAGES)).unwrap_or_default();
        self.memory.present(at, pages)?;
        let absent = pages.iter().take_while(|p| !**p).count().min(CHUNK_PAGES);
        if absent > 0 {
            return Ok((absent as u64 * PAGE, None));
        }
        let whole = pages.iter().take_while(|p| **p).count();
        if whole == 0 {
            // A region that is no multiple of a page: nothing the kernel makes.
            return Ok((PAGE, None));
        }
        let mut bytes = vec![0; whole * PAGE as usize];
        let read = self.memory.read(at, &mut bytes);
        bytes.truncate(read);
        self.found.bytes_read += read as u64;
        let body = (whole.min(CHUNK_PAGES) as u64) * PAGE;
        Ok((0, Some(Chunk { start: at, body, bytes })))
    }

    fn context(&mut self, chunk: &Chunk, at: u64, descriptors: &impl Descriptors) -> Option<FoundContext> {
        let address = chunk.address(at);
        let mut functions = BTreeMap::new();
        for (field, role) in OPS {
            let function = chunk.word(at, field)?;
            if self.regions.is_code(function) {
                functions.insert(role, function);
            } else if role != Role::PostSrqRecv {
                return None;
            }
        }
        let before = address.checked_sub(context::SIZE_BEFORE)?;
        if !is_context_size(self.memory.word(before)?) {
            return None;
        }
        let device = chunk.word(at, 0).filter(|d| self.regions.is_data(*d))?;
        let cmd_fd = (chunk.word(at, context::CMD_FD)? & u64::from(u32::MAX)) as u32;
        let kind = self.device_of(cmd_fd, &functions, descriptors)?;
        let device_name = self.text(device.checked_add(DEVICE_NAME)?);
        Some(FoundContext { address, device: kind, device_name, cmd_fd, functions, references: 0 })
    }

    fn device_of(
        &self,
        cmd_fd: u32,
        functions: &BTreeMap<Role, u64>,
        descriptors: &impl Descriptors,
    ) -> Option<Device> {
        let link = descriptors.link(cmd_fd).unwrap_or_default();
        if link.starts_with("/dev/infiniband/uverbs") {
            return Some(Device::Uverbs);
        }
        let ours = functions.values().all(|function| {
            self.regions.at(*function).is_some_and(|r| OWN_LIBRARIES.contains(&r.file_name()))
        });
        ours.then_some(Device::Emulated)
    }

    /// A name of at most 64 bytes; empty where there is none.
    fn text(&mut self, address: u64) -> String {
        let words = (0..8).map_while(|n| self.memory.word(address.checked_add(n * 8)?));
        let bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).take_while(|b| b.is_ascii_graphic()).collect();
        String::from_utf8(bytes).unwrap_or_default()
    }

    fn object(&mut self, chunk: &Chunk, at: u64, owner: u64) {
        if let Some(qp) = self.queue_pair(chunk, at, owner) {
            push(&mut self.found.qps, qp, &mut self.found.cut);
        } else if let Some(cq) = self.completion_queue(chunk, at, owner) {
            push(&mut self.found.cqs, cq, &mut self.found.cut);
        }
        if let Some(context) = self.found.contexts.iter_mut().find(|c| c.address == owner) {
            context.references += 1;
        }
    }

    fn queue_pair(&mut self, chunk: &Chunk, at: u64, owner: u64) -> Option<FoundQp> {
        let (number, state) = (chunk.word(at, qp::HANDLE_AND_NUMBER)?, chunk.word(at, qp::STATE_AND_TYPE)?);
        let plausible = is_queue_pair(number, state);
        let ((_, number), (state, qp_type)) = (halves(number), halves(state));
        if !plausible || !self.points_back(chunk.word(at, qp::PD)?, owner) {
            return None;
        }
        let [send_cq, recv_cq, srq] = [qp::SEND_CQ, qp::RECV_CQ, qp::SRQ].map(|f| chunk.word(at, f));
        let (send_cq, recv_cq, srq) = (send_cq?, recv_cq?, srq?);
        if send_cq == 0 && recv_cq == 0 {
            return None;
        }
        for pointer in [send_cq, recv_cq, srq] {
            if pointer != 0 && !self.points_back(pointer, owner) {
                return None;
            }
        }
        let extended =
            [320, 328].into_iter().all(|f| chunk.word(at, f).is_some_and(|w| self.regions.is_code(w)));
        let functions = if extended { self.functions(chunk, at, &QP_EX) } else { BTreeMap::new() };
        let address = chunk.address(at);
        Some(FoundQp { address, context: owner, number, state, qp_type, send_cq, recv_cq, functions })
    }

    fn completion_queue(&mut self, chunk: &Chunk, at: u64, owner: u64) -> Option<FoundCq> {
        let [size, lock, kind] = [cq::HANDLE_AND_CQE, cq::MUTEX, cq::MUTEX_KIND].map(|f| chunk.word(at, f));
        let plausible = is_completion_queue(size?, lock?, kind?);
        let (handle, cqe) = halves(size?);
        let channel = chunk.word(at, cq::CHANNEL)?;
        if !plausible || (channel != 0 && !self.points_back(channel, owner)) {
            return None;
        }
        let extended = CQ_EX.iter().all(|(f, _)| chunk.word(at, *f).is_some_and(|w| self.regions.is_code(w)));
        let functions = if extended { self.functions(chunk, at, &CQ_EX) } else { BTreeMap::new() };
        Some(FoundCq { address: chunk.address(at), context: owner, handle, cqe, functions })
    }

    fn functions(&self, chunk: &Chunk, at: u64, fields: &[(u64, Role)]) -> BTreeMap<Role, u64> {
        fields
            .iter()
            .filter_map(|(field, role)| Some((*role, chunk.word(at, *field)?)))
            .filter(|(_, function)| self.regions.is_code(*function))
            .collect()
    }

    fn points_back(&mut self, pointer: u64, owner: u64) -> bool {
        pointer.is_multiple_of(8) && self.regions.is_data(pointer) && self.memory.word(pointer) == Some(owner)
    }
}

fn push<T>(list: &mut Vec<T>, item: T, cut: &mut Option<Cut>) {
    if list.len() < MOST_OBJECTS {
        list.push(item);
    } else {
        *cut = cut.or(Some(Cut::Objects));
    }
}

/// True for a size that a `verbs_context` can have.
pub fn is_context_size(word: u64) -> bool {
    context::SIZES.contains(&word) && word.is_multiple_of(8)
}

/// True where words of [`qp`], handle with number and state with type, can be those of a queue pair.
pub fn is_queue_pair(handle_and_number: u64, state_and_type: u64) -> bool {
    let ((_, number), (state, qp_type)) = (halves(handle_and_number), halves(state_and_type));
    // RESET to ERR; RC, UC, UD, RAW_PACKET, XRC_SEND, XRC_RECV, DRIVER.
    (1..1 << 24).contains(&number) && state <= 6 && matches!(qp_type, 2..=4 | 8..=10 | 0xff)
}

/// True where words of [`cq`], handle with size and two of the mutex, can be those of a completion queue.
pub fn is_completion_queue(handle_and_cqe: u64, mutex: u64, mutex_kind: u64) -> bool {
    let ((handle, cqe), (lock, _), (kind, _)) = (halves(handle_and_cqe), halves(mutex), halves(mutex_kind));
    (1..=1 << 24).contains(&cqe) && handle <= 1 << 24 && lock <= 2 && kind <= 3
}

/// Low and high half of a word.
fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// Removes copies in freed memory: of contexts with the same descriptor, all but the one most objects point to; of
/// objects, those of removed contexts, those the kernel does not know, and second ones of the same number.
fn sort_out(found: &mut Result, confirmed: Option<&BTreeSet<u32>>) {
    if let Some(numbers) = confirmed {
        found.qps.retain(|q| numbers.contains(&q.number));
    }
    let live = |address: u64, found: &Result| {
        let by_qps = found.qps.iter().filter(|q| q.context == address).count() as u64;
        let by_cqs = found.cqs.iter().filter(|c| c.context == address).count() as u64;
        (by_qps, by_cqs)
    };
    let mut best: BTreeMap<(bool, u32), (u64, u64, u64, u64)> = BTreeMap::new();
    for context in &found.contexts {
        let (qps, cqs) = live(context.address, found);
        let rank = (qps, cqs, context.references, context.address);
        let of_device = best.entry((context.device == Device::Uverbs, context.cmd_fd)).or_default();
        *of_device = rank.max(*of_device);
    }
    let kept: BTreeSet<u64> = best.into_values().map(|(.., address)| address).collect();
    found.contexts.retain(|c| kept.contains(&c.address));
    found.qps.retain(|q| kept.contains(&q.context));
    found.cqs.retain(|c| kept.contains(&c.context));
    let mut numbers = BTreeSet::new();
    found.qps.retain(|q| numbers.insert((q.context, q.number)));
    // A completion queue that some queue pair uses is beyond doubt; with any such, others of its handle are not.
    let used: BTreeSet<u64> = found.qps.iter().flat_map(|q| [q.send_cq, q.recv_cq]).collect();
    let certain: BTreeSet<(u64, u32)> =
        found.cqs.iter().filter(|c| used.contains(&c.address)).map(|c| (c.context, c.handle)).collect();
    found.cqs.retain(|c| used.contains(&c.address) || !certain.contains(&(c.context, c.handle)));
}

#[cfg(test)]
mod tests;
