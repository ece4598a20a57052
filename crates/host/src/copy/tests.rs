//! Tests of every kernel this CPU can run against the bitwise definition of the CRC and against a plain copy.

mod bounds;

use super::dispatch::{KernelTable, available};
use super::fold::POLYNOMIAL;
use super::*;

/// Computes the CRC by its definition, one bit at a time.
fn bitwise(seed: u32, bytes: &[u8]) -> u32 {
    let mut state = !seed;
    for &byte in bytes {
        state ^= u32::from(byte);
        for _ in 0..8 {
            state = if state & 1 == 1 { (state >> 1) ^ POLYNOMIAL } else { state >> 1 };
        }
    }
    !state
}

fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..bytes).map(|_| random.u8(..)).collect()
}

fn crc(kernel: &KernelTable, seed: u32, bytes: &[u8]) -> u32 {
    !kernel.crc(!seed, bytes)
}

#[test]
fn kernels_match_known_vectors() {
    for kernel in available() {
        assert_eq!(crc(kernel, 0, b"123456789"), 0xE306_9283, "{}", kernel.name);
        assert_eq!(crc(kernel, 0, &[0; 32]), 0x8A91_36AA, "{}", kernel.name);
        assert_eq!(crc(kernel, 0, &[0xFF; 32]), 0x62A8_AB43, "{}", kernel.name);
        let rising: Vec<u8> = (0..32).collect();
        assert_eq!(crc(kernel, 0, &rising), 0x46DD_794E, "{}", kernel.name);
        assert_eq!(crc(kernel, 7, b""), 7, "{}", kernel.name);
    }
}

#[test]
fn kernels_match_bitwise_crc_at_every_length_and_alignment() {
    let bytes = noise(700, 1);
    for length in 0..=600 {
        for offset in [0, 1, 3, 8, 17, 63] {
            let part = &bytes[offset..offset + length];
            let expected = bitwise(0x1234_5678, part);
            for kernel in available() {
                assert_eq!(crc(kernel, 0x1234_5678, part), expected, "{} {length} {offset}", kernel.name);
            }
        }
    }
}

#[test]
fn joined_crc_is_that_of_both_runs() {
    let bytes = noise(70_000, 3);
    for first in [0, 1, 44, 4_096] {
        for second in [0, 1, 15, 16, 255, 4_096, 65_537] {
            let (left, right) = (&bytes[..first], &bytes[first..first + second]);
            let joined = join_crc32c(crc32c(0, left), crc32c(0, right), second);
            assert_eq!(joined, bitwise(0, &bytes[..first + second]), "{first} and {second} bytes");
            for length in [CrcLength::of(second), CrcLength::new(second)] {
                let joined = length.join(crc32c(0, left), crc32c(0, right));
                assert_eq!(joined, bitwise(0, &bytes[..first + second]), "{first} and {second} bytes");
            }
        }
    }
}

#[test]
fn flipped_bits_of_the_first_bytes_flip_as_much_of_the_crc_as_is_said() {
    let mut bytes = noise(5_000, 4);
    for length in (4..200).chain([4_032, 4_095, 4_096, 5_000]) {
        let before = bitwise(7, &bytes[..length]);
        for bits in [1, 0x8000_0000, 0x9B34_0C71_u32] {
            bits.to_le_bytes().iter().zip(&mut bytes).for_each(|(bits, byte)| *byte ^= bits);
            let after = bitwise(7, &bytes[..length]);
            assert_eq!(before ^ after, shift_crc32c(bits, length), "{bits:x} of {length} bytes");
            bits.to_le_bytes().iter().zip(&mut bytes).for_each(|(bits, byte)| *byte ^= bits);
        }
    }
}

#[test]
fn every_product_of_remainders_is_the_one_by_definition() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let edges = [0, 1, POLYNOMIAL, 1 << 31, u32::MAX];
    let some = (0..1_000).map(|_| (random.u32(..), random.u32(..)));
    let all = edges.iter().flat_map(|left| edges.map(|right| (*left, right))).chain(some);
    for (left, right) in all {
        for kernel in available() {
            let expected = fold::product(left, right);
            assert_eq!(
                kernel.product(left, right),
                expected,
                "{} {left:x} {right:x}, seed {seed}",
                kernel.name
            );
        }
    }
}

#[test]
fn lengths_are_the_same_at_run_time_as_at_compile_time() {
    for bytes in (0..5_000).chain([1 << 18, (1 << 18) - 1, 1 << 30, usize::MAX]) {
        let (run, compile) = (CrcLength::new(bytes), CrcLength::of(bytes));
        assert_eq!(run.join(0x1357_9BDF, 0), compile.join(0x1357_9BDF, 0), "{bytes} bytes");
    }
}

#[test]
fn fused_copy_writes_exactly_the_destination() {
    let bytes = noise(5_000, 2);
    for length in (0..=600).chain([1_023, 1_024, 4_095, 4_096, 4_224]) {
        for offset in [0, 5, 64] {
            let src = &bytes[offset..offset + length];
            let expected = bitwise(9, src);
            for kernel in available() {
                let mut dst = vec![0xA5; length + 2 + offset];
                let room = &mut dst[offset + 1..offset + 1 + length];
                assert_eq!(!kernel.copy_crc(!9, room, src), expected, "{} {length} {offset}", kernel.name);
                assert_eq!(room, src, "{} {length} {offset}", kernel.name);
                assert!(dst[..=offset].iter().all(|&byte| byte == 0xA5), "{}", kernel.name);
                assert_eq!(dst[offset + 1 + length], 0xA5, "{}", kernel.name);
            }
        }
    }
}

#[test]
fn streaming_copies_are_read_by_another_thread_behind_their_fence() {
    let pages: Vec<Vec<u8>> = (1..=9u8).map(|page| vec![page; 4_096 + usize::from(page)]).collect();
    let mut copies = StreamingCopies::default();
    let copied: Vec<Vec<u8>> = pages
        .iter()
        .map(|page| {
            let mut to = vec![0; page.len()];
            copies.copy(&mut to, page);
            assert!(to == *page, "the thread that copied reads other bytes");
            to
        })
        .collect();
    copies.fence();
    let seen = std::thread::spawn(move || copied).join().unwrap();
    assert!(seen == pages);
    let mut short = [0; 8];
    copies.copy(&mut short, b"8 bytes.");
    assert_eq!(&short, b"8 bytes.");
}

#[test]
fn streaming_copy_writes_exactly_the_destination() {
    let bytes = noise(9_000, 3);
    for length in [0, 1, 63, 64, 65, 127, 128, 600, 1_024, 4_096, 4_224, 8_191] {
        for offset in [0, 1, 31, 32, 63] {
            let src = &bytes[offset..offset + length];
            for kernel in available() {
                let mut dst = vec![0xA5; length + 2 + offset];
                kernel.stream(&mut dst[offset + 1..offset + 1 + length], src);
                assert_eq!(&dst[offset + 1..offset + 1 + length], src, "{} {length} {offset}", kernel.name);
                assert!(dst[..=offset].iter().all(|&byte| byte == 0xA5), "{}", kernel.name);
                assert_eq!(dst[offset + 1 + length], 0xA5, "{}", kernel.name);
            }
        }
    }
}

#[test]
fn crcs_compose() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..500 {
        let bytes = noise(random.usize(0..9_000), random.u64(..));
        let cut = random.usize(0..=bytes.len());
        let (first, second) = bytes.split_at(cut);
        let whole = crc32c(0, &bytes);
        assert_eq!(crc32c(crc32c(0, first), second), whole, "seed {seed}");
        let mut copied = vec![0; bytes.len()];
        let (to_first, to_second) = copied.split_at_mut(cut);
        let after_first = copy_crc32c(to_first, first, 0);
        assert_eq!(copy_crc32c(to_second, second, after_first), whole, "seed {seed}");
        assert_eq!(copied, bytes, "seed {seed}");
    }
}

#[test]
fn appended_bytes_follow_those_of_the_vector_and_have_their_crc() {
    let bytes = noise(9_000, 5);
    for length in [0, 1, 7, 8, 63, 64, 65, 127, 300, 511, 512, 1_023, 4_096, 8_191] {
        for before in [0, 1, 13, 4_096] {
            for capacity in [0, before, before + length, 2 * (before + length)] {
                let src = &bytes[before % 64..before % 64 + length];
                let mut target = Vec::with_capacity(capacity);
                target.extend_from_slice(&bytes[..before]);
                assert_eq!(append_crc32c(&mut target, src, 9), bitwise(9, src), "{length} behind {before}");
                assert!(target == [&bytes[..before], src].concat(), "{length} behind {before}");
            }
        }
    }
}

#[test]
fn prefetch_accepts_any_slice() {
    prefetch(&[]);
    prefetch(&noise(4_097, 4));
    prefetch_read(&0_u8);
}

#[test]
#[should_panic(expected = "lengths that differ")]
fn fused_copy_between_different_lengths_panics() {
    copy_crc32c(&mut [0; 3], &[0; 4], 0);
}

#[test]
fn zero_check_sees_every_bit_of_every_byte() {
    for length in (0..200).chain([4_095, 4_096, 4_224]) {
        let mut bytes = vec![0; length];
        assert!(is_zero(&bytes), "{length}");
        for at in 0..length {
            bytes[at] = 1 << (at % 8);
            assert!(!is_zero(&bytes), "byte {at} of {length}");
            bytes[at] = 0;
        }
    }
}
