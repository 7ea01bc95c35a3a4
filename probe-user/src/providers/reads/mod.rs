//! What the functions behind `ibv_wc_read_qp_num` and `ibv_wc_read_opcode` read, told from their code.
//!
//! They are short, and read a completion entry: mlx5's follows a pointer in its completion queue to the entry, and takes
//! 24 bits of four bytes there. Where every way through such a function is understood and all return the same bits of
//! memory, a BPF program can read the same ([`Recipe`]). An opcode is looked up, by tables and comparisons; of it only
//! sends and receives are told apart ([`side`]).

mod compute;
mod machine;
mod side;
mod value;

use std::collections::BTreeSet;
use std::fmt;

use probe_common::recipe::{MOST_HOPS, Path, Recipe, Set, Split};
use serde::Serialize;

use super::extended::Readers;
use super::library::Library;
use machine::{Byte, Code, Machine, Pointer};
use side::side;
use value::{Bit, Word};

/// What a provider's file tells of whose a completion entry is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Reads {
    /// Functions behind `ibv_wc_read_qp_num`, by file offset.
    pub read_qp_num: Vec<u64>,
    /// Where they find the QP number; `None` where that is not understood, or they differ.
    pub number: Option<String>,
    /// Functions behind `ibv_wc_read_opcode`, by file offset.
    pub read_opcode: Vec<u64>,
    /// Which bytes tell sends from receives; `None` as above.
    pub side: Option<String>,
    /// The same for BPF programs.
    #[serde(skip)]
    pub recipe: Recipe,
}

/// Reads the code of a library's functions.
pub(super) fn reads(library: &Library, readers: &Readers) -> Reads {
    let code = Code::new(library);
    let number = agreed(&readers.qp_num, |function| number(&code, function));
    let side = agreed(&readers.opcode, |function| side(&code, function));
    let recipe = Recipe {
        number: number.map_or(Path::default(), |n| n.at),
        mask: number.map_or(0, |n| n.mask),
        shift: number.map_or(0, |n| n.shift),
        swapped: number.map_or(0, |n| n.swapped.into()),
        side: side.map_or(Split::default(), |side| side.first),
        more: side.map_or(Set::default(), |side| side.more),
        then: side.map_or(Split::default(), |side| side.then),
    };
    let offsets =
        |functions: &BTreeSet<u64>| functions.iter().filter_map(|f| library.file_offset(*f)).collect();
    Reads {
        read_qp_num: offsets(&readers.qp_num),
        number: number.map(|number| number.to_string()),
        read_opcode: offsets(&readers.opcode),
        side: side.map(|side| side.to_string()),
        recipe,
    }
}

/// What all of these functions tell, where each tells something and all the same: which of them a completion queue has
/// does not matter then.
fn agreed<T: PartialEq>(functions: &BTreeSet<u64>, of: impl Fn(u64) -> Option<T>) -> Option<T> {
    let mut all = functions.iter().map(|function| of(*function));
    let first = all.next()??;
    all.all(|other| other.as_ref() == Some(&first)).then_some(first)
}

/// Where a QP number is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Number {
    at: Path,
    mask: u32,
    shift: u32,
    swapped: bool,
}

fn number(code: &Code<'_>, function: u64) -> Option<Number> {
    let mut machine = Machine::new(code);
    let results: Option<Vec<Word>> = machine.results(function)?.into_iter().collect();
    let results = results?;
    let (first, others) = results.split_first()?;
    others.iter().all(|other| other.low(32) == first.low(32)).then(|| number_in(*first, &machine.bytes))?
}

/// The bits of memory that make up a number, where they are those of four bytes in order.
fn number_in(word: Word, bytes: &[Byte]) -> Option<Number> {
    let mut bits = Vec::new();
    for (place, bit) in (0_u32..32).zip(word.0) {
        match bit {
            Bit::Known(false) => {}
            Bit::Of { byte, bit } => bits.push((place, *bytes.get(usize::from(byte))?, u32::from(bit))),
            Bit::Known(true) | Bit::Unknown => return None,
        }
    }
    let (_, (pointer, _), _) = *bits.first()?;
    if bits.iter().any(|(_, (other, _), _)| *other != pointer) {
        return None;
    }
    let ats = || bits.iter().map(|(_, (_, at), _)| *at);
    let (lowest, highest) = (ats().min()?, ats().max()?);
    // Read as the provider reads it, so as not to reach into a page that may not be there.
    let aligned = lowest.div_euclid(4).checked_mul(4)?;
    let first = if highest.checked_sub(aligned)? < 4 { aligned } else { lowest };
    if highest.checked_sub(first)? >= 4 {
        return None;
    }
    let mask = bits.iter().fold(0, |mask, (place, ..)| mask | 1 << place);
    [false, true].into_iter().find_map(|swapped| {
        let place_in_memory = |at: i64, bit: u32| {
            let byte = u32::try_from(at - first).unwrap_or(0);
            8 * if swapped { 3 - byte } else { byte } + bit
        };
        let (place, (_, at), bit) = *bits.first()?;
        let shift = place_in_memory(at, bit).checked_sub(place)?;
        let in_order = bits.iter().all(|(place, (_, at), bit)| place_in_memory(*at, *bit) == place + shift);
        in_order.then_some(Number { at: path(pointer, first), mask, shift, swapped })
    })
}

fn path(pointer: Pointer, last: i64) -> Path {
    Path { hops: pointer.hops as u64, to: pointer.to, last }
}

/// `[[cq+0x1a0]+0x38]`.
struct Shown<'a>(&'a Path);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hops = usize::try_from(self.0.hops).unwrap_or(MOST_HOPS).min(MOST_HOPS);
        let displacements = self.0.to.iter().take(hops).chain([&self.0.last]);
        let mut text = "cq".to_owned();
        for at in displacements {
            let sign = if *at < 0 { '-' } else { '+' };
            text = format!("[{text}{sign}{:#x}]", at.unsigned_abs());
        }
        out.write_str(&text)
    }
}

impl fmt::Display for Number {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = if self.swapped { ", big-endian" } else { "" };
        let shift = if self.shift == 0 { String::new() } else { format!(" >> {}", self.shift) };
        write!(out, "{}{order}{shift} & {:#x}", Shown(&self.at), self.mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number_of(code: &[u8]) -> Option<Number> {
        number(&Code::new(&Library::of_code(code, &[])), 0x1000)
    }

    fn shown(code: &[u8]) -> Option<String> {
        number_of(code).map(|number| number.to_string())
    }

    #[test]
    fn a_number_behind_a_pointer_is_found_whatever_its_order_and_width() {
        // mov rax,[rdi+0x210]; mov eax,[rax+0x38]; bswap eax; and eax,0xffffff; ret
        let mlx5 =
            [0x48, 0x8b, 0x87, 0x10, 2, 0, 0, 0x8b, 0x40, 0x38, 0x0f, 0xc8, 0x25, 0xff, 0xff, 0xff, 0, 0xc3];
        assert_eq!(shown(&mlx5).unwrap(), "[[cq+0x210]+0x38], big-endian & 0xffffff");
        // mov rax,[rdi+0x170]; movzx eax,word [rax+6]; ret : read by the four bytes around, which lie in one page
        let efa = [0x48, 0x8b, 0x87, 0x70, 1, 0, 0, 0x0f, 0xb7, 0x40, 0x06, 0xc3];
        assert_eq!(shown(&efa).unwrap(), "[[cq+0x170]+0x4] >> 16 & 0xffff");
        // mov eax,[rdi+8]; shr eax,8; ret
        assert_eq!(shown(&[0x8b, 0x47, 0x08, 0xc1, 0xe8, 0x08, 0xc3]).unwrap(), "[cq+0x8] >> 8 & 0xffffff");
        // mov rax,[rdi-8]; mov eax,[rax]; ret
        assert_eq!(shown(&[0x48, 0x8b, 0x47, 0xf8, 0x8b, 0, 0xc3]).unwrap(), "[[cq-0x8]+0x0] & 0xffffffff");
    }

    #[test]
    fn what_is_no_number_in_memory_is_not_understood() {
        let all: [&[u8]; 8] = [
            // mov eax,[rdi+8]; add eax,[rdi+12]; ret
            &[0x8b, 0x47, 0x08, 0x03, 0x47, 0x0c, 0xc3],
            // mov eax,[rdi+8]; or eax,1; ret
            &[0x8b, 0x47, 0x08, 0x83, 0xc8, 0x01, 0xc3],
            // mov dword [rdi+8],0; mov eax,[rdi+12]; ret : writes
            &[0xc7, 0x47, 0x08, 0, 0, 0, 0, 0x8b, 0x47, 0x0c, 0xc3],
            // call +0; mov eax,[rdi+8]; ret
            &[0xe8, 0, 0, 0, 0, 0x8b, 0x47, 0x08, 0xc3],
            // cmp dword [rdi],0; mov eax,[rdi+8]; je +3; mov eax,[rdi+12]; ret : one or the other
            &[0x83, 0x3f, 0, 0x8b, 0x47, 0x08, 0x74, 0x03, 0x8b, 0x47, 0x0c, 0xc3],
            // jmp to itself
            &[0xeb, 0xfe],
            // xor eax,eax; ret
            &[0x31, 0xc0, 0xc3],
            // mov rax,[rdi]; mov rax,[rax]; mov rax,[rax]; mov eax,[rax]; ret : farther than is followed
            &[0x48, 0x8b, 0x07, 0x48, 0x8b, 0, 0x48, 0x8b, 0, 0x8b, 0, 0xc3],
        ];
        for code in all {
            assert_eq!(number_of(code), None, "{code:02x?}");
        }
        // Both arms the same: cmp dword [rdi],0; je +4; mov eax,[rdi+8]; ret; mov eax,[rdi+8]; ret
        let both = [0x83, 0x3f, 0, 0x74, 0x04, 0x8b, 0x47, 0x08, 0xc3, 0x8b, 0x47, 0x08, 0xc3];
        assert!(number_of(&both).is_some());
    }

    #[test]
    fn an_opcode_looked_up_in_a_table_tells_its_side_for_the_values_in_it() {
        // movzx ecx,byte [rdi+8]; cmp ecx,3; ja +11; lea rdx,[rip+0xff0]; movzx eax,byte [rdx+rcx]; ret; mov eax,0x8f; ret
        let code = [
            0x0f, 0xb6, 0x4f, 0x08, 0x83, 0xf9, 0x03, 0x77, 0x0c, 0x48, 0x8d, 0x15, 0xf0, 0x0f, 0, 0, 0x0f,
            0xb6, 0x04, 0x0a, 0xc3, 0xb8, 0x8f, 0, 0, 0, 0xc3,
        ];
        let library = Library::of_code(&code, &[0, 1, 0x80, 0x81]);
        let told = side(&Code::new(&library), 0x1000).unwrap();
        use probe_common::recipe::Side::{Receive, Send};
        let sides: Vec<_> = (0..5).map(|value| told.first.of(value)).collect();
        assert_eq!(sides, [Some(Send), Some(Send), Some(Receive), Some(Receive), None]);
        // Behind the end of what the file holds nothing is known.
        let library = Library::of_code(&code, &[0, 1, 0x80]);
        let told = side(&Code::new(&library), 0x1000).unwrap();
        assert_eq!(told.first.of(3), None);
    }

    #[test]
    fn any_bytes_are_read_to_an_end_without_a_panic() {
        let mut state = 7_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        };
        for _ in 0..500 {
            // Many of the instructions that are understood begin with one of these.
            let common =
                [0x48, 0x8b, 0x0f, 0xb6, 0x83, 0x74, 0x75, 0x25, 0xc1, 0x03, 0x2b, 0x3b, 0x8d, 0x41, 0x87];
            let code: Vec<u8> =
                (0..48)
                    .map(|_| {
                        if random() & 1 == 0 {
                            common[usize::from(random()) % common.len()]
                        } else {
                            random()
                        }
                    })
                    .collect();
            let library = Library::of_code(&code, &[]);
            let code = Code::new(&library);
            let _ = (number(&code, 0x1000), side(&code, 0x1000));
        }
    }
}
