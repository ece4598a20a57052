//! Opcodes (KV Command Set 1.0d figure 5; NVMe Base 2.0 sections 5 and 7; the UIO put and get in the vendor range).
//!
//! Input: the first byte of a submission entry. Output: a name, or `None` if this controller does not support the
//! opcode.
//! Invariant: bits 1:0 of every opcode here state the direction of its data; hosts map their memory for DMA by these
//! bits.

use super::numbered::numbered;

/// The direction of a command's data, as stated by the opcode's low two bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataTransfer {
    /// 00b: no data.
    None,
    /// 01b: from the host to the controller.
    HostToController,
    /// 10b: from the controller to the host.
    ControllerToHost,
    /// 11b: both directions.
    Bidirectional,
}

impl DataTransfer {
    /// Returns the direction that the low two bits of `opcode` state.
    #[must_use]
    pub const fn of_opcode(opcode: u8) -> Self {
        match opcode & 0b11 {
            0b00 => Self::None,
            0b01 => Self::HostToController,
            0b10 => Self::ControllerToHost,
            _ => Self::Bidirectional,
        }
    }
}

numbered! {
    /// Commands of an I/O queue on a Key Value namespace.
    IoOpcode {
        /// Make all acknowledged writes durable (Base 7.1).
        Flush = 0x00,
        /// Store a value under a key (KV 3.2.5).
        Store = 0x01,
        /// Read the value of a key (KV 3.2.3).
        Retrieve = 0x02,
        /// Read keys (KV 3.2.2).
        List = 0x06,
        /// Remove a key (KV 3.2.1).
        Delete = 0x10,
        /// Check that a key exists (KV 3.2.4).
        Exist = 0x14,
        /// UIO put: key and value by address. Vendor specific, only on queues created for it.
        UioPut = 0x81,
        /// UIO get: key by address, value to an address. Vendor specific, only on queues created for it.
        UioGet = 0x82,
    }
}

numbered! {
    /// Commands of an I/O queue on a block namespace (NVM Command Set 1.0 section 3.2).
    NvmOpcode {
        /// Make all acknowledged writes durable (Base 7.1).
        Flush = 0x00,
        /// Write blocks (NVM 3.2.6).
        Write = 0x01,
        /// Read blocks (NVM 3.2.4).
        Read = 0x02,
        /// Compare blocks with what the host sends (NVM 3.2.1).
        Compare = 0x05,
        /// Make blocks read as zeroes (NVM 3.2.8).
        WriteZeroes = 0x08,
        /// Give access hints for ranges, or deallocate them (NVM 3.2.3).
        DatasetManagement = 0x09,
        /// Check blocks without transferring them (NVM 3.2.5).
        Verify = 0x0C,
        /// Copy blocks inside the namespace (NVM 3.2.2).
        Copy = 0x19,
    }
}

numbered! {
    /// Commands of the admin queue (Base 5, figure 138).
    AdminOpcode {
        /// Delete a submission queue; its commands are still completed.
        DeleteSubmissionQueue = 0x00,
        /// Create a submission queue on an existing completion queue.
        CreateSubmissionQueue = 0x01,
        /// Read a log page.
        GetLogPage = 0x02,
        /// Delete a completion queue that no submission queue uses.
        DeleteCompletionQueue = 0x04,
        /// Create a completion queue.
        CreateCompletionQueue = 0x05,
        /// Read an Identify data structure.
        Identify = 0x06,
        /// Abort a command.
        Abort = 0x08,
        /// Change a feature.
        SetFeatures = 0x09,
        /// Read a feature.
        GetFeatures = 0x0A,
        /// Wait for an event.
        AsyncEventRequest = 0x0C,
        /// Create or delete namespaces.
        NamespaceManagement = 0x0D,
        /// Attach namespaces to controllers, or detach them.
        NamespaceAttachment = 0x15,
        /// Restart the keep alive timer.
        KeepAlive = 0x18,
        /// Set the addresses of the shadow doorbell and EventIdx buffers.
        DoorbellBufferConfig = 0x7C,
        /// Format namespaces; their data is lost.
        FormatNvm = 0x80,
        /// Erase all user data of the subsystem.
        Sanitize = 0x84,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_opcode_direction_bits_match_commands() {
        for &opcode in IoOpcode::ALL {
            let expected = match opcode {
                IoOpcode::Flush | IoOpcode::Delete | IoOpcode::Exist => DataTransfer::None,
                IoOpcode::Store | IoOpcode::UioPut => DataTransfer::HostToController,
                IoOpcode::Retrieve | IoOpcode::List | IoOpcode::UioGet => DataTransfer::ControllerToHost,
            };
            assert_eq!(DataTransfer::of_opcode(opcode.number()), expected, "{opcode:?}");
        }
        for &opcode in NvmOpcode::ALL {
            let expected = match opcode {
                NvmOpcode::Flush | NvmOpcode::WriteZeroes | NvmOpcode::Verify => DataTransfer::None,
                NvmOpcode::Write | NvmOpcode::Compare | NvmOpcode::DatasetManagement | NvmOpcode::Copy => {
                    DataTransfer::HostToController
                }
                NvmOpcode::Read => DataTransfer::ControllerToHost,
            };
            assert_eq!(DataTransfer::of_opcode(opcode.number()), expected, "{opcode:?}");
        }
    }

    #[test]
    fn admin_opcode_direction_bits_match_commands() {
        for &opcode in AdminOpcode::ALL {
            let expected = match opcode {
                AdminOpcode::GetLogPage | AdminOpcode::Identify | AdminOpcode::GetFeatures => {
                    DataTransfer::ControllerToHost
                }
                AdminOpcode::CreateSubmissionQueue
                | AdminOpcode::CreateCompletionQueue
                | AdminOpcode::SetFeatures
                | AdminOpcode::NamespaceManagement
                | AdminOpcode::NamespaceAttachment => DataTransfer::HostToController,
                _ => DataTransfer::None,
            };
            assert_eq!(DataTransfer::of_opcode(opcode.number()), expected, "{opcode:?}");
        }
    }

    #[test]
    fn opcodes_round_trip_through_numbers() {
        for number in 0..=u8::MAX {
            if let Some(opcode) = IoOpcode::from_number(number) {
                assert_eq!(opcode.number(), number);
            }
            if let Some(opcode) = NvmOpcode::from_number(number) {
                assert_eq!(opcode.number(), number);
            }
            if let Some(opcode) = AdminOpcode::from_number(number) {
                assert_eq!(opcode.number(), number);
            }
        }
        assert_eq!(IoOpcode::from_number(0x83), None);
        assert_eq!(AdminOpcode::from_number(0x14), None);
    }
}
