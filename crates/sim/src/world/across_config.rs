//! The worlds whose batches have keys of several namespaces.
//!
//! Input: device and workload of a world as its seed draws them. Output: the same with at least two key spaces, whose
//! durability differs, and with many batches. Invariant: the draws of the world itself stay as they are; what is drawn here
//! comes from a stream of its own.

use crate::workload::{FeatureUse, WorkloadConfig};
use headwater_host::clock::Nanos;
use headwater_ssd::engine::{DeviceConfig, Durability};

/// Makes a world of batches over several namespaces.
pub(super) fn change(device: &mut DeviceConfig, workload: &mut WorkloadConfig, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x6163_726F_7373);
    let namespaces = rng.u8(2..=4);
    for durability in &mut device.durability[..usize::from(namespaces)] {
        *durability = match rng.u8(0..4) {
            0 | 1 => Durability::Always,
            2 => Durability::OnFlush,
            _ => Durability::Interval(Nanos::from_millis(rng.u64(1..=20))),
        };
    }
    workload.namespaces = namespaces;
    workload.across = FeatureUse::Some;
    workload.shares.batch = workload.shares.batch.max(300);
    workload.shares.clear = workload.shares.clear.max(6);
}
