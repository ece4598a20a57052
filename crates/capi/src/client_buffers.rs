//! Buffers that C holds by address.
//!
//! Input: buffers of a device. Output: addresses, and the buffer that contains an address range. Invariant: an address
//! that a caller passes in is compared and never dereferenced; memory returns to its pool once C has released it and no
//! command in flight holds it. Imported memory belongs to the caller, so its release is refused while a command holds it.

use crate::call_error::CallError;
use headwater::Buffer;
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

/// The owner of the pages of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageOwner {
    /// The pool of the device.
    Pool,
    /// The caller: the pages were imported.
    Caller,
}

#[derive(Debug)]
struct ClientBuffer {
    buffer: Buffer,
    owner: PageOwner,
}

/// The buffers of one device, by their start address in this process.
#[derive(Debug, Default)]
pub(crate) struct ClientBuffers {
    by_address: RwLock<BTreeMap<usize, ClientBuffer>>,
}

impl ClientBuffers {
    /// Stores a buffer of the device's pool and returns its address.
    pub(crate) fn insert(&self, buffer: Buffer) -> usize {
        let address = buffer.process_address();
        let mut held = self.by_address.write().unwrap_or_else(PoisonError::into_inner);
        held.insert(address, ClientBuffer { buffer, owner: PageOwner::Pool });
        address
    }

    /// Stores memory that was imported.
    ///
    /// # Errors
    /// [`CallError::ImportOverlaps`] if a part of it is a buffer already; then nothing changes.
    pub(crate) fn insert_import(&self, buffer: Buffer) -> Result<(), CallError> {
        let (start, end) = (buffer.process_address(), buffer.process_address() + buffer.bytes());
        let mut held = self.by_address.write().unwrap_or_else(PoisonError::into_inner);
        let last = held.range(..end).next_back();
        if last.is_some_and(|(&other, found)| other + found.buffer.bytes() > start) {
            return Err(CallError::ImportOverlaps);
        }
        held.insert(start, ClientBuffer { buffer, owner: PageOwner::Caller });
        Ok(())
    }

    /// Releases the buffer that starts at an address.
    pub(crate) fn release(&self, address: usize) -> Result<(), CallError> {
        let mut held = self.by_address.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = held.get(&address) {
            // No other thread makes a handle from this one while the table is locked.
            if found.owner == PageOwner::Caller && !found.buffer.is_only_handle() {
                return Err(CallError::ImportInUse);
            }
            held.remove(&address);
            return Ok(());
        }
        let around = held.range(..=address).next_back();
        let inside = around.is_some_and(|(&start, found)| address - start < found.buffer.bytes());
        Err(if inside { CallError::BufferInterior } else { CallError::BufferForeign })
    }

    /// Returns the range as a part of a buffer; `None` if no buffer contains all of it.
    #[inline]
    pub(crate) fn find(&self, address: usize, bytes: usize) -> Option<Buffer> {
        let held = self.by_address.read().unwrap_or_else(PoisonError::into_inner);
        let (start, found) = held.range(..=address).next_back()?;
        found.buffer.slice(address - start, bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater::dma::pool::Pool;

    #[test]
    fn ranges_inside_a_buffer_are_found_and_a_start_address_is_released_once() {
        let buffers = ClientBuffers::default();
        let buffer = Buffer::from_pool(Pool::of_process().unwrap().buffer(8_192).unwrap());
        let start = buffers.insert(buffer);
        assert_eq!(buffers.find(start + 512, 100).unwrap().process_address(), start + 512);
        assert!(buffers.find(start, 8_192).is_some());
        for (address, bytes) in
            [(start, 8_193), (start + 8_000, 200), (start - 1, 1), (usize::MAX, 1), (0, 1)]
        {
            assert!(buffers.find(address, bytes).is_none(), "{address:#x} {bytes}");
        }
        assert!(matches!(buffers.release(start + 1), Err(CallError::BufferInterior)));
        assert!(matches!(buffers.release(start - 1), Err(CallError::BufferForeign)));
        buffers.release(start).unwrap();
        assert!(matches!(buffers.release(start), Err(CallError::BufferForeign)));
    }
    #[test]
    fn imported_memory_is_released_only_when_no_command_holds_it() {
        let buffers = ClientBuffers::default();
        let buffer = Buffer::from_pool(Pool::of_process().unwrap().buffer(8_192).unwrap());
        let start = buffer.process_address();
        let inside = buffer.slice(4_096, 4_096).unwrap();
        buffers.insert_import(buffer).unwrap();
        assert!(matches!(buffers.insert_import(inside), Err(CallError::ImportOverlaps)));
        let in_flight = buffers.find(start + 512, 512).unwrap();
        assert!(matches!(buffers.release(start), Err(CallError::ImportInUse)));
        drop(in_flight);
        buffers.release(start).unwrap();
        assert!(matches!(buffers.release(start), Err(CallError::BufferForeign)));
    }
}
