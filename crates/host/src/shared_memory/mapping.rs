//! The pages of a region: where they come from, and what becomes of them with the last handle.
//!
//! Input: a range of mapped pages and its origin. Output: none but the return of the pages. Invariant: the pages return
//! once, by the last handle, in the way of their origin; memory of a caller stays as it is.

use super::SharedMemory;
use super::guarded::GuardedMapping;
use crate::fault_guard::{GuardedRange, LostPages};
use crate::mapped_region::SpanSink;
use crate::reservation::LentSpan;
use rustix::mm::munmap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

impl SharedMemory {
    /// Wraps memory of the caller that was mapped by other means, another allocator's for example. It is not unmapped
    /// with the last handle.
    ///
    /// # Safety
    /// Until the last handle is dropped, the `bytes` bytes from `start` on stay mapped, readable and writable, and no
    /// Rust reference points into them. Other threads, processes and devices may write them.
    #[must_use]
    pub unsafe fn of_caller(start: NonNull<u8>, bytes: usize) -> Self {
        Self { mapping: Arc::new(RegionMapping { start, bytes, origin: MappingOrigin::Caller }) }
    }

    /// Returns true if no other handle to the pages exists: no command in flight uses them.
    #[must_use]
    pub fn is_only_handle(&self) -> bool {
        Arc::strong_count(&self.mapping) == 1
    }
}

/// The pages of a region.
pub(super) struct RegionMapping {
    pub(super) start: NonNull<u8>,
    pub(super) bytes: usize,
    pub(super) origin: MappingOrigin,
}

/// The source of the pages, to which they return.
pub(super) enum MappingOrigin {
    /// One mapping of this process, of one object.
    KernelMapping,
    /// One mapping of a file that can shrink.
    Guarded(GuardedMapping),
    /// Adjacent mappings of this process, guarded if a file among theirs can shrink.
    JoinedMappings(Option<GuardedRange>),
    /// Memory of the caller, who keeps it mapped.
    Caller,
    /// Pages lent by a reservation; `None` only while they return to it.
    LentPages(Option<LentSpan>, Box<dyn SpanSink>),
    /// Another mapping, and a value that is dropped first.
    KeptWith(Option<Box<dyn Send + Sync>>, SharedMemory),
}

// SAFETY: bounds and alignment: not concerned. Lifetime: the pages belong to the process, not to a thread, and are
// unmapped or returned once, by the last handle; a span and its `SpanSink` are `Send` themselves. Aliasing: the
// pointer is used by the copies of `SharedMemory`, which tolerate concurrent accesses to the pages, and by an
// exclusively borrowed only handle.
unsafe impl Send for RegionMapping {}

// SAFETY: as for Send; every use through a shared handle is a copy that tolerates concurrent accesses to the pages.
unsafe impl Sync for RegionMapping {}

impl RegionMapping {
    /// Returns the report of the client whose memory this is, if it can shrink.
    pub(super) fn lost(&self) -> Option<&LostPages> {
        match &self.origin {
            MappingOrigin::Guarded(mapping) => mapping.lost(),
            MappingOrigin::JoinedMappings(guard) => guard.as_ref().map(GuardedRange::lost),
            MappingOrigin::KeptWith(_, memory) => memory.mapping.lost(),
            MappingOrigin::KernelMapping | MappingOrigin::Caller | MappingOrigin::LentPages(..) => None,
        }
    }
}

impl Drop for RegionMapping {
    fn drop(&mut self) {
        match &mut self.origin {
            MappingOrigin::LentPages(span, home) => {
                if let Some(span) = span.take() {
                    home.return_span(span.reclaim());
                }
                return;
            }
            MappingOrigin::KeptWith(value, _) => {
                drop(value.take());
                return;
            }
            // The first unmaps itself; the second is not ours to unmap.
            MappingOrigin::Guarded(_) | MappingOrigin::Caller => return,
            // Before the addresses can be used for another mapping.
            MappingOrigin::JoinedMappings(guard) => *guard = None,
            MappingOrigin::KernelMapping => {}
        }
        let start = self.start.as_ptr().cast::<c_void>();
        // SAFETY: bounds and alignment: exactly the range that the kernel returned. Lifetime: this is the last handle,
        // so no copy runs or will. Aliasing: no reference into the range was ever made. A failure leaves the pages
        // mapped, which leaks address space but breaks nothing.
        let _ = unsafe { munmap(start, self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_the_caller_stays_mapped_when_the_last_handle_is_dropped() {
        let owner = SharedMemory::anonymous(8_192).unwrap();
        let start = NonNull::new(std::ptr::with_exposed_provenance_mut(owner.address())).unwrap();
        // SAFETY: `owner` keeps the pages mapped, and no reference points into them.
        let ours = unsafe { SharedMemory::of_caller(start, 8_192) };
        ours.copy_out(8_000, b"kept").unwrap();
        assert!(ours.copy_out(8_190, b"kept").is_err());
        let in_flight = ours.clone();
        assert!(!ours.is_only_handle());
        drop(in_flight);
        assert!(ours.is_only_handle());
        drop(ours);
        let mut back = [0; 4];
        owner.copy_in(8_000, &mut back).unwrap();
        assert_eq!(&back, b"kept");
    }
}
