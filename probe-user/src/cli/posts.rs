//! How posts and polls are watched, on the command line.

use std::time::Duration;

use probe_user::collect::{Posts, Session};
use probe_user::data_path::{Allowed, Calibration};

/// `--data-path` and what belongs to it.
#[derive(Debug, Clone, Copy, clap::Args)]
#[group(id = "watching_posts")]
pub struct Args {
    /// Watch posts and polls of stock providers by probes: `sampled` as many of them as --overhead allows, each figure
    /// with the share it is taken from and its error; `full` every one, whatever that costs (`rdma-probe count --help`
    /// tells); `off` none. Without this option: `sampled`, but `off` for `serve` and with --tap, which counts exactly by itself
    #[arg(long, value_enum, value_name = "WHICH")]
    pub data_path: Option<Which>,
    /// Most of its CPU time that probes on posts and polls may cost a process, in percent
    #[arg(long, value_name = "PCT", default_value = "1", value_parser = percent)]
    overhead: f64,
    /// Watch single-stepped functions only where a slice of it slows the process no more than so many times
    #[arg(long, value_name = "TIMES", default_value = "1.5", value_parser = times)]
    max_slowdown: f64,
}

/// Which posts and polls probes look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Which {
    /// None.
    Off,
    /// As many as may be.
    Sampled,
    /// All.
    Full,
}

impl Args {
    /// What was asked for; `otherwise` where nothing was.
    pub fn posts(&self, otherwise: Which) -> Posts {
        match self.data_path.unwrap_or(otherwise) {
            Which::Off => Posts::Off,
            Which::Sampled => {
                Posts::Sampled(Allowed { overhead: self.overhead / 100.0, max_slowdown: self.max_slowdown })
            }
            Which::Full => Posts::Full,
        }
    }
}

/// Says on standard error, before anything is counted, what looking at every post and poll will cost.
pub fn announce(posts: Posts, session: &Session) {
    /// Calibrating takes some tenths of a second; nobody waits much longer for it.
    const MOST: Duration = Duration::from_secs(2);
    if posts != Posts::Full {
        return;
    }
    let Some(calibration) = session.calibration(MOST) else { return };
    eprintln!(
        "rdma-probe: --data-path full looks at every post and poll, without a bound: {calibration}{}",
        example(&calibration)
    );
}

/// What that comes to for a busy program.
fn example(calibration: &Calibration) -> String {
    let Some(ns) = calibration.hit_ns.values().min() else { return String::new() };
    // A million hits of so many ns: thousandths of a CPU.
    format!("; a million hits a second take {:.0} % of a CPU at the least", *ns as f64 / 10.0)
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').trim().parse() {
        Ok(n) if (0.01..=50.0).contains(&n) => Ok(n),
        Ok(_) => Err("must be from 0.01 to 50 percent; for no bound use --data-path full".to_owned()),
        Err(_) => Err("not a percentage: use a number, such as 0.5".to_owned()),
    }
}

fn times(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(n) if (1.0..=100.0).contains(&n) => Ok(n),
        Ok(_) => Err("must be from 1 (never) to 100 times".to_owned()),
        Err(_) => Err("not a number: such as 1.5".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_user::entry::Class;

    #[test]
    fn bounds_are_read_and_senseless_ones_refused() {
        assert_eq!(percent("0.5"), Ok(0.5));
        assert_eq!(percent("2 %"), Ok(2.0));
        for text in ["0", "-1", "51", "nan", "inf", "one", ""] {
            assert!(percent(text).is_err(), "{text}");
        }
        assert_eq!(times("2"), Ok(2.0));
        assert!(times("0.5").is_err() && times("x").is_err() && times("NaN").is_err());
    }

    #[test]
    fn what_a_million_hits_take_is_told_where_a_hit_was_measured() {
        let mut calibration = Calibration::default();
        assert_eq!(example(&calibration), "");
        calibration.hit_ns.extend([(Class::Optimised, 180), (Class::SingleStepped, 15_000)]);
        assert_eq!(example(&calibration), "; a million hits a second take 18 % of a CPU at the least");
    }

    #[test]
    fn what_is_not_asked_for_depends_on_the_command() {
        let args = Args { data_path: None, overhead: 2.0, max_slowdown: 1.5 };
        assert_eq!(args.posts(Which::Off), Posts::Off);
        assert_eq!(args.posts(Which::Sampled), Posts::Sampled(Allowed { overhead: 0.02, max_slowdown: 1.5 }));
        let asked = Args { data_path: Some(Which::Full), ..args };
        assert_eq!(asked.posts(Which::Off), Posts::Full);
    }
}
