//! Which programs go where: pure, so that the choice can be tested.

use std::collections::BTreeSet;

use probe_common::counters::place;
use probe_common::wire::part;

use crate::entry::Class;
use crate::providers::Role;

/// When a probe is put in place. What is entered must be left, and a batch must not begin before all that builds it is
/// watched: else the first counts would be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Turn {
    /// Returns.
    First,
    /// Most entries.
    Then,
    /// What everything else depends on.
    Last,
}

/// One probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Point {
    /// When.
    pub turn: Turn,
    /// The program.
    pub program: &'static str,
    /// True for a return probe.
    pub returns: bool,
    /// Offset of the probed instruction in the file.
    pub offset: u64,
    /// What the program is told.
    pub cookie: u64,
    /// What a hit costs; `None` for return probes.
    pub class: Option<Class>,
    /// Name of the function or site.
    pub name: &'static str,
}

impl Point {
    /// The part of the data path it belongs to.
    pub fn part(&self) -> usize {
        match self.program {
            "site_polled" | "poll_enter" | "poll_cq_leave" | "start_poll_leave" | "next_poll_leave"
            | "req_notify_enter" => part::POLLS,
            _ => part::POSTS,
        }
    }
}

/// Probes for one function of a provider: `offset` is its entry in the file, `delta` the way to the instruction chosen.
/// None for functions that say nothing new.
pub fn function(role: Role, offset: u64, delta: u64, class: Class) -> Vec<Point> {
    let leave = |program| Point {
        turn: Turn::First,
        program,
        returns: true,
        offset,
        cookie: 0,
        class: None,
        name: role.name(),
    };
    let enter = |program, cookie| Point {
        turn: Turn::Then,
        program,
        returns: false,
        offset: offset + delta,
        cookie,
        class: Some(class),
        name: role.name(),
    };
    // A return probe sits at the very entry: another instruction for the entry probe would be a second trap.
    let both = |left, program, cookie| {
        let mut entered = enter(program, cookie);
        if delta != 0 {
            (entered.offset, entered.class) = (offset, Some(Class::SingleStepped));
        }
        vec![leave(left), entered]
    };
    // `enum ibv_wr_opcode`.
    let build = |opcode| vec![enter("wr_build_enter", opcode)];
    let set = |which| vec![enter("wr_set_enter", which)];
    match role {
        Role::PostSend => both("post_send_leave", "post_send_enter", 0),
        Role::PostRecv => both("post_recv_leave", "post_recv_enter", place::QP),
        Role::PostSrqRecv => both("post_recv_leave", "post_recv_enter", place::SRQ),
        Role::PollCq => both("poll_cq_leave", "poll_enter", 0),
        Role::StartPoll => both("start_poll_leave", "poll_enter", 0),
        Role::NextPoll => both("next_poll_leave", "poll_enter", 0),
        Role::ReqNotifyCq => vec![enter("req_notify_enter", 0)],
        Role::WrStart => vec![Point { turn: Turn::Last, ..enter("wr_start_enter", 0) }],
        Role::WrComplete => both("wr_complete_leave", "wr_complete_enter", 0),
        Role::WrAbort => vec![enter("wr_abort_enter", 0)],
        Role::WrRdmaWrite => build(0),
        Role::WrRdmaWriteImm => build(1),
        Role::WrSend => build(2),
        Role::WrSendImm => build(3),
        Role::WrRdmaRead => build(4),
        Role::WrAtomicCmpSwp => build(5),
        Role::WrAtomicFetchAdd => build(6),
        Role::WrLocalInv => build(7),
        Role::WrBindMw => build(8),
        Role::WrSendInv => build(9),
        Role::WrSendTso => build(10),
        Role::WrSetSge => set(place::SET_SGE),
        Role::WrSetSgeList => set(place::SET_SGE_LIST),
        Role::WrSetInlineData => set(place::SET_INLINE),
        Role::WrSetInlineDataList => set(place::SET_INLINE_LIST),
        Role::EndPoll => Vec::new(),
    }
}

/// Leaves out what would slow every poll, where that is bounded: a poll is made millions of times a second. Returns what
/// stays, and what does not.
///
/// Without `next_poll`, `start_poll` shows only the first completion entry of each poll, and is told so. `unseen`: that
/// holds for this file already.
pub fn affordable(points: Vec<Point>, unseen: bool) -> (Vec<Point>, Vec<Point>) {
    let at = |point: &Point| (point.name, point.offset);
    let stepped = |point: &&Point| point.program == "poll_enter" && point.class == Some(Class::SingleStepped);
    // The probe of its return is a trap at the entry, too.
    let dear: BTreeSet<_> = points.iter().filter(stepped).map(at).collect();
    let (dear, mut points): (Vec<_>, Vec<_>) =
        points.into_iter().partition(|point| dear.contains(&at(point)));
    if unseen || dear.iter().any(Point::is_next_poll) {
        for point in
            points.iter_mut().filter(|p| p.program == "poll_enter" && p.name == Role::StartPoll.name())
        {
            point.cookie = place::FIRST_ONLY;
        }
    }
    (points, dear)
}

impl Point {
    /// True where an extended completion queue is looked at, which may show a completion entry by then.
    pub fn shows_entries(&self) -> bool {
        matches!(self.program, "start_poll_leave" | "next_poll_leave")
    }

    /// True for a probe of a `next_poll`.
    pub fn is_next_poll(&self) -> bool {
        self.name == Role::NextPoll.name()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use probe_common::wire;

    use super::*;
    use crate::providers::Probed;

    #[test]
    fn a_post_is_left_before_it_is_entered() {
        let mut points = function(Role::PostSend, 0x3cc0, 0, Class::Emulated);
        points.sort();
        let places: Vec<_> = points.iter().map(|p| (p.program, p.returns, p.offset)).collect();
        assert_eq!(places, [("post_send_leave", true, 0x3cc0), ("post_send_enter", false, 0x3cc0)]);
    }

    #[test]
    fn where_the_return_probe_is_single_stepped_the_entry_is_probed_at_the_same_place() {
        let points = function(Role::PollCq, 0x10, 4, Class::Emulated);
        assert!(points.iter().all(|p| p.offset == 0x10));
        assert_eq!(points[1].class, Some(Class::SingleStepped));
        // Without a return probe the cheap instruction is taken.
        let points = function(Role::ReqNotifyCq, 0x10, 4, Class::Emulated);
        assert_eq!((points[0].offset, points[0].class), (0x14, Some(Class::Emulated)));
    }

    #[test]
    fn what_is_said_to_be_probed_is() {
        for &role in Role::ALL {
            let points = function(role, 0, 0, Class::Emulated);
            let said = match role.probed() {
                Probed::Nowhere => vec![],
                Probed::Entry => vec![false],
                Probed::EntryAndReturn => vec![true, false],
            };
            assert_eq!(points.iter().map(|p| p.returns).collect::<Vec<_>>(), said, "{role:?}");
        }
    }

    #[test]
    fn every_program_at_functions_notes_that_it_was_hit() {
        let programs = Role::ALL.iter().flat_map(|role| function(*role, 0, 0, Class::Emulated));
        let placed: BTreeSet<_> = programs.map(|point| wire::function::place(point.program)).collect();
        assert_eq!(placed, (0..wire::function::COUNT).map(Some).collect());
        assert_eq!(wire::function::place("site_posted"), None);
    }

    #[test]
    fn where_next_poll_would_be_single_stepped_it_is_not_touched_and_start_poll_is_told() {
        let all = |delta| {
            let start = function(Role::StartPoll, 0x2970, 0, Class::Emulated);
            [start, function(Role::NextPoll, 0x2d80, delta, Class::Emulated)].concat()
        };
        // An emulated instruction farther on does not help: the return is probed at the entry.
        let (points, dear) = affordable(all(0x27), false);
        assert!(points.iter().all(|point| point.name == "start_poll"));
        let dear: Vec<_> = dear.iter().map(|point| (point.program, point.returns)).collect();
        assert_eq!(dear, [("next_poll_leave", true), ("poll_enter", false)]);
        let cookies = |points: &[Point]| points.iter().map(|p| (p.program, p.cookie)).collect::<Vec<_>>();
        let told = [("start_poll_leave", 0), ("poll_enter", place::FIRST_ONLY)];
        assert_eq!(cookies(&points), told);
        assert_eq!(cookies(&affordable(function(Role::StartPoll, 0x2970, 0, Class::Emulated), true).0), told);
        let (points, dear) = affordable(all(0), false);
        assert_eq!((points, dear), (all(0), Vec::new()));
    }

    #[test]
    fn a_batch_begins_when_everything_else_is_watched() {
        let roles = [Role::WrStart, Role::WrSend, Role::WrSetSge, Role::WrComplete, Role::WrAbort];
        let mut points: Vec<_> =
            roles.into_iter().flat_map(|role| function(role, 0, 0, Class::Emulated)).collect();
        points.sort();
        assert_eq!(points.first().map(|p| p.program), Some("wr_complete_leave"));
        assert_eq!(points.last().map(|p| p.program), Some("wr_start_enter"));
    }

    #[test]
    fn polls_are_a_part_of_their_own() {
        let of =
            |role| function(role, 0, 0, Class::Emulated).iter().map(Point::part).collect::<BTreeSet<_>>();
        for role in [Role::PollCq, Role::StartPoll, Role::NextPoll, Role::ReqNotifyCq] {
            assert_eq!(of(role), BTreeSet::from([part::POLLS]), "{role:?}");
        }
        for role in [Role::PostSend, Role::PostSrqRecv, Role::WrStart, Role::WrSend, Role::WrComplete] {
            assert_eq!(of(role), BTreeSet::from([part::POSTS]), "{role:?}");
        }
    }

    #[test]
    fn shared_receive_queues_are_told_apart_by_the_cookie() {
        let cookie = |role| function(role, 0, 0, Class::Emulated)[1].cookie;
        assert_eq!((cookie(Role::PostRecv), cookie(Role::PostSrqRecv)), (1, 3));
    }
}
