//! What the tasks need of the machine: each need with its reason, how it is recognised, and who packages it.

use std::fmt;

use crate::paths;

/// What a need is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Compiling the workspace.
    Build,
    /// Programs that the demo and the tests profile.
    Run,
    /// The virtual machine.
    Vm,
    /// Programs that count independently of ours, for the tests.
    Witness,
    /// Compiling the BPF object.
    Ebpf,
}

impl Group {
    /// What `cargo xtask setup` looks after without being asked for more.
    pub const USUAL: [Self; 4] = [Self::Build, Self::Run, Self::Vm, Self::Witness];
}

/// How a need is recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// A program on PATH or in the system folders.
    Program(&'static str),
    /// A file that matches one of these patterns, and what to call it.
    File(&'static str, &'static [&'static str]),
}

/// The names of a need's package; empty where the distribution has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packages {
    /// Debian and Ubuntu.
    pub apt: &'static str,
    /// Fedora.
    pub dnf: &'static str,
    /// Arch.
    pub pacman: &'static str,
    /// openSUSE.
    pub zypper: &'static str,
}

/// One thing that must be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// What it is for.
    pub group: Group,
    /// How it is recognised.
    pub sign: Sign,
    /// Why it is needed.
    pub why: &'static str,
    /// Who packages it.
    pub packages: Packages,
}

impl fmt::Display for Sign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program(name) | Self::File(name, _) => f.write_str(name),
        }
    }
}

impl Sign {
    /// Looks for it on this machine.
    pub fn is_there(&self) -> bool {
        match self {
            Self::Program(name) => paths::program(name).is_some(),
            Self::File(_, patterns) => patterns
                .iter()
                .filter_map(|pattern| glob::glob(pattern).ok())
                .any(|mut matches| matches.any(|file| file.is_ok())),
        }
    }
}

const fn need(
    group: Group,
    sign: Sign,
    why: &'static str,
    [apt, dnf, pacman, zypper]: [&'static str; 4],
) -> Need {
    Need { group, sign, why, packages: Packages { apt, dnf, pacman, zypper } }
}

/// Every need, in the order in which they are shown.
pub const NEEDS: &[Need] = &[
    need(Group::Build, Sign::Program("cc"), "links every program", ["gcc", "gcc", "gcc", "gcc"]),
    need(
        Group::Build,
        Sign::Program("cmake"),
        "generates the verbs headers that the bindings are made from",
        ["cmake", "cmake", "cmake", "cmake"],
    ),
    need(Group::Build, Sign::Program("make"), "runs what cmake wrote", ["make", "make", "make", "make"]),
    need(
        Group::Build,
        Sign::File(
            "libclang",
            &[
                "/usr/lib/llvm-*/lib/libclang.so*",
                "/usr/lib64/libclang.so*",
                "/usr/lib/libclang.so*",
                "/usr/lib64/llvm*/lib64/libclang.so*",
            ],
        ),
        "reads the verbs headers for the bindings",
        ["libclang-dev", "clang-devel", "clang", "clang-devel"],
    ),
    need(
        Group::Build,
        Sign::File(
            "clang's own headers",
            &["/usr/lib/llvm-*/lib/clang/*/include/stddef.h", "/usr/lib*/clang/*/include/stddef.h"],
        ),
        "what libclang falls back on when it reads the verbs headers",
        ["libclang-dev", "clang-devel", "clang", "clang-devel"],
    ),
    need(
        Group::Build,
        Sign::Program("pkg-config"),
        "finds the netlink libraries",
        ["pkg-config", "pkgconf-pkg-config", "pkgconf", "pkg-config"],
    ),
    need(
        Group::Build,
        Sign::File("netlink/netlink.h", &["/usr/include/libnl3/netlink/netlink.h"]),
        "part of the verbs bindings' build",
        ["libnl-3-dev", "libnl3-devel", "libnl", "libnl3-devel"],
    ),
    need(
        Group::Build,
        Sign::File("netlink/route/link.h", &["/usr/include/libnl3/netlink/route/link.h"]),
        "part of the verbs bindings' build",
        ["libnl-route-3-dev", "libnl3-devel", "libnl", "libnl3-devel"],
    ),
    need(
        Group::Build,
        Sign::File("infiniband/verbs.h", &["/usr/include/infiniband/verbs.h"]),
        "what the workloads link against",
        ["libibverbs-dev", "rdma-core-devel", "rdma-core", "rdma-core-devel"],
    ),
    need(
        Group::Build,
        Sign::File("rdma/rdma_cma.h", &["/usr/include/rdma/rdma_cma.h"]),
        "what connecting workloads link against",
        ["librdmacm-dev", "rdma-core-devel", "rdma-core", "rdma-core-devel"],
    ),
    need(
        Group::Run,
        Sign::File(
            "librxe-rdmav*.so",
            &[
                "/usr/lib/*/libibverbs/librxe-rdmav*.so",
                "/usr/lib64/libibverbs/librxe-rdmav*.so",
                "/usr/lib/libibverbs/librxe-rdmav*.so",
            ],
        ),
        "the provider of soft-RoCE devices",
        ["ibverbs-providers", "libibverbs", "rdma-core", "rdma-core"],
    ),
    need(
        Group::Run,
        Sign::Program("ib_write_bw"),
        "benchmarks that the demo and the tests profile",
        ["perftest", "perftest", "perftest", "perftest"],
    ),
    need(
        Group::Run,
        Sign::Program("ibv_rc_pingpong"),
        "example programs that the demo and the tests profile",
        ["ibverbs-utils", "libibverbs-utils", "rdma-core", "libibverbs-utils"],
    ),
    need(
        Group::Run,
        Sign::Program("rping"),
        "connection manager programs that the tests profile",
        ["rdmacm-utils", "librdmacm-utils", "rdma-core", "librdmacm-utils"],
    ),
    need(
        Group::Vm,
        Sign::Program("qemu-system-x86_64"),
        "runs the virtual machine",
        ["qemu-system-x86", "qemu-system-x86-core", "qemu-system-x86", "qemu-x86"],
    ),
    need(
        Group::Vm,
        Sign::Program("busybox"),
        "the guest's first programs (must be statically linked)",
        ["busybox-static", "busybox", "busybox", "busybox-static"],
    ),
    need(
        Group::Vm,
        Sign::Program("modprobe"),
        "orders the guest's kernel modules",
        ["kmod", "kmod", "kmod", "kmod"],
    ),
    need(Group::Vm, Sign::Program("xz"), "unpacks kernel modules", ["xz-utils", "xz", "xz", "xz"]),
    need(
        Group::Vm,
        Sign::Program("rdma"),
        "makes the guest's soft-RoCE device",
        ["iproute2", "iproute", "iproute2", "iproute2"],
    ),
    need(
        Group::Witness,
        Sign::Program("strace"),
        "counts system calls to compare with",
        ["strace", "strace", "strace", "strace"],
    ),
    need(
        Group::Witness,
        Sign::Program("bpftrace"),
        "counts function calls to compare with",
        ["bpftrace", "bpftrace", "bpftrace", "bpftrace"],
    ),
    need(
        Group::Witness,
        Sign::File(
            "pyverbs",
            &["/usr/lib/python3/dist-packages/pyverbs", "/usr/lib*/python3*/site-packages/pyverbs"],
        ),
        "posts through the extended verbs, which perftest does not do here",
        ["python3-pyverbs", "python3-pyverbs", "rdma-core", "python3-pyverbs"],
    ),
    need(
        Group::Ebpf,
        Sign::File("the sources of core", &["/usr/lib/rustlib/src/rust/library/core/Cargo.toml"]),
        "compiled for BPF with the programs",
        ["rust-web-src", "", "", ""],
    ),
    need(
        Group::Ebpf,
        Sign::File("Debian's rustc", &["/usr/lib/rustlib/x86_64-unknown-linux-gnu/lib/libstd-*.rlib"]),
        "the compiler that the source belongs to, with an LLVM that Debian packages too",
        ["rustc-web", "", "", ""],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_need_has_a_reason_and_a_debian_package() {
        for need in NEEDS {
            assert!(!need.why.is_empty() && !need.packages.apt.is_empty(), "{}", need.sign);
        }
    }

    #[test]
    fn no_need_is_listed_twice() {
        for (index, need) in NEEDS.iter().enumerate() {
            assert!(NEEDS[..index].iter().all(|other| other.sign != need.sign), "{}", need.sign);
        }
    }

    #[test]
    fn every_pattern_is_well_formed_and_absolute() {
        for need in NEEDS {
            if let Sign::File(_, patterns) = need.sign {
                for pattern in patterns {
                    assert!(pattern.starts_with('/') && glob::Pattern::new(pattern).is_ok(), "{pattern}");
                }
            }
        }
    }

    #[test]
    fn a_missing_program_and_a_missing_file_are_not_there() {
        assert!(!Sign::Program("no-such-program-here").is_there());
        assert!(!Sign::File("nothing", &["/no/such/*/file"]).is_there());
        assert!(Sign::Program("sh").is_there());
        assert!(Sign::File("status", &["/pro*/self/status"]).is_there());
    }
}
