//! What is run: every cell of the matrix, and the reason of those that cannot be.

/// Part ID of a ConnectX-6: perftest posts to it through the extended API.
pub const KNOWN_PART_ID: u32 = 4123;

/// How a cell is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One program by itself.
    Alone,
    /// A server, and a client told where it is. perftest's: prints a table of sizes and iterations.
    Perftest {
        /// Lines the table must have.
        rows: usize,
        /// What its column of iterations must say.
        iterations: u64,
    },
    /// A server and a client of ibverbs-utils.
    PingPong,
}

/// One cell.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The program.
    pub program: &'static str,
    /// Its arguments, without port and server.
    pub args: Vec<String>,
    /// Part ID the device presents, if not its own.
    pub part_id: Option<u32>,
    pub shape: Shape,
    /// Why it is not run.
    pub reason: Option<&'static str>,
    /// Whether the short run has it.
    pub short: bool,
}

impl Cell {
    fn new(program: &'static str, args: &str, shape: Shape) -> Self {
        let args = args.split_whitespace().map(str::to_string).collect();
        Self { program, args, part_id: None, shape, reason: None, short: false }
    }

    /// The API its posts go through.
    pub fn api(&self) -> &'static str {
        if self.part_id.is_some() { "extended" } else { "classic" }
    }
}

/// All cells.
pub fn all() -> Vec<Cell> {
    let mut cells = vec![Cell { short: true, ..Cell::new("ibv_devinfo", "-v", Shape::Alone) }];
    for program in
        ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong", "ibv_xsrq_pingpong"]
    {
        // Only these two look at the data they get.
        let checks: &[&str] = match program {
            "ibv_rc_pingpong" => &["", "-e", "-c", "-c -e", "-c -s 1048576", "-t"],
            "ibv_uc_pingpong" | "ibv_srq_pingpong" => &["", "-e", "-c"],
            _ => &["", "-e"],
        };
        for extra in checks {
            let mut cell = Cell::new(program, &format!("-d emu0 -g 0 -n 500 {extra}"), Shape::PingPong);
            if program == "ibv_xsrq_pingpong" {
                cell.reason = Some("extended reliable connections are not emulated");
            }
            cell.short = program == "ibv_rc_pingpong" && extra.starts_with("-c");
            cells.push(cell);
        }
    }
    for part_id in [None, Some(KNOWN_PART_ID)] {
        for (verb, connections) in [
            ("write", &["RC", "UC"][..]),
            ("read", &["RC"]),
            ("send", &["RC", "UC", "UD"]),
            ("atomic", &["RC"]),
        ] {
            for connection in connections {
                for kind in ["bw", "lat"] {
                    cells.extend(perftest(verb, kind, connection, part_id));
                }
            }
        }
    }
    cells
}

/// Requests per QP that are a multiple of the hundred for which perftest asks one completion.
const FULL_BATCHES: u64 = 400;

/// The cells of one perftest program over one connection type and API.
fn perftest(verb: &'static str, kind: &str, connection: &str, part_id: Option<u32>) -> Vec<Cell> {
    let program = match (verb, kind) {
        ("write", "bw") => "ib_write_bw",
        ("write", _) => "ib_write_lat",
        ("read", "bw") => "ib_read_bw",
        ("read", _) => "ib_read_lat",
        ("send", "bw") => "ib_send_bw",
        ("send", _) => "ib_send_lat",
        (_, "bw") => "ib_atomic_bw",
        _ => "ib_atomic_lat",
    };
    // Two programs that spin share two cores with whatever else runs: a ping-pong may take a time slice each way.
    let n = if kind == "bw" { 160 } else { 80 };
    let mut options: Vec<(String, u64)> = vec![("-a".into(), n)];
    let inline = matches!(verb, "write" | "send");
    if kind == "bw" {
        options.extend([1, 8, 64].map(|q| (format!("-q {q}"), n * q)));
        options.push(("-l 16 -s 64".into(), n));
        options.extend([1, 16, 64].map(|q| (format!("-Q {q} -s 4096"), n)));
        options.push(("-b".into(), n));
        options.push(("-l 16 -q 8 -s 64".into(), n * 8));
    }
    if inline {
        options.extend([0, 64].map(|i| (format!("-I {i} -s 64"), n)));
    }
    options.push(("-e -s 64".into(), n));
    let mut cells = Vec::new();
    for (mut option, iterations) in options {
        // Sizes: a power of two each, up to 8 MiB, or one path MTU for datagrams, or the eight bytes of an atomic.
        let rows = match (option.as_str(), verb, connection) {
            (_, "atomic", _) => {
                for size in [" -s 64", " -s 4096"] {
                    option = option.replace(size, "");
                }
                1
            }
            ("-a", _, "UD") => 12,
            ("-a", ..) => 23,
            _ => 1,
        };
        let reason = match (option.as_str(), verb) {
            ("-a", "atomic") => Some("an atomic has one size: perftest refuses to change it"),
            (o, "write") if o.starts_with("-e") => {
                Some("perftest has no events for WRITE: the target gets none")
            }
            _ => None,
        };
        // perftest takes each completion for a hundred requests, also a QP's last one that stands for fewer: with several
        // QPs it then believes to be done, and polls no more, before the last of them has posted all of its requests.
        let (n, iterations) = if option.starts_with("-q") {
            (FULL_BATCHES, iterations / n * FULL_BATCHES)
        } else {
            (n, iterations)
        };
        let args = format!("-d emu0 -n {n} -c {connection} {option}");
        let mut cell = Cell::new(program, &args, Shape::Perftest { rows, iterations });
        (cell.part_id, cell.reason) = (part_id, reason);
        cell.short = matches!(option.as_str(), "-l 16 -q 8 -s 64" | "-I 64 -s 64" | "-e -s 64")
            && matches!((verb, connection), ("send", "RC") | ("write", "RC"));
        cells.push(cell);
    }
    cells
}
