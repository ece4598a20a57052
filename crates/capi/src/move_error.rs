//! The reasons for which a call on a mover or a move job failed.
//!
//! Input: the errors of the mover, and the arguments of callers. Output: a [`MoveCallError`], which has a code. Invariant:
//! its message says what to change.

use crate::code::ResultCode;
use headwater_dma::mover::{ChannelStartError, InvalidStep, StartRefusal};
use headwater_host::clock::Nanos;
use headwater_host::gpu::OpenGpuError;
use headwater_host::wake::WakeError;

/// The reason for which a call on a mover or a job failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MoveCallError {
    #[error(transparent)]
    Step(#[from] InvalidStep),
    #[error("step {step} has 0 bytes: name a length of at least 1")]
    EmptyStep { step: usize },
    #[error(
        "step {step}: {bytes} bytes at offset {offset} end behind the largest number: name a range inside"
    )]
    StepOverflow { step: usize, offset: usize, bytes: usize },
    #[error("the memory has 0 bytes: name a length of at least 1")]
    EmptyMemory,
    #[error("{bytes} bytes at {address:#x} do not fit the address space: name the length of the memory")]
    MemoryOverflow { address: usize, bytes: usize },
    #[error(
        "the memory overlaps memory {memory} of the job, and one of them is written: name steps inside of one \
         memory, or add both with HW_MOVE_READ"
    )]
    MemoryOverlap { memory: usize },
    #[error("the job has {most} {what}, the maximum: use a second job for the rest")]
    JobFull { what: &'static str, most: usize },
    #[error("the job runs: wait for its ticket, or for the call of the thread that runs it")]
    JobRuns,
    #[error("the job has {steps} steps, and no step {step}: steps count from 0")]
    NoStep { step: usize, steps: usize },
    #[error("step {step} has no result: run the job first, and again after a step was added")]
    NotRun { step: usize },
    #[error("{max} jobs were started and not taken, the maximum: wait for one of them first")]
    Full { max: usize },
    #[error("the ticket is of another mover: pass the mover that started its job")]
    OtherMover,
    #[error("the job has not ended after {} ns: wait again, its ticket stays valid", waited.0)]
    NotEnded { waited: Nanos },
    #[error("{jobs} started jobs have not ended after {} ns: wait again, they run on", waited.0)]
    NotDrained { jobs: usize, waited: Nanos },
    #[error("no started job has ended that is not waited for: poll again, or wait for the descriptor")]
    NoneEnded,
    #[error("{jobs} jobs were started and not taken: wait for their tickets, then close the mover")]
    JobsStarted { jobs: usize },
    #[error("{jobs} jobs were started and not taken: wait for their tickets, then unregister the memory")]
    JobsUseMemory { jobs: usize },
    #[error(
        "{0} names no work queue: pass null, \"all\", \"software\", or names with commas between them, as \
         \"wq0.0,wq1.0\""
    )]
    QueueNames(String),
    #[error("{asked} threads, work queues and GPUs: a mover has at most {most}, so name fewer")]
    TooManyChannels { asked: usize, most: usize },
    #[error("{0}")]
    WorkQueue(String),
    #[error("{0}")]
    Gpu(String),
    #[error("the mover has no GPU, which alone needs registered memory: open it with gpus above 0")]
    NoGpu,
    #[error(
        "{bytes} bytes at {address:#x}: {reason}; register each range once, and unregister what was registered"
    )]
    Registration { address: usize, bytes: usize, reason: String },
    #[error("{0}")]
    Channel(#[from] ChannelStartError),
    #[error("{0}")]
    Wake(#[from] WakeError),
}

impl From<StartRefusal> for MoveCallError {
    fn from(refusal: StartRefusal) -> Self {
        match refusal {
            StartRefusal::Full { max } => Self::Full { max },
            StartRefusal::Invalid(invalid) => Self::Step(invalid),
            _ => Self::JobRuns,
        }
    }
}

impl From<OpenGpuError> for MoveCallError {
    fn from(error: OpenGpuError) -> Self {
        Self::Gpu(error.to_string())
    }
}

impl MoveCallError {
    pub(crate) fn code(&self) -> ResultCode {
        match self {
            Self::Step(invalid) => code_of_step(invalid),
            Self::EmptyStep { .. } | Self::EmptyMemory => ResultCode::Zero,
            Self::StepOverflow { .. } | Self::MemoryOverflow { .. } => ResultCode::Overflow,
            Self::MemoryOverlap { .. } => ResultCode::Overlap,
            Self::JobFull { .. } => ResultCode::TooManyPools,
            Self::JobRuns | Self::JobsStarted { .. } | Self::JobsUseMemory { .. } => ResultCode::Busy,
            Self::NoStep { .. } | Self::NotRun { .. } => ResultCode::Unknown,
            Self::Full { .. } | Self::NoneEnded => ResultCode::WouldBlock,
            Self::OtherMover => ResultCode::Argument,
            Self::NotEnded { .. } | Self::NotDrained { .. } => ResultCode::Timeout,
            Self::QueueNames(_) | Self::TooManyChannels { .. } => ResultCode::Config,
            Self::WorkQueue(_) | Self::Gpu(_) | Self::Registration { .. } => ResultCode::Device,
            Self::NoGpu => ResultCode::Unsupported,
            Self::Channel(ChannelStartError::Thread(_)) => ResultCode::NoThread,
            Self::Channel(ChannelStartError::Wake(_)) | Self::Wake(_) => ResultCode::Other,
        }
    }
}

fn code_of_step(invalid: &InvalidStep) -> ResultCode {
    match invalid {
        InvalidStep::NoMemory { .. } => ResultCode::Unknown,
        InvalidStep::OutOfMemory { .. } => ResultCode::OutOfRange,
        InvalidStep::ReadOnly { .. } => ResultCode::ReadOnly,
        InvalidStep::Overlap { .. } => ResultCode::Overlap,
        InvalidStep::NotPersistent { .. } => ResultCode::Unsupported,
        _ => ResultCode::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_its_code_and_says_what_to_do() {
        let step = 3;
        let of_steps = [
            (InvalidStep::NoMemory { step, memory: 2, memories: 1 }, ResultCode::Unknown),
            (InvalidStep::OutOfMemory { step, offset: 1, bytes: 2, memory_bytes: 2 }, ResultCode::OutOfRange),
            (InvalidStep::ReadOnly { step, memory: 2 }, ResultCode::ReadOnly),
            (InvalidStep::Overlap { step, memory: 2 }, ResultCode::Overlap),
            (InvalidStep::NotPersistent { step, memory: 2 }, ResultCode::Unsupported),
        ];
        for (invalid, code) in of_steps {
            let refusal = MoveCallError::from(StartRefusal::Invalid(invalid));
            assert_eq!((refusal.code(), MoveCallError::from(invalid).code()), (code, code), "{invalid}");
            assert_eq!(refusal.to_string(), invalid.to_string());
        }
        let wake = || WakeError { call: "eventfd", errno: rustix::io::Errno::MFILE };
        let no_thread = ChannelStartError::Thread(std::io::Error::from_raw_os_error(11));
        let rest = [
            (MoveCallError::EmptyStep { step }, ResultCode::Zero, "at least 1"),
            (
                MoveCallError::StepOverflow { step, offset: usize::MAX, bytes: 1 },
                ResultCode::Overflow,
                "name a range",
            ),
            (MoveCallError::EmptyMemory, ResultCode::Zero, "at least 1"),
            (MoveCallError::MemoryOverflow { address: 1, bytes: 2 }, ResultCode::Overflow, "name the length"),
            (MoveCallError::MemoryOverlap { memory: 0 }, ResultCode::Overlap, "HW_MOVE_READ"),
            (MoveCallError::JobFull { what: "steps", most: 1 }, ResultCode::TooManyPools, "second job"),
            (MoveCallError::JobRuns, ResultCode::Busy, "wait for"),
            (MoveCallError::NoStep { step, steps: 1 }, ResultCode::Unknown, "count from 0"),
            (MoveCallError::NotRun { step }, ResultCode::Unknown, "run the job"),
            (StartRefusal::Full { max: 7 }.into(), ResultCode::WouldBlock, "7 jobs"),
            (MoveCallError::OtherMover, ResultCode::Argument, "pass the mover"),
            (MoveCallError::NotEnded { waited: Nanos(5) }, ResultCode::Timeout, "5 ns"),
            (MoveCallError::NotDrained { jobs: 3, waited: Nanos(5) }, ResultCode::Timeout, "3 started jobs"),
            (MoveCallError::NoneEnded, ResultCode::WouldBlock, "poll again"),
            (MoveCallError::JobsStarted { jobs: 2 }, ResultCode::Busy, "wait for"),
            (MoveCallError::JobsUseMemory { jobs: 2 }, ResultCode::Busy, "then unregister"),
            (MoveCallError::QueueNames("x".to_owned()), ResultCode::Config, "wq0.0"),
            (MoveCallError::TooManyChannels { asked: 20, most: 16 }, ResultCode::Config, "fewer"),
            (MoveCallError::WorkQueue("no bus".to_owned()), ResultCode::Device, "no bus"),
            (OpenGpuError::NoGpu.into(), ResultCode::Device, "nvidia-smi"),
            (MoveCallError::NoGpu, ResultCode::Unsupported, "gpus above 0"),
            (
                MoveCallError::Registration { address: 1, bytes: 2, reason: "known".to_owned() },
                ResultCode::Device,
                "register each range once",
            ),
            (no_thread.into(), ResultCode::NoThread, "ulimit -u"),
            (ChannelStartError::Wake(wake()).into(), ResultCode::Other, "ulimit -n"),
            (wake().into(), ResultCode::Other, "ulimit -n"),
        ];
        for (error, code, part) in rest {
            assert_eq!(error.code(), code, "{error}");
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
