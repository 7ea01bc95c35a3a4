//! What a provider library's file says about its data path, without the device.
//!
//! A live process tells the functions of its data path through `context->ops` and its objects. The library's file tells
//! nearly the same in advance: the tables given to `verbs_set_ops`, and the functions stored into `ibv_qp_ex` and
//! `ibv_cq_ex`. So for hardware that is not at hand it can be shown where probes would go, what a hit would cost, and
//! that what a live process shows matches.

mod extended;
mod flow;
mod library;
mod ops;
mod reads;

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::entry::{self, Choice, Class, Entry, Kernel, Owner};
use library::{Library, Pointer};

pub(crate) use library::function_starts;
pub use reads::Reads;

/// Why a library could not be inspected.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// The file could not be read.
    #[error("cannot read \"{0}\"")]
    Read(String, #[source] std::io::Error),
    /// The file is larger than any provider library.
    #[error("\"{0}\" is over 64 MiB: not a provider library")]
    TooLarge(String),
    /// Not an x86-64 ELF file.
    #[error("\"{0}\" is not a 64-bit ELF library")]
    NotElf(String, #[source] object::Error),
}

/// Defines the roles, so that none can be missing among all of them or be without a name.
macro_rules! roles {
    ($($role:ident = $name:literal,)+) => {
        /// What a function of the data path does; the names are those of its field.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(rename_all = "snake_case")]
        #[expect(missing_docs, reason = "the names of the fields in ibv_context_ops, ibv_qp_ex and ibv_cq_ex")]
        pub enum Role {
            $($role,)+
        }

        impl Role {
            /// Every one.
            pub const ALL: &[Self] = &[$(Self::$role),+];

            /// The field's own name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$role => $name,)+
                }
            }
        }
    };
}

roles! {
    PostSend = "post_send",
    PostRecv = "post_recv",
    PostSrqRecv = "post_srq_recv",
    PollCq = "poll_cq",
    ReqNotifyCq = "req_notify_cq",
    WrStart = "wr_start",
    WrComplete = "wr_complete",
    WrAbort = "wr_abort",
    WrAtomicCmpSwp = "wr_atomic_cmp_swp",
    WrAtomicFetchAdd = "wr_atomic_fetch_add",
    WrBindMw = "wr_bind_mw",
    WrLocalInv = "wr_local_inv",
    WrRdmaRead = "wr_rdma_read",
    WrRdmaWrite = "wr_rdma_write",
    WrRdmaWriteImm = "wr_rdma_write_imm",
    WrSend = "wr_send",
    WrSendImm = "wr_send_imm",
    WrSendInv = "wr_send_inv",
    WrSendTso = "wr_send_tso",
    WrSetInlineData = "wr_set_inline_data",
    WrSetInlineDataList = "wr_set_inline_data_list",
    WrSetSge = "wr_set_sge",
    WrSetSgeList = "wr_set_sge_list",
    StartPoll = "start_poll",
    NextPoll = "next_poll",
    EndPoll = "end_poll",
}

impl Role {
    /// True for functions that stand in the objects themselves, not in `context->ops`.
    pub fn is_extended(self) -> bool {
        self >= Self::WrStart
    }

    /// Where the function is probed to count what it does.
    pub fn probed(self) -> Probed {
        match self {
            Self::PostSend
            | Self::PostRecv
            | Self::PostSrqRecv
            | Self::PollCq
            | Self::WrComplete
            | Self::StartPoll
            | Self::NextPoll => Probed::EntryAndReturn,
            // Says nothing that the start of the next poll does not.
            Self::EndPoll => Probed::Nowhere,
            _ => Probed::Entry,
        }
    }

    /// Integer arguments the function takes.
    pub fn arguments(self) -> usize {
        match self {
            Self::WrAtomicCmpSwp => 5,
            Self::WrAtomicFetchAdd
            | Self::WrBindMw
            | Self::WrRdmaWriteImm
            | Self::WrSendTso
            | Self::WrSetSge => 4,
            Self::PostSend
            | Self::PostRecv
            | Self::PostSrqRecv
            | Self::PollCq
            | Self::WrRdmaRead
            | Self::WrRdmaWrite
            | Self::WrSetInlineData
            | Self::WrSetInlineDataList
            | Self::WrSetSgeList => 3,
            Self::ReqNotifyCq | Self::StartPoll | Self::WrLocalInv | Self::WrSendImm | Self::WrSendInv => 2,
            Self::WrStart
            | Self::WrComplete
            | Self::WrAbort
            | Self::WrSend
            | Self::NextPoll
            | Self::EndPoll => 1,
        }
    }
}

/// Where a function is probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Probed {
    /// Where its arguments are read.
    Entry,
    /// Its result counts too. A return probe sits at the very first instruction, and the other then sits there as well:
    /// at another one it would be a second trap.
    EntryAndReturn,
    /// Not at all.
    Nowhere,
}

/// How a function's role was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FoundBy {
    /// It stands in a table that the code passes to `verbs_set_ops`.
    Call,
    /// The code stores it into the object's field.
    Store,
    /// Its table was told by its shape alone.
    Shape,
}

/// A function of a provider's data path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Function {
    /// What it does.
    pub role: Role,
    /// File offset of its entry; `None` for a function of another library.
    pub file_offset: Option<u64>,
    /// The symbol, for a function of another library (`ibv_cmd_poll_cq`).
    pub import: Option<String>,
    /// How it was told.
    pub found_by: FoundBy,
    /// Where it is probed.
    pub probed: Probed,
    /// Bytes from the entry to the instruction to probe; `None` where it cannot be probed.
    pub probe_delta: Option<u64>,
    /// What a hit would cost there.
    pub class: Option<Class>,
    /// Why there, or why not.
    pub reason: String,
}

/// A provider library, as far as its file tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Provider {
    /// The file.
    pub path: PathBuf,
    /// Private ABI of libibverbs; `None` in a library that is no provider.
    pub private_abi: Option<u32>,
    /// Tables passed to `verbs_set_ops`.
    pub tables: usize,
    /// Functions of its data path, by role, each once.
    pub functions: Vec<Function>,
    /// What tells whose completion entry an extended poll stands at; empty where it has no extended completion queues.
    pub reads: Reads,
}

impl Provider {
    /// The functions of one role.
    pub fn of(&self, role: Role) -> impl Iterator<Item = &Function> + '_ {
        self.functions.iter().filter(move |f| f.role == role)
    }
}

/// Where distributions put provider libraries, seen from the root.
const DIRECTORIES: [&str; 3] =
    ["usr/lib/x86_64-linux-gnu/libibverbs", "usr/lib64/libibverbs", "usr/lib/libibverbs"];

/// Provider libraries installed under a root, in the order of their names.
pub fn installed(root: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = DIRECTORIES
        .iter()
        .filter_map(|directory| std::fs::read_dir(root.join(directory)).ok())
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "so"))
        .collect();
    found.sort();
    found
}

/// Tells what a provider library's file says about its data path, and where probes would go on this kernel.
///
/// # Errors
/// [`ProviderError`] for a file that cannot be read or is no library. A library that tells nothing is no error: it has
/// no functions then.
pub fn inspect(path: &Path, kernel: &Kernel) -> Result<Provider, ProviderError> {
    let library = Library::open(path)?;
    let mut functions: Vec<Function> = ops::operations(&library)
        .into_iter()
        .map(|o| match o.target {
            Pointer::Local(address) => local(&library, o.role, address, o.found_by, kernel),
            Pointer::Import(symbol) => imported(o.role, symbol, o.found_by),
        })
        .collect();
    for (role, address, found_by) in extended::functions(&library) {
        functions.push(local(&library, role, address, found_by, kernel));
    }
    functions.sort_by(|a, b| (a.role, a.file_offset, &a.import).cmp(&(b.role, b.file_offset, &b.import)));
    functions.dedup_by(|a, b| (a.role, a.file_offset, &a.import) == (b.role, b.file_offset, &b.import));
    Ok(Provider {
        path: path.to_owned(),
        private_abi: library.private_abi,
        tables: ops::tables(&library).len(),
        functions,
        reads: reads::reads(&library, &extended::readers(&library)),
    })
}

/// What tells whose completion entry an extended poll stands at, from a provider library's file.
///
/// # Errors
/// As [`inspect`].
pub fn reads(path: &Path) -> Result<Reads, ProviderError> {
    let library = Library::open(path)?;
    Ok(reads::reads(&library, &extended::readers(&library)))
}

fn local(library: &Library, role: Role, address: u64, found_by: FoundBy, kernel: &Kernel) -> Function {
    let offset = library.file_offset(address);
    let entry = Entry {
        code: library.code(address),
        offset: offset.unwrap_or(address),
        arguments: role.arguments(),
        owner: Owner::Foreign,
    };
    let probed = role.probed();
    let (probe_delta, class, reason) = match entry::choose(&entry, kernel) {
        Ok(choice) if probed == Probed::EntryAndReturn && !choice.return_probe_possible() => {
            let reason = "no emulated instruction at the very entry, where a return probe sits";
            (Some(0), Some(Class::SingleStepped), reason.to_owned())
        }
        Ok(Choice { delta, class, reason }) => (Some(delta), Some(class), reason.text().to_owned()),
        Err(refusal) => (None, None, refusal.to_string()),
    };
    Function { role, file_offset: offset, import: None, found_by, probed, probe_delta, class, reason }
}

fn imported(role: Role, symbol: String, found_by: FoundBy) -> Function {
    let reason = format!("calls {symbol} of libibverbs: probe it there");
    Function {
        role,
        file_offset: None,
        import: Some(symbol),
        found_by,
        probed: role.probed(),
        probe_delta: None,
        class: None,
        reason,
    }
}
