//! An opened row: everything known of a process, a queue pair, a completion queue, a probe.

mod data_path;
mod process;
mod queue;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use unicode_width::UnicodeWidthStr;

use probe_user::doctor::Finding;
use probe_user::report::errno;
use probe_user::sample::{Call, Event};

use crate::app::format::{duration, harmless};
use crate::app::table::{Column, Row, RowKey, columns, row};
use crate::app::world::World;
use crate::theme::Theme;

use super::Context;
use super::widgets::{explain, panel::panel, put, wrap};

/// Lines of an opened row, as they are put together.
#[derive(Default)]
pub struct Lines(Vec<Vec<(String, Style)>>);

impl Lines {
    fn title(&mut self, text: &str, theme: &Theme) {
        if !self.0.is_empty() {
            self.0.push(Vec::new());
        }
        self.0.push(vec![(text.to_owned(), theme.title())]);
    }

    fn fact(&mut self, label: &str, value: impl Into<String>, theme: &Theme) {
        self.styled(label, value, theme.text(), theme);
    }

    fn styled(&mut self, label: &str, value: impl Into<String>, style: Style, theme: &Theme) {
        let gap = " ".repeat(20_usize.saturating_sub(label.width()).max(1));
        self.0.push(vec![(format!("  {label}{gap}"), theme.dim()), (value.into(), style)]);
    }

    fn text(&mut self, text: impl Into<String>, style: Style) {
        self.0.push(vec![(format!("  {}", text.into()), style)]);
    }

    fn spans(&mut self, spans: Vec<(String, Style)>) {
        self.0.push(spans);
    }
}

/// Draws the row behind `key`.
pub fn draw(buf: &mut Buffer, area: Rect, key: &RowKey, scroll: usize, context: Context<'_>) {
    let Context { app, world, theme } = context;
    let Some(row) = row(key, world) else {
        let inside = panel(buf, area, "Gone", "Esc back", theme);
        explain(buf, inside, "no data: this is no longer alive", theme.dim());
        return;
    };
    let (title, note, lines) = match row {
        Row::Process(p) => {
            let name = format!("{} {}", p.info.id.pid, harmless(&p.info.comm));
            (name, "Enter its queue pairs · Esc back", process::lines(p, context))
        }
        Row::Qp(p, qp) => {
            (format!("QP {} of {}", qp.qpn, harmless(&p.info.comm)), "Esc back", queue::qp(p, qp, context))
        }
        Row::Cq(p, address, cq) => (
            format!("CQ 0x{address:x} of {}", harmless(&p.info.comm)),
            "Esc back",
            queue::cq(p, address, cq, context),
        ),
        Row::Finding(f) => {
            let note = if f.workload.is_some() {
                "Enter the workload that shows it · Esc back"
            } else {
                "Esc back"
            };
            (f.title.clone(), note, finding(f, area.width.saturating_sub(4), theme))
        }
        other => {
            let table = app.table_id().map(columns).unwrap_or_default();
            ("Detail".to_owned(), "y copies · Esc back", cells(table, &other, world, area.width, theme))
        }
    };
    let inside = panel(buf, area, &title, note, theme);
    let scroll = scroll.min(lines.0.len().saturating_sub(inside.height.into()));
    draw_lines(buf, inside, &lines, scroll);
    let hidden = lines.0.len().saturating_sub(scroll + usize::from(inside.height));
    if hidden > 0 && inside.height > 0 {
        let text = format!(" {hidden} more lines: j ");
        let x = inside.right().saturating_sub(text.width() as u16 + 1);
        put(buf, x, area.bottom() - 1, &text, 24, theme.key());
    }
}

/// Draws lines from the one at `scroll` on.
pub fn draw_lines(buf: &mut Buffer, area: Rect, lines: &Lines, scroll: usize) {
    for (i, line) in lines.0.iter().skip(scroll).take(area.height.into()).enumerate() {
        let mut x = area.x;
        for (text, style) in line {
            x += put(buf, x, area.y + i as u16, text, area.right().saturating_sub(x), *style);
        }
    }
}

/// A finding in full.
pub fn finding(finding: &Finding, width: u16, theme: &Theme) -> Lines {
    let mut lines = Lines::default();
    let style = super::page::findings::style(finding.severity, theme);
    let head = format!("{} {}: {}", finding.severity.mark(), finding.severity.word(), finding.title);
    lines.spans(vec![(head, style), (format!("  {}", finding.who()), theme.series(0))]);
    let room = usize::from(width).saturating_sub(13).max(20);
    let mut part = |name: &str, text: &str, style: Style| {
        for (i, line) in wrap(text, room).into_iter().enumerate() {
            let label = if i == 0 { name } else { "" };
            lines.spans(vec![(format!("  {label:<10} "), theme.dim()), (line, style)]);
        }
    };
    for (name, text) in finding.parts() {
        let style = match name {
            "cost" => theme.strong(),
            "remedy" => theme.good(),
            "unless" | "sure" => theme.dim(),
            _ => theme.text(),
        };
        part(name, &text, style);
    }
    if let Some(workload) = finding.workload {
        part("proof", &format!("workload '{workload}': Enter twice goes there"), theme.key());
    }
    lines
}

/// Every cell of a row in full, with what its column means.
fn cells(columns: &[Column], row: &Row<'_>, world: &World, width: u16, theme: &Theme) -> Lines {
    let mut lines = Lines::default();
    for column in columns {
        let value = (column.get)(world, row).show(column.unit);
        let parts = wrap(&value, usize::from(width).saturating_sub(30).max(20));
        for (i, part) in parts.into_iter().enumerate() {
            lines.fact(if i == 0 { column.key } else { "" }, part, theme);
        }
        lines.styled("", column.explain, theme.frame(), theme);
    }
    lines
}

/// One control-path call as a line.
fn event_line(event: &Event, world: &World, theme: &Theme) -> Vec<(String, Style)> {
    let ago = duration(world.model.now_ns.saturating_sub(event.t_ns) as f64);
    let (outcome, style) = match event.errno {
        0 => (String::new(), theme.text()),
        n => (format!("▲ {}", errno(n)), theme.bad()),
    };
    vec![
        (format!("  {ago:>13} ago  "), theme.dim()),
        (format!("{:<20}", name_of(event.call)), theme.text()),
        (format!("{:>10}  ", duration(event.duration_ns as f64)), theme.text()),
        (format!("tid {:<9}", event.tid), theme.dim()),
        (outcome, style),
    ]
}

/// The name of a call, as the verbs write it.
pub fn name_of(call: Call) -> String {
    match serde_json::to_value(call) {
        Ok(serde_json::Value::String(name)) => name,
        _ => "unknown".to_owned(),
    }
}
