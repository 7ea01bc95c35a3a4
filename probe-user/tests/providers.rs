//! What is known of the stripped provider libraries of Debian 12 (rdma-core 44.0-2), told from their files alone.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::path::Path;

use object::Object as _;
use probe_common::recipe::{Path as RecipePath, Side};
use probe_user::entry::{Class, Kernel};
use probe_user::providers::{FoundBy, Provider, Role, inspect, installed};

/// Neither rewrites nor emulates long nops: what holds here holds on every kernel since 5.1.
fn old_kernel() -> Kernel {
    Kernel::from_release("6.1.0-57-amd64", "x86_64")
}

fn provider(name: &str) -> Provider {
    let path = format!("/usr/lib/x86_64-linux-gnu/libibverbs/lib{name}-rdmav34.so");
    assert!(Path::new(&path).exists(), "{path} is not there: apt-get install ibverbs-providers");
    inspect(Path::new(&path), &old_kernel()).expect("inspect")
}

fn counts(provider: &Provider) -> BTreeMap<Role, usize> {
    let mut counts = BTreeMap::new();
    for function in &provider.functions {
        *counts.entry(function.role).or_default() += 1;
    }
    counts
}

#[test]
fn every_installed_provider_shows_its_post_and_poll_functions() {
    let paths = installed(Path::new("/"));
    assert!(paths.len() >= 17, "{paths:?}");
    for path in paths {
        let provider = inspect(&path, &old_kernel()).expect("inspect");
        assert_eq!(provider.private_abi, Some(34), "{}", path.display());
        assert!(provider.tables > 0, "{}", path.display());
        for role in [Role::PostSend, Role::PostRecv, Role::PollCq] {
            assert!(provider.of(role).next().is_some(), "{role:?} of {}", path.display());
        }
    }
}

#[test]
fn a_hit_on_the_classic_data_path_is_emulated_on_every_kernel() {
    // mana's are stubs that report "not supported"; hfi1 and ipath go through libibverbs.
    for name in [
        "bnxt_re",
        "cxgb4",
        "efa",
        "erdma",
        "hns",
        "irdma",
        "mlx4",
        "mlx5",
        "mthca",
        "ocrdma",
        "qedr",
        "rxe",
        "siw",
        "vmw_pvrdma",
    ] {
        let provider = provider(name);
        for role in [Role::PostSend, Role::PostRecv, Role::PollCq] {
            for function in provider.of(role) {
                assert_eq!(function.class, Some(Class::Emulated), "{role:?} of {name}");
                assert_eq!(function.probe_delta, Some(0), "{role:?} of {name}: a return probe is possible");
            }
        }
    }
}

#[test]
fn mlx5_has_two_classic_polls_and_a_family_of_extended_ones() {
    let counts = counts(&provider("mlx5"));
    assert_eq!(counts[&Role::PostSend], 1);
    assert_eq!(counts[&Role::PollCq], 2, "one per format of completion entries");
    // rdma-core's cq.c: version (2) × stalling (3) × locking (2) × clock update (2)
    assert_eq!(counts[&Role::StartPoll], 24);
    assert_eq!(counts[&Role::NextPoll], 4);
    assert_eq!(counts[&Role::EndPoll], 6);
}

/// Functions of Debian's libraries by name, as their source puts them into the tables and objects: see
/// docs/data-path.md. Lines of `library build-id` and, below each, of `role name offset`; hexadecimal.
const NAMED: &str = include_str!("data/provider-functions.txt");

/// The build ID of a library.
fn build_id(path: &Path) -> Option<String> {
    let bytes = std::fs::read(path).ok()?;
    let elf = object::File::parse(&*bytes).ok()?;
    Some(elf.build_id().ok()??.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[test]
fn what_is_found_in_stripped_libraries_is_what_their_source_names_and_nothing_else() {
    let (mut compared, mut wrong) = (0, Vec::new());
    for library in NAMED.split("\n\n").skip_while(|text| text.starts_with('#')) {
        let mut lines = library.lines();
        let (name, id) = lines.next().and_then(|head| head.split_once(' ')).expect("library and build ID");
        let path = format!("/usr/lib/x86_64-linux-gnu/libibverbs/lib{name}-rdmav34.so");
        if build_id(Path::new(&path)).as_deref() != Some(id) {
            eprintln!("{path} is another build than {id}: not compared");
            continue;
        }
        let mut names: BTreeMap<u64, BTreeSet<&str>> = BTreeMap::new();
        let mut named: BTreeSet<(String, u64)> = BTreeSet::new();
        for line in lines {
            let [role, symbol, at] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let at = u64::from_str_radix(at, 16).expect("an offset");
            names.entry(at).or_default().insert(symbol);
            named.insert((role.to_owned(), at));
        }
        let found: BTreeSet<(String, u64)> = provider(name)
            .functions
            .iter()
            .filter_map(|f| Some((f.role.name().to_owned(), f.file_offset?)))
            .collect();
        let tell = |of: &BTreeSet<(String, u64)>| -> Vec<String> {
            of.iter().map(|(role, at)| format!("{role} {at:x} {:?}", names.get(at))).collect()
        };
        let missing = tell(&named.difference(&found).cloned().collect());
        let strange = tell(&found.difference(&named).cloned().collect());
        if !missing.is_empty() || !strange.is_empty() {
            wrong.push(format!("{name}: not found {missing:?}, but {strange:?}"));
        }
        compared += 1;
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    println!("{compared} libraries");
}

#[test]
fn mlx5_fills_its_extended_queue_pairs_by_type() {
    let provider = provider("mlx5");
    let counts = counts(&provider);
    // rdma-core's qp.c: one frame, one builder per opcode but two of send, setters for RC/UC, UD/XRC/DC and Ethernet.
    for role in [Role::WrStart, Role::WrAbort, Role::WrRdmaWrite, Role::WrRdmaRead, Role::WrSendTso] {
        assert_eq!(counts[&role], 1, "{role:?}");
    }
    assert_eq!(counts[&Role::WrComplete], 2, "the other one refuses: a queue pair that may not send has it");
    assert_eq!(counts[&Role::WrSend], 2);
    for role in [Role::WrSetSge, Role::WrSetSgeList, Role::WrSetInlineData, Role::WrSetInlineDataList] {
        assert_eq!(counts[&role], 3, "{role:?}");
    }
    assert!(provider.of(Role::WrStart).all(|f| f.class == Some(Class::Emulated)));
}

#[test]
fn efa_irdma_and_rxe_show_the_extended_functions_they_have() {
    let efa = provider("efa");
    assert!(efa.of(Role::WrStart).count() == 1 && efa.of(Role::WrRdmaRead).count() == 1);
    assert_eq!(efa.of(Role::WrAtomicCmpSwp).count(), 0, "EFA has no atomics");
    assert_eq!(efa.of(Role::StartPoll).count(), 1);
    let irdma = provider("irdma");
    assert_eq!(irdma.of(Role::WrStart).count(), 0, "irdma 44 posts through post_send only");
    assert_eq!(irdma.of(Role::StartPoll).count(), 1);
    let rxe = counts(&provider("rxe"));
    for role in
        [Role::WrStart, Role::WrComplete, Role::WrAbort, Role::WrAtomicCmpSwp, Role::StartPoll, Role::EndPoll]
    {
        assert_eq!(rxe[&role], 1, "{role:?}");
    }
}

#[test]
fn a_table_reached_through_a_pointer_is_told_by_its_shape() {
    let hns = provider("hns");
    let posts: Vec<FoundBy> = hns.of(Role::PostSend).map(|f| f.found_by).collect();
    assert_eq!(posts, [FoundBy::Shape]);
}

#[test]
fn functions_of_libibverbs_are_named_as_such() {
    let rxe = provider("rxe");
    let notify = rxe.of(Role::ReqNotifyCq).next().expect("req_notify_cq");
    assert_eq!(notify.import.as_deref(), Some("ibv_cmd_req_notify_cq"));
    assert_eq!(notify.class, None);
}

#[test]
fn a_library_that_is_no_provider_has_no_data_path() {
    let libc = Path::new("/lib/x86_64-linux-gnu/libc.so.6");
    let provider = inspect(libc, &old_kernel()).expect("inspect");
    assert_eq!((provider.private_abi, provider.tables, provider.functions), (None, 0, vec![]));
}

#[test]
fn a_file_that_is_no_library_is_named_in_the_error() {
    let error = inspect(Path::new("/etc/hostname"), &old_kernel()).expect_err("no ELF");
    assert_eq!(error.to_string(), "\"/etc/hostname\" is not a 64-bit ELF library");
}

/// Providers with extended completion queues.
const EXTENDED: [&str; 6] = ["efa", "hns", "irdma", "mlx4", "mlx5", "rxe"];

#[test]
fn of_every_provider_with_extended_completion_queues_it_is_understood_whose_a_completion_is() {
    for path in installed(Path::new("/")) {
        let provider = inspect(&path, &old_kernel()).expect("inspect");
        let reads = &provider.reads;
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        let is_extended = EXTENDED.iter().any(|own| name == format!("lib{own}-rdmav34.so"));
        let functions = (reads.read_qp_num.len(), reads.read_opcode.len());
        assert_eq!(functions, if is_extended { (1, 1) } else { (0, 0) }, "{name}: {reads:?}");
        assert_eq!(provider.of(Role::StartPoll).next().is_some(), is_extended, "{name}");
        if is_extended {
            println!("{name}: {}; {}", reads.number.as_ref().unwrap(), reads.side.as_ref().unwrap());
        }
        assert_eq!((reads.number.is_some(), reads.side.is_some()), (is_extended, is_extended), "{name}");
    }
}

#[test]
fn what_mlx5_reads_is_what_its_source_says() {
    let recipe = provider("mlx5").reads.recipe;
    // `be32toh(cq->cqe64->sop_drop_qpn) & 0xffffff`
    assert_eq!((recipe.number.hops, recipe.number.last), (1, 56));
    assert_eq!((recipe.mask, recipe.shift, recipe.swapped != 0), (0xff_ffff, 0, true));
    // The upper half of `op_own`: responders' are 1 to 4; 0 is a requester's, whose opcode is the first byte of
    // `sop_drop_qpn`. What it is for UMR (0x25) and its likes stands in the queue.
    assert_eq!((recipe.side.at.to[0], recipe.side.at.last), (recipe.number.to[0], 63));
    for entry in [0x10, 0x21, 0x30, 0x4f] {
        assert_eq!(recipe.side.of(entry), Some(Side::Receive), "{entry:#x}");
    }
    assert!(recipe.more.has(0) && recipe.more.has(1) && recipe.side.of(0).is_none());
    assert_eq!(recipe.then.at.last, 56);
    for opcode in [0x08, 0x09, 0x0a, 0x0b, 0x10, 0x11, 0x12] {
        assert_eq!(recipe.then.of(opcode), Some(Side::Send), "{opcode:#x}");
    }
    assert_eq!(recipe.then.of(0x25), None);
}

/// A function of a loaded library that is given the address of a completion queue.
type Reader = extern "C" fn(*const u8) -> u32;

/// Loads a library and finds the function at an offset of its file.
fn load(path: &Path, offset: u64) -> Reader {
    let name = CString::new(path.to_str().expect("a path")).expect("no NUL");
    // SAFETY: the libraries of providers register themselves with libibverbs when loaded, and do nothing else.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY) };
    assert!(!library.is_null(), "{} cannot be loaded", path.display());
    let real = std::fs::canonicalize(path).expect("a file");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let address =
        maps.lines().filter(|line| line.ends_with(real.to_str().expect("a path"))).find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let hex = |text: &str| u64::from_str_radix(text, 16).expect("a number");
            let (start, end) = fields[0].split_once('-').expect("a range");
            let within = offset.checked_sub(hex(fields[2]))?;
            (fields[1].contains('x') && within < hex(end) - hex(start)).then(|| hex(start) + within)
        });
    let address = address.expect("its code is mapped") as usize as *const ();
    // SAFETY: a function begins there, with this signature; the library is never unloaded.
    unsafe { std::mem::transmute::<*const (), Reader>(address) }
}

/// A made-up completion queue and what it points to, with anything in it.
struct Memory {
    places: Vec<Vec<u8>>,
    state: u64,
}

impl Memory {
    const BYTES: usize = 4096;

    fn new() -> Self {
        Self { places: vec![vec![0; Self::BYTES]; 3], state: 1 }
    }

    /// Other numbers everywhere, but for the pointers on the way.
    fn fill(&mut self, paths: &[&RecipePath]) {
        for place in &mut self.places {
            for byte in place {
                // xorshift
                self.state ^= self.state << 13;
                self.state ^= self.state >> 7;
                self.state ^= self.state << 17;
                *byte = (self.state >> 24) as u8;
            }
        }
        for path in paths {
            for hop in 0..path.hops as usize {
                let next = self.places[hop + 1].as_ptr() as u64;
                let at = path.to[hop] as usize;
                self.places[hop][at..at + 8].copy_from_slice(&next.to_le_bytes());
            }
        }
    }

    fn at(&mut self, path: &RecipePath) -> &mut [u8] {
        &mut self.places[path.hops as usize][path.last as usize..]
    }
}

/// `IBV_WC_RECV` and the operations on tags; those of drivers are of send queues.
fn side_of(opcode: u32) -> Side {
    if (0x80..=0x86).contains(&opcode) { Side::Receive } else { Side::Send }
}

#[test]
fn what_is_read_of_a_made_up_completion_queue_is_what_the_providers_own_functions_return() {
    for name in EXTENDED {
        let provider = provider(name);
        let (reads, recipe) = (&provider.reads, &provider.reads.recipe);
        let read_qp_num = load(&provider.path, reads.read_qp_num[0]);
        let read_opcode = load(&provider.path, reads.read_opcode[0]);
        let paths = [&recipe.number, &recipe.side.at, &recipe.then.at];
        let mut memory = Memory::new();
        let mut told = BTreeMap::new();
        for round in 0..64 * 256_u32 {
            memory.fill(&paths);
            let [first, second] = [round as u8, (round >> 8) as u8];
            memory.at(&recipe.then.at)[0] = second;
            memory.at(&recipe.side.at)[0] = first;
            let bytes = memory.at(&recipe.number)[..4].try_into().expect("four bytes");
            let cq = memory.places[0].as_ptr();
            let number = recipe.number_of(u32::from_le_bytes(bytes));
            assert_eq!(number, Some(read_qp_num(cq)), "{name}: {bytes:02x?}");
            let second = memory.at(&recipe.then.at)[0];
            let side =
                recipe.side.of(first).or_else(|| recipe.then.of(second).filter(|_| recipe.more.has(first)));
            if let Some(side) = side {
                let opcode = read_opcode(cq);
                assert_eq!(side, side_of(opcode & 0xff), "{name}: {first:#x}, {second:#x}: {opcode:#x}");
            }
            *told.entry(side.map(|side| format!("{side:?}"))).or_insert(0) += 1;
        }
        println!("{name}: {told:?}");
        assert!(told.len() >= 2, "{name}: {told:?}");
    }
}
