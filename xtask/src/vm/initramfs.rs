//! The guest's first file system: a static busybox, the kernel modules it needs, and [`INIT`].

use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::cpio::Archive;
use super::kernel::Kernel;
use crate::command;
use crate::paths;

/// Runs as the guest's process 1.
const INIT: &str = include_str!("init.sh");

/// Modules the guest needs, each with what it depends on. `crc32_generic` is nobody's dependency, yet without it rxe
/// fails to add a device with ENOENT.
const MODULES: [&str; 11] = [
    "virtio_pci",
    "virtio_console",
    "9p",
    "9pnet_virtio",
    "overlay",
    "dummy",
    "veth",
    "crc32_generic",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
];

/// How long an initramfs is kept after it was made; making one takes a second.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Commands of [`INIT`] that busybox provides.
const COMMANDS: [&str; 12] = [
    "sh",
    "mount",
    "mkdir",
    "insmod",
    "ip",
    "hostname",
    "cat",
    "chmod",
    "sleep",
    "poweroff",
    "switch_root",
    "echo",
];

/// The initramfs for a kernel, built where the cache has none of the same content.
///
/// # Errors
/// When busybox or kmod is missing, a module is, or the cache cannot be written.
pub fn for_kernel(kernel: &Kernel) -> Result<PathBuf> {
    let busybox = paths::program("busybox")
        .context("`busybox` is not installed: run `cargo xtask setup` to get what is missing")?;
    let busybox = fs::read(&busybox).with_context(|| format!("cannot read \"{}\"", busybox.display()))?;
    if !is_static(&busybox) {
        bail!("the busybox here is not statically linked, the guest cannot run it: install busybox-static");
    }
    let modules = load_order(kernel)?;

    let mut content = DefaultHasher::new();
    content.write(INIT.as_bytes());
    content.write(&busybox);
    for path in &modules {
        content.write(path.as_os_str().as_encoded_bytes());
        let metadata = fs::metadata(path).with_context(|| format!("cannot read \"{}\"", path.display()))?;
        content.write_u64(metadata.len());
        content.write_u128(
            metadata.modified()?.duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos(),
        );
    }
    let folder = paths::cache()?.join("initramfs");
    let file = folder.join(format!("{}-{:016x}.cpio", kernel.release, content.finish()));
    if file.exists() {
        return Ok(file);
    }

    fs::create_dir_all(&folder).with_context(|| format!("cannot create \"{}\"", folder.display()))?;
    let part = file.with_extension(format!("part-{}", std::process::id()));
    let written = fs::write(&part, archive(&busybox, &modules)?).and_then(|()| fs::rename(&part, &file));
    if let Err(error) = written {
        let _ = fs::remove_file(&part);
        return Err(error).with_context(|| format!("cannot write \"{}\"", file.display()));
    }
    forget_old(&folder, &file);
    Ok(file)
}

/// Removes what was made for kernels and versions of long ago.
fn forget_old(folder: &Path, keep: &Path) {
    let old = |path: &Path| {
        let modified = fs::metadata(path).and_then(|metadata| metadata.modified());
        modified.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > KEPT))
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path != keep && old(&path) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Left uncompressed: unpacking costs an emulated processor more than reading does.
fn archive(busybox: &[u8], modules: &[PathBuf]) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for folder in ["bin", "modules", "proc", "dev", "host", "upper", "root"] {
        archive.directory(folder);
    }
    archive.file("init", INIT.as_bytes());
    archive.file("bin/busybox", busybox);
    for name in COMMANDS {
        archive.link(&format!("bin/{name}"), "busybox");
    }
    let mut order = String::new();
    for path in modules {
        let (name, content) = uncompressed(path)?;
        archive.file(&format!("modules/{name}"), &content);
        order.push_str(&name);
        order.push('\n');
    }
    archive.file("order", order.as_bytes());
    Ok(archive.finish())
}

/// The modules in the order in which they must be loaded.
fn load_order(kernel: &Kernel) -> Result<Vec<PathBuf>> {
    let root = kernel.lib.parent().unwrap_or(Path::new("/"));
    let folder = kernel.lib.join("modules").join(&kernel.release);
    if !folder.join("modules.dep").exists() {
        command::output(command::tool("depmod")?.arg("-b").arg(root).arg(&kernel.release))
            .context("the kernel's modules were never ordered (no modules.dep)")?;
    }
    let mut order = Vec::new();
    for module in MODULES {
        let plan = command::text(command::tool("modprobe")?.arg("-d").arg(root).args([
            "-S",
            &kernel.release,
            "--show-depends",
            module,
        ]))
        .with_context(|| {
            format!("kernel {} has no module {module}, which the guest needs", kernel.release)
        })?;
        for path in plan.lines().filter_map(insmod_path) {
            if !order.contains(&path) {
                order.push(path);
            }
        }
    }
    Ok(order)
}

/// The path in a line `insmod PATH [OPTIONS]` of modprobe's plan; built-in modules have none.
fn insmod_path(line: &str) -> Option<PathBuf> {
    let rest = line.strip_prefix("insmod ")?.trim();
    let end = rest.find(".ko").map(|at| rest[at..].find(' ').map_or(rest.len(), |space| at + space))?;
    Some(PathBuf::from(&rest[..end]))
}

/// A module's name and content, unpacked here so that the guest need not know the compression.
fn uncompressed(path: &Path) -> Result<(String, Vec<u8>)> {
    let name = path.file_name().and_then(OsStr::to_str).context("a module has no name")?;
    let with = |tool: &str| -> Result<Vec<u8>> {
        let mut unpack: Command = command::tool(tool)?;
        command::output(unpack.arg("-dc").arg(path))
    };
    let (name, content) = if let Some(name) = name.strip_suffix(".xz") {
        (name, with("xz")?)
    } else if let Some(name) = name.strip_suffix(".zst") {
        (name, with("zstd")?)
    } else if let Some(name) = name.strip_suffix(".gz") {
        (name, with("gzip")?)
    } else {
        (name, fs::read(path).with_context(|| format!("cannot read \"{}\"", path.display()))?)
    };
    Ok((name.to_owned(), content))
}

/// True for an ELF executable that asks for no interpreter.
fn is_static(elf: &[u8]) -> bool {
    let interpreter: &[u8] = b"/lib64/ld-linux";
    elf.starts_with(b"\x7fELF")
        && !elf[..elf.len().min(4096)].windows(interpreter.len()).any(|w| w == interpreter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_of_modprobe_is_read_with_options_spaces_and_built_ins() {
        assert_eq!(insmod_path("insmod /k/dummy.ko numdummies=0"), Some(PathBuf::from("/k/dummy.ko")));
        assert_eq!(insmod_path("insmod /k/9p.ko.xz "), Some(PathBuf::from("/k/9p.ko.xz")));
        assert_eq!(insmod_path("insmod /a folder/9p.ko"), Some(PathBuf::from("/a folder/9p.ko")));
        assert_eq!(insmod_path("builtin virtio_pci"), None);
        assert_eq!(insmod_path(""), None);
    }

    #[test]
    fn every_command_of_the_init_script_is_in_the_guest() {
        // Words at the start of a line, of a pipeline's right side or behind `then`: what the shell would look up.
        let own = ["export", "fail", "while", "done", "if", "fi", "exec", "ulimit", "NEXT", "}", "fail()"];
        let script = INIT.split("cat > /root/run/vm-init").next().unwrap();
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let word = line.split_whitespace().next().unwrap();
            assert!(own.contains(&word) || COMMANDS.contains(&word), "`{word}` is not in the initramfs");
        }
    }

    #[test]
    fn a_dynamic_executable_is_not_static() {
        assert!(!is_static(b"\x7fELF....\0/lib64/ld-linux-x86-64.so.2\0"));
        assert!(is_static(b"\x7fELF........"));
        assert!(!is_static(b"#!/bin/sh"));
    }
}
