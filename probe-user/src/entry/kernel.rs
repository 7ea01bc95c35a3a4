//! What the running kernel does with probed instructions.

/// The machine the code is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Machine {
    /// x86-64.
    X86_64,
    /// Any other: instruction classes are not known.
    Other,
}

/// What the running kernel does with probed instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// The machine.
    pub machine: Machine,
    /// Rewrites a probed 5-byte nop into a call (x86-64, Linux 6.18).
    pub rewrites_nop5: bool,
    /// Emulates nops of every length, not only those of one opcode byte `90` (came with the rewriting).
    pub emulates_long_nops: bool,
}

impl Kernel {
    /// The facts for a release (`uname -r`) and a machine (`uname -m`). A release that cannot be read counts as old: the
    /// dearer assumption is the safe one, except for the foreign nop, which is then only ever single-stepped.
    pub fn from_release(release: &str, machine: &str) -> Self {
        let machine = if machine == "x86_64" { Machine::X86_64 } else { Machine::Other };
        let recent = machine == Machine::X86_64 && version(release).is_some_and(|v| v >= (6, 18));
        Self { machine, rewrites_nop5: recent, emulates_long_nops: recent }
    }

    /// The facts of the running kernel.
    pub fn running() -> Self {
        // SAFETY: an all-zero utsname is valid (arrays of char), and uname writes NUL-terminated strings into it.
        let name = unsafe {
            let mut name: libc::utsname = std::mem::zeroed();
            libc::uname(&mut name);
            name
        };
        let text = |field: &[libc::c_char]| -> String {
            field.iter().take_while(|c| **c != 0).map(|c| char::from(c.to_ne_bytes()[0])).collect()
        };
        Self::from_release(&text(&name.release), &text(&name.machine))
    }
}

/// Major and minor version at the start of a release string.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nops_are_rewritten_from_6_18_on() {
        for (release, rewrites) in [
            ("6.18.44-fc-v657", true),
            ("6.17.9", false),
            ("6.1.0-57-amd64", false),
            ("6.12.111+deb12-amd64", false),
            ("7.0.0", true),
            ("6.18-rc1", true),
            ("10.2", true),
            ("unknown", false),
            ("", false),
        ] {
            assert_eq!(Kernel::from_release(release, "x86_64").rewrites_nop5, rewrites, "{release}");
        }
    }

    #[test]
    fn other_machines_promise_nothing() {
        let kernel = Kernel::from_release("6.18.0", "aarch64");
        assert_eq!(kernel.machine, Machine::Other);
        assert!(!kernel.rewrites_nop5 && !kernel.emulates_long_nops);
    }

    #[test]
    fn the_running_kernel_is_read() {
        if cfg!(target_arch = "x86_64") {
            assert_eq!(Kernel::running().machine, Machine::X86_64);
        }
    }
}
