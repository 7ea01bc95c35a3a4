//! The record beside the committed BPF object: which toolchain made it, from which source.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Error, Result, bail};

/// Versions that decide the object's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versions {
    /// First line of `rustc --version`, without the program's name.
    pub rustc: String,
    /// LLVM of that compiler.
    pub llvm: String,
    /// Version of bpf-linker.
    pub bpf_linker: String,
}

/// The record. Its text is one `key = value` a line, `#` starts a comment; unknown keys are an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The toolchain.
    pub made_by: Versions,
    /// SHA-256 of the object.
    pub object: String,
    /// Digest of the source files.
    pub source: String,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# What made probe.bpfel.o; written by `cargo xtask build --ebpf`.")?;
        writeln!(f, "rustc = {}", self.made_by.rustc)?;
        writeln!(f, "llvm = {}", self.made_by.llvm)?;
        writeln!(f, "bpf-linker = {}", self.made_by.bpf_linker)?;
        writeln!(f, "object-sha256 = {}", self.object)?;
        writeln!(f, "source-sha256 = {}", self.source)
    }
}

impl FromStr for Record {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut values: [Option<String>; 5] = Default::default();
        let keys = ["rustc", "llvm", "bpf-linker", "object-sha256", "source-sha256"];
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (key, value) =
                line.split_once(" = ").with_context(|| format!("\"{line}\" is not KEY = VALUE"))?;
            let Some(index) = keys.iter().position(|&known| known == key) else {
                bail!("unknown key \"{key}\"")
            };
            values[index] = Some(value.to_owned());
        }
        let mut take = |index: usize| values[index].take().with_context(|| format!("no \"{}\"", keys[index]));
        Ok(Self {
            made_by: Versions { rustc: take(0)?, llvm: take(1)?, bpf_linker: take(2)? },
            object: take(3)?,
            source: take(4)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            made_by: Versions {
                rustc: "1.96.0 (ac68faa20 2026-05-25) (built from a source tarball)".into(),
                llvm: "22.1.8".into(),
                bpf_linker: "0.13.0".into(),
            },
            object: "aa".into(),
            source: "bb".into(),
        }
    }

    #[test]
    fn a_record_is_read_back_as_it_was_written() {
        assert_eq!(record().to_string().parse::<Record>().unwrap(), record());
    }

    #[test]
    fn a_missing_or_unknown_key_is_named() {
        let text = record().to_string();
        let without = text.replace("llvm = 22.1.8\n", "");
        assert!(without.parse::<Record>().unwrap_err().to_string().contains("\"llvm\""));
        let error = format!("{text}speed = 9\n").parse::<Record>().unwrap_err().to_string();
        assert!(error.contains("\"speed\""), "{error}");
        assert!("nonsense".parse::<Record>().is_err());
    }
}
