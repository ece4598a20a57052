//! Small buffers that direct I/O takes: whole 512-byte sectors, aligned like them.
//!
//! Input: pages of a pool, to be cut into equal buffers; or a count of sectors, for memory that holds no payload.
//! Output: bytes whose address does not change when the value moves, so that the kernel can work on them while a ring
//! owns them. Invariants: address and length are multiples of [`SECTOR_BYTES`]; buffers of one cut never overlap; the
//! pages return to their source when the last buffer of the cut is dropped, and not before.

use crate::pinning::MemoryRange;
use crate::pinning::uring::SlotRegistration;
use crate::reservation::PageSpan;
use crate::width::narrow;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};

/// The size of a sector: the smallest unit of direct I/O.
pub const SECTOR_BYTES: usize = 512;

#[derive(Clone, Copy)]
#[repr(C, align(512))]
pub(crate) struct Sector([u8; SECTOR_BYTES]);

const _: () = assert!(size_of::<Sector>() == SECTOR_BYTES);
const _: () = assert!(crate::reservation::PAGE_BYTES.is_multiple_of(SECTOR_BYTES));

/// The receiver of pages after the last buffer that was cut from them is dropped.
pub trait SpanSink: Send + Sync {
    /// Takes the pages back.
    fn return_span(&self, span: PageSpan);
}

/// The memory that buffers are parts of. It accesses none of its bytes.
pub(crate) enum SectorBacking {
    /// A boxed slice taken apart: its start and its number of sectors.
    Heap(NonNull<Sector>, usize),
    /// Pages of a source, to which they return.
    Pages(SpanBacking),
}

/// Pages that buffers are parts of.
pub(crate) struct SpanBacking {
    /// `None` only while the pages return to their source.
    span: Option<PageSpan>,
    sink: Box<dyn SpanSink>,
    /// The registration of the pages with a ring. It ends before the pages return: no page that returned stays pinned for it.
    registration: Mutex<Option<SlotRegistration>>,
}

// SAFETY: bounds and alignment: not concerned. Lifetime: heap memory belongs to no thread. Aliasing: the pointer is
// used by the drop alone, when no other holder is left; pages and their `SpanSink` are `Send` themselves.
unsafe impl Send for SectorBacking {}
// SAFETY: as for Send: `&SectorBacking` gives access to the registration alone, behind its lock.
unsafe impl Sync for SectorBacking {}

impl SectorBacking {
    /// Returns the pages; `None` for memory of the heap, and for pages on their way back.
    pub(crate) fn range(&self) -> Option<MemoryRange> {
        match self {
            Self::Pages(pages) => {
                pages.span.as_ref().map(|span| MemoryRange::new(span.address(), span.bytes()))
            }
            Self::Heap(..) => None,
        }
    }

    /// Keeps the registration of the pages until they return, unless they have one already: then `registration` ends now, as for
    /// memory of the heap. Returns true if it is kept.
    pub(crate) fn keep_registration(&self, registration: SlotRegistration) -> bool {
        let Self::Pages(pages) = self else { return false };
        let mut kept = pages.registration.lock().unwrap_or_else(PoisonError::into_inner);
        let is_kept = kept.is_none();
        if is_kept {
            *kept = Some(registration);
        }
        is_kept
    }

    /// Ends the registration of the pages.
    pub(crate) fn end_registration(&self) {
        if let Self::Pages(pages) = self {
            drop(pages.registration.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

impl Drop for SectorBacking {
    fn drop(&mut self) {
        match self {
            Self::Heap(start, sectors) => {
                let owned = ptr::slice_from_raw_parts_mut(start.as_ptr(), *sectors);
                // SAFETY: start and count are those of the boxed slice that `zeroed` leaked, which nothing else frees,
                // and the last buffer over it is gone.
                drop(unsafe { Box::from_raw(owned) });
            }
            Self::Pages(pages) => {
                drop(pages.registration.get_mut().unwrap_or_else(PoisonError::into_inner).take());
                if let Some(span) = pages.span.take() {
                    pages.sink.return_span(span);
                }
            }
        }
    }
}

/// Memory in whole, aligned sectors. Derefs to its bytes while the CPU owns it.
pub struct SectorBuffer {
    // A pointer and not a `Box`: moving a box asserts unique access to its bytes, which a kernel at work on them
    // violates.
    start: NonNull<u8>,
    sectors: u32,
    label: u32,
    /// Keeps the bytes alive.
    backing: Arc<SectorBacking>,
}

// SAFETY: the sectors belong to this value alone and to no thread in particular; access follows `&` and `&mut`. The
// `SectorBacking` that it keeps is `Send` and `Sync`.
unsafe impl Send for SectorBuffer {}
// SAFETY: through `&SectorBuffer` the bytes can only be read.
unsafe impl Sync for SectorBuffer {}

impl SectorBuffer {
    /// Allocates `sectors` zeroed sectors on the heap, for tables and the like. Payload is [cut](Self::cut) from a
    /// pool.
    ///
    /// # Panics
    /// There are four billion sectors or more: the caller has counted wrong.
    #[must_use]
    pub fn zeroed(sectors: usize) -> Self {
        let owned = vec![Sector([0; SECTOR_BYTES]); sectors].into_boxed_slice();
        let start = NonNull::from(Box::leak(owned)).cast::<Sector>();
        let backing = Arc::new(SectorBacking::Heap(start, sectors));
        Self { start: start.cast(), sectors: narrow(sectors), label: 0, backing }
    }

    /// Cuts pages into as many buffers of `sectors` sectors as fit, in order; all carry the label. The pages go to
    /// `sink` when the last of the buffers is dropped: at once when none fits.
    #[must_use]
    pub fn cut(span: PageSpan, sectors: u32, label: u32, sink: Box<dyn SpanSink>) -> Vec<Self> {
        let start = span.start();
        let bytes = sectors as usize * SECTOR_BYTES;
        let count = span.bytes().checked_div(bytes).unwrap_or(0);
        let backing = SpanBacking { span: Some(span), sink, registration: Mutex::new(None) };
        let backing = Arc::new(SectorBacking::Pages(backing));
        (0..count)
            .map(|nth| {
                // SAFETY: `nth * bytes` is less than the span's length, so the address lies within the span's pages,
                // which are mapped as long as `backing` keeps the span.
                let start = unsafe { start.add(nth * bytes) };
                Self { start, sectors, label, backing: Arc::clone(&backing) }
            })
            .collect()
    }

    /// Returns the label that the buffer got when it was cut.
    #[must_use]
    #[inline]
    pub fn label(&self) -> u32 {
        self.label
    }

    /// Returns the memory that it is a part of. The memory stays as it is as long as one of its buffers is alive.
    pub(crate) fn backing(&self) -> &Arc<SectorBacking> {
        &self.backing
    }

    /// Returns the first address, for a system call.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Deref for SectorBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: bounds and lifetime: `sectors` sectors from `start` are heap memory that `zeroed` allocated, or lie
        // within a span that is mapped and initialised; both stay until `backing` is dropped with this value.
        // Alignment: of bytes. Aliasing: buffers of one cut are apart, `SectorBacking` accesses no byte, a span has no
        // other access while it is in there; a shared borrow of `self` excludes writers.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.sectors as usize * SECTOR_BYTES) }
    }
}

impl DerefMut for SectorBuffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the borrow is unique, and any bytes make a sector.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.sectors as usize * SECTOR_BYTES) }
    }
}

impl fmt::Debug for SectorBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SectorBuffer({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reservation::{Backing, BackingOrder, PAGE_BYTES, PageRun, Reservation};

    #[test]
    fn sectors_are_aligned_zeroed_and_writable() {
        for sectors in [0, 1, 9, 64] {
            let mut buffer = SectorBuffer::zeroed(sectors);
            assert_eq!(buffer.len(), sectors * SECTOR_BYTES);
            assert_eq!(buffer.as_ptr().align_offset(SECTOR_BYTES), 0);
            assert!(buffer.iter().all(|&byte| byte == 0));
            buffer.fill(3);
            assert!(buffer.iter().all(|&byte| byte == 3));
        }
    }

    #[test]
    fn address_is_stable_when_value_moves() {
        let buffer = SectorBuffer::zeroed(2);
        let before = buffer.as_ptr();
        let moved = Box::new(buffer);
        assert_eq!(moved.as_ptr(), before);
    }

    /// A reservation that takes its spans back.
    struct ReservationSink(Arc<Mutex<Reservation>>);

    impl SpanSink for ReservationSink {
        fn return_span(&self, span: PageSpan) {
            self.0.lock().unwrap().release(span);
        }
    }

    fn claimed_span(pages: u32) -> (Arc<Mutex<Reservation>>, PageSpan) {
        let mut reservation = Reservation::new(pages as usize * PAGE_BYTES).unwrap();
        let all = PageRun { first: 0, pages };
        reservation.commit(all, BackingOrder::only(Backing::Small)).unwrap();
        let span = reservation.claim(all).unwrap();
        (Arc::new(Mutex::new(reservation)), span)
    }

    #[test]
    fn buffers_of_one_cut_are_disjoint_and_aligned() {
        let (reservation, span) = claimed_span(9);
        let (first, end) = (span.address(), span.address() + span.bytes());
        let mut cut = SectorBuffer::cut(span, 9, 77, Box::new(ReservationSink(Arc::clone(&reservation))));
        assert_eq!(cut.len(), 8);
        for (fill, buffer) in (1..).zip(&mut cut) {
            assert_eq!((buffer.len(), buffer.label()), (9 * SECTOR_BYTES, 77));
            assert_eq!(buffer.as_ptr().align_offset(SECTOR_BYTES), 0);
            let place = buffer.as_ptr().addr();
            assert!(place >= first && place + buffer.len() <= end);
            buffer.fill(fill);
        }
        for (fill, buffer) in (1..).zip(&cut) {
            assert!(buffer.iter().all(|&byte| byte == fill));
        }
    }

    #[test]
    fn pages_return_with_last_buffer_on_any_thread() {
        let (reservation, span) = claimed_span(9);
        let mut cut = SectorBuffer::cut(span, 9, 0, Box::new(ReservationSink(Arc::clone(&reservation))));
        let last = cut.pop().unwrap();
        std::thread::spawn(move || drop(cut)).join().unwrap();
        assert_eq!(reservation.lock().unwrap().claimed_pages(), 9);
        std::thread::spawn(move || drop(last)).join().unwrap();
        assert_eq!(reservation.lock().unwrap().claimed_pages(), 0);
    }

    #[test]
    fn pages_too_few_for_one_buffer_return_at_once() {
        for sectors in [0, 9] {
            let (reservation, span) = claimed_span(1);
            assert!(
                SectorBuffer::cut(span, sectors, 0, Box::new(ReservationSink(Arc::clone(&reservation))))
                    .is_empty()
            );
            assert_eq!(reservation.lock().unwrap().claimed_pages(), 0);
        }
    }
}
