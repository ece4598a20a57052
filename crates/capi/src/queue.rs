//! Queues of a device: for one handle, or shared by several.
//!
//! Input: devices and depths. Output: handles. Invariant: an unshared queue belongs to one handle at a time, and is
//! available again when that handle is destroyed.

use crate::call_error::CallError;
use crate::client_buffers::ClientBuffers;
use crate::code::ResultCode;
use crate::device::{DEVICES, DeviceHandle};
use crate::ffi::{OutPointer, run_call};
use crate::handle_table::HandleTable;
use headwater::ClientNamespace;
use headwater::io::handle::QueueAttachment;
use headwater::io::shared_queue::SharedQueue;
use std::sync::Arc;

/// Maximum number of queues that C can have at a time.
const QUEUES_MAX: usize = 4_096;

/// Several handles, on several threads, may use the queue; each gets its own completions.
pub const HW_QUEUE_SHARED: u32 = 1;

/// A queue of a device.
#[derive(Debug)]
pub struct QueueHandle {
    _opaque: (),
}

/// The object behind a queue handle.
#[derive(Debug)]
pub(crate) struct OpenQueue {
    pub(crate) device: usize,
    pub(crate) facts: ClientNamespace,
    pub(crate) buffers: Arc<ClientBuffers>,
    /// The queue itself; `None` while a handle has it.
    attachment: Option<QueueAttachment>,
}

pub(crate) static QUEUES: HandleTable<OpenQueue, QUEUES_MAX> = HandleTable::new("queue");

impl OpenQueue {
    /// Takes the queue for one more handle.
    pub(crate) fn take(&mut self) -> Result<QueueAttachment, CallError> {
        match &self.attachment {
            Some(QueueAttachment::Shared(shared)) => Ok(QueueAttachment::Shared(shared.clone())),
            _ => self.attachment.take().ok_or(CallError::QueueTaken),
        }
    }

    /// Takes back the queue that a handle detached.
    pub(crate) fn put_back(&mut self, link: QueueAttachment) {
        self.attachment.get_or_insert(link);
    }
}

/// Creates a queue for up to `depth` commands in flight, and writes its handle to `out`. `flags` is 0 or
/// HW_QUEUE_SHARED. hw_queue_destroy ends the queue.
///
/// # Safety
/// An `out` that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_queue_create(
    device: *mut DeviceHandle,
    depth: u32,
    flags: u32,
    out: *mut *mut QueueHandle,
) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(out, "out") }?;
        if flags & !HW_QUEUE_SHARED != 0 {
            return Err(CallError::Flags(flags));
        }
        let queue = DEVICES.with_waiting(device, |open| {
            let queue = open.device.queue(depth)?;
            let link = match flags {
                HW_QUEUE_SHARED => QueueAttachment::Shared(SharedQueue::new(queue)),
                _ => QueueAttachment::Own(queue),
            };
            let facts = open.device.namespace().clone();
            Ok(OpenQueue {
                device: device.addr(),
                facts,
                buffers: Arc::clone(&open.buffers),
                attachment: Some(link),
            })
        })?;
        out.write(QUEUES.add(queue)?);
        Ok(())
    })
}

/// Destroys a queue. Handles that share it keep it until they are destroyed. HW_CODE_BUSY while a handle has an
/// unshared one.
#[unsafe(no_mangle)]
pub extern "C" fn hw_queue_destroy(queue: *mut QueueHandle) -> ResultCode {
    run_call(|| {
        QUEUES.with_waiting(queue, |open| open.attachment.as_ref().map(drop).ok_or(CallError::QueueTaken))?;
        QUEUES.remove(queue).map(drop)
    })
}
