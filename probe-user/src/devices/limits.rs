//! What devices can hold. Only their provider libraries know, and they are not loaded into a profiler: `ibv_devinfo` is
//! asked, in a process of its own, where it is installed.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::sample::Limits;

/// A device that does not answer by then is left alone.
const PATIENCE: Duration = Duration::from_secs(2);

/// Limits by device name; empty where nobody could be asked.
pub fn limits() -> BTreeMap<String, Limits> {
    ask().map(|text| parse(&text)).unwrap_or_default()
}

fn ask() -> Option<String> {
    let mut child = Command::new("ibv_devinfo")
        .arg("-v")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut pipe = child.stdout.take()?;
    // Read beside the waiting: a full pipe would keep it from ending.
    let reader = thread::spawn(move || {
        let mut text = String::new();
        pipe.read_to_string(&mut text).map(|_| text)
    });
    let until = Instant::now() + PATIENCE;
    while child.try_wait().ok()?.is_none() {
        if Instant::now() >= until {
            // It may have ended by itself meanwhile.
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        thread::sleep(Duration::from_millis(5));
    }
    reader.join().ok()?.ok()
}

/// `hca_id: mlx5_0` begins a device; `max_qp:  131072` is one of its limits.
fn parse(text: &str) -> BTreeMap<String, Limits> {
    let mut all: BTreeMap<String, Limits> = BTreeMap::new();
    let mut device = None;
    for (key, value) in text.lines().filter_map(|line| line.trim().split_once(':')) {
        let value = value.trim();
        match key.trim() {
            "hca_id" => device = Some(value.to_owned()),
            "max_qp" | "max_mr" => {
                let Some(limits) = device.as_ref().map(|name| all.entry(name.clone()).or_default()) else {
                    continue;
                };
                let limit = value.parse().ok().filter(|n| *n > 0);
                *(if key.trim() == "max_qp" { &mut limits.max_qp } else { &mut limits.max_mr }) = limit;
            }
            _ => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_from_what_ibv_devinfo_prints() {
        let text = "hca_id:\trxe0\n\ttransport:\t\t\tInfiniBand (0)\n\tmax_mr_size:\t\t\t0xffffffffffffffff\n\
                    \tmax_qp:\t\t\t\t1048560\n\tmax_mr:\t\t\t\t524287\nhca_id:\tmlx5_0\n\tmax_qp:\t\t\tbroken\n";
        let all = parse(text);
        assert_eq!(all["rxe0"], Limits { max_qp: Some(1_048_560), max_mr: Some(524_287) });
        assert_eq!(all["mlx5_0"], Limits::default());
        assert!(parse("max_qp: 3\nNo IB devices found\n").is_empty());
    }
}
