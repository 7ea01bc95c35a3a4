//! The structs of [`crate::abi`] against the offsets of the C headers, as a C compiler gives them on x86-64.

use std::mem::{offset_of, size_of};

use crate::abi::*;

#[test]
fn offsets_are_those_of_the_c_headers_on_x86_64() {
    assert_eq!(offset_of!(Context, ops) + op::POLL_CQ * 8, 96);
    assert_eq!(offset_of!(Context, ops) + op::REQ_NOTIFY_CQ * 8, 104);
    assert_eq!(offset_of!(Context, ops) + op::POST_SRQ_RECV * 8, 168);
    assert_eq!(offset_of!(Context, ops) + op::POST_SEND * 8, 208);
    assert_eq!(offset_of!(Context, ops) + op::POST_RECV * 8, 216);
    assert_eq!(offset_of!(Context, cmd_fd), 264);
    assert_eq!(offset_of!(Context, abi_compat), 320);
    assert_eq!((offset_of!(Qp, qp_num), size_of::<Qp>()), (52, 160));
    assert_eq!((offset_of!(QpEx, wr_flags), offset_of!(QpEx, calls)), (176, 184));
    assert_eq!(offset_of!(QpEx, calls) + wr::RDMA_WRITE * 8, 224);
    assert_eq!(offset_of!(QpEx, calls) + wr::SET_INLINE_DATA * 8, 288);
    assert_eq!(offset_of!(QpEx, calls) + wr::SET_SGE * 8, 304);
    assert_eq!(offset_of!(QpEx, calls) + wr::START * 8, 320);
    assert_eq!(offset_of!(QpEx, calls) + wr::ABORT * 8, 336);
    assert_eq!(
        (offset_of!(CqEx, comp_mask), offset_of!(CqEx, status), offset_of!(CqEx, calls)),
        (128, 132, 144)
    );
    assert_eq!((offset_of!(SendWr, opcode), offset_of!(SendWr, send_flags)), (28, 32));
    assert_eq!((offset_of!(Wc, status), offset_of!(Wc, byte_len), offset_of!(Wc, qp_num)), (8, 20, 28));
    assert_eq!(size_of::<Wc>(), 48);
    assert_eq!(size_of::<CqEx>() + wc::QP_NUM * 8, 200);
    assert_eq!(offset_of!(QpInitAttr, sq_sig_all), 56);
    assert_eq!((offset_of!(QpInitAttrEx, comp_mask), offset_of!(QpInitAttrEx, send_ops_flags)), (60, 128));
}
