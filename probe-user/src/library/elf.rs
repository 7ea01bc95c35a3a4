//! What an ELF file exports, by the version a program is linked to.
//!
//! Many verbs exist twice: an `@IBVERBS_1.0` stub for programs of 2006, and the `@@IBVERBS_1.1` default. In `.dynsym`
//! the old one comes first, and a probe attached by name sits in the stub and sees nothing.

use std::collections::BTreeMap;

use object::elf;
use object::read::elf::{FileHeader, ProgramHeader, Rela, SectionHeader, SectionTable, Sym};
use object::read::{ReadRef, SymbolIndex};
use object::{LittleEndian, SectionIndex};

use super::exits::exits;

/// Symbol tables larger than this are not read: no verbs library, and no program with one inside, has such.
const MAX_TABLE_BYTES: u64 = 256 << 20;

type Header = elf::FileHeader64<LittleEndian>;
const LE: LittleEndian = LittleEndian;

/// One exported function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// Address of the instruction to probe, in the file's own address space.
    pub vaddr: u64,
    /// Offset of the instruction to probe in the file.
    pub file_offset: u64,
    /// Offsets in the file of the instructions it returns by; empty where it may be left otherwise.
    pub exits: Vec<u64>,
    /// Symbol version, such as `IBVERBS_1.8`; empty where the library has none.
    pub version: String,
}

/// The exports of one file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Image {
    /// Functions by name, each in its default version.
    pub exports: BTreeMap<String, Export>,
    /// True where the library was made by rdma-core or keeps its versions: its functions then call each other in the
    /// known ways.
    pub is_rdma_core: bool,
    /// Address of the GOT slot for `__errno_location`, in the file's own address space.
    pub errno_slot_vaddr: Option<u64>,
}

/// Why a file's exports could not be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ParseError {
    /// Not an ELF file of this kind of machine.
    #[error("not a 64-bit little-endian ELF file")]
    NotElf,
    /// The file contradicts itself.
    #[error("malformed ELF file: {0}")]
    Malformed(String),
}

impl From<object::Error> for ParseError {
    fn from(error: object::Error) -> Self {
        Self::Malformed(error.to_string())
    }
}

impl Image {
    /// Reads the exports that `wanted` names out of an ELF file; all names wanted must begin with one of `prefixes`.
    ///
    /// A program that contains a verbs library is served by its full symbol table, where it still has one.
    ///
    /// # Errors
    /// [`ParseError`] when the file is of another kind or contradicts itself.
    pub fn parse<'data, R: ReadRef<'data>>(
        data: R,
        prefixes: &[&str],
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<Self, ParseError> {
        let header = Header::parse(data).map_err(|_| ParseError::NotElf)?;
        if header.endian().is_err() || header.e_machine(LE) != host_machine() {
            return Err(ParseError::NotElf);
        }
        let segments = header.program_headers(LE, data)?;
        let sections = header.sections(LE, data)?;
        let mut image = Self::default();
        let versions = sections.versions(LE, data)?;
        for kind in [elf::SHT_DYNSYM, elf::SHT_SYMTAB] {
            if kind == elf::SHT_SYMTAB && !image.exports.is_empty() {
                break;
            }
            let size: u64 = sections.iter().filter(|s| s.sh_type(LE) == kind).map(|s| s.sh_size(LE)).sum();
            if size > MAX_TABLE_BYTES {
                continue;
            }
            let symbols = sections.symbols(LE, data, kind)?;
            // Most files have none of the names. A search through their strings tells so at memory speed; a walk over
            // their symbols may take seconds.
            if !prefixes.iter().any(|prefix| has_name_with(&sections, data, symbols.string_section(), prefix))
            {
                continue;
            }
            for (index, symbol) in symbols.enumerate() {
                if symbol.st_type() != elf::STT_FUNC || symbol.is_undefined(LE) || symbol.st_value(LE) == 0 {
                    continue;
                }
                let Ok(name) = std::str::from_utf8(symbol.name(LE, symbols.strings())?) else { continue };
                if !wanted(name) {
                    continue;
                }
                let mut version = String::new();
                if kind == elf::SHT_DYNSYM
                    && let Some(table) = &versions
                {
                    let which = table.version_index(LE, index);
                    // Hidden means: kept for old programs, not what a program is linked to today.
                    if which.is_hidden() {
                        continue;
                    }
                    if let Some(found) = table.version(which.index())? {
                        version = String::from_utf8_lossy(found.name()).into_owned();
                    }
                }
                let vaddr = symbol.st_value(LE);
                let Some(file_offset) = file_offset(segments, vaddr) else { continue };
                image.is_rdma_core |= version.starts_with("IBVERBS_") || version.starts_with("RDMACM_");
                // Of these two instructions the first would be single-stepped, at many times the cost of the next, and
                // the second is rewritten by Linux 6.18 in a way that kills forked children. Neither touches the
                // stack, so that a return probe works behind them as well.
                let code = data.read_bytes_at(file_offset, symbol.st_size(LE)).unwrap_or_default();
                let exits = exits(code).unwrap_or_default();
                let exits = exits.into_iter().filter_map(|at| file_offset.checked_add(at)).collect();
                let shift = skipped(data.read_bytes_at(file_offset, LONGEST_SKIPPED).unwrap_or_default());
                let (vaddr, file_offset) = (vaddr.wrapping_add(shift), file_offset.wrapping_add(shift));
                image.exports.entry(name.to_owned()).or_insert(Export { vaddr, file_offset, exits, version });
            }
        }
        if !image.exports.is_empty() {
            image.errno_slot_vaddr = errno_slot(header, data)?;
        }
        Ok(image)
    }
}

/// True when a string of the table begins with the prefix.
fn has_name_with<'data, R: ReadRef<'data>>(
    sections: &SectionTable<'data, Header, R>,
    data: R,
    strings: SectionIndex,
    prefix: &str,
) -> bool {
    let Ok(table) = sections.section(strings).and_then(|section| section.data(LE, data)) else {
        return false;
    };
    let mut wanted = vec![0];
    wanted.extend_from_slice(prefix.as_bytes());
    memchr::memmem::find(table, &wanted).is_some()
}

const ENDBR64: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
const NOP5: &[u8] = &[0x0f, 0x1f, 0x44, 0x00, 0x00];
const LONGEST_SKIPPED: u64 = 9;

/// Bytes at the beginning of a function that a probe is put behind.
fn skipped(code: &[u8]) -> u64 {
    let mut at = 0;
    if cfg!(target_arch = "x86_64") {
        for instruction in [ENDBR64, NOP5] {
            if code.get(at..).is_some_and(|rest| rest.starts_with(instruction)) {
                at += instruction.len();
            }
        }
    }
    at as u64
}

fn host_machine() -> elf::Machine {
    if cfg!(target_arch = "aarch64") { elf::EM_AARCH64 } else { elf::EM_X86_64 }
}

/// Where the byte at a virtual address is in the file.
fn file_offset(segments: &[elf::ProgramHeader64<LittleEndian>], vaddr: u64) -> Option<u64> {
    segments.iter().filter(|segment| segment.p_type(LE) == elf::PT_LOAD).find_map(|segment| {
        let within = vaddr.checked_sub(segment.p_vaddr(LE))?;
        (within < segment.p_filesz(LE)).then(|| segment.p_offset(LE).checked_add(within))?
    })
}

/// The GOT slot that holds the address of `__errno_location` once the file is loaded.
fn errno_slot<'data, R: ReadRef<'data>>(header: &Header, data: R) -> Result<Option<u64>, ParseError> {
    let sections = header.sections(LE, data)?;
    let symbols = sections.symbols(LE, data, elf::SHT_DYNSYM)?;
    let dynsym = symbols.section();
    for section in sections.iter() {
        let Some((relocations, link)) = section.rela(LE, data)? else { continue };
        if link != dynsym || link == SectionIndex(0) {
            continue;
        }
        for relocation in relocations {
            let kind = relocation.r_type(LE, false);
            let slot = if cfg!(target_arch = "aarch64") {
                kind == elf::R_AARCH64_JUMP_SLOT || kind == elf::R_AARCH64_GLOB_DAT
            } else {
                kind == elf::R_X86_64_JUMP_SLOT || kind == elf::R_X86_64_GLOB_DAT
            };
            if !slot {
                continue;
            }
            let Ok(symbol) = symbols.symbol(SymbolIndex(relocation.r_sym(LE, false) as usize)) else {
                continue;
            };
            if symbol.name(LE, symbols.strings())? == b"__errno_location" {
                return Ok(Some(relocation.r_offset(LE)));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system_library(name: &str) -> Option<Vec<u8>> {
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/lib"]
            .iter()
            .find_map(|folder| std::fs::read(format!("{folder}/{name}")).ok())
    }

    #[test]
    fn the_default_version_is_taken_and_never_the_stub_of_2006() {
        let data = system_library("libibverbs.so.1").expect("libibverbs is a development dependency");
        let image = Image::parse(&*data, &["ibv_"], &|name| name.starts_with("ibv_")).unwrap();
        assert!(image.is_rdma_core);
        for (name, old) in [("ibv_dereg_mr", "IBVERBS_1.0"), ("ibv_create_qp", "IBVERBS_1.0")] {
            let export = &image.exports[name];
            assert_ne!(export.version, old, "{name}");
            assert!(export.version.starts_with("IBVERBS_1."), "{name}: {}", export.version);
        }
        assert!(image.errno_slot_vaddr.is_some());
        // The file offset must be that of the function: its bytes are code, not zeroes.
        let at = image.exports["ibv_dereg_mr"].file_offset as usize;
        assert_ne!(&data[at..at + 4], &[0; 4]);
    }

    #[test]
    fn symbols_a_program_only_imports_are_no_exports() {
        let data = std::fs::read("/usr/bin/ibv_devinfo").expect("ibverbs-utils is a development dependency");
        let image = Image::parse(&*data, &["ibv_"], &|name| name.starts_with("ibv_")).unwrap();
        assert!(image.exports.is_empty());
    }

    #[test]
    fn a_probe_goes_behind_a_landing_pad_and_a_patchable_nop() {
        let code = |parts: &[&[u8]]| parts.concat();
        assert_eq!(skipped(&code(&[ENDBR64, &[0x55]])), 4);
        assert_eq!(skipped(&code(&[ENDBR64, NOP5, &[0x55]])), 9);
        assert_eq!(skipped(&code(&[NOP5, &[0x55]])), 5);
        assert_eq!(skipped(&[0x55, 0x48]), 0);
        assert_eq!(skipped(&ENDBR64[..3]), 0);
        assert_eq!(skipped(&[]), 0);
    }

    #[test]
    fn what_is_not_elf_is_refused() {
        assert_eq!(Image::parse(&b"#!/bin/sh\n"[..], &["ibv_"], &|_| true), Err(ParseError::NotElf));
        assert_eq!(Image::parse(&b""[..], &["ibv_"], &|_| true), Err(ParseError::NotElf));
    }

    #[test]
    fn a_damaged_library_is_an_error_or_empty_and_never_a_panic() {
        let data = system_library("libibverbs.so.1").expect("libibverbs is a development dependency");
        for cut in (64..data.len()).step_by(4099) {
            let _ = Image::parse(&data[..cut], &["ibv_"], &|_| true);
        }
        let mut seed = 1u64;
        for _ in 0..200 {
            let mut damaged = data.clone();
            for _ in 0..20 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (seed >> 33) as usize % 4096.min(damaged.len());
                damaged[at] = (seed >> 20) as u8;
            }
            let _ = Image::parse(&*damaged, &["ibv_"], &|_| true);
        }
    }
}
