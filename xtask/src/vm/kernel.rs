//! Finding the kernel to boot: a Debian series by name, fetched once, or files the user points at.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::command;
use crate::paths;

/// The Debian kernel series the integration tests run on.
pub const TESTED: [&str; 2] = ["6.1", "6.12"];

/// A kernel that can be booted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Release, as `uname -r` will print it.
    pub release: String,
    /// Compressed kernel image.
    pub image: PathBuf,
    /// Folder that holds `modules/RELEASE` (`…/lib`).
    pub lib: PathBuf,
}

/// Resolves what the user asked for: a series such as `6.1`, a folder unpacked from a kernel package, or a vmlinuz.
///
/// # Errors
/// Names what is missing; for a series, also when apt has no such kernel or cannot fetch it.
pub fn resolve(asked: &str) -> Result<Kernel> {
    let path = Path::new(asked);
    if is_series(asked) && !path.exists() {
        return debian(asked);
    }
    let metadata = fs::metadata(path).with_context(|| {
        format!(
            "no kernel \"{asked}\": give a Debian series ({}), an unpacked package or a vmlinuz",
            TESTED.join(", ")
        )
    })?;
    let path = fs::canonicalize(path).with_context(|| format!("cannot resolve \"{asked}\""))?;
    if metadata.is_dir() { unpacked(&path) } else { beside(&path) }
}

/// `6.1`, `6.12`: digits, a dot, digits.
fn is_series(text: &str) -> bool {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    text.split_once('.').is_some_and(|(major, minor)| number(major) && number(minor))
}

/// The kernel in a folder unpacked with `dpkg -x`.
fn unpacked(root: &Path) -> Result<Kernel> {
    let images: Vec<PathBuf> = fs::read_dir(root.join("boot"))
        .with_context(|| {
            format!("\"{}\" has no boot folder: unpack a kernel package there with `dpkg -x`", root.display())
        })?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| release_of(path).is_some())
        .collect();
    match images.as_slice() {
        [image] => beside(image),
        [] => bail!("no vmlinuz-* in \"{}/boot\"", root.display()),
        _ => bail!("several kernels in \"{}/boot\": give the path of one vmlinuz", root.display()),
    }
}

/// The kernel of a `ROOT/boot/vmlinuz-RELEASE`, whose modules are in `ROOT/lib/modules/RELEASE`.
fn beside(image: &Path) -> Result<Kernel> {
    let release = release_of(image).with_context(|| {
        format!("\"{}\" is not named vmlinuz-RELEASE, so its modules cannot be found", image.display())
    })?;
    let root = image.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    let libs = [root.join("lib"), root.join("usr/lib")];
    let lib =
        libs.into_iter().find(|lib| lib.join("modules").join(&release).is_dir()).with_context(|| {
            format!(
                "no modules for kernel {release}: expected them in \"{}/lib/modules/{release}\"",
                root.display()
            )
        })?;
    Ok(Kernel { release, image: image.to_path_buf(), lib })
}

fn release_of(image: &Path) -> Option<String> {
    let release = image.file_name()?.to_str()?.strip_prefix("vmlinuz-")?;
    (!release.is_empty()).then(|| release.to_owned())
}

/// The newest Debian kernel of a series: from the cache where there is one, else fetched with apt.
fn debian(series: &str) -> Result<Kernel> {
    let cache = paths::cache()?.join("kernels");
    fs::create_dir_all(&cache).with_context(|| format!("cannot create \"{}\"", cache.display()))?;
    // Two runs at once must not fetch into the same place; the second finds what the first got.
    let lock = File::create(cache.join(".lock")).context("cannot create the kernel cache's lock file")?;
    lock.lock().context("cannot lock the kernel cache")?;

    let cached: Vec<String> = fs::read_dir(&cache)
        .with_context(|| format!("cannot read \"{}\"", cache.display()))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    if let Some(package) = newest(series, cached.iter().map(String::as_str)) {
        return unpacked(&cache.join(package));
    }

    let names = command::text(command::tool("apt-cache")?.args(["pkgnames", "linux-image-"])).with_context(|| {
        format!("kernel {series} comes from Debian's packages; elsewhere give an unpacked one with --kernel PATH")
    })?;
    let package = newest(series, names.lines()).with_context(|| {
        format!(
            "apt knows no kernel image of series \"{series}\": run `apt-get update`, or give one with --kernel PATH"
        )
    })?;
    fetch(package, &cache)?;
    unpacked(&cache.join(package))
}

/// Downloads and unpacks a kernel package into `cache/PACKAGE`, which appears only when complete.
fn fetch(package: &str, cache: &Path) -> Result<()> {
    eprintln!("vm: fetching {package} (once, about 100 MB) into {}", cache.display());
    let part = cache.join(format!("{package}.part"));
    let _ = fs::remove_dir_all(&part);
    fs::create_dir_all(&part).with_context(|| format!("cannot create \"{}\"", part.display()))?;
    command::output(command::tool("apt-get")?.args(["-q", "download", package]).current_dir(&part))
        .context("cannot download the kernel: is the package list stale? `apt-get update` renews it")?;
    let deb = fs::read_dir(&part)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|ext| ext == "deb"))
        .with_context(|| format!("apt-get download left no package in \"{}\"", part.display()))?;
    let root = part.join("root");
    command::output(command::tool("dpkg-deb")?.arg("-x").arg(&deb).arg(&root))?;
    let kernel = unpacked(&root)?;
    // The package's own post-installation step would do this: modprobe needs it to order modules.
    command::output(command::tool("depmod")?.arg("-b").arg(&root).arg(&kernel.release))?;
    fs::rename(&root, cache.join(package))
        .with_context(|| format!("cannot move {package} into the cache"))?;
    ensure!(cache.join(package).is_dir(), "{package} did not reach the cache");
    let _ = fs::remove_dir_all(&part);
    Ok(())
}

/// The newest generic amd64 image of a series among package names, by version and not by spelling.
fn newest<'a>(series: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    names.filter_map(|name| Some((version(series, name)?, name))).max().map(|(_, name)| name)
}

/// What orders the images of one series: the ABI number of `6.1.0-57`, the patch level and revision of
/// `6.12.111+deb12`. Flavours (cloud, rt), unsigned and debug packages, and meta packages have none.
fn version(series: &str, package: &str) -> Option<(u32, u32)> {
    let rest = package.strip_prefix("linux-image-")?.strip_prefix(series)?.strip_prefix('.')?;
    let rest = rest.strip_suffix("-amd64")?;
    if let Some(abi) = rest.strip_prefix("0-") {
        return Some((0, abi.parse().ok()?));
    }
    let (patch, revision) = rest.split_once("+deb")?;
    Some((patch.parse().ok()?, revision.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_compares_numbers_and_not_spelling() {
        let names = ["linux-image-6.1.0-9-amd64", "linux-image-6.1.0-57-amd64", "linux-image-6.1.0-51-amd64"];
        assert_eq!(newest("6.1", names.into_iter()), Some("linux-image-6.1.0-57-amd64"));
        let names = ["linux-image-6.12.99+deb12-amd64", "linux-image-6.12.111+deb12-amd64"];
        assert_eq!(newest("6.12", names.into_iter()), Some("linux-image-6.12.111+deb12-amd64"));
    }

    #[test]
    fn a_series_is_not_a_prefix_of_another() {
        assert_eq!(newest("6.1", ["linux-image-6.12.111+deb12-amd64"].into_iter()), None);
        assert_eq!(newest("6.12", ["linux-image-6.1.0-57-amd64"].into_iter()), None);
    }

    #[test]
    fn flavours_debug_unsigned_and_meta_packages_are_left_out() {
        let names = [
            "linux-image-6.1.0-57-cloud-amd64",
            "linux-image-6.1.0-57-rt-amd64",
            "linux-image-6.1.0-57-amd64-dbg",
            "linux-image-6.1.0-57-amd64-unsigned",
            "linux-image-6.1.0-57-686",
            "linux-image-6.12-amd64",
            "linux-image-6.12.117+deb12-rt-amd64",
            "linux-image-amd64",
            "linux-image-6.1.0-57-amd64.part",
            ".lock",
        ];
        assert_eq!(newest("6.1", names.into_iter()), None);
        assert_eq!(newest("6.12", names.into_iter()), None);
    }

    #[test]
    fn only_two_numbers_make_a_series() {
        assert!(is_series("6.1") && is_series("6.12"));
        for other in ["6", "6.", ".1", "6.1.0", "6.1-rc", "./6.1", "", "/boot/vmlinuz-6.1"] {
            assert!(!is_series(other), "{other}");
        }
    }

    #[test]
    fn an_unknown_kernel_is_named_in_quotes() {
        let error = resolve("/no/such/kernel").unwrap_err().to_string();
        assert!(error.contains("\"/no/such/kernel\"") && error.contains("6.12"), "{error}");
    }
}
