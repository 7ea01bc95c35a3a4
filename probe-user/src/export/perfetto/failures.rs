//! Requests that failed, the first of each kind: a mark on the time line of their process, at the moment they were found
//! to have failed.

use std::io::{self, Write};

use serde_json::json;

use super::Perfetto;
use crate::report::{errno, failed_request, refused_request, wc_status};
use crate::sample::{ProcessSample, Sample};

/// Marks that are remembered as written.
const MOST_MARKS: usize = 1 << 16;

impl<W: Write> Perfetto<W> {
    pub(super) fn failures(&mut self, sample: &Sample) -> io::Result<()> {
        sample.processes.iter().try_for_each(|process| self.failures_of(process))
    }

    fn failures_of(&mut self, process: &ProcessSample) -> io::Result<()> {
        let detail = process.data_path.as_ref().and_then(|path| path.totals.detail.as_deref());
        let Some(detail) = detail else { return Ok(()) };
        let failed = detail.failed_by_qp.iter().filter_map(|one| {
            let (first, name) = (one.first.as_deref()?, wc_status(one.status));
            Some((first.t_ns, format!("{name} on QPN {}", one.qpn), failed_request(first)))
        });
        let refused = detail.refused.iter().filter_map(|one| {
            let (first, name) = (one.first.as_deref()?, errno(one.errno));
            Some((first.t_ns, format!("post refused: {name} on {}", one.number), refused_request(first)))
        });
        let pid = self.pid(process.id)?;
        for (t_ns, name, request) in failed.chain(refused) {
            if t_ns != 0
                && self.marked.len() < MOST_MARKS
                && self.marked.insert((process.id, t_ns, name.clone()))
            {
                self.instant(&name, pid, pid, t_ns, json!({ "request": request }))?;
            }
        }
        Ok(())
    }
}
