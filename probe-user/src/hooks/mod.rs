//! The hook table: every place a probe may sit, as data. The planner turns it into attachments for what is really
//! there; a new hook is a row here.

mod cm;
mod kernel;
mod verbs;

use probe_common::{CallId, Layout, Part, Returns};

pub use kernel::{DRIVER_SUFFIX, KERNEL_HOOKS, KernelHook};

/// A function of a user-space library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LibraryHook {
    /// Exported name.
    pub symbol: &'static str,
    /// The call it stands for. Several names of one call are merged where they call each other.
    pub call: CallId,
    /// Its arguments.
    pub layout: Layout,
    /// How it fails.
    pub returns: Returns,
    /// In rdma-core, every call of this function passes through that one, so that one is enough.
    pub through: Option<&'static str>,
    /// A thread may be cancelled inside: it waits, or makes system calls that are cancellation points. Its callers must
    /// then be unwound as if nobody looked, which a return probe prevents.
    pub cancellable: bool,
}

const fn hook(symbol: &'static str, call: CallId, layout: Layout, returns: Returns) -> LibraryHook {
    LibraryHook { symbol, call, layout, returns, through: None, cancellable: false }
}

const fn cancellable(hook: LibraryHook) -> LibraryHook {
    LibraryHook { cancellable: true, ..hook }
}

/// All library hooks, in the order they are attached.
pub fn library_hooks() -> impl Iterator<Item = &'static LibraryHook> {
    verbs::HOOKS.iter().chain(cm::HOOKS)
}

/// How all names begin that a library hook may sit at.
pub const PREFIXES: [&str; 3] = ["ibv_", "rdma_", "rnic_emu_"];

/// True for names a library hook may sit at.
pub fn is_hooked(symbol: &str) -> bool {
    // Cheap first: this is asked of every symbol of a library.
    PREFIXES.iter().any(|prefix| symbol.starts_with(prefix))
        && library_hooks().any(|hook| hook.symbol == symbol)
}

/// True where a library with this hook is a verbs library, rather than one of connection management.
pub fn is_verbs(hook: &LibraryHook) -> bool {
    verbs::HOOKS.iter().any(|verbs| verbs.symbol == hook.symbol)
}

/// What a hook in the kernel measures of a registration.
pub const fn part_name(part: Part) -> &'static str {
    match part {
        Part::None => "",
        Part::Kernel => "kernel",
        Part::Pin => "pin",
        Part::DmaMap => "dma_map",
        Part::Driver => "driver",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_function_is_hooked_twice() {
        let mut seen = HashSet::new();
        for hook in library_hooks() {
            assert!(seen.insert(hook.symbol), "{}", hook.symbol);
            assert!(is_hooked(hook.symbol), "{}", hook.symbol);
        }
        let mut seen = HashSet::new();
        for hook in KERNEL_HOOKS {
            assert!(seen.insert(hook.symbol), "{}", hook.symbol);
        }
    }

    #[test]
    fn a_function_passed_through_is_hooked_itself_and_for_the_same_call() {
        for hook in library_hooks() {
            if let Some(through) = hook.through {
                let other = library_hooks().find(|other| other.symbol == through).expect("hooked");
                assert_eq!(other.call, hook.call, "{}", hook.symbol);
                assert_eq!(other.through, None, "{}", hook.symbol);
            }
        }
    }
}
