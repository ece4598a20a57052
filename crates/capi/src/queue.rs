//! Queues of a device: for one handle, or shared by several.
//!
//! In: devices and depths. Out: handles. Invariant: a queue of its own belongs to one handle at a time, and comes back when
//! that is destroyed.

use crate::border::{Out, guarded};
use crate::buffers::Buffers;
use crate::code::Code;
use crate::device::{DEVICES, DeviceHandle};
use crate::fault::Fault;
use crate::table::Table;
use headwater::NamespaceFacts;
use headwater::io::handle::Attachment;
use headwater::io::shared_queue::SharedQueue;
use std::sync::Arc;

/// Most queues that C can have at a time.
const QUEUES_MAX: usize = 4_096;

/// The queue may be used by several handles, on several threads; each gets its own completions.
pub const HW_QUEUE_SHARED: u32 = 1;

/// A queue.
#[derive(Debug)]
pub struct QueueHandle {
    _opaque: (),
}

/// What stands behind a handle.
#[derive(Debug)]
pub(crate) struct OpenQueue {
    pub(crate) device: usize,
    pub(crate) facts: NamespaceFacts,
    pub(crate) buffers: Arc<Buffers>,
    /// Empty while a handle has it.
    link: Option<Attachment>,
}

pub(crate) static QUEUES: Table<OpenQueue, QUEUES_MAX> = Table::new("queue");

impl OpenQueue {
    /// The queue for one more handle.
    pub(crate) fn take(&mut self) -> Result<Attachment, Fault> {
        match &self.link {
            Some(Attachment::Shared(shared)) => Ok(Attachment::Shared(shared.clone())),
            _ => self.link.take().ok_or(Fault::QueueTaken),
        }
    }

    /// The queue that a handle leaves.
    pub(crate) fn put_back(&mut self, link: Attachment) {
        self.link.get_or_insert(link);
    }
}

/// Makes a queue for up to `depth` commands in flight, and writes its handle to `out`. `flags` is 0 or HW_QUEUE_SHARED.
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
                HW_QUEUE_SHARED => Attachment::Shared(SharedQueue::new(queue)),
                _ => Attachment::Own(queue),
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

/// Ends a queue. Handles that share it keep it until they are destroyed; one that a handle has for itself is refused.
#[unsafe(no_mangle)]
pub extern "C" fn hw_queue_destroy(queue: *mut QueueHandle) -> Code {
    guarded(|| {
        QUEUES.with_waiting(queue, |open| open.link.as_ref().map(drop).ok_or(Fault::QueueTaken))?;
        QUEUES.remove(queue).map(drop)
    })
}
