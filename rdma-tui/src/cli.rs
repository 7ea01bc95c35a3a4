//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use crate::theme::Name;

const EXAMPLES: &str = "\
Examples:
  sudo rdma-tui                                  every RDMA process of this host
  sudo rdma-tui --pid 4242                       one process, its threads and its children
  sudo rdma-tui -- ib_write_bw -d mlx5_0 server  a command, from its first instruction
  rdma-tui --replay run.trace                    a recorded trace, to be stepped through
  rdma-probe record -o - | rdma-tui --replay -   a trace as it is written, from another host for instance
  rdma-tui --headless --duration 20s --json      what it would have shown, for scripts

Keys: ? in the dashboard lists them.
Log: what the collector and the command print goes to $XDG_STATE_HOME/rdma-tui.log (~/.local/state without it),
or to the file of --log.
Environment: NO_COLOR for no colours; COLORTERM and TERM tell how many there are.
Exit status: that of CMD where it had ended; else 0 when quit, 1 on failure, 2 on a usage error, 128 + N when ended by signal N.";

/// What is this host's RDMA doing right now, what is wrong, what would help: a live dashboard.
#[derive(Debug, Parser)]
#[command(name = "rdma-tui", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Cli {
    /// Watch this process and its descendants (repeatable)
    #[arg(short, long = "pid", value_name = "PID", conflicts_with_all = ["command", "replay"])]
    pub pids: Vec<u32>,
    /// Show a recorded trace instead (- for one that comes through standard input)
    #[arg(long, value_name = "FILE", conflicts_with = "command")]
    pub replay: Option<PathBuf>,
    /// Time between two samples
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    pub interval: Duration,
    /// Colours: dark, light, safe (for colour-blind eyes), none
    #[arg(long, value_enum)]
    pub theme: Option<Name>,
    /// Draw with ASCII characters only [default where the locale is not UTF-8]
    #[arg(long)]
    pub ascii: bool,
    /// Folder for exports and recordings made from the dashboard
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub folder: PathBuf,
    /// File for the log
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// No dashboard: print what it would have shown
    #[arg(long)]
    pub headless: bool,
    /// With --headless: how long to watch
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = duration, requires = "headless")]
    pub duration: Duration,
    /// With --headless: print JSON
    #[arg(long, requires = "headless")]
    pub json: bool,
    /// Draw every page of the replayed trace into SVG files in this folder
    #[arg(long, value_name = "FOLDER", requires = "replay", conflicts_with = "headless")]
    pub svg: Option<PathBuf>,
    /// Size of the pictures of --svg, or of the text of --headless
    #[arg(long, value_name = "COLUMNSxROWS", default_value = "120x40", value_parser = size)]
    pub size: (u16, u16),
    /// Command to run and watch
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("unknown unit '{unit}': use ms, s, m or h")),
    };
    let number: f64 =
        number.parse().map_err(|_| "not a time: use a number and a unit, such as 30s".to_owned())?;
    match Duration::try_from_secs_f64(number * scale) {
        Ok(time) if time < Duration::from_millis(10) => Err("too short: take 10ms or more".to_owned()),
        Ok(time) => Ok(time),
        Err(_) => Err("too long".to_owned()),
    }
}

fn size(text: &str) -> Result<(u16, u16), String> {
    let (columns, rows) = text.split_once(['x', '×']).ok_or("use COLUMNSxROWS, such as 120x40")?;
    let number = |text: &str| match text.trim().parse::<u16>() {
        Ok(n) if (10..=500).contains(&n) => Ok(n),
        _ => Err(format!("'{text}' is not a number between 10 and 500")),
    };
    Ok((number(columns)?, number(rows)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_and_times_are_read_or_refused() {
        assert_eq!(size("200x60"), Ok((200, 60)));
        for wrong in ["200", "x", "5x5", "9999x9", "-1x40"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        for wrong in ["", "5x", "1ms", "1e400", "nan"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
