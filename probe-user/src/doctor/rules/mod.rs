//! The rules, one family a file. The order here is that of the manual.

mod cm;
mod completion_mode;
mod completion_queues;
mod errors;
mod fabric;
mod fork;
mod latency_with_loss;
mod memory_access;
mod path;
mod placement;
mod posting;
mod queue_pairs;
mod registration_failed;
mod registration_habit;
mod registration_pages;
mod registration_twice;
mod retries;
mod sharing;
mod signalling;
mod state;
mod unpin;
mod visibility;

use super::finding::Cost;
use super::rule::Rule;

/// `man` pages of libibverbs and the kernel, by section and name.
macro_rules! man {
    ($section:literal, $name:literal) => {
        concat!("https://man7.org/linux/man-pages/man", $section, "/", $name, ".", $section, ".html")
    };
}
use man;

/// A cost that only a NIC has, told of the emulated device without timing: nothing to rank by.
fn untimed(published: &str) -> Cost {
    Cost {
        text: format!(
            "what it costs is not seen on this device, which has no NIC's timing; on a NIC about {published} (published figure)"
        ),
        ..Cost::default()
    }
}

/// All rules.
pub const RULES: &[&Rule] = &[
    &registration_habit::REPEATED,
    &registration_habit::HOT,
    &registration_twice::PER_CONNECTION,
    &registration_twice::PER_DOMAIN,
    &registration_pages::SMALL_PAGES,
    &registration_pages::FIRST_TOUCH,
    &registration_pages::SERIAL,
    &registration_pages::CONTENDED,
    &registration_pages::ON_DEMAND,
    &registration_failed::MEMLOCK,
    &registration_failed::MEMLOCK_NEAR,
    &registration_failed::HUGE_PAGES_FORK,
    &registration_failed::GPU,
    &registration_failed::REFUSED,
    &registration_twice::LEAK,
    &fork::HUGEPAGES_SAFE,
    &fork::UNNEEDED,
    &fork::MAP_COUNT,
    &unpin::SLOW,
    &queue_pairs::LEAK,
    &queue_pairs::CHURN,
    &queue_pairs::CREATION_FAILED,
    &queue_pairs::MANY,
    &queue_pairs::DEVICE_LIMIT,
    &state::IN_ERROR,
    &state::CHANGE_FAILED,
    &state::PEER_UNRESOLVED,
    &completion_queues::PER_QP,
    &completion_queues::TOO_SMALL,
    &completion_queues::OVERRUN,
    &retries::RNR_TIMER_ZERO,
    &retries::RNR_RETRY_ZERO,
    &retries::ACK_TIMEOUT_NEVER,
    &retries::ACK_TIMEOUT_LONG,
    &retries::ACK_TIMEOUT_SHORT,
    &path::MTU_SMALL,
    &path::MTU_LARGE,
    &path::GID_TYPE,
    &path::READS_ONE,
    &path::TRAFFIC_CLASS,
    &cm::SLOW,
    &cm::REFUSED,
    &signalling::EVERYTHING,
    &signalling::NOTHING,
    &signalling::LATE,
    &posting::ONE_PER_CALL,
    &posting::MERGEABLE,
    &posting::NOT_INLINED,
    &posting::QUEUE_FULL,
    &completion_mode::BUSY,
    &completion_mode::EVENTS_OFTEN,
    &completion_mode::LOST_WAKEUP,
    &sharing::ONE_QP,
    &sharing::MANY_BUSY,
    &sharing::THREADS_ON_QP,
    &sharing::GAP_DOMINATES,
    &memory_access::UNALIGNED,
    &memory_access::BEYOND_REACH,
    &memory_access::ATOMICS_HOT,
    &memory_access::MIXED,
    &errors::RETRIES,
    &errors::RNR,
    &errors::REMOTE_ACCESS,
    &errors::REMOTE_INVALID,
    &errors::LOCAL,
    &errors::FLUSHED,
    &latency_with_loss::TOGETHER,
    &fabric::LOSS,
    &fabric::CONGESTION,
    &fabric::RNR_GROWING,
    &fabric::RECEIVES_LATE,
    &placement::NUMA,
    &placement::PCIE,
    &placement::IOMMU,
    &visibility::UNSEEN,
];
