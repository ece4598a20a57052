//! Instructions of x86-64 that store whole lines and write lines back.
//!
//! Input: an address that is aligned like a line, and lines. Output: the bytes there, or their write-back under way.
//! Invariant: a kernel is reachable only through [`write_back_kernels`] and [`line_kernels`], on a processor that has its
//! instructions. Every loop is one asm block, so the compiler sees no access that it could divide, repeat or remove.

use super::lines::LINE_BYTES;
use super::{LinesKernel, WriteBackInstruction, WriteBackKernel};
use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, __get_cpuid_max};

/// Bit of `CLFSH` in EDX of leaf 1.
const CLFLUSH_BIT: u32 = 1 << 19;
/// Bit of `CLFLUSHOPT` in EBX of leaf 7.
const CLFLUSHOPT_BIT: u32 = 1 << 23;
/// Bit of `CLWB` in EBX of leaf 7.
const CLWB_BIT: u32 = 1 << 24;

macro_rules! write_back {
    ($name:ident, $mnemonic:literal) => {
        /// Writes `lines` lines back, from `first` on.
        ///
        /// # Safety
        /// The lines are mapped, `first` is the start of one, and the processor has the instruction.
        unsafe fn $name(first: *const u8, lines: usize) {
            if lines == 0 {
                return;
            }
            // SAFETY: bounds and lifetime: the caller promises the lines. Alignment: the instruction needs none.
            // Aliasing: no byte changes.
            unsafe {
                asm!(
                    "2:",
                    concat!($mnemonic, " [{at}]"),
                    "add {at}, 64",
                    "dec {left}",
                    "jnz 2b",
                    at = inout(reg) first => _,
                    left = inout(reg) lines => _,
                    options(nostack),
                );
            }
        }
    };
}

write_back!(write_back_clwb, "clwb");
write_back!(write_back_clflushopt, "clflushopt");
write_back!(write_back_clflush, "clflush");

/// Defines a kernel that copies lines by registers of one width: `$load` and `$store` move a register, `$offset` bytes
/// from the start of the line.
macro_rules! copy_lines {
    ($name:ident, $feature:literal, $class:ident, $load:literal, $store:literal, [$($offset:literal),+]) => {
        /// Stores the lines from `to` on.
        ///
        /// # Safety
        /// `to` is writable for the lines and is the start of one, the two ranges do not overlap, and the processor has
        /// the feature.
        #[target_feature(enable = $feature)]
        unsafe fn $name(to: *mut u8, lines: &[[u8; LINE_BYTES]]) {
            if lines.is_empty() {
                return;
            }
            // SAFETY: bounds: the loop runs once for each line. Alignment: the loads need none, the caller promises that
            // of the stores. Lifetime: the borrow of `lines`, and the caller's promise. Aliasing: the ranges are apart;
            // asm may store what another thread accesses.
            unsafe {
                asm!(
                    "2:",
                    $(
                        concat!($load, " {bytes}, [{from} + ", $offset, "]"),
                        concat!($store, " [{to} + ", $offset, "], {bytes}"),
                    )+
                    "add {from}, 64",
                    "add {to}, 64",
                    "dec {left}",
                    "jnz 2b",
                    bytes = out($class) _,
                    from = inout(reg) lines.as_ptr() => _,
                    to = inout(reg) to => _,
                    left = inout(reg) lines.len() => _,
                    options(nostack),
                );
            }
        }
    };
}

copy_lines!(store_sse2, "sse2", xmm_reg, "movdqu", "movdqa", [0, 16, 32, 48]);
copy_lines!(stream_sse2, "sse2", xmm_reg, "movdqu", "movntdq", [0, 16, 32, 48]);
copy_lines!(store_avx, "avx", ymm_reg, "vmovdqu", "vmovdqa", [0, 32]);
copy_lines!(stream_avx, "avx", ymm_reg, "vmovdqu", "vmovntdq", [0, 32]);
copy_lines!(store_avx512, "avx512f", zmm_reg, "vmovdqu64", "vmovdqa64", [0]);
copy_lines!(stream_avx512, "avx512f", zmm_reg, "vmovdqu64", "vmovntdq", [0]);

/// Returns the instructions that this processor has; the best one is the last.
pub(super) fn write_back_kernels() -> Vec<(WriteBackInstruction, WriteBackKernel)> {
    let mut found: Vec<(WriteBackInstruction, WriteBackKernel)> = Vec::new();
    let (leaf_max, _) = __get_cpuid_max(0);
    if leaf_max >= 1 && __cpuid(1).edx & CLFLUSH_BIT != 0 {
        found.push((WriteBackInstruction::Clflush, write_back_clflush));
    }
    let extended = if leaf_max >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
    if extended & CLFLUSHOPT_BIT != 0 {
        found.push((WriteBackInstruction::Clflushopt, write_back_clflushopt));
    }
    if extended & CLWB_BIT != 0 {
        found.push((WriteBackInstruction::Clwb, write_back_clwb));
    }
    found
}

/// Returns the kernels that this processor runs, each with its name: through the cache, and past it. The widest is the
/// last.
pub(super) fn line_kernels() -> Vec<(&'static str, LinesKernel, LinesKernel)> {
    use std::arch::is_x86_feature_detected as has;
    let mut found: Vec<(&'static str, LinesKernel, LinesKernel)> = vec![("sse2", store_sse2, stream_sse2)];
    if has!("avx") {
        found.push(("avx", store_avx, stream_avx));
    }
    if has!("avx512f") {
        found.push(("avx512f", store_avx512, stream_avx512));
    }
    found
}
