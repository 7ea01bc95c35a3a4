//! `rdma-probe devices`: what RDMA hardware (or software) this host has, and who uses it.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use anyhow::Result;
use probe_user::devices::{Inventory, ListedDevice, Owner, inventory};
use probe_user::report::table::{Align, Column, render};
use probe_user::report::units::{bytes, count};

use super::terminal_width;

/// Show RDMA devices, their ports and counters, and which process owns which object
///
/// Objects are the kernel's own account of all processes, also of those that began long ago. Keys and addresses of
/// memory regions are told only to CAP_NET_ADMIN.
///
/// Exit status: 0, also where there is no RDMA device or no RDMA subsystem (it says so); 1 when it cannot be written.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rdma-probe devices
  rdma-probe devices --objects --counters
  rdma-probe devices --json | jq '.objects.qps[] | select(.state != \"RTS\")'")]
pub struct Args {
    /// Print everything as JSON (schema rdma-devices/1)
    #[arg(long)]
    json: bool,

    /// List every QP, CQ, MR and connection identifier, not only the totals of each owner
    #[arg(long)]
    objects: bool,

    /// List every counter, also those at 0
    #[arg(long)]
    counters: bool,
}

/// # Errors
/// When the output cannot be written.
pub fn run(args: Args) -> Result<ExitCode> {
    let inventory = inventory();
    let mut out = BufWriter::new(anstream::AutoStream::auto(io::stdout().lock()));
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&inventory)?)?;
    } else {
        write_text(&inventory, &args, terminal_width(), &mut out)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn write_text(inventory: &Inventory, args: &Args, width: usize, out: &mut dyn Write) -> io::Result<()> {
    if let Some(why) = &inventory.unavailable {
        return writeln!(out, "No RDMA device: {why}.");
    }
    if inventory.devices.is_empty() {
        writeln!(
            out,
            "No RDMA device: the RDMA subsystem is loaded, but has none in this network namespace."
        )?;
    }
    for note in &inventory.notes {
        writeln!(out, "note: {note}")?;
    }
    let mut table = |title: &str, columns: &[Column], rows: Vec<Vec<String>>, out: &mut dyn Write| {
        if rows.is_empty() {
            return Ok(());
        }
        writeln!(out, "\n{title}")?;
        render(columns, &rows, width).iter().try_for_each(|line| writeln!(out, "{line}"))
    };
    table("DEVICES", &DEVICE_COLUMNS, inventory.devices.iter().flat_map(device_rows).collect(), out)?;
    for listed in &inventory.devices {
        let rows = counter_rows(listed, args.counters);
        table(&format!("COUNTERS of {}", listed.device.name), &COUNTER_COLUMNS, rows, out)?;
        for unreadable in &listed.unreadable {
            writeln!(out, "not readable: {} ({})", unreadable.file.display(), unreadable.reason)?;
        }
    }
    let owners = inventory
        .owners
        .iter()
        .map(|t| {
            let mut row = vec![pid(&t.owner), name(&t.owner)];
            row.extend([t.qps, t.cqs, t.mrs].map(count));
            row.push(bytes(t.mr_bytes));
            row.extend([t.pds, t.cm_ids, t.contexts, t.srqs].map(count));
            row
        })
        .collect();
    table("OWNERS", &OWNER_COLUMNS, owners, out)?;
    if args.objects {
        write_objects(inventory, &mut table, out)?;
    }
    Ok(())
}

type Table<'a> = dyn FnMut(&str, &[Column], Vec<Vec<String>>, &mut dyn Write) -> io::Result<()> + 'a;

fn write_objects(inventory: &Inventory, table: &mut Table<'_>, out: &mut dyn Write) -> io::Result<()> {
    let Some(objects) = &inventory.objects else { return Ok(()) };
    let number = |n: Option<u32>| n.map(|n| n.to_string()).unwrap_or_default();
    let key = |n: Option<u32>| n.map(|n| format!("{n:#x}")).unwrap_or_default();
    let qps = objects.qps.iter().map(|o| {
        vec![
            o.device.clone(),
            o.qpn.to_string(),
            o.qp_type.clone(),
            o.state.clone(),
            number(o.remote_qpn),
            number(o.pdn),
            pid(&o.owner),
            name(&o.owner),
        ]
    });
    table("QUEUE PAIRS", &QP_COLUMNS, qps.collect(), out)?;
    let cqs = objects.cqs.iter().map(|o| {
        let users = count(o.users);
        vec![o.device.clone(), number(o.cqn), count(o.cqe.into()), users, pid(&o.owner), name(&o.owner)]
    });
    table("COMPLETION QUEUES", &CQ_COLUMNS, cqs.collect(), out)?;
    let mrs = objects.mrs.iter().map(|o| {
        let length = bytes(o.length_bytes);
        let keys = (key(o.lkey), key(o.rkey));
        vec![
            o.device.clone(),
            number(o.mrn),
            length,
            keys.0,
            keys.1,
            number(o.pdn),
            pid(&o.owner),
            name(&o.owner),
        ]
    });
    table("MEMORY REGIONS", &MR_COLUMNS, mrs.collect(), out)?;
    let cm_ids = objects.cm_ids.iter().map(|o| {
        vec![
            o.device.clone(),
            number(o.cm_idn),
            o.state.clone(),
            o.port_space.clone(),
            o.source.clone().unwrap_or_default(),
            o.destination.clone().unwrap_or_default(),
            number(o.qpn),
            pid(&o.owner),
            name(&o.owner),
        ]
    });
    table("CONNECTION IDENTIFIERS", &CM_COLUMNS, cm_ids.collect(), out)
}

const DEVICE_COLUMNS: [Column; 10] = [
    Column("device", Align::Left, 0),
    Column("driver", Align::Left, 2),
    Column("protocol", Align::Left, 4),
    Column("firmware", Align::Left, 6),
    Column("port", Align::Right, 0),
    Column("state", Align::Left, 0),
    Column("link", Align::Left, 3),
    Column("rate", Align::Right, 1),
    Column("netdev", Align::Left, 1),
    Column("GIDs", Align::Left, 5),
];

const COUNTER_COLUMNS: [Column; 3] =
    [Column("port", Align::Right, 0), Column("counter", Align::Left, 0), Column("value", Align::Right, 0)];

const OWNER_COLUMNS: [Column; 10] = [
    Column("pid", Align::Right, 0),
    Column("owner", Align::Left, 0),
    Column("QPs", Align::Right, 0),
    Column("CQs", Align::Right, 0),
    Column("MRs", Align::Right, 0),
    Column("MR size", Align::Right, 1),
    Column("PDs", Align::Right, 2),
    Column("CM ids", Align::Right, 2),
    Column("contexts", Align::Right, 3),
    Column("SRQs", Align::Right, 2),
];

const QP_COLUMNS: [Column; 8] = [
    Column("device", Align::Left, 1),
    Column("QPN", Align::Right, 0),
    Column("type", Align::Left, 0),
    Column("state", Align::Left, 0),
    Column("peer QPN", Align::Right, 1),
    Column("PD", Align::Right, 2),
    Column("pid", Align::Right, 0),
    Column("owner", Align::Left, 0),
];

const CQ_COLUMNS: [Column; 6] = [
    Column("device", Align::Left, 1),
    Column("CQ", Align::Right, 0),
    Column("entries", Align::Right, 0),
    Column("users", Align::Right, 1),
    Column("pid", Align::Right, 0),
    Column("owner", Align::Left, 0),
];

const MR_COLUMNS: [Column; 8] = [
    Column("device", Align::Left, 1),
    Column("MR", Align::Right, 0),
    Column("length", Align::Right, 0),
    Column("lkey", Align::Right, 2),
    Column("rkey", Align::Right, 2),
    Column("PD", Align::Right, 3),
    Column("pid", Align::Right, 0),
    Column("owner", Align::Left, 0),
];

const CM_COLUMNS: [Column; 9] = [
    Column("device", Align::Left, 2),
    Column("id", Align::Right, 1),
    Column("state", Align::Left, 0),
    Column("space", Align::Left, 3),
    Column("source", Align::Left, 0),
    Column("destination", Align::Left, 0),
    Column("QPN", Align::Right, 2),
    Column("pid", Align::Right, 0),
    Column("owner", Align::Left, 0),
];

/// One row per port; the device itself is named in the first.
fn device_rows(listed: &ListedDevice) -> Vec<Vec<String>> {
    let device = &listed.device;
    let head = [&device.name, &device.driver, &listed.protocol, &device.firmware].map(Clone::clone);
    if device.ports.is_empty() {
        return vec![head.to_vec()];
    }
    let rows = device.ports.iter().enumerate().map(|(i, port)| {
        let mut row = if i == 0 { head.to_vec() } else { vec![String::new(); head.len()] };
        row.extend([
            port.number.to_string(),
            port.state.clone(),
            port.link_layer.clone(),
            match port.rate_100mbps {
                0 => String::new(),
                rate => format!("{} Gb/s", f64::from(rate) / 10.0),
            },
            port.netdev.clone(),
            port.gids.len().to_string(),
        ]);
        row
    });
    rows.collect()
}

fn counter_rows(listed: &ListedDevice, all: bool) -> Vec<Vec<String>> {
    let of_ports = listed.device.ports.iter().map(|port| (port.number.to_string(), &port.counters));
    std::iter::once((String::new(), &listed.counters))
        .chain(of_ports)
        .flat_map(|(port, counters)| counters.iter().map(move |(name, value)| (port.clone(), name, *value)))
        .filter(|(.., value)| all || *value > 0)
        .map(|(port, name, value)| vec![port, name.clone(), count(value)])
        .collect()
}

fn pid(owner: &Owner) -> String {
    owner.pid.map(|pid| pid.to_string()).unwrap_or_default()
}

fn name(owner: &Owner) -> String {
    match (&owner.comm, &owner.kernel) {
        (Some(comm), _) => comm.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect(),
        (None, Some(module)) => format!("[{module}]"),
        (None, None) => "?".to_owned(),
    }
}
