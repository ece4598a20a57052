//! The byte layout of NVMe/TCP PDUs (NVMe TCP Transport 1.0 section 3.6). Little-endian throughout.
//!
//! Layouts with their sizes, PDU types and flags. `tcp::header` validates the fields.

use crate::spec::command::SubmissionEntry;
use crate::spec::completion::CompletionEntry;
use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The type of a PDU (PDU-Type).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PduKind {
    /// ICReq: a host opens the connection.
    InitializeRequest = 0x00,
    /// ICResp: the controller accepts the connection.
    InitializeResponse = 0x01,
    /// H2CTermReq: the host found an error and ends the connection.
    HostTermination = 0x02,
    /// C2HTermReq: the controller found an error and ends the connection.
    ControllerTermination = 0x03,
    /// CapsuleCmd: a command, optionally with its data.
    Command = 0x04,
    /// CapsuleResp: a completion.
    Response = 0x05,
    /// H2CData: data from the host that an R2T requested.
    HostData = 0x06,
    /// C2HData: data from the controller.
    ControllerData = 0x07,
    /// R2T: the controller is ready to receive data.
    ReadyToTransfer = 0x09,
}

impl PduKind {
    /// Returns the PDU type with this number, or `None` if there is none.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0x00 => Self::InitializeRequest,
            0x01 => Self::InitializeResponse,
            0x02 => Self::HostTermination,
            0x03 => Self::ControllerTermination,
            0x04 => Self::Command,
            0x05 => Self::Response,
            0x06 => Self::HostData,
            0x07 => Self::ControllerData,
            0x09 => Self::ReadyToTransfer,
            _ => return None,
        })
    }

    /// Returns the number on the wire.
    #[must_use]
    #[inline]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Returns HLEN: bytes of the header of this type, without the digest.
    #[must_use]
    #[inline]
    pub const fn header_bytes(self) -> usize {
        match self {
            Self::InitializeRequest | Self::InitializeResponse => 128,
            Self::Command => 72,
            Self::HostTermination
            | Self::ControllerTermination
            | Self::Response
            | Self::HostData
            | Self::ControllerData
            | Self::ReadyToTransfer => 24,
        }
    }

    /// Returns true if a header digest follows the header when digests are enabled.
    #[must_use]
    #[inline]
    pub const fn is_digested(self) -> bool {
        matches!(
            self,
            Self::Command | Self::Response | Self::HostData | Self::ControllerData | Self::ReadyToTransfer
        )
    }
}

/// Bits of FLAGS. Bits 2 and 3 are defined in data PDUs only.
pub mod flag {
    /// HDGSTF: a header digest follows the header.
    pub const HEADER_DIGEST: u8 = 1 << 0;
    /// DDGSTF: a data digest follows the data.
    pub const DATA_DIGEST: u8 = 1 << 1;
    /// LAST_PDU of a data PDU: no more data PDUs follow for this R2T (H2CData) or command (C2HData).
    pub const LAST_PDU: u8 = 1 << 2;
    /// SUCCESS of a C2HData: the command succeeded and no response capsule follows.
    pub const SUCCESS: u8 = 1 << 3;
}

/// The first eight bytes of every PDU (section 3.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CommonHeader {
    /// PDU-Type.
    pub kind: u8,
    /// FLAGS.
    pub flags: u8,
    /// HLEN: bytes of the header, without the digest.
    pub header_bytes: u8,
    /// PDO: offset of the data from the first byte of the PDU.
    pub data_offset: u8,
    /// PLEN: bytes of the whole PDU.
    pub pdu_bytes: U32,
}

/// Bytes of [`CommonHeader`].
pub const COMMON_BYTES: usize = size_of::<CommonHeader>();

const _: () = assert!(size_of::<CommonHeader>() == 8);
const _: () = assert!(offset_of!(CommonHeader, data_offset) == 3);
const _: () = assert!(offset_of!(CommonHeader, pdu_bytes) == 4);

/// ICReq and ICResp (sections 3.6.2.2 and 3.6.2.3): one layout, in which `limit` differs in meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct InitializePdu {
    /// The common header.
    pub common: CommonHeader,
    /// PFV: format of the PDUs, 0.
    pub format_version: U16,
    /// HPDA or CPDA: alignment of the data in PDUs that the sender of this PDU receives, in dwords, less one.
    pub data_alignment: u8,
    /// DGST: header digest in bit 0, data digest in bit 1.
    pub digests: u8,
    /// ICReq, MAXR2T: R2Ts that may be outstanding for a command, less one. ICResp, MAXH2CDATA in bytes.
    pub limit: U32,
    /// Zero.
    pub reserved: [u8; 112],
}

const _: () = assert!(size_of::<InitializePdu>() == PduKind::InitializeRequest.header_bytes());
const _: () = assert!(offset_of!(InitializePdu, format_version) == 8);
const _: () = assert!(offset_of!(InitializePdu, data_alignment) == 10);
const _: () = assert!(offset_of!(InitializePdu, digests) == 11);
const _: () = assert!(offset_of!(InitializePdu, limit) == 12);

/// H2CTermReq and C2HTermReq (sections 3.6.2.4 and 3.6.2.5); the header of the PDU in error follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TerminationPdu {
    /// The common header.
    pub common: CommonHeader,
    /// FES: the error.
    pub status: U16,
    /// FEI: the position of the error.
    pub information: U32,
    /// Zero.
    pub reserved: [u8; 10],
}

const _: () = assert!(size_of::<TerminationPdu>() == PduKind::HostTermination.header_bytes());
const _: () = assert!(offset_of!(TerminationPdu, status) == 8);
const _: () = assert!(offset_of!(TerminationPdu, information) == 10);

/// CapsuleCmd (section 3.6.2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CommandPdu {
    /// The common header.
    pub common: CommonHeader,
    /// CCSQE: the submission queue entry.
    pub entry: SubmissionEntry,
}

const _: () = assert!(size_of::<CommandPdu>() == PduKind::Command.header_bytes());

/// CapsuleResp (section 3.6.2.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ResponsePdu {
    /// The common header.
    pub common: CommonHeader,
    /// RCCQE: the completion queue entry.
    pub entry: CompletionEntry,
}

const _: () = assert!(size_of::<ResponsePdu>() == PduKind::Response.header_bytes());

/// H2CData, C2HData and R2T (sections 3.6.2.8 to 3.6.2.10): one layout; in C2HData the tag is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DataPdu {
    /// The common header.
    pub common: CommonHeader,
    /// CCCID: identifier of the command the data belongs to.
    pub command_id: U16,
    /// TTAG: the controller's identifier of the transfer.
    pub transfer_tag: U16,
    /// DATAO, R2TO: offset within the command's data.
    pub offset: U32,
    /// DATAL, R2TL: bytes of data.
    pub bytes: U32,
    /// Zero.
    pub reserved: U32,
}

const _: () = assert!(size_of::<DataPdu>() == PduKind::HostData.header_bytes());
const _: () = assert!(offset_of!(DataPdu, command_id) == 8);
const _: () = assert!(offset_of!(DataPdu, transfer_tag) == 10);
const _: () = assert!(offset_of!(DataPdu, offset) == 12);
const _: () = assert!(offset_of!(DataPdu, bytes) == 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pdu_kinds_round_trip_and_header_lengths_match_layouts() {
        let mut named = 0;
        for number in 0..=u8::MAX {
            if let Some(kind) = PduKind::from_number(number) {
                assert_eq!(kind.number(), number);
                named += 1;
            }
        }
        assert_eq!(named, 9, "08h is reserved");
        assert_eq!(PduKind::ReadyToTransfer.header_bytes(), size_of::<DataPdu>());
        assert_eq!(PduKind::ControllerTermination.header_bytes(), size_of::<TerminationPdu>());
        assert_eq!(PduKind::InitializeResponse.header_bytes(), size_of::<InitializePdu>());
    }
}
