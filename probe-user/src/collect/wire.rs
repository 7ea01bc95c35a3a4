//! The wire types as aya's maps want them, and messages out of bytes.

use aya::Pod;
use aya::maps::{Array, HashMap, MapData};
use probe_common::counters::{LatencyKey, ObjectCounters, ObjectKey, Senders, SendersKey};
use probe_common::failures::{Failed, FailureKey};
use probe_common::hot::{Account, Place};
use probe_common::recipe::Recipe;
use probe_common::under_way::{Ring, RingKey};
use probe_common::wire::function::Hit;
use probe_common::wire::{
    BucketKey, CallCounters, CallKey, CallMessage, ProcessMessage, STACK_FRAMES, Site, Slice, StackedCall,
    Target,
};

/// The table of counters.
pub type Counters = HashMap<MapData, PlainCallKey, PlainCounters>;
/// The table of histogram buckets.
pub type Buckets = HashMap<MapData, PlainBucketKey, u64>;

/// The watched processes.
pub struct TargetTables {
    /// By pid.
    pub watched: HashMap<MapData, u32, PlainTarget>,
    /// What more some of them were hit by: [`probe_common::hot`].
    pub accounts: Array<MapData, PlainAccount>,
    /// Processes that are not watched, and were hit at functions of providers.
    pub bystanders: HashMap<MapData, u32, PlainTarget>,
}

/// How functions of providers are watched.
pub struct FunctionTables {
    /// The slices of time in which they count, by [`probe_common::wire::part`].
    pub slices: Array<MapData, PlainSlice>,
    /// One entry: which programs there were ever hit.
    pub hit: Array<MapData, Hit>,
}

/// The tables of the data path.
pub struct DataPathTables {
    /// Counters by object.
    pub objects: HashMap<MapData, PlainObjectKey, PlainObjectCounters>,
    /// What more was counted of some of them: [`probe_common::hot`].
    pub places: Array<MapData, PlainPlace>,
    /// Failed posts and completion entries.
    pub failures: HashMap<MapData, PlainFailureKey, PlainFailed>,
    /// Work requests under way.
    pub rings: HashMap<MapData, PlainRingKey, PlainRing>,
    /// Who sends to a completion queue.
    pub senders: HashMap<MapData, PlainSendersKey, PlainSenders>,
    /// Latencies.
    pub latencies: HashMap<MapData, PlainLatencyKey, u64>,
}

macro_rules! plain {
    ($($name:ident($wire:ty)),* $(,)?) => {
        $(
            /// The wire type of that name; aya copies it to and from the kernel byte by byte.
            #[derive(Debug, Clone, Copy)]
            #[repr(transparent)]
            pub struct $name(pub $wire);

            // SAFETY: `repr(C)` structures of integers without padding: any bytes are a value, and a value is its
            // bytes. The sizes below say so for each.
            unsafe impl Pod for $name {}
        )*
    };
}

plain!(
    PlainCallKey(CallKey),
    PlainCounters(CallCounters),
    PlainBucketKey(BucketKey),
    PlainTarget(Target),
    PlainAccount(Account),
    PlainPlace(Place),
    PlainSite(Site),
    PlainSlice(Slice),
    PlainObjectKey(ObjectKey),
    PlainObjectCounters(ObjectCounters),
    PlainFailureKey(FailureKey),
    PlainFailed(Failed),
    PlainRingKey(RingKey),
    PlainRing(Ring),
    PlainSendersKey(SendersKey),
    PlainSenders(Senders),
    PlainLatencyKey(LatencyKey),
    PlainRecipe(Recipe),
);

const _: () = assert!(
    size_of::<Account>() == 8 + size_of::<Target>()
        && size_of::<Place>() == 32 + size_of::<ObjectCounters>()
        && size_of::<CallKey>() == 16
        && size_of::<CallCounters>() == 40
        && size_of::<BucketKey>() == 16
        && size_of::<CallMessage>() == 272
        && size_of::<StackedCall>() == 272 + 8 * STACK_FRAMES
        && size_of::<ProcessMessage>() == 56
);

/// A message that is plain data.
trait Plain: Copy {}
impl Plain for CallMessage {}
impl Plain for StackedCall {}
impl Plain for ProcessMessage {}

/// A call, out of the bytes of a ring-buffer item; `None` where they are too few.
pub fn call_message(bytes: &[u8]) -> Option<CallMessage> {
    read(bytes)
}

/// The callers in a message about a call, innermost first; none where it carries no stack.
pub fn callers(bytes: &[u8]) -> Vec<u64> {
    let Some(message) = read::<StackedCall>(bytes) else { return Vec::new() };
    message.stack.into_iter().take_while(|address| *address != 0).collect()
}

/// A process event, likewise.
pub fn process_message(bytes: &[u8]) -> Option<ProcessMessage> {
    read(bytes)
}

fn read<T: Plain>(bytes: &[u8]) -> Option<T> {
    (bytes.len() >= size_of::<T>()).then(|| {
        // SAFETY: the bytes are enough, and any bytes are a value of these types: `repr(C)`, integers only, no
        // padding.
        unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_message_is_none() {
        assert!(call_message(&[0; 271]).is_none());
        assert!(call_message(&[0; 272]).is_some());
        assert!(process_message(&[]).is_none());
    }
}
