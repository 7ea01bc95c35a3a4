//! Sums and differences of queue counts.

use std::collections::BTreeMap;

use crate::sample::{FailedCqes, Histogram, QueueCounts, QueueDetail, ReapLatency, RefusedPosts, Strides};

/// What two counts come to: a sum, or a difference, that never wraps.
type Arithmetic = fn(u64, u64) -> u64;

impl QueueCounts {
    /// Adds the counts of another queue. Maxima become the larger of both.
    pub fn add(&mut self, other: &Self) {
        self.combine(other, u64::saturating_add);
        self.longest_unsignalled = self.longest_unsignalled.max(other.longest_unsignalled);
        self.threads = self.threads.max(other.threads);
        match (&mut self.detail, &other.detail) {
            (Some(mine), Some(other)) => mine.add(other),
            (mine @ None, Some(other)) => *mine = Some(other.clone()),
            (_, None) => {}
        }
    }

    /// What these cumulative counts counted since `earlier`. Maxima are those of the whole time: what they were within
    /// it is not known.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut since = self.clone();
        since.combine(earlier, u64::saturating_sub);
        if let (Some(mine), Some(earlier)) = (&mut since.detail, &earlier.detail) {
            mine.subtract(earlier);
        }
        since
    }

    /// True when nothing was counted.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Send and receive work requests.
    pub fn all_wrs(&self) -> u64 {
        self.wrs.saturating_add(self.recv_wrs)
    }

    fn combine(&mut self, other: &Self, with: Arithmetic) {
        let pairs = [
            (&mut self.post_calls, other.post_calls),
            (&mut self.post_failed, other.post_failed),
            (&mut self.wrs, other.wrs),
            (&mut self.signalled, other.signalled),
            (&mut self.inline, other.inline),
            (&mut self.bytes, other.bytes),
            (&mut self.sges, other.sges),
            (&mut self.recv_calls, other.recv_calls),
            (&mut self.recv_failed, other.recv_failed),
            (&mut self.recv_wrs, other.recv_wrs),
            (&mut self.recv_bytes, other.recv_bytes),
            (&mut self.recv_sges, other.recv_sges),
            (&mut self.cut, other.cut),
            (&mut self.aborted, other.aborted),
            (&mut self.polls, other.polls),
            (&mut self.empty_polls, other.empty_polls),
            (&mut self.failed_polls, other.failed_polls),
            (&mut self.cqes, other.cqes),
            (&mut self.cut_polls, other.cut_polls),
            (&mut self.cqe_errors, other.cqe_errors),
            (&mut self.notifies, other.notifies),
        ];
        for (mine, other) in pairs {
            *mine = with(*mine, other);
        }
        map(&mut self.post_errnos, &other.post_errnos, with);
        map(&mut self.opcodes, &other.opcodes, with);
        map(&mut self.statuses, &other.statuses, with);
    }
}

impl QueueDetail {
    fn add(&mut self, other: &Self) {
        self.combine(other, u64::saturating_add);
        self.most_outstanding = self.most_outstanding.max(other.most_outstanding);
        self.most_cqes_per_poll = self.most_cqes_per_poll.max(other.most_cqes_per_poll);
        for one in &other.post_to_reap_ns {
            match self.of_class(one) {
                Some(mine) => mine.latency_ns.merge(&one.latency_ns),
                None => self.post_to_reap_ns.push(one.clone()),
            }
        }
        match (&mut self.cqe_to_post_ns, &other.cqe_to_post_ns) {
            (Some(mine), Some(other)) => mine.merge(other),
            (mine @ None, Some(other)) => *mine = Some(other.clone()),
            (_, None) => {}
        }
        for one in &other.failed_by_qp {
            match self.failed(one) {
                Some(mine) => mine.count = mine.count.saturating_add(one.count),
                None => self.failed_by_qp.push(one.clone()),
            }
        }
        for one in &other.refused {
            match self.refused(one) {
                Some(mine) => mine.count = mine.count.saturating_add(one.count),
                None => self.refused.push(one.clone()),
            }
        }
    }

    fn subtract(&mut self, earlier: &Self) {
        self.combine(earlier, u64::saturating_sub);
        for one in &earlier.post_to_reap_ns {
            if let Some(mine) = self.of_class(one) {
                mine.latency_ns = mine.latency_ns.since(&one.latency_ns);
            }
        }
        self.post_to_reap_ns.retain(|one| one.latency_ns.total() > 0);
        if let (Some(mine), Some(earlier)) = (&mut self.cqe_to_post_ns, &earlier.cqe_to_post_ns) {
            *mine = mine.since(earlier);
        }
        for one in &earlier.failed_by_qp {
            if let Some(mine) = self.failed(one) {
                mine.count = mine.count.saturating_sub(one.count);
            }
        }
        self.failed_by_qp.retain(|one| one.count > 0);
        for one in &earlier.refused {
            if let Some(mine) = self.refused(one) {
                mine.count = mine.count.saturating_sub(one.count);
            }
        }
        self.refused.retain(|one| one.count > 0);
    }

    fn of_class(&mut self, like: &ReapLatency) -> Option<&mut ReapLatency> {
        self.post_to_reap_ns
            .iter_mut()
            .find(|mine| (mine.opcode, mine.size_class) == (like.opcode, like.size_class))
    }

    fn failed(&mut self, like: &FailedCqes) -> Option<&mut FailedCqes> {
        self.failed_by_qp.iter_mut().find(|mine| (mine.status, mine.qpn) == (like.status, like.qpn))
    }

    fn refused(&mut self, like: &RefusedPosts) -> Option<&mut RefusedPosts> {
        let key = |one: &RefusedPosts| (one.queue, one.number, one.errno);
        self.refused.iter_mut().find(|mine| key(mine) == key(like))
    }

    fn combine(&mut self, other: &Self, with: Arithmetic) {
        for (mine, other) in [
            (&mut self.examined_wrs, other.examined_wrs),
            (&mut self.unaligned_64, other.unaligned_64),
            (&mut self.unaligned_4096, other.unaligned_4096),
            (&mut self.odd_lengths, other.odd_lengths),
            (&mut self.could_inline, other.could_inline),
            (&mut self.mergeable, other.mergeable),
            (&mut self.blind_events, other.blind_events),
            (&mut self.guessed_cqes, other.guessed_cqes),
        ] {
            if let Some(other) = other {
                *mine = Some(with(mine.unwrap_or(0), other));
            }
        }
        for (mine, other) in
            [(&mut self.remote_strides, other.remote_strides), (&mut self.local_strides, other.local_strides)]
        {
            if let Some(other) = other {
                let mine = mine.get_or_insert_default();
                *mine = Strides {
                    sequential: with(mine.sequential, other.sequential),
                    same: with(mine.same, other.same),
                    random: with(mine.random, other.random),
                };
            }
        }
        map(&mut self.sizes, &other.sizes, with);
    }

    /// Post to reap, all opcodes and size classes in one; `None` where it is not known.
    pub fn post_to_reap(&self) -> Option<Histogram> {
        let mut all = Histogram::default();
        self.post_to_reap_ns.iter().for_each(|one| all.merge(&one.latency_ns));
        (all.total() > 0).then_some(all)
    }
}

impl Strides {
    /// Moves counted.
    pub fn total(&self) -> u64 {
        self.sequential.saturating_add(self.same).saturating_add(self.random)
    }
}

fn map<K: Ord + Copy>(mine: &mut BTreeMap<K, u64>, other: &BTreeMap<K, u64>, with: Arithmetic) {
    for (key, n) in other.iter().filter(|(_, n)| **n > 0) {
        let sum = mine.entry(*key).or_default();
        *sum = with(*sum, *n);
        if *sum == 0 {
            mine.remove(key);
        }
    }
}

/// The size class of a payload: the smallest n with `bytes` ≤ 2^n.
pub const fn size_class(bytes: u64) -> u8 {
    if bytes <= 1 { 0 } else { (64 - (bytes - 1).leading_zeros()) as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Opcode;

    fn latency(opcode: Opcode, ns: u64) -> ReapLatency {
        let mut latency_ns = Histogram::default();
        latency_ns.record(ns);
        ReapLatency { opcode, size_class: 6, latency_ns }
    }

    fn counts(wrs: u64, longest: u64) -> QueueCounts {
        QueueCounts {
            wrs,
            longest_unsignalled: longest,
            opcodes: BTreeMap::from([(Opcode::Send, wrs)]),
            detail: Some(Box::new(QueueDetail {
                sizes: BTreeMap::from([(6, wrs)]),
                unaligned_64: Some(wrs),
                most_outstanding: Some(longest),
                remote_strides: Some(Strides { same: wrs, ..Strides::default() }),
                post_to_reap_ns: vec![latency(Opcode::Send, wrs * 1000)],
                failed_by_qp: vec![FailedCqes { status: 5, qpn: 7, count: wrs, first: None }],
                ..QueueDetail::default()
            })),
            ..QueueCounts::default()
        }
    }

    #[test]
    fn counts_add_and_maxima_are_the_larger() {
        let mut sum = counts(3, 9);
        sum.add(&counts(4, 5));
        assert_eq!((sum.wrs, sum.longest_unsignalled, sum.opcodes[&Opcode::Send]), (7, 9, 7));
        let detail = sum.detail.unwrap();
        assert_eq!(
            (detail.unaligned_64, detail.most_outstanding, detail.could_inline),
            (Some(7), Some(9), None)
        );
        assert_eq!((detail.failed_by_qp[0].count, detail.failed_by_qp.len()), (7, 1));
        assert_eq!(detail.post_to_reap().unwrap().total(), 2);
    }

    #[test]
    fn a_difference_lacks_what_was_there_before_and_never_goes_below_nothing() {
        let later = counts(7, 9);
        let since = later.since(&counts(3, 9));
        assert_eq!((since.wrs, since.longest_unsignalled), (4, 9));
        assert_eq!(since.detail.unwrap().remote_strides.unwrap().same, 4);
        let none = later.since(&later);
        assert_eq!((none.wrs, none.opcodes.len()), (0, 0));
        assert!(none.detail.unwrap().failed_by_qp.is_empty());
        assert_eq!(counts(1, 1).since(&later).wrs, 0);
        assert_eq!(later.since(&QueueCounts::default()), later);
    }

    #[test]
    fn what_one_side_does_not_know_is_known_from_the_other() {
        let mut sum = QueueCounts { wrs: 1, ..QueueCounts::default() };
        sum.add(&counts(2, 1));
        assert_eq!(sum.detail, counts(2, 1).detail);
        assert!(QueueCounts::default().is_empty() && !sum.is_empty());
    }

    #[test]
    fn size_classes_end_at_powers_of_two() {
        let expected = [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (64, 6), (65, 7), (u64::MAX, 64)];
        assert_eq!(expected.map(|(bytes, _)| size_class(bytes)), expected.map(|(_, class)| class));
    }
}
