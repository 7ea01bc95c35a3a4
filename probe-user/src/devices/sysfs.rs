//! What only sysfs tells of a device: its driver, link rate, GIDs and counters. Each file is read by itself, so that one
//! the driver refuses (`EINVAL` is common) hides no other.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;

use crate::sample::{Gid, Port};

/// Where the kernel lists RDMA devices.
pub const CLASS: &str = "/sys/class/infiniband";

/// GIDs read per port; a table has up to 1,024 places, most of them empty.
const MAX_GIDS: usize = 1024;

/// A file that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Unreadable {
    /// The file.
    pub file: PathBuf,
    /// The system's reason.
    pub reason: String,
}

/// Reads below one device's folder, collecting what could not be read.
#[derive(Debug)]
pub struct Sysfs {
    folder: PathBuf,
    /// What could not be read.
    pub unreadable: Vec<Unreadable>,
}

impl Sysfs {
    /// The device `name` below `class`.
    pub fn new(class: &Path, name: &str) -> Self {
        Self { folder: class.join(name), unreadable: Vec::new() }
    }

    /// A file's text, trimmed; `None` where there is no such file, or it cannot be read (which is noted).
    pub fn text(&mut self, file: impl AsRef<Path>) -> Option<String> {
        let file = self.folder.join(file);
        match fs::read_to_string(&file) {
            Ok(text) => Some(text.trim().to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                self.unreadable.push(Unreadable { file, reason: error.to_string() });
                None
            }
        }
    }

    /// Name of the driver bound to the hardware behind the device; `None` for software devices.
    pub fn driver(&self) -> Option<String> {
        let link = fs::read_link(self.folder.join("device/driver")).ok()?;
        Some(link.file_name()?.to_string_lossy().into_owned())
    }

    /// Ports by number.
    pub fn ports(&self) -> Vec<u32> {
        let mut ports: Vec<u32> =
            names(&self.folder.join("ports")).iter().filter_map(|n| n.parse().ok()).collect();
        ports.sort_unstable();
        ports
    }

    /// All that is told of one port.
    pub fn port(&mut self, number: u32) -> Port {
        let at = PathBuf::from(format!("ports/{number}"));
        let link_layer = self.text(at.join("link_layer")).unwrap_or_default();
        let netdev = self.quiet(&at.join("gid_attrs/ndevs/0")).unwrap_or_default();
        let ethernet = link_layer == "Ethernet";
        Port {
            active_mtu_bytes: ethernet.then(|| self.roce_mtu(&netdev)).flatten().unwrap_or(0),
            link_layer,
            rate_100mbps: self.text(at.join("rate")).and_then(|s| rate_100mbps(&s)).unwrap_or(0),
            netdev,
            gids: self.gids(&at),
            ..self.port_counters(number)
        }
    }

    /// Active MTU of a RoCE port: what of its network interface's MTU is left for the payload of a packet. It is in no
    /// file of the RDMA device.
    fn roce_mtu(&self, netdev: &str) -> Option<u32> {
        let plain = !netdev.is_empty() && !netdev.contains('/') && netdev != "..";
        let class = self.folder.parent()?.parent()?.join("net");
        let mtu = plain.then(|| fs::read_to_string(class.join(netdev).join("mtu")).ok()).flatten()?;
        roce_payload(mtu.trim().parse().ok()?)
    }

    /// What changes of a port: its state, and the counters of `counters` and `hw_counters`.
    pub fn port_counters(&mut self, number: u32) -> Port {
        let at = PathBuf::from(format!("ports/{number}"));
        let mut counters = self.counters(&at.join("counters"));
        counters.extend(self.counters(&at.join("hw_counters")));
        let state = self.text(at.join("state")).map(|s| after_colon(&s)).unwrap_or_default();
        Port { number, state, counters, ..Port::default() }
    }

    /// Counters of the device as a whole.
    pub fn device_counters(&mut self) -> BTreeMap<String, u64> {
        self.counters(Path::new("hw_counters"))
    }

    /// Counters, by name. What is a setting in that folder (`lifespan`) is left out.
    fn counters(&mut self, folder: &Path) -> BTreeMap<String, u64> {
        let names = names(&self.folder.join(folder));
        let mut counters = BTreeMap::new();
        for name in names.into_iter().filter(|name| name != "lifespan") {
            let Some(text) = self.text(folder.join(&name)) else { continue };
            match text.parse() {
                Ok(value) => {
                    counters.insert(name, value);
                }
                Err(_) => self.unreadable.push(Unreadable {
                    file: self.folder.join(folder).join(&name),
                    reason: format!("not a number: '{}'", text.chars().take(40).collect::<String>()),
                }),
            }
        }
        counters
    }

    /// The GIDs in use. Empty places answer with zeros, or with `EINVAL` when asked for their type.
    fn gids(&self, port: &Path) -> Vec<Gid> {
        let mut indices: Vec<u32> =
            names(&self.folder.join(port).join("gids")).iter().filter_map(|n| n.parse().ok()).collect();
        indices.sort_unstable();
        indices
            .into_iter()
            .take(MAX_GIDS)
            .filter_map(|index| {
                let gid = self.quiet(&port.join(format!("gids/{index}")))?;
                if gid.chars().all(|c| c == '0' || c == ':') {
                    return None;
                }
                let gid_type = self.quiet(&port.join(format!("gid_attrs/types/{index}"))).unwrap_or_default();
                Some(Gid { index, gid, gid_type })
            })
            .collect()
    }

    fn quiet(&self, file: &Path) -> Option<String> {
        Some(fs::read_to_string(self.folder.join(file)).ok()?.trim().to_owned())
    }
}

/// Names of the devices below `class`; `None` where there is no such folder: no RDMA subsystem.
pub fn devices(class: &Path) -> Option<Vec<String>> {
    class.is_dir().then(|| names(class))
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names
}

/// The largest path MTU that fits packets of an interface's MTU, as the kernel reckons it (`iboe_get_mtu`): less 96 B of
/// headers (GRH 40, UDP 8, BTH 12, XRC 4, atomic 28, ICRC 4).
fn roce_payload(mtu: u32) -> Option<u32> {
    let room = mtu.checked_sub(96)?;
    [4096, 2048, 1024, 512, 256].into_iter().find(|path_mtu| *path_mtu <= room)
}

/// `4: ACTIVE` → `ACTIVE`.
fn after_colon(text: &str) -> String {
    text.split_once(':').map_or(text, |(_, name)| name).trim().to_owned()
}

/// `2.5 Gb/sec (1X SDR)` → 25.
fn rate_100mbps(text: &str) -> Option<u32> {
    let gigabits: f64 = text.split_whitespace().next()?.parse().ok()?;
    (gigabits.is_finite() && (0.0..1e6).contains(&gigabits)).then(|| (gigabits * 10.0).round() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_that_cannot_be_read_hides_no_other() {
        let class = tempfile::tempdir().unwrap();
        let counters = class.path().join("mlx5_0/ports/1/counters");
        fs::create_dir_all(&counters).unwrap();
        fs::create_dir_all(class.path().join("mlx5_0/ports/1/hw_counters")).unwrap();
        fs::write(counters.join("port_xmit_data"), "12345\n").unwrap();
        fs::write(counters.join("odd"), "N/A (no PMA)\n").unwrap();
        // A folder in a file's place is refused when read, whoever reads.
        fs::create_dir(counters.join("refused")).unwrap();
        fs::write(class.path().join("mlx5_0/ports/1/hw_counters/lifespan"), "10\n").unwrap();
        fs::write(class.path().join("mlx5_0/ports/1/state"), "4: ACTIVE\n").unwrap();
        let mut sysfs = Sysfs::new(class.path(), "mlx5_0");
        let port = sysfs.port(1);
        assert_eq!(port.counters, BTreeMap::from([("port_xmit_data".to_owned(), 12345)]));
        assert_eq!((port.state.as_str(), port.rate_100mbps, port.link_layer.as_str()), ("ACTIVE", 0, ""));
        let mut unreadable: Vec<_> =
            sysfs.unreadable.iter().map(|u| u.file.file_name().unwrap().to_str().unwrap()).collect();
        unreadable.sort_unstable();
        assert_eq!(unreadable, ["odd", "refused"]);
    }

    #[test]
    fn the_active_mtu_of_a_roce_port_is_that_of_its_interface_less_the_headers() {
        let steps =
            [(9000, Some(4096)), (4200, Some(4096)), (4191, Some(2048)), (1500, Some(1024)), (300, None)];
        assert_eq!(steps.map(|(mtu, _)| roce_payload(mtu)), steps.map(|(_, left)| left));
        let sys = tempfile::tempdir().unwrap();
        let at = sys.path().join("infiniband/mlx5_0/ports/1");
        fs::create_dir_all(at.join("gid_attrs/ndevs")).unwrap();
        fs::create_dir_all(sys.path().join("net/eth0")).unwrap();
        fs::write(at.join("gid_attrs/ndevs/0"), "eth0\n").unwrap();
        fs::write(sys.path().join("net/eth0/mtu"), "1500\n").unwrap();
        let mut sysfs = Sysfs::new(&sys.path().join("infiniband"), "mlx5_0");
        fs::write(at.join("link_layer"), "Ethernet\n").unwrap();
        assert_eq!(sysfs.port(1).active_mtu_bytes, 1024);
        fs::write(at.join("link_layer"), "InfiniBand\n").unwrap();
        assert_eq!(sysfs.port(1).active_mtu_bytes, 0, "another port's figure is not this one's");
    }

    #[test]
    fn rates_are_in_units_of_100_megabits() {
        for (text, rate) in [
            ("2.5 Gb/sec (1X SDR)", Some(25)),
            ("100 Gb/sec (4X EDR)", Some(1000)),
            ("400 Gb/sec (4X NDR)", Some(4000)),
            ("", None),
            ("fast", None),
            ("inf Gb/sec", None),
        ] {
            assert_eq!(rate_100mbps(text), rate, "{text}");
        }
    }

    #[test]
    fn without_the_class_there_is_no_subsystem_and_without_devices_an_empty_list() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(devices(folder.path()), Some(vec![]));
        assert_eq!(devices(&folder.path().join("nothing")), None);
    }
}
