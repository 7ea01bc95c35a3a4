//! Holds the model against published measurements.
//!
//! A series is a published curve with its source, the load that was run, and a class declared before anything was fitted.
//! Only the error on held-out series says anything about the model; fitted ones say that it can bend.

mod judge;
mod plot;
mod report;
mod series;

pub use judge::{ControlResult, Judged, PointResult, Summary, judge, summarise};
pub use plot::plot;
pub use report::{json, markdown, table};
pub use series::{Class, Metric, Series, SeriesError, builtin, parse};
