//! What an attached probe is told about the place it sits at: 64 bits, carried by the attachment's cookie.

use crate::call::CallId;

/// Where the arguments of the probed function lie, and what is to be read of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Layout {
    /// Nothing to read.
    Bare = 0,
    /// First argument is the object: `f(object, …)`.
    Object = 1,
    /// The object is what comes back: `object *f(…)`.
    ReturnedObject = 2,
    /// `ibv_reg_mr(pd, addr, length, access)`.
    RegMr = 3,
    /// `ibv_reg_mr_iova(pd, addr, length, iova, access)` and `_iova2`.
    RegMrIova = 4,
    /// `ibv_reg_mr_ex(pd, ibv_mr_init_attr *)`.
    RegMrEx = 5,
    /// `ibv_cmd_reg_mr(pd, addr, length, iova, access, verbs_mr *, …)`.
    CmdRegMr = 6,
    /// `ibv_reg_dmabuf_mr(pd, offset, length, iova, fd, access)`.
    RegDmabufMr = 7,
    /// `ibv_cmd_reg_dm_mr(pd, dm, offset, length, access, verbs_mr *, …)`.
    CmdRegDmMr = 8,
    /// `ibv_rereg_mr(mr, flags, pd, addr, length, access)`.
    ReregMr = 9,
    /// `ibv_dereg_mr(mr)`.
    DeregMr = 10,
    /// `ibv_create_qp(pd, ibv_qp_init_attr *)`.
    CreateQp = 11,
    /// `ibv_cmd_create_qp(pd, ibv_qp *, ibv_qp_init_attr *, …)`.
    CmdCreateQp = 12,
    /// `ibv_cmd_create_qp_ex(context, verbs_qp *, ibv_qp_init_attr_ex *, …)` and `_ex2`.
    CmdCreateQpEx = 13,
    /// `create_qp_ex(context, ibv_qp_init_attr_ex *)`.
    CreateQpEx = 14,
    /// `ibv_destroy_qp(qp)`.
    DestroyQp = 15,
    /// `ibv_modify_qp(qp, ibv_qp_attr *, mask)`.
    ModifyQp = 16,
    /// `ibv_create_cq(context, cqe, cq_context, channel, vector)`.
    CreateCq = 17,
    /// `ibv_cmd_create_cq(context, cqe, channel, vector, ibv_cq *, …)`.
    CmdCreateCq = 18,
    /// `ibv_cmd_create_cq_ex(context, ibv_cq_init_attr_ex *, verbs_cq *, …)`.
    CmdCreateCqEx = 19,
    /// `ibv_cmd_create_cq_ex2(context, ibv_cq_init_attr_ex *, parameters, verbs_cq *, …)`.
    CmdCreateCqEx2 = 20,
    /// `create_cq_ex(context, ibv_cq_init_attr_ex *)`.
    CreateCqEx = 21,
    /// `ibv_resize_cq(cq, cqe)` and `ibv_destroy_cq(cq)`: size and channel are read from the object.
    Cq = 22,
    /// `ibv_create_srq(pd, ibv_srq_init_attr *)`.
    CreateSrq = 23,
    /// `ibv_cmd_create_srq_ex(context, verbs_srq *, ibv_srq_init_attr_ex *, …)`.
    CmdCreateSrqEx = 24,
    /// `ibv_get_cq_event(channel, …)`.
    GetCqEvent = 25,
    /// `ibv_ack_cq_events(cq, n)`.
    AckCqEvents = 26,
    /// `ibv_get_async_event(context, ibv_async_event *)`.
    GetAsyncEvent = 27,
    /// `rdma_connect(id, …)` and its like.
    Cm = 28,
    /// `rdma_get_cm_event(channel, rdma_cm_event **)`.
    GetCmEvent = 29,
    /// A kernel function on user memory; which arguments are address and size is in the hook.
    KernelRange = 30,
    /// `ib_umem_release(umem)`; address and length are read from the object.
    KernelUmem = 31,
}

/// How the probed function says that it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Returns {
    /// It cannot fail.
    Nothing = 0,
    /// A NULL pointer, with errno.
    Pointer = 1,
    /// Not zero; the value is an errno where positive.
    Errno = 2,
    /// Negative, with errno.
    MinusOne = 3,
    /// Kernel: a negative errno.
    KernelInt = 4,
    /// Kernel: a pointer that encodes a negative errno.
    KernelPointer = 5,
}

/// Which part of a registration's time a kernel function is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Part {
    /// None: a call of the library, or a kernel call outside registrations.
    None = 0,
    /// The kernel's handler as a whole.
    Kernel = 1,
    /// Pinning of user memory.
    Pin = 2,
    /// Mapping of pinned memory for the device.
    DmaMap = 3,
    /// The driver's registration function, pinning included.
    Driver = 4,
}

/// What a probe is told about its place. Packed into the 64-bit cookie of the attachment by [`Hook::cookie`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hook {
    /// The call counted here; `None` where only the time of a part is wanted.
    pub call: Option<CallId>,
    /// Argument layout.
    pub layout: Layout,
    /// How failure is told.
    pub returns: Returns,
    /// Part of a registration's time.
    pub part: Part,
    /// Index of the argument that holds the address, for [`Layout::KernelRange`].
    pub address_arg: Option<u8>,
    /// Index of the argument that holds the size in bytes, for [`Layout::KernelRange`].
    pub size_arg: Option<u8>,
    /// True where no return probe is attached: count the entry, remember nothing.
    pub entry_only: bool,
    /// True where the return is probed at the function's return instructions, not by replacing its return address.
    pub by_instruction: bool,
    /// Index of the site in the table of sites.
    pub site: u16,
}

/// Argument index that stands for "there is none".
pub const NO_ARG: u8 = 15;

impl Hook {
    /// The hook as an attachment cookie.
    pub const fn cookie(self) -> u64 {
        let call = match self.call {
            Some(call) => call as u64,
            None => 0,
        };
        call | (self.layout as u64) << 8
            | (self.returns as u64) << 16
            | (self.part as u64) << 20
            | (arg_index(self.address_arg) as u64) << 24
            | (arg_index(self.size_arg) as u64) << 28
            | (self.entry_only as u64) << 32
            | (self.by_instruction as u64) << 33
            | (self.site as u64) << 48
    }
}

const fn arg_index(index: Option<u8>) -> u8 {
    match index {
        Some(index) if index < NO_ARG => index,
        _ => NO_ARG,
    }
}

/// The fields of a cookie, as the BPF side reads them: numbers, never trusted to name a known variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cookie(pub u64);

#[expect(missing_docs, reason = "each is the field of the same name in `Hook`")]
impl Cookie {
    #[inline(always)]
    pub const fn call(self) -> u8 {
        self.0 as u8
    }

    #[inline(always)]
    pub const fn layout(self) -> u8 {
        (self.0 >> 8) as u8
    }

    #[inline(always)]
    pub const fn returns(self) -> u8 {
        (self.0 >> 16) as u8 & 15
    }

    #[inline(always)]
    pub const fn part(self) -> u8 {
        (self.0 >> 20) as u8 & 15
    }

    #[inline(always)]
    pub const fn address_arg(self) -> u8 {
        (self.0 >> 24) as u8 & 15
    }

    #[inline(always)]
    pub const fn size_arg(self) -> u8 {
        (self.0 >> 28) as u8 & 15
    }

    #[inline(always)]
    pub const fn entry_only(self) -> bool {
        self.0 >> 32 & 1 != 0
    }

    #[inline(always)]
    pub const fn by_instruction(self) -> bool {
        self.0 >> 33 & 1 != 0
    }

    #[inline(always)]
    pub const fn site(self) -> u16 {
        (self.0 >> 48) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_carries_every_field_of_its_hook() {
        let hook = Hook {
            call: Some(CallId::KernelPin),
            layout: Layout::KernelRange,
            returns: Returns::KernelPointer,
            part: Part::Pin,
            address_arg: Some(1),
            size_arg: Some(2),
            entry_only: true,
            by_instruction: true,
            site: 0xfffe,
        };
        let cookie = Cookie(hook.cookie());
        assert_eq!(cookie.call(), CallId::KernelPin as u8);
        assert_eq!(cookie.layout(), Layout::KernelRange as u8);
        assert_eq!(cookie.returns(), Returns::KernelPointer as u8);
        assert_eq!(cookie.part(), Part::Pin as u8);
        assert_eq!((cookie.address_arg(), cookie.size_arg()), (1, 2));
        assert!(cookie.entry_only() && cookie.by_instruction());
        assert_eq!(cookie.site(), 0xfffe);
    }

    #[test]
    fn an_absent_or_absurd_argument_index_is_no_argument() {
        let hook = Hook {
            call: None,
            layout: Layout::KernelRange,
            returns: Returns::Nothing,
            part: Part::None,
            address_arg: None,
            size_arg: Some(200),
            entry_only: false,
            by_instruction: false,
            site: 0,
        };
        let cookie = Cookie(hook.cookie());
        assert_eq!((cookie.call(), cookie.address_arg(), cookie.size_arg()), (0, NO_ARG, NO_ARG));
    }
}
