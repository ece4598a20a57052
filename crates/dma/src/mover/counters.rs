//! Counters of the jobs that a mover did.

/// The length from which a job is [large](MoverCounters::large_bytes): an engine could do it, and a smaller one is not worth a
/// decision (the default of Fastmove).
pub const LARGE_JOB_BYTES: usize = 16 * 1_024;

/// The jobs that a mover did, from its start on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoverCounters {
    /// Jobs of at least [`LARGE_JOB_BYTES`].
    pub large_jobs: u64,
    /// Bytes of their steps.
    pub large_bytes: u64,
    /// Smaller jobs.
    pub small_jobs: u64,
    /// Bytes of their steps.
    pub small_bytes: u64,
}

impl MoverCounters {
    pub(super) fn count(&mut self, bytes: usize) {
        let (jobs, sum) = if bytes >= LARGE_JOB_BYTES {
            (&mut self.large_jobs, &mut self.large_bytes)
        } else {
            (&mut self.small_jobs, &mut self.small_bytes)
        };
        *jobs += 1;
        *sum += bytes as u64;
    }
}

/// The jobs and parts of jobs that channels did, from the start of a mover on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelCounters {
    /// Jobs and parts that channels took.
    pub channel_jobs: u64,
    /// Bytes of their steps.
    pub channel_bytes: u64,
    /// Those of them that the CPU took back, because the channel had not begun them in time.
    pub taken_back: u64,
    /// Those of them that a channel abandoned, and the CPU ended.
    pub abandoned: u64,
    /// Those of them that ended so late that they held up the CPU: their channel gets nothing for a while.
    pub late: u64,
    /// Jobs and parts that a channel refused, and the CPU did.
    pub refused: u64,
    /// Jobs with memory that a channel cannot access, once for each such channel: it was not offered them.
    pub unreachable: u64,
    /// Parts that a channel did not get as they were planned, because it cannot do each of their operations: another channel did
    /// them, or the CPU some of their steps or all.
    pub not_permitted: u64,
    /// Steps that were merged into the ones before them, which they continue, in jobs and parts that channels took.
    pub merged_steps: u64,
    /// Parts that could not be split off, because the steps share a private memory.
    pub not_split: u64,
    /// Persistent jobs and parts given to a channel that leaves its writes in the cache: they are flushed.
    pub flushed_allocating: u64,
    /// Persistent jobs and parts given to a channel of which it is not known: they are flushed.
    pub flushed_unknown: u64,
    /// Persistent jobs and parts given to a channel whose writes pass the cache by: only those of the CPU are flushed.
    pub not_flushed: u64,
    /// Operations of channels that ended at a missing page.
    pub page_faults: u64,
    /// Bytes behind them, which the CPU did.
    pub finished_bytes: u64,
}
