//! The send queue of a connection.
//!
//! Input: PDUs in order; long data by ownership.
//! Output: slices for one vectored write, and the owners of data that was sent.
//! Headers and short data are copied into one buffer; long data is sent from its own buffer without a copy.
//! Invariant: bytes are sent in the order they were queued, each once.

use super::DIGEST_BYTES;
use super::{DigestMode, DigestSettings};
use crate::spec::tcp::{CommonHeader, flag};
use headwater_host::copy::crc32c;
use headwater_host::width::narrow;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

/// Sent bytes at the front of the text buffer above which the rest is moved to the front.
const COMPACT_BYTES: usize = 1 << 16;
/// Capacity of the text buffer that is kept when everything is sent.
const TEXT_KEPT_BYTES: usize = 1 << 18;

/// A buffer lent to a connection until its bytes are sent or received.
pub trait LentBytes {
    /// Returns the length in bytes.
    fn bytes(&self) -> usize;

    /// Appends a range of the buffer to `copied`.
    fn append_to(&self, range: Range<usize>, text: &mut Vec<u8>);

    /// Continues a CRC-32C over a range of the buffer.
    fn crc32c(&self, seed: u32, range: Range<usize>) -> u32;

    /// Copies received bytes to offset `at`. The caller ensures that they lie inside the buffer.
    fn write_at(&mut self, at: usize, bytes: &[u8]);
}

impl LentBytes for Vec<u8> {
    fn bytes(&self) -> usize {
        self.len()
    }

    fn append_to(&self, range: Range<usize>, text: &mut Vec<u8>) {
        text.extend_from_slice(&self[range]);
    }

    fn crc32c(&self, seed: u32, range: Range<usize>) -> u32 {
        crc32c(seed, &self[range])
    }

    fn write_at(&mut self, at: usize, bytes: &[u8]) {
        self[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// A contiguous piece of the bytes to send.
#[derive(Debug)]
pub enum SendPiece<'a, B> {
    /// Headers and short data.
    Copied(&'a [u8]),
    /// A range of a lent buffer.
    Lent(&'a B, Range<usize>),
}

/// A range of long data, sent after the text up to `at`.
#[derive(Debug)]
struct SendSegment<B> {
    at: usize,
    owner: B,
    range: Range<usize>,
}

/// A queue of PDUs to send, with long data in buffers of type `B`.
#[derive(Debug)]
pub struct SendQueue<B> {
    copied: Vec<u8>,
    copied_sent: usize,
    segments: VecDeque<SendSegment<B>>,
    segment_bytes: usize,
}

impl<B> Default for SendQueue<B> {
    fn default() -> Self {
        Self { copied: Vec::new(), copied_sent: 0, segments: VecDeque::new(), segment_bytes: 0 }
    }
}

impl<B> SendPiece<'_, B> {
    fn is_empty(&self) -> bool {
        match self {
            Self::Copied(text) => text.is_empty(),
            Self::Lent(_, range) => range.is_empty(),
        }
    }
}

/// The parameters that determine the data offset and digests of a PDU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataFraming {
    /// Digests of the connection.
    pub(crate) digests: DigestSettings,
    /// Alignment of PDO that the receiver requires, in bytes.
    pub(crate) alignment: u8,
}

impl SendQueue<Vec<u8>> {
    /// Fills `slices` with the next bytes to send, in order; returns the number of slices filled.
    pub fn gather<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(self.pieces()) {
            *slice = IoSlice::new(match piece {
                SendPiece::Copied(text) => text,
                SendPiece::Lent(owner, range) => &owner[range],
            });
            count += 1;
        }
        count
    }
}

impl<B: LentBytes> SendQueue<B> {
    /// Returns the number of bytes not sent yet.
    #[must_use]
    #[inline]
    pub fn pending(&self) -> usize {
        self.copied.len() - self.copied_sent + self.segment_bytes
    }

    /// Returns the pieces to send, in order.
    pub fn pieces(&self) -> impl Iterator<Item = SendPiece<'_, B>> {
        let last = self.segments.back().map_or(self.copied_sent, |last| last.at);
        let mut at = self.copied_sent;
        let pieces = self.segments.iter().flat_map(move |segment| {
            let text = &self.copied[at..segment.at];
            at = segment.at;
            [SendPiece::Copied(text), SendPiece::Lent(&segment.owner, segment.range.clone())]
        });
        pieces
            .chain(std::iter::once(SendPiece::Copied(&self.copied[last..])))
            .filter(|piece| !piece.is_empty())
    }

    /// Removes the first `count` pending bytes, which were sent; passes each buffer that is fully sent to `give_back`.
    ///
    /// # Panics
    /// If fewer bytes are pending.
    pub fn sent(&mut self, mut count: usize, mut give_back: impl FnMut(B)) {
        while let Some(front) = self.segments.front_mut() {
            let text = count.min(front.at - self.copied_sent);
            self.copied_sent += text;
            count -= text;
            if self.copied_sent < front.at {
                return;
            }
            let taken = count.min(front.range.len());
            front.range.start += taken;
            self.segment_bytes -= taken;
            count -= taken;
            if !front.range.is_empty() {
                return;
            }
            if let Some(segment) = self.segments.pop_front() {
                give_back(segment.owner);
            }
        }
        self.copied_sent += count;
        assert!(self.copied_sent <= self.copied.len(), "more bytes reported as sent than were pending");
        self.compact();
    }

    /// Appends a PDU without data. Sets the digest flag and length of `common`; `fields` is the rest of the header.
    pub(crate) fn header(&mut self, common: CommonHeader, fields: &[u8], header_digest: DigestMode) {
        let bytes = u32::from(common.header_bytes) + super::header::digest_bytes(header_digest);
        self.write_header(CommonHeader { pdu_bytes: U32::new(bytes), ..common }, fields, header_digest);
    }

    /// Appends a PDU with data, all of `owner[range]`, at most [`PDU_DATA_BYTES_MAX`](super::limits::PDU_DATA_BYTES_MAX)
    /// bytes. Copies short data and returns its owner.
    pub(crate) fn data(
        &mut self,
        frame: DataFraming,
        common: CommonHeader,
        fields: &[u8],
        owner: B,
        range: Range<usize>,
    ) -> Option<B> {
        let DataFraming { digests, alignment } = frame;
        let header = usize::from(common.header_bytes) + digests.header.bytes();
        let offset = header.next_multiple_of(usize::from(alignment.max(4)));
        let bytes = offset + range.len() + digests.data.bytes();
        let flags = match digests.data {
            DigestMode::Off => common.flags,
            DigestMode::On => common.flags | flag::DATA_DIGEST,
        };
        let common =
            CommonHeader { flags, data_offset: narrow(offset), pdu_bytes: U32::new(narrow(bytes)), ..common };
        self.write_header(common, fields, digests.header);
        self.copied.resize(self.copied.len() + offset - header, 0);
        let digest = (digests.data == DigestMode::On).then(|| owner.crc32c(0, range.clone()));
        let mut copied = None;
        if range.len() <= super::limits::COPIED_BYTES_MAX {
            owner.append_to(range, &mut self.copied);
            copied = Some(owner);
        } else {
            self.segment_bytes += range.len();
            self.segments.push_back(SendSegment { at: self.copied.len(), owner, range });
        }
        if let Some(digest) = digest {
            self.copied.extend_from_slice(&digest.to_le_bytes());
        }
        copied
    }

    /// Returns the text buffer, to append bytes unchanged.
    pub(crate) fn copied_mut(&mut self) -> &mut Vec<u8> {
        &mut self.copied
    }

    fn write_header(&mut self, mut common: CommonHeader, fields: &[u8], header_digest: DigestMode) {
        if header_digest == DigestMode::On {
            common.flags |= flag::HEADER_DIGEST;
        }
        let start = self.copied.len();
        self.copied.extend_from_slice(common.as_bytes());
        self.copied.extend_from_slice(fields);
        if header_digest == DigestMode::On {
            let digest = crc32c(0, &self.copied[start..]);
            self.copied.extend_from_slice(&digest.to_le_bytes());
        }
    }

    fn compact(&mut self) {
        if self.copied_sent == self.copied.len() && self.segments.is_empty() {
            self.copied.clear();
            self.copied_sent = 0;
            self.copied.shrink_to(TEXT_KEPT_BYTES);
        } else if self.copied_sent > COMPACT_BYTES {
            self.copied.drain(..self.copied_sent);
            for segment in &mut self.segments {
                segment.at -= self.copied_sent;
            }
            self.copied_sent = 0;
        }
    }
}

const _: () = assert!(DIGEST_BYTES == 4);

#[cfg(test)]
mod tests {
    use super::*;

    fn common(kind: u8, header_bytes: u8) -> CommonHeader {
        CommonHeader { kind, flags: 0, header_bytes, data_offset: 0, pdu_bytes: U32::new(0) }
    }

    #[test]
    fn bytes_are_sent_in_order_for_any_write_size() {
        let digests = DigestSettings { header: DigestMode::On, data: DigestMode::On };
        for step in [1, 3, 100, 5_000, usize::MAX] {
            let mut outgoing = SendQueue::default();
            let mut expected = Vec::new();
            for round in 0..40_usize {
                let data = vec![u8::try_from(round).unwrap(); 37 * round + 1];
                let frame = DataFraming { digests, alignment: 8 };
                let returned =
                    outgoing.data(frame, common(7, 24), &[0xEE; 16], data.clone(), 1..data.len().max(2) - 1);
                assert_eq!(returned.is_some(), data.len().max(2) - 2 <= 512);
                let start = expected.len();
                let inner = &data[1..data.len().max(2) - 1];
                let bytes = u32::try_from(32 + inner.len() + 4).unwrap();
                let head =
                    CommonHeader { flags: 3, data_offset: 32, pdu_bytes: U32::new(bytes), ..common(7, 24) };
                expected.extend_from_slice(head.as_bytes());
                expected.extend_from_slice(&[0xEE; 16]);
                let digest = crc32c(0, &expected[start..]);
                expected.extend_from_slice(&digest.to_le_bytes());
                expected.extend_from_slice(&[0; 4]);
                expected.extend_from_slice(inner);
                expected.extend_from_slice(&crc32c(0, inner).to_le_bytes());
            }
            assert_eq!(outgoing.pending(), expected.len());
            let mut sent = Vec::new();
            let mut owners = 0;
            while outgoing.pending() > 0 {
                let mut pieces = [IoSlice::new(&[]); 5];
                let count = outgoing.gather(&mut pieces);
                let all: Vec<u8> = pieces[..count].iter().flat_map(|piece| piece.iter().copied()).collect();
                let taken = all.len().min(step);
                sent.extend_from_slice(&all[..taken]);
                outgoing.sent(taken, |_| owners += 1);
            }
            assert!(sent == expected, "the stream was reordered or cut at step {step}");
            assert!(owners > 0);
        }
    }
}
