//! One pass of a kernel over bytes: each byte is loaded once, and stored once if the kernel copies.
//!
//! Input: a range to read, and a range to write of the same length. Output: the bytes in registers, front to back.
//! Invariant: a byte of shared memory is accessed by one instruction of an asm block and never again, so that a result
//! computed from the registers is about the bytes that were stored, whatever another process writes in between. No
//! reference to shared memory exists, and the compiler sees no access to it.
//!
//! The asm blocks are opaque: the compiler cannot split, repeat or remove them, and an access whose page is gone runs
//! again after the [fault guard](crate::fault_guard) has put a page there. Stores past the cache are asm blocks too: the
//! intrinsics for them ask for a fence before the thread itself reads the bytes, which the processor does not.

use super::stream::{LINE_BYTES, StreamLine};
use std::arch::asm;
use std::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm_loadu_si128, _mm_storeu_si128, _mm256_loadu_si256, _mm256_storeu_si256,
    _mm512_loadu_si512, _mm512_storeu_si512,
};
use std::marker::PhantomData;

/// The kinds of memory at both ends of a pass.
pub(super) trait CopyRoute {
    /// True if the bytes are stored.
    const IS_COPY: bool;
    /// True if another process may write the source at any time.
    const IS_SOURCE_SHARED: bool;
    /// True if another process may access the target at any time.
    const IS_TARGET_SHARED: bool;
    /// True if registers are stored past the cache; words never are.
    const IS_PAST_CACHE: bool = false;
}

/// A pass that stores nothing.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReadRoute {}

/// A copy between two slices.
#[derive(Clone, Copy, Debug)]
pub(super) enum OwnRoute {}

/// A copy between two slices past the cache, to whole lines.
#[derive(Clone, Copy, Debug)]
pub(super) enum LineRoute {}

/// A copy from shared memory to a slice.
#[derive(Clone, Copy, Debug)]
pub(super) enum InRoute {}

/// A copy from a slice to shared memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum OutRoute {}

impl CopyRoute for ReadRoute {
    const IS_COPY: bool = false;
    const IS_SOURCE_SHARED: bool = false;
    const IS_TARGET_SHARED: bool = false;
}

impl CopyRoute for OwnRoute {
    const IS_COPY: bool = true;
    const IS_SOURCE_SHARED: bool = false;
    const IS_TARGET_SHARED: bool = false;
}

impl CopyRoute for LineRoute {
    const IS_COPY: bool = true;
    const IS_SOURCE_SHARED: bool = false;
    const IS_TARGET_SHARED: bool = false;
    const IS_PAST_CACHE: bool = true;
}

impl CopyRoute for InRoute {
    const IS_COPY: bool = true;
    const IS_SOURCE_SHARED: bool = true;
    const IS_TARGET_SHARED: bool = false;
}

impl CopyRoute for OutRoute {
    const IS_COPY: bool = true;
    const IS_SOURCE_SHARED: bool = false;
    const IS_TARGET_SHARED: bool = true;
}

/// The rest of a pass.
///
/// While it lives, `from` is readable for `left` bytes, and `to` writable for as many if the route copies. The ranges do
/// not overlap; one that is not shared is borrowed for `'a`, the target exclusively.
#[derive(Debug)]
pub(super) struct BytePass<'a, R> {
    to: *mut u8,
    from: *const u8,
    left: usize,
    borrow: PhantomData<(&'a mut [u8], R)>,
}

impl<'a> BytePass<'a, ReadRoute> {
    /// Begins a pass that only reads.
    #[inline]
    pub(super) fn over(bytes: &'a [u8]) -> Self {
        // Never written: the route does not copy.
        let to = std::ptr::null_mut();
        Self { to, from: bytes.as_ptr(), left: bytes.len(), borrow: PhantomData }
    }
}

impl<'a> BytePass<'a, OwnRoute> {
    /// Begins a copy between slices of one length.
    #[inline]
    pub(super) fn between(dst: &'a mut [u8], src: &'a [u8]) -> Self {
        assert!(dst.len() == src.len(), "a copy between slices of lengths that differ");
        Self { to: dst.as_mut_ptr(), from: src.as_ptr(), left: src.len(), borrow: PhantomData }
    }
}

impl<'a> BytePass<'a, LineRoute> {
    /// Begins a copy of whole lines past the cache.
    #[inline]
    pub(super) fn past_cache(lines: &'a mut [StreamLine], src: &'a [[u8; LINE_BYTES]]) -> Self {
        assert!(lines.len() == src.len(), "a copy between slices of lengths that differ");
        let (to, left) = (lines.as_mut_ptr().cast(), size_of_val(src));
        Self { to, from: src.as_ptr().cast(), left, borrow: PhantomData }
    }
}

impl<'a> BytePass<'a, InRoute> {
    /// Begins a copy from shared memory.
    ///
    /// # Safety
    /// For `'a`, `from` is readable for the length of `dst`, and that range and `dst` do not overlap.
    #[inline]
    pub(super) unsafe fn copy_in(dst: &'a mut [u8], from: *const u8) -> Self {
        Self { to: dst.as_mut_ptr(), from, left: dst.len(), borrow: PhantomData }
    }
}

impl<'a> BytePass<'a, OutRoute> {
    /// Begins a copy to shared memory.
    ///
    /// # Safety
    /// For `'a`, `to` is writable for the length of `src`, and that range and `src` do not overlap.
    #[inline]
    pub(super) unsafe fn copy_out(to: *mut u8, src: &'a [u8]) -> Self {
        Self { to, from: src.as_ptr(), left: src.len(), borrow: PhantomData }
    }
}

/// Defines a method that takes a wide register of the message: its name, feature and type, and for asm the class of the register
/// and the instructions that move it through the cache and store it past the cache; then the load and the store of private memory.
macro_rules! take_register {
    ($name:ident, $feature:literal, $register:ty, $class:ident, [$move:literal, $stream:literal], [$load:ident, $store:ident]) => {
        /// Takes the next bytes in one register, and stores them if the route copies.
        #[target_feature(enable = $feature)]
        #[inline]
        pub(super) fn $name(&mut self) -> $register {
            let (from, to) = self.advance(size_of::<$register>());
            let bytes: $register;
            if R::IS_SOURCE_SHARED {
                // SAFETY: bounds: `advance` found that many bytes at `from`. Alignment: the load needs none. Lifetime: `'a`.
                // Aliasing: no reference to shared memory exists, and asm may load what another process writes.
                unsafe {
                    asm!(
                        concat!($move, " {bytes}, [{from}]"),
                        bytes = lateout($class) bytes,
                        from = in(reg) from,
                        options(nostack, preserves_flags, readonly),
                    );
                }
            } else {
                // SAFETY: bounds: as above. Alignment: the load needs none. Lifetime and aliasing: borrowed for `'a`.
                bytes = unsafe { $load(from.cast()) };
            }
            if R::IS_TARGET_SHARED {
                // SAFETY: bounds: `advance` found that many bytes at `to`. Alignment: the store needs none. Lifetime: `'a`.
                // Aliasing: no reference to shared memory exists, and asm may store what another process accesses.
                unsafe {
                    asm!(
                        concat!($move, " [{to}], {bytes}"),
                        bytes = in($class) bytes,
                        to = in(reg) to,
                        options(nostack, preserves_flags),
                    );
                }
            } else if R::IS_PAST_CACHE {
                let is_aligned = to.addr().is_multiple_of(size_of::<$register>());
                assert!(is_aligned, "a store past the cache inside a register's width");
                // SAFETY: bounds: as above. Alignment: asserted. Lifetime and aliasing: borrowed exclusively for `'a`. This
                // thread sees the bytes at once, as the processor orders them; other threads see them behind a fence.
                unsafe {
                    asm!(
                        concat!($stream, " [{to}], {bytes}"),
                        bytes = in($class) bytes,
                        to = in(reg) to,
                        options(nostack, preserves_flags),
                    );
                }
            } else if R::IS_COPY {
                // SAFETY: bounds: as above. Alignment: the store needs none. Lifetime and aliasing: borrowed exclusively
                // for `'a`.
                unsafe { $store(to.cast(), bytes) };
            }
            bytes
        }
    };
}

/// Defines a method that takes a word of the message: its name and type, and for asm the class of the register, the form of
/// its name, and the width of the access.
macro_rules! take_word {
    ($name:ident, $word:ty, $class:ident, $form:literal, $pointer:literal) => {
        /// Takes the next bytes in one register, and stores them if the route copies.
        #[inline]
        pub(super) fn $name(&mut self) -> $word {
            let (from, to) = self.advance(size_of::<$word>());
            let word: $word;
            if R::IS_SOURCE_SHARED {
                // SAFETY: bounds: `advance` found that many bytes at `from`. Alignment: the load needs none. Lifetime:
                // `'a`. Aliasing: no reference to shared memory exists, and asm may load what another process writes.
                unsafe {
                    asm!(
                        concat!("mov {word", $form, "}, ", $pointer, " ptr [{from}]"),
                        word = lateout($class) word,
                        from = in(reg) from,
                        options(nostack, preserves_flags, readonly),
                    );
                }
            } else {
                // SAFETY: bounds: as above. Alignment: an unaligned load. Lifetime and aliasing: the bytes are borrowed
                // for `'a`.
                word = unsafe { from.cast::<$word>().read_unaligned() };
            }
            if R::IS_TARGET_SHARED {
                // SAFETY: bounds: `advance` found that many bytes at `to`. Alignment: the store needs none. Lifetime:
                // `'a`. Aliasing: no reference to shared memory exists, and asm may store what another process accesses.
                unsafe {
                    asm!(
                        concat!("mov ", $pointer, " ptr [{to}], {word", $form, "}"),
                        word = in($class) word,
                        to = in(reg) to,
                        options(nostack, preserves_flags),
                    );
                }
            } else if R::IS_COPY {
                // SAFETY: bounds: as above. Alignment: an unaligned store. Lifetime and aliasing: the bytes are borrowed
                // exclusively for `'a`.
                unsafe { to.cast::<$word>().write_unaligned(word) };
            }
            word
        }
    };
}

impl<R: CopyRoute> BytePass<'_, R> {
    /// Returns the number of bytes that are left.
    #[inline]
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Moves the front behind the next `bytes` bytes. Returns their places in the source and the target.
    #[inline]
    fn advance(&mut self, bytes: usize) -> (*const u8, *mut u8) {
        assert!(bytes <= self.left, "a kernel takes bytes behind its message");
        let places = (self.from, self.to);
        self.from = self.from.wrapping_add(bytes);
        if R::IS_COPY {
            self.to = self.to.wrapping_add(bytes);
        }
        self.left -= bytes;
        places
    }

    take_register!(
        take_512,
        "avx512f",
        __m512i,
        zmm_reg,
        ["vmovdqu64", "vmovntdq"],
        [_mm512_loadu_si512, _mm512_storeu_si512]
    );
    take_register!(
        take_256,
        "avx2",
        __m256i,
        ymm_reg,
        ["vmovdqu", "vmovntdq"],
        [_mm256_loadu_si256, _mm256_storeu_si256]
    );
    take_register!(
        take_128,
        "sse2",
        __m128i,
        xmm_reg,
        ["movdqu", "movntdq"],
        [_mm_loadu_si128, _mm_storeu_si128]
    );

    take_word!(take_u64, u64, reg, "", "qword");
    take_word!(take_u32, u32, reg, ":e", "dword");
    take_word!(take_u16, u16, reg, ":x", "word");
    take_word!(take_u8, u8, reg_byte, "", "byte");
}
