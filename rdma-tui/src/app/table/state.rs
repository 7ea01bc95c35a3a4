//! How one table is sorted, filtered and scrolled, and its rows in that order.

use std::cell::Cell;

use probe_user::sample::ProcessId;

use super::super::filter::Filter;
use super::super::value::Value;
use super::super::world::World;
use super::{Row, RowKey, TableId, columns, fields, keys, row};

/// What the queue pairs are grouped by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Group {
    /// Not grouped.
    #[default]
    None,
    /// By owner.
    Process,
    /// By the other end.
    Peer,
    /// By the completion queue of their sends.
    Cq,
}

impl Group {
    /// The next way to group.
    pub fn next(self) -> Self {
        match self {
            Self::None => Self::Process,
            Self::Process => Self::Peer,
            Self::Peer => Self::Cq,
            Self::Cq => Self::None,
        }
    }

    /// The column whose value makes the groups.
    pub fn column(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Process => Some("pid"),
            Self::Peer => Some("qp.peer"),
            Self::Cq => Some("qp.cq"),
        }
    }

    /// Name for people.
    pub fn title(self) -> &'static str {
        match self {
            Self::None => "not grouped",
            Self::Process => "by process",
            Self::Peer => "by peer",
            Self::Cq => "by CQ",
        }
    }
}

/// The state of one table; kept while other pages are shown.
#[derive(Debug, Clone)]
pub struct TableState {
    /// Which table.
    pub table: TableId,
    /// Column it is sorted by, by index.
    pub sort: usize,
    /// Largest first.
    pub descending: bool,
    /// Grouping (queue pairs only).
    pub group: Group,
    /// Rows let through.
    pub filter: Filter,
    /// The filter as typed.
    pub filter_text: String,
    /// Rows in order.
    pub rows: Vec<RowKey>,
    /// Rows there are without the filter.
    pub unfiltered: usize,
    /// Place of the selection in `rows`.
    pub selected: usize,
    /// First row on screen.
    pub top: usize,
    /// Rows the last drawing had room for: how far a screenful is.
    pub height: Cell<usize>,
    selected_key: Option<RowKey>,
    /// The reader has moved: from now on the selection stays with its row, not with its place.
    pinned: bool,
    order_of: Option<u64>,
}

impl TableState {
    /// A table in its first order.
    pub fn new(table: TableId) -> Self {
        let (column, descending) = table.first_order();
        let sort = columns(table).iter().position(|c| c.key == column).unwrap_or(0);
        Self {
            table,
            sort,
            descending,
            group: Group::None,
            filter: Filter::default(),
            filter_text: String::new(),
            rows: Vec::new(),
            unfiltered: 0,
            selected: 0,
            top: 0,
            height: Cell::new(1),
            selected_key: None,
            pinned: false,
            order_of: None,
        }
    }

    /// Brings the rows up to date with `world`; does nothing when neither it nor the order asked for has changed.
    pub fn refresh(&mut self, world: &World) {
        if self.order_of == Some(world.generation) {
            return;
        }
        self.order_of = Some(world.generation);
        let columns = columns(self.table);
        let fields = fields(self.table);
        let group = self.group.column().and_then(|key| columns.iter().position(|c| c.key == key));
        let all = keys(self.table, world);
        self.unfiltered = all.len();
        let mut rows: Vec<Sorted<'_>> = Vec::with_capacity(all.len());
        for key in all {
            let Some(row) = row(&key, world) else { continue };
            if !self.filter.is_empty() && !self.filter.matches(fields, &|i| (columns[i].get)(world, &row)) {
                continue;
            }
            let value = columns.get(self.sort).map_or(Value::Missing, |c| (c.get)(world, &row));
            let group = group.map_or(Value::Missing, |g| (columns[g].get)(world, &row));
            rows.push(Sorted { group, value, tie: Tie::of(&row), key });
        }
        rows.sort_unstable_by(|a, b| {
            a.group
                .order(&b.group, false)
                .then_with(|| a.value.order(&b.value, self.descending))
                .then_with(|| a.tie.cmp(&b.tie))
                .then_with(|| a.key.cmp(&b.key))
        });
        self.rows = rows.into_iter().map(|sorted| sorted.key).collect();
        self.follow();
    }

    /// Forgets the order, after the sort, the filter or the grouping has changed.
    pub fn reorder(&mut self) {
        self.order_of = None;
    }

    /// Finds the selection again.
    fn follow(&mut self) {
        let kept = match &self.selected_key {
            Some(key) if self.pinned => self.rows.iter().position(|row| row == key),
            _ => None,
        };
        self.selected = kept.unwrap_or(self.selected).min(self.rows.len().saturating_sub(1));
        self.selected_key = self.rows.get(self.selected).cloned();
        self.scroll();
    }

    /// Moves the selection.
    pub fn select(&mut self, to: usize) {
        self.selected = to.min(self.rows.len().saturating_sub(1));
        self.selected_key = self.rows.get(self.selected).cloned();
        self.pinned = true;
        self.scroll();
    }

    /// Moves the selection by so many rows.
    pub fn move_by(&mut self, by: isize) {
        self.select(self.selected.saturating_add_signed(by));
    }

    /// Keeps the selection on screen.
    pub fn scroll(&mut self) {
        let height = self.height.get().max(1);
        if self.selected < self.top {
            self.top = self.selected;
        } else if self.selected >= self.top + height {
            self.top = self.selected + 1 - height;
        }
        self.top = self.top.min(self.rows.len().saturating_sub(height));
    }

    /// The selected row's key.
    pub fn selection(&self) -> Option<&RowKey> {
        self.rows.get(self.selected)
    }

    /// Sorts by the next or the previous column: figures from the largest, words from the first.
    pub fn sort_step(&mut self, forward: bool) {
        let columns = columns(self.table);
        let n = columns.len().max(1);
        self.sort = if forward { (self.sort + 1) % n } else { (self.sort + n - 1) % n };
        self.descending = columns.get(self.sort).is_some_and(|c| c.unit.is_some() && !c.names);
        self.pinned = false;
        self.selected = 0;
        self.top = 0;
        self.reorder();
    }
}

/// A row and what decides its place.
struct Sorted<'w> {
    group: Value<'w>,
    value: Value<'w>,
    tie: Tie,
    key: RowKey,
}

/// Order of rows that are equal in the sorted column: queue pairs by owner and age, findings by cost.
#[derive(PartialEq, Eq, PartialOrd, Ord, Default)]
struct Tie(Option<ProcessId>, u64, u32);

impl Tie {
    fn of(row: &Row<'_>) -> Self {
        match row {
            Row::Qp(process, qp) => Self(Some(process.info.id), qp.created_ns.unwrap_or(0), qp.qpn),
            // The dearest first: weights are not negative, so their bits are in their order.
            Row::Finding(finding) => Self(None, !finding.cost.weight().to_bits(), 0),
            _ => Self::default(),
        }
    }
}
