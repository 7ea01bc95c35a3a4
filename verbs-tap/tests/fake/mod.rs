//! A provider made of memory: contexts, queue pairs and completion queues whose functions do what a test tells them.
//!
//! The tap is loaded as programs get it, from the built library, and given the context through `verbs_tap_adopt`.
#![allow(
    dead_code,
    clippy::undocumented_unsafe_blocks,
    reason = "each test program uses a part of this room, and every object in it is leaked on purpose"
)]

#[path = "../../src/abi.rs"]
pub mod abi;

use std::ffi::{CString, c_int, c_void};
use std::path::PathBuf;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed};

use abi::{
    Context, Cq, CqEx, Object, Qp, QpEx, QpInitAttrEx, RecvWr, SendWr, Sge, Wc, before_context, op, wr,
};

/// Errno the fake provider leaves behind when it fails.
pub const LEFT_ERRNO: i32 = 4242;

/// The library under test.
pub fn library() -> PathBuf {
    testkit::built("verbs-tap", "libverbs_tap.so")
}

/// A function of the loaded tap.
pub fn tap_symbol(name: &str) -> usize {
    static HANDLE: OnceLock<usize> = OnceLock::new();
    let handle = *HANDLE.get_or_init(|| {
        let path = CString::new(library().to_str().expect("a path")).expect("no NUL");
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "cannot load {}: cargo build -p verbs-tap", library().display());
        handle as usize
    });
    let name = CString::new(name).expect("no NUL");
    let at = unsafe { libc::dlsym(handle as *mut c_void, name.as_ptr()) };
    assert!(!at.is_null(), "{name:?}");
    at as usize
}

/// Taps a context, as when one comes into the program by a way the tap does not see.
pub fn adopt(context: *mut Context) {
    let adopt: unsafe extern "C" fn(*mut Context) =
        unsafe { std::mem::transmute(tap_symbol("verbs_tap_adopt")) };
    unsafe { adopt(context) };
}

/// A context with a `verbs_context` before it.
#[repr(C)]
struct Whole {
    before: [AtomicUsize; 40],
    context: Context,
}

/// A new context of the fake provider.
pub fn context() -> *mut Context {
    let whole = Box::leak(Box::new(unsafe { std::mem::zeroed::<Whole>() }));
    whole.context.abi_compat = usize::MAX;
    whole.before[40 - before_context::SIZE].store(size_of::<Whole>(), Relaxed);
    whole.before[40 - before_context::CREATE_QP_EX].store(create_qp_ex as *const () as usize, Relaxed);
    whole.before[40 - before_context::CREATE_CQ_EX].store(create_cq_ex as *const () as usize, Relaxed);
    let set = |place: usize, function: usize| whole.context.ops[place].store(function, Relaxed);
    set(op::POST_SEND, post_send as *const () as usize);
    set(op::POST_RECV, post_recv as *const () as usize);
    set(op::POST_SRQ_RECV, post_recv as *const () as usize);
    set(op::POLL_CQ, poll_cq as *const () as usize);
    set(op::REQ_NOTIFY_CQ, req_notify_cq as *const () as usize);
    &mut whole.context
}

/// A queue pair and what it does.
#[repr(C)]
pub struct FakeQp {
    pub ex: QpEx,
    pub atomic_write: AtomicUsize,
    /// Work requests accepted before one is refused; negative: none is.
    pub accepts: AtomicI64,
    /// Refuses without naming the work request.
    pub names_bad: AtomicU64,
    /// Work requests seen by the provider.
    pub seen: AtomicU64,
}

/// A completion queue and what it returns.
#[repr(C)]
pub struct FakeCq {
    pub ex: CqEx,
    /// What the next polls find.
    pub ready: AtomicI64,
    /// Status of what they find.
    pub status: AtomicU64,
}

pub fn qp(context: *mut Context, number: u32) -> &'static FakeQp {
    let qp = Box::leak(Box::new(unsafe { std::mem::zeroed::<FakeQp>() }));
    qp.ex.qp.context = context;
    qp.ex.qp.qp_num = number;
    qp.accepts.store(-1, Relaxed);
    qp.names_bad.store(1, Relaxed);
    for (place, call) in qp.ex.calls.iter().enumerate() {
        let function = match place {
            wr::COMPLETE => wr_complete as *const () as usize,
            _ => nothing as *const () as usize,
        };
        call.store(function, Relaxed);
    }
    qp
}

pub fn cq(context: *mut Context, handle: u32) -> &'static FakeCq {
    let cq = Box::leak(Box::new(unsafe { std::mem::zeroed::<FakeCq>() }));
    cq.ex.cq.context = context;
    cq.ex.cq.handle = handle;
    let calls =
        [start_poll as *const () as usize, next_poll as *const () as usize, end_poll as *const () as usize];
    for (call, function) in cq.ex.calls.iter().zip(calls) {
        call.store(function, Relaxed);
    }
    cq
}

// The objects are shared between threads as a program's are; what changes in them is atomic.
unsafe impl Sync for FakeQp {}
unsafe impl Sync for FakeCq {}

impl FakeQp {
    pub fn address(&self) -> usize {
        ptr::from_ref(self) as usize
    }

    fn context(&self) -> &Context {
        unsafe { &*self.ex.qp.context }
    }

    /// `ibv_post_send`, as the header's inline function has it.
    pub fn post_send(&self, wr: *const SendWr, bad: *mut *mut SendWr) -> c_int {
        let function = self.context().ops[op::POST_SEND].load(Relaxed);
        let call: unsafe extern "C-unwind" fn(usize, *const SendWr, *mut *mut SendWr) -> c_int =
            unsafe { std::mem::transmute(function) };
        unsafe { call(self.address(), wr, bad) }
    }

    /// `ibv_post_recv`.
    pub fn post_recv(&self, wr: *const RecvWr, bad: *mut *mut RecvWr) -> c_int {
        let function = self.context().ops[op::POST_RECV].load(Relaxed);
        let call: unsafe extern "C-unwind" fn(usize, *const RecvWr, *mut *mut RecvWr) -> c_int =
            unsafe { std::mem::transmute(function) };
        unsafe { call(self.address(), wr, bad) }
    }

    /// One of the functions of the extended API without arguments.
    pub fn extended(&self, place: usize) -> c_int {
        let call: unsafe extern "C-unwind" fn(usize) -> c_int =
            unsafe { std::mem::transmute(self.ex.calls[place].load(Relaxed)) };
        unsafe { call(self.address()) }
    }

    /// One with integer arguments.
    pub fn extended3(&self, place: usize, a: u64, b: u64, c: u64) {
        let call: unsafe extern "C-unwind" fn(usize, u64, u64, u64) =
            unsafe { std::mem::transmute(self.ex.calls[place].load(Relaxed)) };
        unsafe { call(self.address(), a, b, c) };
    }

    pub fn set_flags(&self, flags: u32) {
        unsafe { (&raw const self.ex.wr_flags).cast_mut().write(flags) };
    }
}

impl FakeCq {
    pub fn address(&self) -> usize {
        ptr::from_ref(self) as usize
    }

    /// `ibv_poll_cq`.
    pub fn poll(&self, wc: &mut [Wc]) -> c_int {
        let function = unsafe { &*self.ex.cq.context }.ops[op::POLL_CQ].load(Relaxed);
        let call: unsafe extern "C-unwind" fn(usize, c_int, *mut Wc) -> c_int =
            unsafe { std::mem::transmute(function) };
        unsafe { call(self.address(), c_int::try_from(wc.len()).expect("few"), wc.as_mut_ptr()) }
    }

    /// One of `start_poll`, `next_poll`, `end_poll`.
    pub fn extended(&self, place: usize) -> c_int {
        let call: unsafe extern "C-unwind" fn(usize, usize) -> c_int =
            unsafe { std::mem::transmute(self.ex.calls[place].load(Relaxed)) };
        unsafe { call(self.address(), 0) }
    }
}

/// Inline creator through the `verbs_context`.
pub fn create_ex(context: *mut Context, words: usize, attr: *mut c_void) -> usize {
    let at = unsafe { &*context.cast::<AtomicUsize>().sub(words) };
    let call: unsafe extern "C-unwind" fn(*mut Context, *mut c_void) -> usize =
        unsafe { std::mem::transmute(at.load(Relaxed)) };
    unsafe { call(context, attr) }
}

/// Work requests in one array, chained.
pub fn chain(count: usize, length: u32, mut flags: impl FnMut(usize) -> u32) -> (Vec<SendWr>, Box<Sge>) {
    let mut sge = Box::new(Sge { addr: 0x1000, length, lkey: 1 });
    let list: *mut Sge = &mut *sge;
    let mut wrs: Vec<SendWr> = (0..count)
        .map(|n| SendWr {
            wr_id: n as u64,
            next: ptr::null_mut(),
            sg_list: list,
            num_sge: 1,
            opcode: abi::opcode::RDMA_WRITE,
            send_flags: flags(n),
        })
        .collect();
    let base = wrs.as_mut_ptr();
    for n in 1..count {
        wrs[n - 1].next = unsafe { base.add(n) };
    }
    (wrs, sge)
}

unsafe extern "C-unwind" fn post_send(qp: *mut Qp, mut wr: *mut SendWr, bad: *mut *mut SendWr) -> c_int {
    let qp = unsafe { &*qp.cast::<FakeQp>() };
    let mut room = qp.accepts.load(Relaxed);
    while !wr.is_null() {
        if room == 0 {
            unsafe {
                if qp.names_bad.load(Relaxed) != 0 {
                    *bad = wr;
                }
                *libc::__errno_location() = LEFT_ERRNO;
            }
            return libc::ENOMEM;
        }
        room -= 1;
        qp.seen.fetch_add(1, Relaxed);
        wr = unsafe { (*wr).next };
    }
    0
}

unsafe extern "C-unwind" fn post_recv(
    _object: *mut Object,
    mut wr: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    let mut first = true;
    while !wr.is_null() {
        let this = unsafe { &*wr };
        // Refuses the work request whose id is 666, wherever it stands.
        if this.wr_id == 666 {
            unsafe { *bad = wr };
            return if first { libc::EINVAL } else { libc::ENOMEM };
        }
        first = false;
        wr = this.next;
    }
    0
}

unsafe extern "C-unwind" fn poll_cq(cq: *mut Cq, entries: c_int, wc: *mut Wc) -> c_int {
    let cq = unsafe { &*cq.cast::<FakeCq>() };
    let ready = cq.ready.load(Relaxed);
    if ready < 0 {
        unsafe { *libc::__errno_location() = LEFT_ERRNO };
        return -1;
    }
    let n = c_int::try_from(ready).expect("few").min(entries);
    for index in 0..n {
        unsafe { (*wc.add(index as usize)).status = u32::try_from(cq.status.load(Relaxed)).expect("small") };
    }
    cq.ready.fetch_sub(i64::from(n), Relaxed);
    n
}

unsafe extern "C-unwind" fn req_notify_cq(_cq: *mut Cq, solicited: c_int) -> c_int {
    solicited
}

unsafe extern "C-unwind" fn nothing() {}

pub unsafe extern "C-unwind" fn wr_complete(qp: *mut Qp) -> c_int {
    let qp = unsafe { &*qp.cast::<FakeQp>() };
    if qp.accepts.load(Relaxed) == 0 { libc::ENOMEM } else { 0 }
}

unsafe extern "C-unwind" fn start_poll(cq: *mut Cq, _attr: usize) -> c_int {
    unsafe { next_poll(cq) }
}

unsafe extern "C-unwind" fn next_poll(cq: *mut Cq) -> c_int {
    let ex = cq.cast::<FakeCq>();
    let cq = unsafe { &*ex };
    if cq.ready.load(Relaxed) == 0 {
        return libc::ENOENT;
    }
    cq.ready.fetch_sub(1, Relaxed);
    let status = u32::try_from(cq.status.load(Relaxed)).expect("small");
    unsafe { (&raw mut (*ex).ex.status).write(status) };
    0
}

unsafe extern "C-unwind" fn end_poll(_cq: *mut Cq) {}

unsafe extern "C-unwind" fn create_qp_ex(context: *mut Context, _attr: *mut QpInitAttrEx) -> *mut Qp {
    ptr::from_ref(qp(context, 77)).cast_mut().cast()
}

unsafe extern "C-unwind" fn create_cq_ex(context: *mut Context, _attr: *mut c_void) -> *mut CqEx {
    ptr::from_ref(cq(context, 78)).cast_mut().cast()
}
