//! The thread that finds the names of addresses: reading the debug information of a large program takes a while, and the
//! collection of events does not wait for it.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{InlinedFn, Input, Symbolizer};

use super::spaces::Place;
use crate::sample::{ProcessId, Record, Symbol, is_verbs_header};

/// Addresses waiting; further ones are asked for again when they occur again.
const MAX_WAITING: usize = 4096;
/// Files whose symbols are held in memory at once.
const MAX_FILES: usize = 32;
/// Larger files are asked for their symbol table alone: debug information of gigabytes would be held in memory.
const MAX_DEBUG_BYTES: u64 = 512 << 20;
/// Longest name told; templates make longer ones.
const MAX_NAME_BYTES: usize = 1024;

/// An address whose name is wanted.
#[derive(Debug)]
pub struct Request {
    /// In which process.
    pub id: ProcessId,
    /// The address as the stack has it.
    pub address: u64,
    /// Where the instruction before it lies.
    pub place: Place,
}

/// The thread, as the collection sees it.
#[derive(Debug)]
pub struct Symboliser {
    requests: SyncSender<Request>,
    answers: Receiver<Record>,
}

impl Symboliser {
    /// Starts the thread.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn start() -> io::Result<Self> {
        let (requests, inbox) = mpsc::sync_channel::<Request>(MAX_WAITING);
        let (outbox, answers) = mpsc::channel();
        thread::Builder::new().name("symbols".to_owned()).spawn(move || {
            let mut files = Files::default();
            for request in inbox {
                if outbox.send(Record::Symbol(files.symbol(&request))).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { requests, answers })
    }

    /// Asks for a name; false where too many are waited for.
    pub fn ask(&self, request: Request) -> bool {
        self.requests.try_send(request).is_ok()
    }

    /// Names found since the last call.
    pub fn found(&self) -> impl Iterator<Item = Record> + '_ {
        self.answers.try_iter()
    }

    /// Names that were still to be found, as far as they are within `patience`.
    pub fn finish(self, patience: Duration) -> Vec<Record> {
        let Self { requests, answers } = self;
        // The thread ends when it has answered what it was asked.
        drop(requests);
        let until = Instant::now() + patience;
        let mut found = Vec::new();
        loop {
            match answers.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(record) => found.push(record),
                Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => return found,
            }
        }
    }
}

/// Files whose symbols were asked for. Each stays open, so that its descriptor's number names it.
#[derive(Default)]
struct Files {
    symbolizer: Option<Symbolizer>,
    open: HashMap<RawFd, Arc<File>>,
}

impl Files {
    fn symbol(&mut self, request: &Request) -> Symbol {
        let Request { id, address, place } = request;
        let mut symbol = Symbol {
            id: *id,
            addr: *address,
            module: place.path.to_string_lossy().into_owned(),
            module_offset_bytes: place.offset.saturating_add(1),
            ..Symbol::default()
        };
        let Some(file) = &place.file else { return symbol };
        if self.open.len() >= MAX_FILES && !self.open.contains_key(&file.as_raw_fd()) {
            self.symbolizer = None;
            self.open.clear();
        }
        self.open.insert(file.as_raw_fd(), Arc::clone(file));
        let symbolizer = self.symbolizer.get_or_insert_with(Symbolizer::new);
        // A file that a hostile program made up must not end the recording.
        let outcome =
            catch_unwind(AssertUnwindSafe(|| describe(symbolizer, file, place.offset, &mut symbol)));
        if outcome.is_err() {
            self.symbolizer = None;
        }
        symbol
    }
}

fn describe(symbolizer: &Symbolizer, file: &File, offset: u64, symbol: &mut Symbol) {
    let mut elf = Elf::new(format!("/proc/self/fd/{}", file.as_raw_fd()));
    elf.debug_syms = file.metadata().is_ok_and(|meta| meta.len() <= MAX_DEBUG_BYTES);
    let Ok(found) = symbolizer.symbolize_single(&Source::Elf(elf), Input::FileOffset(offset)) else { return };
    let Some(found) = found.as_sym() else { return };
    symbol.name = cut(&found.name);
    symbol.offset_bytes = (found.offset as u64).saturating_add(1);
    // Where the call was inlined, the name and line are those of the innermost function that the program's authors wrote.
    let line = match found.inlined.iter().rfind(|inlined| !is_wrapper(inlined)) {
        Some(inlined) => {
            symbol.name = cut(&inlined.name);
            inlined.code_info.as_ref()
        }
        None => found.code_info.as_deref(),
    };
    if let Some(line) = line {
        symbol.source = line.to_path().to_string_lossy().into_owned();
        symbol.line = line.line.unwrap_or(0);
    }
}

/// Whether a function comes from a header of libibverbs or librdmacm: their calls are macros and inline functions around
/// what is probed, and to name those would name the same place for every call.
fn is_wrapper(inlined: &InlinedFn<'_>) -> bool {
    inlined.code_info.as_ref().is_some_and(|line| is_verbs_header(&line.to_path()))
}

fn cut(name: &str) -> String {
    let mut end = name.len().min(MAX_NAME_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::spaces::Spaces;
    use super::*;

    #[test]
    #[inline(never)]
    fn a_function_of_this_program_is_found_by_its_name() {
        let address = a_function_of_this_program_is_found_by_its_name as *const () as u64;
        let id = ProcessId { pid: std::process::id(), start_ns: 1 };
        let place = Spaces::default().find(id.pid, address).unwrap();
        let symboliser = Symboliser::start().unwrap();
        assert!(symboliser.ask(Request { id, address, place }));
        let found = symboliser.finish(Duration::from_secs(60));
        let [Record::Symbol(symbol)] = &found[..] else { panic!("{found:?}") };
        assert!(symbol.name.ends_with("a_function_of_this_program_is_found_by_its_name"), "{symbol:?}");
        assert!(symbol.module.contains("probe_user"));
    }

    #[test]
    fn a_file_that_is_no_program_leaves_the_address_with_its_module() {
        let mut file = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut file, b"\x7fELF nonsense").unwrap();
        let place =
            Place { path: std::path::Path::new("/made/up").into(), offset: 0x10, file: Some(Arc::new(file)) };
        let request = Request { id: ProcessId::default(), address: 0x7000_0011, place };
        let symbol = Files::default().symbol(&request);
        assert_eq!((symbol.name.as_str(), symbol.words().as_str()), ("", "up+0x11"));
    }
}
