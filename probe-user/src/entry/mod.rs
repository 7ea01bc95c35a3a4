//! Where to put a probe in a function that has no symbol: at the first instruction the kernel need not single-step.
//!
//! A user probe costs what its *instruction* costs: a 5-byte nop that the kernel rewrites into a call (0.2 µs), an
//! instruction it emulates inside the trap (0.4 µs), or one it copies out and single-steps (3–16 µs). The entry of a
//! function is straight-line code, so any of its first instructions is executed once per call, and as long as no
//! argument register was overwritten a probe there sees the call's arguments. [`choose`] walks that line.
//!
//! The decision is pure: bytes and facts in, a place and its class out. What is particular to x86-64 is in [`x86_64`].

pub mod kernel;
mod x86_64;

pub use kernel::Kernel;

/// How dear one hit of a probe is, by what the kernel does with the probed instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// The kernel rewrites the instruction into a call: no trap.
    Optimised,
    /// One trap; the kernel carries the instruction out itself.
    Emulated,
    /// Two traps: the instruction is copied out and single-stepped. Slices only, never a steady probe.
    SingleStepped,
}

/// Who wrote the code that is to be probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Owner {
    /// Someone else: a provider library, an application.
    Foreign,
    /// A site of this product's libraries.
    Ours {
        /// The library re-maps the page of its sites in forked children. Without that a child that inherits a rewritten
        /// nop is killed at it (Linux 6.18: the call is inherited, its trampoline is not).
        fork_handler: bool,
    },
}

/// A function's entry, as the file has it.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// Code from the first instruction on. 64 bytes are plenty; fewer is fine.
    pub code: &'a [u8],
    /// Where `code` begins: file offset or address, whichever agrees with memory modulo the page size.
    pub offset: u64,
    /// How many integer arguments a probe there will read (0–6).
    pub arguments: usize,
    /// Whose code it is.
    pub owner: Owner,
}

/// Where to attach, and why there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Choice {
    /// Bytes from the entry to the probed instruction.
    pub delta: u64,
    /// What a hit will cost.
    pub class: Class,
    /// Why this instruction.
    pub reason: Reason,
}

impl Choice {
    /// A return probe hijacks the return address, which is where it is expected only before the first instruction.
    pub fn return_probe_possible(&self) -> bool {
        self.delta == 0
    }
}

/// Why an instruction was chosen, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Our nop, which this kernel rewrites, in a library that protects forked children.
    OwnNop,
    /// Our site, at the jump behind the nop: this kernel does not rewrite nops.
    JumpKernelDoesNotRewrite,
    /// Our site, at the jump behind the nop: forked children are not protected.
    JumpChildrenUnprotected,
    /// Our site, at the jump behind the nop: a nop that crosses a page is never rewritten.
    JumpNopCrossesPage,
    /// `push` of a register.
    Push,
    /// A nop this kernel emulates.
    Nop,
    /// A relative jump, conditional or not.
    Jump,
    /// A relative call.
    Call,
    /// Nothing the kernel emulates comes before an argument is overwritten or the straight line ends.
    NothingEmulated,
}

impl Reason {
    /// One short clause for tables.
    pub fn text(self) -> &'static str {
        match self {
            Self::OwnNop => "own 5-byte nop, rewritten into a call",
            Self::JumpKernelDoesNotRewrite => "jump behind own nop: this kernel rewrites no nops",
            Self::JumpChildrenUnprotected => "jump behind own nop: forked children are not protected",
            Self::JumpNopCrossesPage => "jump behind own nop: the nop crosses a page",
            Self::Push => "push",
            Self::Nop => "nop",
            Self::Jump => "relative jump",
            Self::Call => "relative call",
            Self::NothingEmulated => "no emulated instruction at the entry",
        }
    }
}

/// Why a function cannot be probed at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// The bytes are no code, or too few.
    #[error("its first bytes are not an instruction")]
    NotCode,
    /// The only place is a foreign 5-byte nop, which this kernel would rewrite: forked children would die there.
    #[error("its only place is a 5-byte nop that this kernel rewrites, and forked children would die there")]
    ForeignNop,
    /// This build knows no instruction classes for the machine.
    #[error("which instructions the kernel emulates is known for x86-64 only")]
    Architecture,
}

/// Chooses the instruction to probe in a function's straight-line entry.
///
/// # Errors
/// [`Refusal`] when no instruction of the entry may be probed.
pub fn choose(entry: &Entry<'_>, kernel: &Kernel) -> Result<Choice, Refusal> {
    match kernel.machine {
        kernel::Machine::X86_64 => x86_64::choose(entry, kernel),
        kernel::Machine::Other => Err(Refusal::Architecture),
    }
}
