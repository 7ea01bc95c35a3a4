//! The trial most workloads use: an endpoint and a load on it.

use super::about::Trial;
use crate::bench::Bench;
use crate::drive::Driver;
use crate::endpoint::{Endpoint, Spec};
use crate::load::Load;
use crate::measure::Sample;
use anyhow::Result;
use std::time::Duration;

/// An endpoint under load.
pub struct Traffic {
    driver: Driver,
    endpoint: Endpoint,
}

impl Traffic {
    /// Sets up the endpoint and binds the load to it. Sizes both sides must agree on are taken from the load.
    pub fn open(bench: &Bench, spec: Spec, load: Load) -> Result<Traffic> {
        load.check()?;
        let spec = Spec {
            qps: load.qps,
            depth: load.window,
            remote: load.region,
            // Each request in flight has a place of its own, as an application's would.
            local: spec.local.max((u64::from(load.window) * load.slot()) as usize),
            ..spec
        };
        let endpoint = Endpoint::open(bench, &spec)?;
        let driver = Driver::new(&endpoint, load)?;
        Ok(Traffic { driver, endpoint })
    }

    /// As [`Traffic::open`], boxed.
    pub fn boxed(bench: &Bench, spec: Spec, load: Load) -> Result<Box<dyn Trial>> {
        Ok(Box::new(Traffic::open(bench, spec, load)?))
    }
}

impl Trial for Traffic {
    fn run(&mut self, budget: Duration) -> Result<Sample> {
        self.driver.run(&self.endpoint, budget)
    }

    fn notes(&self) -> Vec<String> {
        let counts = self.endpoint.cqs.iter().map(|cq| cq.counts());
        let (polls, empty, cqes) =
            counts.fold((0, 0, 0), |sum, cq| (sum.0 + cq.0, sum.1 + cq.1, sum.2 + cq.2));
        let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        vec![
            format!("local memory: {}", self.endpoint.obtained().describe()),
            format!("remote memory: {}", self.endpoint.remote_memory),
            format!(
                "{:.2} polls per completion, {:.0} % of them empty",
                share(polls, cqes),
                100.0 * share(empty, polls)
            ),
        ]
    }
}
