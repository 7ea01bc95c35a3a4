//! The built library as programs meet it: what it needs, what it exports, and real programs running on it.

mod kit;

use kit::library;
use std::ffi::{CStr, CString};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

fn run(program: &str, args: &[&str]) -> Option<Output> {
    let out = Command::new("timeout")
        .arg("30")
        .arg(program)
        .args(args)
        .env("LD_PRELOAD", library())
        .stdin(Stdio::null())
        .output()
        .expect("timeout(1)");
    if out.status.code() == Some(127) {
        eprintln!("not run: {program} is not installed");
        return None;
    }
    Some(out)
}

fn symbols(file: &str) -> Vec<String> {
    let out = Command::new("nm").args(["-D", "--defined-only", file]).output().expect("nm, of binutils");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    text.lines()
        .filter_map(|l| l.split_whitespace().nth(2))
        .map(|s| s.split('@').next().unwrap_or(s).to_string())
        .collect()
}

#[test]
fn the_library_does_not_need_libibverbs() {
    let out = Command::new("readelf").arg("-d").arg(library()).output().expect("readelf, of binutils");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let needed: Vec<_> = text.lines().filter(|l| l.contains("(NEEDED)")).collect();
    assert!(!needed.is_empty() && !needed.iter().any(|l| l.contains("ibverbs")), "{needed:?}");
}

#[test]
fn every_libibverbs_export_that_takes_an_object_is_shadowed() {
    let real = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1";
    if !std::path::Path::new(real).exists() {
        return eprintln!("not run: {real} is not installed");
    }
    let ours = symbols(library().to_str().expect("UTF-8"));
    // These take no object, or one only providers have.
    let harmless = [
        "ibv_copy_",
        "ibv_dofork_range",
        "ibv_dontfork_range",
        "ibv_fork_init",
        "ibv_is_fork_initialized",
        "ibv_rate_to_",
        "ibv_get_sysfs_path",
        "ibv_read_sysfs_file",
        "ibv_register_driver",
        "ibv_cmd_",
        "ibv_unimport_dm",
        "ibv_event_type_str",
        "ibv_node_type_str",
        "ibv_port_state_str",
        "ibv_wc_status_str",
    ];
    let missing: Vec<_> = symbols(real)
        .into_iter()
        .filter(|s| s.starts_with("ibv_") || s.starts_with("_ibv_"))
        .filter(|s| !harmless.iter().any(|h| s.starts_with(h)) && !ours.contains(s))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn probe_sites_are_nops_of_five_bytes_that_do_not_cross_a_page() {
    let path = CString::new(library().to_str().expect("UTF-8")).expect("no NUL");
    // SAFETY: C strings; the symbols are functions of at least six bytes.
    unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!handle.is_null(), "{:?}", CStr::from_ptr(libc::dlerror()));
        for name in [
            c"rnic_emu_post_send",
            c"rnic_emu_post_recv",
            c"rnic_emu_post_srq_recv",
            c"rnic_emu_poll_cq",
            c"rnic_emu_req_notify_cq",
            c"rnic_emu_wr_complete",
            c"rnic_emu_start_poll",
            c"rnic_emu_next_poll",
            c"rnic_emu_end_poll",
            c"rnic_emu_posted",
            c"rnic_emu_post_failed",
            c"rnic_emu_polled",
            c"rnic_emu_create_qp_ex",
            c"rnic_emu_create_cq_ex",
            c"rnic_emu_create_srq_ex",
        ] {
            let at = libc::dlsym(handle, name.as_ptr()).cast::<u8>();
            assert!(!at.is_null(), "{name:?}");
            let bytes = std::slice::from_raw_parts(at, 6);
            assert_eq!(bytes[..5], [0x0f, 0x1f, 0x44, 0, 0], "{name:?}");
            assert!(matches!(bytes[5], 0xe9 | 0xeb), "{name:?}");
            assert!(at as usize % 4096 <= 4096 - 5, "{name:?}");
        }
    }
}

#[test]
fn a_program_that_lists_devices_finds_ours_even_without_rdma_in_the_kernel() {
    let Some(out) = run("ibv_devinfo", &["-v", "-d", "emu0"]) else { return };
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{out:?}");
    for part in ["hca_id:\temu0", "PORT_ACTIVE (4)", "GID[  0]:\t\t::ffff:198.18.0.1", "RoCE v2"] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
}

#[test]
fn a_program_that_opens_libibverbs_by_itself_reaches_ours() {
    let script = "
import ctypes
v = ctypes.CDLL('libibverbs.so.1', use_errno=True)
v.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
v.ibv_get_device_name.restype = ctypes.c_char_p
n = ctypes.c_int()
l = v.ibv_get_device_list(ctypes.byref(n))
print(n.value, v.ibv_get_device_name(ctypes.c_void_p(l[0])).decode())
v.ibv_free_device_list(l)";
    let Some(out) = run("/usr/bin/python3", &["-c", script]) else { return };
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.trim_end().ends_with("emu0") && !text.starts_with('0'), "{out:?}");
}

#[test]
fn an_impossible_setting_is_said_and_leaves_no_device() {
    let out =
        Command::new("ibv_devices").env("LD_PRELOAD", library()).env("RNIC_EMU_DEVICES", "many").output();
    let Ok(out) = out else { return eprintln!("not run: ibv_devices is not installed") };
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("RNIC_EMU_DEVICES: \"many\" is not"), "{said}");
    assert!(!String::from_utf8_lossy(&out.stdout).contains("emu0"));
}

#[test]
fn a_program_that_wants_the_connection_manager_is_told() {
    if std::path::Path::new("/dev/infiniband/rdma_cm").exists() {
        return eprintln!("not run: this kernel has a connection manager");
    }
    let Some(out) = run("ib_write_bw", &["-R", "-p", "18640"]) else { return };
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && said.contains("rdma_cm is not emulated"), "{out:?}");
}

/// A server and a client of `program`; both must succeed.
fn two(program: &str, args: &[&str], port: u16) {
    let port = port.to_string();
    let mut all = args.to_vec();
    all.extend(["-p", &port]);
    let server = Command::new("timeout")
        .arg("30")
        .arg(program)
        .args(&all)
        .env("LD_PRELOAD", library())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("timeout(1)");
    std::thread::sleep(Duration::from_millis(400));
    all.push("localhost");
    let Some(client) = run(program, &all) else {
        let _ = server.wait_with_output();
        return;
    };
    let server = server.wait_with_output().expect("server");
    assert!(client.status.success(), "client of {program} {args:?}: {client:?}");
    assert!(server.status.success(), "server of {program} {args:?}: {server:?}");
}

#[test]
fn the_ping_pongs_of_ibverbs_utils_pass_with_and_without_events() {
    for (i, program) in
        ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"].into_iter().enumerate()
    {
        two(program, &["-g", "0", "-n", "200"], 18600 + i as u16);
        two(program, &["-g", "0", "-n", "200", "-e"], 18610 + i as u16);
    }
    two("ibv_rc_pingpong", &["-g", "0", "-n", "200", "-c", "-t", "-s", "65536"], 18620);
}

#[test]
fn a_sender_has_its_completion_before_the_reply_it_provoked() {
    // perftest waits for one event at a time on a channel of both CQs: out of order, it finds its send queue full.
    two("ib_send_lat", &["-d", "emu0", "-n", "300", "-e"], 18650);
}

#[test]
fn perftest_passes_on_the_classic_path() {
    for (i, program) in ["ib_write_bw", "ib_send_lat", "ib_read_bw", "ib_atomic_lat"].into_iter().enumerate()
    {
        two(program, &["-d", "emu0", "-n", "200"], 18630 + i as u16);
    }
}
