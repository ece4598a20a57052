//! The kernels behind the memory functions.
//!
//! Input: ranges of a program. Output: copied, filled or compared bytes. Invariant: each kernel is written in instructions
//! that every x86-64 processor has, calls nothing and uses no stack, so that the compiler cannot turn a loop of it into a
//! call of the function that it stands for.

use std::arch::naked_asm;

/// Copies bytes between ranges that may overlap, and returns `to`: for the time before the C library's function is known.
///
/// # Safety
/// As for `memmove`.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn move_plain(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    naked_asm!(
        "mov rax, rdi",
        "mov rcx, rdx",
        "mov r8, rdi",
        "sub r8, rsi",
        // A target that begins inside the source is written from its end.
        "cmp r8, rdx",
        "jb 2f",
        "rep movsb",
        "ret",
        "2:",
        "lea rsi, [rsi + rdx - 1]",
        "lea rdi, [rdi + rdx - 1]",
        "std",
        "rep movsb",
        "cld",
        "ret",
    )
}

/// Fills a range, and returns `to`: for the time before the C library's function is known.
///
/// # Safety
/// As for `memset`.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn fill_plain(to: *mut u8, value: i32, bytes: usize) -> *mut u8 {
    naked_asm!("mov r9, rdi", "mov eax, esi", "mov rcx, rdx", "rep stosb", "mov rax, r9", "ret",)
}

/// Compares two ranges: for the time before the C library's function is known, and behind the blocks of
/// [`equal_blocks`].
///
/// # Safety
/// As for `memcmp`.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn compare_plain(one: *const u8, other: *const u8, bytes: usize) -> i32 {
    naked_asm!(
        "mov rcx, rdx",
        // Sets the flag of equality, which no byte changes if there is none.
        "xor eax, eax",
        "repe cmpsb",
        "je 2f",
        "movzx eax, byte ptr [rdi - 1]",
        "movzx ecx, byte ptr [rsi - 1]",
        "sub eax, ecx",
        "2:",
        "ret",
    )
}

/// Copies bytes past the cache, from the lowest address on, and fences the stores.
///
/// # Safety
/// `to` is writable and `from` readable for `bytes` bytes, at least 64, and the target does not begin inside the source.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn move_streaming(to: *mut u8, from: *const u8, bytes: usize) {
    naked_asm!(
        "mov rcx, rdi",
        "neg rcx",
        "and ecx, 63",
        "sub rdx, rcx",
        "rep movsb",
        "mov rcx, rdx",
        "shr rcx, 6",
        "jz 3f",
        "2:",
        "prefetchnta byte ptr [rsi + 1024]",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + 32]",
        "movups xmm3, [rsi + 48]",
        "movntps [rdi], xmm0",
        "movntps [rdi + 16], xmm1",
        "movntps [rdi + 32], xmm2",
        "movntps [rdi + 48], xmm3",
        "add rsi, 64",
        "add rdi, 64",
        "dec rcx",
        "jnz 2b",
        "3:",
        "mov ecx, edx",
        "and ecx, 63",
        "rep movsb",
        "sfence",
        "ret",
    )
}

/// Fills a range past the cache with 8 bytes again and again, and fences the stores.
///
/// # Safety
/// `to` is writable for `bytes` bytes, at least 64; all bytes of `pattern` are alike.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn fill_streaming(to: *mut u8, pattern: u64, bytes: usize) {
    naked_asm!(
        "mov rax, rsi",
        "movq xmm0, rsi",
        "punpcklqdq xmm0, xmm0",
        "mov rcx, rdi",
        "neg rcx",
        "and ecx, 63",
        "sub rdx, rcx",
        "rep stosb",
        "mov rcx, rdx",
        "shr rcx, 6",
        "jz 3f",
        "2:",
        "movntps [rdi], xmm0",
        "movntps [rdi + 16], xmm0",
        "movntps [rdi + 32], xmm0",
        "movntps [rdi + 48], xmm0",
        "add rdi, 64",
        "dec rcx",
        "jnz 2b",
        "3:",
        "mov ecx, edx",
        "and ecx, 63",
        "rep stosb",
        "sfence",
        "ret",
    )
}

/// Returns the number of blocks of 64 bytes in which two ranges are alike, before the first one that differs.
///
/// # Safety
/// Both ranges are readable for `blocks` blocks.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn equal_blocks(one: *const u8, other: *const u8, blocks: usize) -> usize {
    naked_asm!(
        "xor eax, eax",
        "test rdx, rdx",
        "jz 3f",
        "2:",
        "prefetcht0 byte ptr [rdi + 1024]",
        "prefetcht0 byte ptr [rsi + 1024]",
        "movdqu xmm0, [rdi]",
        "movdqu xmm4, [rsi]",
        "pcmpeqb xmm0, xmm4",
        "movdqu xmm1, [rdi + 16]",
        "movdqu xmm4, [rsi + 16]",
        "pcmpeqb xmm1, xmm4",
        "movdqu xmm2, [rdi + 32]",
        "movdqu xmm4, [rsi + 32]",
        "pcmpeqb xmm2, xmm4",
        "movdqu xmm3, [rdi + 48]",
        "movdqu xmm4, [rsi + 48]",
        "pcmpeqb xmm3, xmm4",
        "pand xmm0, xmm1",
        "pand xmm2, xmm3",
        "pand xmm0, xmm2",
        "pmovmskb ecx, xmm0",
        "cmp ecx, 0xffff",
        "jne 3f",
        "add rdi, 64",
        "add rsi, 64",
        "inc rax",
        "cmp rax, rdx",
        "jb 2b",
        "3:",
        "ret",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(bytes: usize, seed: u64) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(seed);
        (0..bytes).map(|_| random.u8(..)).collect()
    }

    /// A kernel that copies between ranges of one buffer.
    type MoveKernel = unsafe extern "C" fn(*mut u8, *const u8, usize) -> *mut u8;

    unsafe extern "C" fn stream(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
        // SAFETY: the caller promises the same.
        unsafe { move_streaming(to, from, bytes) };
        to
    }

    /// Copies between two places of one buffer, and compares with a loop over the bytes.
    fn check_move(kernel: MoveKernel, from: usize, to: usize, bytes: usize) {
        let mut buffer = noise(900, 3);
        let mut expected = buffer.clone();
        let copied: Vec<u8> = buffer[from..from + bytes].to_vec();
        for (at, byte) in copied.into_iter().enumerate() {
            expected[to + at] = byte;
        }
        let start = buffer.as_mut_ptr();
        let target = start.wrapping_add(to);
        // SAFETY: both ranges lie in the buffer.
        let returned = unsafe { kernel(target, start.wrapping_add(from), bytes) };
        assert_eq!(returned, target);
        assert!(buffer == expected, "{bytes} bytes from {from} to {to}");
    }

    #[test]
    fn plain_moves_match_a_byte_loop_at_every_overlap() {
        for bytes in (0..70).chain([128, 255, 300]) {
            for (from, to) in [(0, 400), (400, 0), (200, 200), (200, 201), (201, 200), (200, 264), (264, 200)]
            {
                check_move(move_plain, from, to, bytes);
            }
        }
    }

    #[test]
    fn streaming_moves_match_a_byte_loop_at_every_alignment() {
        for bytes in [64, 65, 127, 128, 129, 191, 300] {
            for from in 0..64 {
                for to in (400..464).step_by(7).chain([400]) {
                    check_move(stream, from, to, bytes);
                }
            }
        }
    }

    #[test]
    fn fills_match_a_byte_loop_and_touch_nothing_else() {
        for bytes in [64, 65, 127, 128, 129, 200, 511] {
            for at in 64..130 {
                for is_streaming in [false, true] {
                    let mut buffer = vec![0x11; 800];
                    let to = buffer[at..].as_mut_ptr();
                    if is_streaming {
                        // SAFETY: the range lies in the buffer.
                        unsafe { fill_streaming(to, 0xA7A7_A7A7_A7A7_A7A7, bytes) };
                    } else {
                        // SAFETY: the range lies in the buffer.
                        let returned = unsafe { fill_plain(to, 0x7FA7, bytes) };
                        assert_eq!(returned, to);
                    }
                    for (place, byte) in buffer.iter().enumerate() {
                        let expected = if (at..at + bytes).contains(&place) { 0xA7 } else { 0x11 };
                        assert_eq!(*byte, expected, "{bytes} bytes at {at}, byte {place}");
                    }
                }
            }
        }
    }

    #[test]
    fn comparisons_find_the_first_byte_that_differs() {
        let one = noise(1_000, 4);
        for at in (0..1_000).step_by(13) {
            for (change, sign) in [(1_u8, -1), (255, 1)] {
                let mut other = one.clone();
                other[at] = other[at].wrapping_add(change);
                let sign = if other[at] > one[at] { -1 } else { sign.max(1) };
                // SAFETY: both have 15 blocks.
                let blocks = unsafe { equal_blocks(one.as_ptr(), other.as_ptr(), 15) };
                assert_eq!(blocks, (at / 64).min(15));
                // SAFETY: both have 1,000 bytes.
                let found = unsafe { compare_plain(one.as_ptr(), other.as_ptr(), 1_000) };
                assert_eq!(found.signum(), sign, "byte {at}");
                // SAFETY: both have so many bytes.
                assert_eq!(unsafe { compare_plain(one.as_ptr(), other.as_ptr(), at) }, 0);
            }
        }
        // SAFETY: no block and no byte is read.
        assert_eq!(unsafe { equal_blocks(one.as_ptr(), std::ptr::null(), 0) }, 0);
    }
}
