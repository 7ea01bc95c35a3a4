//! What a run is made with: the device, the peer, the sizes the user asked for.

use crate::device::Device;
use crate::error::usage;
use crate::exchange::{Reply, Wire};
use crate::measure::Plan;
use crate::memory::MemoryKind;
use anyhow::{Context as _, Result};
use clap::ValueEnum as _;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// What the user may set. `None` leaves a value to the workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Bytes per operation.
    pub size: Option<u64>,
    /// Bytes of the remote region.
    pub region: Option<u64>,
    /// Requests outstanding per queue pair.
    pub window: Option<u64>,
    /// Kind of memory.
    pub memory: Option<MemoryKind>,
    /// Time for one comparison of two variants.
    pub seconds: f64,
    /// Pairs of runs per comparison.
    pub pairs: usize,
    /// Whether huge pages may be added to the kernel's pools for the run.
    pub reserve_hugepages: bool,
    /// Draws from the model's uncertain parameters per prediction.
    pub draws: u32,
    /// Profile of the emulated device and the model.
    pub profile: Option<String>,
    /// Speed of the emulated device's modelled time, where it is to be timed throughout.
    pub speed: Option<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            size: None,
            region: None,
            window: None,
            memory: None,
            seconds: 6.0,
            pairs: 9,
            reserve_hugepages: false,
            draws: 40,
            profile: None,
            speed: None,
        }
    }
}

impl Options {
    /// Refuses zero and absurd values with the name of the option.
    pub fn check(&self) -> Result<()> {
        let sizes = [
            ("--size", self.size, 1 << 30),
            ("--region", self.region, 1 << 40),
            ("--window", self.window, 1 << 20),
        ];
        for (name, value, most) in sizes {
            if let Some(value) = value
                && (value == 0 || value > most)
            {
                return Err(usage(format!("{name} {value} is out of range; give 1 to {most}")));
            }
        }
        if !(self.seconds.is_finite() && (0.05..=3600.0).contains(&self.seconds)) {
            return Err(usage(format!("--seconds {} is out of range; give 0.05 to 3600", self.seconds)));
        }
        if self.pairs == 0 || self.pairs > 999 {
            return Err(usage(format!("--pairs {} is out of range; give 1 to 999", self.pairs)));
        }
        if self.draws == 0 || self.draws > 10_000 {
            return Err(usage(format!("--draws {} is out of range; give 1 to 10000", self.draws)));
        }
        Ok(())
    }

    /// The same choices as arguments, for a comparison measured in a process of its own.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            format!("--seconds={}", self.seconds),
            format!("--pairs={}", self.pairs),
            format!("--draws={}", self.draws),
        ];
        let sizes = [("size", self.size), ("region", self.region), ("window", self.window)];
        arguments.extend(sizes.iter().filter_map(|(name, value)| Some(format!("--{name}={}", (*value)?))));
        if let Some(value) = self.memory.and_then(|memory| memory.to_possible_value()) {
            arguments.push(format!("--memory={}", value.get_name()));
        }
        if let Some(profile) = &self.profile {
            arguments.push(format!("--profile={profile}"));
        }
        if self.reserve_hugepages {
            arguments.push("--reserve-hugepages".into());
        }
        arguments
    }

    /// Lengths of the runs of one comparison.
    pub fn plan(&self) -> Plan {
        Plan::within(Duration::from_secs_f64(self.seconds), self.pairs)
    }
}

/// Everything a workload runs with.
pub struct Bench {
    device: Device,
    wire: Option<Rc<RefCell<Wire>>>,
    peer_reads: u8,
    /// What the user asked for.
    pub options: Options,
}

impl Bench {
    /// A bench whose peer is in this process.
    pub fn loopback(device: Device, options: Options) -> Bench {
        Bench { device, wire: None, peer_reads: 0, options }
    }

    /// A bench whose peer waits on another host.
    pub fn with_peer(device: Device, options: Options, host: &str, port: u16) -> Result<Bench> {
        let (wire, hello) = Wire::dial(host, port)?;
        let peer_reads = match hello {
            Reply::Hello { reads, .. } => reads,
            _ => 1,
        };
        Ok(Bench { device, wire: Some(Rc::new(RefCell::new(wire))), peer_reads, options })
    }

    /// The open device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Connection to the peer; `None` for loopback.
    pub fn wire(&self) -> Option<Rc<RefCell<Wire>>> {
        self.wire.clone()
    }

    /// Whether the peer is on another host.
    pub fn is_remote(&self) -> bool {
        self.wire.is_some()
    }

    /// READs and atomics the peer's device can serve per queue pair.
    pub fn peer_reads(&self) -> u8 {
        self.peer_reads
    }

    /// Bytes per operation: the user's choice or the workload's.
    pub fn size(&self, default: u32) -> Result<u32> {
        match self.options.size {
            None => Ok(default),
            Some(size) => u32::try_from(size).context("size does not fit 32 bits"),
        }
    }

    /// Bytes of the remote region: the user's choice or the workload's.
    pub fn region(&self, default: u64) -> u64 {
        self.options.region.unwrap_or(default)
    }

    /// Window: the user's choice or the workload's, within the device's queue depth.
    pub fn window(&self, default: u32) -> u32 {
        let wanted = self.options.window.map_or(default, |window| u32::try_from(window).unwrap_or(u32::MAX));
        wanted.min(self.device.info.max_qp_wr.max(1))
    }

    /// Kind of memory: the user's choice or the workload's.
    pub fn memory(&self, default: MemoryKind) -> MemoryKind {
        self.options.memory.unwrap_or(default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_survive_the_way_through_a_command_line() {
        use crate::cli::{Cli, Command};
        use clap::Parser as _;
        let chosen = Options {
            size: Some(128),
            window: Some(7),
            memory: Some(MemoryKind::Huge2M),
            seconds: 0.25,
            pairs: 3,
            draws: 5,
            reserve_hugepages: true,
            profile: Some("cx3-like".into()),
            ..Options::default()
        };
        let arguments =
            ["rdma-workload", "compare", "inline"].map(String::from).into_iter().chain(chosen.arguments());
        let Command::Compare { common, .. } = Cli::try_parse_from(arguments).unwrap().command else {
            panic!()
        };
        assert_eq!(common.options(false), chosen);
    }

    #[test]
    fn zero_and_absurd_options_name_themselves() {
        let good = Options::default();
        assert!(good.check().is_ok());
        let bad = [
            ("--size 0", Options { size: Some(0), ..good.clone() }),
            ("--region", Options { region: Some(u64::MAX), ..good.clone() }),
            ("--window 0", Options { window: Some(0), ..good.clone() }),
            ("--seconds 0", Options { seconds: 0.0, ..good.clone() }),
            ("--seconds NaN", Options { seconds: f64::NAN, ..good.clone() }),
            ("--pairs 0", Options { pairs: 0, ..good }),
        ];
        for (expected, options) in bad {
            let error = options.check().unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
            assert_eq!(crate::error::exit_status(&error), 2);
        }
    }
}
