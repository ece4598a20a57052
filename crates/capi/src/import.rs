//! Imports: memory of the caller that a device accesses in place.
//!
//! Input: an address and a length. Output: a buffer of the device, pinned in the dynamic tier. Invariant: no page is in
//! two imports of the process, whatever the device: the end of one pin would be the end of the other.

use crate::call_error::CallError;
use crate::code::ResultCode;
use crate::device::{DEVICES, DeviceHandle};
use crate::ffi::{check_pointer, run_call};
use headwater::dma::pool::PoolError;
use headwater::host::shared_memory::SharedMemory;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

const PAGE_BYTES: usize = 4_096;

/// The imported ranges of this process: end address by start address.
static IMPORTED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

/// The pages of an import, which no other import takes while the value lives.
#[derive(Debug)]
struct ImportedRange {
    start: usize,
}

impl ImportedRange {
    /// Takes whole pages.
    fn take(start: usize, bytes: usize) -> Result<Self, CallError> {
        if bytes == 0 {
            return Err(PoolError::Zero.into());
        }
        let end = start.checked_add(bytes).ok_or(PoolError::Overflow { bytes })?;
        if !start.is_multiple_of(PAGE_BYTES) || !bytes.is_multiple_of(PAGE_BYTES) {
            return Err(CallError::ImportMisaligned { address: start, bytes });
        }
        let mut taken = IMPORTED.lock().unwrap_or_else(PoisonError::into_inner);
        // The last range that begins in front of our end ends in front of our start, or overlaps.
        if taken.range(..end).next_back().is_some_and(|(_, &other_end)| other_end > start) {
            return Err(CallError::ImportOverlaps);
        }
        taken.insert(start, end);
        Ok(Self { start })
    }
}

impl Drop for ImportedRange {
    fn drop(&mut self) {
        IMPORTED.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.start);
    }
}

/// Makes memory of the program a buffer of the device: pins it in place and registers it, so that reads and writes use
/// it, and any part of it, without a copy. `memory` begins on a page of 4,096 bytes and `bytes` are whole pages, else
/// HW_CODE_ALIGN; HW_CODE_BUSY if a part of it is imported already, by any device of the process, or is memory of this
/// device's pool. It counts as memory of
/// the dynamic tier: HW_CODE_WOULD_BLOCK or HW_CODE_OVER_CAP if the cap has no room for it. A device in another process
/// takes no memory but its own: HW_CODE_UNSUPPORTED.
///
/// The import pays from the length `import_min_bytes` of hw_device_tiers on; below it, hw_read and hw_write with memory
/// that is not imported copy for less.
///
/// # Safety
/// The pages are the program's own, of no pool or device of this library, are mapped, readable and writable, and stay so until hw_put_buffer returned HW_CODE_OK for `memory`, or
/// the device is closed and no queue or handle of it is left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_import_buffer(
    device: *mut DeviceHandle,
    memory: *mut c_void,
    bytes: usize,
) -> ResultCode {
    run_call(|| {
        check_pointer(memory, "memory")?;
        let start = NonNull::new(memory.cast::<u8>()).ok_or(CallError::Null("memory"))?;
        let range = ImportedRange::take(start.addr().get(), bytes)?;
        // SAFETY: mapped until the last handle is dropped: the buffer's table and the commands in flight hold them, and
        // the caller keeps the pages until neither does. The program is not written in Rust; where it is, the caller
        // lends the pages as to a device.
        let pages = unsafe { SharedMemory::of_caller(start, bytes) };
        let pages = pages.kept_with(Box::new(range));
        DEVICES.with_waiting(device, |open| {
            let is_of_pool =
                |offset: usize| open.device.pool().lookup(memory.cast::<u8>().wrapping_add(offset)).is_some();
            if is_of_pool(0) || is_of_pool(bytes - 1) {
                return Err(CallError::ImportOverlaps);
            }
            let buffer = open.device.import(pages).map_err(|(_, error)| error)?;
            open.buffers.insert_import(buffer)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_imports_are_whole_pages_and_never_overlap() {
        let base = 1_usize << 40;
        let page = |number: usize| base + number * PAGE_BYTES;
        let held = ImportedRange::take(page(4), 4 * PAGE_BYTES).unwrap();
        for (first, pages) in [(4, 4), (0, 5), (7, 1), (5, 1), (0, 100), (7, 10)] {
            let refused = ImportedRange::take(page(first), pages * PAGE_BYTES);
            assert!(matches!(refused, Err(CallError::ImportOverlaps)), "{first} {pages}");
        }
        let before = ImportedRange::take(page(0), 4 * PAGE_BYTES).unwrap();
        let behind = ImportedRange::take(page(8), PAGE_BYTES).unwrap();
        drop(held);
        let again = ImportedRange::take(page(5), 2 * PAGE_BYTES).unwrap();
        drop((before, behind, again));
        assert!(matches!(ImportedRange::take(base + 8, PAGE_BYTES), Err(CallError::ImportMisaligned { .. })));
        assert!(matches!(ImportedRange::take(base, 100), Err(CallError::ImportMisaligned { .. })));
        assert!(matches!(ImportedRange::take(base, 0), Err(CallError::Pool(PoolError::Zero))));
        assert!(ImportedRange::take(usize::MAX - 4_095, 8_192).is_err());
    }
}
