//! The settings of a mover, as C writes them.
//!
//! Input: a struct that [`hw_mover_settings_init`] filled and C changed. Output: a mover with its channels. Invariant: the
//! first field is the length of the struct in the caller's header, so that later versions can append fields.

use crate::call_error::CallError;
use crate::code::ResultCode;
use crate::ffi::{read_sized, run_call, write_sized};
use crate::move_error::MoveCallError;
use crate::mover_channels::{WorkQueueChoice, open_channels, open_gpus};
use crate::pool_settings::HW_UNSET;
use headwater_dma::mover::policy::{CacheWrites, MoveDirection, PolicyConfig};
use headwater_dma::mover::{LARGE_JOB_BYTES, Mover, StreamingBorder};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::dsa::DsaRoots;
use headwater_host::gpu::{HostRegistrations, library_path};
use std::ffi::{CStr, c_char};

/// The time that a thread of a mover polls before it sleeps, unless it is named.
const SPIN: Nanos = Nanos::from_micros(20);
/// The most bytes a microsecond that a setting names.
const BYTES_PER_US_MAX: u64 = 1_000_000_000;

/// It is not known if the writes of work queues and GPUs stay in the cache: persistent jobs flush them.
pub const HW_CACHE_WRITES_UNKNOWN: u32 = 0;
/// The writes of work queues and GPUs stay in the cache (DDIO): persistent jobs flush them.
pub const HW_CACHE_WRITES_ALLOCATING: u32 = 1;
/// The writes of work queues and GPUs pass the cache by, and persistent memory keeps them once their completion is seen:
/// persistent jobs flush only what the CPU wrote. A program that states this for a machine that does otherwise, or for the work
/// queue "software", which is a thread, loses bytes with the power.
pub const HW_CACHE_WRITES_BYPASSING: u32 = 2;

/// The settings of a mover. Fill it with hw_mover_settings_init, then change fields. The rates and the time are those with
/// which the policy starts; it learns its own, unless hw_mover_freeze stops it. HW_UNSET: the library chooses.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HwMoverSettings {
    /// Bytes of this struct. hw_mover_settings_init sets it.
    pub struct_bytes: usize,
    /// Threads that do jobs, or parts of jobs, beside the thread that calls. With 0 and without work queues and GPUs the caller
    /// does everything, and hw_mover_start does the job before it returns. At most 16, work queues and GPUs included.
    pub threads: u32,
    /// GPUs whose copy engines do copies and fills, the first ones; not yet run on a GPU. They reach memory that
    /// hw_mover_register registered, and buffers of devices.
    pub gpus: u32,
    /// Work queues of DSA devices, not yet run on silicon: names as "wq0.0,wq1.0", each of which must be usable; "all" for
    /// each that this process may use; "software" for a thread that takes the same descriptors, for tests. Null for none.
    /// The string stays the caller's; it is read only by hw_mover_open.
    pub work_queues: *const c_char,
    /// Nanoseconds for which a thread polls for the next job before it sleeps.
    pub spin_ns: u64,
    /// Bytes below which the caller does a job itself, without a decision.
    pub threshold_bytes: u64,
    /// Bytes that the caller is expected to move in a microsecond.
    pub cpu_bytes_per_us: u64,
    /// Bytes that a thread, a work queue or a GPU is expected to move in a microsecond.
    pub channel_bytes_per_us: u64,
    /// Nanoseconds that a thread, a work queue or a GPU is expected to take before its first byte.
    pub channel_fixed_ns: u64,
    /// The writes of work queues and GPUs: one of the HW_CACHE_WRITES_ constants. Persistent jobs depend on it.
    pub cache_writes: u32,
    /// Unused; 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<HwMoverSettings>() == 72);

impl HwMoverSettings {
    const fn unset() -> Self {
        Self {
            struct_bytes: size_of::<Self>(),
            threads: 0,
            gpus: 0,
            work_queues: std::ptr::null(),
            spin_ns: HW_UNSET,
            threshold_bytes: HW_UNSET,
            cpu_bytes_per_us: HW_UNSET,
            channel_bytes_per_us: HW_UNSET,
            channel_fixed_ns: HW_UNSET,
            cache_writes: HW_CACHE_WRITES_UNKNOWN,
            reserved: 0,
        }
    }

    /// Opens the mover that C describes; null describes one without channels.
    ///
    /// # Safety
    /// A pointer that is neither null nor misaligned points to a `usize`; if its value is the length of an
    /// [`HwMoverSettings`], the pointer points to one, whose `work_queues` is null or points to a string.
    pub(crate) unsafe fn open(
        settings: *const Self,
        clock: Clock,
    ) -> Result<(Mover, Option<HostRegistrations>), CallError> {
        if settings.is_null() {
            return Ok((Mover::default().with_streaming_border(StreamingBorder::of_this_host()), None));
        }
        // SAFETY: the caller's promise.
        let passed = unsafe { read_sized(settings, "settings") }?;
        // SAFETY: the caller's promise about the string.
        let queues = unsafe { parse_queues(passed.work_queues) }?;
        let policy = passed.policy(&queues)?;
        let spin = if passed.spin_ns == HW_UNSET { SPIN } else { Nanos(passed.spin_ns) };
        // A number that does not fit is too many.
        let threads = usize::try_from(passed.threads).unwrap_or(usize::MAX);
        let mut channels = open_channels((threads, spin), &queues, &DsaRoots::default(), clock)?;
        let gpus = usize::try_from(passed.gpus).unwrap_or(usize::MAX);
        let registrations = open_gpus(gpus, &library_path(), &mut channels)?;
        let mover = Mover::with_channels(channels, policy, clock);
        Ok((mover.with_streaming_border(StreamingBorder::of_this_host()), registrations))
    }

    fn policy(&self, queues: &WorkQueueChoice) -> Result<PolicyConfig, CallError> {
        let mut policy = if self.gpus > 0 && self.threads == 0 && queues.is_empty() {
            PolicyConfig::of_gpus()
        } else {
            PolicyConfig::of_channels(self.threads, !queues.is_empty())
        };
        let threshold = match self.threshold_bytes {
            HW_UNSET => LARGE_JOB_BYTES as u64,
            bytes => bytes,
        };
        policy.threshold_bytes = [threshold; MoveDirection::ALL.len()];
        for (field, value, rate) in [
            ("cpu_bytes_per_us", self.cpu_bytes_per_us, &mut policy.cpu_bytes_per_ns),
            ("channel_bytes_per_us", self.channel_bytes_per_us, &mut policy.channel_bytes_per_ns),
        ] {
            match value {
                HW_UNSET => {}
                1..=BYTES_PER_US_MAX => *rate = to_float(value) / 1_000.0,
                _ => return Err(CallError::InvalidValue { field, value, choice: "1 to 1,000,000,000" }),
            }
        }
        match self.channel_fixed_ns {
            HW_UNSET => {}
            value @ 0..=BYTES_PER_US_MAX => policy.channel_fixed_ns = to_float(value),
            value => {
                let (field, choice) = ("channel_fixed_ns", "0 to 1,000,000,000");
                return Err(CallError::InvalidValue { field, value, choice });
            }
        }
        policy.cache_writes = match self.cache_writes {
            HW_CACHE_WRITES_UNKNOWN => CacheWrites::Unknown,
            HW_CACHE_WRITES_ALLOCATING => CacheWrites::Allocating,
            HW_CACHE_WRITES_BYPASSING => CacheWrites::NonAllocating,
            value => {
                let choice = "HW_CACHE_WRITES_UNKNOWN to HW_CACHE_WRITES_BYPASSING";
                return Err(CallError::InvalidValue { field: "cache_writes", value: value.into(), choice });
            }
        };
        if self.reserved != 0 {
            let (field, value) = ("reserved", self.reserved.into());
            return Err(CallError::InvalidValue { field, value, choice: "0" });
        }
        Ok(policy)
    }
}

/// Returns a number of at most [`BYTES_PER_US_MAX`], exactly.
fn to_float(value: u64) -> f64 {
    u32::try_from(value).map_or(f64::MAX, f64::from)
}

/// Returns the work queues that a string names; none for null.
///
/// # Safety
/// A pointer that is not null points to a terminated string.
unsafe fn parse_queues(names: *const c_char) -> Result<WorkQueueChoice, MoveCallError> {
    if names.is_null() {
        return Ok(WorkQueueChoice::default());
    }
    // SAFETY: not null, so a terminated string by the caller's promise; the reference does not outlive this call.
    let names = unsafe { CStr::from_ptr(names) };
    let text = names.to_str().map_err(|_| MoveCallError::QueueNames("text that is not UTF-8".to_owned()))?;
    WorkQueueChoice::parse(text)
}

/// Writes settings of a mover without threads, work queues and GPUs. `settings_bytes` is sizeof(hw_mover_settings).
///
/// # Safety
/// A `settings` that is neither null nor misaligned is valid for writes of `settings_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_mover_settings_init(
    settings: *mut HwMoverSettings,
    settings_bytes: usize,
) -> ResultCode {
    // SAFETY: the caller's promise.
    run_call(|| unsafe { write_sized(settings, settings_bytes, "settings", HwMoverSettings::unset()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(settings: &HwMoverSettings, queues: &str) -> Result<PolicyConfig, CallError> {
        let queues =
            if queues.is_empty() { Ok(WorkQueueChoice::default()) } else { WorkQueueChoice::parse(queues) };
        settings.policy(&queues.unwrap())
    }

    #[test]
    fn the_start_of_the_policy_is_that_of_the_engines_and_of_the_settings() {
        let unset = HwMoverSettings::unset();
        let threshold_bytes = [16_384; 4];
        let threads = PolicyConfig { threshold_bytes, ..PolicyConfig::of_software_channels() };
        assert_eq!(policy(&unset, "").unwrap(), threads);
        assert_eq!(policy(&HwMoverSettings { threads: 1, ..unset }, "all").unwrap(), threads);
        assert_eq!(
            policy(&unset, "all").unwrap(),
            PolicyConfig { threshold_bytes, ..PolicyConfig::default() }
        );
        let gpus = PolicyConfig { threshold_bytes, ..PolicyConfig::of_gpus() };
        assert_eq!(policy(&HwMoverSettings { gpus: 1, ..unset }, "").unwrap(), gpus);
        assert_eq!(policy(&HwMoverSettings { gpus: 1, threads: 1, ..unset }, "").unwrap(), threads);
        let named = HwMoverSettings {
            threshold_bytes: 0,
            cpu_bytes_per_us: 1,
            channel_bytes_per_us: 1_000_000_000,
            channel_fixed_ns: 7,
            cache_writes: HW_CACHE_WRITES_BYPASSING,
            ..unset
        };
        let expected = PolicyConfig {
            threshold_bytes: [0; 4],
            cpu_bytes_per_ns: 0.001,
            channel_bytes_per_ns: 1_000_000.0,
            channel_fixed_ns: 7.0,
            cache_writes: CacheWrites::NonAllocating,
            ..threads
        };
        assert_eq!(policy(&named, "").unwrap(), expected);
    }

    #[test]
    fn impossible_rates_and_times_are_refused() {
        let unset = HwMoverSettings::unset();
        for (settings, named) in [
            (HwMoverSettings { cpu_bytes_per_us: 0, ..unset }, "cpu_bytes_per_us"),
            (HwMoverSettings { cpu_bytes_per_us: 1_000_000_001, ..unset }, "cpu_bytes_per_us"),
            (HwMoverSettings { channel_bytes_per_us: 0, ..unset }, "channel_bytes_per_us"),
            (HwMoverSettings { channel_fixed_ns: 1_000_000_001, ..unset }, "channel_fixed_ns"),
            (HwMoverSettings { cache_writes: 3, ..unset }, "cache_writes"),
            (HwMoverSettings { reserved: 1, ..unset }, "reserved"),
        ] {
            let refused = policy(&settings, "").unwrap_err();
            assert!(matches!(refused, CallError::InvalidValue { field, .. } if field == named), "{refused}");
        }
    }
}
