//! Validation and decoding of the header of a received PDU, field by field (section 3.6).
//!
//! Input: the bytes of a header, and the limits of this end and of the connection.
//! Output: a [`PduHeader`] with consistent lengths, or the [`TcpFault`] whose FEI is the offset of the first invalid field.
//! Invariant: no length from a peer is used before it is compared with a limit.

use super::fault::{TcpFault, TcpFaultKind};
use super::{DigestMode, DigestSettings};
use crate::spec::command::SubmissionEntry;
use crate::spec::completion::CompletionEntry;
use crate::spec::tcp::{
    COMMON_BYTES, CommandPdu, CommonHeader, DataPdu, InitializePdu, PduKind, ResponsePdu, TerminationPdu,
    flag,
};
use headwater_host::width::narrow;
use std::mem::offset_of;
use zerocopy::FromBytes;

/// The receiving end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiverRole {
    /// The controller.
    Controller,
    /// The host.
    Host,
}

/// The limits of a receiver.
#[derive(Clone, Copy, Debug)]
pub struct HeaderRules {
    /// The receiving end.
    pub receiver: ReceiverRole,
    /// Negotiated digests; off until the connection is initialized.
    pub digests: DigestSettings,
    /// Required alignment of PDO in bytes, as this end stated in its HPDA or CPDA.
    pub alignment: u8,
    /// Controller: maximum bytes of in-capsule data.
    pub in_capsule_max: u32,
    /// Controller: MAXH2CDATA. A host accepts any length that fits its buffers.
    pub data_max: u32,
}

/// The decoded header of a PDU, with the layout of its data.
#[derive(Clone, Copy, Debug)]
pub struct PduHeader {
    /// The decoded fields.
    pub fields: PduFields,
    /// Bytes between the header, including its digest, and the data.
    pub padding_bytes: u8,
    /// Bytes of data.
    pub data_bytes: u32,
}

/// The decoded fields of a header, by PDU type.
#[derive(Clone, Copy, Debug)]
pub enum PduFields {
    /// ICReq or ICResp.
    Initialize(InitializeFields),
    /// H2CTermReq or C2HTermReq: FES and FEI as received.
    Termination {
        /// FES.
        status: u16,
        /// FEI.
        information: u32,
    },
    /// CapsuleCmd.
    Command(SubmissionEntry),
    /// CapsuleResp.
    Response(CompletionEntry),
    /// H2CData or C2HData.
    Data(DataPart),
    /// R2T.
    ReadyToTransfer(DataPart),
}

/// The fields of an ICReq or ICResp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitializeFields {
    /// PFV.
    pub format_version: u16,
    /// HPDA or CPDA, in dwords less one.
    pub data_alignment: u8,
    /// Digests requested, or granted.
    pub digests: DigestSettings,
    /// MAXR2T, or MAXH2CDATA.
    pub limit: u32,
}

/// A part of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataPart {
    /// CCCID.
    pub command_id: u16,
    /// TTAG.
    pub transfer_tag: u16,
    /// Offset in the command's data.
    pub offset: u32,
    /// Length in bytes.
    pub bytes: u32,
    /// LAST_PDU.
    pub last: LastPdu,
    /// SUCCESS: no response follows.
    pub response: ResponseMode,
}

/// The LAST_PDU flag of a data PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastPdu {
    /// The last data PDU of its transfer.
    Yes,
    /// More data PDUs follow.
    No,
}

/// The SUCCESS flag of a data PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseMode {
    /// The data PDU implies a successful response.
    Implied,
    /// A response capsule follows.
    Separate,
}

/// Byte offsets of header fields, reported in FEI.
pub mod field_offset {
    use super::{CommonHeader, DataPdu, InitializePdu, offset_of};

    /// PDU-Type.
    pub const KIND: u32 = 0;
    /// FLAGS.
    pub const FLAGS: u32 = 1;
    /// HLEN.
    pub const HEADER_BYTES: u32 = 2;
    /// PDO.
    pub const DATA_OFFSET: u32 = 3;
    /// PLEN.
    pub const PDU_BYTES: u32 = 4;
    /// PFV.
    pub const FORMAT_VERSION: u32 = 8;
    /// HPDA and CPDA.
    pub const DATA_ALIGNMENT: u32 = 10;
    /// DGST.
    pub const DIGESTS: u32 = 11;
    /// MAXR2T and MAXH2CDATA.
    pub const LIMIT: u32 = 12;
    /// CCCID.
    pub const COMMAND_ID: u32 = 8;
    /// TTAG.
    pub const TRANSFER_TAG: u32 = 10;
    /// DATAO, R2TO.
    pub const OFFSET: u32 = 12;
    /// DATAL, R2TL.
    pub const BYTES: u32 = 16;
    /// The command identifier within a response capsule.
    pub const RESPONSE_COMMAND_ID: u32 = 20;

    const _: () = assert!(offset_of!(CommonHeader, header_bytes) == 2);
    const _: () = assert!(offset_of!(InitializePdu, limit) == 12);
    const _: () = assert!(offset_of!(DataPdu, bytes) == 16);
}

impl HeaderRules {
    /// Validates the first eight bytes: the PDU type, its direction and its header length.
    ///
    /// # Errors
    /// The fault of the first invalid field.
    #[inline]
    pub fn validate_kind(&self, bytes: &[u8]) -> Result<PduKind, TcpFault> {
        let Ok((common, _)) = CommonHeader::read_from_prefix(bytes) else {
            return Err(TcpFault::invalid_field(field_offset::KIND));
        };
        let kind = PduKind::from_number(common.kind).ok_or(TcpFault::invalid_field(field_offset::KIND))?;
        let ours = match self.receiver {
            ReceiverRole::Controller => matches!(
                kind,
                PduKind::InitializeRequest | PduKind::HostTermination | PduKind::Command | PduKind::HostData
            ),
            ReceiverRole::Host => matches!(
                kind,
                PduKind::InitializeResponse
                    | PduKind::ControllerTermination
                    | PduKind::Response
                    | PduKind::ControllerData
                    | PduKind::ReadyToTransfer
            ),
        };
        if !ours {
            return Err(TcpFault::invalid_field(field_offset::KIND));
        }
        if usize::from(common.header_bytes) != kind.header_bytes() {
            return Err(TcpFault::invalid_field(field_offset::HEADER_BYTES));
        }
        Ok(kind)
    }

    /// Validates and decodes a whole header of this kind, without its digest.
    ///
    /// # Errors
    /// The fault of the first invalid field.
    #[inline]
    pub fn validate(&self, kind: PduKind, bytes: &[u8]) -> Result<PduHeader, TcpFault> {
        let short = TcpFault::invalid_field(field_offset::HEADER_BYTES);
        let common =
            CommonHeader::read_from_bytes(bytes.get(..COMMON_BYTES).ok_or(short)?).map_err(|_| short)?;
        match kind {
            PduKind::InitializeRequest | PduKind::InitializeResponse => {
                let pdu = InitializePdu::read_from_bytes(bytes).map_err(|_| short)?;
                self.without_data(kind, &common)?;
                initialize(&pdu).map(without_data_header)
            }
            PduKind::HostTermination | PduKind::ControllerTermination => {
                // A termination request ends the connection and is never answered, so its other fields are not
                // validated.
                let pdu = TerminationPdu::read_from_bytes(bytes).map_err(|_| short)?;
                let what =
                    PduFields::Termination { status: pdu.status.get(), information: pdu.information.get() };
                Ok(without_data_header(what))
            }
            PduKind::Command => {
                let pdu = CommandPdu::read_from_bytes(bytes).map_err(|_| short)?;
                self.header_digest_flag(&common)?;
                self.command(&common, PduFields::Command(pdu.entry))
            }
            PduKind::Response => {
                let pdu = ResponsePdu::read_from_bytes(bytes).map_err(|_| short)?;
                self.header_digest_flag(&common)?;
                self.without_data(kind, &common)?;
                Ok(without_data_header(PduFields::Response(pdu.entry)))
            }
            PduKind::ReadyToTransfer => {
                let pdu = DataPdu::read_from_bytes(bytes).map_err(|_| short)?;
                self.header_digest_flag(&common)?;
                self.without_data(kind, &common)?;
                Ok(without_data_header(PduFields::ReadyToTransfer(part(&pdu))))
            }
            PduKind::HostData | PduKind::ControllerData => {
                let pdu = DataPdu::read_from_bytes(bytes).map_err(|_| short)?;
                self.header_digest_flag(&common)?;
                self.data(kind, &common, part(&pdu))
            }
        }
    }

    fn header_digest_flag(&self, common: &CommonHeader) -> Result<(), TcpFault> {
        flag_agrees(common.flags & flag::HEADER_DIGEST, self.digests.header)
    }

    /// Returns the bytes of a header of this kind, including its digest.
    #[must_use]
    #[inline]
    pub fn header_bytes(&self, kind: PduKind) -> usize {
        kind.header_bytes() + if kind.is_digested() { self.digests.header.bytes() } else { 0 }
    }

    fn without_data(&self, kind: PduKind, common: &CommonHeader) -> Result<(), TcpFault> {
        if usize::try_from(common.pdu_bytes.get()) != Ok(self.header_bytes(kind)) {
            return Err(TcpFault::invalid_field(field_offset::PDU_BYTES));
        }
        Ok(())
    }

    fn command(&self, common: &CommonHeader, what: PduFields) -> Result<PduHeader, TcpFault> {
        if self.without_data(PduKind::Command, common).is_ok() {
            return Ok(without_data_header(what));
        }
        let padding_bytes = self.padding(PduKind::Command, common)?;
        let before = u32::from(common.data_offset) + digest_bytes(self.digests.data);
        let data_bytes = common.pdu_bytes.get().checked_sub(before).filter(|&bytes| bytes > 0);
        let data_bytes = data_bytes.filter(|&bytes| bytes <= self.in_capsule_max);
        let data_bytes = data_bytes.ok_or(TcpFault::invalid_field(field_offset::PDU_BYTES))?;
        Ok(PduHeader { fields: what, padding_bytes, data_bytes })
    }

    fn data(&self, kind: PduKind, common: &CommonHeader, mut part: DataPart) -> Result<PduHeader, TcpFault> {
        let padding_bytes = self.padding(kind, common)?;
        if part.bytes == 0 {
            return Err(TcpFault::invalid_field(field_offset::BYTES));
        }
        if self.receiver == ReceiverRole::Controller && part.bytes > self.data_max {
            return Err(TcpFault::of(TcpFaultKind::LimitExceeded));
        }
        let around = u64::from(common.data_offset) + u64::from(digest_bytes(self.digests.data));
        if u64::from(common.pdu_bytes.get()) != around + u64::from(part.bytes) {
            return Err(TcpFault::invalid_field(field_offset::PDU_BYTES));
        }
        if common.flags & flag::LAST_PDU != 0 {
            part.last = LastPdu::Yes;
        }
        if kind == PduKind::ControllerData && common.flags & flag::SUCCESS != 0 {
            // SUCCESS is allowed only with the last data PDU (section 3.6.2.9).
            if part.last == LastPdu::No {
                return Err(TcpFault::invalid_field(field_offset::FLAGS));
            }
            part.response = ResponseMode::Implied;
        }
        Ok(PduHeader { fields: PduFields::Data(part), padding_bytes, data_bytes: part.bytes })
    }

    /// Returns the bytes between header and data. Checks that PDO is beyond the header and its digest and has the
    /// required alignment, and that the data digest flag is as negotiated.
    fn padding(&self, kind: PduKind, common: &CommonHeader) -> Result<u8, TcpFault> {
        flag_agrees(common.flags & flag::DATA_DIGEST, self.digests.data)?;
        let padding = common.data_offset.checked_sub(narrow(self.header_bytes(kind)));
        let aligned = common.data_offset.is_multiple_of(self.alignment.max(1));
        padding.filter(|_| aligned).ok_or(TcpFault::invalid_field(field_offset::DATA_OFFSET))
    }
}

const fn without_data_header(what: PduFields) -> PduHeader {
    PduHeader { fields: what, padding_bytes: 0, data_bytes: 0 }
}

/// Returns the bytes that a digest adds to PLEN.
pub(crate) const fn digest_bytes(digest: DigestMode) -> u32 {
    match digest {
        DigestMode::Off => 0,
        DigestMode::On => 4,
    }
}

fn flag_agrees(bit: u8, digest: DigestMode) -> Result<(), TcpFault> {
    match (bit, digest) {
        (0, DigestMode::Off) => Ok(()),
        (0, DigestMode::On) | (_, DigestMode::Off) => Err(TcpFault::invalid_field(field_offset::FLAGS)),
        (_, DigestMode::On) => Ok(()),
    }
}

fn initialize(pdu: &InitializePdu) -> Result<PduFields, TcpFault> {
    const ALIGNMENT_MAX: u8 = 31;
    if pdu.format_version.get() != 0 {
        return Err(TcpFault {
            kind: TcpFaultKind::UnsupportedParameter,
            information: field_offset::FORMAT_VERSION,
        });
    }
    if pdu.data_alignment > ALIGNMENT_MAX {
        return Err(TcpFault::invalid_field(field_offset::DATA_ALIGNMENT));
    }
    let digest = |bit: u8| if pdu.digests & bit == 0 { DigestMode::Off } else { DigestMode::On };
    Ok(PduFields::Initialize(InitializeFields {
        format_version: pdu.format_version.get(),
        data_alignment: pdu.data_alignment,
        digests: DigestSettings { header: digest(1), data: digest(2) },
        limit: pdu.limit.get(),
    }))
}

fn part(pdu: &DataPdu) -> DataPart {
    DataPart {
        command_id: pdu.command_id.get(),
        transfer_tag: pdu.transfer_tag.get(),
        offset: pdu.offset.get(),
        bytes: pdu.bytes.get(),
        last: LastPdu::No,
        response: ResponseMode::Separate,
    }
}
