//! A trace in the formats of other tools, written as it is read: memory grows with live objects, not with events.

mod csv;
mod folded;
mod openmetrics;
mod perfetto;

use std::io;

use crate::sample::Record;

pub use csv::Csv;
pub use folded::{Folded, Weight};
pub use openmetrics::{MetricsFormat, write as write_metrics};
pub use perfetto::Perfetto;

/// Takes records one by one and writes them in another format.
pub trait Exporter {
    /// Takes the next record.
    ///
    /// # Errors
    /// Those of the output.
    fn record(&mut self, record: &Record) -> io::Result<()>;

    /// Writes what is left when there are no more records.
    ///
    /// # Errors
    /// Those of the output.
    fn finish(&mut self) -> io::Result<()>;
}
