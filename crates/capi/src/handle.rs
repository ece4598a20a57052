//! Handles, through which a thread reads and writes, over one queue or several.
//!
//! Input: queues, a selector. Output: handles. Invariants: one thread at a time uses a handle, a second one gets
//! `CallError::Busy`; a destroyed handle releases its queues once all of its requests are complete.

use crate::call_error::CallError;
use crate::client_buffers::ClientBuffers;
use crate::code::ResultCode;
use crate::ffi::{OutPointer, check_pointer, run_call};
use crate::handle_table::HandleTable;
use crate::io_path::IoPath;
use crate::param::HandleSettings;
use crate::queue::{QUEUES, QueueHandle};
use headwater::host::clock::Clock;
use headwater::io::cached_handle::CachedHandle;
use headwater::io::completion::TransferDirection;
use headwater::io::handle::Handle;
use headwater::io::scheduler::RequestClass;
use headwater::io::selector::{QueueName, QueueSelector, SelectionContext};
use headwater::{ClientNamespace, WriteDurability};
use headwater_host::width::narrow;
use std::ffi::c_void;
use std::slice;
use std::sync::Arc;

/// Maximum number of handles that C can have at a time.
const HANDLES_MAX: usize = 4_096;
/// Maximum number of queues of one handle.
const QUEUES_PER_HANDLE_MAX: usize = 64;

/// A handle for I/O.
#[derive(Debug)]
pub struct IoHandle {
    _opaque: (),
}

/// The request for which a selector chooses a queue.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SelectorChoice {
    /// Offset on the device, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// 0: read, 1: write or compare, 2: any other.
    pub direction: u32,
    /// Class of the request: the value of HW_PARAM_CLASS at its submission.
    pub class_number: u32,
    /// Number of queues of the handle.
    pub queues: u32,
    /// Always 0.
    pub reserved: u32,
}

/// A function that chooses a queue, by its index among those that the handle was created with. It is called on the
/// thread that uses the handle, during a call on the handle: it must not use the handle itself.
pub type SelectorFunction =
    Option<unsafe extern "C" fn(context: *mut c_void, choice: *const SelectorChoice) -> u32>;

/// The object behind a handle.
#[derive(Debug)]
pub(crate) struct OpenHandle {
    pub(crate) io_path: IoPath,
    pub(crate) facts: ClientNamespace,
    /// One past the last byte that it may access.
    pub(crate) end: u64,
    pub(crate) buffers: Arc<ClientBuffers>,
    /// The number of the device's handle, to allocate memory that a call needs.
    pub(crate) device: usize,
    /// Set by hw_lseek, in bytes.
    pub(crate) position: u64,
    pub(crate) class: RequestClass,
    pub(crate) durable: WriteDurability,
    /// Each attached queue, with the number of its own handle.
    queues: Vec<(QueueName, usize)>,
    pub(crate) clock: Clock,
    pub(crate) settings: HandleSettings,
}

pub(crate) static HANDLES: HandleTable<OpenHandle, HANDLES_MAX> = HandleTable::new("handle");

/// A selector function of C with its context.
#[derive(Clone, Copy, Debug)]
struct SelectorCallback {
    function: unsafe extern "C" fn(*mut c_void, *const SelectorChoice) -> u32,
    context: usize,
}

impl SelectorCallback {
    fn choose(&self, choice: &SelectionContext<'_>) -> QueueName {
        let direction = match choice.direction {
            TransferDirection::Read => 0,
            TransferDirection::Write => 1,
            TransferDirection::Other => 2,
        };
        let passed = SelectorChoice {
            offset: choice.offset,
            bytes: choice.bytes,
            direction,
            class_number: choice.class.number().into(),
            queues: narrow(choice.queues.len()),
            reserved: 0,
        };
        let context = std::ptr::with_exposed_provenance_mut(self.context);
        // SAFETY: the creator of the handle promised that the function can be called so, on any thread that uses it;
        // the struct is on this stack for the call.
        QueueName(unsafe { (self.function)(context, &raw const passed) })
    }
}

impl OpenHandle {
    /// Returns the object behind a handle of a cache: over the queue with the number `own`, or over that of the cache.
    pub(crate) fn of_cache(
        mut handle: CachedHandle,
        facts: ClientNamespace,
        (device, buffers): (usize, Arc<ClientBuffers>),
        own: Option<usize>,
    ) -> Self {
        let names = handle.with_handle(|handle| handle.queues());
        let queues = names.into_iter().zip(own).collect();
        Self {
            end: handle.end(),
            io_path: IoPath::Joined(Box::new(handle)),
            facts,
            buffers,
            device,
            position: 0,
            class: RequestClass::FIRST,
            durable: WriteDurability::NamespaceDefault,
            queues,
            clock: Clock::start(),
            settings: HandleSettings::default(),
        }
    }
}

fn open_handle(numbers: &[*mut QueueHandle], selector: QueueSelector) -> Result<OpenHandle, CallError> {
    let mut made: Option<OpenHandle> = None;
    for &number in numbers {
        let joined = QUEUES.with_waiting(number, |queue| {
            if let Some(open) = &mut made {
                if open.device != queue.device {
                    return Err(CallError::OtherDevice);
                }
                let link = queue.take()?;
                let name = open.io_path.with(|handle| Ok(handle.attach(link)))?;
                open.queues.push((name, number.addr()));
                return Ok(());
            }
            let handle = Handle::builder(&queue.facts).queue(queue.take()?).build()?;
            let name = handle.queues().first().copied().unwrap_or(QueueName(0));
            made = Some(OpenHandle {
                end: handle.end(),
                io_path: IoPath::Direct(handle),
                facts: queue.facts.clone(),
                buffers: Arc::clone(&queue.buffers),
                device: queue.device,
                position: 0,
                class: RequestClass::FIRST,
                durable: WriteDurability::NamespaceDefault,
                queues: vec![(name, number.addr())],
                clock: Clock::start(),
                settings: HandleSettings::default(),
            });
            Ok(())
        });
        if let Err(fault) = joined {
            made.into_iter().for_each(|open| {
                // No request was submitted, so there is nothing to wait for.
                let _ = close_handle(open);
            });
            return Err(fault);
        }
    }
    let mut open = made.ok_or(CallError::Null("queues"))?;
    open.io_path.with(|handle| {
        handle.set_selector(selector);
        Ok(())
    })?;
    Ok(open)
}

/// Detaches the queues, each once all requests on it are complete, and makes them available again.
fn close_handle(mut open: OpenHandle) -> Result<(), CallError> {
    let mut failed = None;
    if let IoPath::Cached(_) | IoPath::Joined(_) = open.io_path {
        while open.io_path.wait(None)?.is_some() {}
        // A failed write-back is reported, and the queues are detached all the same.
        failed = open.io_path.leave_cache(&open.facts, open.device).err();
    }
    for (name, number) in std::mem::take(&mut open.queues) {
        if let IoPath::Closed = open.io_path {
            break;
        }
        match open.io_path.with(|handle| Ok(handle.detach(name, None)?)) {
            Ok(Some(link)) => {
                let number: *const QueueHandle = std::ptr::without_provenance(number);
                // A queue that was destroyed in between takes nothing back.
                let _ = QUEUES.with_waiting(number, |queue| {
                    queue.put_back(link);
                    Ok(())
                });
            }
            Ok(None) => {}
            Err(fault) => failed = Some(fault),
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Creates a handle over one queue, and writes it to `out`. It schedules first come, first served, polls for
/// completions, and has no cache; hw_set_param changes these policies. hw_handle_destroy ends the handle.
///
/// # Safety
/// An `out` that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_handle_create(queue: *mut QueueHandle, out: *mut *mut IoHandle) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(out, "out") }?;
        out.write(HANDLES.add(open_handle(&[queue], QueueSelector::First)?)?);
        Ok(())
    })
}

/// Creates a handle over `count` queues of one device, 1 to 64, and writes it to `out`. `selector` chooses the queue of
/// each request; null takes the queue with the most free slots.
///
/// # Safety
/// `queues` points to `count` handles. A `selector` that is not null can be called with `context` as long as the handle
/// lives, on each thread that uses it. An `out` that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_handle_create_mq(
    queues: *const *mut QueueHandle,
    count: usize,
    selector: SelectorFunction,
    context: *mut c_void,
    out: *mut *mut IoHandle,
) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(out, "out") }?;
        check_pointer(queues, "queues")?;
        if count == 0 || count > QUEUES_PER_HANDLE_MAX {
            return Err(CallError::InvalidValue { field: "count", value: count as u64, choice: "1 to 64" });
        }
        // SAFETY: not null and aligned, and as many as the caller promised.
        let numbers = unsafe { slice::from_raw_parts(queues, count) };
        let selector = match selector {
            Some(function) => {
                let chosen = SelectorCallback { function, context: context.expose_provenance() };
                QueueSelector::Function(Box::new(move |choice| chosen.choose(choice)))
            }
            None => QueueSelector::MostRoom,
        };
        out.write(HANDLES.add(open_handle(numbers, selector)?)?);
        Ok(())
    })
}

/// Destroys a handle: waits until all of its requests are complete, and releases its queues.
#[unsafe(no_mangle)]
pub extern "C" fn hw_handle_destroy(handle: *mut IoHandle) -> ResultCode {
    run_call(|| close_handle(HANDLES.remove(handle)?))
}
