//! What the model says of loads whose outcome is known: the effects the reference workloads show, and its own limits.

use rnic_emu::model::drive::{Memory, Pattern, Pick, Reply, Shape, Waiting};
use rnic_emu::model::{
    Key, LoadSpec, Model, NodeId, Op, Outcome, Place, Profile, Region, Request, Stage, Transport, drive,
    predict_range, time,
};

fn profile(name: &str) -> Profile {
    Profile::builtin(name).unwrap_or_else(|e| panic!("{e}"))
}

fn run(name: &str, spec: LoadSpec) -> Outcome {
    drive(&profile(name), &LoadSpec { measure: 20_000, ..spec }).unwrap_or_else(|e| panic!("{e}"))
}

fn busy() -> LoadSpec {
    LoadSpec { threads: 8, outstanding: 128, bytes: 64, ..LoadSpec::default() }
}

fn random(bytes: u64, page: u64) -> Memory {
    Memory { bytes, page, regions: 1, pattern: Pattern::Random }
}

#[track_caller]
fn near(got: f64, wanted: f64, share: f64) {
    assert!((got / wanted - 1.0).abs() <= share, "{got} is not within {share} of {wanted}");
}

#[test]
fn one_request_takes_as_long_as_its_stages_and_the_cpu_around_them() {
    for op in [Op::Write, Op::Read, Op::Send, Op::FetchAdd] {
        let outcome = run("cx5-like", LoadSpec { op, bytes: 8, ..LoadSpec::default() });
        let stages: f64 = outcome.breakdown_ns.iter().sum();
        near(outcome.latency_ns.mean, stages + outcome.cpu_ns_per_op, 0.03);
        assert!(outcome.latency_ns.mean > 1_500.0 && outcome.latency_ns.mean < 4_000.0);
    }
}

#[test]
fn inlining_saves_the_fetch_of_the_payload() {
    let at = |inline| run("cx5-like", LoadSpec { inline, ..LoadSpec::default() });
    let (by_sge, inline) = (at(false), at(true));
    assert!(by_sge.stage_ns(Stage::Payload) > 400.0 && inline.stage_ns(Stage::Payload) == 0.0);
    assert!(by_sge.latency_ns.p50 - inline.latency_ns.p50 > 400.0);
}

#[test]
fn large_messages_run_at_the_speed_of_the_link_or_of_pcie() {
    for (name, op, gigabytes) in [
        // PCIe gen3 x8 in 128-byte writes.
        ("cx3-like", Op::Write, 6.55),
        // 4096 of 4194 bytes on the wire.
        ("cx5-like", Op::Write, 12.2),
        ("cx5-like", Op::Read, 12.2),
        ("cx6-like", Op::Send, 24.4),
        ("cx6-like", Op::Read, 24.4),
    ] {
        let spec = LoadSpec { op, bytes: 1 << 20, outstanding: 4, warmup: 50, ..LoadSpec::default() };
        let outcome = drive(&profile(name), &LoadSpec { measure: 300, ..spec }).expect("is a valid load");
        near(outcome.bytes_per_s / 1e9, gigabytes, 0.02);
    }
}

#[test]
fn small_messages_of_one_qp_overtake_large_ones_of_another() {
    let mut model = Model::new(&profile("cx5-like"));
    let cq = model.create_cq(NodeId(0));
    let [large, small] = [0, 1].map(|_| model.create_qp(NodeId(0), NodeId(1), Transport::Rc, cq));
    model.post(0, large, &[Request { bytes: 64 << 20, token: 1, ..Request::default() }]);
    model.post(10 * time::US, small, &[Request { bytes: 64, token: 2, ..Request::default() }]);
    let mut done = Vec::new();
    model.advance(time::SEC, &mut done);
    assert_eq!(done.iter().map(|c| c.token).collect::<Vec<_>>(), [2, 1]);
    assert!(done[0].at < 20 * time::US, "packets of QPs take turns");
}

#[test]
fn a_slow_receiver_pauses_its_senders() {
    let spec = LoadSpec { shape: Shape::FanIn(8), transport: Transport::Uc, inline: true, ..busy() };
    // 28.6 ns a packet, whatever eight senders could send.
    near(run("cx3-like", spec).ops_per_s / 1e6, 34.9, 0.02);
}

#[test]
fn too_many_queue_pairs_collapse_on_an_old_nic() {
    let rate = |qps| {
        let spec =
            LoadSpec { shape: Shape::Symmetric, op: Op::Read, qps, pick: Pick::Random, bytes: 32, ..busy() };
        run("cx3-like", spec).ops_per_s
    };
    assert!(rate(400) < 0.2 * rate(16));
}

#[test]
fn huge_pages_keep_random_reads_fast() {
    let at = |page| run("cx3-like", LoadSpec { op: Op::Read, memory: random(2 << 30, page), ..busy() });
    let (small, huge) = (at(4096), at(2 << 20));
    assert!(small.responder.hits.mtt < Some(0.1) && huge.responder.hits.mtt > Some(0.9));
    assert!(huge.ops_per_s > 3.0 * small.ops_per_s);
}

#[test]
fn sequential_places_share_translations_where_a_fetch_brings_several() {
    let at = |pattern| {
        let memory = Memory { pattern, ..random(4 << 30, 4096) };
        run("cx5-like", LoadSpec { op: Op::Read, memory, ..busy() }).responder.hits.mtt
    };
    assert!(at(Pattern::Sequential) > Some(0.99));
    assert!(at(Pattern::Stride(4096)) > Some(0.85) && at(Pattern::Random) < Some(0.1));
}

#[test]
fn waiting_for_events_takes_longer_than_polling() {
    let at = |waiting| run("cx5-like", LoadSpec { waiting, ..LoadSpec::default() }).latency_ns.p50;
    let ratio = at(Waiting::Event) / at(Waiting::Poll);
    assert!(ratio > 2.0 && ratio < 5.0, "{ratio}");
}

#[test]
fn signalling_less_saves_cpu_and_completions() {
    let at = |signal_every| run("cx5-like", LoadSpec { signal_every, inline: true, ..busy() });
    let (all, few) = (at(1), at(16));
    assert!(few.cpu_ns_per_op < 0.75 * all.cpu_ns_per_op);
    near(few.initiator.counts.cqes as f64 / few.measured as f64, 1.0 / 16.0, 0.05);
}

#[test]
fn lists_save_doorbells_and_cpu() {
    let at = |list| run("cx5-like", LoadSpec { list, threads: 1, qps: 4, outstanding: 128, ..busy() });
    let (one, many) = (at(1), at(16));
    near(many.initiator.counts.doorbells as f64 * 16.0, many.measured as f64, 0.05);
    assert!(many.cpu_ns_per_op < one.cpu_ns_per_op && many.ops_per_s > one.ops_per_s);
}

#[test]
fn atomics_are_held_back_by_their_lock_their_qp_and_the_nic() {
    let at = |threads, bytes| {
        let memory = random(bytes, 4096);
        let spec =
            LoadSpec { op: Op::FetchAdd, bytes: 8, threads, outstanding: 16 * threads, memory, ..busy() };
        run("cx5-like", spec).ops_per_s / 1e6
    };
    near(at(1, 4096), 2.7, 0.02);
    near(at(16, 8), 2.7, 0.02);
    near(at(32, 4096), 52.0, 0.05);
}

#[test]
fn a_server_answers_every_request() {
    let reply = Reply { threads: 8, bytes: 32, ..Reply::default() };
    let spec = LoadSpec { op: Op::Send, bytes: 32, inline: true, reply: Some(reply), ..busy() };
    let outcome = run("cx5-like", spec);
    assert_eq!(outcome.measured, 20_000);
    assert!(outcome.ops_per_s > 5e6 && outcome.latency_ns.p50 > 3_000.0, "{outcome:?}");
}

#[test]
fn an_open_loop_completes_what_arrives_until_it_cannot() {
    let at = |rate| run("cx5-like", LoadSpec { rate, ..busy() });
    let (calm, flooded) = (at(2e6), at(1e9));
    near(calm.ops_per_s, 2e6, 0.03);
    assert!(flooded.ops_per_s < 2e8 && flooded.latency_ns.p99 > 4.0 * calm.latency_ns.p99);
}

#[test]
fn the_rows_of_the_article_come_out_within_15_percent() {
    for (qps, rate, microseconds) in [(1, 120e3, 85.0), (8, 680e3, 18.0), (16, 1.2e6, 9.0)] {
        let outcome = run("article", LoadSpec::article(qps));
        near(outcome.ops_per_s, rate, 0.15);
        near(outcome.latency_ns.mean / 1e3, microseconds, 0.15);
    }
}

#[test]
fn deregistering_flushes_the_translations() {
    let mut model = Model::new(&profile("cx5-like"));
    let cq = model.create_cq(NodeId(0));
    let qp = model.create_qp(NodeId(0), NodeId(1), Transport::Rc, cq);
    let keys = [0, 1].map(|_| model.register(NodeId(1), Region { bytes: 1 << 20, page: 4096 }));
    let mut at = 0;
    let mut misses = |model: &mut Model, mr| {
        let before = model.counts(NodeId(1));
        let remote = Some(Place { mr, offset: 0 });
        model.post(at, qp, &[Request { bytes: 8, remote, ..Request::default() }]);
        at += time::MS;
        model.advance(at, &mut Vec::new());
        let counts = model.counts(NodeId(1)).since(&before);
        counts.mpt.lookups - counts.mpt.hits + counts.mtt.lookups - counts.mtt.hits
    };
    assert_eq!(keys.map(|mr| misses(&mut model, mr)), [2, 2]);
    assert_eq!(keys.map(|mr| misses(&mut model, mr)), [0, 0]);
    model.deregister(keys[0]);
    assert_eq!(misses(&mut model, keys[1]), 0, "the other region's stay");
    let again = model.register(NodeId(1), Region { bytes: 1 << 20, page: 4096 });
    assert_eq!(misses(&mut model, again), 2);
}

#[test]
fn a_queue_pair_that_may_have_one_read_outstanding_reads_once_per_round_trip() {
    let took = |most: u32| {
        let mut model = Model::new(&profile("cx5-like"));
        let cq = model.create_cq(NodeId(0));
        let qp = model.create_qp(NodeId(0), NodeId(1), Transport::Rc, cq);
        model.limit_reads(qp, most);
        let read = Request { op: Op::Read, bytes: 64, signalled: true, ..Request::default() };
        model.post(0, qp, &[read; 16]);
        let mut done = Vec::new();
        model.advance(time::MS, &mut done);
        assert_eq!(done.len(), 16);
        done[15].at as f64
    };
    let (one, many) = (took(1), took(16));
    assert!(one > many * 5.0, "one at a time {one} ps, sixteen {many} ps");
    near(took(0), one, 0.0);
}

#[test]
fn a_small_path_mtu_makes_more_packets_of_the_same_bytes() {
    let took = |mtu: u64| {
        let mut model = Model::new(&profile("cx5-like"));
        let cq = model.create_cq(NodeId(0));
        let qp = model.create_qp(NodeId(0), NodeId(1), Transport::Rc, cq);
        model.limit_packets(qp, mtu);
        let write = Request { op: Op::Write, bytes: 65536, signalled: true, ..Request::default() };
        model.post(0, qp, &[write; 64]);
        let mut done = Vec::new();
        model.advance(10 * time::MS, &mut done);
        assert_eq!(done.len(), 64);
        done[63].at as f64
    };
    let (small, whole) = (took(256), took(4096));
    assert!(small > whole * 1.1, "256 B {small} ps, 4 KiB {whole} ps");
    near(took(1 << 20), whole, 0.0);
}

#[test]
fn a_hundred_thousand_queue_pairs_and_a_tebibyte_are_no_trouble() {
    let memory = random(1 << 40, 4096);
    let spec = LoadSpec { op: Op::Read, qps: 100_000, pick: Pick::Random, memory, ..busy() };
    let outcome = run("cx5-like", spec);
    assert!(outcome.ops_per_s > 1e6 && outcome.initiator.hits.qpc < Some(0.6));
    let mut model = Model::new(&profile("cx5-like"));
    let cq = model.create_cq(NodeId(0));
    (0..2000).for_each(|_| {
        model.create_qp(NodeId(0), NodeId(1), Transport::Rc, cq);
    });
    model.register(NodeId(0), Region { bytes: 1 << 40, page: 2 << 20 });
    let memory = model.context_memory(NodeId(0));
    assert_eq!((memory.qps, memory.cqs, memory.mpt, memory.mtt), (512_000, 64, 64, 8 << 19));
}

#[test]
fn a_range_holds_the_prediction_and_says_what_it_hangs_on() {
    let spec = |page| LoadSpec {
        op: Op::Read,
        memory: random(1 << 30, page),
        warmup: 2_000,
        measure: 3_000,
        ..busy()
    };
    let nic = profile("cx3-like");
    let predict = || predict_range(&nic, &spec(4096), &spec(2 << 20), 24, 7).expect("are valid loads");
    let prediction = predict();
    assert!(prediction.low <= prediction.median && prediction.median <= prediction.high);
    assert!(prediction.low > 1.5 && prediction.low < prediction.ratio && prediction.ratio < prediction.high);
    assert!(prediction.varied > 30 && prediction.drivers.len() <= 3);
    let names: Vec<_> = prediction.drivers.iter().map(|(name, _)| *name).collect();
    assert!(
        names.iter().any(|name| name.starts_with("mtt.")),
        "{names:?}: 4 KiB pages miss the translation cache"
    );
    assert_eq!(prediction, predict());
}

#[test]
fn loads_that_mean_nothing_are_refused_with_the_field_and_the_fix() {
    let refused =
        |spec: LoadSpec| drive(&profile("cx5-like"), &spec).expect_err("must be refused").to_string();
    assert!(refused(LoadSpec { threads: 0, ..busy() }).starts_with("threads = \"0\": must be"));
    assert!(refused(LoadSpec { op: Op::Read, inline: true, ..busy() }).starts_with("inline = \"true\""));
    assert!(refused(LoadSpec { signal_every: 17, ..busy() }).contains("no CQE would come"));
    assert!(refused(LoadSpec { rate: f64::NAN, ..busy() }).starts_with("rate = \"NaN\""));
    assert!(profile("cx5-like").with(Key::MttEntries, -1.0).is_err());
}
