//! Looks for what is wrong after each sample, on a thread of its own: neither collection nor drawing waits for the rules.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use super::Shared;

/// A moment may come in several samples, milliseconds apart: they are judged together.
const TOGETHER: Duration = Duration::from_millis(20);

/// The rules take at most one part in so many of a processor.
const SHARE: u32 = 50;

/// Where samples are told of; dropping it ends the thread.
#[derive(Debug, Clone)]
pub struct Judge(SyncSender<()>);

impl Judge {
    /// Starts the thread.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(shared: Shared) -> std::io::Result<Self> {
        // Room for one: what comes while the rules work is judged once, after it.
        let (told, samples) = sync_channel(1);
        thread::Builder::new().name("judge".to_owned()).spawn(move || run(&shared, &samples))?;
        Ok(Self(told))
    }

    /// A sample came. Never waits.
    pub fn sampled(&self) {
        let _ = self.0.try_send(());
    }
}

fn run(shared: &Shared, samples: &Receiver<()>) {
    while samples.recv().is_ok() {
        thread::sleep(TOGETHER);
        while samples.try_recv().is_ok() {}
        let begun = Instant::now();
        shared.diagnose();
        thread::sleep(rest(begun.elapsed()));
    }
}

/// How long to rest after a diagnosis that took so long.
fn rest(took: Duration) -> Duration {
    took.saturating_mul(SHARE - 1).saturating_sub(TOGETHER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::world::{Origin, World};

    #[test]
    fn a_host_that_takes_long_to_judge_is_judged_less_often() {
        assert_eq!(rest(Duration::from_millis(5)), Duration::from_millis(225));
        assert_eq!(rest(Duration::from_micros(100)), Duration::ZERO);
    }

    #[test]
    fn a_sample_is_judged_soon_and_the_main_loop_is_told() {
        let (shared, inputs) = Shared::new(World::new(Origin::Live, "test"));
        let judge = Judge::start(shared.clone()).unwrap();
        (0..10).for_each(|_| judge.sampled());
        inputs.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(shared.read().is_judged());
    }
}
