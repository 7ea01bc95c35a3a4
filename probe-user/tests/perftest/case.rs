//! Commands of perftest, and which option follows which finding.

/// A command of perftest.
pub struct Case {
    /// Program and options, without device, port and server.
    pub command: &'static str,
    /// The API: perftest takes the extended one, and inline data, on models of NIC that it knows.
    pub api: Api,
}

/// Which API perftest takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `ibv_post_send`; sizes, places and latencies are seen.
    Classic,
    /// `ibv_wr_*`.
    Extended,
}

const fn classic(command: &'static str) -> Case {
    Case { command, api: Api::Classic }
}

const fn extended(command: &'static str) -> Case {
    Case { command, api: Api::Extended }
}

/// What is run. Latency tests take longer, for as many messages. Theirs of WRITE are left out: they look for the data in
/// memory and call nothing, so that the device's helper must get a processor between two that never rest. In all: defaults, each option that a rule's remedy names set badly and well, and sizes on both sides of the link's
/// limit.
pub const CASES: &[Case] = &[
    classic("ib_send_bw -D 1"),
    classic("ib_send_bw -s 64 -D 1"),
    extended("ib_send_bw -s 64 -D 1"),
    classic("ib_send_bw -s 64 -D 1 -Q 1"),
    extended("ib_send_bw -s 64 -D 1 -q 8"),
    extended("ib_send_bw -s 64 -D 1 -l 16"),
    classic("ib_send_bw -c UD -s 64 -D 1"),
    classic("ib_send_bw -c UC -s 64 -D 1 -Q 1"),
    classic("ib_send_bw -s 1048576 -n 500"),
    classic("ib_write_bw -D 1"),
    classic("ib_write_bw -s 64 -D 1"),
    extended("ib_write_bw -s 64 -D 1"),
    classic("ib_write_bw -s 64 -D 1 -Q 1"),
    extended("ib_write_bw -s 64 -D 1 -I 64"),
    extended("ib_write_bw -s 64 -D 1 -q 8"),
    classic("ib_write_bw -s 64 -D 1 -q 8 -Q 1"),
    classic("ib_write_bw -s 64 -D 1 -l 16"),
    extended("ib_write_bw -s 64 -D 1 -q 256"),
    extended("ib_write_bw -s 512 -D 1 -q 8"),
    classic("ib_write_bw -s 1024 -D 1 -Q 1"),
    extended("ib_write_bw -s 1024 -D 1 -q 8"),
    classic("ib_write_bw -s 4096 -D 1 -Q 1"),
    classic("ib_write_bw -s 64 -D 1 -m 256"),
    classic("ib_write_bw -s 65536 -D 1 -m 256"),
    classic("ib_read_bw -D 1"),
    classic("ib_read_bw -s 64 -D 1 -Q 1"),
    classic("ib_read_bw -s 512 -D 1"),
    extended("ib_read_bw -s 512 -D 1 -q 8"),
    extended("ib_read_bw -s 64 -D 1 -q 8 -l 16"),
    classic("ib_read_bw -s 64 -D 1 -o 1"),
    classic("ib_atomic_bw -D 1"),
    classic("ib_atomic_bw -D 1 -q 8 -Q 1"),
    extended("ib_send_lat -s 64 -D 3 -I 0"),
    extended("ib_send_lat -s 64 -D 3"),
    classic("ib_send_lat -s 64 -n 5000 -e"),
    classic("ib_read_lat -s 64 -D 3"),
    classic("ib_atomic_lat -D 3"),
];

/// The option of perftest that follows a finding on `command`: the command with it. `None` where perftest has none.
pub fn followed(command: &str, finding: &str) -> Option<String> {
    let size = || value(command, "-s").and_then(|size| size.parse::<u64>().ok());
    match finding {
        "one-wr-per-post" => Some(with(command, "-l", "16")),
        "everything-signalled" => Some(with(command, "-Q", "64")),
        "unsignalled-run-long" => Some(with(command, "-Q", "32")),
        "small-not-inlined" => Some(with(command, "-I", &size()?.to_string())),
        "one-queue-pair" => Some(with(command, "-q", "8")),
        "qps-above-units" => Some(with(command, "-q", "32")),
        "reads-one-at-a-time" => Some(with(command, "-o", "16")),
        "path-mtu-small" => Some(with(command, "-m", "4096")),
        // One request for the sixteen of a list.
        "adjacent-wrs" => Some(with(&without(command, "-l", true), "-s", &(size()? * 16).to_string())),
        "events-at-high-rate" => Some(without(command, "-e", false)),
        "busy-poll-idle" if command.contains(" -n ") => Some(format!("{command} -e")),
        _ => None,
    }
}

/// The value of an option.
fn value<'a>(command: &'a str, option: &str) -> Option<&'a str> {
    let mut words = command.split(' ').skip_while(|word| *word != option);
    words.nth(1)
}

fn without(command: &str, option: &str, has_value: bool) -> String {
    let mut kept = Vec::new();
    let mut words = command.split(' ');
    while let Some(word) = words.next() {
        if word != option {
            kept.push(word);
        } else if has_value {
            words.next();
        }
    }
    kept.join(" ")
}

fn with(command: &str, option: &str, value: &str) -> String {
    format!("{} {option} {value}", without(command, option, true))
}
