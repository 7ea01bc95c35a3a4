//! What must hold for the timing model whatever is asked of it.

use proptest::prelude::*;
use rnic_emu::model::drive::{Memory, Pattern, Pick};
use rnic_emu::model::{
    Completion, Key, LoadSpec, MrId, NodeId, Op, Place, Profile, Ps, QpId, Region, Request, Transport, drive,
};
use rnic_emu::model::{KEYS, Model};

/// One thing done to a model.
#[derive(Clone, Debug)]
enum Action {
    Post { qp: usize, after: Ps, list: Vec<(u8, u32, u8, u64)> },
    Advance(Ps),
    Flush(usize),
    Replace(usize),
    Reregister,
}

fn action() -> impl Strategy<Value = Action> {
    let request = (0..7u8, 0..20_000u32, any::<u8>(), any::<u64>());
    prop_oneof![
        8 => (any::<usize>(), 0..3_000_000u64, prop::collection::vec(request, 1..20))
            .prop_map(|(qp, after, list)| Action::Post { qp, after, list }),
        6 => (0..20_000_000u64).prop_map(Action::Advance),
        1 => any::<usize>().prop_map(Action::Flush),
        1 => any::<usize>().prop_map(Action::Replace),
        1 => Just(Action::Reregister),
    ]
}

/// A profile with every parameter somewhere in its plausible range.
fn profile() -> impl Strategy<Value = Profile> {
    let names: Vec<&'static str> = Profile::names().collect();
    (prop::sample::select(names), prop::collection::vec(0.0..=1.0f64, KEYS.len())).prop_map(
        |(name, draws)| {
            let mut profile = Profile::builtin(name).expect("comes with the product");
            for (def, draw) in KEYS.iter().zip(draws) {
                let (low, high) = profile.param(def.key).range;
                let value = low + (high - low) * draw;
                profile
                    .set(def.key, if def.whole { value.round() } else { value })
                    .expect("lies in the range");
            }
            profile
        },
    )
}

/// A model under test, with what was asked of it.
struct Bench {
    model: Model,
    qps: Vec<QpId>,
    mr: MrId,
    clock: Ps,
    posted: u64,
    completed: Vec<Completion>,
}

impl Bench {
    fn new(profile: &Profile) -> Self {
        let mut model = Model::new(profile);
        let mr = model.register(NodeId(1), Region { bytes: 1 << 30, page: 4096 });
        let cqs = [model.create_cq(NodeId(0)), model.create_cq(NodeId(1))];
        let qps = (0..6u16)
            .map(|i| {
                let transport = [Transport::Rc, Transport::Uc, Transport::Ud][usize::from(i) % 3];
                model.create_qp(NodeId(i % 2), NodeId(1 - i % 2), transport, cqs[usize::from(i) % 2])
            })
            .collect();
        Self { model, qps, mr, clock: 0, posted: 0, completed: Vec::new() }
    }

    fn request(&mut self, (op, bytes, flags, offset): (u8, u32, u8, u64)) -> Request {
        use Op::{CompareSwap, FetchAdd, Read, Send, SendImm, Write, WriteImm};
        self.posted += 1;
        let op = [Write, WriteImm, Send, SendImm, Read, CompareSwap, FetchAdd][usize::from(op)];
        let place = Some(Place { mr: self.mr, offset });
        Request {
            op,
            bytes: if op.atomic() { 8 } else { bytes },
            inline: flags & 1 != 0 && bytes < 200,
            signalled: flags & 2 != 0,
            fence: flags & 4 != 0,
            sges: flags >> 6,
            local: place.filter(|_| flags & 8 != 0),
            remote: place.filter(|_| flags & 16 != 0),
            token: self.posted,
            notify: flags & 32 != 0,
        }
    }

    fn act(&mut self, action: &Action) {
        let count = self.qps.len();
        match action {
            Action::Post { qp, after, list } => {
                let list: Vec<Request> = list.iter().map(|r| self.request(*r)).collect();
                // A program's posts to one QP come in order of time.
                self.clock += after;
                self.model.post(self.clock, self.qps[qp % count], &list);
            }
            Action::Advance(by) => {
                self.clock += by;
                self.model.advance(self.clock, &mut self.completed);
            }
            Action::Flush(qp) => {
                self.model.flush(self.qps[qp % count]);
            }
            Action::Replace(qp) => {
                let i = qp % count;
                self.model.destroy_qp(self.qps[i]);
                let cq = self.model.create_cq(NodeId(0));
                self.qps[i] = self.model.create_qp(NodeId(0), NodeId(1), Transport::Rc, cq);
            }
            Action::Reregister => {
                self.model.deregister(self.mr);
                self.mr = self.model.register(NodeId(1), Region { bytes: 1 << 24, page: 2 << 20 });
            }
        }
    }

    fn drain(&mut self) {
        self.model.advance(Ps::MAX / 2, &mut self.completed);
    }
}

fn run(profile: &Profile, actions: &[Action]) -> Bench {
    let mut bench = Bench::new(profile);
    actions.iter().for_each(|a| bench.act(a));
    bench.drain();
    bench
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_and_time_never_runs_backwards(
        profile in profile(),
        actions in prop::collection::vec(action(), 1..80),
    ) {
        let mut bench = Bench::new(&profile);
        let (mut time, mut seen) = (0, 0);
        for action in &actions {
            bench.act(action);
            prop_assert!(bench.model.now() >= time);
            time = bench.model.now();
            let totals = bench.model.totals();
            prop_assert_eq!(totals.posted, totals.completed + totals.flushed + totals.outstanding);
            prop_assert_eq!(totals.posted, bench.posted);
            prop_assert_eq!(totals.completed, bench.completed.len() as u64);
            let under_way: u64 = bench.qps.iter().map(|&q| u64::from(bench.model.outstanding(q))).sum();
            prop_assert_eq!(totals.outstanding, under_way);
            for completion in &bench.completed[seen..] {
                prop_assert!(completion.at <= time && completion.at >= completion.posted);
            }
            prop_assert!(bench.completed.windows(2).all(|w| w[0].at <= w[1].at));
            seen = bench.completed.len();
        }
        bench.drain();
        let totals = bench.model.totals();
        prop_assert_eq!(totals.outstanding, 0);
        prop_assert_eq!(totals.posted, totals.completed + totals.flushed);
        prop_assert_eq!(bench.model.next_due(), None);
    }

    #[test]
    fn requests_of_a_qp_complete_in_the_order_they_were_posted(
        profile in profile(),
        actions in prop::collection::vec(action(), 1..80),
    ) {
        let bench = run(&profile, &actions);
        let mut last = std::collections::HashMap::new();
        for completion in &bench.completed {
            let before = last.insert(completion.qp, completion.token);
            prop_assert!(before.is_none_or(|b| b < completion.token), "{:?} after {:?}", completion, before);
        }
    }

    #[test]
    fn the_stages_of_a_request_add_up_to_its_latency(
        profile in profile(),
        actions in prop::collection::vec(action(), 1..60),
    ) {
        for completion in run(&profile, &actions).completed {
            prop_assert_eq!(completion.breakdown.total(), completion.at - completion.posted);
            prop_assert!(completion.delivered == 0 || completion.delivered >= completion.posted);
        }
    }

    #[test]
    fn the_same_calls_give_the_same_answers(
        profile in profile(),
        actions in prop::collection::vec(action(), 1..60),
    ) {
        prop_assert_eq!(run(&profile, &actions).completed, run(&profile, &actions).completed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn more_cache_never_slows(
        profile in profile(),
        key in prop::sample::select(vec![
            Key::QpcEntries, Key::RxcEntries, Key::MptEntries, Key::MttEntries, Key::WqeEntries,
        ]),
        qps in 1..600u32,
        regions in 1..600u32,
    ) {
        let spec = LoadSpec {
            op: Op::Read,
            qps,
            pick: Pick::Random,
            threads: 4,
            outstanding: 128,
            memory: Memory { bytes: 64 << 20, page: 4096, regions, pattern: Pattern::Random },
            measure: 4_000,
            warmup: 4_000,
            ..LoadSpec::default()
        };
        let rate = |factor: f64| {
            let entries = (profile.get(key) * factor).min(key.def().max);
            let profile = profile.with(key, entries).expect("more of an accepted value");
            drive(&profile, &spec).expect("is a valid load").ops_per_s
        };
        let rates = [rate(1.0), rate(2.0), rate(8.0)];
        // Which requests are in flight when measuring starts and ends differs a little.
        prop_assert!(rates.windows(2).all(|w| w[1] >= w[0] * 0.98), "{key:?} {rates:?}");
    }
}
