//! A decoder that splits a received byte stream into PDUs.
//!
//! Input: received bytes, in pieces of any size.
//! Output: validated headers, the data of each in pieces, and the result of its digest check.
//! Invariant: each byte is consumed once, and none after a fault. A header is copied once, into the decoder; data is
//! not copied.
//!
//! ```text
//!            a byte         8 bytes           HLEN, digest           PDO         all data
//!   Start ---------> Kind ---------> Header --------------> Padding -----> Data -----------> Trailer
//!     ^                                 |  no data                           | no digest        | 4 bytes
//!     +---------------------------------+                                    +-----> End <------+
//!     +-----------------------------------------------------------------------------+
//! ```

use super::fault::{TcpFault, TcpFaultKind};
use super::header::{HeaderRules, PduHeader};
use super::{DIGEST_BYTES, DigestMode};
use crate::spec::tcp::{COMMON_BYTES, PduKind};
use headwater_host::copy::crc32c;
use headwater_host::width::narrow;

/// The largest header with its digest.
const HEADER_ROOM: usize = 128 + DIGEST_BYTES;

/// The next result of the decoder.
#[derive(Debug)]
pub enum DecoderStep<'a> {
    /// The decoder needs more bytes.
    NeedInput,
    /// A header. If it has data, [`DecoderStep::Data`] and [`DecoderStep::End`] follow.
    Header(PduHeader),
    /// A piece of the data, never empty.
    Data(&'a [u8]),
    /// The data is complete.
    End(DataCheck),
}

/// The result of the data digest check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataCheck {
    /// The digest matches, or there is none.
    Valid,
    /// The digest does not match.
    Corrupt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DecoderStage {
    Start,
    Kind,
    Header(PduKind),
    Padding { left: u8, data_bytes: u32 },
    Data { left: u32, crc: u32 },
    Trailer { crc: u32 },
    End(DataCheck),
}

/// The decoder's state machine.
#[derive(Debug)]
pub struct PduDecoder {
    /// The receiver's limits; the digests change when the connection is initialized.
    pub rules: HeaderRules,
    stage: DecoderStage,
    buffered: [u8; HEADER_ROOM],
    buffered_bytes: usize,
}

impl PduDecoder {
    /// Creates a decoder at the beginning of a stream.
    #[must_use]
    pub const fn new(rules: HeaderRules) -> Self {
        Self { rules, stage: DecoderStage::Start, buffered: [0; HEADER_ROOM], buffered_bytes: 0 }
    }

    /// Consumes bytes from the front of `input` up to the next result.
    ///
    /// # Errors
    /// The fault that ends the connection.
    pub fn decode<'a>(&mut self, input: &mut &'a [u8]) -> Result<DecoderStep<'a>, TcpFault> {
        loop {
            match self.stage {
                // The previous header is kept until here, because a termination request may carry it.
                DecoderStage::Start => {
                    if input.is_empty() {
                        return Ok(DecoderStep::NeedInput);
                    }
                    self.buffered_bytes = 0;
                    self.stage = DecoderStage::Kind;
                }
                DecoderStage::Kind => {
                    if !self.fill_buffer(input, COMMON_BYTES) {
                        return Ok(DecoderStep::NeedInput);
                    }
                    let kind = self.rules.validate_kind(&self.buffered[..COMMON_BYTES])?;
                    self.stage = DecoderStage::Header(kind);
                }
                DecoderStage::Header(kind) => {
                    if !self.fill_buffer(input, self.rules.header_bytes(kind)) {
                        return Ok(DecoderStep::NeedInput);
                    }
                    return self.finish_header(kind).map(DecoderStep::Header);
                }
                DecoderStage::Padding { .. } => {
                    if !self.skip_padding(input) {
                        return Ok(DecoderStep::NeedInput);
                    }
                }
                DecoderStage::Data { left, .. } => {
                    let (data, rest) = input.split_at(input.len().min(left as usize));
                    if data.is_empty() {
                        return Ok(DecoderStep::NeedInput);
                    }
                    *input = rest;
                    self.note_direct_data(data.len(), |crc| crc32c(crc, data));
                    return Ok(DecoderStep::Data(data));
                }
                DecoderStage::Trailer { crc } => {
                    if !self.fill_buffer(input, DIGEST_BYTES) {
                        return Ok(DecoderStep::NeedInput);
                    }
                    let check = if self.buffered[..DIGEST_BYTES] == crc.to_le_bytes() {
                        DataCheck::Valid
                    } else {
                        DataCheck::Corrupt
                    };
                    self.stage = DecoderStage::End(check);
                }
                DecoderStage::End(check) => {
                    self.stage = DecoderStage::Start;
                    return Ok(DecoderStep::End(check));
                }
            }
        }
    }

    /// Returns the data bytes left in the current PDU. While it is not zero, the caller may receive them directly into
    /// their buffer and report them to [`note_direct_data`](Self::note_direct_data).
    #[must_use]
    #[inline]
    pub fn data_left(&self) -> u32 {
        match self.stage {
            DecoderStage::Data { left, .. } => left,
            _ => 0,
        }
    }

    /// Returns the CRC-32C of the current PDU's data so far, while data is left and data digests are on.
    #[must_use]
    pub fn digest_so_far(&self) -> Option<u32> {
        match (self.stage, self.rules.digests.data) {
            (DecoderStage::Data { crc, .. }, DigestMode::On) => Some(crc),
            _ => None,
        }
    }

    /// Consumes the padding between a header and its data, if the decoder is there. Returns false if the input ends
    /// before; then [`data_left`](Self::data_left) is still 0.
    pub fn skip_padding(&mut self, input: &mut &[u8]) -> bool {
        let DecoderStage::Padding { left, data_bytes } = self.stage else {
            return true;
        };
        let taken = input.len().min(usize::from(left));
        *input = &input[taken..];
        let left = left - narrow::<usize, u8>(taken);
        self.stage = match left {
            0 => DecoderStage::Data { left: data_bytes, crc: 0 },
            _ => DecoderStage::Padding { left, data_bytes },
        };
        left == 0
    }

    /// Accounts for data that bypassed the decoder, at most [`data_left`](Self::data_left) bytes. `check` continues a
    /// CRC-32C over them; it is called only if data digests are on.
    ///
    /// # Panics
    /// If `bytes` exceeds `data_left`: a bug of the caller, not a fault of the peer.
    #[inline]
    pub fn note_direct_data(&mut self, bytes: usize, check: impl FnOnce(u32) -> u32) {
        let DecoderStage::Data { left, crc } = self.stage else {
            panic!("{bytes} bytes of data recorded while no data is expected");
        };
        let bytes: u32 = narrow(bytes);
        assert!(bytes <= left, "{bytes} bytes of data recorded, {left} left");
        let left = left - bytes;
        let digests = self.rules.digests.data;
        let crc = if digests == DigestMode::On { check(crc) } else { crc };
        self.stage = match (left, digests) {
            (0, DigestMode::Off) => DecoderStage::End(DataCheck::Valid),
            (0, DigestMode::On) => {
                self.buffered_bytes = 0;
                DecoderStage::Trailer { crc }
            }
            _ => DecoderStage::Data { left, crc },
        };
    }

    /// Returns the received part of the current PDU's header.
    #[must_use]
    pub fn header_bytes(&self) -> &[u8] {
        &self.buffered[..self.buffered_bytes]
    }

    /// Fills the header buffer to `bytes` bytes. Returns false if the input ends before.
    #[inline]
    fn fill_buffer(&mut self, input: &mut &[u8], bytes: usize) -> bool {
        let wanted = bytes.saturating_sub(self.buffered_bytes);
        let (taken, rest) = input.split_at(input.len().min(wanted));
        self.buffered[self.buffered_bytes..self.buffered_bytes + taken.len()].copy_from_slice(taken);
        self.buffered_bytes += taken.len();
        *input = rest;
        taken.len() == wanted
    }

    fn finish_header(&mut self, kind: PduKind) -> Result<PduHeader, TcpFault> {
        let (fields, digest) = self.buffered[..self.buffered_bytes].split_at(kind.header_bytes());
        if let Ok(received) = <[u8; DIGEST_BYTES]>::try_from(digest)
            && crc32c(0, fields) != u32::from_le_bytes(received)
        {
            return Err(TcpFault {
                kind: TcpFaultKind::HeaderDigest,
                information: u32::from_le_bytes(received),
            });
        }
        let header = self.rules.validate(kind, fields)?;
        self.stage = if header.data_bytes == 0 {
            DecoderStage::Start
        } else {
            DecoderStage::Padding { left: header.padding_bytes, data_bytes: header.data_bytes }
        };
        Ok(header)
    }
}
