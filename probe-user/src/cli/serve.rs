//! `rdma-probe serve`: live metrics for Prometheus.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use probe_user::collect::{self, Session};
use probe_user::export::write_metrics;
use probe_user::model::Model;
use probe_user::sample::{Header, Record, Verdict};
use probe_user::serve;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::posts::{self, Which};
use super::record::{header_of_host, wait};
use super::{UsageError, watch};

/// Processes that have ended and are still told of; of further ones, the first to end is forgotten.
const MAX_ENDED: usize = 1000;

/// Serve live metrics to Prometheus at http://ADDR/metrics
///
/// Calls, failures, bytes and latencies per process, live objects, with --data-path posts and polls per process, and what
/// the profiler missed, as the OpenMetrics or
/// the Prometheus text format. The 200 processes with most calls have labels of their own, the rest is summed up under
/// comm="[other]". Runs until it is interrupted.
///
/// Exit status: 0 when interrupted, 1 when ADDR cannot be listened on, 2 for wrong arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo rdma-probe serve                              the whole host, at http://127.0.0.1:9797/metrics
  sudo rdma-probe serve --pid 4242 --listen 9000     one process and its children, on another port
  sudo rdma-probe serve --data-path sampled          posts and polls too, at 1 % of a process's time at most
  sudo rdma-probe serve --listen [::]:9797           for other hosts too: anyone who reaches it can read it

In prometheus.yml:
  scrape_configs: [{job_name: rdma, static_configs: [{targets: ['localhost:9797']}]}]")]
pub struct Args {
    /// Address and port to listen on; a port alone is on the loopback address
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9797", value_parser = parse_address)]
    listen: SocketAddr,

    /// Watch this process and its descendants (repeatable); without it, the whole host
    #[arg(short, long = "pid", value_name = "PID")]
    pids: Vec<u32>,

    #[command(flatten)]
    posts: posts::Args,

    /// Time between two readings of the counters
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = super::time::parse_duration)]
    interval: Duration,

    /// Attach to libraries only, not to the kernel
    #[arg(long)]
    no_kernel: bool,
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok((IpAddr::V4(Ipv4Addr::LOCALHOST), port).into());
    }
    text.parse()
        .map_err(|_| "not an address and port: write 127.0.0.1:9797, [::1]:9797, or a port".to_owned())
}

/// # Errors
/// When the address cannot be listened on, or a process named does not exist.
pub fn run(args: Args) -> Result<ExitCode> {
    if args.interval < Duration::from_millis(10) {
        bail!(UsageError(format!("--interval {:?} is too short: take 10ms or more", args.interval)));
    }
    watch::must_exist(&args.pids)?;
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle signals")?;
    let listener = TcpListener::bind(args.listen)
        .with_context(|| format!("cannot listen on '{}' (--listen names another address)", args.listen))?;
    let address = listener.local_addr().context("cannot ask for the address listened on")?;
    let header = Header { pids: args.pids.clone(), ..header_of_host() };
    let mut first = Model::new();
    first.push(&Record::Header(header));
    let model = Arc::new(Mutex::new(first));
    let shown = Arc::clone(&model);
    serve::start(
        listener,
        Arc::new(move |format| {
            let mut text = Vec::new();
            write_metrics(&shown.lock().unwrap_or_else(PoisonError::into_inner), format, &mut text)?;
            Ok(text)
        }),
    )
    .context("cannot start a thread")?;
    let options = collect::Options {
        whole_host: args.pids.is_empty(),
        kernel: !args.no_kernel,
        data_path: args.posts.posts(Which::Off),
        fire_taps: false,
        interval: args.interval,
    };
    let mut session = Session::start(options);
    watch::with_descendants(&mut session, &args.pids)?;
    eprintln!("rdma-probe: metrics at http://{address}/metrics");
    if !address.ip().is_loopback() {
        eprintln!("rdma-probe: anyone who reaches {address} can read them, command names included");
    }
    let mut denied = false;
    while signals.pending().next().is_none() {
        wait(session.descriptor());
        let records = session.take();
        for record in &records {
            if let Record::Probe(probe) = record
                && let Verdict::Denied { missing } = &probe.verdict
                && !std::mem::replace(&mut denied, true)
            {
                eprintln!("rdma-probe: nothing could be attached: {missing}");
            }
        }
        let mut model = model.lock().unwrap_or_else(PoisonError::into_inner);
        records.iter().for_each(|record| model.push(record));
        model.forget_ended(MAX_ENDED);
    }
    session.finish();
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_on_the_loopback_address() {
        assert_eq!(parse_address("9000"), Ok("127.0.0.1:9000".parse().unwrap()));
        assert_eq!(parse_address("[::]:1"), Ok("[::]:1".parse().unwrap()));
        for wrong in ["", "localhost", "1.2.3.4", "99999", "1.2.3.4:x", "host:80"] {
            assert!(parse_address(wrong).is_err(), "{wrong}");
        }
    }
}
