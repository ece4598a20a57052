//! The completion record of a DSA device, by byte, and its status codes.
//!
//! Input: 32 bytes that a device wrote. Output: an [`DsaOutcome`]. Invariant: every byte of a status has a meaning here, so
//! that no device can confuse its user.
//!
//! Follows the Intel Data Streaming Accelerator Architecture Specification, chapters "Completion Record" and "Operation
//! Status Codes", and `struct dsa_completion_record` of the kernel's `linux/idxd.h`.

use super::descriptor::DsaOpcode;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The length of a completion record, and its alignment.
pub const RECORD_BYTES: usize = 32;

/// The bit of a status by which a page fault was one of a write.
const WRITE_FAULT: u8 = 0x80;

/// The status of a descriptor that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DsaStatus {
    /// 0x01: it was done.
    Success,
    /// 0x02: it was done, and the result is not the expected one.
    SuccessUnexpected,
    /// 0x03: a page was missing, and the descriptor does not wait for pages. Bytes before it are done.
    PageFault,
    /// 0x04: a page was missing, and the kernel could not provide it. Bytes before it are done.
    PageFaultUnresolved,
    /// 0x05: descriptors of the batch failed.
    BatchFailed,
    /// 0x06: a page of the list of a batch was missing.
    BatchPageFault,
    /// 0x07 to 0x09: of operations that this driver does not use.
    OtherOperation(u8),
    /// 0x10: the device, or its queue, does not know the operation.
    UnknownOpcode,
    /// 0x11: a flag is set that the operation does not know.
    InvalidFlags,
    /// 0x12: a reserved field is not 0.
    ReservedField,
    /// 0x13: the length is 0, or above the limit of the queue.
    TransferLength,
    /// 0x14: the number of descriptors of a batch is below 2, or above the limit of the queue.
    BatchLength,
    /// 0x15: the length of a delta record.
    DeltaLength,
    /// 0x16: ranges overlap that must be apart.
    Overlap,
    /// 0x17: the low 12 bits of the targets of a dualcast differ.
    DualcastAlignment,
    /// 0x18: the list of a batch is not aligned.
    ListAlignment,
    /// 0x19: the handle of an interrupt.
    InterruptHandle,
    /// 0x1A: the address of the completion record has no translation.
    RecordTranslation,
    /// 0x1B: the address of the completion record is not aligned.
    RecordAlignment,
    /// 0x1C: an address is not aligned.
    AddressAlignment,
    /// 0x1D: the privilege of the descriptor.
    Privilege,
    /// 0x1E: the traffic class of an address.
    TrafficClass,
    /// 0x1F: a page fault on the address of a readback.
    ReadbackFault,
    /// 0x20: an error of the hardware.
    HardwareError,
    /// 0x21: an error of the hardware in the readback of a drain.
    DrainReadback,
    /// 0x22: an address has no translation, and gets none.
    Untranslated,
    /// Any other code: of a later version of the device.
    Unknown(u8),
}

/// The way to go on after a descriptor has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// It was done: use its result.
    Use,
    /// The first bytes were done: the CPU does the rest, and touches the missing page by that.
    FinishRest,
    /// It was not done, or not all of it: the CPU does it from its start.
    Repeat,
    /// As [`Repeat`](Self::Repeat), and the device is not used any more.
    RepeatAndStop,
}

impl DsaStatus {
    /// Returns the status of a byte; `None` for 0, as long as the descriptor has not ended.
    #[must_use]
    pub const fn of(byte: u8) -> Option<Self> {
        Some(match byte & !WRITE_FAULT {
            0x00 => return None,
            0x01 => Self::Success,
            0x02 => Self::SuccessUnexpected,
            0x03 => Self::PageFault,
            0x04 => Self::PageFaultUnresolved,
            0x05 => Self::BatchFailed,
            0x06 => Self::BatchPageFault,
            code @ 0x07..=0x09 => Self::OtherOperation(code),
            0x10 => Self::UnknownOpcode,
            0x11 => Self::InvalidFlags,
            0x12 => Self::ReservedField,
            0x13 => Self::TransferLength,
            0x14 => Self::BatchLength,
            0x15 => Self::DeltaLength,
            0x16 => Self::Overlap,
            0x17 => Self::DualcastAlignment,
            0x18 => Self::ListAlignment,
            0x19 => Self::InterruptHandle,
            0x1A => Self::RecordTranslation,
            0x1B => Self::RecordAlignment,
            0x1C => Self::AddressAlignment,
            0x1D => Self::Privilege,
            0x1E => Self::TrafficClass,
            0x1F => Self::ReadbackFault,
            0x20 => Self::HardwareError,
            0x21 => Self::DrainReadback,
            0x22 => Self::Untranslated,
            code => Self::Unknown(code),
        })
    }

    /// Returns the code, without the bit of a fault by a write.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Success => 0x01,
            Self::SuccessUnexpected => 0x02,
            Self::PageFault => 0x03,
            Self::PageFaultUnresolved => 0x04,
            Self::BatchFailed => 0x05,
            Self::BatchPageFault => 0x06,
            Self::UnknownOpcode => 0x10,
            Self::InvalidFlags => 0x11,
            Self::ReservedField => 0x12,
            Self::TransferLength => 0x13,
            Self::BatchLength => 0x14,
            Self::DeltaLength => 0x15,
            Self::Overlap => 0x16,
            Self::DualcastAlignment => 0x17,
            Self::ListAlignment => 0x18,
            Self::InterruptHandle => 0x19,
            Self::RecordTranslation => 0x1A,
            Self::RecordAlignment => 0x1B,
            Self::AddressAlignment => 0x1C,
            Self::Privilege => 0x1D,
            Self::TrafficClass => 0x1E,
            Self::ReadbackFault => 0x1F,
            Self::HardwareError => 0x20,
            Self::DrainReadback => 0x21,
            Self::Untranslated => 0x22,
            Self::OtherOperation(code) | Self::Unknown(code) => code,
        }
    }

    /// Returns the way to go on.
    #[must_use]
    pub const fn next_action(self) -> NextAction {
        match self {
            Self::Success | Self::SuccessUnexpected => NextAction::Use,
            Self::PageFault | Self::PageFaultUnresolved => NextAction::FinishRest,
            // The descriptors of a batch have records of their own; its own says only that one of them failed.
            Self::BatchFailed
            | Self::BatchPageFault
            | Self::OtherOperation(_)
            | Self::UnknownOpcode
            | Self::InvalidFlags
            | Self::ReservedField
            | Self::TransferLength
            | Self::BatchLength
            | Self::DeltaLength
            | Self::Overlap
            | Self::DualcastAlignment
            | Self::ListAlignment
            | Self::AddressAlignment
            | Self::TrafficClass
            // An absent page, as any other fault: the access of the CPU brings it.
            | Self::ReadbackFault
            | Self::Untranslated => NextAction::Repeat,
            Self::InterruptHandle
            | Self::RecordTranslation
            | Self::RecordAlignment
            | Self::Privilege
            | Self::HardwareError
            | Self::DrainReadback
            | Self::Unknown(_) => NextAction::RepeatAndStop,
        }
    }
}

/// The 32 bytes of a completion record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct DsaRecord {
    /// Written last: the other fields are valid if it is not 0.
    status: u8,
    /// Of a compare: 1 if the bytes differ. Of a partly done copy: 1 if the done bytes are the last ones.
    result: u8,
    reserved: U16,
    /// Bytes that are done, or descriptors of a batch.
    completed: U32,
    fault_address: U64,
    /// The CRC. Behind another failure the flags that are invalid.
    crc: U32,
    specific: [U32; 3],
}

const _: () = {
    assert!(size_of::<DsaRecord>() == RECORD_BYTES);
    assert!(std::mem::offset_of!(DsaRecord, completed) == 4);
    assert!(std::mem::offset_of!(DsaRecord, fault_address) == 8);
    assert!(std::mem::offset_of!(DsaRecord, crc) == 16);
};

/// The end of a descriptor, decoded from its completion record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DsaOutcome {
    /// The status.
    pub status: DsaStatus,
    /// True if a page fault was one of a write.
    pub is_write_fault: bool,
    /// The result byte.
    pub result: u8,
    /// Bytes that are done, or descriptors of a batch. Of a compare that found a difference, the bytes before it.
    pub completed: u32,
    /// The address of a page fault.
    pub fault_address: u64,
    /// The CRC-32C of the bytes that are done, if the operation computes one.
    pub crc: u32,
}

impl DsaRecord {
    /// Returns the record of an outcome, as a device writes it.
    #[must_use]
    pub fn of(outcome: &DsaOutcome) -> Self {
        let write = if outcome.is_write_fault { WRITE_FAULT } else { 0 };
        Self {
            status: outcome.status.code() | write,
            result: outcome.result,
            completed: U32::new(outcome.completed),
            fault_address: U64::new(outcome.fault_address),
            crc: U32::new(outcome.crc),
            ..Self::default()
        }
    }

    /// Returns the outcome; `None` if the descriptor has not ended.
    #[must_use]
    pub fn outcome(&self) -> Option<DsaOutcome> {
        Some(DsaOutcome {
            status: DsaStatus::of(self.status)?,
            is_write_fault: self.status & WRITE_FAULT != 0,
            result: self.result,
            completed: self.completed.get(),
            fault_address: self.fault_address.get(),
            crc: self.crc.get(),
        })
    }
}

impl DsaOutcome {
    /// Returns the outcome of a descriptor that ended with a status.
    #[must_use]
    pub const fn of(status: DsaStatus) -> Self {
        Self { status, is_write_fault: false, result: 0, completed: 0, fault_address: 0, crc: 0 }
    }

    /// Returns the bytes at the start of a descriptor's range of `bytes` bytes that are done: 0 for an operation that went
    /// backwards, and never more than there are.
    #[must_use]
    pub fn done_from_start(&self, opcode: DsaOpcode, bytes: u32) -> u32 {
        let is_backward = opcode == DsaOpcode::MemoryMove && self.result != 0;
        if is_backward { 0 } else { self.completed.min(bytes) }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn records_have_the_bytes_of_the_specification() {
        let outcome = DsaOutcome {
            status: DsaStatus::PageFault,
            is_write_fault: true,
            result: 1,
            completed: 0x0102_0304,
            fault_address: 0x1122_3344_5566_7788,
            crc: 0xDEAD_BEEF,
        };
        let golden = [
            [0x83, 0x01, 0x00, 0x00, 0x04, 0x03, 0x02, 0x01],
            [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11],
            [0xEF, 0xBE, 0xAD, 0xDE, 0x00, 0x00, 0x00, 0x00],
            [0x00; 8],
        ];
        let record = DsaRecord::of(&outcome);
        assert_eq!(record.as_bytes(), golden.as_flattened());
        assert_eq!(DsaRecord::read_from_bytes(golden.as_flattened()).unwrap().outcome(), Some(outcome));
        assert_eq!(DsaRecord::default().outcome(), None, "not ended");
    }

    #[test]
    fn every_status_byte_has_one_meaning_and_returns_as_itself() {
        for byte in 1..=u8::MAX {
            match DsaStatus::of(byte) {
                None => assert_eq!(byte & !WRITE_FAULT, 0),
                Some(status) => {
                    assert_eq!(status.code(), byte & !WRITE_FAULT);
                    assert_eq!(DsaStatus::of(status.code()), Some(status));
                }
            }
        }
        // The codes by their numbers in the specification.
        let known =
            [(0x01, DsaStatus::Success), (0x03, DsaStatus::PageFault), (0x05, DsaStatus::BatchFailed)];
        for (byte, status) in known {
            assert_eq!(DsaStatus::of(byte), Some(status));
        }
        assert_eq!(DsaStatus::of(0x13), Some(DsaStatus::TransferLength));
        assert_eq!(DsaStatus::of(0x17), Some(DsaStatus::DualcastAlignment));
        assert_eq!(DsaStatus::of(0x22), Some(DsaStatus::Untranslated));
    }

    #[test]
    fn only_success_is_used_and_only_a_page_fault_is_finished() {
        for byte in 1..=0x7F {
            let Some(status) = DsaStatus::of(byte) else { continue };
            let action = status.next_action();
            assert_eq!(action == NextAction::Use, byte <= 2, "{status:?}");
            assert_eq!(action == NextAction::FinishRest, byte == 3 || byte == 4, "{status:?}");
        }
    }

    #[test]
    fn fault_of_a_readback_leaves_the_device_in_use_and_an_error_of_the_hardware_does_not() {
        let next_action = |byte| DsaStatus::of(byte).map(DsaStatus::next_action);
        for readback in [0x1F, 0x1F | WRITE_FAULT] {
            assert_eq!(next_action(readback), Some(NextAction::Repeat), "{readback:#04x}");
        }
        for error in [0x1A, 0x20, 0x21] {
            assert_eq!(next_action(error), Some(NextAction::RepeatAndStop), "{error:#04x}");
        }
    }

    #[test]
    fn done_bytes_are_those_at_the_start_and_within_the_range() {
        let outcome = DsaOutcome { completed: 100, ..DsaOutcome::of(DsaStatus::PageFault) };
        assert_eq!(outcome.done_from_start(DsaOpcode::MemoryMove, 4_096), 100);
        assert_eq!(outcome.done_from_start(DsaOpcode::MemoryMove, 60), 60);
        let backward = DsaOutcome { result: 1, ..outcome };
        assert_eq!(backward.done_from_start(DsaOpcode::MemoryMove, 4_096), 0);
        assert_eq!(backward.done_from_start(DsaOpcode::Compare, 4_096), 100);
    }
}
