//! The offsets programs and tracers rely on, held against the figures for x86-64 and against the C header itself.

use super::*;
use std::mem::{offset_of, size_of};

#[test]
fn structs_lie_as_the_c_header_lays_them_out() {
    let pairs = [
        (offset_of!(ibv_context, ops), 8),
        (offset_of!(ibv_context, ops) + offset_of!(ibv_context_ops, poll_cq), 96),
        (8 + offset_of!(ibv_context_ops, req_notify_cq), 104),
        (8 + offset_of!(ibv_context_ops, post_srq_recv), 168),
        (8 + offset_of!(ibv_context_ops, post_send), 208),
        (8 + offset_of!(ibv_context_ops, post_recv), 216),
        (offset_of!(ibv_context, cmd_fd), 264),
        (offset_of!(ibv_context, async_fd), 268),
        (offset_of!(ibv_context, abi_compat), 320),
        (offset_of!(verbs_context, context) - offset_of!(verbs_context, sz), 8),
        (offset_of!(ibv_qp, qp_num), 52),
        (offset_of!(ibv_qp, state), 56),
        (offset_of!(ibv_qp, qp_type), 60),
        (offset_of!(ibv_cq, channel), 8),
        (offset_of!(ibv_cq, handle), 24),
        (offset_of!(ibv_cq, cqe), 28),
        (offset_of!(ibv_mr, length), 24),
        (offset_of!(ibv_mr, lkey), 36),
        (offset_of!(ibv_mr, rkey), 40),
        (size_of::<ibv_send_wr>(), 128),
        (offset_of!(ibv_send_wr, send_flags), 32),
        (offset_of!(ibv_send_wr, imm_data), 36),
        (offset_of!(ibv_send_wr, wr), 40),
        (size_of::<ibv_recv_wr>(), 32),
        (size_of::<ibv_sge>(), 16),
        (size_of::<ibv_wc>(), 48),
        (offset_of!(ibv_wc, qp_num), 28),
        (offset_of!(ibv_wc, wc_flags), 36),
        (offset_of!(ibv_qp_ex, comp_mask), 160),
        (offset_of!(ibv_qp_ex, wr_id), 168),
        (offset_of!(ibv_qp_ex, wr_atomic_cmp_swp), 184),
        (offset_of!(ibv_qp_ex, wr_rdma_read), 216),
        (offset_of!(ibv_qp_ex, wr_send), 240),
        (offset_of!(ibv_qp_ex, wr_set_inline_data), 288),
        (offset_of!(ibv_qp_ex, wr_set_sge), 304),
        (offset_of!(ibv_qp_ex, wr_set_sge_list), 312),
        (offset_of!(ibv_qp_ex, wr_start), 320),
        (offset_of!(ibv_qp_ex, wr_complete), 328),
        (offset_of!(ibv_qp_ex, wr_abort), 336),
        (offset_of!(ibv_cq_ex, comp_mask), 128),
        (offset_of!(ibv_cq_ex, status), 132),
        (offset_of!(ibv_cq_ex, wr_id), 136),
        (offset_of!(ibv_cq_ex, start_poll), 144),
        (offset_of!(ibv_cq_ex, end_poll), 160),
        (offset_of!(ibv_cq_ex, read_opcode), 168),
        (offset_of!(ibv_cq_ex, read_qp_num), 200),
        (offset_of!(ibv_qp_init_attr, cap), 32),
        (offset_of!(ibv_qp_init_attr, qp_type), 52),
        (offset_of!(ibv_qp_init_attr, sq_sig_all), 56),
        (offset_of!(ibv_port_attr, port_cap_flags2), COMPAT_PORT_ATTR_LEN),
    ];
    for (i, (ours, header)) in pairs.into_iter().enumerate() {
        assert_eq!(ours, header, "entry {i}");
    }
}

/// Asks the C compiler itself, for every struct a program hands us or gets from us.
#[test]
fn sizes_agree_with_the_c_compiler_where_there_is_one() {
    let sizes: &[(&str, usize)] = &[
        ("struct ibv_device", size_of::<ibv_device>()),
        ("struct ibv_device_attr", size_of::<ibv_device_attr>()),
        ("struct ibv_device_attr_ex", size_of::<ibv_device_attr_ex>()),
        ("struct ibv_port_attr", size_of::<ibv_port_attr>()),
        ("struct ibv_gid_entry", size_of::<ibv_gid_entry>()),
        ("struct ibv_async_event", size_of::<ibv_async_event>()),
        ("struct ibv_context", size_of::<ibv_context>()),
        ("struct verbs_context", size_of::<verbs_context>()),
        ("struct ibv_parent_domain_init_attr", size_of::<ibv_parent_domain_init_attr>()),
        ("struct ibv_cq", size_of::<ibv_cq>()),
        ("struct ibv_cq_ex", size_of::<ibv_cq_ex>()),
        ("struct ibv_cq_init_attr_ex", size_of::<ibv_cq_init_attr_ex>()),
        ("struct ibv_wc", size_of::<ibv_wc>()),
        ("struct ibv_mr", size_of::<ibv_mr>()),
        ("struct ibv_mw", size_of::<ibv_mw>()),
        ("struct ibv_mw_bind", size_of::<ibv_mw_bind>()),
        ("struct ibv_ah_attr", size_of::<ibv_ah_attr>()),
        ("struct ibv_grh", size_of::<ibv_grh>()),
        ("struct ibv_send_wr", size_of::<ibv_send_wr>()),
        ("struct ibv_recv_wr", size_of::<ibv_recv_wr>()),
        ("struct ibv_qp", size_of::<ibv_qp>()),
        ("struct ibv_qp_ex", size_of::<ibv_qp_ex>()),
        ("struct ibv_qp_attr", size_of::<ibv_qp_attr>()),
        ("struct ibv_qp_init_attr", size_of::<ibv_qp_init_attr>()),
        ("struct ibv_qp_init_attr_ex", size_of::<ibv_qp_init_attr_ex>()),
        ("struct ibv_srq", size_of::<ibv_srq>()),
        ("struct ibv_srq_init_attr_ex", size_of::<ibv_srq_init_attr_ex>()),
        ("struct ibv_ece", size_of::<ibv_ece>()),
    ];
    let mut source = String::from("#include <infiniband/verbs.h>\n");
    for (name, size) in sizes {
        source += &format!("_Static_assert(sizeof({name}) == {size}, \"{name}\");\n");
    }
    macro_rules! offsets {
        ($($kind:ident: $($field:ident),+;)+) => {
            $($(source += &format!(
                "_Static_assert(__builtin_offsetof(struct {0}, {1}) == {2}, \"{0}.{1}\");\n",
                stringify!($kind), stringify!($field), offset_of!($kind, $field),
            );)+)+
        };
    }
    offsets! {
        ibv_device: name, ibdev_path;
        ibv_device_attr: max_qp, max_qp_rd_atom, atomic_cap, max_mw, max_srq, phys_port_cnt;
        ibv_device_attr_ex: completion_timestamp_mask, rss_caps, tm_caps, cq_mod_caps, phys_port_cnt_ex;
        ibv_port_attr: active_mtu, pkey_tbl_len, lid, phys_state, link_layer, port_cap_flags2;
        ibv_async_event: event_type;
        verbs_context: query_port, alloc_td, create_cq_ex, query_device_ex, create_qp_ex, create_srq_ex, sz;
        ibv_cq_init_attr_ex: comp_vector, wc_flags, flags, parent_domain;
        ibv_wc: imm_data, src_qp, wc_flags, slid, dlid_path_bits;
        ibv_ah_attr: dlid, is_global, port_num;
        ibv_send_wr: imm_data, wr, bind_mw;
        ibv_qp: srq, qp_num, state, events_completed;
        ibv_qp_ex: wr_bind_mw, wr_send_inv, wr_set_ud_addr, wr_set_inline_data_list, wr_atomic_write;
        ibv_cq_ex: read_imm_data, read_wc_flags, read_completion_ts, read_completion_wallclock_ns;
        ibv_qp_attr: cap, ah_attr, pkey_index, max_rd_atomic, min_rnr_timer, timeout, rnr_retry, rate_limit;
        ibv_qp_init_attr_ex: sq_sig_all, comp_mask, pd, create_flags, source_qpn, send_ops_flags;
        ibv_srq: pd, handle;
        ibv_srq_init_attr_ex: attr, comp_mask, srq_type, pd, cq;
        ibv_parent_domain_init_attr: td, comp_mask, pd_context;
        ibv_mw_bind: send_flags, bind_info;
        ibv_grh: next_hdr, sgid, dgid;
    }
    let mut compiler = match std::process::Command::new("cc")
        .args(["-x", "c", "-fsyntax-only", "-"])
        .stdin(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
    {
        Ok(child) => child,
        Err(e) => return eprintln!("not run: no C compiler ({e})"),
    };
    let mut stdin = compiler.stdin.take().expect("piped");
    std::io::Write::write_all(&mut stdin, source.as_bytes()).expect("write to cc");
    drop(stdin);
    let out = compiler.wait_with_output().expect("cc");
    let errors = String::from_utf8_lossy(&out.stderr).into_owned();
    if errors.contains("infiniband/verbs.h") && errors.contains("No such file") {
        return eprintln!("not run: libibverbs-dev is not installed");
    }
    assert!(out.status.success(), "{errors}");
}
