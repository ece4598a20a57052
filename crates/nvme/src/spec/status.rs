//! Status codes (NVMe Base 2.0 section 4.5.1 "Status Field"; KV Command Set 1.0d section 3.1 for 81h to 89h).

use std::fmt;

/// What became of a command: status code type, status code, and whether retrying the same command can help.
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

            /// What the status means, in words.
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
    /// Moving the data failed: an address outside the client's memory.
    DATA_TRANSFER_ERROR = (0, 0x04, true, "data transfer error");
    /// Something inside the device failed; another try may succeed.
    INTERNAL_ERROR = (0, 0x06, false, "internal error");
    /// The command was aborted because its queue was deleted.
    ABORTED_SQ_DELETION = (0, 0x08, false, "command aborted due to SQ deletion");
    /// The namespace does not exist or its format does not allow this.
    INVALID_NAMESPACE = (0, 0x0B, true, "invalid namespace or format");
    /// The commands of a batch cannot be carried out in their order.
    COMMAND_SEQUENCE_ERROR = (0, 0x0C, true, "command sequence error");
    /// An SGL segment is empty, or its descriptors are not those of a segment.
    INVALID_SGL_SEGMENT = (0, 0x0D, true, "invalid SGL segment descriptor");
    /// An SGL has fewer or more descriptors than allowed.
    INVALID_SGL_COUNT = (0, 0x0E, true, "invalid number of SGL descriptors");
    /// The SGL, or the data that came, is shorter or longer than the command.
    DATA_SGL_LENGTH_INVALID = (0, 0x0F, true, "data SGL length invalid");
    /// The metadata SGL is shorter or longer than the command.
    METADATA_SGL_LENGTH_INVALID = (0, 0x10, true, "metadata SGL length invalid");
    /// An SGL descriptor has a type or subtype that is not supported here.
    SGL_TYPE_INVALID = (0, 0x11, true, "SGL descriptor type invalid");
    /// The offset of a PRP entry is not allowed at its place.
    PRP_OFFSET_INVALID = (0, 0x13, true, "PRP offset invalid");
    /// An offset into the capsule's data lies behind it.
    SGL_OFFSET_INVALID = (0, 0x16, true, "SGL offset invalid");
    /// The data was damaged on its way; another try may succeed.
    TRANSIENT_TRANSPORT_ERROR = (0, 0x22, false, "transient transport error");
    /// No free space is left; deleting keys or waiting for collection helps.
    CAPACITY_EXCEEDED = (0, 0x81, false, "capacity exceeded");
    /// The namespace is not ready.
    NAMESPACE_NOT_READY = (0, 0x82, false, "namespace not ready");
    /// The value is larger than the format allows.
    INVALID_VALUE_SIZE = (0, 0x85, true, "invalid value size");
    /// The key is larger or smaller than the format allows.
    INVALID_KEY_SIZE = (0, 0x86, true, "invalid key size");
    /// No such key.
    KEY_DOES_NOT_EXIST = (0, 0x87, true, "KV key does not exist");
    /// The record is damaged; its data is lost.
    UNRECOVERED_ERROR = (0, 0x88, true, "unrecovered error");
    /// The key is there already.
    KEY_EXISTS = (0, 0x89, true, "key exists");
    /// The blocks do not hold what they were compared with.
    COMPARE_FAILURE = (2, 0x85, false, "compare failure");
    /// The client lacks the right to touch this namespace or these blocks.
    ACCESS_DENIED = (2, 0x86, true, "access denied");
    /// The command names blocks beyond the size of the namespace.
    LBA_OUT_OF_RANGE = (0, 0x80, true, "LBA out of range");
    /// The write would go to blocks that may not be written.
    READ_ONLY = (1, 0x82, true, "attempted write to read only range");
    /// Bits of the command exclude each other.
    CONFLICTING_ATTRIBUTES = (1, 0x80, true, "conflicting attributes");
    /// The command asks for protection information that the format does not have.
    INVALID_PROTECTION = (1, 0x81, true, "invalid protection information");
    /// More, or larger, ranges than a command may carry.
    COMMAND_SIZE_LIMIT = (1, 0x83, true, "command size limit exceeded");
    /// The completion queue of a new submission queue does not exist.
    COMPLETION_QUEUE_INVALID = (1, 0x00, true, "completion queue invalid");
    /// The queue identifier is out of range or taken.
    INVALID_QUEUE_ID = (1, 0x01, true, "invalid queue identifier");
    /// The queue size is zero or above the limit.
    INVALID_QUEUE_SIZE = (1, 0x02, true, "invalid queue size");
    /// The interrupt vector is not one of the controller's.
    INVALID_INTERRUPT_VECTOR = (1, 0x08, true, "invalid interrupt vector");
    /// Submission queues still answer to the completion queue.
    INVALID_QUEUE_DELETION = (1, 0x0C, true, "invalid queue deletion");
    /// The format that was asked for is not supported.
    INVALID_FORMAT = (1, 0x0A, true, "invalid format");
    /// Every namespace number is taken.
    NAMESPACE_ID_UNAVAILABLE = (1, 0x16, true, "namespace identifier unavailable");
    /// A block's record is damaged; its data is lost.
    UNRECOVERED_READ_ERROR = (2, 0x81, true, "unrecovered read error");
    /// The command was given up because its host asked for that.
    ABORT_REQUESTED = (0, 0x07, false, "command abort requested");
    /// The host did not say in time that it is alive.
    KEEP_ALIVE_EXPIRED = (0, 0x1A, true, "keep alive timer expired");
    /// The last sanitize operation failed, and only another one is allowed.
    SANITIZE_FAILED = (0, 0x1C, true, "sanitize failed");
    /// A sanitize operation goes on.
    SANITIZE_IN_PROGRESS = (0, 0x1D, false, "sanitize in progress");
    /// More commands to abort than the controller takes at once.
    ABORT_LIMIT_EXCEEDED = (1, 0x03, false, "abort command limit exceeded");
    /// More event requests than the controller keeps.
    ASYNC_EVENT_LIMIT_EXCEEDED = (1, 0x05, true, "asynchronous event request limit exceeded");
    /// The log page is not supported.
    INVALID_LOG_PAGE = (1, 0x09, true, "invalid log page");
    /// The feature cannot be kept over a reset.
    FEATURE_NOT_SAVEABLE = (1, 0x0D, true, "feature identifier not saveable");
    /// The feature has a value that cannot be changed.
    FEATURE_NOT_CHANGEABLE = (1, 0x0E, true, "feature not changeable");
    /// The feature is the controller's, and the command named a namespace.
    FEATURE_NOT_NAMESPACE_SPECIFIC = (1, 0x0F, true, "feature not namespace specific");
    /// There is not enough unallocated capacity for the namespace.
    NAMESPACE_INSUFFICIENT_CAPACITY = (1, 0x15, true, "namespace insufficient capacity");
    /// The namespace is attached to the controller already.
    NAMESPACE_ALREADY_ATTACHED = (1, 0x18, true, "namespace already attached");
    /// The namespace is not attached to the controller.
    NAMESPACE_NOT_ATTACHED = (1, 0x1A, true, "namespace not attached");
    /// A namespace cannot be larger than its capacity.
    THIN_PROVISIONING_NOT_SUPPORTED = (1, 0x1B, true, "thin provisioning not supported");
    /// The controller list is empty, out of order, or names a controller that is none.
    CONTROLLER_LIST_INVALID = (1, 0x1C, true, "controller list invalid");
    /// The I/O command set is not supported.
    COMMAND_SET_NOT_SUPPORTED = (1, 0x29, true, "I/O command set not supported");
    /// The combination of I/O command sets does not exist.
    COMMAND_SET_COMBINATION_REJECTED = (1, 0x2B, true, "I/O command set combination rejected");
    /// The I/O command set is not one of the namespace or of the controller.
    INVALID_COMMAND_SET = (1, 0x2C, true, "invalid I/O command set");
    /// The host gave the command up: its controller was reset, and nobody knows whether it was carried out.
    ABORTED_BY_HOST = (3, 0x71, false, "command aborted by host: the controller was reset");
    /// There is no way to the controller any more.
    HOST_PATHING_ERROR = (3, 0x70, true, "host pathing error: the controller is gone");
    /// The stored record is not the one the command named (vendor specific; store with a sequence condition).
    SEQUENCE_MISMATCH = (7, 0xC0, true, "the key changed since it was read");
}

impl Status {
    /// Whether the command did what it was asked.
    #[must_use]
    #[inline]
    pub const fn is_success(self) -> bool {
        self.code_type == 0 && self.code == 0
    }

    /// Whether it says the same, whatever it thinks of another try: devices set Do Not Retry as they like.
    #[must_use]
    #[inline]
    pub const fn is(self, other: Self) -> bool {
        self.code_type == other.code_type && self.code == other.code
    }

    /// The status as bits 15 to 1 of the upper half of completion dword 3 carry it, bit 0 (the phase tag) clear:
    /// SC in 8:1, SCT in 11:9, DNR in 15. Command Retry Delay and More are not used and stay zero.
    #[must_use]
    #[inline]
    pub const fn to_field(self) -> u16 {
        ((self.code as u16) << 1)
            | (((self.code_type & 0x7) as u16) << 9)
            | if self.do_not_retry { DO_NOT_RETRY } else { 0 }
    }

    /// Reads what [`to_field`](Self::to_field) wrote; the phase tag, Command Retry Delay and More are left aside.
    #[must_use]
    #[inline]
    pub const fn from_field(field: u16) -> Self {
        let [code, _] = (field >> 1).to_le_bytes();
        let [code_type, _] = ((field >> 9) & 0x7).to_le_bytes();
        Self { code_type, code, do_not_retry: field & DO_NOT_RETRY != 0 }
    }
}

/// Place of the Do Not Retry bit in the status field with its phase tag: bit 31 of completion dword 3.
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
    fn every_status_survives_the_wire() {
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
    fn a_status_is_itself_whatever_it_thinks_of_another_try() {
        let firm = Status { do_not_retry: true, ..Status::COMPARE_FAILURE };
        assert!(firm.is(Status::COMPARE_FAILURE) && firm != Status::COMPARE_FAILURE);
        assert!(!firm.is(Status::ACCESS_DENIED));
    }

    #[test]
    fn do_not_retry_is_the_top_bit() {
        assert_eq!(Status::INVALID_FIELD.to_field(), 0x8004);
        assert_eq!(Status::CAPACITY_EXCEEDED.to_field(), 0x0102);
        assert_eq!(Status::SUCCESS.to_field(), 0);
    }
}
