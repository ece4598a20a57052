//! Status codes (NVMe Base 2.0 section 4.5.1 "Status Field"; KV Command Set 1.0d section 3.1 for 81h to 89h).

use std::fmt;

/// The status of a command: status code type, status code, and Do Not Retry.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status {
    /// Status Code Type, 3 bits.
    pub code_type: u8,
    /// Status Code, 8 bits.
    pub code: u8,
    /// Do Not Retry: the same command will fail again.
    pub do_not_retry: bool,
}

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = ($sct:literal, $sc:literal, $dnr:literal, $text:literal);)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Self = Self { code_type: $sct, code: $sc, do_not_retry: $dnr };)*

            /// Returns the meaning of the status as text.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match (self.code_type, self.code) {
                    $(($sct, $sc) => $text,)*
                    _ => "unknown status",
                }
            }
        }
    };
}

statuses! {
    /// Success.
    SUCCESS = (0, 0x00, false, "success");
    /// The opcode is not supported on this queue.
    INVALID_OPCODE = (0, 0x01, true, "invalid command opcode");
    /// A field of the command has a value that is not allowed.
    INVALID_FIELD = (0, 0x02, true, "invalid field in command");
    /// The command identifier is in use by a live command of the same queue.
    COMMAND_ID_CONFLICT = (0, 0x03, true, "command id conflict");
    /// The data transfer failed: an address is outside the client's memory.
    DATA_TRANSFER_ERROR = (0, 0x04, true, "data transfer error");
    /// The device failed internally; a retry may succeed.
    INTERNAL_ERROR = (0, 0x06, false, "internal error");
    /// The command was aborted because its queue was deleted.
    ABORTED_SQ_DELETION = (0, 0x08, false, "command aborted due to SQ deletion");
    /// The namespace does not exist or its format does not allow the command.
    INVALID_NAMESPACE = (0, 0x0B, true, "invalid namespace or format");
    /// The commands of a batch cannot be executed in this order.
    COMMAND_SEQUENCE_ERROR = (0, 0x0C, true, "command sequence error");
    /// An SGL segment is empty, or its descriptors do not form a valid segment.
    INVALID_SGL_SEGMENT = (0, 0x0D, true, "invalid SGL segment descriptor");
    /// An SGL has fewer or more descriptors than allowed.
    INVALID_SGL_COUNT = (0, 0x0E, true, "invalid number of SGL descriptors");
    /// The SGL, or the data received, is shorter or longer than the command requires.
    DATA_SGL_LENGTH_INVALID = (0, 0x0F, true, "data SGL length invalid");
    /// The metadata SGL is shorter or longer than the command requires.
    METADATA_SGL_LENGTH_INVALID = (0, 0x10, true, "metadata SGL length invalid");
    /// An SGL descriptor has an unsupported type or subtype.
    SGL_TYPE_INVALID = (0, 0x11, true, "SGL descriptor type invalid");
    /// The offset of a PRP entry is not allowed at its position.
    PRP_OFFSET_INVALID = (0, 0x13, true, "PRP offset invalid");
    /// An offset into the capsule's data is beyond its end.
    SGL_OFFSET_INVALID = (0, 0x16, true, "SGL offset invalid");
    /// The namespace is only read.
    NAMESPACE_WRITE_PROTECTED = (0, 0x20, true, "namespace is write protected");
    /// The data was corrupted in transit; a retry may succeed.
    TRANSIENT_TRANSPORT_ERROR = (0, 0x22, false, "transient transport error");
    /// No free space is left until keys are deleted, garbage collection frees blocks, or the medium gets more space.
    CAPACITY_EXCEEDED = (0, 0x81, false, "capacity exceeded");
    /// The namespace is not ready.
    NAMESPACE_NOT_READY = (0, 0x82, false, "namespace not ready");
    /// The value is larger than the format allows.
    INVALID_VALUE_SIZE = (0, 0x85, true, "invalid value size");
    /// The key is larger or smaller than the format allows.
    INVALID_KEY_SIZE = (0, 0x86, true, "invalid key size");
    /// The key does not exist.
    KEY_DOES_NOT_EXIST = (0, 0x87, true, "KV key does not exist");
    /// The record is damaged; its data is lost.
    UNRECOVERED_ERROR = (0, 0x88, true, "unrecovered error");
    /// The key already exists.
    KEY_EXISTS = (0, 0x89, true, "key exists");
    /// The blocks differ from the data they were compared with.
    COMPARE_FAILURE = (2, 0x85, false, "compare failure");
    /// The client has no access right to this namespace or these blocks.
    ACCESS_DENIED = (2, 0x86, true, "access denied");
    /// The command addresses blocks beyond the size of the namespace.
    LBA_OUT_OF_RANGE = (0, 0x80, true, "LBA out of range");
    /// The write addresses blocks that are read-only.
    READ_ONLY = (1, 0x82, true, "attempted write to read only range");
    /// Bits of the command exclude each other.
    CONFLICTING_ATTRIBUTES = (1, 0x80, true, "conflicting attributes");
    /// The command requests protection information that the format does not have.
    INVALID_PROTECTION = (1, 0x81, true, "invalid protection information");
    /// The command has more, or larger, ranges than allowed.
    COMMAND_SIZE_LIMIT = (1, 0x83, true, "command size limit exceeded");
    /// The completion queue of a new submission queue does not exist.
    COMPLETION_QUEUE_INVALID = (1, 0x00, true, "completion queue invalid");
    /// The queue identifier is out of range or in use.
    INVALID_QUEUE_ID = (1, 0x01, true, "invalid queue identifier");
    /// The queue size is zero or above the limit.
    INVALID_QUEUE_SIZE = (1, 0x02, true, "invalid queue size");
    /// The interrupt vector does not exist on the controller.
    INVALID_INTERRUPT_VECTOR = (1, 0x08, true, "invalid interrupt vector");
    /// Submission queues still use the completion queue.
    INVALID_QUEUE_DELETION = (1, 0x0C, true, "invalid queue deletion");
    /// The requested format is not supported.
    INVALID_FORMAT = (1, 0x0A, true, "invalid format");
    /// Every namespace identifier is in use.
    NAMESPACE_ID_UNAVAILABLE = (1, 0x16, true, "namespace identifier unavailable");
    /// The medium cannot take the data: blocks that cannot be read leave no room that could be freed.
    WRITE_FAULT = (2, 0x80, false, "write fault");
    /// A block's record is damaged; its data is lost.
    UNRECOVERED_READ_ERROR = (2, 0x81, true, "unrecovered read error");
    /// The command was aborted because its host requested it.
    ABORT_REQUESTED = (0, 0x07, false, "command abort requested");
    /// The host sent no Keep Alive in time.
    KEEP_ALIVE_EXPIRED = (0, 0x1A, true, "keep alive timer expired");
    /// The last sanitize operation failed; only another sanitize is allowed.
    SANITIZE_FAILED = (0, 0x1C, true, "sanitize failed");
    /// A sanitize operation is in progress.
    SANITIZE_IN_PROGRESS = (0, 0x1D, false, "sanitize in progress");
    /// The number of outstanding Abort commands exceeds the controller's limit.
    ABORT_LIMIT_EXCEEDED = (1, 0x03, false, "abort command limit exceeded");
    /// The number of outstanding event requests exceeds the controller's limit.
    ASYNC_EVENT_LIMIT_EXCEEDED = (1, 0x05, true, "asynchronous event request limit exceeded");
    /// The log page is not supported.
    INVALID_LOG_PAGE = (1, 0x09, true, "invalid log page");
    /// The feature cannot be saved across a reset.
    FEATURE_NOT_SAVEABLE = (1, 0x0D, true, "feature identifier not saveable");
    /// The feature has a value that cannot be changed.
    FEATURE_NOT_CHANGEABLE = (1, 0x0E, true, "feature not changeable");
    /// The feature applies to the controller, but the command specified a namespace.
    FEATURE_NOT_NAMESPACE_SPECIFIC = (1, 0x0F, true, "feature not namespace specific");
    /// There is not enough unallocated capacity for the namespace.
    NAMESPACE_INSUFFICIENT_CAPACITY = (1, 0x15, true, "namespace insufficient capacity");
    /// The namespace is attached to the controller already.
    NAMESPACE_ALREADY_ATTACHED = (1, 0x18, true, "namespace already attached");
    /// The namespace is not attached to the controller.
    NAMESPACE_NOT_ATTACHED = (1, 0x1A, true, "namespace not attached");
    /// A namespace cannot be larger than its capacity.
    THIN_PROVISIONING_NOT_SUPPORTED = (1, 0x1B, true, "thin provisioning not supported");
    /// The controller list is empty, out of order, or holds an identifier of no controller.
    CONTROLLER_LIST_INVALID = (1, 0x1C, true, "controller list invalid");
    /// The I/O command set is not supported.
    COMMAND_SET_NOT_SUPPORTED = (1, 0x29, true, "I/O command set not supported");
    /// The combination of I/O command sets does not exist.
    COMMAND_SET_COMBINATION_REJECTED = (1, 0x2B, true, "I/O command set combination rejected");
    /// The I/O command set is not that of the namespace, or not one of the controller's.
    INVALID_COMMAND_SET = (1, 0x2C, true, "invalid I/O command set");
    /// The host aborted the command because its controller was reset; the command may have been executed.
    ABORTED_BY_HOST = (3, 0x71, false, "command aborted by host: the controller was reset");
    /// The host has no path to the controller any more.
    HOST_PATHING_ERROR = (3, 0x70, true, "host pathing error: the controller is gone");
    /// The stored record does not have the sequence number in the command (vendor specific; store with a sequence
    /// condition).
    SEQUENCE_MISMATCH = (7, 0xC0, true, "the key changed since it was read");
}

impl Status {
    /// Write Fault with Do Not Retry: a write or a flush of the medium failed, and the device takes no write any more.
    pub const MEDIUM_FAILED: Self = Self { do_not_retry: true, ..Self::WRITE_FAULT };

    /// Returns true if the command succeeded.
    #[must_use]
    #[inline]
    pub const fn is_success(self) -> bool {
        self.code_type == 0 && self.code == 0
    }

    /// Returns true if code type and code are equal. Ignores Do Not Retry, because devices differ in how they set it.
    #[must_use]
    #[inline]
    pub const fn same_code(self, other: Self) -> bool {
        self.code_type == other.code_type && self.code == other.code
    }

    /// Returns the status as the upper half of completion dword 3, with bit 0 (the phase tag) clear:
    /// SC in 8:1, SCT in 11:9, DNR in 15. Command Retry Delay and More are unused and zero.
    #[must_use]
    #[inline]
    pub const fn to_field(self) -> u16 {
        ((self.code as u16) << 1)
            | (((self.code_type & 0x7) as u16) << 9)
            | if self.do_not_retry { DO_NOT_RETRY } else { 0 }
    }

    /// Decodes the encoding of [`to_field`](Self::to_field); ignores the phase tag, Command Retry Delay and More.
    #[must_use]
    #[inline]
    pub const fn from_field(field: u16) -> Self {
        let [code, _] = (field >> 1).to_le_bytes();
        let [code_type, _] = ((field >> 9) & 0x7).to_le_bytes();
        Self { code_type, code, do_not_retry: field & DO_NOT_RETRY != 0 }
    }
}

/// The Do Not Retry bit in the status field with its phase tag: bit 31 of completion dword 3.
const DO_NOT_RETRY: u16 = 1 << 15;

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{:02x}h ({})", self.code_type, self.code, self.text())
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (type {}, code {:02x}h)", self.text(), self.code_type, self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_round_trips_through_its_field() {
        for code_type in 0..8 {
            for code in 0..=u8::MAX {
                for do_not_retry in [false, true] {
                    let status = Status { code_type, code, do_not_retry };
                    assert_eq!(Status::from_field(status.to_field()), status);
                    assert_eq!(Status::from_field(status.to_field() | 1), status);
                }
            }
        }
    }

    #[test]
    fn status_comparison_ignores_do_not_retry() {
        let firm = Status { do_not_retry: true, ..Status::COMPARE_FAILURE };
        assert!(firm.same_code(Status::COMPARE_FAILURE) && firm != Status::COMPARE_FAILURE);
        assert!(!firm.same_code(Status::ACCESS_DENIED));
    }

    #[test]
    fn do_not_retry_is_the_top_bit() {
        assert_eq!(Status::INVALID_FIELD.to_field(), 0x8004);
        assert_eq!(Status::CAPACITY_EXCEEDED.to_field(), 0x0102);
        assert_eq!(Status::SUCCESS.to_field(), 0);
    }
}
