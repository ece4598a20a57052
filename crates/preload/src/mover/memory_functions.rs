//! The memory functions, under their names of the C library.
//!
//! Input: what a program passes. Output: what the C library would do. Up to 128 bytes a kernel that stands here, as short as
//! that of the C library; above that the C library's function, from a threshold on behind a prefault of absent pages, and from
//! another one on the kernels of this library that pass the cache by. Invariant: the entry points are written in instructions,
//! because they run before this library is relocated: they use no table of addresses and no other function of the C library, and
//! only `mempcpy` uses the stack.
//!
//! `memcpy` is `memmove`: programs that were linked against a C library before 2.14 rely on that.

use super::large_moves::{chk_fail, compare_large, fill_large, move_large};
use super::next_functions::{NEXT_MEMCMP, NEXT_MEMMOVE, NEXT_MEMSET};
use std::arch::naked_asm;
use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicUsize;

/// The length from which copies and fills are more than a call of the C library's function: they pass the cache by, or their
/// targets are prefaulted. Until the settings are read, no length has so many.
pub(super) static LARGE_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);
/// The length from which [`memcmp`] is done here.
pub(super) static COMPARE_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);

/// The body of `memmove`: all bytes of a short range are loaded before one is stored, so that ranges may overlap.
macro_rules! move_body {
    () => {
        naked_asm!(
            "endbr64",
            "mov rax, rdi",
            "cmp rdx, 16",
            "jb 20f",
            "cmp rdx, 32",
            "ja 30f",
            "movups xmm0, [rsi]",
            "movups xmm1, [rsi + rdx - 16]",
            "movups [rdi], xmm0",
            "movups [rdi + rdx - 16], xmm1",
            "ret",
            "20:",
            "cmp edx, 8",
            "jae 28f",
            "cmp edx, 4",
            "jae 24f",
            "cmp edx, 1",
            "jb 29f",
            "ja 22f",
            "movzx ecx, byte ptr [rsi]",
            "mov byte ptr [rdi], cl",
            "29:",
            "ret",
            "22:",
            "movzx ecx, word ptr [rsi]",
            "movzx r8d, word ptr [rsi + rdx - 2]",
            "mov word ptr [rdi], cx",
            "mov word ptr [rdi + rdx - 2], r8w",
            "ret",
            "24:",
            "mov ecx, dword ptr [rsi]",
            "mov r8d, dword ptr [rsi + rdx - 4]",
            "mov dword ptr [rdi], ecx",
            "mov dword ptr [rdi + rdx - 4], r8d",
            "ret",
            "28:",
            "mov rcx, qword ptr [rsi]",
            "mov r8, qword ptr [rsi + rdx - 8]",
            "mov qword ptr [rdi], rcx",
            "mov qword ptr [rdi + rdx - 8], r8",
            "ret",
            "30:",
            "cmp rdx, 64",
            "ja 40f",
            "movups xmm0, [rsi]",
            "movups xmm1, [rsi + 16]",
            "movups xmm2, [rsi + rdx - 32]",
            "movups xmm3, [rsi + rdx - 16]",
            "movups [rdi], xmm0",
            "movups [rdi + 16], xmm1",
            "movups [rdi + rdx - 32], xmm2",
            "movups [rdi + rdx - 16], xmm3",
            "ret",
            "40:",
            "cmp rdx, 128",
            "ja 50f",
            "movups xmm0, [rsi]",
            "movups xmm1, [rsi + 16]",
            "movups xmm2, [rsi + 32]",
            "movups xmm3, [rsi + 48]",
            "movups xmm4, [rsi + rdx - 64]",
            "movups xmm5, [rsi + rdx - 48]",
            "movups xmm6, [rsi + rdx - 32]",
            "movups xmm7, [rsi + rdx - 16]",
            "movups [rdi], xmm0",
            "movups [rdi + 16], xmm1",
            "movups [rdi + 32], xmm2",
            "movups [rdi + 48], xmm3",
            "movups [rdi + rdx - 64], xmm4",
            "movups [rdi + rdx - 48], xmm5",
            "movups [rdi + rdx - 32], xmm6",
            "movups [rdi + rdx - 16], xmm7",
            "ret",
            "50:",
            "cmp rdx, qword ptr [rip + {large_bytes}]",
            "jae {large}",
            "mov r11, qword ptr [rip + {next}]",
            "test r11, r11",
            "jz {plain}",
            "jmp r11",
            large_bytes = sym LARGE_BYTES,
            large = sym move_large,
            next = sym NEXT_MEMMOVE,
            plain = sym super::kernels::move_plain,
        )
    };
}

/// Copies bytes, also between ranges that overlap. Returns `to`.
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn memcpy(to: *mut c_void, from: *const c_void, bytes: usize) -> *mut c_void {
    move_body!()
}

/// Copies bytes between ranges that may overlap. Returns `to`.
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn memmove(to: *mut c_void, from: *const c_void, bytes: usize) -> *mut c_void {
    move_body!()
}

/// Copies bytes as [`memcpy`] does, for a program that was compiled with checks of its buffers. Ends the program, as the C
/// library does, if the target has fewer than `bytes` bytes.
///
/// # Safety
/// As for [`memcpy`].
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn __memcpy_chk(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    to_bytes: usize,
) -> *mut c_void {
    naked_asm!(
        "endbr64",
        "cmp rcx, rdx",
        "jae {copy}",
        "jmp {fail}",
        copy = sym move_checked,
        fail = sym chk_fail,
    )
}

/// Copies bytes as [`memmove`] does, checked as [`__memcpy_chk`] is.
///
/// # Safety
/// As for [`memmove`].
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn __memmove_chk(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    to_bytes: usize,
) -> *mut c_void {
    naked_asm!(
        "endbr64",
        "cmp rcx, rdx",
        "jae {copy}",
        "jmp {fail}",
        copy = sym move_checked,
        fail = sym chk_fail,
    )
}

/// Copies as [`memmove`] does, under a name that no other library can take.
#[unsafe(naked)]
unsafe extern "C" fn move_checked(to: *mut c_void, from: *const c_void, bytes: usize) -> *mut c_void {
    move_body!()
}

/// The body of `memset`.
macro_rules! fill_body {
    () => {
        naked_asm!(
            "endbr64",
            "mov rax, rdi",
            "movzx ecx, sil",
            "mov r8, 0x0101010101010101",
            "imul r8, rcx",
            "cmp rdx, 16",
            "jb 20f",
            "movq xmm0, r8",
            "punpcklqdq xmm0, xmm0",
            "cmp rdx, 32",
            "ja 30f",
            "movups [rdi], xmm0",
            "movups [rdi + rdx - 16], xmm0",
            "ret",
            "20:",
            "cmp edx, 8",
            "jae 28f",
            "cmp edx, 4",
            "jae 24f",
            "cmp edx, 1",
            "jb 29f",
            "ja 22f",
            "mov byte ptr [rdi], r8b",
            "29:",
            "ret",
            "22:",
            "mov word ptr [rdi], r8w",
            "mov word ptr [rdi + rdx - 2], r8w",
            "ret",
            "24:",
            "mov dword ptr [rdi], r8d",
            "mov dword ptr [rdi + rdx - 4], r8d",
            "ret",
            "28:",
            "mov qword ptr [rdi], r8",
            "mov qword ptr [rdi + rdx - 8], r8",
            "ret",
            "30:",
            "cmp rdx, 64",
            "ja 40f",
            "movups [rdi], xmm0",
            "movups [rdi + 16], xmm0",
            "movups [rdi + rdx - 32], xmm0",
            "movups [rdi + rdx - 16], xmm0",
            "ret",
            "40:",
            "cmp rdx, 128",
            "ja 50f",
            "movups [rdi], xmm0",
            "movups [rdi + 16], xmm0",
            "movups [rdi + 32], xmm0",
            "movups [rdi + 48], xmm0",
            "movups [rdi + rdx - 64], xmm0",
            "movups [rdi + rdx - 48], xmm0",
            "movups [rdi + rdx - 32], xmm0",
            "movups [rdi + rdx - 16], xmm0",
            "ret",
            "50:",
            "cmp rdx, qword ptr [rip + {large_bytes}]",
            "jae {large}",
            "mov r11, qword ptr [rip + {next}]",
            "test r11, r11",
            "jz {plain}",
            "jmp r11",
            large_bytes = sym LARGE_BYTES,
            large = sym fill_large,
            next = sym NEXT_MEMSET,
            plain = sym super::kernels::fill_plain,
        )
    };
}

/// Fills a range with the low byte of `value`. Returns `to`.
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn memset(to: *mut c_void, value: c_int, bytes: usize) -> *mut c_void {
    fill_body!()
}

/// Fills a range as [`memset`] does, checked as [`__memcpy_chk`] is.
///
/// # Safety
/// As for [`memset`].
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn __memset_chk(
    to: *mut c_void,
    value: c_int,
    bytes: usize,
    to_bytes: usize,
) -> *mut c_void {
    naked_asm!(
        "endbr64",
        "cmp rcx, rdx",
        "jae {fill}",
        "jmp {fail}",
        fill = sym fill_checked,
        fail = sym chk_fail,
    )
}

/// Fills as [`memset`] does, under a name that no other library can take.
#[unsafe(naked)]
unsafe extern "C" fn fill_checked(to: *mut c_void, value: c_int, bytes: usize) -> *mut c_void {
    fill_body!()
}

/// The body of `memcmp`.
macro_rules! compare_body {
    () => {
        naked_asm!(
            "endbr64",
            "cmp rdx, qword ptr [rip + {compare_bytes}]",
            "jae {large}",
            "mov r11, qword ptr [rip + {next}]",
            "test r11, r11",
            "jz {plain}",
            "jmp r11",
            compare_bytes = sym COMPARE_BYTES,
            large = sym compare_large,
            next = sym NEXT_MEMCMP,
            plain = sym super::kernels::compare_plain,
        )
    };
}

/// Compares two ranges. Returns a number below, at or above 0, as the first bytes that differ compare.
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn memcmp(one: *const c_void, other: *const c_void, bytes: usize) -> c_int {
    compare_body!()
}

/// Compares two ranges. Returns 0 if they are alike, as [`memcmp`] does.
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn bcmp(one: *const c_void, other: *const c_void, bytes: usize) -> c_int {
    compare_body!()
}

/// Copies bytes as [`memcpy`] does. Returns the address behind the copy.
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn mempcpy(to: *mut c_void, from: *const c_void, bytes: usize) -> *mut c_void {
    naked_asm!(
        "endbr64",
        "lea rax, [rdi + rdx]",
        // The only use of the stack: the copy leaves by another function's return.
        "push rax",
        "call {copy}",
        "pop rax",
        "ret",
        copy = sym move_checked,
    )
}

/// Copies bytes as [`mempcpy`] does, checked as [`__memcpy_chk`] is.
///
/// # Safety
/// As for [`mempcpy`].
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn __mempcpy_chk(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    to_bytes: usize,
) -> *mut c_void {
    naked_asm!(
        "endbr64",
        "cmp rcx, rdx",
        "jb {fail}",
        "lea rax, [rdi + rdx]",
        "push rax",
        "call {copy}",
        "pop rax",
        "ret",
        copy = sym move_checked,
        fail = sym chk_fail,
    )
}
