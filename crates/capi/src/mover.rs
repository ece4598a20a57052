//! Movers: opened, given jobs, closed.
//!
//! Input: settings, jobs. Output: handles, tickets, jobs that have ended. Invariant: a mover that is closed has no job of the
//! program, so that no thread or device works on lent memory any more.

use crate::call_error::CallError;
use crate::code::ResultCode;
use crate::ffi::{OutPointer, run_call};
use crate::handle_table::HandleTable;
use crate::move_error::MoveCallError;
use crate::mover_settings::HwMoverSettings;
use crate::open_job::MoveJobHandle;
use crate::shared_mover::{MoveTicketHandle, MoverState, SharedMover};
use crate::statistics::write_prefix;
use headwater_dma::mover::policy::DecisionReason;
use headwater_host::clock::{Clock, Nanos};
use headwater_host::pinning::MemoryRange;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// Maximum number of movers that C can have open at a time.
const MOVERS_MAX: usize = 256;

/// A mover of the program's bytes.
#[derive(Debug)]
pub struct MoverHandle {
    _opaque: (),
}

static MOVERS: HandleTable<Arc<SharedMover>, MOVERS_MAX> = HandleTable::new("mover");

/// The work of a mover since it was opened. Fields are bytes or counts.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoverTotals {
    /// Jobs of at least 16 KiB.
    pub large_jobs: u64,
    /// Bytes of their steps.
    pub large_bytes: u64,
    /// Smaller jobs.
    pub small_jobs: u64,
    /// Bytes of their steps.
    pub small_bytes: u64,
    /// Jobs and parts of jobs that threads, work queues and GPUs took.
    pub channel_jobs: u64,
    /// Bytes of their steps.
    pub channel_bytes: u64,
    /// Parts that the caller took back, because they were not begun in time.
    pub taken_back: u64,
    /// Jobs and parts that a thread, a work queue or a GPU abandoned, and the caller did.
    pub abandoned: u64,
    /// Jobs and parts that a thread, a work queue or a GPU refused, and the caller did.
    pub refused: u64,
    /// Operations of work queues that ended at a missing page.
    pub page_faults: u64,
    /// Decisions of the policy while it was frozen.
    pub frozen_decisions: u64,
    /// Started jobs that have not ended now.
    pub running: u64,
    /// Started jobs that have ended and were not taken.
    pub ended: u64,
    /// Decisions that passed over an engine because it might have missed a job's time limit.
    pub passed_over_decisions: u64,
    /// Decisions about jobs whose time limit no engine was expected to meet for certain.
    pub missed_limit_decisions: u64,
    /// Jobs with memory that a GPU cannot access, once for each GPU: they were not offered to it.
    pub unreachable: u64,
    /// Persistent jobs and parts that a thread, a work queue or a GPU got whose writes stay in the cache: they are flushed.
    pub flushed_allocating: u64,
    /// Persistent jobs and parts that a work queue or a GPU got of which it is not known: they are flushed.
    pub flushed_unknown: u64,
    /// Persistent jobs and parts that a work queue or a GPU got whose writes pass the cache by: only the CPU's are flushed.
    pub not_flushed: u64,
    /// Parts of jobs that a thread, a work queue or a GPU did not get as planned, because it cannot do each of their operations.
    pub not_permitted: u64,
    /// Steps that continue the ones before them, and went to a thread, a work queue or a GPU as one with these.
    pub merged_steps: u64,
}

impl MoverTotals {
    fn of(state: &MoverState) -> Self {
        let (jobs, channels) = (state.mover.counters(), state.mover.channel_counters());
        let (running, ended) = state.started_jobs();
        let decisions = state.mover.policy().map(|policy| *policy.counters()).unwrap_or_default();
        Self {
            large_jobs: jobs.large_jobs,
            large_bytes: jobs.large_bytes,
            small_jobs: jobs.small_jobs,
            small_bytes: jobs.small_bytes,
            channel_jobs: channels.channel_jobs,
            channel_bytes: channels.channel_bytes,
            taken_back: channels.taken_back,
            abandoned: channels.abandoned,
            refused: channels.refused,
            page_faults: channels.page_faults,
            frozen_decisions: decisions.frozen,
            running: running as u64,
            ended: ended as u64,
            passed_over_decisions: decisions.of(DecisionReason::Deadline),
            missed_limit_decisions: decisions.of(DecisionReason::DeadlineMissed),
            unreachable: channels.unreachable,
            flushed_allocating: channels.flushed_allocating,
            flushed_unknown: channels.flushed_unknown,
            not_flushed: channels.not_flushed,
            not_permitted: channels.not_permitted,
            merged_steps: channels.merged_steps,
        }
    }
}

fn find(mover: *const MoverHandle) -> Result<Arc<SharedMover>, CallError> {
    MOVERS.with_waiting(mover, |shared| Ok(Arc::clone(shared)))
}

/// Opens a mover and writes its handle to `out`. Null `settings` name one without threads, work queues and GPUs. Threads can
/// share a mover; their calls take turns, but a thread that waits for a ticket holds up no other one. A child of this process
/// cannot use it. hw_mover_close closes it. HW_CODE_DEVICE if a work queue or a GPU cannot be used.
///
/// # Safety
/// A `settings` that is not null was filled by hw_mover_settings_init, its `work_queues` null or a string. An `out` that is
/// neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_mover_open(
    settings: *const HwMoverSettings,
    out: *mut *mut MoverHandle,
) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(out, "out") }?;
        let clock = Clock::start();
        // SAFETY: the caller's promise.
        let (mover, registrations) = unsafe { HwMoverSettings::open(settings, clock) }?;
        let mut shared = SharedMover::new(mover, clock).map_err(MoveCallError::from)?;
        shared.registrations = registrations;
        out.write(MOVERS.add(Arc::new(shared))?);
        Ok(())
    })
}

/// Closes a mover. HW_CODE_BUSY, and the mover stays open, while a thread uses it, or a job was started and not taken.
#[unsafe(no_mangle)]
pub extern "C" fn hw_mover_close(mover: *mut MoverHandle) -> ResultCode {
    run_call(|| MOVERS.remove_if(mover, |shared| shared.close()).map(drop))
}

/// Lets the GPUs of a mover access memory of the program: locks its pages, which takes about as long as writing them. The
/// program calls hw_mover_unregister before it frees the memory. HW_CODE_UNSUPPORTED if the mover has no GPUs; HW_CODE_DEVICE if
/// the driver refuses, also because a part of the range is registered.
#[unsafe(no_mangle)]
pub extern "C" fn hw_mover_register(
    mover: *mut MoverHandle,
    memory: *mut c_void,
    bytes: usize,
) -> ResultCode {
    run_call(|| find(mover)?.register(program_range(memory, bytes)?))
}

/// Ends what hw_mover_register began, for the same memory and length. HW_CODE_BUSY, and the memory stays registered, while a job
/// of the mover was started and not taken.
#[unsafe(no_mangle)]
pub extern "C" fn hw_mover_unregister(
    mover: *mut MoverHandle,
    memory: *mut c_void,
    bytes: usize,
) -> ResultCode {
    run_call(|| find(mover)?.unregister(program_range(memory, bytes)?))
}

/// Returns a range of the program's memory, which is not accessed here.
fn program_range(memory: *mut c_void, bytes: usize) -> Result<MemoryRange, MoveCallError> {
    let address = memory.expose_provenance();
    if bytes == 0 {
        return Err(MoveCallError::EmptyMemory);
    }
    if address.checked_add(bytes).is_none() {
        return Err(MoveCallError::MemoryOverflow { address, bytes });
    }
    Ok(MemoryRange::at(address, bytes))
}

/// Does a job, and returns when it is done: the policy decides which steps threads and work queues do beside the caller.
/// hw_move_job_result returns its results.
#[unsafe(no_mangle)]
pub extern "C" fn hw_mover_run(mover: *mut MoverHandle, job: *mut MoveJobHandle) -> ResultCode {
    run_call(|| find(mover)?.run(job))
}

/// Starts a job as a whole, on the thread or work queue that the policy chooses, and writes its ticket to `out`. If the
/// policy chooses the caller, the job has ended when this returns. The job runs until hw_mover_wait or hw_mover_poll took it:
/// until then its memory is lent. HW_CODE_WOULD_BLOCK if 1,024 jobs of the mover were started and not taken.
///
/// # Safety
/// An `out` that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_mover_start(
    mover: *mut MoverHandle,
    job: *mut MoveJobHandle,
    out: *mut *mut MoveTicketHandle,
) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(out, "out") }?;
        out.write(find(mover)?.start(job)?);
        Ok(())
    })
}

/// Waits for a started job for at most `timeout_ns` nanoseconds, 0 to look only, and takes it: the ticket ends and the job
/// has its results. HW_CODE_TIMEOUT: the ticket stays valid. HW_CODE_HANDLE: the job was taken before. HW_CODE_ARGUMENT: the
/// ticket is of another mover. While a further thread runs a job on the mover, the wait can last until that has ended.
#[unsafe(no_mangle)]
pub extern "C" fn hw_mover_wait(
    mover: *mut MoverHandle,
    ticket: *mut MoveTicketHandle,
    timeout_ns: u64,
) -> ResultCode {
    run_call(|| find(mover)?.wait(ticket, Nanos(timeout_ns)))
}

/// Waits until every job that was started before the call has ended, for at most `timeout_ns` nanoseconds, 0 to look only. Takes
/// none: hw_mover_wait and hw_mover_poll return them as before. HW_CODE_TIMEOUT: some run on. A job that a further thread takes in
/// between counts as ended. While a further thread runs a job on the mover, the wait can last until that has ended.
#[unsafe(no_mangle)]
pub extern "C" fn hw_mover_drain(mover: *mut MoverHandle, timeout_ns: u64) -> ResultCode {
    run_call(|| find(mover)?.drain(Nanos(timeout_ns)))
}

/// Takes a started job that has ended and that no thread waits for, and writes it to `job`: its ticket ends, and it has its
/// results. Never waits. HW_CODE_WOULD_BLOCK: there is none, or a further thread uses the mover now. A thread in hw_mover_wait
/// waits from its first look at the mover until the call returns.
///
/// # Safety
/// A `job` that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_mover_poll(mover: *mut MoverHandle, job: *mut *mut MoveJobHandle) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(job, "job") }?;
        out.write(find(mover)?.poll()?);
        Ok(())
    })
}

/// Writes to `descriptor` the number of a file descriptor, for poll(2) and epoll(7), that is readable while a started job of
/// the mover has ended, was not taken, and no thread waits for it; hw_mover_poll takes the job. A work queue has no interrupt:
/// while one has a job, the descriptor is readable all the time. It belongs to the mover, which closes it: do not read it and
/// do not close it.
///
/// # Safety
/// A `descriptor` that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_mover_descriptor(mover: *mut MoverHandle, descriptor: *mut c_int) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(descriptor, "descriptor") }?;
        out.write(find(mover)?.ended_descriptor()?);
        Ok(())
    })
}

/// Stops the learning of a mover's policy with `frozen` 1: equal jobs get equal decisions. 0 resumes it. Without threads and
/// work queues there is no policy, and nothing changes.
#[unsafe(no_mangle)]
pub extern "C" fn hw_mover_freeze(mover: *mut MoverHandle, frozen: u32) -> ResultCode {
    run_call(|| {
        if frozen > 1 {
            return Err(CallError::InvalidValue { field: "frozen", value: frozen.into(), choice: "0 or 1" });
        }
        find(mover)?.with(|state| {
            match state.mover.policy_mut() {
                Some(policy) if frozen == 1 => policy.freeze(),
                Some(policy) => policy.thaw(),
                None => {}
            }
            Ok(())
        })
    })
}

/// Writes the work of a mover to `out`. `out_bytes` is sizeof(hw_mover_totals).
///
/// # Safety
/// An `out` that is neither null nor misaligned is valid for writes of `out_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_mover_statistics(
    mover: *mut MoverHandle,
    out: *mut MoverTotals,
    out_bytes: usize,
) -> ResultCode {
    run_call(|| {
        let totals = find(mover)?.with(|state| {
            state.settle();
            Ok(MoverTotals::of(state))
        })?;
        // SAFETY: the struct consists of `u64` alone; the caller's promise.
        unsafe { write_prefix(&totals, out, out_bytes) }
    })
}
