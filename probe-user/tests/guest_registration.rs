//! Registrations on real soft-RoCE: counts, bytes and errnos to the last one, durations against the program's own clock.

mod support;

use std::path::Path;

use probe_user::sample::{Call, Detail};
use support::{Recording, compile, record_searching};

/// Records `regions WHAT N`, built against the system's libibverbs; returns what it wrote itself, line by line.
fn regions(what: &str, n: &str) -> (Recording, Vec<(String, u64, i32, u64)>) {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile(folder.path(), "regions.c", "regions", &["-pthread", "-libverbs", "-ldl"]);
    // By its name it is attached to beforehand, like every verbs library in the search path.
    let idle = compile(folder.path(), "verbs.c", "libibverbs-idle.so", &["-shared", "-fPIC"]);
    let out = folder.path().join("out");
    let device = std::env::var("RDMA_DEV").expect("RDMA_DEV");
    let text = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
    let command = [&text(&program), &device, what, n, &text(&out), &text(&idle)];
    let done = record_searching(Some(folder.path()), &["--interval", "2s"], &command);
    let stderr = String::from_utf8_lossy(&done.output.stderr);
    assert_eq!(done.output.status.code(), Some(0), "{stderr}");
    let lines = std::fs::read_to_string(&out).unwrap_or_default();
    let lines = lines.lines().map(|line| {
        let mut fields = line.split(' ');
        let mut next = || fields.next().expect("four fields");
        let what = next().to_owned();
        let mut number = || next().parse().expect("a number");
        (what, number(), number() as i32, number())
    });
    (done, lines.collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
#[ignore = "needs soft-RoCE: cargo xtask vm test"]
fn ten_thousand_registrations_are_exact_in_count_bytes_errno_and_time() {
    let (done, lines) = regions("regions", "10000");
    done.trace.assert_whole();
    let own: Vec<_> = lines.iter().filter(|line| line.0 == "reg").collect();
    assert_eq!(own.len(), 10_000);
    let failed = |errno| own.iter().filter(|line| line.2 == errno).count() as u64;
    assert_eq!((failed(libc::EFAULT), failed(libc::ENOMEM)), (50, 50));
    assert_eq!(lines.len(), 12_000);
    let registrations = done.trace.total(Call::RegMr);
    assert_eq!((registrations.entered, registrations.returned, registrations.failed), (12_000, 12_000, 100));
    let bytes: u64 = own.iter().filter(|line| line.2 == 0).map(|line| line.1).sum();
    assert_eq!(registrations.bytes, bytes + 2000 * 4096);
    assert_eq!(done.trace.total(Call::DeregMr).entered, 9900);
    let pins = done.trace.total(Call::KernelPin);
    assert_eq!((pins.entered, pins.returned, pins.failed), (10_000, 10_000, 100));
    assert_eq!(pins.bytes, bytes);

    // One thread: the events are in the program's order.
    let events: Vec<_> = done.trace.events_of(Call::RegMr).collect();
    assert_eq!(events.len(), lines.len());
    let (mut small, mut idle, mut large) = (Vec::new(), Vec::new(), Vec::new());
    for (event, (what, length, errno, ns)) in events.iter().zip(&lines) {
        let Detail::Mr { length_bytes, .. } = event.detail else { panic!("{event:?}") };
        assert_eq!((length_bytes, event.errno), (*length, *errno));
        let cost = *ns as f64 - event.duration_ns as f64;
        match what.as_str() {
            "idle" => idle.push(cost),
            _ if *length < 1 << 20 => small.push(cost),
            _ if *errno == 0 => large.push((*ns as f64, event.duration_ns as f64)),
            _ => {}
        }
    }
    // What a registration takes longer by the program's clock is its two traps. They cost an emulated processor 15-90 us
    // by what it ran before, so that those without any work only tell the order.
    let (cost, idle) = (median(small), median(idle));
    println!("program minus probe: {cost:.0} ns per registration, {idle:.0} ns where it does nothing");
    assert!((1.0 / 3.0..=3.0).contains(&(cost / idle)), "{cost} ns, {idle} ns where it does nothing");
    let ratio =
        |cost: f64| median(large.iter().map(|(program, probe)| (program - cost) / probe).collect::<Vec<_>>());
    // The traps are a tenth of a registration of 1 MiB there: they are taken off.
    let (raw, without_cost) = (ratio(0.0), ratio(cost));
    println!(
        "program over probe for regions of 1 MiB and more: {raw:.3}, without the probe's cost {without_cost:.3}"
    );
    assert!((without_cost - 1.0).abs() <= 0.1, "{without_cost}");
}

#[test]
#[ignore = "needs soft-RoCE: cargo xtask vm test"]
fn two_hundred_threads_registering_at_once_lose_no_kernel_return() {
    let (done, _) = regions("threads", "10");
    done.trace.assert_whole();
    for call in [Call::RegMr, Call::DeregMr, Call::KernelPin, Call::KernelRegMr, Call::KernelDeregMr] {
        let count = done.trace.total(call);
        assert_eq!((count.entered, count.returned, count.failed), (2000, 2000, 0), "{call:?}");
    }
    for event in done.trace.events_of(Call::RegMr) {
        let Detail::Mr { split, .. } = &event.detail else { panic!("{event:?}") };
        assert!(split.pin_ns.is_some_and(|pin| pin <= event.duration_ns), "{event:?}");
    }
}

#[test]
#[ignore = "needs soft-RoCE: cargo xtask vm test"]
fn five_hundred_short_lived_processes_are_all_seen_on_a_device() {
    let (done, _) = regions("processes", "500");
    done.trace.assert_whole();
    for (call, n) in [
        (Call::OpenDevice, 500),
        (Call::RegMr, 500),
        (Call::DeregMr, 250),
        (Call::KernelPin, 500),
        // What half of them left behind the kernel released at their end.
        (Call::KernelUnpin, 500),
    ] {
        let count = done.trace.total(call);
        assert_eq!((count.entered, count.returned), (n, n), "{call:?}");
    }
}
