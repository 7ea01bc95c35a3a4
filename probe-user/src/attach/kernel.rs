//! Probes in the kernel.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::library::drop_links;
use super::perf::{Link, Pmu, attach_event};
use super::program::Pair;
use super::tracefs::ReturnEvents;
use super::verdict::Circumstances;
use super::{AttachError, Programs, verdict_of, verdict_on_loading};
use crate::collect::clock::now_ns;
use crate::collect::decode;
use crate::hooks::KERNEL_HOOKS;
use crate::plan::{self, KernelFunctions, KernelPoint};
use crate::sample::{Probe, Verdict};

/// Attachments made at a time.
const AT_ONCE: usize = 8;

/// All probes in the kernel.
#[derive(Debug)]
pub struct KernelProbes {
    links: Vec<Link>,
    events: Option<ReturnEvents>,
}

impl KernelProbes {
    /// Attaches every hook the kernel has. Also answers for those it has not.
    pub fn attach(programs: &mut Programs, functions: &dyn KernelFunctions) -> (Self, Vec<Probe>) {
        let circumstances = Circumstances::read();
        let points = plan::kernel(functions);
        let mut probes = Vec::new();
        let mut kernel = Self { links: Vec::new(), events: None };
        let probe = |point: &KernelPoint, verdict| Probe {
            name: format!("kernel:{}", point.symbol),
            place: match &point.blind {
                Some(why) => format!("{} (address and length not read: {why})", point.symbol),
                None => point.symbol.clone(),
            },
            call: point.told.call.map(decode::call),
            t_ns: now_ns(),
            late_ns: None,
            verdict,
        };
        if points.is_empty() {
            let why = if std::path::Path::new("/sys/class/infiniband").exists() {
                "this kernel shows no function of that name"
            } else {
                "this kernel has no RDMA subsystem loaded (no /sys/class/infiniband)"
            };
            probes.extend(absent(&points, why));
            return (kernel, probes);
        }
        let pmu = match Pmu::read("kprobe") {
            Ok(pmu) => pmu,
            Err(error) => {
                let verdict = Verdict::NotHere { why: format!("this kernel has no kprobes ({error})") };
                probes.extend(points.iter().map(|point| probe(point, verdict.clone())));
                return (kernel, probes);
            }
        };
        let pair = match programs.load_kernel() {
            Ok(pair) => pair,
            Err(error) => {
                let verdict = verdict_on_loading(&error);
                probes.extend(points.iter().map(|point| probe(point, verdict.clone())));
                return (kernel, probes);
            }
        };
        let (mut events, no_events) = match ReturnEvents::new() {
            Ok(events) => (Some(events), None),
            Err(error) => (None, Some(error.to_string())),
        };
        // The events are made one after the other (the file is locked anyway), the attachments many at a time.
        let numbered: Vec<_> = points
            .iter()
            .map(|point| (point, events.as_mut().map(|events| events.make(&point.symbol))))
            .collect();
        let results = Mutex::new(Vec::new());
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..AT_ONCE.min(numbered.len()) {
                scope.spawn(|| {
                    while let Some((point, event)) = numbered.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let outcome = attach_point(&pair, pmu, point, event.as_ref());
                        results.lock().unwrap_or_else(PoisonError::into_inner).push((*point, outcome));
                    }
                });
            }
        });
        for (point, outcome) in results.into_inner().unwrap_or_else(PoisonError::into_inner) {
            let verdict = match outcome {
                Ok((links, without)) => {
                    kernel.links.extend(links);
                    live(without.or_else(|| no_events.clone()))
                }
                Err(error) => verdict_of(&error, &circumstances),
            };
            probes.push(probe(point, verdict));
        }
        probes.extend(absent(&points, "this kernel has no function of that name"));
        probes.sort_by(|a, b| a.name.cmp(&b.name));
        kernel.events = events;
        (kernel, probes)
    }

    /// Returns the kernel missed for want of slots.
    pub fn missed_returns(&self) -> u64 {
        self.events.as_ref().map_or(0, ReturnEvents::missed)
    }

    /// Detaches everything, then removes the events.
    pub fn detach(self) {
        drop_links(self.links);
        drop(self.events);
    }
}

/// Verdicts on the hooks this kernel has not.
fn absent(points: &[KernelPoint], why: &str) -> Vec<Probe> {
    KERNEL_HOOKS
        .iter()
        .filter(|hook| points.iter().all(|point| point.symbol != hook.symbol))
        .map(|hook| Probe {
            name: format!("kernel:{}", hook.symbol),
            place: String::new(),
            call: hook.call.map(decode::call),
            t_ns: now_ns(),
            late_ns: None,
            verdict: Verdict::NotHere { why: why.to_owned() },
        })
        .collect()
}

fn live(without_returns: Option<String>) -> Verdict {
    match without_returns {
        Some(why) => {
            Verdict::Broken { report: format!("entries are counted, but returns are not seen: {why}") }
        }
        None => Verdict::Live,
    }
}

/// Attaches one hook; the second value says why its returns are not seen, if they are not.
fn attach_point(
    pair: &Pair,
    pmu: Pmu,
    point: &KernelPoint,
    event: Option<&Result<u64, AttachError>>,
) -> Result<(Vec<Link>, Option<String>), AttachError> {
    let mut told = point.told;
    let returned = match event {
        Some(Ok(id)) => attach_event(pair.leave.as_fd(), *id, told.cookie()).map_err(|e| e.to_string()),
        Some(Err(error)) => Err(error.to_string()),
        None => Err("tracefs has no kprobe_events".to_owned()),
    };
    told.entry_only = returned.is_err();
    let entered = pmu.attach_symbol(pair.enter.as_fd(), &point.symbol, false, told.cookie())?;
    Ok(match returned {
        Ok(link) => (vec![link, entered], None),
        Err(why) => (vec![entered], Some(why)),
    })
}
