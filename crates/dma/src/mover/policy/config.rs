//! The settings of the policy.

use super::channel_traits::CacheWrites;

/// The usual limit of classes: seven operations in the two directions that a program usually has, over nine pairs of nodes (each
/// of two, or unknown), and a few more.
const CLASSES_MAX: usize = 128;

/// The settings of a policy. The rates are where it starts; it learns its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolicyConfig {
    /// The length in bytes below which the CPU does a job without a decision, by
    /// [direction](super::MoveDirection::ALL).
    pub threshold_bytes: [u64; 4],
    /// The fewest bytes that an engine gets of a job that is split.
    pub part_min_bytes: u64,
    /// The expected rate of the CPU, in bytes a nanosecond.
    pub cpu_bytes_per_ns: f64,
    /// The expected rate of a channel, in bytes a nanosecond.
    pub channel_bytes_per_ns: f64,
    /// The expected time of a channel before its first byte, in nanoseconds.
    pub channel_fixed_ns: f64,
    /// The expected share that a channel's time grows by for each memory of another node.
    pub distance_share: f64,
    /// The share of the time of jobs that exploration may cost, each job counting the same.
    pub explore_share: f64,
    /// The share by which a way must be faster to replace the one in use, or one with fewer engines.
    pub margin: f64,
    /// The factor by which the time of the CPU counts for a job that is started, not run: the owner could do other work in it.
    /// A channel gets such a job if it ends it within so many times what the CPU would take. At 1 only the end of the job
    /// counts.
    pub busy_cpu_factor: f64,
    /// The way of writes through the cache of the channels that do not know theirs: the operator knows the platform.
    /// [`CacheWrites::NonAllocating`] says too that the bytes are in the persistence domain once the completion is seen. If it is
    /// stated wrongly, a job that is persistent loses bytes with the power.
    pub cache_writes: CacheWrites,
    /// The most classes of work (operation, direction, pair of nodes) that are remembered; one more replaces the class that was
    /// not used for longest. A class takes 2 KiB, and half of one for each channel.
    pub classes_max: usize,
}

impl PolicyConfig {
    /// Returns the settings for so many threads, and for work queues of DSA devices if there are some. The rates of a device
    /// are those that its users published; with threads beside it, theirs are the safer start.
    #[must_use]
    pub fn of_channels(threads: u32, has_work_queues: bool) -> Self {
        if threads == 0 && has_work_queues { Self::default() } else { Self::of_software_channels() }
    }

    /// Returns the settings for channels to GPUs: a bus that carries each byte twice, and some calls of a driver. Not measured.
    #[must_use]
    pub fn of_gpus() -> Self {
        Self {
            channel_bytes_per_ns: 10.0,
            channel_fixed_ns: 20_000.0,
            part_min_bytes: 65_536,
            ..Self::default()
        }
    }

    /// Returns the settings for channels that are threads: they begin as fast as the CPU of the owner, behind the time that a
    /// line takes from core to core and back.
    #[must_use]
    pub fn of_software_channels() -> Self {
        Self { channel_bytes_per_ns: 9.6, channel_fixed_ns: 500.0, part_min_bytes: 4_096, ..Self::default() }
    }
}

impl Default for PolicyConfig {
    /// Returns thresholds of 4 KiB and the rates of a DSA channel and one core, which `LightDSA` published.
    fn default() -> Self {
        Self {
            threshold_bytes: [4_096; 4],
            part_min_bytes: 1_024,
            cpu_bytes_per_ns: 9.6,
            channel_bytes_per_ns: 29.9,
            channel_fixed_ns: 1_160.0,
            distance_share: 0.3,
            explore_share: 0.015,
            margin: 0.02,
            busy_cpu_factor: 1.0,
            cache_writes: CacheWrites::Unknown,
            classes_max: CLASSES_MAX,
        }
    }
}
