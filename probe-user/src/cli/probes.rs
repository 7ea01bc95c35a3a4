//! `rdma-probe probes`: what can be attached here, and why not.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use anyhow::Result;
use probe_user::collect::{Options, Session};
use probe_user::report::table::{Align, Column, render};
use probe_user::sample::{Probe, Record, Verdict};
use probe_user::{library, target};
use serde::Serialize;

use super::{terminal_width, watch};

/// Show which probes can be attached here, and why others cannot
///
/// Attaches every probe for a moment: in the kernel, in the verbs libraries the dynamic linker knows, and with --pid in
/// those a process maps. Nothing stays attached, and nobody's program is touched.
///
/// Exit status: 0 when at least one probe can be attached, 1 when none can.
#[derive(Debug, clap::Args)]
#[command(after_help = "Verdicts:
  live       attached; every hit is seen
  sampled    attached; a share of the hits is looked at
  not here   this kernel, library or process has no such hook
  denied     it exists, but this user may not attach: what is missing is named
  broken     it should have attached and did not: please report it

Examples:
  sudo rdma-probe probes
  sudo rdma-probe probes --pid 4242
  sudo rdma-probe probes --json | jq '.probes[] | select(.verdict != \"live\")'")]
pub struct Args {
    /// Print the verdicts as JSON (schema rdma-probes/1)
    #[arg(long)]
    json: bool,

    /// Look at the libraries of this process too (repeatable)
    #[arg(short, long = "pid", value_name = "PID")]
    pids: Vec<u32>,
}

/// The verdicts as JSON.
#[derive(Debug, Serialize)]
struct Document {
    /// Always `rdma-probes/1`.
    schema: &'static str,
    /// Kernel release.
    kernel: String,
    /// Every probe, by name.
    probes: Vec<Probe>,
    /// What else is worth knowing.
    notes: Vec<String>,
}

/// # Errors
/// When a process does not exist, or the output cannot be written.
pub fn run(args: Args) -> Result<ExitCode> {
    watch::must_exist(&args.pids)?;
    let (probes, notes) = verdicts(&args.pids);
    let any = probes.iter().any(|probe| matches!(probe.verdict, Verdict::Live | Verdict::Sampled { .. }));
    let mut out = BufWriter::new(anstream::AutoStream::auto(io::stdout().lock()));
    if args.json {
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        let document = Document { schema: "rdma-probes/1", kernel, probes, notes };
        writeln!(out, "{}", serde_json::to_string_pretty(&document)?)?;
    } else {
        write_text(&probes, &notes, terminal_width(), &mut out)?;
    }
    out.flush()?;
    Ok(ExitCode::from(u8::from(!any)))
}

/// Attaches everything, takes the verdicts, and detaches.
fn verdicts(pids: &[u32]) -> (Vec<Probe>, Vec<String>) {
    let mut notes = Vec::new();
    let mut session = Session::start(Options::default());
    let libraries = library::cached_libraries();
    if libraries.is_empty() && pids.is_empty() {
        notes.push(
            "the dynamic linker knows no libibverbs or librdmacm; a process may still bring its own: try --pid"
                .to_owned(),
        );
    }
    session.prepare(libraries);
    for pid in pids {
        match target::mapped_files(*pid) {
            Ok(files) => session.prepare_mapped(files),
            Err(error) => notes.push(format!("the libraries of process {pid} cannot be read: {error}")),
        }
    }
    let mut probes: Vec<_> = session
        .finish()
        .into_iter()
        .filter_map(|record| match record {
            Record::Probe(probe) => Some(probe),
            _ => None,
        })
        .collect();
    probes.sort_by(|a, b| (&a.name, &a.place).cmp(&(&b.name, &b.place)));
    (probes, notes)
}

const COLUMNS: [Column; 3] = [
    Column("PROBE", Align::Left, 0),
    Column("VERDICT", Align::Left, 0),
    Column("WHERE, OR WHY NOT", Align::Left, 0),
];

fn write_text(probes: &[Probe], notes: &[String], width: usize, out: &mut dyn Write) -> io::Result<()> {
    // The same answer for all is said once: it is about the user, not about a probe.
    if let Some(answer) = common_answer(probes) {
        writeln!(out, "None of {} probes can be attached: {answer}.", probes.len())?;
    } else {
        for line in render(&COLUMNS, &probes.iter().map(row).collect::<Vec<_>>(), width) {
            writeln!(out, "{line}")?;
        }
        let live = probes.iter().filter(|probe| probe.verdict == Verdict::Live).count();
        writeln!(out, "\n{live} of {} probes live", probes.len())?;
    }
    notes.iter().try_for_each(|note| writeln!(out, "note: {note}"))
}

fn row(probe: &Probe) -> Vec<String> {
    let (verdict, text) = match &probe.verdict {
        Verdict::Live => ("live", probe.place.clone()),
        Verdict::Sampled { share } => ("sampled", format!("{:.1} %  {}", share * 100.0, probe.place)),
        Verdict::NotHere { why } => ("not here", why.clone()),
        Verdict::Denied { missing } => ("denied", missing.clone()),
        Verdict::Broken { report } => ("broken", report.clone()),
        Verdict::Unknown => ("unknown", String::new()),
    };
    vec![probe.name.clone(), verdict.to_owned(), text]
}

/// What is missing, where that is the answer for every probe.
fn common_answer(probes: &[Probe]) -> Option<&str> {
    let first = probes.first()?;
    let (Verdict::Denied { missing: text }
    | Verdict::Broken { report: text }
    | Verdict::NotHere { why: text }) = &first.verdict
    else {
        return None;
    };
    probes.iter().all(|probe| probe.verdict == first.verdict).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(name: &str, verdict: Verdict) -> Probe {
        Probe {
            name: name.to_owned(),
            place: "/lib/x+0x10".to_owned(),
            call: None,
            t_ns: 1,
            late_ns: None,
            verdict,
        }
    }

    fn text(probes: &[Probe]) -> String {
        let mut out = Vec::new();
        write_text(probes, &[], 120, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn one_reason_for_all_is_said_once() {
        let denied = Verdict::Denied { missing: "CAP_BPF".to_owned() };
        let shown = text(&[probe("a", denied.clone()), probe("b", denied)]);
        assert_eq!(shown, "None of 2 probes can be attached: CAP_BPF.\n");
    }

    #[test]
    fn each_probe_is_listed_where_they_differ() {
        let shown = text(&[
            probe("a", Verdict::Live),
            probe("b", Verdict::NotHere { why: "no such function".to_owned() }),
        ]);
        assert!(shown.contains("/lib/x+0x10") && shown.contains("no such function"), "{shown}");
        assert!(shown.ends_with("1 of 2 probes live\n"), "{shown}");
    }

    #[test]
    fn no_probe_at_all_is_no_common_answer() {
        assert_eq!(common_answer(&[]), None);
    }
}
