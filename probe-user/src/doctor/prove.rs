//! What a proof is run with: the user's own parameters, as observed.

use crate::model::Model;
use crate::sample::ProcessId;

use super::traffic::{Traffic, mean_bytes};

/// Most bytes and outstanding requests that are passed on: beyond, a workload takes longer than anyone waits.
const MOST_SIZE: u64 = 1 << 20;
const MOST_WINDOW: u64 = 4096;

/// Parameters of a workload that is to show an effect as it would be here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Parameters {
    /// Bytes of a message.
    pub size: Option<u64>,
    /// Requests outstanding per queue pair.
    pub window: Option<u64>,
    /// The device to run on, where only one comes into question.
    pub device: Option<String>,
}

impl Parameters {
    /// Those observed of a process, or of the busiest where none is named. Nothing is made up: what was not seen is
    /// left to the workload.
    pub fn observed(model: &Model, process: Option<ProcessId>) -> Self {
        let processes = model.processes.values().filter(|p| process.is_none_or(|id| p.info.id == id));
        let busiest =
            processes.filter_map(|p| Some((p, Traffic::of(p)?))).max_by_key(|(_, traffic)| traffic.all.wrs);
        let (mut size, mut window) = (None, None);
        if let Some((process, traffic)) = busiest
            && traffic.all.wrs > 0
        {
            size = Some((mean_bytes(&traffic.all).round() as u64).clamp(1, MOST_SIZE));
            let known = traffic.senders().filter_map(|(_, c)| c.detail.as_ref()?.most_outstanding).max();
            let depth =
                process.queues.qps().into_iter().chain(process.queues.ended()).map(|qp| qp.max_send_wr).max();
            window = known.or(depth.map(u64::from)).filter(|n| *n > 0).map(|n| n.min(MOST_WINDOW));
        }
        let mut devices = model.devices.keys();
        let device = devices.next().filter(|_| devices.next().is_none()).cloned();
        Self { size, window, device }
    }

    /// As arguments of `rdma-workload compare`.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        for (name, value) in [("--size", self.size), ("--window", self.window)] {
            arguments.extend(value.map(|value| format!("{name}={value}")));
        }
        arguments.extend(self.device.iter().map(|device| format!("--device={device}")));
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_observed_leaves_everything_to_the_workload() {
        let none = Parameters::observed(&Model::new(), None);
        assert_eq!(none, Parameters::default());
        assert!(none.arguments().is_empty());
    }

    #[test]
    fn what_was_observed_becomes_arguments() {
        let some = Parameters { size: Some(64), window: Some(128), device: Some("mlx5_0".into()) };
        assert_eq!(some.arguments(), ["--size=64", "--window=128", "--device=mlx5_0"]);
    }
}
