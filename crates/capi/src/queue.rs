//! Queues of a device: for one handle, or shared by several.
//!
//! Input: devices and depths. Output: handles. Invariant: an unshared queue belongs to one handle at a time, and is
//! available again when that handle is destroyed.

use crate::border::{Out, guarded};
use crate::buffers::Buffers;
use crate::code::Code;
use crate::device::{DEVICES, DeviceHandle};
use crate::fault::Fault;
use crate::table::Table;
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
    pub(crate) buffers: Arc<Buffers>,
    /// The queue itself; `None` while a handle has it.
    link: Option<QueueAttachment>,
}

pub(crate) static QUEUES: Table<OpenQueue, QUEUES_MAX> = Table::new("queue");

impl OpenQueue {
    /// Takes the queue for one more handle.
    pub(crate) fn take(&mut self) -> Result<QueueAttachment, Fault> {
        match &self.link {
            Some(QueueAttachment::Shared(shared)) => Ok(QueueAttachment::Shared(shared.clone())),
            _ => self.link.take().ok_or(Fault::QueueTaken),
        }
    }

    /// Takes back the queue that a handle detached.
    pub(crate) fn put_back(&mut self, link: QueueAttachment) {
        self.link.get_or_insert(link);
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
) -> Code {
    guarded(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::at(out, "out") }?;
        if flags & !HW_QUEUE_SHARED != 0 {
            return Err(Fault::Flags(flags));
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
                link: Some(link),
            })
        })?;
        out.write(QUEUES.add(queue)?);
        Ok(())
    })
}

/// Destroys a queue. Handles that share it keep it until they are destroyed. HW_CODE_BUSY while a handle has an
/// unshared one.
#[unsafe(no_mangle)]
pub extern "C" fn hw_queue_destroy(queue: *mut QueueHandle) -> Code {
    guarded(|| {
        QUEUES.with_waiting(queue, |open| open.link.as_ref().map(drop).ok_or(Fault::QueueTaken))?;
        QUEUES.remove(queue).map(drop)
    })
}
