//! Move jobs: created, filled with memories and steps, read after their run.
//!
//! Input: addresses, buffers of devices, steps. Output: handles, numbers, results. Invariant: a step that was added can be
//! run; what is wrong with one is an error of the call that adds it.

use crate::call_error::CallError;
use crate::code::ResultCode;
use crate::device::{DEVICES, DeviceHandle};
use crate::ffi::{OutPointer, check_pointer, run_call};
use crate::job_memory::{JobMemory, MemoryUse};
use crate::move_step::HwMoveStep;
use crate::open_job::{JOBS, MoveJobHandle, OpenJob};
use headwater_dma::mover::{CacheIntent, MemoryNodes, MoveDurability, SourceKind, StepResult};
use headwater_host::clock::Nanos;
use headwater_host::copy::persist::DrainPromise;
use headwater_host::numa::{NODES_MAX, NodeId};
use headwater_host::width::narrow;
use std::ffi::c_void;

/// A persistent job: what it wrote has left the caches when it has ended, so that persistent memory keeps it when the
/// power fails. hw_move_job_promise says what this processor can promise.
pub const HW_JOB_PERSISTENT: u32 = 1;
/// A job whose writes are not read soon: long copies and fills pass the cache by.
pub const HW_JOB_NOT_READ_SOON: u32 = 2;
/// A job that reads persistent memory: a mover learns by itself what its engines take for such jobs. It changes nothing else.
pub const HW_JOB_FROM_PERSISTENT: u32 = 4;

/// The step was done, and has no value.
pub const HW_STEP_DONE: u32 = 0;
/// `crc32c` is the CRC-32C.
pub const HW_STEP_CRC32C: u32 = 1;
/// Both ranges hold the same bytes.
pub const HW_STEP_EQUAL: u32 = 2;
/// The ranges differ first at `differs_at`.
pub const HW_STEP_DIFFERS: u32 = 3;

/// The job gives no guarantee for the power: it is not persistent and has no flush, or has not run.
pub const HW_PROMISE_NONE: u32 = 0;
/// The bytes have left the caches: persistent memory keeps them when the power fails.
pub const HW_PROMISE_PERSISTENT: u32 = 1;
/// The processor cannot write its caches back: further threads see the bytes, and a file keeps them after msync.
pub const HW_PROMISE_VISIBLE_ONLY: u32 = 2;

/// The result of a step.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HwStepResult {
    /// The first offset in the ranges at which they differ, for HW_STEP_DIFFERS; else 0.
    pub differs_at: u64,
    /// One of the HW_STEP_ constants.
    pub kind: u32,
    /// The CRC-32C, for HW_STEP_CRC32C; else 0.
    pub crc32c: u32,
}

impl From<StepResult> for HwStepResult {
    fn from(result: StepResult) -> Self {
        let of = |kind| Self { differs_at: 0, kind, crc32c: 0 };
        match result {
            StepResult::Done => of(HW_STEP_DONE),
            StepResult::Crc32c(crc32c) => Self { crc32c, ..of(HW_STEP_CRC32C) },
            StepResult::Equal => of(HW_STEP_EQUAL),
            StepResult::DiffersAt(at) => Self { differs_at: at as u64, ..of(HW_STEP_DIFFERS) },
        }
    }
}

/// Creates a job without memories and steps, and writes its handle to `out`. `flags` combines HW_JOB_ constants, or is 0.
/// Any mover runs it, as often as the program likes. One thread at a time uses a job; a second one gets HW_CODE_BUSY, as
/// does every call on a job that runs. hw_move_job_destroy destroys it.
///
/// # Safety
/// An `out` that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_move_job_create(flags: u32, out: *mut *mut MoveJobHandle) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(out, "out") }?;
        if flags & !(HW_JOB_PERSISTENT | HW_JOB_NOT_READ_SOON | HW_JOB_FROM_PERSISTENT) != 0 {
            return Err(CallError::Flags(flags));
        }
        let has = |flag| flags & flag != 0;
        let durability =
            if has(HW_JOB_PERSISTENT) { MoveDurability::Persistent } else { MoveDurability::Visible };
        let intent = if has(HW_JOB_NOT_READ_SOON) { CacheIntent::NotSoon } else { CacheIntent::ReadSoon };
        let mut open = OpenJob::new(durability, intent);
        if has(HW_JOB_FROM_PERSISTENT) {
            open.source_kind = SourceKind::Persistent;
        }
        out.write(JOBS.add(Box::new(open))?);
        Ok(())
    })
}

/// Destroys a job. HW_CODE_BUSY, and the job stays, while it runs.
#[unsafe(no_mangle)]
pub extern "C" fn hw_move_job_destroy(job: *mut MoveJobHandle) -> ResultCode {
    run_call(|| JOBS.remove_if(job, |open| open.check_idle()).map(drop))
}

/// Removes memories, nodes, steps, results and the time limit from a job, so that it can be filled again. HW_CODE_BUSY while
/// it runs.
#[unsafe(no_mangle)]
pub extern "C" fn hw_move_job_clear(job: *mut MoveJobHandle) -> ResultCode {
    run_call(|| {
        JOBS.with(job, |open| {
            open.idle()?.clear();
            Ok(())
        })
    })
}

/// Sets the memory nodes of the bytes that a job reads and writes; -1 is unknown, as for a new or cleared job. The policy of
/// a mover learns what each thread and work queue takes for each operation, kinds of memory and pair of nodes, up to 128 of
/// these; one more replaces what was not used for longest. HW_CODE_BUSY while the job runs.
#[unsafe(no_mangle)]
pub extern "C" fn hw_move_job_set_nodes(job: *mut MoveJobHandle, source: i32, target: i32) -> ResultCode {
    run_call(|| {
        let nodes =
            MemoryNodes { source: read_node(source, "source")?, target: read_node(target, "target")? };
        JOBS.with(job, |open| {
            open.idle()?.nodes = nodes;
            Ok(())
        })
    })
}

/// Sets the time in nanoseconds from the begin of each run within which a job should end; 0 is none, as for a new or cleared
/// job. The policy of a mover prefers an engine that is expected to end the job in time. A job that takes longer is done
/// nevertheless. Such a job tries no engine for the sake of learning: if every job has a time limit, an engine that became
/// faster is not found. HW_CODE_BUSY while the job runs.
#[unsafe(no_mangle)]
pub extern "C" fn hw_move_job_set_time_limit(job: *mut MoveJobHandle, nanoseconds: u64) -> ResultCode {
    run_call(|| {
        JOBS.with(job, |open| {
            open.idle()?.time_limit = (nanoseconds > 0).then_some(Nanos(nanoseconds));
            Ok(())
        })
    })
}

fn read_node(node: i32, field: &'static str) -> Result<Option<NodeId>, CallError> {
    match u32::try_from(node) {
        Ok(node) if node < NODES_MAX => Ok(Some(NodeId(node))),
        Err(_) if node == -1 => Ok(None),
        _ => {
            const { assert!(NODES_MAX == 1_024, "the choice below names the largest node") };
            let choice = "-1 for an unknown node, or a node from 0 to 1023";
            Err(CallError::InvalidSigned { field, value: node.into(), choice })
        }
    }
}

/// Adds `bytes` bytes of the program's own memory, or of hw_pool_alloc, to a job, and writes its number in the job to
/// `number`: memories count from 0. `access` is HW_MOVE_READ or HW_MOVE_WRITE. HW_CODE_OVERLAP if a byte of it is in another
/// memory of the job and one of both is written. The memory stays the program's: a run of the job borrows it, from the call
/// of hw_mover_run to its return, or from hw_mover_start until hw_mover_wait or hw_mover_poll took the job.
///
/// # Safety
/// The bytes are mapped and readable, with HW_MOVE_WRITE also writable, while the job runs; no thread writes to them then,
/// and with HW_MOVE_WRITE none reads them and no further running job has them. A `number` that is neither null nor misaligned
/// is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_move_job_add_memory(
    job: *mut MoveJobHandle,
    memory: *const c_void,
    bytes: usize,
    access: u32,
    number: *mut u32,
) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(number, "number") }?;
        check_pointer(memory.cast::<u8>(), "memory")?;
        let allowed = MemoryUse::of(access)?;
        // SAFETY: the caller's promise about the bytes while the job runs.
        let named = unsafe { JobMemory::of_program(memory.cast(), bytes, allowed) }?;
        add_to(job, named, out)
    })
}

/// Adds `bytes` bytes of memory of a device (hw_get_buffer, hw_get_segments, hw_import_buffer) to a job, as
/// hw_move_job_add_memory adds the program's own. HW_CODE_FOREIGN if no buffer of the device contains the whole range. The
/// job keeps the buffer until it is cleared or destroyed: memory that is put back earlier returns to its pool then, and
/// hw_put_buffer refuses imported memory until then with HW_CODE_BUSY. The device may access the buffer while the job runs.
///
/// # Safety
/// A `number` that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_move_job_add_buffer(
    job: *mut MoveJobHandle,
    device: *mut DeviceHandle,
    buffer: *const c_void,
    bytes: usize,
    access: u32,
    number: *mut u32,
) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(number, "number") }?;
        check_pointer(buffer.cast::<u8>(), "buffer")?;
        let allowed = MemoryUse::of(access)?;
        let found = DEVICES.with_waiting(device, |open| {
            open.buffers.find(buffer.addr(), bytes).ok_or(CallError::BufferForeign)
        })?;
        let named = JobMemory::of_device(found, allowed)?;
        add_to(job, named, out)
    })
}

/// Adds a memory to a job that does not run, and writes its number.
fn add_to(job: *mut MoveJobHandle, memory: JobMemory, number: OutPointer<u32>) -> Result<(), CallError> {
    JOBS.with(job, |open| {
        number.write(narrow(open.idle()?.add_memory(memory)?));
        Ok(())
    })
}

/// Adds a step behind those that a job has, and writes its number to `number` unless that is null: steps count from 0, and
/// run in their order. Steps over memories of their own can run on several engines at once. The step is checked here:
/// HW_CODE_UNKNOWN for a memory that the job does not have, HW_CODE_OUT_OF_RANGE, HW_CODE_OVERFLOW and HW_CODE_ZERO for a range
/// that does not lie in its memory, HW_CODE_READ_ONLY for a target that was added with HW_MOVE_READ, HW_CODE_OVERLAP for a
/// range that is written and also read or written by the same step.
///
/// # Safety
/// A `step` that is neither null nor misaligned is valid for a read, its struct_bytes set. A `number` that is neither null nor
/// misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_move_job_add_step(
    job: *mut MoveJobHandle,
    step: *const HwMoveStep,
    number: *mut u32,
) -> ResultCode {
    run_call(|| {
        let out = match number.is_null() {
            true => None,
            // SAFETY: the caller's promise.
            false => Some(unsafe { OutPointer::at(number, "number") }?),
        };
        // SAFETY: the caller's promise.
        let step = unsafe { HwMoveStep::read(step) }?;
        JOBS.with(job, |open| {
            let added = open.idle()?.add_step(&step)?;
            if let Some(out) = out {
                out.write(narrow(added));
            }
            Ok(())
        })
    })
}

/// Writes the result of step `step` to `result`, as the last run of the job left it. HW_CODE_UNKNOWN if the job has no such
/// step, or has not run with it; HW_CODE_BUSY while it runs.
///
/// # Safety
/// A `result` that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_move_job_result(
    job: *mut MoveJobHandle,
    step: u32,
    result: *mut HwStepResult,
) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(result, "result") }?;
        JOBS.with(job, |open| {
            // A number that does not fit is no step.
            let step = usize::try_from(step).unwrap_or(usize::MAX);
            out.write(open.idle()?.result(step)?.into());
            Ok(())
        })
    })
}

/// Writes to `promise` what the last run of the job promised for the bytes that it wrote or flushed: one of the HW_PROMISE_
/// constants.
///
/// # Safety
/// A `promise` that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_move_job_promise(job: *mut MoveJobHandle, promise: *mut u32) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(promise, "promise") }?;
        JOBS.with(job, |open| {
            out.write(match open.idle()?.promise() {
                None => HW_PROMISE_NONE,
                Some(DrainPromise::PersistenceDomain) => HW_PROMISE_PERSISTENT,
                Some(DrainPromise::VisibleOnly) => HW_PROMISE_VISIBLE_ONLY,
            });
            Ok(())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_that_is_refused_is_named_as_it_was_given() {
        assert!(matches!(read_node(-1, "source"), Ok(None)));
        assert!(matches!(read_node(1_023, "source"), Ok(Some(NodeId(1_023)))));
        for (node, field) in [(-2, "source"), (1_024, "target"), (i32::MIN, "source")] {
            let refused = read_node(node, field).unwrap_err();
            assert_eq!(refused.code(), ResultCode::Config);
            let expected =
                format!("{field} is {node}: choose -1 for an unknown node, or a node from 0 to 1023");
            assert_eq!(refused.to_string(), expected);
        }
    }
}
