//! A recording played back into a model, all of it or a window of it.

use crate::model::Model;
use crate::sample::{Footer, Lost, Record};

/// A part of a recording, from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Window {
    /// Calls that returned before this do not count.
    pub from_ns: Option<u64>,
    /// Nor do those that returned after this.
    pub to_ns: Option<u64>,
}

/// Feeds `records` into a model, the first being the header. Objects made before the window are known inside it.
///
/// # Errors
/// The first error among the records.
pub fn replay<E>(records: impl Iterator<Item = Result<Record, E>>, window: Window) -> Result<Model, E> {
    let mut model = Model::new();
    let (mut from, mut to) = (None, None);
    for record in records {
        let record = record?;
        let at = match &record {
            Record::Header(header) => {
                from = window.from_ns.map(|ns| header.t_ns.saturating_add(ns));
                to = window.to_ns.map(|ns| header.t_ns.saturating_add(ns));
                model.window_end_ns = to;
                None
            }
            Record::Sample(sample) => Some(sample.t_ns),
            Record::Event(event) => Some(event.t_ns.saturating_add(event.duration_ns)),
            Record::Post(post) => Some(post.t_ns.saturating_add(post.duration_ns)),
            Record::Poll(poll) => Some(poll.t_ns.saturating_add(poll.duration_ns)),
            Record::Footer(footer) if to.is_some() => {
                // Its losses are those of the whole recording.
                model.push(&Record::Footer(Footer { lost: Lost::default(), ..footer.clone() }));
                continue;
            }
            _ => None,
        };
        if let (Some(at), Some(begin)) = (at, from)
            && at >= begin
        {
            model.start_window(begin);
            from = None;
        }
        if at.zip(to).is_none_or(|(at, to)| at <= to) {
            model.push(&record);
        }
    }
    // The window lies behind the end: nothing happened inside.
    from.into_iter().for_each(|begin| model.start_window(begin));
    Ok(model)
}
