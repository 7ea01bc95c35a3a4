//! The kernel's BTF: field offsets and prototypes.
//!
//! The format is documented in the kernel's `Documentation/bpf/btf.rst`. A module's BTF continues the numbering of
//! types and strings of vmlinux's.

use std::collections::HashMap;

const MAGIC: u16 = 0xeb9f;
const KIND_ARRAY: u32 = 3;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_TYPEDEF: u32 = 8;
const KIND_VOLATILE: u32 = 9;
const KIND_CONST: u32 = 10;
const KIND_RESTRICT: u32 = 11;
const KIND_FUNC: u32 = 12;
const KIND_FUNC_PROTO: u32 = 13;
const KIND_VAR: u32 = 14;
const KIND_DATASEC: u32 = 15;
const KIND_DECL_TAG: u32 = 17;
const KIND_TYPE_TAG: u32 = 18;
const KIND_ENUM64: u32 = 19;
const KIND_INT: u32 = 1;

/// Anonymous structures are searched this deep.
const MAX_NESTING: u32 = 8;

/// Why BTF could not be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BtfError {
    /// It does not begin as BTF does.
    #[error("not BTF of this machine's byte order")]
    Magic,
    /// It ends too early or contradicts itself.
    #[error("malformed BTF at byte {0}")]
    Malformed(usize),
}

/// Parsed BTF of vmlinux or, with vmlinux as its base, of a module.
#[derive(Debug)]
pub struct Btf<'base> {
    base: Option<&'base Btf<'base>>,
    data: Vec<u8>,
    strings_at: usize,
    strings_len: usize,
    /// Start of each type of this object; the first has the number [`Btf::first`].
    types: Vec<usize>,
    structs: HashMap<String, u32>,
    functions: HashMap<String, u32>,
}

#[derive(Debug, Clone, Copy)]
struct Type {
    name: u32,
    kind: u32,
    members: usize,
    bitfields: bool,
    /// Size or the type referred to, by kind.
    size_or_type: u32,
    /// What follows the fixed part.
    at: usize,
}

impl<'base> Btf<'base> {
    /// Parses BTF; `base` is vmlinux's for a module's. Only structures and functions that are `wanted` can be asked
    /// for later: vmlinux has a hundred thousand, and we need a dozen.
    ///
    /// # Errors
    /// [`BtfError`] when the data is not BTF.
    pub fn parse(
        data: Vec<u8>,
        base: Option<&'base Btf<'base>>,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<Self, BtfError> {
        let short = |at| move || BtfError::Malformed(at);
        if u16_at(&data, 0) != Some(MAGIC) {
            return Err(BtfError::Magic);
        }
        let field = |at| u32_at(&data, at).map(|n| n as usize).ok_or(BtfError::Malformed(at));
        let header_len = field(4)?;
        let types_at = header_len.checked_add(field(8)?).ok_or_else(short(8))?;
        let types_end = types_at.checked_add(field(12)?).ok_or_else(short(12))?;
        let strings_at = header_len.checked_add(field(16)?).ok_or_else(short(16))?;
        let strings_len = field(20)?;
        if types_end > data.len() || strings_at.checked_add(strings_len).is_none_or(|end| end > data.len()) {
            return Err(BtfError::Malformed(0));
        }
        let mut btf = Self {
            base,
            data,
            strings_at,
            strings_len,
            types: Vec::new(),
            structs: HashMap::new(),
            functions: HashMap::new(),
        };
        let mut at = types_at;
        while at < types_end {
            let found = btf.type_at(at).ok_or(BtfError::Malformed(at))?;
            let id = btf.first() + btf.types.len() as u32;
            btf.types.push(at);
            if matches!(found.kind, KIND_STRUCT | KIND_FUNC)
                && let Some(name) = btf.string(found.name).filter(|name| wanted(name)).map(str::to_owned)
            {
                let names = if found.kind == KIND_STRUCT { &mut btf.structs } else { &mut btf.functions };
                names.entry(name).or_insert(id);
            }
            at = found.at.checked_add(tail_len(&found)).ok_or(BtfError::Malformed(at))?;
        }
        Ok(btf)
    }

    /// Offset in bytes of a field, `outer.inner` for a field of a field; `None` where there is no such field or it is
    /// a bit field. Fields of anonymous members are found as the compiler finds them.
    pub fn offset(&self, structure: &str, path: &str) -> Option<u32> {
        let mut id = self.struct_id(structure)?;
        let mut offset = 0u32;
        for name in path.split('.') {
            let (bits, inner) = self.member(id, name, 0)?;
            if bits % 8 != 0 {
                return None;
            }
            offset = offset.checked_add(bits / 8)?;
            id = inner;
        }
        Some(offset)
    }

    /// Parameter names of a function of this object (not of its base); `None` where it has none of that name.
    pub fn parameters(&self, function: &str) -> Option<Vec<String>> {
        let function = self.by_id(*self.functions.get(function)?)?;
        let prototype = self.by_id(function.size_or_type)?;
        if prototype.kind != KIND_FUNC_PROTO {
            return None;
        }
        (0..prototype.members)
            .map(|i| {
                let name = u32_at(&self.data_of(function.size_or_type)?.data, prototype.at + i * 8)?;
                Some(self.string(name)?.to_owned())
            })
            .collect()
    }

    fn struct_id(&self, name: &str) -> Option<u32> {
        self.structs.get(name).copied().or_else(|| self.base?.struct_id(name))
    }

    fn first(&self) -> u32 {
        // Type 0 is void and not stored.
        self.base.map_or(1, |base| base.first() + base.types.len() as u32)
    }

    fn data_of(&self, id: u32) -> Option<&Btf<'base>> {
        if id >= self.first() { Some(self) } else { self.base?.data_of(id) }
    }

    fn by_id(&self, id: u32) -> Option<Type> {
        let owner = self.data_of(id)?;
        let index = id.checked_sub(owner.first())?;
        owner.type_at(*owner.types.get(index as usize)?)
    }

    fn type_at(&self, at: usize) -> Option<Type> {
        let info = u32_at(&self.data, at + 4)?;
        Some(Type {
            name: u32_at(&self.data, at)?,
            kind: info >> 24 & 0x1f,
            members: (info & 0xffff) as usize,
            bitfields: info >> 31 != 0,
            size_or_type: u32_at(&self.data, at + 8)?,
            at: at + 12,
        })
    }

    fn string(&self, at: u32) -> Option<&str> {
        let before = self.base.map_or(0, Btf::strings_end);
        let at = at as usize;
        if at < before {
            return self.base?.string(at as u32);
        }
        let start = self.strings_at + (at - before);
        let rest = self.data.get(start..self.strings_at + self.strings_len)?;
        std::str::from_utf8(&rest[..memchr::memchr(0, rest)?]).ok()
    }

    fn strings_end(&self) -> usize {
        self.base.map_or(0, Btf::strings_end) + self.strings_len
    }

    /// Offset in bits and type of a member.
    fn member(&self, id: u32, name: &str, nesting: u32) -> Option<(u32, u32)> {
        let id = self.unwrapped(id)?;
        let structure = self.by_id(id)?;
        if nesting > MAX_NESTING || !matches!(structure.kind, KIND_STRUCT | KIND_UNION) {
            return None;
        }
        let owner = self.data_of(id)?;
        for i in 0..structure.members {
            let at = structure.at + i * 12;
            let member_name = owner.string(u32_at(&owner.data, at)?)?;
            let member_type = u32_at(&owner.data, at + 4)?;
            let raw = u32_at(&owner.data, at + 8)?;
            // With bit fields about, the upper byte is the field's width.
            let bits = if structure.bitfields { raw & 0x00ff_ffff } else { raw };
            if member_name == name {
                return Some((bits, member_type));
            }
            if member_name.is_empty()
                && let Some((inner, found)) = self.member(member_type, name, nesting + 1)
            {
                return Some((bits.checked_add(inner)?, found));
            }
        }
        None
    }

    /// The type behind typedefs and qualifiers.
    fn unwrapped(&self, mut id: u32) -> Option<u32> {
        for _ in 0..16 {
            let found = self.by_id(id)?;
            match found.kind {
                KIND_TYPEDEF | KIND_VOLATILE | KIND_CONST | KIND_RESTRICT | KIND_TYPE_TAG => {
                    id = found.size_or_type;
                }
                _ => return Some(id),
            }
        }
        None
    }
}

fn tail_len(found: &Type) -> usize {
    match found.kind {
        KIND_INT | KIND_VAR | KIND_DECL_TAG => 4,
        KIND_ARRAY => 12,
        KIND_STRUCT | KIND_UNION | KIND_DATASEC | KIND_ENUM64 => found.members * 12,
        KIND_ENUM | KIND_FUNC_PROTO => found.members * 8,
        _ => 0,
    }
}

fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(data.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(data.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BTF of: `int`; `struct { int b; }` anonymous; `struct s { int a; <anonymous>; }`; `int f(int addr, int size)`.
    fn sample() -> Vec<u8> {
        let strings = b"\0int\0s\0a\0b\0f\0addr\0size\0";
        let at = |name: &str| {
            let mut wanted = vec![0];
            wanted.extend_from_slice(name.as_bytes());
            wanted.push(0);
            memchr::memmem::find(strings, &wanted).map_or(0, |i| i as u32 + 1)
        };
        let mut types = Vec::<u32>::new();
        types.extend([at("int"), KIND_INT << 24, 4, 32]);
        types.extend([0, KIND_STRUCT << 24 | 1, 4, at("b"), 1, 0]);
        types.extend([at("s"), KIND_STRUCT << 24 | 2, 8, at("a"), 1, 0, 0, 2, 32]);
        types.extend([0, KIND_FUNC_PROTO << 24 | 2, 1, at("addr"), 1, at("size"), 1]);
        types.extend([at("f"), KIND_FUNC << 24, 4]);
        let types: Vec<u8> = types.iter().flat_map(|n| n.to_ne_bytes()).collect();
        let mut data = Vec::new();
        data.extend(MAGIC.to_ne_bytes());
        data.extend([1, 0]);
        for n in [24, 0, types.len() as u32, types.len() as u32, strings.len() as u32] {
            data.extend(n.to_ne_bytes());
        }
        data.extend(types);
        data.extend_from_slice(strings);
        data
    }

    #[test]
    fn fields_of_anonymous_members_are_found_at_their_place() {
        let btf = Btf::parse(sample(), None, &|_| true).unwrap();
        assert_eq!(btf.offset("s", "a"), Some(0));
        assert_eq!(btf.offset("s", "b"), Some(4));
        assert_eq!(btf.offset("s", "c"), None);
        assert_eq!(btf.offset("t", "a"), None);
    }

    #[test]
    fn a_prototype_tells_the_names_of_its_parameters() {
        let btf = Btf::parse(sample(), None, &|_| true).unwrap();
        assert_eq!(btf.parameters("f"), Some(vec!["addr".to_owned(), "size".to_owned()]));
        assert_eq!(btf.parameters("g"), None);
    }

    #[test]
    fn a_module_continues_the_numbers_and_strings_of_its_base() {
        let base = Btf::parse(sample(), None, &|_| true).unwrap();
        // struct m { struct s inner; } with "m" and "inner" after the base's strings, and type 3 from the base.
        let before = base.strings_end() as u32;
        let strings = b"\0m\0inner\0";
        let types: Vec<u8> = [before + 1, KIND_STRUCT << 24 | 1, 8, before + 3, 3, 64]
            .iter()
            .flat_map(|n: &u32| n.to_ne_bytes())
            .collect();
        let mut data = Vec::new();
        data.extend(MAGIC.to_ne_bytes());
        data.extend([1, 0]);
        for n in [24, 0, types.len() as u32, types.len() as u32, strings.len() as u32] {
            data.extend(n.to_ne_bytes());
        }
        data.extend(types);
        data.extend_from_slice(strings);
        let module = Btf::parse(data, Some(&base), &|_| true).unwrap();
        assert_eq!(module.offset("m", "inner"), Some(8));
        assert_eq!(module.offset("m", "inner.b"), Some(12));
        assert_eq!(module.offset("s", "a"), Some(0));
    }

    #[test]
    fn damaged_btf_is_an_error_and_never_a_panic() {
        let good = sample();
        for cut in 0..good.len() {
            let _ = Btf::parse(good[..cut].to_vec(), None, &|_| true);
        }
        for at in 0..good.len() {
            for value in [0u8, 1, 0x7f, 0xff] {
                let mut damaged = good.clone();
                damaged[at] = value;
                if let Ok(btf) = Btf::parse(damaged, None, &|_| true) {
                    let _ = (btf.offset("s", "b"), btf.parameters("f"));
                }
            }
        }
        assert_eq!(Btf::parse(Vec::new(), None, &|_| true).err(), Some(BtfError::Magic));
    }

    #[test]
    fn this_kernels_task_struct_has_the_fields_we_read() {
        let Ok(data) = std::fs::read("/sys/kernel/btf/vmlinux") else {
            eprintln!("skipped: this kernel has no BTF");
            return;
        };
        let btf = Btf::parse(data, None, &|_| true).unwrap();
        for path in ["group_leader", "start_boottime", "tgid", "signal", "min_flt", "comm"] {
            assert!(btf.offset("task_struct", path).is_some_and(|offset| offset > 0), "{path}");
        }
        assert!(btf.offset("signal_struct", "live").is_some());
    }
}
