//! From a model to a report.

mod data_path;

use crate::model::{self, Model, ProcessModel, Step};
use crate::sample::{Call, Histogram, Verdict};
use crate::trace::Notes;

use super::document::*;
use super::names;

/// Ranges listed among those registered repeatedly.
const RANGES_LISTED: usize = 5;

const REGISTRATION: &[Call] = &[Call::RegMr, Call::RegDmabufMr];

/// Which processes to show: all when empty, else those whose pid or command name is among these.
#[derive(Debug, Clone, Default)]
pub struct Filter(pub Vec<String>);

impl Filter {
    pub(super) fn wants(&self, pid: u32, comm: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|name| name == comm || name.parse() == Ok(pid))
    }
}

/// Builds the report of `model`; `notes` is what the reader of the trace noticed, `None` for a live recording.
pub fn build(model: &Model, notes: Option<&Notes>, filter: &Filter) -> Report {
    let visible = Visible::new(model);
    let mut processes: Vec<Process> = model
        .processes
        .iter()
        .filter(|(id, process)| process.used_rdma() && filter.wants(id.pid, &process.info.comm))
        .map(|(_, process)| build_process(model, process, &visible))
        .collect();
    processes.sort_by_cached_key(|p| (std::cmp::Reverse(control_time(p)), p.pid, p.start_ns));
    let lost = model.lost();
    Report {
        schema: SCHEMA.to_owned(),
        trace: build_trace(model, notes),
        window: (model.window_start_ns.is_some() || model.window_end_ns.is_some()).then(|| {
            let begin = model.header.t_ns;
            let end = model.window_end_ns.unwrap_or(model.now_ns).min(model.now_ns);
            Window {
                from_ns: model.window_start_ns.unwrap_or(begin).saturating_sub(begin),
                to_ns: end.saturating_sub(begin),
            }
        }),
        lost: Lost {
            total: [lost.ring_events, lost.unpaired, lost.kernel_returns, lost.uncounted]
                .into_iter()
                .fold(0, u64::saturating_add),
            ring_events: lost.ring_events,
            unpaired: lost.unpaired,
            kernel_returns: lost.kernel_returns,
            uncounted: lost.uncounted,
        },
        late: model.latest_probes().map(|(file, late_ns)| Late { file: file.to_owned(), late_ns }),
        probes: model
            .probes
            .values()
            .map(|p| Probe {
                name: p.name.clone(),
                place: p.place.clone(),
                call: p.call.filter(|call| *call != Call::Unknown),
                late_ns: p.late_ns,
                verdict: p.verdict.clone(),
            })
            .filter(|p| p.verdict != Verdict::Unknown)
            .collect(),
        devices: model.devices.values().cloned().collect(),
        processes_not_shown: (model.processes.len() - processes.len()) as u64,
        processes,
    }
}

/// Why calls of these kinds could not be observed in `process`; `None` where their figures stand, 0 included.
pub fn unavailable(model: &Model, process: &ProcessModel, calls: &[Call]) -> Option<String> {
    Visible::new(model).missing(process, calls)
}

fn build_trace(model: &Model, notes: Option<&Notes>) -> Trace {
    let header = &model.header;
    let footer = model.footer.as_ref();
    Trace {
        host: header.host.clone(),
        kernel: header.kernel.clone(),
        arch: header.arch.clone(),
        writer: header.writer.clone(),
        command: header.command.clone(),
        pids: header.pids.clone(),
        started_wall_ns: header.wall_ns,
        duration_ns: model.now_ns.saturating_sub(header.t_ns),
        ended: footer.map(|f| f.reason.clone()),
        exit_status: footer.and_then(|f| f.exit_status),
        cut_off_line: notes.and_then(|n| n.cut_off_line),
        unknown_lines: notes.map_or(0, |n| n.unknown_kinds),
    }
}

/// Which calls a live probe counted: what no probe saw is unavailable, not 0.
struct Visible<'a> {
    model: &'a Model,
    probes_name_calls: bool,
}

impl<'a> Visible<'a> {
    fn new(model: &'a Model) -> Self {
        Self { model, probes_name_calls: model.probes.values().any(|p| p.call.is_some()) }
    }

    /// `None` when the figure stands; otherwise why it could not be observed.
    fn missing(&self, process: &ProcessModel, calls: &[Call]) -> Option<String> {
        let seen = calls.iter().any(|call| process.calls.contains_key(call));
        if seen || !self.probes_name_calls {
            return None;
        }
        let mut why = None;
        for probe in self.model.probes.values().filter(|p| p.call.is_some_and(|c| calls.contains(&c))) {
            match &probe.verdict {
                Verdict::Live | Verdict::Sampled { .. } => return None,
                Verdict::Unknown => {}
                verdict => {
                    let (word, reason) = verdict.words();
                    why.get_or_insert(format!("{} is {word}: {reason}", probe.name));
                }
            }
        }
        Some(why.unwrap_or_else(|| "no probe watched this call".to_owned()))
    }
}

fn build_process(model: &Model, process: &ProcessModel, visible: &Visible<'_>) -> Process {
    let info = &process.info;
    Process {
        pid: info.id.pid,
        start_ns: info.id.start_ns,
        comm: info.comm.clone(),
        exe: info.exe.clone(),
        uid: info.uid,
        parent_pid: info.parent_pid,
        exited: info.exited,
        calls_without_event: process.object_calls_without_event(),
        registration: registration(model, process, visible),
        reregistration: calls(process, &[Call::ReregMr], visible),
        deregistration: deregistration(process, visible),
        kernel_pin: kernel_pin(process, visible),
        queues: queues(model, process, visible),
        data_path: data_path::of_process(process),
        messages: (!process.messages.is_empty()).then(|| messages(&process.messages)),
        modify_qp: ModifyQp {
            calls: calls(process, &[Call::ModifyQp], visible),
            reached: process.queues.reached.clone(),
        },
        waits: waits(process, visible),
        connections: connections(process, visible),
        objects: other_objects(process, visible),
    }
}

fn calls(process: &ProcessModel, which: &[Call], visible: &Visible<'_>) -> Calls {
    if let Some(why) = visible.missing(process, which) {
        return Calls { unavailable: Some(why), ..Calls::default() };
    }
    let count = process.counts(which);
    let longest = process.longest_ns(which);
    let mut latency = latency(&process.latency(which), longest);
    latency.mean = count.total_ns.checked_div(count.returned);
    latency.total = latency.mean.map(|_| count.total_ns);
    let mut failures: Vec<_> = process
        .errnos(which)
        .into_iter()
        .map(|(number, count)| Failure { errno: names::errno(number), number, count })
        .collect();
    failures.sort_by_key(|f| std::cmp::Reverse(f.count));
    Calls {
        count: Some(count.entered),
        failed: Some(count.failed),
        not_returned: Some(count.entered.saturating_sub(count.returned)),
        latency_ns: latency,
        failures,
        unavailable: None,
    }
}

fn messages(m: &model::Messages) -> Messages {
    let latency = |histogram: &Histogram| latency(histogram, histogram.highest().map(|(_, high)| high));
    Messages {
        sends: m.sends,
        receives: m.receives,
        done: m.done,
        failed: m.failed,
        missing: m.missing,
        send_ns: latency(&m.send_ns),
        receive_ns: latency(&m.receive_ns),
    }
}

/// Quantiles of `histogram`; `longest_ns` is its longest value where that is known exactly.
pub fn latency(histogram: &Histogram, longest_ns: Option<u64>) -> Latency {
    // The middle of the last bucket may lie above the longest call known exactly.
    let quantile = |q| Some(histogram.quantile(q)?.min(longest_ns.unwrap_or(u64::MAX)));
    Latency {
        p50: quantile(0.5),
        p90: quantile(0.9),
        p99: quantile(0.99),
        max: longest_ns,
        mean: None,
        total: None,
    }
}

fn registration(model: &Model, process: &ProcessModel, visible: &Visible<'_>) -> Registration {
    let calls = calls(process, REGISTRATION, visible);
    let known = calls.count.is_some();
    let some = |n: u64| known.then_some(n);
    let r = &process.registrations;
    let split = &r.split;
    let kernel_share = split.kernel.share();
    Registration {
        bytes: some(process.counts(REGISTRATION).bytes),
        live: some(r.population.live),
        live_bytes: some(r.bytes.live),
        peak: some(r.population.peak),
        peak_bytes: some(r.bytes.peak),
        exact: events_complete(model, process),
        split: Split {
            kernel_share,
            library_share: kernel_share.map(|share| (1.0 - share).max(0.0)),
            pin_share: split.pin.share(),
            dma_map_share: split.dma_map.share(),
            driver_share: split.driver.share(),
            kernel_other_share: kernel_share
                .zip(split.pin.share())
                .zip(split.driver.share())
                .map(|((kernel, pin), driver)| (kernel - pin - driver).max(0.0)),
            page_faults: (split.page_faults_known > 0).then_some(split.page_faults),
        },
        pages: Pages {
            count: some(r.pages),
            mean_ns_per_page: (r.pages > 0).then(|| r.pages_ns as f64 / r.pages as f64),
            fit: r.page_cost.fit().map(fit),
            fit_resident: r.page_cost_resident.fit().map(fit),
        },
        sizes: r
            .sizes
            .iter()
            .map(|(class, s)| SizeClass {
                up_to_bytes: 1_u64.checked_shl((*class).into()).unwrap_or(u64::MAX),
                count: s.count,
                bytes: s.bytes,
                mean_ns: s.total_ns / s.count.max(1),
                max_ns: s.longest_ns,
            })
            .collect(),
        repeated: Repeated {
            count: some(r.repeated),
            at_least: r.ranges.forgot(),
            ranges: r
                .ranges
                .most_used(RANGES_LISTED)
                .into_iter()
                .filter(|(.., count)| *count > 1)
                .map(|(addr, length_bytes, count)| Range { addr, length_bytes, count })
                .collect(),
        },
        on_demand: some(r.on_demand),
        calls,
    }
}

fn fit(fit: model::Fit) -> Fit {
    Fit {
        base_ns: fit.base_ns,
        ns_per_page: fit.ns_per_page,
        registrations: fit.registrations,
        from_pages: fit.pages.0,
        to_pages: fit.pages.1,
        worst_deviation: fit.worst_deviation,
    }
}

/// True when every object call of this process is known to have left its event.
fn events_complete(model: &Model, process: &ProcessModel) -> bool {
    process.object_calls_without_event() == 0 && model.lost().uncounted == 0
}

fn deregistration(process: &ProcessModel, visible: &Visible<'_>) -> Deregistration {
    let calls = calls(process, &[Call::DeregMr], visible);
    let of_unknown = calls.count.map(|_| process.registrations.unknown_deregistered);
    Deregistration { calls, of_unknown }
}

fn kernel_pin(process: &ProcessModel, visible: &Visible<'_>) -> KernelPin {
    let calls = calls(process, &[Call::KernelPin], visible);
    let known = calls.count.is_some();
    KernelPin {
        bytes: known.then(|| process.count(Call::KernelPin).bytes),
        in_registration: known.then_some(process.pins.in_registration),
        page_faults: known.then_some(process.pins.page_faults),
        calls,
    }
}

fn queues(model: &Model, process: &ProcessModel, visible: &Visible<'_>) -> Queues {
    let q = &process.queues;
    let relative = |t: Option<u64>| t.map(|t| t.saturating_sub(model.header.t_ns));
    let qp_create = calls(process, &[Call::CreateQp], visible);
    let cq_create = calls(process, &[Call::CreateCq], visible);
    let srq_create = calls(process, &[Call::CreateSrq], visible);
    let made = |known: &Calls, call| known.count.map(|_| process.succeeded_calls(call));
    let destroyed = |call| visible.missing(process, &[call]).is_none().then(|| process.succeeded_calls(call));
    let mut cqs: Vec<Cq> = q
        .cqs()
        .iter()
        .map(|(pointer, cq)| Cq {
            cq: *pointer,
            cqe: cq.created_ns.map(|_| cq.cqe),
            channel: cq.channel != 0,
            qps_peak: cq.qps.peak,
            ..Cq::default()
        })
        .collect();
    cqs.sort_unstable_by_key(|cq| (std::cmp::Reverse(cq.qps_peak), cq.cq));
    let place: std::collections::HashMap<u64, usize> =
        cqs.iter().enumerate().map(|(index, cq)| (cq.cq, index)).collect();
    for qp in q.qps() {
        for cq in qp.cqs() {
            if let Some(index) = place.get(&cq) {
                cqs[*index].qpns.push(qp.qpn);
            }
        }
    }
    let mut qps: Vec<Qp> = q.qps().into_iter().chain(q.ended()).map(|qp| queue_pair(qp, relative)).collect();
    data_path::into_queues(process, &mut qps, &mut cqs);
    Queues {
        qp_created: made(&qp_create, Call::CreateQp),
        qp_failed: qp_create.failed,
        qp_destroyed: destroyed(Call::DestroyQp),
        qp_live: qp_create.count.map(|_| q.qp_population.live),
        qp_peak: qp_create.count.map(|_| q.qp_population.peak),
        cq_created: made(&cq_create, Call::CreateCq),
        cq_failed: cq_create.failed,
        cq_destroyed: destroyed(Call::DestroyCq),
        cq_live: cq_create.count.map(|_| q.cq_population.live),
        cq_peak: cq_create.count.map(|_| q.cq_population.peak),
        srq_created: made(&srq_create, Call::CreateSrq),
        srq_live: srq_create.count.map(|_| q.srq_population.live),
        srq_peak: srq_create.count.map(|_| q.srq_population.peak),
        qps_per_cq_max: qp_create.count.map(|_| q.most_qps_on_a_cq),
        qp_create,
        cq_create,
        exact: events_complete(model, process),
        destroyed_of_unknown: q.unknown_destroyed,
        qps,
        qps_not_listed: q.ended_dropped,
        cqs,
    }
}

fn queue_pair(qp: &model::Qp, relative: impl Fn(Option<u64>) -> Option<u64>) -> Qp {
    let a = &qp.attributes;
    Qp {
        qpn: qp.qpn,
        qp: qp.qp,
        gone: qp.destroyed_ns.is_some(),
        qp_type: (!qp.qp_type.is_empty()).then(|| qp.qp_type.clone()),
        state: qp.state.clone(),
        created_ns: relative(qp.created_ns),
        destroyed_ns: relative(qp.destroyed_ns),
        max_send_wr: qp.max_send_wr,
        max_recv_wr: qp.max_recv_wr,
        max_send_sge: qp.max_send_sge,
        max_recv_sge: qp.max_recv_sge,
        max_inline_bytes: qp.max_inline_bytes,
        sq_sig_all: qp.sq_sig_all,
        send_cq: qp.send_cq,
        recv_cq: qp.recv_cq,
        srq: qp.srq,
        qp_access_flags: a.qp_access_flags,
        path_mtu_bytes: a.path_mtu_bytes,
        dest_qpn: a.dest_qpn,
        dgid: a.dgid.clone(),
        dlid: a.dlid,
        sgid_index: a.sgid_index,
        traffic_class: a.traffic_class,
        timeout: a.timeout,
        retry_cnt: a.retry_cnt,
        rnr_retry: a.rnr_retry,
        min_rnr_timer: a.min_rnr_timer,
        max_rd_atomic: a.max_rd_atomic,
        max_dest_rd_atomic: a.max_dest_rd_atomic,
        failed_changes: qp.failed_changes,
        transitions: qp
            .transitions
            .iter()
            .map(|t| Transition {
                t_ns: relative(Some(t.t_ns)).unwrap_or_default(),
                duration_ns: t.duration_ns,
                from: t.from.clone(),
                to: t.to.clone(),
                errno: t.errno,
            })
            .collect(),
        data_path: None,
    }
}

fn waits(process: &ProcessModel, visible: &Visible<'_>) -> Waits {
    let acknowledged = visible.missing(process, &[Call::AckCqEvents]).is_none();
    Waits {
        cq_event: calls(process, &[Call::GetCqEvent], visible),
        acknowledged: acknowledged.then_some(process.acknowledged),
        async_event: calls(process, &[Call::GetAsyncEvent], visible),
        async_events: process.async_events.iter().map(|(t, n)| (names::async_event(*t), *n)).collect(),
    }
}

fn connections(process: &ProcessModel, visible: &Visible<'_>) -> Connections {
    if let Some(why) = visible.missing(process, &[Call::CmGetEvent, Call::CmConnect, Call::CmAccept]) {
        return Connections { unavailable: Some(why), ..Connections::default() };
    }
    let cm = &process.cm;
    let step = |step: Step| {
        cm.steps_ns.get(&step).map(|h| latency(h, h.highest().map(|(_, high)| high))).unwrap_or_default()
    };
    Connections {
        requested: Some(cm.requests),
        established: Some(cm.established),
        disconnected: Some(cm.disconnected),
        rejected: Some(process.succeeded_calls(Call::CmReject)),
        resolve_addr_ns: step(Step::ResolveAddr),
        resolve_route_ns: step(Step::ResolveRoute),
        connect_ns: step(Step::Connect),
        accept_ns: step(Step::Accept),
        disconnect_ns: step(Step::Disconnect),
        failures: cm
            .failures
            .iter()
            .map(|((step, status), count)| CmFailure {
                step: step.name().to_owned(),
                status: *status,
                count: *count,
            })
            .collect(),
        unavailable: None,
    }
}

fn other_objects(process: &ProcessModel, visible: &Visible<'_>) -> OtherObjects {
    let made = |call| visible.missing(process, &[call]).is_none().then(|| process.succeeded_calls(call));
    let live = |call, objects: &model::Objects| made(call).map(|_| objects.population.live);
    OtherObjects {
        pd_created: made(Call::AllocPd),
        pd_live: live(Call::AllocPd, &process.pds),
        comp_channel_created: made(Call::CreateCompChannel),
        comp_channel_live: live(Call::CreateCompChannel, &process.channels),
        device_opened: made(Call::OpenDevice),
        device_open: live(Call::OpenDevice, &process.contexts),
    }
}

/// Time spent in registering, deregistering and creating: what a process is sorted by.
fn control_time(process: &Process) -> u64 {
    [
        &process.registration.calls,
        &process.reregistration,
        &process.deregistration.calls,
        &process.queues.qp_create,
        &process.queues.cq_create,
        &process.modify_qp.calls,
    ]
    .into_iter()
    .filter_map(|calls| calls.latency_ns.total)
    .fold(0, u64::saturating_add)
}
