//! The queue pairs of a recording, and which of them belong together.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::Ipv6Addr;

use super::clocks::{self, Bounds};
use super::messages;
use crate::sample::{Call, Connection, Detail, End, Event, Header, Host, PostedTo, ProcessId, Record};

/// Queue pairs remembered of one recording; those beyond are not joined.
const MAX_ENDS: usize = 2_000_000;
/// Changes to RTR remembered per thread until the librdmacm call around them has returned.
const MAX_INSIDE: usize = 64;
/// Messages whose moments are remembered, in all and of one queue pair in one direction: enough to relate the clocks.
const MAX_MOMENTS: usize = 1 << 22;
/// See [`MAX_MOMENTS`].
const MAX_MOMENTS_OF_QP: usize = 1 << 16;
/// Threads and librdmacm ids remembered.
const MAX_NAMES: usize = 1 << 16;

/// `RDMA_CM_EVENT_CONNECT_REQUEST` and `RDMA_CM_EVENT_ESTABLISHED`.
const CONNECT_REQUEST: u32 = 4;

/// A queue pair that was connected to another.
#[derive(Debug, Clone, PartialEq)]
pub struct Connected {
    end: End,
    peer_qpn: u32,
    /// GID it was connected to.
    dgid: Option<Ipv6Addr>,
    /// When its creation had returned, if that was seen.
    created_ns: Option<u64>,
    /// No message of it is lost on its way, so that they can be counted off against each other.
    reliable: bool,
    /// When it was told to be ready to receive, and when that had happened.
    rtr_ns: (u64, u64),
    /// The librdmacm call it happened in.
    cm: Option<InCm>,
}

/// What librdmacm's part in a connection tells of its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InCm {
    /// Inside `rdma_accept`, answering a request whose arrival had been reported then.
    Accepting { request_ns: Option<u64> },
    /// On the arrival of the reply to a request that was sent then.
    Connecting { connect_ns: Option<u64> },
}

/// The queue pairs of one recording.
#[derive(Debug, Default)]
pub struct Ends {
    /// Connected queue pairs, in order of being ready.
    connected: Vec<Connected>,
    created: HashMap<(ProcessId, u64), (u64, bool)>,
    /// Per thread, the latest entries of `connected`.
    inside: HashMap<(ProcessId, u32), VecDeque<usize>>,
    /// When the call to connect an id began, and when the request that made it arrived.
    connects: HashMap<(ProcessId, u64), u64>,
    requests: HashMap<(ProcessId, u64), u64>,
    /// What each queue pair sent and received, as far as it is remembered.
    traffic: HashMap<(ProcessId, u32), Traffic>,
    /// Moments in `traffic`.
    moments: usize,
    /// How the recording ended.
    pub reason: String,
}

/// The messages of one queue pair, in order; from the first gap on none, since they can no longer be counted.
#[derive(Debug, Default)]
struct Traffic {
    /// When each post of one began.
    sent_ns: Vec<u64>,
    /// When each poll that brought one had returned.
    received_ns: Vec<u64>,
    closed: bool,
}

impl Ends {
    /// Takes in the next record.
    pub fn take(&mut self, record: &Record) {
        match record {
            Record::Event(event) if event.errno == 0 => self.event(event),
            Record::Footer(footer) => self.reason.clone_from(&footer.reason),
            Record::Post(post) if post.queue == PostedTo::Send => {
                let sent = post.wrs.iter().filter(|wr| wr.opcode.is_some_and(messages::is_received));
                self.moment(post.id, post.number, sent.count(), |traffic| &mut traffic.sent_ns, post.t_ns);
            }
            Record::Poll(poll) => {
                let at_ns = poll.t_ns.saturating_add(poll.duration_ns);
                for cqe in poll.cqes.iter().filter(|cqe| cqe.receive == Some(true)) {
                    if let Some(qpn) = cqe.qpn {
                        self.moment(poll.id, qpn, 1, |traffic| &mut traffic.received_ns, at_ns);
                    }
                }
            }
            Record::Gap(gap) => {
                let of_process = self.traffic.iter_mut().filter(|((id, _), _)| *id == gap.id);
                of_process.for_each(|(_, traffic)| traffic.closed = true);
            }
            _ => {}
        }
    }

    /// Remembers when messages of a queue pair were sent or received.
    fn moment(
        &mut self,
        id: ProcessId,
        qpn: u32,
        count: usize,
        which: fn(&mut Traffic) -> &mut Vec<u64>,
        t_ns: u64,
    ) {
        if count == 0 || self.moments.saturating_add(count) > MAX_MOMENTS {
            return;
        }
        let traffic = self.traffic.entry((id, qpn)).or_default();
        if traffic.closed || which(traffic).len().saturating_add(count) > MAX_MOMENTS_OF_QP {
            return;
        }
        which(traffic).extend(std::iter::repeat_n(t_ns, count));
        self.moments += count;
    }

    fn event(&mut self, event: &Event) {
        let returned_ns = event.t_ns.saturating_add(event.duration_ns);
        match (event.call, &event.detail) {
            (Call::CreateQp, Detail::Qp { qp, qp_type, .. }) if self.created.len() < MAX_ENDS => {
                self.created.insert((event.id, *qp), (returned_ns, qp_type == "RC"));
            }
            (
                Call::DestroyQp,
                Detail::Qp { qp, .. } | Detail::Object { object: qp } | Detail::Wait { object: qp, .. },
            ) => {
                self.created.remove(&(event.id, *qp));
            }
            (Call::ModifyQp, Detail::ModifyQp(a)) => {
                let Some(peer_qpn) = a.dest_qpn else { return };
                if a.to.as_deref() != Some("RTR") || self.connected.len() >= MAX_ENDS {
                    return;
                }
                let threads = self.inside.len();
                if threads < MAX_NAMES || self.inside.contains_key(&(event.id, event.tid)) {
                    let inside = self.inside.entry((event.id, event.tid)).or_default();
                    inside.push_back(self.connected.len());
                    if inside.len() > MAX_INSIDE {
                        inside.pop_front();
                    }
                }
                self.connected.push(Connected {
                    end: End { id: event.id, qp: a.qp, qpn: a.qpn },
                    peer_qpn,
                    dgid: a.dgid.as_deref().and_then(|gid| gid.parse().ok()),
                    created_ns: self.created.get(&(event.id, a.qp)).map(|(at_ns, _)| *at_ns),
                    reliable: self.created.get(&(event.id, a.qp)).is_some_and(|(_, reliable)| *reliable),
                    rtr_ns: (event.t_ns, returned_ns),
                    cm: None,
                });
            }
            (Call::CmConnect, Detail::Cm { id, .. }) => {
                remember(&mut self.connects, event.id, *id, event.t_ns);
            }
            (Call::CmGetEvent, Detail::Cm { id, event: kind, .. }) => {
                if *kind == CONNECT_REQUEST {
                    remember(&mut self.requests, event.id, *id, returned_ns);
                }
                let connect_ns = self.connects.get(&(event.id, *id)).copied();
                self.explain(event, returned_ns, InCm::Connecting { connect_ns });
            }
            (Call::CmAccept, Detail::Cm { id, .. }) => {
                let request_ns = self.requests.get(&(event.id, *id)).copied();
                self.explain(event, returned_ns, InCm::Accepting { request_ns });
            }
            _ => {}
        }
    }

    /// A librdmacm call has returned: what the thread changed within it was part of it.
    fn explain(&mut self, call: &Event, returned_ns: u64, cm: InCm) {
        let Some(inside) = self.inside.get_mut(&(call.id, call.tid)) else { return };
        for index in inside.drain(..) {
            let connected = &mut self.connected[index];
            if connected.rtr_ns.0 >= call.t_ns && connected.rtr_ns.1 <= returned_ns {
                connected.cm = Some(cm);
            }
        }
    }
}

fn remember(table: &mut HashMap<(ProcessId, u64), u64>, process: ProcessId, id: u64, t_ns: u64) {
    if table.len() < MAX_NAMES || table.contains_key(&(process, id)) {
        table.insert((process, id), t_ns);
    }
}

/// What belongs together.
#[derive(Debug, Default)]
pub struct Joined {
    /// `(recording, end)` twice.
    pairs: Vec<[(usize, Connected); 2]>,
    /// See [`clocks::place`].
    pub bounds: Vec<Vec<Bounds>>,
    /// Connected queue pairs whose other end is in no recording.
    pub without_peer: u64,
    /// Those for which several others would do.
    pub ambiguous: u64,
}

impl Joined {
    /// Both ends of each connection on the common time line; the one that was ready first comes first.
    pub fn connections<'a>(&'a self, hosts: &'a [Host]) -> impl Iterator<Item = Connection> + 'a {
        self.pairs.iter().map(|pair| {
            let at = |(file, end): &(usize, Connected)| shifted(end.rtr_ns.1, hosts[*file].offset_ns);
            let (first, second) = if at(&pair[0]) <= at(&pair[1]) { (0, 1) } else { (1, 0) };
            Connection { t_ns: at(&pair[second]), a: pair[first].1.end, b: pair[second].1.end }
        })
    }

    /// Connections on which no message is lost, as [`Joined::connections`] tells them, with the recordings of both ends.
    pub fn reliable<'a>(&'a self) -> impl Iterator<Item = [(usize, End); 2]> + 'a {
        let reliable = self.pairs.iter().filter(|pair| pair.iter().all(|(_, end)| end.reliable));
        reliable.map(|[a, b]| [(a.0, a.1.end), (b.0, b.1.end)])
    }

    /// Which recordings the two ends are in, in the order of [`Joined::connections`].
    pub fn files<'a>(&'a self, hosts: &'a [Host]) -> impl Iterator<Item = (usize, usize)> + 'a {
        self.pairs.iter().map(|pair| {
            let at = |(file, end): &(usize, Connected)| shifted(end.rtr_ns.1, hosts[*file].offset_ns);
            let (a, b) = (pair[0].0, pair[1].0);
            if at(&pair[0]) <= at(&pair[1]) { (a, b) } else { (b, a) }
        })
    }

    /// Connections whose ends are in two recordings.
    pub fn between_hosts(&self) -> u64 {
        self.pairs.iter().filter(|pair| pair[0].0 != pair[1].0).count() as u64
    }

    /// Connections in all.
    pub fn count(&self) -> u64 {
        self.pairs.len() as u64
    }
}

/// A moment moved to another clock; what would lie before that clock's beginning is its beginning.
pub fn shifted(t_ns: u64, offset_ns: i64) -> u64 {
    t_ns.saturating_add_signed(offset_ns)
}

/// Joins the ends that name each other, and gathers what that says about the clocks.
///
/// QP numbers are unique on a device at one moment only. Where a pair of numbers occurs more than once on a side, its
/// occurrences are joined in order of time if there are as many on the other side, and else not at all.
pub fn join(headers: &[Header], recordings: &[Ends]) -> Joined {
    let gids: Vec<HashSet<Ipv6Addr>> = headers.iter().map(gids_of).collect();
    let mut by_numbers: BTreeMap<(u32, u32), Vec<(usize, &Connected)>> = BTreeMap::new();
    for (file, ends) in recordings.iter().enumerate() {
        for end in &ends.connected {
            by_numbers.entry((end.end.qpn, end.peer_qpn)).or_default().push((file, end));
        }
    }
    let mut joined = Joined { bounds: clocks::unknown(headers.len()), ..Joined::default() };
    for ((own, peer), here) in &by_numbers {
        if own > peer {
            continue;
        }
        let (here, there) = if own == peer {
            // Both ends have the same number: the two sides are two processes.
            let first = here[0].1.end.id;
            let is_first = |(file, end): &&(usize, &Connected)| (*file, end.end.id) == (here[0].0, first);
            (
                here.iter().filter(is_first).copied().collect(),
                here.iter().filter(|e| !is_first(e)).copied().collect(),
            )
        } else {
            (here.clone(), by_numbers.get(&(*peer, *own)).cloned().unwrap_or_default())
        };
        pair_up(here, there, &gids, headers, recordings, &mut joined);
    }
    joined
}

type Side<'a> = Vec<(usize, &'a Connected)>;

fn pair_up(
    mut here: Side<'_>,
    mut there: Side<'_>,
    gids: &[HashSet<Ipv6Addr>],
    headers: &[Header],
    recordings: &[Ends],
    joined: &mut Joined,
) {
    let all = (here.len() + there.len()) as u64;
    if here.is_empty() || there.is_empty() {
        joined.without_peer += all;
        return;
    }
    // Numbers may meet by chance: the GIDs, where both are known, must agree too.
    let fits = |a: &(usize, &Connected), b: &(usize, &Connected)| {
        let is_at = |gid: Option<Ipv6Addr>, file: usize| {
            gid.is_none_or(|gid| gids[file].is_empty() || gids[file].contains(&gid))
        };
        is_at(a.1.dgid, b.0) && is_at(b.1.dgid, a.0)
    };
    here.retain(|a| there.iter().any(|b| fits(a, b)));
    there.retain(|b| here.iter().any(|a| fits(a, b)));
    let left = (here.len() + there.len()) as u64;
    joined.without_peer += all - left;
    if here.len() != there.len() {
        joined.ambiguous += left;
        return;
    }
    // On different clocks, order by wall time is the best there is.
    let wall = |(file, end): &(usize, &Connected)| {
        let header = &headers[*file];
        i128::from(end.rtr_ns.1) + i128::from(header.wall_ns) - i128::from(header.t_ns)
    };
    here.sort_by_key(wall);
    there.sort_by_key(wall);
    for (a, b) in here.into_iter().zip(there) {
        if !fits(&a, &b) {
            joined.ambiguous += 2;
            continue;
        }
        for (from, to) in [(a, b), (b, a)] {
            bound(from, to, &mut joined.bounds);
            bound_by_messages(recordings, from, to, &mut joined.bounds);
        }
        joined.pairs.push([(a.0, a.1.clone()), (b.0, b.1.clone())]);
    }
}

/// What must have come before what, from one end to the other.
fn bound(from: (usize, &Connected), to: (usize, &Connected), bounds: &mut [Vec<Bounds>]) {
    // The number is known to its own program when its creation has returned, and to the peer later.
    if let Some(created_ns) = from.1.created_ns {
        clocks::precede(bounds, (from.0, created_ns), (to.0, to.1.rtr_ns.0));
    }
    match (from.1.cm, to.1.cm) {
        (Some(InCm::Accepting { .. }), Some(InCm::Connecting { .. })) => {
            // The acceptor is ready before it replies, the other end becomes so when the reply is there.
            clocks::precede(bounds, (from.0, from.1.rtr_ns.1), (to.0, to.1.rtr_ns.0));
        }
        (
            Some(InCm::Connecting { connect_ns: Some(connect_ns) }),
            Some(InCm::Accepting { request_ns: Some(request_ns) }),
        ) => clocks::precede(bounds, (from.0, connect_ns), (to.0, request_ns)),
        _ => {}
    }
}

/// A message is received after it was sent.
fn bound_by_messages(
    recordings: &[Ends],
    from: (usize, &Connected),
    to: (usize, &Connected),
    bounds: &mut [Vec<Bounds>],
) {
    let traffic = |(file, end): (usize, &Connected)| recordings[file].traffic.get(&(end.end.id, end.end.qpn));
    let (Some(sender), Some(receiver)) = (traffic(from), traffic(to)) else { return };
    if from.1.reliable && to.1.reliable {
        for (sent_ns, received_ns) in sender.sent_ns.iter().zip(&receiver.received_ns) {
            clocks::precede(bounds, (from.0, *sent_ns), (to.0, *received_ns));
        }
    }
}

/// The kernel and the library write the same GID differently.
fn gids_of(header: &Header) -> HashSet<Ipv6Addr> {
    let ports = header.devices.iter().flat_map(|device| &device.ports);
    ports.flat_map(|port| &port.gids).filter_map(|gid| gid.gid.parse().ok()).collect()
}
