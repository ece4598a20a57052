//! The checksum of a page while it is filled.
//!
//! Input: the bytes that are copied into an open page, part by part, each of them also part of a record. Output: the checksum of
//! the record, and that of the page's data so far. Invariant: a page whose checksum is known has exactly that of its data; the
//! bytes are read once for both, except for short parts.

use crate::media::geometry::PAGE_DATA_BYTES;
use crate::mutant::{Mutant, mutant};
use headwater_host::copy::{CrcLength, copy, copy_crc32c, crc32c, shift_crc32c};

/// A part of at least so many bytes is summed by itself and joined to both checksums. For a shorter one that takes longer than to
/// read it twice.
const JOINED_BYTES_MIN: usize = 512;
/// The payload of a record from which on the checksum of the page that it begins in is kept. A page in which a shorter one begins
/// is read once, when it leaves.
const KEPT_PAYLOAD_BYTES_MIN: usize = 512;

/// The checksum of the first bytes of a page, from 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageSum {
    crc: Option<u32>,
}

impl PageSum {
    /// Begins with no bytes.
    pub(super) const EMPTY: Self = Self { crc: Some(0) };

    /// The checksum of a page that is read when it leaves.
    pub(super) const UNKNOWN: Self = Self { crc: None };

    /// Gives the checksum up before a record whose payload is too short for it.
    #[inline]
    pub(super) fn prepare(&mut self, payload_bytes: usize) {
        if payload_bytes < KEPT_PAYLOAD_BYTES_MIN {
            self.crc = None;
        }
    }

    /// Copies the next bytes of a page with a function that continues a checksum over the copy. Returns `crc`, that of the
    /// record, with those bytes.
    #[inline]
    pub(super) fn put(
        &mut self,
        target: &mut [u8],
        crc: u32,
        copy: impl FnOnce(&mut [u8], u32) -> u32,
    ) -> u32 {
        match &mut self.crc {
            None => copy(target, crc),
            Some(page) if target.len() < JOINED_BYTES_MIN => {
                let crc = copy(target, crc);
                *page = crc32c(*page, target);
                crc
            }
            Some(page) => {
                let own = copy(target, 0);
                let length = CrcLength::new(target.len());
                *page = length.join(*page, own);
                length.join(crc, own)
            }
        }
    }

    /// Copies the next bytes of a page, of which no record needs a checksum.
    #[inline]
    pub(super) fn copy(&mut self, target: &mut [u8], bytes: &[u8]) {
        match &mut self.crc {
            None => copy(target, bytes),
            Some(page) => *page = copy_crc32c(target, bytes, *page),
        }
    }

    /// Adds bytes that a page has next.
    #[inline]
    pub(super) fn add(&mut self, bytes: &[u8]) {
        if let Some(page) = &mut self.crc {
            *page = crc32c(*page, bytes);
        }
    }

    /// Follows a change of four bytes, at the start of the last `bytes` ones, from 0 to a number.
    #[inline]
    pub(super) fn set_number(&mut self, number: u32, bytes: usize) {
        if let Some(page) = &mut self.crc {
            *page ^= shift_crc32c(number, bytes);
        }
    }

    /// Adds the rest of a page behind its first `used` bytes, which is 0.
    #[inline]
    pub(super) fn ended(mut self, data: &[u8], used: usize) -> Self {
        if used < PAGE_DATA_BYTES && !mutant(Mutant::PageRestUnsummed) {
            self.add(&data[used..PAGE_DATA_BYTES]);
        }
        self
    }

    /// Returns the checksum if it is known.
    #[inline]
    pub(super) const fn known(self) -> Option<u32> {
        self.crc
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills pages with records of random lengths: a header whose first four bytes follow when the record is complete, and a
    /// payload in pieces.
    #[test]
    fn both_checksums_are_those_of_the_bytes() {
        for seed in 0..2_000 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (mut page, mut at) = (vec![0; PAGE_DATA_BYTES], 0);
            let mut sum = PageSum::EMPTY;
            let mut is_kept = true;
            while at + 16 <= PAGE_DATA_BYTES && rng.u8(..) > 20 {
                let payload = [16, 200, 600, 5_000][rng.usize(..4)].min(PAGE_DATA_BYTES - at - 16);
                sum.prepare(payload);
                is_kept &= payload >= KEPT_PAYLOAD_BYTES_MIN;
                let header = at;
                let fields = [&[0; 4], &rng.u128(..).to_le_bytes()[4..]].concat();
                sum.copy(&mut page[at..at + 16], &fields);
                let mut crc = crc32c(0, &page[at + 4..at + 16]);
                at += 16;
                let mut left = payload;
                while left > 0 {
                    let here = rng.usize(1..=left);
                    let bytes: Vec<u8> = (0..here).map(|_| rng.u8(..)).collect();
                    crc = sum.put(&mut page[at..at + here], crc, |to, crc| copy_crc32c(to, &bytes, crc));
                    at += here;
                    left -= here;
                }
                assert_eq!(crc, crc32c(0, &page[header + 4..at]), "seed {seed}: the checksum of a record");
                page[header..header + 4].copy_from_slice(&crc.to_le_bytes());
                sum.set_number(crc, at - header);
            }
            let known = sum.ended(&page, at).known();
            assert_eq!(known, is_kept.then(|| crc32c(0, &page)), "seed {seed}: the checksum of a page");
        }
    }
}
