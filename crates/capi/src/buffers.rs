//! Buffers that C holds by address.
//!
//! Input: buffers of a device. Output: addresses, and the buffer that contains an address range. Invariant: an address
//! that a caller passes in is compared and never dereferenced; memory returns to its pool once C has released it and no
//! command in flight holds it.

use crate::fault::Fault;
use headwater::Buffer;
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

/// The buffers of one device, by their start address in this process.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    held: RwLock<BTreeMap<usize, Buffer>>,
}

impl Buffers {
    /// Stores a buffer and returns its address.
    pub(crate) fn keep(&self, buffer: Buffer) -> usize {
        let address = buffer.process_address();
        self.held.write().unwrap_or_else(PoisonError::into_inner).insert(address, buffer);
        address
    }

    /// Releases the buffer that starts at an address.
    pub(crate) fn give_up(&self, address: usize) -> Result<(), Fault> {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        if held.remove(&address).is_some() {
            return Ok(());
        }
        let around = held.range(..=address).next_back();
        let inside = around.is_some_and(|(&start, buffer)| address - start < buffer.bytes());
        Err(if inside { Fault::BufferInterior } else { Fault::BufferForeign })
    }

    /// Returns the range as a part of a buffer; `None` if no buffer contains all of it.
    #[inline]
    pub(crate) fn find(&self, address: usize, bytes: usize) -> Option<Buffer> {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        let (start, buffer) = held.range(..=address).next_back()?;
        buffer.slice(address - start, bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater::dma::pool::Pool;

    #[test]
    fn ranges_inside_a_buffer_are_found_and_a_start_address_is_released_once() {
        let buffers = Buffers::default();
        let buffer = Buffer::pooled(Pool::of_process().unwrap().buffer(8_192).unwrap());
        let start = buffers.keep(buffer);
        assert_eq!(buffers.find(start + 512, 100).unwrap().process_address(), start + 512);
        assert!(buffers.find(start, 8_192).is_some());
        for (address, bytes) in
            [(start, 8_193), (start + 8_000, 200), (start - 1, 1), (usize::MAX, 1), (0, 1)]
        {
            assert!(buffers.find(address, bytes).is_none(), "{address:#x} {bytes}");
        }
        assert!(matches!(buffers.give_up(start + 1), Err(Fault::BufferInterior)));
        assert!(matches!(buffers.give_up(start - 1), Err(Fault::BufferForeign)));
        buffers.give_up(start).unwrap();
        assert!(matches!(buffers.give_up(start), Err(Fault::BufferForeign)));
    }
}
