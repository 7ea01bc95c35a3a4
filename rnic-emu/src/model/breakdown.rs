//! Where the time of a work request went, stage by stage.

use super::time::Ps;

/// Stages of a work request, in the order it meets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The store to the doorbell register, until the NIC sees it.
    Doorbell,
    /// Waiting for the WQE to be fetched.
    WqeFetch,
    /// Waiting for a processing unit, for earlier requests of the QP, for a free READ slot.
    Queue,
    /// The requester's send pipeline.
    Send,
    /// Fetching the payload from host memory.
    Payload,
    /// The request's way over the wire, waiting for the port included.
    Wire,
    /// The responder: pipeline, DMA, atomic unit.
    Respond,
    /// The answer's way back.
    Return,
    /// Retiring the request and writing its CQE.
    Complete,
    /// Waiting for QP, CQ or WQE context missing from a cache of the NIC, on either side.
    ContextMiss,
    /// Waiting for a memory key or page translation missing from a cache of the NIC, on either side.
    TranslationMiss,
}

/// Number of stages.
pub const STAGES: usize = 11;

impl Stage {
    /// All stages, in order.
    pub const ALL: [Self; STAGES] = [
        Self::Doorbell,
        Self::WqeFetch,
        Self::Queue,
        Self::Send,
        Self::Payload,
        Self::Wire,
        Self::Respond,
        Self::Return,
        Self::Complete,
        Self::ContextMiss,
        Self::TranslationMiss,
    ];

    /// Name for people and for JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Doorbell => "doorbell",
            Self::WqeFetch => "wqe_fetch",
            Self::Queue => "queue",
            Self::Send => "send",
            Self::Payload => "payload",
            Self::Wire => "wire",
            Self::Respond => "respond",
            Self::Return => "return",
            Self::Complete => "complete",
            Self::ContextMiss => "context_miss",
            Self::TranslationMiss => "translation_miss",
        }
    }
}

/// Time per stage. The stages of a completed request add up to its whole latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breakdown([Ps; STAGES]);

impl Breakdown {
    /// Time spent in a stage.
    pub fn get(&self, stage: Stage) -> Ps {
        self.0[stage as usize]
    }

    /// All stages together.
    pub fn total(&self) -> Ps {
        self.0.iter().sum()
    }

    /// Stages and their times, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Stage, Ps)> + '_ {
        Stage::ALL.into_iter().map(|s| (s, self.get(s)))
    }

    pub(super) fn add(&mut self, stage: Stage, time: Ps) {
        self.0[stage as usize] += time;
    }

    pub(super) fn add_all(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    pub(super) fn since(&self, earlier: &Self) -> Self {
        let mut spans = self.0;
        for (mine, theirs) in spans.iter_mut().zip(earlier.0) {
            *mine -= theirs;
        }
        Self(spans)
    }
}
