//! Map keys, map values and ring-buffer messages.

/// Frames remembered per thread: entries whose return is awaited. The deepest chain there is (library entry, its
/// implementation, command layer, kernel handler, driver, pin, DMA mapping) has seven.
pub const MAX_DEPTH: usize = 8;

/// Words of digested arguments a frame and a message carry. The longest is `ibv_modify_qp`: four words and
/// `struct ibv_qp_attr`, 144 bytes.
pub const PAYLOAD_WORDS: usize = 22;

/// Return addresses a stack carries at most; calls of a program's own layers between `main` and a verb are fewer.
pub const STACK_FRAMES: usize = 16;

/// Parts of a registration's time: indexed by [`crate::Part`].
pub const PARTS: usize = 5;

/// A process that is watched; the key is its tgid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Target {
    /// Start time of the process since boot in ns, cut to [`START_UNIT_NS`]; 0 where unknown. Keeps a reused pid apart.
    pub start_ns: u64,
    /// What watching its data path has cost it.
    pub spent: Spent,
}

/// What the probes of the data path have cost a process; every field is added to atomically.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Spent {
    /// Hits by [`hits`].
    pub hits: [u64; hits::COUNT],
    /// Time in the programs beyond what any hit costs, in ns, by [`hits`]: estimated from one hit in [`hits::TIMED`].
    pub program_ns: [u64; hits::COUNT],
    /// What hits in slices stand for, by [`part`]: calls of posts, and completion entries.
    pub operations: [u64; part::COUNT],
    /// Calls of posts while polls are watched in a slice.
    pub beside: u64,
}

impl Spent {
    /// Nothing.
    pub const NONE: Self = Self {
        hits: [0; hits::COUNT],
        program_ns: [0; hits::COUNT],
        operations: [0; part::COUNT],
        beside: 0,
    };
}

/// The functions of a provider in two parts, each watched in slices of its own: who waits polls thousands of times for
/// each post, and what that costs would fall on what is told of posts.
pub mod part {
    /// Posts.
    pub const POSTS: usize = 0;
    /// Polls and notification requests.
    pub const POLLS: usize = 1;
    /// Parts.
    pub const COUNT: usize = 2;
}

/// Kinds of hits of the data path.
pub mod hits {
    /// Of our own sites: by [`crate::site::Stream`].
    pub const STREAMS: usize = crate::site::STREAMS;
    /// Of functions of a provider that post.
    pub const POSTS: usize = STREAMS;
    /// Their returns.
    pub const POST_RETURNS: usize = STREAMS + 1;
    /// Of functions of a provider that poll.
    pub const POLLS: usize = STREAMS + 2;
    /// Their returns.
    pub const POLL_RETURNS: usize = STREAMS + 3;
    /// Kinds.
    pub const COUNT: usize = STREAMS + 4;
    /// One hit in so many is timed.
    pub const TIMED: u64 = 16;
}

/// Programs at functions of a provider.
pub mod function {
    /// How many there are.
    pub const COUNT: usize = 15;
    /// Their names; each has its place.
    pub const NAMES: [&str; COUNT] = [
        "post_send_enter",
        "post_send_leave",
        "post_recv_enter",
        "post_recv_leave",
        "poll_enter",
        "poll_cq_leave",
        "start_poll_leave",
        "next_poll_leave",
        "req_notify_enter",
        "wr_start_enter",
        "wr_build_enter",
        "wr_set_enter",
        "wr_complete_enter",
        "wr_complete_leave",
        "wr_abort_enter",
    ];

    /// Which of them were ever hit, by anybody, by their places: 1 or 0.
    pub type Hit = [u8; COUNT];

    /// The place of a program; `None` of one that is no such program.
    pub const fn place(name: &str) -> Option<usize> {
        let mut place = 0;
        while place < COUNT {
            if are_equal(NAMES[place].as_bytes(), name.as_bytes()) {
                return Some(place);
            }
            place += 1;
        }
        None
    }

    const fn are_equal(one: &[u8], other: &[u8]) -> bool {
        let mut n = 0;
        while n < one.len() && n < other.len() && one[n] == other[n] {
            n += 1;
        }
        n == one.len() && n == other.len()
    }
}

/// Until when the hits of a part of a provider's functions count, and what they count for. All zeroes: always, and once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Slice {
    /// `CLOCK_MONOTONIC`, ns; 0 for ever.
    pub until_ns: u64,
    /// From when on: what piled up while probes were put in place is not of the slice.
    pub from_ns: u64,
    /// So many times as much happens as is seen.
    pub weight: u64,
    /// The same of polls that find nothing: a program that waits makes as many as it has time for.
    pub idle_weight: u64,
    /// Numbers the slices: what went before is not known in another one.
    pub number: u64,
}

/// Process start times are cut to this, the unit of `/proc/PID/stat`, so that both sides name a process alike.
pub const START_UNIT_NS: u64 = 10_000_000;

/// What a probe must know of the library it sits in, to find errno there. Addresses are the ELF file's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Site {
    /// Virtual address of the probed function.
    pub entry_vaddr: u64,
    /// Virtual address of the GOT slot for `__errno_location`; 0 where there is none.
    pub errno_slot_vaddr: u64,
}

/// Key of the table of counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct CallKey {
    /// Start time of the process, as in [`Target`].
    pub start_ns: u64,
    /// Thread-group id.
    pub tgid: u32,
    /// [`crate::CallId`].
    pub call: u8,
    /// Always 0.
    pub zero: [u8; 3],
}

/// Cumulative counters of one call in one process; every field is added to atomically.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct CallCounters {
    /// Entries.
    pub entered: u64,
    /// Returns seen.
    pub returned: u64,
    /// Returns that told of failure.
    pub failed: u64,
    /// Bytes of the calls that succeeded.
    pub bytes: u64,
    /// Time inside the returned calls.
    pub total_ns: u64,
}

/// Key of the table of histogram buckets; the value is a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct BucketKey {
    /// Start time of the process, as in [`Target`].
    pub start_ns: u64,
    /// Thread-group id.
    pub tgid: u32,
    /// [`crate::CallId`].
    pub call: u8,
    /// Always 0.
    pub zero: u8,
    /// See [`crate::histogram::bucket`].
    pub bucket: u16,
}

/// What is lost, per CPU: the index into the table of losses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Loss {
    /// Messages that found the ring full.
    Ring = 0,
    /// Entries that could not be remembered.
    Unpaired = 1,
    /// Hits that found a table of counters full.
    Uncounted = 2,
}

/// Entries of the table of losses.
pub const LOSSES: u32 = 3;

/// Kinds of messages in the ring buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum MessageKind {
    /// [`CallMessage`], or [`StackedCall`] where it is that long.
    Call = 1,
    /// [`ProcessMessage`]: a child of a watched process began.
    Fork = 2,
    /// [`ProcessMessage`]: a watched process runs another program.
    Exec = 3,
    /// [`ProcessMessage`]: the last thread of a watched process is ending.
    Exit = 4,
}

/// How every message begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Header {
    /// [`MessageKind`].
    pub kind: u32,
    /// Thread-group id.
    pub tgid: u32,
    /// Thread id.
    pub tid: u32,
    /// Always 0.
    pub zero: u32,
    /// Start time of the process, as in [`Target`].
    pub start_ns: u64,
    /// `CLOCK_MONOTONIC`: entry of the call, or the moment of the process event.
    pub t_ns: u64,
}

/// One call that has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct CallMessage {
    /// Who and when.
    pub header: Header,
    /// From entry to return.
    pub duration_ns: u64,
    /// 0, an errno, or -1 for a failure whose errno could not be seen.
    pub errno: i32,
    /// [`crate::CallId`].
    pub call: u8,
    /// [`crate::Layout`], which says how to read the payload.
    pub layout: u8,
    /// Bit n: the part with number n was seen.
    pub parts_seen: u16,
    /// Time per part, indexed by [`crate::Part`].
    pub part_ns: [u64; PARTS],
    /// Page faults the thread took inside pins.
    pub page_faults: u64,
    /// Digested arguments; the families of the BPF crate say what is where.
    pub payload: [u64; PAYLOAD_WORDS],
}

/// A call with the stack it came from: sent, under the same [`MessageKind`], for calls that make objects or fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct StackedCall {
    /// The call.
    pub call: CallMessage,
    /// Return addresses in the process, innermost first; after the last one, zeroes.
    pub stack: [u64; STACK_FRAMES],
}

/// A process began, runs another program, or ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct ProcessMessage {
    /// Who (for a fork: the child) and when.
    pub header: Header,
    /// Parent of a forked child; else 0.
    pub parent_tgid: u32,
    /// Real user id.
    pub uid: u32,
    /// Command name, NUL-terminated.
    pub comm: [u8; 16],
}

/// Offsets of kernel structure fields in bytes, read from the kernel's BTF; 0 where unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct KernelOffsets {
    /// `task_struct.group_leader`.
    pub task_group_leader: u32,
    /// `task_struct.start_boottime`.
    pub task_start_boottime: u32,
    /// `task_struct.tgid`.
    pub task_tgid: u32,
    /// `task_struct.pid`.
    pub task_pid: u32,
    /// `task_struct.signal`.
    pub task_signal: u32,
    /// `signal_struct.live`.
    pub signal_live: u32,
    /// `task_struct.min_flt`.
    pub task_min_flt: u32,
    /// `task_struct.maj_flt`.
    pub task_maj_flt: u32,
    /// `task_struct.thread.fsbase` (x86-64).
    pub task_fsbase: u32,
    /// `ib_umem.address`.
    pub umem_address: u32,
    /// `ib_umem.length`.
    pub umem_length: u32,
    /// `task_struct.comm`.
    pub task_comm: u32,
}

impl KernelOffsets {
    /// The fields in order, as they lie in memory.
    pub const fn words(&self) -> [u32; 12] {
        [
            self.task_group_leader,
            self.task_start_boottime,
            self.task_tgid,
            self.task_pid,
            self.task_signal,
            self.signal_live,
            self.task_min_flt,
            self.task_maj_flt,
            self.task_fsbase,
            self.umem_address,
            self.umem_length,
            self.task_comm,
        ]
    }
}
