//! A slice that grows where it lies: long ones are mapped in whole pages, short ones are on the heap.
//!
//! Input: a length. Output: entries that are their default until they are written, and memory for them of which none is
//! unused. A heap that grows many long arrays in turn keeps a hole for each array that moved, a fifth of its memory; the
//! kernel moves pages to another address without a copy, and takes back what is released.
//! Invariant: the first `len` entries are initialised, and the memory belongs to this value alone.

use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ffi::c_void;
use std::fmt;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;

/// The origin of the memory of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SliceMemory {
    Heap,
    Mapped,
}

/// A slice of `Copy` entries that only grows.
pub struct GrowingSlice<T> {
    start: NonNull<T>,
    len: usize,
    memory: SliceMemory,
}

// SAFETY: the memory belongs to this value alone and to no thread in particular.
unsafe impl<T: Send> Send for GrowingSlice<T> {}
// SAFETY: through `&GrowingSlice` the entries can only be read.
unsafe impl<T: Sync> Sync for GrowingSlice<T> {}

impl<T> Default for GrowingSlice<T> {
    fn default() -> Self {
        Self { start: NonNull::dangling(), len: 0, memory: SliceMemory::Heap }
    }
}

impl<T: Copy + Default> GrowingSlice<T> {
    const ENTRY: usize = {
        assert!(
            size_of::<T>() > 0 && align_of::<T>() <= 4_096,
            "entries have bytes and fit a page's alignment"
        );
        size_of::<T>()
    };

    /// Makes a slice of defaults.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let mut slice = Self::default();
        slice.grow(len);
        slice
    }

    /// Returns the length, `len` or more, that fills the memory that a slice of `len` entries takes.
    #[must_use]
    pub fn full_len(len: usize) -> usize {
        if is_long(len * Self::ENTRY) { whole_pages(len * Self::ENTRY) / Self::ENTRY } else { len }
    }

    /// Appends defaults until there are `len` entries. Does nothing if there are as many.
    pub fn grow(&mut self, len: usize) {
        if len <= self.len {
            return;
        }
        let (old, new) = (self.len * Self::ENTRY, len * Self::ENTRY);
        let remapped = if self.memory == SliceMemory::Mapped { self.remap(old, new) } else { None };
        self.start = remapped.unwrap_or_else(|| self.copy_to_new(len));
        let fresh = self.start.as_ptr().wrapping_add(self.len).cast::<MaybeUninit<T>>();
        // SAFETY: the memory from `start` on now has `len` entries, to which `&mut self` is the only access; these lie
        // behind those that are initialised.
        let fresh = unsafe { slice::from_raw_parts_mut(fresh, len - self.len) };
        fresh.fill(MaybeUninit::new(T::default()));
        self.len = len;
    }

    /// Lets the kernel extend or move the mapping. `None` without a change if it refuses.
    fn remap(&self, old: usize, new: usize) -> Option<NonNull<T>> {
        if whole_pages(old) == whole_pages(new) {
            return Some(self.start);
        }
        if refuses() {
            return None;
        }
        let start = self.start.as_ptr().cast::<c_void>();
        // SAFETY: the range is a mapping of this value, to which `&mut self` of the caller is the only access; if it
        // moves, the caller replaces the address.
        let moved = unsafe { mremap(start, whole_pages(old), whole_pages(new), MremapFlags::MAYMOVE) };
        NonNull::new(moved.ok()?.cast())
    }

    /// Copies the entries to other memory with room for `len`, and releases the present memory.
    fn copy_to_new(&mut self, len: usize) -> NonNull<T> {
        // Also for a process with as many mappings as it may have.
        let mapped = if is_long(len * Self::ENTRY) { map(len * Self::ENTRY) } else { None };
        let memory = if mapped.is_some() { SliceMemory::Mapped } else { SliceMemory::Heap };
        let start = mapped.map_or_else(|| allocate(len), NonNull::cast);
        // SAFETY: both ranges have `self.len` entries at least, and the new one is of its own.
        unsafe { ptr::copy_nonoverlapping(self.start.as_ptr(), start.as_ptr(), self.len) };
        let len = self.len;
        *self = Self { start, len, memory };
        start
    }
}

/// Returns true if so many bytes are mapped: more than half of a page would be used.
fn is_long(bytes: usize) -> bool {
    bytes > rustix::param::page_size() / 2
}

fn whole_pages(bytes: usize) -> usize {
    bytes.next_multiple_of(rustix::param::page_size())
}

fn map(bytes: usize) -> Option<NonNull<u8>> {
    if refuses() {
        return None;
    }
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a private anonymous mapping at an address of the kernel's choice touches no memory that exists.
    let start = unsafe { mmap_anonymous(ptr::null_mut(), whole_pages(bytes), access, MapFlags::PRIVATE) };
    NonNull::new(start.ok()?.cast())
}

#[cfg(not(test))]
fn refuses() -> bool {
    false
}

/// Returns true if this thread's test wants the kernel to refuse mappings.
#[cfg(test)]
fn refuses() -> bool {
    tests::REFUSES.get()
}

fn layout_of<T>(len: usize) -> Layout {
    match Layout::array::<T>(len) {
        Ok(layout) => layout,
        Err(_) => handle_alloc_error(Layout::new::<T>()),
    }
}

/// Allocates memory for `len` entries, at least one, on the heap.
fn allocate<T>(len: usize) -> NonNull<T> {
    let layout = layout_of::<T>(len);
    // SAFETY: neither the entries nor their number are zero.
    let start = unsafe { alloc(layout) };
    NonNull::new(start.cast()).unwrap_or_else(|| handle_alloc_error(layout))
}

impl<T> Drop for GrowingSlice<T> {
    fn drop(&mut self) {
        match self.memory {
            SliceMemory::Heap if self.len == 0 => {}
            // SAFETY: allocated with this layout, and no reference to it is left.
            SliceMemory::Heap => unsafe { dealloc(self.start.as_ptr().cast(), layout_of::<T>(self.len)) },
            SliceMemory::Mapped => {
                let bytes = whole_pages(self.len * size_of::<T>());
                // SAFETY: the mapping of this value, to which no reference is left. A failure leaves the pages mapped,
                // which leaks memory but breaks nothing.
                let _ = unsafe { munmap(self.start.as_ptr().cast(), bytes) };
            }
        }
    }
}

impl<T> Deref for GrowingSlice<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the first `len` entries are initialised and live as long as `self`; a shared borrow excludes writers.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for GrowingSlice<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and a unique borrow of `self` excludes every other access.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T> fmt::Debug for GrowingSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GrowingSlice({} entries, {:?})", self.len, self.memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        pub(super) static REFUSES: Cell<bool> = const { Cell::new(false) };
    }

    /// Grows by every length, each entry written once; the kernel refuses mappings for the lengths that `refused` names.
    fn grow_and_compare(refused: impl Fn(usize) -> bool) -> Vec<SliceMemory> {
        let mut slice = GrowingSlice::<u64>::default();
        let mut seen = Vec::new();
        for len in (0..400).chain((400..9_000).step_by(173)) {
            REFUSES.set(refused(len));
            let before = slice.len();
            slice.grow(len);
            seen.push(slice.memory);
            assert_eq!(slice.len(), len);
            assert!(slice[before..].iter().all(|entry| *entry == 0), "{len}");
            for (at, entry) in slice.iter_mut().enumerate().skip(before) {
                *entry = at as u64 + 1;
            }
            assert!(slice.iter().enumerate().all(|(at, entry)| *entry == at as u64 + 1), "{len}");
        }
        REFUSES.set(false);
        seen
    }

    #[test]
    fn entries_stay_and_new_ones_are_default_on_the_heap_and_mapped() {
        let seen = grow_and_compare(|_| false);
        assert!(seen.is_sorted_by_key(|memory| *memory == SliceMemory::Mapped), "a mapped slice went back");
        assert_eq!((seen[256], seen[257]), (SliceMemory::Heap, SliceMemory::Mapped));
    }

    #[test]
    fn entries_stay_when_the_kernel_refuses_mappings() {
        assert!(grow_and_compare(|_| true).iter().all(|memory| *memory == SliceMemory::Heap));
        let seen = grow_and_compare(|len| len / 300 % 2 == 1);
        assert!(seen[300..].contains(&SliceMemory::Heap) && seen[300..].contains(&SliceMemory::Mapped));
    }

    #[test]
    fn full_length_fills_whole_pages() {
        let page = rustix::param::page_size() / 8;
        assert_eq!(GrowingSlice::<u64>::full_len(page / 2), page / 2);
        assert_eq!(GrowingSlice::<u64>::full_len(page / 2 + 1), page);
        assert_eq!(GrowingSlice::<u64>::full_len(page + 1), 2 * page);
    }

    #[test]
    fn dropped_slices_are_released() {
        let resident_pages = || {
            let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
            statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap()
        };
        let before = resident_pages();
        for _ in 0..64 {
            let mut slice = GrowingSlice::<u64>::new(1 << 20);
            slice.grow(2 << 20);
        }
        // Leaked, it were 1 GiB.
        assert!(resident_pages() < before + (512 << 20) / rustix::param::page_size());
    }
}
