//! Copies into persistent memory, and the flush of cache lines that lie there.
//!
//! Input: bytes of this process, and a destination in mapped persistent memory. Output: the copied bytes, on their way
//! out of the caches; a [`drain`] waits for them. Invariant: when the drain returns [`DrainPromise::PersistenceDomain`],
//! every byte that this thread copied or flushed through this module before it has left the caches.
//!
//! Two ways lead there. A streaming copy passes the cache by: whole lines need no flush, and the partial lines at both
//! ends are stored and flushed. A cached copy stores through the cache and flushes each line; it is faster for short
//! copies, and the bytes may still be in the cache for the next read.
//!
//! # What is assumed
//! The memory controller writes its queue to the medium when the power fails (ADR, which every platform with NVDIMMs
//! has). On a platform whose caches are written too (eADR) the flushes are superfluous, and the fence is still needed.
//! Each aligned word of 8 bytes reaches the medium whole or not at all; nothing larger does.
//!
//! # What this does not do
//! It cannot know whether the destination is persistent memory. [`crate::persistent_memory`] maps such memory, and uses
//! msync where instructions do not suffice.

pub(crate) mod lines;
mod portable;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use lines::{LINE_BYTES, LineSplit, lines_touched};
use std::sync::OnceLock;

/// The length from which [`PersistentCopies::copy`] streams, where no calibration says another.
pub const STREAMING_PERSIST_BYTES_MIN: usize = 256;

/// Bytes of the pattern from which a fill copies.
const PATTERN_BYTES: usize = 4_096;

/// The instruction that writes a line of the cache back to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteBackInstruction {
    /// `clwb`: the line may stay in the cache.
    Clwb,
    /// `clflushopt`: the line leaves the cache.
    Clflushopt,
    /// `clflush`: the line leaves the cache, and each instruction waits for the one before.
    Clflush,
    /// This processor has none, or this program does not know it.
    Unavailable,
}

impl WriteBackInstruction {
    /// Returns the name of the instruction, for `doctor`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clwb => "clwb",
            Self::Clflushopt => "clflushopt",
            Self::Clflush => "clflush",
            Self::Unavailable => "none",
        }
    }
}

/// The guarantee that a drain gives for the bytes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "bytes that are only visible are lost with the power"]
pub enum DrainPromise {
    /// The bytes have left the caches: persistent memory keeps them when the power fails.
    PersistenceDomain,
    /// Other threads see the bytes, which may still be in a cache: a file keeps them after msync.
    VisibleOnly,
}

/// Stores the whole lines of a source to a destination that is aligned like a line.
type LinesKernel = unsafe fn(*mut u8, &[[u8; LINE_BYTES]]);
/// Writes a number of lines back, from an aligned address on.
type WriteBackKernel = unsafe fn(*const u8, usize);

/// The kernels of one processor.
#[derive(Clone, Copy, Debug)]
struct PersistKernels {
    name: &'static str,
    instruction: WriteBackInstruction,
    write_back: WriteBackKernel,
    store_lines: LinesKernel,
    stream_lines: LinesKernel,
}

impl PersistKernels {
    /// Stores `src` through the cache. Each aligned word of 8 bytes that lies in the range is stored at once.
    ///
    /// # Safety
    /// `to` is writable for the length of `src`, and the two ranges do not overlap.
    #[inline]
    unsafe fn store(&self, to: *mut u8, src: &[u8]) {
        // SAFETY: the caller promises the range; the kernels of a `PersistKernels` run on this processor.
        unsafe { copy_split(to, src, self.store_lines) };
    }

    /// Starts the write-back of every line that the range touches.
    ///
    /// # Safety
    /// Every page that the range touches is mapped.
    #[inline]
    unsafe fn flush(&self, start: *const u8, bytes: usize) {
        let (before, lines) = lines_touched(start.addr(), bytes);
        // SAFETY: bounds and lifetime: the lines begin and end in the pages of the range, which the caller promises.
        // Alignment: `lines_touched` found the start of a line. Aliasing: a write-back changes no byte.
        unsafe { (self.write_back)(start.wrapping_sub(before), lines) };
    }

    /// Stores the whole lines of the range past the cache; stores the rest and starts its write-back.
    ///
    /// # Safety
    /// `to` is writable for the length of `src`, and the two ranges do not overlap.
    #[inline]
    unsafe fn stream(&self, to: *mut u8, src: &[u8]) {
        let split = LineSplit::of(to.addr(), src.len());
        // SAFETY: the caller promises the range; the kernels of a `PersistKernels` run on this processor.
        unsafe { copy_split(to, src, self.stream_lines) };
        // SAFETY: the head is a part of the range.
        unsafe { self.flush(to, split.head) };
        // SAFETY: the tail is a part of the range.
        unsafe { self.flush(to.wrapping_add(src.len() - split.tail), split.tail) };
    }

    /// Fills a range past the cache as [`stream`](Self::stream) does.
    ///
    /// # Safety
    /// `to` is writable for `bytes` bytes.
    unsafe fn fill(&self, mut to: *mut u8, mut bytes: usize, value: u8) {
        let pattern = [value; PATTERN_BYTES];
        while bytes > 0 {
            // Every part but the last ends at the end of a line.
            let part = bytes.min(PATTERN_BYTES - to.addr() % LINE_BYTES);
            // SAFETY: the parts are consecutive and lie in the range; the pattern is a value of this function.
            unsafe { self.stream(to, &pattern[..part]) };
            to = to.wrapping_add(part);
            bytes -= part;
        }
    }

    fn promise(&self) -> DrainPromise {
        if self.instruction == WriteBackInstruction::Unavailable {
            DrainPromise::VisibleOnly
        } else {
            DrainPromise::PersistenceDomain
        }
    }
}

/// Copies the whole lines of a range by a kernel, and stores the bytes before and behind them through the cache.
///
/// # Safety
/// `to` is writable for the length of `src`, the two ranges do not overlap, and the kernel runs on this processor.
#[inline]
unsafe fn copy_split(to: *mut u8, src: &[u8], kernel: LinesKernel) {
    let split = LineSplit::of(to.addr(), src.len());
    let (head, rest) = src.split_at(split.head);
    let (lines, tail) = rest.as_chunks::<LINE_BYTES>();
    // SAFETY: the head is the start of the range that the caller promises.
    unsafe { portable::store_words(to, head) };
    let first = to.wrapping_add(head.len());
    // SAFETY: bounds: the lines follow the head in the range. Alignment: the head ends at the start of a line, unless
    // there are no lines. Lifetime and aliasing: the caller's promise.
    unsafe { kernel(first, lines) };
    // SAFETY: the tail is the end of the range that the caller promises.
    unsafe { portable::store_words(first.wrapping_add(lines.len() * LINE_BYTES), tail) };
}

static CHOSEN: OnceLock<PersistKernels> = OnceLock::new();

/// Returns the kernels of this processor.
#[inline]
fn kernels() -> &'static PersistKernels {
    CHOSEN.get_or_init(|| available().pop().unwrap_or(PORTABLE))
}

const PORTABLE: PersistKernels = PersistKernels {
    name: "words",
    instruction: WriteBackInstruction::Unavailable,
    write_back: portable::write_back_nothing,
    store_lines: portable::store_lines,
    stream_lines: portable::store_lines,
};

/// Returns all combinations of kernels that this processor runs; the best one is the last.
fn available() -> Vec<PersistKernels> {
    let mut found = vec![PORTABLE];
    #[cfg(target_arch = "x86_64")]
    for (instruction, write_back) in x86::write_back_kernels() {
        for (name, store_lines, stream_lines) in x86::line_kernels() {
            found.push(PersistKernels { name, instruction, write_back, store_lines, stream_lines });
        }
    }
    found
}

/// Returns the instruction by which this processor writes lines back.
#[must_use]
pub fn write_back_instruction() -> WriteBackInstruction {
    kernels().instruction
}

/// Returns the name of the kernel that stores whole lines, for `doctor`.
#[must_use]
pub fn kernel_name() -> &'static str {
    kernels().name
}

/// Waits until every byte that this thread copied or flushed through this module has left the caches. The bytes are also
/// visible to other threads before anything that this thread stores later.
pub fn drain() -> DrainPromise {
    portable::fence();
    #[cfg(target_arch = "x86_64")]
    super::stream::fence();
    kernels().promise()
}

/// Copies `src` into `dst` and [drains](drain) it.
///
/// # Panics
/// When the lengths differ.
#[inline]
pub fn copy_persistent(dst: &mut [u8], src: &[u8]) -> DrainPromise {
    PersistentCopies::default().with(|copies| copies.copy(dst, src))
}

/// Copies, fills and flushes that share one drain: a drain after each costs as much as the copy of a page.
///
/// The calling thread sees the copied bytes at once. Another thread, or a device, may see the bytes that were there before
/// until [`drain`](Self::drain), which the end of this value calls too.
#[derive(Debug)]
pub struct PersistentCopies {
    streaming_from_bytes: usize,
    is_undrained: bool,
}

impl Default for PersistentCopies {
    fn default() -> Self {
        Self::streaming_from(STREAMING_PERSIST_BYTES_MIN)
    }
}

impl PersistentCopies {
    /// Creates the value; copies of at least `bytes` bytes stream. [`PersistThreshold`] measures the length from which that
    /// is faster.
    ///
    /// [`PersistThreshold`]: crate::calibration::persist::PersistThreshold
    #[must_use]
    pub const fn streaming_from(bytes: usize) -> Self {
        Self { streaming_from_bytes: bytes, is_undrained: false }
    }

    /// Copies `src` into `dst`, streaming or through the cache by its length.
    ///
    /// # Panics
    /// When the lengths differ.
    #[inline]
    pub fn copy(&mut self, dst: &mut [u8], src: &[u8]) {
        if src.len() < self.streaming_from_bytes {
            self.copy_cached(dst, src);
        } else {
            self.copy_streaming(dst, src);
        }
    }

    /// Copies `src` into `dst` past the cache.
    ///
    /// # Panics
    /// When the lengths differ.
    #[inline]
    pub fn copy_streaming(&mut self, dst: &mut [u8], src: &[u8]) {
        assert_eq!(dst.len(), src.len(), "a copy between slices of lengths that differ");
        self.is_undrained = true;
        // SAFETY: the exclusive borrow covers as many bytes as `src` has, and excludes it.
        unsafe { kernels().stream(dst.as_mut_ptr(), src) };
    }

    /// Copies `src` into `dst` through the cache, and starts the write-back of its lines.
    ///
    /// # Panics
    /// When the lengths differ.
    #[inline]
    pub fn copy_cached(&mut self, dst: &mut [u8], src: &[u8]) {
        assert_eq!(dst.len(), src.len(), "a copy between slices of lengths that differ");
        // SAFETY: the exclusive borrow covers as many bytes as `src` has, and excludes it.
        unsafe { kernels().store(dst.as_mut_ptr(), src) };
        self.flush(dst);
    }

    /// Fills `dst` with one value past the cache.
    pub fn fill(&mut self, dst: &mut [u8], value: u8) {
        self.is_undrained = true;
        // SAFETY: the exclusive borrow covers the bytes.
        unsafe { kernels().fill(dst.as_mut_ptr(), dst.len(), value) };
    }

    /// Starts the write-back of every line that holds a byte of `bytes`: of bytes that other code stored there.
    #[inline]
    pub fn flush(&mut self, bytes: &[u8]) {
        self.is_undrained = true;
        // SAFETY: the borrow keeps the pages of the bytes mapped.
        unsafe { kernels().flush(bytes.as_ptr(), bytes.len()) };
    }

    /// Waits until all bytes have left the caches. See [`drain`](fn@drain).
    #[inline]
    pub fn drain(&mut self) -> DrainPromise {
        if std::mem::take(&mut self.is_undrained) { drain() } else { kernels().promise() }
    }

    /// Runs `work` on this value and drains it.
    #[inline]
    fn with(mut self, work: impl FnOnce(&mut Self)) -> DrainPromise {
        work(&mut self);
        self.drain()
    }
}

impl Drop for PersistentCopies {
    fn drop(&mut self) {
        if self.is_undrained {
            let _unread = drain();
        }
    }
}

/// Stores `src` through the cache, without a write-back. Each aligned word of 8 bytes is stored at once.
///
/// # Safety
/// `to` is writable for the length of `src`, and the two ranges do not overlap. Another thread or process may access the
/// target during the call.
#[inline]
pub(crate) unsafe fn store_raw(to: *mut u8, src: &[u8]) {
    // SAFETY: the caller promises the same.
    unsafe { kernels().store(to, src) };
}

/// Stores `src` past the cache; it has left the caches after a [`drain`].
///
/// # Safety
/// As for [`store_raw`].
#[inline]
pub(crate) unsafe fn stream_raw(to: *mut u8, src: &[u8]) {
    // SAFETY: the caller promises the same.
    unsafe { kernels().stream(to, src) };
}

/// Fills a range past the cache; it has left the caches after a [`drain`].
///
/// # Safety
/// `to` is writable for `bytes` bytes. Another thread or process may access them during the call.
#[inline]
pub(crate) unsafe fn fill_raw(to: *mut u8, bytes: usize, value: u8) {
    // SAFETY: the caller promises the same.
    unsafe { kernels().fill(to, bytes, value) };
}

/// Starts the write-back of every line that the range touches.
///
/// # Safety
/// Every page that the range touches is mapped.
#[inline]
pub(crate) unsafe fn flush_raw(start: *const u8, bytes: usize) {
    // SAFETY: the caller promises the same.
    unsafe { kernels().flush(start, bytes) };
}
