//! Errors that end a connection, and the termination requests that report them (sections 3.5 and 3.6.2.4).
//!
//! Input: the error and its position. Output: FES and FEI, and the bytes of an H2CTermReq or C2HTermReq.
//! Invariant: a termination request never answers another one, and carries at most the first 128 bytes of the header in
//! error.

use super::limits::TERM_HEADER_BYTES_MAX;
use crate::spec::tcp::{COMMON_BYTES, CommonHeader, PduKind, TerminationPdu};
use headwater_host::width::narrow;
use std::fmt;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

/// Fatal Error Status (FES).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TcpFaultKind {
    /// 01h: a field of a header is not allowed; FEI is its byte offset.
    InvalidHeaderField = 0x01,
    /// 02h: a PDU is not allowed in the current state.
    Sequence = 0x02,
    /// 03h: the header digest is wrong; FEI is the received digest.
    HeaderDigest = 0x03,
    /// 04h: data outside the requested or offered range.
    OutOfRange = 0x04,
    /// 05h: more data in a PDU than negotiated (detected by a controller), or more R2Ts (detected by a host).
    LimitExceeded = 0x05,
    /// 06h: an unsupported parameter; FEI is its byte offset.
    UnsupportedParameter = 0x06,
}

impl TcpFaultKind {
    /// Returns the number on the wire.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Returns the kind with this number, or `None` if there is none.
    #[must_use]
    pub const fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            0x01 => Self::InvalidHeaderField,
            0x02 => Self::Sequence,
            0x03 => Self::HeaderDigest,
            0x04 => Self::OutOfRange,
            0x05 => Self::LimitExceeded,
            0x06 => Self::UnsupportedParameter,
            _ => return None,
        })
    }
}

impl fmt::Display for TcpFaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InvalidHeaderField => "invalid PDU header field",
            Self::Sequence => "PDU sequence error",
            Self::HeaderDigest => "header digest error",
            Self::OutOfRange => "data transfer out of range",
            Self::LimitExceeded => "data transfer or R2T limit exceeded",
            Self::UnsupportedParameter => "unsupported parameter",
        })
    }
}

/// An error that ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} (information {information:#x})")]
pub struct TcpFault {
    /// FES.
    pub kind: TcpFaultKind,
    /// FEI.
    pub information: u32,
}

impl TcpFault {
    /// Creates the fault of an invalid header field at this offset.
    #[must_use]
    pub const fn invalid_field(offset: u32) -> Self {
        Self { kind: TcpFaultKind::InvalidHeaderField, information: offset }
    }

    /// Creates a fault whose FEI has no meaning.
    #[must_use]
    pub const fn of(kind: TcpFaultKind) -> Self {
        Self { kind, information: 0 }
    }

    /// Appends to `out` the termination request of `kind` that reports this fault in the PDU with this `header`.
    pub(crate) fn write_termination(self, kind: PduKind, header: &[u8], out: &mut Vec<u8>) {
        let header = &header[..header.len().min(TERM_HEADER_BYTES_MAX)];
        let bytes = kind.header_bytes() + header.len();
        let pdu = TerminationPdu {
            common: CommonHeader {
                kind: kind.number(),
                flags: 0,
                header_bytes: TERMINATION_HEADER_BYTES,
                data_offset: 0,
                pdu_bytes: U32::new(narrow(bytes)),
            },
            status: U16::new(u16::from(self.kind.number())),
            information: U32::new(self.information),
            reserved: [0; 10],
        };
        out.extend_from_slice(pdu.as_bytes());
        out.extend_from_slice(header);
    }
}

/// HLEN of a termination request.
const TERMINATION_HEADER_BYTES: u8 = 24;
const _: () = assert!(PduKind::HostTermination.header_bytes() == TERMINATION_HEADER_BYTES as usize);
const _: () = assert!(TERM_HEADER_BYTES_MAX > COMMON_BYTES);

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromBytes;

    #[test]
    fn termination_request_reports_field_and_carries_header() {
        let mut out = Vec::new();
        let header = [7_u8; 200];
        TcpFault::invalid_field(10).write_termination(PduKind::ControllerTermination, &header, &mut out);
        let (pdu, rest) = TerminationPdu::read_from_prefix(&out).unwrap();
        assert_eq!(pdu.common.kind, 3);
        assert_eq!(pdu.common.header_bytes, 24);
        assert_eq!(pdu.common.pdu_bytes.get(), 24 + 128);
        assert_eq!(pdu.status.get(), 1);
        assert_eq!(pdu.information.get(), 10);
        assert_eq!(rest, &header[..128], "at most 128 bytes of the header");
    }

    #[test]
    fn fault_kinds_round_trip_through_numbers() {
        for number in 0..=u16::MAX {
            if let Some(kind) = TcpFaultKind::from_number(number) {
                assert_eq!(u16::from(kind.number()), number);
            }
        }
    }
}
