//! Publishing what the timing model counts, where tools find it.

use crate::model::{CacheCounts, Model, NicCounts, NodeId, Stage};
use crate::stats::{ModelCounter as C, StatsFile};

/// Copies the model's counters to the counter file.
pub fn publish(model: &Model, stats: &StatsFile) {
    let both = [model.counts(NodeId(0)), model.counts(NodeId(1))];
    let sum = |f: fn(&NicCounts) -> u64| both.iter().map(f).sum::<u64>();
    let totals = model.totals();
    for (counter, n) in [
        (C::Posted, totals.posted),
        (C::Completed, totals.completed),
        (C::Packets, sum(|c| c.packets)),
        (C::Doorbells, sum(|c| c.doorbells)),
        (C::PuBusy, sum(|c| c.pu_busy)),
        (C::TxBusy, sum(|c| c.tx_busy)),
        (C::RxBusy, sum(|c| c.rx_busy)),
        (C::PortBusy, sum(|c| c.port_busy)),
        (C::PcieUpBusy, sum(|c| c.pcie_up_busy)),
        (C::PcieDownBusy, sum(|c| c.pcie_down_busy)),
        (C::Now, model.now()),
    ] {
        stats.set_model(counter, n);
    }
    type Cache = fn(&NicCounts) -> CacheCounts;
    let caches: [(Cache, C, C); 6] = [
        (|c| c.qpc, C::QpcLookups, C::QpcHits),
        (|c| c.rxc, C::RxcLookups, C::RxcHits),
        (|c| c.cqc, C::CqcLookups, C::CqcHits),
        (|c| c.wqe, C::WqeLookups, C::WqeHits),
        (|c| c.mpt, C::MptLookups, C::MptHits),
        (|c| c.mtt, C::MttLookups, C::MttHits),
    ];
    for (cache, lookups, hits) in caches {
        stats.set_model(lookups, both.iter().map(|c| cache(c).lookups).sum());
        stats.set_model(hits, both.iter().map(|c| cache(c).hits).sum());
    }
    let spans = model.breakdown();
    for stage in Stage::ALL {
        stats.set_model(of_stage(stage), spans.get(stage));
    }
}

fn of_stage(stage: Stage) -> C {
    match stage {
        Stage::Doorbell => C::StageDoorbell,
        Stage::WqeFetch => C::StageWqeFetch,
        Stage::Queue => C::StageQueue,
        Stage::Send => C::StageSend,
        Stage::Payload => C::StagePayload,
        Stage::Wire => C::StageWire,
        Stage::Respond => C::StageRespond,
        Stage::Return => C::StageReturn,
        Stage::Complete => C::StageComplete,
        Stage::ContextMiss => C::StageContextMiss,
        Stage::TranslationMiss => C::StageTranslationMiss,
    }
}
