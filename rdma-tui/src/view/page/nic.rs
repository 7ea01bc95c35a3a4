//! NIC: devices and ports, their counters, and what the emulated device shows of its inside.

mod inside;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::app::format::{count, harmless};
use crate::app::inside::Inside;

use super::super::Context;
use super::super::widgets::{explain, panel::panel, put};

pub fn draw(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    let lines: u16 = context.world.model.devices.values().map(|d| 1 + d.ports.len() as u16).sum();
    let framed = if area.width >= 100 && area.height >= 27 { 2 } else { 1 };
    let (top, rest) = super::split_top(area, (lines + framed).clamp(4, area.height / 2));
    devices(buf, top, context);
    let ports = context.world.model.devices.values().flat_map(|d| d.ports.iter().map(move |p| (d, p)));
    let within = ports.filter_map(|(d, port)| Some((d, Inside::of(&port.counters)?))).next();
    let rest = match &within {
        Some((device, figures)) if rest.height >= 6 => {
            let (above, below) = super::split_top(rest, inside::HEIGHT.min(rest.height * 2 / 3));
            inside::draw(buf, above, &harmless(&device.name), figures, context.theme);
            below
        }
        _ => rest,
    };
    let what = if context.world.model.devices.is_empty() {
        "the recording names no RDMA device; where there is none, cargo xtask emu gives one"
    } else {
        "the devices' counters could not be read, or there are none"
    };
    super::list(buf, rest, context, &super::nothing_yet(context, what));
}

fn devices(buf: &mut Buffer, area: Rect, context: Context<'_>) {
    let Context { world, theme, .. } = context;
    let inside = panel(buf, area, "Devices and ports", "", theme);
    if world.model.devices.is_empty() {
        explain(buf, inside, "no data: the recording names no RDMA device", theme.dim());
        return;
    }
    let mut y = inside.y;
    for device in world.model.devices.values() {
        if y >= inside.bottom() {
            return;
        }
        let mut x = inside.x + put(buf, inside.x, y, &harmless(&device.name), 16, theme.series(0)) + 2;
        x += put(buf, x, y, &harmless(&device.driver), 16, theme.text()) + 2;
        if device.emulated {
            x += put(buf, x, y, "emulated: figures are modelled, not measured", 46, theme.warn()) + 2;
        }
        let mut more = Vec::new();
        if !device.node_guid.is_empty() {
            more.push(format!("GUID {}", harmless(&device.node_guid)));
        }
        if !device.firmware.is_empty() {
            more.push(format!("firmware {}", harmless(&device.firmware)));
        }
        put(buf, x, y, &more.join(" · "), inside.right().saturating_sub(x), theme.dim());
        y += 1;
        for port in &device.ports {
            if y >= inside.bottom() {
                return;
            }
            let up = port.state.contains("ACTIVE");
            let (mark, style) = if up { ("●", theme.good()) } else { ("○", theme.bad()) };
            put(buf, inside.x + 2, y, mark, 1, style);
            let mut facts = vec![
                format!("port {}", port.number),
                harmless(&port.state).into_owned(),
                harmless(&port.link_layer).into_owned(),
            ];
            if port.rate_100mbps > 0 {
                facts.push(format!("{} Gb/s", count(f64::from(port.rate_100mbps) / 10.0)));
            }
            if port.active_mtu_bytes > 0 {
                facts.push(format!("MTU {}", port.active_mtu_bytes));
            }
            if !port.netdev.is_empty() {
                facts.push(harmless(&port.netdev).into_owned());
            }
            facts.retain(|f| !f.is_empty());
            put(buf, inside.x + 4, y, &facts.join(" · "), inside.width.saturating_sub(4), theme.text());
            y += 1;
        }
    }
}
