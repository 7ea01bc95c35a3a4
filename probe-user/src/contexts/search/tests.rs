use std::collections::HashMap;

use super::*;

/// A made-up process: a heap, a library's code, and a stack that was never touched.
struct Made {
    words: HashMap<u64, u64>,
    absent: BTreeSet<u64>,
}

const HEAP: u64 = 0x10_0000;
const HEAP_END: u64 = 0x30_0000;
const CODE: u64 = 0x7f00_0000_0000;
const EMULATED: u64 = 0x7f10_0000_0000;
const MAPS: &str = "\
100000-300000 rw-p 00000000 00:00 0 [heap]
400000-500000 rw-p 00000000 00:00 0 [stack]
7f0000000000-7f0000010000 r-xp 00001000 08:01 77 /usr/lib/librxe-rdmav34.so
7f1000000000-7f1000010000 r-xp 00001000 08:01 78 /opt/librnic_emu.so
";

impl Memory for Made {
    fn present(&mut self, start: u64, pages: &mut [bool]) -> io::Result<()> {
        for (n, page) in pages.iter_mut().enumerate() {
            let at = start + n as u64 * PAGE;
            *page = (HEAP..HEAP_END).contains(&at) && !self.absent.contains(&at);
        }
        Ok(())
    }

    fn read(&mut self, address: u64, into: &mut [u8]) -> usize {
        assert!((HEAP..HEAP_END).contains(&address), "reads only what is present");
        for (n, bytes) in into.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *bytes = self.words.get(&(address + n as u64 * 8)).copied().unwrap_or(0).to_ne_bytes();
        }
        into.len()
    }
}

struct Links(HashMap<u32, &'static str>);

impl Descriptors for Links {
    fn link(&self, fd: u32) -> Option<String> {
        self.0.get(&fd).map(|s| (*s).to_owned())
    }
}

impl Made {
    fn new() -> Self {
        Self { words: HashMap::new(), absent: BTreeSet::new() }
    }

    fn set(&mut self, address: u64, fields: &[(u64, u64)]) {
        self.words.extend(fields.iter().map(|(field, value)| (address + field, *value)));
    }

    fn context(&mut self, at: u64, cmd_fd: u32, code: u64) {
        let device = HEAP + 0x40;
        self.set(device, &[(24, u64::from_ne_bytes(*b"rxe0\0\0\0\0"))]);
        self.set(at - 8, &[(0, 648)]);
        self.set(at, &[(0, device), (264, u64::from(cmd_fd)), (320, u64::MAX)]);
        for (field, _) in OPS {
            self.set(at, &[(field, code + field)]);
        }
    }

    fn cq(&mut self, at: u64, context: u64, handle: u64) {
        self.set(at, &[(0, context), (24, handle | 256 << 32)]);
    }

    fn qp(&mut self, at: u64, context: u64, number: u64, cq: u64) {
        let pd = at + 0x400;
        self.set(pd, &[(0, context)]);
        self.set(at, &[(0, context), (16, pd), (24, cq), (32, cq), (48, number << 32), (56, 3 | 2 << 32)]);
    }

    fn find(&mut self, confirmed: Option<&BTreeSet<u32>>, budget: &Budget) -> Result {
        let regions = Regions::parse(MAPS.as_bytes()).unwrap();
        let links = Links(HashMap::from([(5, "/dev/infiniband/uverbs0"), (7, "/tmp/notes")]));
        search(self, &regions, &links, confirmed, budget).unwrap()
    }
}

fn found(made: &mut Made) -> Result {
    made.find(None, &Budget::default())
}

#[test]
fn a_context_and_its_objects_are_found() {
    let mut made = Made::new();
    let (context, cq, qp) = (HEAP + 0x1008, HEAP + 0x3000, HEAP + 0x5000);
    made.context(context, 5, CODE);
    made.cq(cq, context, 2);
    made.qp(qp, context, 17, cq);
    let found = found(&mut made);
    assert_eq!(found.contexts.len(), 1);
    let c = &found.contexts[0];
    assert_eq!((c.address, c.device, c.device_name.as_str()), (context, Device::Uverbs, "rxe0"));
    assert_eq!(c.functions[&Role::PostSend], CODE + 208);
    assert_eq!(found.qps.iter().map(|q| (q.address, q.number)).collect::<Vec<_>>(), [(qp, 17)]);
    assert!(found.qps[0].functions.is_empty(), "classic");
    assert_eq!(found.cqs.iter().map(|c| (c.address, c.handle, c.cqe)).collect::<Vec<_>>(), [(cq, 2, 256)]);
    assert_eq!(found.cut, None);
}

#[test]
fn extended_objects_tell_their_functions() {
    let mut made = Made::new();
    let (context, cq, qp) = (HEAP + 0x1008, HEAP + 0x3000, HEAP + 0x5000);
    made.context(context, 5, CODE);
    made.cq(cq, context, 2);
    made.qp(qp, context, 17, cq);
    made.set(qp, &[(224, CODE + 0x500), (240, 0), (320, CODE + 0x600), (328, CODE + 0x700)]);
    made.set(cq, &[(144, CODE + 1), (152, CODE + 2), (160, CODE + 3)]);
    let found = found(&mut made);
    let roles: Vec<Role> = found.qps[0].functions.keys().copied().collect();
    assert_eq!(roles, [Role::WrStart, Role::WrComplete, Role::WrRdmaWrite]);
    assert_eq!(found.cqs[0].functions[&Role::EndPoll], CODE + 3);
}

#[test]
fn a_closed_descriptor_or_another_file_makes_no_context() {
    for fd in [6, 7] {
        let mut made = Made::new();
        made.context(HEAP + 0x1008, fd, CODE);
        assert!(found(&mut made).contexts.is_empty(), "{fd}");
    }
}

#[test]
fn an_emulated_device_needs_no_uverbs_descriptor() {
    let mut made = Made::new();
    made.context(HEAP + 0x1008, 7, EMULATED);
    assert_eq!(found(&mut made).contexts[0].device, Device::Emulated);
    let mut half = Made::new();
    half.context(HEAP + 0x1008, 7, EMULATED);
    half.set(HEAP + 0x1008, &[(96, CODE)]);
    assert!(found(&mut half).contexts.is_empty(), "operations of two libraries");
}

#[test]
fn of_copies_in_freed_memory_the_one_in_use_is_kept() {
    let mut made = Made::new();
    let (stale, live) = (HEAP + 0x1008, HEAP + 0x9008);
    made.context(stale, 5, CODE);
    made.context(live, 5, CODE);
    made.cq(HEAP + 0x3000, live, 2);
    made.qp(HEAP + 0x5000, live, 17, HEAP + 0x3000);
    made.cq(HEAP + 0x7000, stale, 2);
    let found = found(&mut made);
    assert_eq!(found.contexts.iter().map(|c| c.address).collect::<Vec<_>>(), [live]);
    assert!(found.cqs.iter().all(|c| c.context == live));
}

#[test]
fn queue_pairs_the_kernel_does_not_know_are_dropped() {
    let mut made = Made::new();
    let (context, cq) = (HEAP + 0x1008, HEAP + 0x3000);
    made.context(context, 5, CODE);
    made.cq(cq, context, 2);
    made.qp(HEAP + 0x5000, context, 17, cq);
    made.qp(HEAP + 0x6000, context, 18, cq);
    let found = made.find(Some(&BTreeSet::from([18])), &Budget::default());
    assert_eq!(found.qps.iter().map(|q| q.number).collect::<Vec<_>>(), [18]);
}

#[test]
fn a_queue_pair_whose_parts_point_elsewhere_is_none() {
    let context = HEAP + 0x1008;
    for spoil in
        [(16, 0), (16, HEAP + 0x8000), (24, CODE), (40, HEAP + 0x8000), (48, 1 << 58), (56, 9), (56, 5 << 32)]
    {
        let mut made = Made::new();
        made.context(context, 5, CODE);
        made.cq(HEAP + 0x3000, context, 2);
        made.qp(HEAP + 0x5000, context, 17, HEAP + 0x3000);
        made.set(HEAP + 0x5000, &[spoil]);
        assert!(found(&mut made).qps.is_empty(), "{spoil:x?}");
    }
}

#[test]
fn pages_that_are_not_present_are_never_read() {
    let mut made = Made::new();
    let context = HEAP + 0x1008;
    made.context(context, 5, CODE);
    made.absent.insert(HEAP + 0x5000);
    made.absent.insert(HEAP + 0x2000);
    made.cq(HEAP + 0x3000, context, 2);
    made.qp(HEAP + 0x5000, context, 17, HEAP + 0x3000);
    let found = found(&mut made);
    assert_eq!((found.contexts.len(), found.cqs.len(), found.qps.len()), (1, 1, 0));
}

#[test]
fn an_object_across_two_chunks_is_found_once() {
    let mut made = Made::new();
    let end_of_chunk = HEAP + CHUNK_PAGES as u64 * PAGE;
    let context = end_of_chunk - 96;
    made.context(context, 5, CODE);
    made.cq(end_of_chunk + PAGE, context, 2);
    let found = found(&mut made);
    assert_eq!((found.contexts.len(), found.cqs.len()), (1, 1));
}

#[test]
fn a_spent_budget_is_said() {
    let mut made = Made::new();
    made.context(HEAP + 0x1008, 5, CODE);
    let bytes = made.find(None, &Budget { bytes: 0, ..Budget::default() });
    assert_eq!((bytes.contexts.len(), bytes.cut), (0, Some(Cut::Bytes)));
    let time = made.find(None, &Budget { time: Duration::ZERO, ..Budget::default() });
    assert_eq!(time.cut, Some(Cut::Time));
}

#[test]
fn wild_words_end_in_nothing() {
    let mut made = Made::new();
    let mut seed = 0x9e37_79b9_u64;
    for at in (HEAP..HEAP + 0x4_0000).step_by(8) {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let word = match seed >> 61 {
            0 => u64::MAX,
            1 => HEAP + (seed >> 40) % 0x10_0000,
            2 => CODE + (seed >> 40) % 0x1_0000,
            _ => seed,
        };
        made.words.insert(at, word);
    }
    let found = found(&mut made);
    assert!(found.contexts.is_empty() && found.qps.is_empty());
}
