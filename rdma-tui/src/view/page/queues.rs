//! Queues: every queue pair, completion queue and shared receive queue, and who shares what.

use std::collections::BTreeMap;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::app::format::{Unit, count, many, number};
use crate::app::table::TableId;
use crate::app::totals;

use super::super::Context;
use super::super::widgets::facts::{Fact, facts};
use super::super::widgets::{area, bar, explain, panel::panel, put};

pub fn draw(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    let roomy = area.height >= 34;
    let (top, rest) = super::split_top(area, if roomy { 10 } else { 6 });
    let wide = area.width >= 130;
    let pieces = super::columns(top, if wide { &[4, 4, 5] } else { &[1, 1] });
    summary(buf, pieces[0], context);
    states(buf, pieces[1], context);
    if wide {
        over_time(buf, pieces[2], context);
    }
    let what = match context.app.table_id() {
        Some(TableId::Cqs) => "no completion queue was created while it was watched",
        Some(TableId::Srqs) => "no shared receive queue was created while it was watched",
        _ => "no queue pair was created or changed while it was watched",
    };
    super::list(buf, rest, context, &super::nothing_yet(context, what));
}

fn summary(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    let Context { app, world, theme } = context;
    let inside = panel(buf, area, "Queues", "v next table · b group", theme);
    let sums = totals::of(&world.model);
    let queues = || world.model.processes.values().map(|p| &p.queues);
    let srqs: u64 = queues().map(|q| q.srq_population.live).sum();
    let most = queues().map(|q| q.most_qps_on_a_cq).max().unwrap_or(0);
    let older: u64 =
        queues().map(|q| q.qps().iter().filter(|qp| qp.created_ns.is_none()).count() as u64).sum();
    let per_cq =
        if sums.cqs > 0 { number(sums.qps as f64 / sums.cqs as f64, Unit::Ratio) } else { "-".into() };
    let group = app.table(TableId::Qps).group;
    let lonely = sums.cqs >= 16 && sums.cqs >= sums.qps;
    let mut list = vec![
        Fact::new("QPs", count(sums.qps as f64)).styled(theme.strong()),
        Fact::new("CQs", count(sums.cqs as f64)).styled(theme.strong()),
        Fact::new("SRQs", count(srqs as f64)),
        if lonely {
            Fact::new("QPs per CQ", format!("▲ {per_cq}: no CQ is shared")).styled(theme.warn())
        } else {
            Fact::new("QPs per CQ", format!("{per_cq}, at most {most}"))
        },
        Fact::new("grouped", group.title()),
    ];
    if older > 0 {
        list.push(Fact::new("older", format!("{} than the recording", many(older, "QP"))));
    }
    facts(buf, inside, &list, theme);
}

fn states(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    let Context { world, theme, .. } = context;
    let inside = panel(buf, area, "States and types", "", theme);
    let mut states: BTreeMap<&str, u64> = BTreeMap::new();
    let mut types: BTreeMap<&str, u64> = BTreeMap::new();
    let mut signal_all = 0_u64;
    for process in world.model.processes.values() {
        for qp in process.queues.qps() {
            *states.entry(qp.state.as_deref().unwrap_or("unknown")).or_default() += 1;
            *types.entry(if qp.qp_type.is_empty() { "unknown" } else { &qp.qp_type }).or_default() += 1;
            signal_all += u64::from(qp.sq_sig_all);
        }
    }
    let all: u64 = states.values().sum();
    if all == 0 {
        explain(buf, inside, &super::nothing_yet(context, "no queue pair is alive"), theme.dim());
        return;
    }
    let fills = ["█", "▓", "▒", "░"];
    let pieces: Vec<_> = states
        .iter()
        .enumerate()
        .map(|(i, (state, n))| {
            let style = match *state {
                "RTS" => theme.good(),
                "ERR" | "SQE" => theme.bad(),
                _ => theme.series(i),
            };
            (*n as f64, style, fills[i % fills.len()])
        })
        .collect();
    bar::parts(buf, inside.x, inside.y, inside.width, &pieces);
    let mut x = inside.x;
    let mut y = inside.y + 1;
    for ((state, n), (_, style, fill)) in states.iter().zip(&pieces) {
        let text = format!("{} {}", crate::app::format::harmless(state), count(*n as f64));
        if x + text.len() as u16 + 4 > inside.right() {
            (x, y) = (inside.x, y + 1);
        }
        if y >= inside.bottom() {
            return;
        }
        x += put(buf, x, y, fill, 1, *style) + 1;
        x += put(buf, x, y, &text, inside.right().saturating_sub(x), theme.text()) + 2;
    }
    y += 1;
    if y < inside.bottom() {
        let text: Vec<String> = types
            .iter()
            .map(|(t, n)| format!("{} {}", crate::app::format::harmless(t), count(*n as f64)))
            .collect();
        put(buf, inside.x, y, &text.join(" · "), inside.width, theme.dim());
        y += 1;
    }
    if y < inside.bottom() && signal_all > 0 {
        let text = format!("▲ {} signal every send (sq_sig_all)", count(signal_all as f64));
        put(buf, inside.x, y, &text, inside.width, theme.warn());
    }
}

fn over_time(buf: &mut Buffer, place: Rect, context: Context<'_>) {
    let Context { app, world, theme } = context;
    let inside = panel(buf, place, "QPs alive", app.window.title(), theme);
    let columns = world.history.columns(app.window.ns(), area::columns(inside), |p| p.qps as f64);
    area::area(buf, inside, &columns, Unit::Count, theme);
}
