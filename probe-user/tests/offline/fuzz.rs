//! Whatever a file holds, reading, summing up, exporting and asking it must neither panic nor take long.
//!
//! The short run is part of every test; `cargo test -p probe-user --test offline -- --ignored fuzz` does millions of
//! lines (`RDMA_PROBE_FUZZ_LINES` says how many).

use std::io::{self, Cursor};
use std::path::Path;
use std::time::{Duration, Instant};

use probe_user::export::{Exporter, Folded, MetricsFormat, Perfetto, Weight, write_metrics};
use probe_user::model::Model;
use probe_user::report::{Filter, build, by_call, by_peer, by_site};
use probe_user::sample::{Call, Record};
use probe_user::trace::{Carry, Reader};
use probe_user::trigger::{Trigger, Watch};

use crate::common::every_kind_of_record;

/// Numbers from a seed (xorshift): a failure names its seed and can be run again.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// Lines of every kind, made up and real.
fn corpus() -> Vec<Vec<u8>> {
    let mut lines: Vec<Vec<u8>> =
        every_kind_of_record().iter().map(|record| serde_json::to_vec(record).unwrap()).collect();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let real = std::fs::read_to_string(data.join("ib_write_bw-6.1.jsonl")).unwrap();
    lines.extend(real.lines().step_by(7).take(60).map(|line| line.as_bytes().to_vec()));
    lines
}

const PIECES: [&str; 24] = [
    "18446744073709551615",
    "18446744073709551616",
    "-1",
    "0",
    "1e308",
    "null",
    "true",
    "\"\"",
    "[]",
    "{}",
    "\\u0000",
    "\\ud800",
    "\"kind\":\"event\",",
    "\"of\":\"mr\",",
    "\"pid\":1,",
    "\"RTR\"",
    "65535",
    "4294967295",
    "\u{7f}",
    ",",
    "}",
    "]",
    "\n",
    "\"stack\":[1,2,3]",
];

fn mutated(line: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut line = line.to_vec();
    for _ in 0..dice.below(4) {
        let at = dice.below(line.len());
        match dice.below(5) {
            0 if !line.is_empty() => line[at] = dice.next() as u8,
            1 if !line.is_empty() => {
                line.remove(at);
            }
            2 => line.truncate(at),
            3 => {
                // A number becomes another.
                let digits = line[at..].iter().position(u8::is_ascii_digit).map(|d| at + d);
                if let Some(from) = digits {
                    let len = line[from..].iter().take_while(|b| b.is_ascii_digit()).count();
                    let piece = PIECES[dice.below(PIECES.len())].bytes();
                    line.splice(from..from + len, piece);
                }
            }
            _ => {
                line.splice(at..at, PIECES[dice.below(PIECES.len())].bytes());
            }
        }
    }
    line
}

/// Reads what may be a trace in every way there is.
fn read_in_every_way(bytes: Vec<u8>) {
    let Ok(reader) = Reader::new("fuzz", Cursor::new(bytes)) else { return };
    let mut model = Model::new();
    let mut carry = Carry::default();
    let mut perfetto = Perfetto::new(io::sink());
    let mut folded = Folded::new(io::sink(), Weight::Bytes, vec![Call::RegMr, Call::CreateQp]);
    let mut watch =
        Watch::new(vec!["reg_latency_p99>1ms or cqe_error or reg_rate>1".parse::<Trigger>().unwrap()]);
    for record in reader {
        let Ok(record) = record else { break };
        model.push(&record);
        carry.take(&record);
        watch.take(&record);
        if matches!(record, Record::Sample(_)) {
            watch.fired();
        }
        perfetto.record(&record).unwrap();
        folded.record(&record).unwrap();
    }
    perfetto.finish().unwrap();
    folded.finish().unwrap();
    let everything = Filter(Vec::new());
    build(&model, None, &everything);
    by_call(&model, &everything);
    by_peer(&model, &everything);
    by_site(&model, &everything);
    write_metrics(&model, MetricsFormat::Prometheus, &mut io::sink()).unwrap();
    let mut again = Model::new();
    let (header, records) = carry.begin();
    again.push(&Record::Header(header));
    records.iter().for_each(|record| again.push(record));
}

fn fuzz(lines: usize, seed: u64) {
    const LINES_PER_FILE: usize = 24;
    let corpus = corpus();
    let mut dice = Dice(seed);
    let mut done = 0;
    while done < lines {
        let began = Instant::now();
        let at = dice.0;
        let mut file = corpus[0].clone();
        file.push(b'\n');
        for _ in 0..LINES_PER_FILE {
            let line = &corpus[1 + dice.below(corpus.len() - 1)];
            // Most lines whole: what is behind the first broken one is not read.
            let line = if dice.below(8) == 0 { mutated(line, &mut dice) } else { line.clone() };
            file.extend(line);
            file.push(b'\n');
        }
        read_in_every_way(file);
        let words = mutated(b"reg_latency_p99>1ms and cqe_error or live_mrs>=10k", &mut dice);
        let _ = String::from_utf8_lossy(&words).parse::<Trigger>();
        assert!(began.elapsed() < Duration::from_secs(10), "state {at:#x} took {:?}", began.elapsed());
        done += LINES_PER_FILE;
    }
}

#[test]
fn damaged_traces_are_read_without_panic_and_soon() {
    fuzz(4_000, 0x9e37_79b9_7f4a_7c15);
}

#[test]
#[ignore = "millions of lines take minutes"]
fn fuzz_millions_of_damaged_lines() {
    let lines = std::env::var("RDMA_PROBE_FUZZ_LINES").ok().and_then(|n| n.parse().ok()).unwrap_or(5_000_000);
    let seed =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64 | 1;
    println!("{lines} lines, seed {seed:#x}");
    fuzz(lines, seed);
}
