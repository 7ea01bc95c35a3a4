//! Stock programs over real soft-RoCE: what is counted here equals what the kernel's tracer and the rdma tool count on
//! their own.

mod support;

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use probe_user::sample::{Call, Detail};
use serde_json::Value;
use support::{Recording, record, record_searching};

const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1";

/// The kernel's own tracer, counting the same places by itself: library functions by the address of their default
/// version, kernel functions by name. (bpftrace will not do: it turns an address into a symbol's name and that into the
/// address of the symbol's oldest version, which nobody calls.)
struct Independent;

const TRACER: &str = "/sys/kernel/tracing";
const LIBRARY_PLACES: [&str; 8] = [
    "ibv_reg_mr_iova2",
    "ibv_dereg_mr",
    "ibv_modify_qp",
    "ibv_create_qp",
    "ibv_destroy_qp",
    "ibv_create_cq",
    "ibv_destroy_cq",
    "ibv_alloc_pd",
];
const KERNEL_PLACES: [&str; 4] =
    ["ib_umem_get", "ib_dereg_mr_user", "ib_create_qp_user", "ib_destroy_cq_user"];

impl Independent {
    fn start() -> Self {
        for symbol in LIBRARY_PLACES {
            let line = format!("p:independent/{symbol} {LIBRARY}:{:#x}", default_version(symbol));
            write("uprobe_events", &line);
        }
        for symbol in KERNEL_PLACES {
            write("kprobe_events", &format!("p:independent/{symbol} {symbol}"));
        }
        write("events/independent/enable", "1");
        Self
    }

    /// Hits by place and thread; the programs here have one thread each, so by process.
    fn finish(self) -> BTreeMap<(String, u32), u64> {
        write("events/independent/enable", "0");
        let text = std::fs::read_to_string(format!("{TRACER}/trace")).expect("the trace");
        let mut counts = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            // `comm-pid  [cpu] flags  time: place: (address)`
            let Some((before, after)) = line.split_once('[') else { continue };
            let Some((_, pid)) = before.trim_end().rsplit_once('-') else { continue };
            let Some(place) = after.split(": ").nth(1) else { continue };
            let Ok(pid) = pid.parse() else { continue };
            *counts.entry((place.to_owned(), pid)).or_insert(0) += 1;
        }
        for symbol in LIBRARY_PLACES {
            write("uprobe_events", &format!("-:independent/{symbol}"));
        }
        for symbol in KERNEL_PLACES {
            write("kprobe_events", &format!("-:independent/{symbol}"));
        }
        std::fs::write(format!("{TRACER}/trace"), "").expect("an empty trace");
        counts
    }
}

fn write(file: &str, line: &str) {
    let mut file = OpenOptions::new().append(true).open(format!("{TRACER}/{file}")).expect("the tracer");
    file.write_all(format!("{line}\n").as_bytes()).expect(line);
}

/// Address of a symbol's default version, by readelf.
fn default_version(symbol: &str) -> u64 {
    let listed = Command::new("readelf").args(["-W", "--dyn-syms", LIBRARY]).output().expect("readelf");
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let wanted = format!("{symbol}@@");
    let line = text.lines().find(|line| line.contains(&wanted)).expect("the symbol");
    u64::from_str_radix(line.split_ascii_whitespace().nth(1).expect("an address"), 16).expect("a number")
}

/// Runs a server and, when it listens, a client, both watched; compares every count with the tracer's.
fn both_sides(program: &str, arguments: &str, comm: &str) -> Recording {
    let independent = Independent::start();
    let script = format!(
        "{program} -d $RDMA_DEV {arguments} >/dev/null 2>&1 & \
         for i in $(seq 300); do ss -ltn | grep -q :18515 && break; sleep 0.1; done; \
         {program} -d $RDMA_DEV {arguments} $RDMA_IP; wait $!"
    );
    let done = record(&["--interval", "5s"], &["sh", "-c", &script]);
    let counts = independent.finish();
    // The status is not looked at: perftest fails where it cannot make sense of the clock, as under emulation.
    done.trace.assert_whole();
    let sides: Vec<_> = done.trace.processes.values().filter(|process| process.comm == comm).collect();
    assert_eq!(sides.len(), 2, "{sides:?}");
    for side in sides {
        for (symbol, call) in [
            ("ibv_reg_mr_iova2", Call::RegMr),
            ("ibv_dereg_mr", Call::DeregMr),
            ("ibv_modify_qp", Call::ModifyQp),
            ("ibv_destroy_qp", Call::DestroyQp),
            ("ibv_destroy_cq", Call::DestroyCq),
            ("ibv_alloc_pd", Call::AllocPd),
            ("ib_umem_get", Call::KernelPin),
            ("ib_dereg_mr_user", Call::KernelDeregMr),
            ("ib_create_qp_user", Call::KernelCreateQp),
            // Whichever way a queue was made in user space, the kernel made one.
            ("ib_create_qp_user", Call::CreateQp),
            ("ib_destroy_cq_user", Call::KernelDestroyCq),
            ("ibv_create_cq", Call::CreateCq),
        ] {
            let theirs = counts.get(&(symbol.to_owned(), side.id.pid)).copied().unwrap_or(0);
            let ours = done.trace.of(side.id, call);
            assert_eq!(ours.entered, theirs, "{program} {}: {call:?} against {symbol}", side.id.pid);
            assert_eq!(ours.entered, ours.returned, "{program} {}: {call:?}", side.id.pid);
            println!("{program} pid {}: {call:?} {} = {symbol} {theirs}", side.id.pid, ours.entered);
        }
        assert!(done.trace.of(side.id, Call::RegMr).entered > 0);
    }
    done
}

#[test]
#[ignore = "needs soft-RoCE: cargo xtask vm test"]
fn pingpong_is_counted_exactly_on_both_sides() {
    let done = both_sides("ibv_rc_pingpong", "-g $RDMA_GID_INDEX -n 100", "ibv_rc_pingpong");
    let to: Vec<_> = done
        .trace
        .events_of(Call::ModifyQp)
        .filter_map(|event| match &event.detail {
            Detail::ModifyQp(attributes) => attributes.to.clone(),
            _ => None,
        })
        .collect();
    let count = |state: &str| to.iter().filter(|to| *to == state).count();
    assert_eq!((count("INIT"), count("RTR"), count("RTS")), (2, 2, 2));
    for event in done.trace.events_of(Call::RegMr) {
        let Detail::Mr { length_bytes, split, .. } = &event.detail else { panic!("{event:?}") };
        assert_eq!(*length_bytes, 4096);
        let (kernel, pin) = (split.kernel_ns.expect("kernel"), split.pin_ns.expect("pin"));
        assert!(pin <= kernel && kernel <= event.duration_ns, "{event:?}");
        let driver = split.driver_ns.expect("driver");
        assert!(pin + driver <= kernel, "{event:?}");
    }
}

#[test]
#[ignore = "needs soft-RoCE: cargo xtask vm test"]
fn write_bandwidth_over_four_queue_pairs_is_counted_exactly() {
    let done = both_sides("ib_write_bw", "-x $RDMA_GID_INDEX -q 4 -n 100 -s 4096", "ib_write_bw");
    assert_eq!(done.trace.total(Call::CreateQp).entered, 8);
}

#[test]
#[ignore = "needs soft-RoCE: cargo xtask vm test"]
fn send_latency_is_counted_exactly() {
    both_sides("ib_send_lat", "-x $RDMA_GID_INDEX -n 100", "ib_send_lat");
}

#[test]
#[ignore = "needs soft-RoCE: cargo xtask vm test"]
fn queue_pairs_alive_are_those_the_rdma_tool_lists() {
    let script = "ibv_rc_pingpong -d $RDMA_DEV -g $RDMA_GID_INDEX >/dev/null & pid=$!; \
                  for i in $(seq 300); do ss -ltn | grep -q :18515 && break; sleep 0.1; done; \
                  echo $pid; rdma resource show qp -j -p; kill $pid; wait $pid";
    let done = record(&[], &["sh", "-c", script]);
    let text = done.stdout();
    let (pid, listed) = text.split_once('\n').expect("a pid and a list");
    let listed: Value = serde_json::from_str(listed).expect("the rdma tool's list");
    let pid: u64 = pid.trim().parse().expect("a pid");
    let theirs = listed.as_array().expect("a list").iter().filter(|qp| qp["pid"].as_u64() == Some(pid));
    let qpns: Vec<_> = theirs.filter_map(|qp| qp["lqpn"].as_u64()).collect();
    let ours: Vec<_> = done
        .trace
        .events_of(Call::CreateQp)
        .filter_map(|event| match event.detail {
            Detail::Qp { qpn, .. } => Some(u64::from(qpn)),
            _ => None,
        })
        .collect();
    assert_eq!(ours.len(), 1);
    assert_eq!(ours, qpns);
}

#[test]
#[ignore = "needs soft-RoCE: cargo xtask vm test"]
fn connections_by_rdma_cm_are_seen_and_cancelled_threads_do_no_harm() {
    let script = "rping -s -a $RDMA_IP -C 5 & for i in $(seq 100); do rdma resource show cm_id | grep -q LISTEN && break; \
                  sleep 0.1; done; rping -c -a $RDMA_IP -C 5; client=$?; wait $!; echo $client $?";
    let done = record(&["--interval", "5s"], &["sh", "-c", script]);
    done.trace.assert_whole();
    let plain = Command::new("sh").args(["-c", script]).output().expect("rping without us");
    assert_eq!(done.stdout(), String::from_utf8_lossy(&plain.stdout).trim(), "as it ends without us");
    let counts = |call| done.trace.total(call).entered;
    assert_eq!(counts(Call::CmResolveAddr), 1);
    assert_eq!(counts(Call::CmResolveRoute), 1);
    assert_eq!(counts(Call::CmConnect), 1);
    assert_eq!(counts(Call::CmAccept), 1);
    assert!(counts(Call::CmGetEvent) >= 4);
    assert!(counts(Call::CmDisconnect) >= 1);
}

#[test]
#[ignore = "needs soft-RoCE: cargo xtask vm test"]
fn an_older_rdma_core_elsewhere_in_another_mount_namespace_is_counted_exactly() {
    let home = std::env::var("HOME").unwrap_or_else(|_| "/root".to_owned());
    let cache = std::env::var("XDG_CACHE_HOME").unwrap_or_else(|_| format!("{home}/.cache"));
    let root = format!("{cache}/rdma-probe/rdma-core-33.2/usr");
    let libraries = format!("{root}/lib/x86_64-linux-gnu");
    if !Path::new(&libraries).join("libibverbs.so.1").exists() {
        eprintln!(
            "skipped: unpack Debian bullseye's libibverbs1, ibverbs-providers and ibverbs-utils 33.2-1 into {root}/.. \
             (dpkg -x)"
        );
        return;
    }
    // The library looks for its drivers at one fixed place: there, for these processes, lie its own.
    let script = format!(
        "mount --bind {libraries}/libibverbs /usr/lib/x86_64-linux-gnu/libibverbs
         PATH={root}/bin:$PATH; run=\"ibv_rc_pingpong -d $RDMA_DEV -g $RDMA_GID_INDEX -n 100\"
         $run >/dev/null 2>&1 &
         for i in $(seq 300); do ss -ltn | grep -q :18515 && break; sleep 0.1; done
         $run $RDMA_IP >/dev/null 2>&1 || exit 1; wait $!"
    );
    let search = Some(Path::new(&libraries));
    let done = record_searching(search, &["--interval", "5s"], &["unshare", "-m", "sh", "-c", &script]);
    assert_eq!(done.output.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.output.stderr));
    done.trace.assert_whole();
    assert!(done.trace.probes.iter().any(|probe| probe.place.starts_with(&libraries)));
    // What the library was asked for is what the kernel did.
    for (library, kernel, each) in [
        (Call::RegMr, Call::KernelPin, 2),
        (Call::RegMr, Call::KernelRegMr, 2),
        (Call::DeregMr, Call::KernelDeregMr, 2),
        (Call::CreateQp, Call::KernelCreateQp, 2),
        (Call::ModifyQp, Call::KernelModifyQp, 6),
        (Call::CreateCq, Call::KernelCreateCq, 2),
        (Call::DestroyCq, Call::KernelDestroyCq, 2),
    ] {
        let (library, kernel) = (done.trace.total(library), done.trace.total(kernel));
        assert_eq!((library.entered, library.returned), (each, each));
        assert_eq!(kernel.entered, each);
    }
}
