//! Copies from and to shared memory, which another process may write during the copy.
//!
//! Input: an address in shared memory, and bytes of this process. Output: the copied bytes, and the CRC-32C of exactly
//! those. Invariant: no reference into shared memory exists and the compiler sees no access to it; a CRC is computed from
//! the bytes of this process, never from a second read of the shared ones.

/// Bytes that are copied before their CRC is computed: they are then still in the nearest cache.
const CHUNK_BYTES: usize = 4_096;

/// Copies bytes while another process may write or read one side. The copied bytes may then be a mixture of old and
/// new; nothing else can go wrong, because no ordinary load or store accesses them.
///
/// # Safety
/// `from` is readable and `to` writable for `bytes` bytes, and the two ranges do not overlap.
#[inline]
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn copy_untrusted(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: bounds: the caller promises both ranges. Alignment: the instruction needs none. Lifetime: the caller's,
    // for the call. Aliasing: the ranges are apart; the instruction is opaque to the compiler, which therefore assumes
    // nothing about either range across it, and the direction flag is clear at every asm block by the ABI.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies bytes while another process may write or read one side. The copied bytes may then be a mixture of old and
/// new; each is loaded and stored once, by volatile access.
///
/// # Safety
/// `from` is readable and `to` writable for `bytes` bytes, and the two ranges do not overlap.
#[inline]
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn copy_untrusted(to: *mut u8, from: *const u8, bytes: usize) {
    for place in 0..bytes {
        // SAFETY: bounds: `place` is below `bytes`, for which the caller promises `from`. Alignment: of a byte.
        // Lifetime: the caller's, for the call. Aliasing: no reference is made; volatile, since the other side may
        // write.
        let byte = unsafe { from.wrapping_add(place).read_volatile() };
        // SAFETY: bounds: `place` is below `bytes`, for which the caller promises `to`. Alignment: of a byte. Lifetime:
        // the caller's, for the call. Aliasing: no reference is made; volatile, since the other side may access it.
        unsafe { to.wrapping_add(place).write_volatile(byte) };
    }
}

/// Copies from shared memory chunk by chunk, and continues the state over each copied chunk by `crc`.
///
/// # Safety
/// `from` is readable for the length of `dst`, and the two ranges do not overlap.
#[inline]
pub(super) unsafe fn copy_in_apart(
    crc: impl Fn(u32, &[u8]) -> u32,
    mut state: u32,
    dst: &mut [u8],
    mut from: *const u8,
) -> u32 {
    for chunk in dst.chunks_mut(CHUNK_BYTES) {
        // SAFETY: bounds: the chunks together are `dst`, for whose length the caller promises `from`. Alignment: the
        // copy needs none. Lifetime: the caller's, for the call. Aliasing: `chunk` is borrowed exclusively and apart
        // from the source; concurrent writes to the source are what `copy_untrusted` is for.
        unsafe { copy_untrusted(chunk.as_mut_ptr(), from, chunk.len()) };
        from = from.wrapping_add(chunk.len());
        state = crc(state, chunk);
    }
    state
}

/// Continues the state over each chunk by `crc`, and copies it to shared memory.
///
/// # Safety
/// `to` is writable for the length of `src`, and the two ranges do not overlap.
#[inline]
pub(super) unsafe fn copy_out_apart(
    crc: impl Fn(u32, &[u8]) -> u32,
    mut state: u32,
    mut to: *mut u8,
    src: &[u8],
) -> u32 {
    for chunk in src.chunks(CHUNK_BYTES) {
        state = crc(state, chunk);
        // SAFETY: bounds: the chunks together are `src`, for whose length the caller promises `to`. Alignment: the copy
        // needs none. Lifetime: the caller's, for the call. Aliasing: `chunk` is apart from the target; concurrent
        // accesses to the target are what `copy_untrusted` is for.
        unsafe { copy_untrusted(to, chunk.as_ptr(), chunk.len()) };
        to = to.wrapping_add(chunk.len());
    }
    state
}

#[cfg(test)]
mod tests {
    use super::super::dispatch::available;
    use super::super::portable;
    use crate::copy::guarded_pages::{GuardedEnd, GuardedPages};
    use crate::shared_memory::SharedMemory;
    use std::sync::atomic::{AtomicBool, Ordering};

    const LONG: [usize; 11] = [511, 512, 513, 575, 576, 767, 1_023, 1_024, 4_095, 4_097, 70_001];

    fn noise(bytes: usize, seed: u64) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(seed);
        (0..bytes).map(|_| random.u8(..)).collect()
    }

    /// Returns what a loop over the bytes copies and computes.
    fn byte_loop(state: u32, bytes: &[u8]) -> (u32, Vec<u8>) {
        let mut copied = Vec::new();
        let mut crc = state;
        for byte in bytes {
            crc = portable::crc(crc, &[*byte]);
            copied.push(*byte);
        }
        (crc, copied)
    }

    #[test]
    fn shared_copies_match_byte_loop_at_every_length_and_alignment() {
        let bytes = noise(70_200, 5);
        for length in (0..=300).chain(LONG) {
            for offset in 0..64 {
                let from = &bytes[offset..offset + length];
                let (crc, copied) = byte_loop(7, from);
                // Each alignment of the target meets each of the source at some length.
                let start = 1 + (offset * 5 + length) % 64;
                for kernel in available() {
                    for is_in in [true, false] {
                        let mut dst = vec![0xA5; start + length + 1];
                        let room = &mut dst[start..start + length];
                        let state = if is_in {
                            // SAFETY: the source has the length of the target, and is apart from it.
                            unsafe { kernel.copy_in_crc(7, room, from.as_ptr()) }
                        } else {
                            // SAFETY: the target has the length of the source, and is apart from it.
                            unsafe { kernel.copy_out_crc(7, room.as_mut_ptr(), from) }
                        };
                        assert_eq!(state, crc, "{} {length} {offset} {is_in}", kernel.name);
                        assert!(dst[start..start + length] == copied, "{} {length} {offset}", kernel.name);
                        assert!(dst[..start].iter().all(|&byte| byte == 0xA5), "{} {length}", kernel.name);
                        assert_eq!(dst[start + length], 0xA5, "{} {length} {offset}", kernel.name);
                    }
                }
                if length > 300 && offset > 8 {
                    break;
                }
            }
        }
    }

    #[test]
    fn shared_copies_touch_nothing_beside_their_ranges() {
        use GuardedEnd::{Back, Front};
        let (mut shared, mut own) = (GuardedPages::new(2), GuardedPages::new(2));
        for length in (0..=300).chain([511, 512, 513, 767, 1_024, 4_095, 4_097, 8_192]) {
            let bytes = noise(length, length as u64);
            let expected = portable::crc(1, &bytes);
            for (shared_end, own_end) in [(Front, Front), (Front, Back), (Back, Front), (Back, Back)] {
                for kernel in available() {
                    shared.bytes_at(shared_end, length).copy_from_slice(&bytes);
                    own.bytes_at(own_end, length).fill(0);
                    let source = shared.bytes_at(shared_end, length).as_ptr();
                    // SAFETY: both ranges have `length` bytes, in mappings of their own.
                    let state = unsafe { kernel.copy_in_crc(1, own.bytes_at(own_end, length), source) };
                    assert_eq!(state, expected, "{} {length}", kernel.name);
                    assert!(*own.bytes_at(own_end, length) == bytes, "{} {length}", kernel.name);
                    shared.bytes_at(shared_end, length).fill(0);
                    let target = shared.bytes_at(shared_end, length).as_mut_ptr();
                    // SAFETY: as above.
                    let state = unsafe { kernel.copy_out_crc(1, target, own.bytes_at(own_end, length)) };
                    assert_eq!(state, expected, "{} {length}", kernel.name);
                    assert!(*shared.bytes_at(shared_end, length) == bytes, "{} {length}", kernel.name);
                }
            }
        }
    }

    #[test]
    fn checksum_is_that_of_the_copy_while_a_client_writes_the_source() {
        let region = SharedMemory::anonymous(16_384).unwrap();
        let client = region.clone();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = fastrand::Rng::with_seed(6);
                while !is_done.load(Ordering::Relaxed) {
                    let at = random.usize(..16_384 - 64);
                    client.copy_out(at, &random.u64(..).to_le_bytes()).unwrap();
                }
            });
            let _end = SetOnDrop(&is_done);
            let mut changed = 0;
            for round in 0..100_000 {
                for length in [63, 300, 4_096, 16_384] {
                    let kernels = available();
                    let kernel = kernels[round % kernels.len()];
                    let (mut own, mut again) = (vec![0; length], vec![0; length]);
                    let source = std::ptr::without_provenance(region.address());
                    // SAFETY: the region has as many bytes as the longest slice, which is apart from it.
                    let state = unsafe { kernel.copy_in_crc(3, &mut own, source) };
                    assert_eq!(state, portable::crc(3, &own), "{} {length}", kernel.name);
                    region.copy_in(0, &mut again).unwrap();
                    changed += usize::from(own != again);
                }
                if changed > 2_000 {
                    break;
                }
            }
        });
    }

    /// Ends the client's thread, also when a check fails.
    struct SetOnDrop<'a>(&'a AtomicBool);

    impl Drop for SetOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}
