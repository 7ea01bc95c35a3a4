//! The pages, in the order of their digits.

/// A page of the dashboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Page {
    /// Devices, processes, top findings, health of the probes.
    #[default]
    Overview,
    /// What registering memory costs, and who does it.
    Registration,
    /// Queue pairs, completion queues, shared receive queues.
    Queues,
    /// Posting and completing work.
    DataPath,
    /// What is wrong, why, and what would help.
    Findings,
    /// Reference workloads: slow against fast.
    Workloads,
    /// Inside the emulated device, and counters of real ones.
    Nic,
    /// The verdict, hits and cost of every probe.
    Probes,
}

impl Page {
    /// All pages, in order.
    pub const ALL: [Self; 8] = [
        Self::Overview,
        Self::Registration,
        Self::Queues,
        Self::DataPath,
        Self::Findings,
        Self::Workloads,
        Self::Nic,
        Self::Probes,
    ];

    /// Name for people.
    pub fn title(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Registration => "Registration",
            Self::Queues => "Queues",
            Self::DataPath => "Data path",
            Self::Findings => "Findings",
            Self::Workloads => "Workloads",
            Self::Nic => "NIC",
            Self::Probes => "Probes",
        }
    }

    /// Name for narrow screens: at most five columns.
    pub fn short_title(self) -> &'static str {
        match self {
            Self::Overview => "Over",
            Self::Registration => "Reg",
            Self::Queues => "Queue",
            Self::DataPath => "Data",
            Self::Findings => "Find",
            Self::Workloads => "Work",
            Self::Nic => "NIC",
            Self::Probes => "Probe",
        }
    }

    /// Name in files and on the command line.
    pub fn slug(self) -> &'static str {
        match self {
            Self::Overview => "overview",
            Self::Registration => "registration",
            Self::Queues => "queues",
            Self::DataPath => "data-path",
            Self::Findings => "findings",
            Self::Workloads => "workloads",
            Self::Nic => "nic",
            Self::Probes => "probes",
        }
    }

    /// Place in [`Page::ALL`], from 0.
    pub fn index(self) -> usize {
        self as usize
    }

    /// The page after this one, the first after the last.
    pub fn next(self) -> Self {
        Self::ALL[(self.index() + 1) % Self::ALL.len()]
    }

    /// The page before this one, the last before the first.
    pub fn previous(self) -> Self {
        Self::ALL[(self.index() + Self::ALL.len() - 1) % Self::ALL.len()]
    }
}
