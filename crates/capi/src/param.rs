//! Parameters of a handle by number, changed while requests are in flight.
//!
//! Input: parameters and values. Output: codes, values. Invariant: a refused value changes nothing; a read returns the
//! value that was set, or the default.

use crate::call_error::CallError;
use crate::code::ResultCode;
use crate::ffi::{OutPointer, run_call};
use crate::handle::{HANDLES, IoHandle, OpenHandle};
use crate::io_path::CacheSize;
use headwater::WriteDurability;
use headwater::host::clock::Nanos;
use headwater::io::cache::{PAGE_BYTES, WritePolicy};
use headwater::io::completion::{CompletionAggregation, CompletionPolicy, PollPace};
use headwater::io::scheduler::{CLASSES, LatePolicy, MergePolicy, RequestClass, SchedulingPolicy};
use headwater_host::width::to_usize;

/// A parameter of a handle.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleParam {
    /// Completion method: one of HW_COMPLETION_.
    Completion = 0,
    /// Nanoseconds between two polls of HW_COMPLETION_THREAD and HW_COMPLETION_HYBRID; 0 adapts them to the size of
    /// requests and their latency.
    PeriodNs = 1,
    /// Number of completions that wakes the caller, for HW_COMPLETION_THREAD and HW_COMPLETION_INTERRUPT.
    AggregationCount = 2,
    /// Maximum nanoseconds that a completion waits for that number, for the same methods.
    AggregationNs = 3,
    /// Order of the requests: one of HW_SCHEDULER_.
    Scheduler = 4,
    /// Nanoseconds within which a request should complete, for HW_SCHEDULER_DEADLINE: of every class without a deadline
    /// of its own. With one deadline for all classes the order is that of submission.
    DeadlineNs = 5,
    /// Class of the requests from now on, 0 to 7, for shares, priorities and selectors.
    Class = 6,
    /// Weights of the classes, for HW_SCHEDULER_SHARE: 8 bits each, class 0 in the lowest; 0 counts as 1.
    Weights = 7,
    /// 1: adjacent waiting requests go to the device as one command.
    Merging = 8,
    /// 1: a write is durable across a power cut before it completes.
    Sync = 9,
    /// Maximum number of requests at the device; further ones wait in the scheduler.
    InFlightMax = 10,
    /// Bytes of the block cache, rounded up to pages of 4,096; 0 for none. With a cache, requests need not be whole
    /// blocks. It is added and removed while no request is in flight. The cache writes back: written data are durable
    /// only after hw_flush or hw_aio_flush, or with HW_PARAM_SYNC.
    CacheBytes = 11,
    /// 1, the default: writes complete when the cache has them, and go to the device later. 0: when the device has them
    /// too. Under both, written data are durable only after hw_flush or hw_aio_flush, or with HW_PARAM_SYNC.
    CacheWriteBack = 12,
    /// Nanoseconds within which a request of one class should complete, for HW_SCHEDULER_DEADLINE. Pass
    /// HW_PARAM_DEADLINE_NS_OF_CLASS + class, 16 to 23; the value 0 returns the class to HW_PARAM_DEADLINE_NS.
    DeadlineNsOfClass = 16,
}

/// The caller polls without sleeping.
pub const HW_COMPLETION_POLL: u64 = 0;
/// A thread polls with a period.
pub const HW_COMPLETION_THREAD: u64 = 1;
/// The caller sleeps for a part of the expected latency, then polls.
pub const HW_COMPLETION_HYBRID: u64 = 2;
/// The caller sleeps until the device signals a completion.
pub const HW_COMPLETION_INTERRUPT: u64 = 3;

/// First come, first served.
pub const HW_SCHEDULER_FIFO: u64 = 0;
/// Earliest deadline first.
pub const HW_SCHEDULER_DEADLINE: u64 = 1;
/// Bytes in proportion to the weights of the classes.
pub const HW_SCHEDULER_SHARE: u64 = 2;
/// The most urgent class first: 0 before 1, and so on.
pub const HW_SCHEDULER_PRIORITY: u64 = 3;

/// Maximum number of times that more urgent classes overtake a waiting class.
const OVERTAKES_MAX: u32 = 16;
/// The default deadline.
const DEADLINE_NS: u64 = 1_000_000;

/// The values from which the policies of a handle are built.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandleSettings {
    completion: u64,
    period_ns: u64,
    aggregation: CompletionAggregation,
    scheduler: u64,
    deadline_ns: u64,
    /// The deadline of each class, 0 for `deadline_ns`.
    class_deadlines_ns: [u64; CLASSES],
    weights: u64,
    merging: bool,
    policy: WritePolicy,
    in_flight_max: u32,
}

impl Default for HandleSettings {
    fn default() -> Self {
        Self {
            completion: HW_COMPLETION_POLL,
            period_ns: 0,
            aggregation: CompletionAggregation::NONE,
            scheduler: HW_SCHEDULER_FIFO,
            deadline_ns: DEADLINE_NS,
            class_deadlines_ns: [0; CLASSES],
            weights: 0,
            merging: false,
            policy: WritePolicy::Back,
            in_flight_max: u32::MAX,
        }
    }
}

impl HandleSettings {
    fn completion(&self) -> Option<CompletionPolicy> {
        let pace =
            if self.period_ns == 0 { PollPace::Adaptive } else { PollPace::Fixed(Nanos(self.period_ns)) };
        match self.completion {
            HW_COMPLETION_POLL => Some(CompletionPolicy::Inline),
            HW_COMPLETION_THREAD => Some(CompletionPolicy::Thread(pace, self.aggregation)),
            HW_COMPLETION_HYBRID => Some(CompletionPolicy::Paced(pace)),
            HW_COMPLETION_INTERRUPT => Some(CompletionPolicy::Interrupt(self.aggregation)),
            _ => None,
        }
    }

    fn scheduling(&self) -> Option<SchedulingPolicy> {
        match self.scheduler {
            HW_SCHEDULER_FIFO => Some(SchedulingPolicy::Fifo),
            HW_SCHEDULER_DEADLINE => Some(SchedulingPolicy::Deadline {
                deadlines: self.class_deadlines_ns.map(|own| Nanos(self.deadline_or_default(own))),
                late_policy: LatePolicy::Serve,
            }),
            HW_SCHEDULER_SHARE => Some(SchedulingPolicy::share(&self.weights.to_le_bytes().map(u16::from))),
            HW_SCHEDULER_PRIORITY => Some(SchedulingPolicy::Priority { overtakes_max: OVERTAKES_MAX }),
            _ => None,
        }
    }
}

impl HandleSettings {
    fn deadline_or_default(&self, own: u64) -> u64 {
        if own == 0 { self.deadline_ns } else { own }
    }

    fn own_deadline_ns(&mut self, class: RequestClass) -> &mut u64 {
        &mut self.class_deadlines_ns[usize::from(class.number())]
    }

    fn class_deadline_ns(&self, class: RequestClass) -> u64 {
        self.deadline_or_default(self.class_deadlines_ns[usize::from(class.number())])
    }
}

impl OpenHandle {
    fn set(&mut self, key: ParamKey, value: u64) -> Result<(), CallError> {
        let ParamKey { param, class } = key;
        let refused = |field, choice| CallError::InvalidValue { field, value, choice };
        let small = |field| u32::try_from(value).map_err(|_| refused(field, "a value that fits 32 bits"));
        let either = |field| match value {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(refused(field, "0 or 1")),
        };
        let mut settings = self.settings;
        match param {
            HandleParam::Completion => settings.completion = value,
            HandleParam::PeriodNs => settings.period_ns = value,
            HandleParam::AggregationCount => settings.aggregation.count = small("AGGREGATION_COUNT")?,
            HandleParam::AggregationNs => settings.aggregation.time = Nanos(value),
            HandleParam::Scheduler => settings.scheduler = value,
            HandleParam::DeadlineNs => settings.deadline_ns = value,
            HandleParam::DeadlineNsOfClass => *settings.own_deadline_ns(class) = value,
            HandleParam::Weights => settings.weights = value,
            HandleParam::Merging => settings.merging = either("MERGING")?,
            HandleParam::InFlightMax => settings.in_flight_max = small("IN_FLIGHT_MAX")?,
            HandleParam::CacheBytes => return self.set_cache(value),
            HandleParam::CacheWriteBack => {
                let back = either("CACHE_WRITE_BACK")?;
                self.settings.policy = if back { WritePolicy::Back } else { WritePolicy::Through };
                self.io_path.set_policy(self.settings.policy);
                return Ok(());
            }
            HandleParam::Class => {
                let class = u8::try_from(value).ok().and_then(RequestClass::new);
                self.class = class.ok_or(refused("CLASS", "0 to 7"))?;
                return Ok(());
            }
            HandleParam::Sync => {
                let (sync, plain) = (WriteDurability::Immediate, WriteDurability::NamespaceDefault);
                self.durable = if either("SYNC")? { sync } else { plain };
                return Ok(());
            }
        }
        let completion = settings.completion().ok_or(refused("COMPLETION", "one of HW_COMPLETION_"))?;
        let scheduling = settings.scheduling().ok_or(refused("SCHEDULER", "one of HW_SCHEDULER_"))?;
        match param {
            HandleParam::Scheduler
            | HandleParam::DeadlineNs
            | HandleParam::DeadlineNsOfClass
            | HandleParam::Weights => {
                self.io_path.with(|handle| {
                    handle.set_scheduling(scheduling);
                    Ok(())
                })?;
            }
            HandleParam::Merging => {
                let merging = if settings.merging { MergePolicy::Adjacent } else { MergePolicy::Off };
                self.io_path.with(|handle| {
                    handle.set_merging(merging);
                    Ok(())
                })?;
            }
            HandleParam::InFlightMax => self.io_path.with(|handle| {
                handle.set_in_flight_max(settings.in_flight_max);
                Ok(())
            })?,
            _ => self.io_path.with(|handle| Ok(handle.set_completion(completion)?))?,
        }
        self.settings = settings;
        Ok(())
    }

    fn set_cache(&mut self, bytes: u64) -> Result<(), CallError> {
        let pages = to_usize(bytes.div_ceil(PAGE_BYTES as u64));
        let cache = (pages > 0).then_some(CacheSize { pages, policy: self.settings.policy });
        self.io_path.set_cache(cache, &self.facts, self.device)
    }

    fn get(&self, key: ParamKey) -> u64 {
        let settings = &self.settings;
        match key.param {
            HandleParam::Completion => settings.completion,
            HandleParam::PeriodNs => settings.period_ns,
            HandleParam::AggregationCount => settings.aggregation.count.into(),
            HandleParam::AggregationNs => settings.aggregation.time.0,
            HandleParam::Scheduler => settings.scheduler,
            HandleParam::DeadlineNs => settings.deadline_ns,
            HandleParam::DeadlineNsOfClass => settings.class_deadline_ns(key.class),
            HandleParam::Class => self.class.number().into(),
            HandleParam::Weights => settings.weights,
            HandleParam::Merging => settings.merging.into(),
            HandleParam::Sync => u64::from(self.durable == WriteDurability::Immediate),
            HandleParam::InFlightMax => settings.in_flight_max.into(),
            HandleParam::CacheBytes => self.io_path.cache_bytes(),
            HandleParam::CacheWriteBack => (settings.policy == WritePolicy::Back).into(),
        }
    }
}

/// A parameter, and the class that its number carries: the first for a parameter of all classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ParamKey {
    param: HandleParam,
    class: RequestClass,
}

/// Returns the parameter of a number; C can pass any number.
fn param_of(number: u32) -> Result<ParamKey, CallError> {
    let plain = PARAMS.get(number as usize).map(|&param| ParamKey { param, class: RequestClass::FIRST });
    let of_class = || {
        let class = number.checked_sub(HandleParam::DeadlineNsOfClass as u32)?;
        let class = RequestClass::new(u8::try_from(class).ok()?)?;
        Some(ParamKey { param: HandleParam::DeadlineNsOfClass, class })
    };
    plain.or_else(of_class).ok_or(CallError::InvalidValue {
        field: "param",
        value: number.into(),
        choice: "one of HW_PARAM_, or HW_PARAM_DEADLINE_NS_OF_CLASS + 0 to 7",
    })
}

/// Every parameter that is not of one class, in the order of the numbers.
///
/// cbindgen:ignore
const PARAMS: [HandleParam; 13] = [
    HandleParam::Completion,
    HandleParam::PeriodNs,
    HandleParam::AggregationCount,
    HandleParam::AggregationNs,
    HandleParam::Scheduler,
    HandleParam::DeadlineNs,
    HandleParam::Class,
    HandleParam::Weights,
    HandleParam::Merging,
    HandleParam::Sync,
    HandleParam::InFlightMax,
    HandleParam::CacheBytes,
    HandleParam::CacheWriteBack,
];

/// Changes a parameter of a handle: `param` is one of HW_PARAM_, or HW_PARAM_DEADLINE_NS_OF_CLASS + class. Requests in
/// flight continue under the new value.
#[unsafe(no_mangle)]
pub extern "C" fn hw_set_param(handle: *mut IoHandle, param: u32, value: u64) -> ResultCode {
    run_call(|| HANDLES.with(handle, |open| open.set(param_of(param)?, value)))
}

/// Writes the current value of a handle's parameter to `value`: `param` is as for hw_set_param.
///
/// # Safety
/// A `value` that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_get_param(handle: *mut IoHandle, param: u32, value: *mut u64) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(value, "value") }?;
        HANDLES.with(handle, |open| {
            out.write(open.get(param_of(param)?));
            Ok(())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_has_its_number() {
        for (number, param) in PARAMS.into_iter().enumerate() {
            assert_eq!(param as usize, number);
            let key = ParamKey { param, class: RequestClass::FIRST };
            assert_eq!(param_of(u32::try_from(number).unwrap()).unwrap(), key);
        }
        assert!(param_of(13).is_err() && param_of(u32::MAX).is_err());
    }

    #[test]
    fn deadline_number_carries_each_class_and_no_other() {
        for class in 0..8 {
            let key =
                ParamKey { param: HandleParam::DeadlineNsOfClass, class: RequestClass::new(class).unwrap() };
            assert_eq!(param_of(16 + u32::from(class)).unwrap(), key);
        }
        assert!(param_of(15).is_err() && param_of(24).is_err());
    }

    #[test]
    fn class_without_a_deadline_of_its_own_has_the_default() {
        let mut settings = HandleSettings {
            scheduler: HW_SCHEDULER_DEADLINE,
            deadline_ns: 900,
            ..HandleSettings::default()
        };
        settings.class_deadlines_ns[3] = 20;
        let Some(SchedulingPolicy::Deadline { deadlines, .. }) = settings.scheduling() else {
            panic!("not a deadline policy")
        };
        let expected: Vec<u64> = (0..8).map(|class| if class == 3 { 20 } else { 900 }).collect();
        assert_eq!(deadlines.map(|deadline| deadline.0).to_vec(), expected);
    }
}
