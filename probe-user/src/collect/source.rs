//! Where posts and polls are counted, as the recorder sees it: the tap, or probes in the provider.

use std::collections::HashSet;

use crate::sample::{DataPath, Device, Probe, ProcessId, Record};

/// Counts the posts and polls of processes while they are recorded.
pub trait Source: Send {
    /// A process to look at from now on. With `running` it was there before the recording: what it counted so far is
    /// not part of it. Told again for a process that replaced its program.
    fn watch(&mut self, id: ProcessId, running: bool);

    /// Counts that changed since the last call, by process. With `last` the recording ends: what could never be seen of
    /// a watched process is told now.
    fn sample(&mut self, last: bool) -> Vec<(ProcessId, DataPath)>;

    /// Single posts and polls that came since the last call, in order as far as one thread is concerned. With `last` the
    /// recording ends.
    fn records(&mut self, _last: bool) -> Vec<Record> {
        Vec::new()
    }

    /// Processes that are no more and whose counters will not change any more.
    fn forget(&mut self, gone: &HashSet<ProcessId>);

    /// Verdicts that are new or changed.
    fn verdicts(&mut self) -> Vec<Probe> {
        Vec::new()
    }

    /// Devices that came into use and that the kernel does not know.
    fn devices(&mut self) -> Vec<Device> {
        Vec::new()
    }
}
