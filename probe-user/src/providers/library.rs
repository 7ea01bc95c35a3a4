//! A provider library as its file tells it: code, relocated pointers, imports, and where functions begin.
//!
//! Distributions strip these libraries, but what loading needs cannot be stripped: relocations say which word of data
//! is a pointer to which function, `.eh_frame_hdr` lists where every function begins, and version needs name the
//! private ABI of libibverbs. Nothing here trusts the file: offsets are checked, and a lying table yields nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::path::Path;

use iced_x86::{Code, Decoder, DecoderOptions, Register};
use object::elf;
use object::read::elf::ElfFile64;
use object::{Object as _, ObjectSection as _, ObjectSegment as _, ObjectSymbol as _, RelocationFlags};

use super::ProviderError;

/// Larger files are no provider library (mlx5, the largest, has 0.5 MB).
const LARGEST_FILE: u64 = 64 << 20;

/// What a relocated word points to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pointer {
    /// An address in this library.
    Local(u64),
    /// A symbol of another library.
    Import(String),
}

/// The parts of a library that tell its data path. Addresses are the file's own (before relocation).
pub struct Library {
    /// Relocated words of data, by address.
    pub pointers: BTreeMap<u64, Pointer>,
    /// Call stubs, by address: calling there calls the import.
    pub stubs: BTreeMap<u64, String>,
    /// The private ABI of libibverbs it was built for: `34` of `IBVERBS_PRIVATE_34`.
    pub private_abi: Option<u32>,
    starts: BTreeSet<u64>,
    text: (u64, Vec<u8>),
    constants: (u64, Vec<u8>),
    segments: Vec<Segment>,
}

struct Segment {
    address: u64,
    file_offset: u64,
    file_size: u64,
}

impl Library {
    /// Reads and takes apart a library file.
    ///
    /// # Errors
    /// [`ProviderError`] for a file that cannot be read, is too large, or is no x86-64 ELF library.
    pub fn open(path: &Path) -> Result<Self, ProviderError> {
        let shown = || path.display().to_string();
        let file = fs::File::open(path).map_err(|e| ProviderError::Read(shown(), e))?;
        let mut bytes = Vec::new();
        file.take(LARGEST_FILE + 1).read_to_end(&mut bytes).map_err(|e| ProviderError::Read(shown(), e))?;
        if bytes.len() as u64 > LARGEST_FILE {
            return Err(ProviderError::TooLarge(shown()));
        }
        Self::parse(&bytes).map_err(|e| ProviderError::NotElf(shown(), e))
    }

    fn parse(bytes: &[u8]) -> Result<Self, object::Error> {
        let elf: ElfFile64<'_> = ElfFile64::parse(bytes)?;
        let section = |name: &str| {
            elf.section_by_name(name)
                .and_then(|s| Some((s.address(), s.data().ok()?.to_vec())))
                .unwrap_or_default()
        };
        let text = section(".text");
        let pointers = pointers(&elf);
        let mut stubs = BTreeMap::new();
        for name in [".plt", ".plt.sec", ".plt.got"] {
            let (address, code) = section(name);
            collect_stubs(address, &code, &pointers, &mut stubs);
        }
        let (header_at, header) = section(".eh_frame_hdr");
        let end = text.0.saturating_add(text.1.len() as u64);
        let mut starts = function_starts(header_at, &header);
        starts.retain(|start| (text.0..end).contains(start));
        let segments = elf
            .segments()
            .map(|s| {
                let (file_offset, file_size) = s.file_range();
                Segment { address: s.address(), file_offset, file_size }
            })
            .collect();
        let strings = section(".dynstr").1;
        let constants = section(".rodata");
        Ok(Self { pointers, stubs, private_abi: private_abi(&strings), starts, text, constants, segments })
    }

    /// A library of nothing but this code, at 0x1000, and these constants, at 0x2000.
    #[cfg(test)]
    pub fn of_code(code: &[u8], constants: &[u8]) -> Self {
        Self {
            pointers: BTreeMap::new(),
            stubs: BTreeMap::new(),
            private_abi: None,
            starts: BTreeSet::from([0x1000]),
            text: (0x1000, code.to_vec()),
            constants: (0x2000, constants.to_vec()),
            segments: Vec::new(),
        }
    }

    /// True when a function begins at the address.
    pub fn is_function(&self, address: u64) -> bool {
        self.starts.contains(&address)
    }

    /// Where each function begins, ascending.
    pub fn functions(&self) -> impl Iterator<Item = u64> + '_ {
        self.starts.iter().copied()
    }

    /// The code of the function at `start`, up to the next one.
    pub fn code(&self, start: u64) -> &[u8] {
        let (base, text) = &self.text;
        let at = |address: u64| usize::try_from(address.saturating_sub(*base)).unwrap_or(usize::MAX);
        let next = self.starts.range(start.saturating_add(1)..).next();
        let end = next.map_or(text.len(), |next| at(*next)).min(text.len());
        text.get(at(start)..end).unwrap_or_default()
    }

    /// The code at an address, to the end of all there is.
    pub fn code_at(&self, address: u64) -> &[u8] {
        from(&self.text, address)
    }

    /// So many bytes (at most 8) of what is read only and no pointer, as a little-endian number.
    pub fn constant(&self, address: u64, bytes: usize) -> Option<u64> {
        let mut number = [0; 8];
        let read = from(&self.constants, address).get(..bytes)?;
        number.get_mut(..bytes)?.copy_from_slice(read);
        Some(u64::from_le_bytes(number))
    }

    /// The function a data word points to, if it points to one of this library's.
    pub fn function_in(&self, word: u64) -> Option<u64> {
        match self.pointers.get(&word) {
            Some(Pointer::Local(target)) if self.is_function(*target) => Some(*target),
            _ => None,
        }
    }

    /// File offset of an address.
    pub fn file_offset(&self, address: u64) -> Option<u64> {
        self.segments.iter().find_map(|s| {
            let within = address.checked_sub(s.address)?;
            (within < s.file_size).then(|| s.file_offset.checked_add(within)).flatten()
        })
    }
}

/// A section from an address on.
fn from((base, bytes): &(u64, Vec<u8>), address: u64) -> &[u8] {
    let at = address.checked_sub(*base).and_then(|at| usize::try_from(at).ok());
    at.and_then(|at| bytes.get(at..)).unwrap_or_default()
}

/// Every word the dynamic linker fills in.
fn pointers(elf: &ElfFile64<'_>) -> BTreeMap<u64, Pointer> {
    let Some(relocations) = elf.dynamic_relocations() else { return BTreeMap::new() };
    relocations
        .filter_map(|(place, relocation)| {
            let RelocationFlags::Elf { r_type } = relocation.flags() else { return None };
            let addend = relocation.addend().cast_unsigned();
            let pointer = match r_type {
                elf::R_X86_64_RELATIVE => Pointer::Local(addend),
                elf::R_X86_64_64 | elf::R_X86_64_GLOB_DAT | elf::R_X86_64_JUMP_SLOT => {
                    let object::RelocationTarget::Symbol(index) = relocation.target() else { return None };
                    let symbol = elf.dynamic_symbol_table()?.symbol_by_index(index).ok()?;
                    if symbol.is_undefined() {
                        Pointer::Import(symbol.name().ok()?.to_owned())
                    } else {
                        Pointer::Local(symbol.address().wrapping_add(addend))
                    }
                }
                _ => return None,
            };
            Some((place, pointer))
        })
        .collect()
}

use object::ObjectSymbolTable as _;

/// Finds the stubs of a procedure linkage table: an indirect jump through a word that is an import.
fn collect_stubs(
    address: u64,
    code: &[u8],
    pointers: &BTreeMap<u64, Pointer>,
    stubs: &mut BTreeMap<u64, String>,
) {
    /// Every x86-64 linker lays stubs out at this distance (8 in `.plt.got`).
    const STRIDE: u64 = 8;
    for instruction in Decoder::with_ip(64, code, address, DecoderOptions::NONE).into_iter() {
        let through = match instruction.code() {
            Code::Jmp_rm64 if instruction.memory_base() == Register::RIP => {
                instruction.ip_rel_memory_address()
            }
            _ => continue,
        };
        if let Some(Pointer::Import(name)) = pointers.get(&through) {
            // With CET the stub begins with endbr64, four bytes before its jump.
            stubs.insert(instruction.ip() & !(STRIDE - 1), name.clone());
        }
    }
}

/// Reads the search table of `.eh_frame_hdr`: the one encoding linkers emit (32-bit offsets from the section).
pub fn function_starts(section: u64, header: &[u8]) -> BTreeSet<u64> {
    const VERSION: u8 = 1;
    const FRAME_POINTER_BYTES: usize = 4;
    const UDATA4: u8 = 0x03;
    const DATAREL_SDATA4: u8 = 0x3b;
    let [VERSION, _, UDATA4, DATAREL_SDATA4, rest @ ..] = header else { return BTreeSet::new() };
    let Some((count, table)) = rest.get(FRAME_POINTER_BYTES..).and_then(|r| r.split_first_chunk::<4>())
    else {
        return BTreeSet::new();
    };
    let count = usize::try_from(u32::from_le_bytes(*count)).unwrap_or(0);
    let (entries, _) = table.as_chunks::<8>();
    entries
        .iter()
        .take(count)
        .map(|e| section.wrapping_add_signed(i64::from(i32::from_le_bytes([e[0], e[1], e[2], e[3]]))))
        .collect()
}

/// The number of the version need `IBVERBS_PRIVATE_N`.
fn private_abi(strings: &[u8]) -> Option<u32> {
    strings.split(|b| *b == 0).find_map(|name| {
        let digits = name.strip_prefix(b"IBVERBS_PRIVATE_")?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_table_of_another_encoding_or_length_yields_what_is_there() {
        assert!(function_starts(0, &[]).is_empty());
        assert!(function_starts(0, &[1, 0x1b, 0x03, 0x1b, 0, 0, 0, 0, 1, 0, 0, 0]).is_empty());
        let mut header = vec![1, 0x1b, 0x03, 0x3b, 0, 0, 0, 0, 9, 0, 0, 0];
        header.extend_from_slice(&(-0x100_i32).to_le_bytes());
        header.extend_from_slice(&0_i32.to_le_bytes());
        // The count says nine, the table holds one.
        assert_eq!(function_starts(0x1000, &header), BTreeSet::from([0xf00]));
    }

    #[test]
    fn the_private_abi_is_read_from_the_string_table() {
        assert_eq!(private_abi(b"\0libc.so.6\0IBVERBS_PRIVATE_34\0"), Some(34));
        assert_eq!(private_abi(b"\0IBVERBS_PRIVATE_x\0"), None);
    }

    #[test]
    fn bytes_that_are_no_library_are_refused() {
        assert!(Library::parse(b"\x7fELF").is_err());
        assert!(Library::parse(&[0; 4096]).is_err());
    }
}
