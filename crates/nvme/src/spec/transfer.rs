//! The data of I/O commands: direction and length for each opcode (NVM Command Set 1.0 section 3.2; KV 1.0d section 3.2).
//!
//! Input: a submission entry, and the block size of a block namespace.
//! Output: a [`CommandTransfer`], or `None` if the entry does not state the length of its data.
//! Invariant: the direction is the one in the low two bits of the opcode. The receiver validates the entry.

use crate::spec::command::SubmissionEntry;
use crate::spec::nvm::{CopyRange, DatasetRange};
use crate::spec::opcode::{DataTransfer, IoOpcode, NvmOpcode};
use std::mem::size_of;

/// Bytes of one range of Dataset Management.
const DATASET_RANGE_BYTES: u64 = size_of::<DatasetRange>() as u64;
/// Bytes of one source range of Copy, descriptor format 0h.
const COPY_RANGE_BYTES: u64 = size_of::<CopyRange>() as u64;
/// Bytes of one source range of Copy, descriptor format 1h, whose tags are longer.
const LONG_COPY_RANGE_BYTES: u64 = 40;

/// The relation between the length that an entry states and the length of the client's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LengthRule {
    /// The data has exactly this length.
    Exact,
    /// The data may be longer: the command uses the front of a list or of a buffer.
    AtLeast,
}

/// The data that a command transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandTransfer {
    /// The direction.
    pub direction: DataTransfer,
    /// Length in bytes; 0 without data.
    pub bytes: u64,
    /// The relation of `bytes` to the length of the client's data.
    pub length: LengthRule,
    /// True if the command changes the namespace, so that a read-only client must not send it. A Dataset Management
    /// counts as a change even if it only gives hints.
    pub changes_namespace: bool,
}

impl CommandTransfer {
    /// No data, and no change.
    pub const NONE: Self =
        Self { direction: DataTransfer::None, bytes: 0, length: LengthRule::Exact, changes_namespace: false };
}

impl SubmissionEntry {
    /// Returns the data of a command on a namespace with blocks of `block_bytes` bytes, or `None` if the NVM command
    /// set 1.0 has no such opcode, or no such descriptor format of the source ranges of a Copy.
    #[must_use]
    #[inline]
    pub fn nvm_transfer(&self, block_bytes: u32) -> Option<CommandTransfer> {
        let blocks = u64::from(self.nvm_blocks()) * u64::from(block_bytes);
        let (bytes, length, changes_namespace) = match NvmOpcode::from_number(self.opcode)? {
            // Base 7.1; NVM 3.2.5.
            NvmOpcode::Flush | NvmOpcode::Verify => (0, LengthRule::Exact, false),
            // NVM 3.2.8.
            NvmOpcode::WriteZeroes => (0, LengthRule::Exact, true),
            // NVM 3.2.4 and 3.2.1: NLB, CDW12 15:0.
            NvmOpcode::Read | NvmOpcode::Compare => (blocks, LengthRule::Exact, false),
            // NVM 3.2.6: NLB, CDW12 15:0.
            NvmOpcode::Write => (blocks, LengthRule::Exact, true),
            // NVM 3.2.3: NR, CDW10 7:0.
            NvmOpcode::DatasetManagement => {
                let list = u64::from(self.nvm_dataset_ranges()) * DATASET_RANGE_BYTES;
                (list, LengthRule::AtLeast, true)
            }
            // NVM 3.2.2: NR, CDW12 7:0.
            NvmOpcode::Copy => {
                let range_bytes = match self.nvm_copy_format() {
                    0 => COPY_RANGE_BYTES,
                    1 => LONG_COPY_RANGE_BYTES,
                    _ => return None,
                };
                (u64::from(self.nvm_copy_ranges()) * range_bytes, LengthRule::AtLeast, true)
            }
        };
        let direction = DataTransfer::of_opcode(self.opcode);
        Some(CommandTransfer { direction, bytes, length, changes_namespace })
    }

    /// Returns the data of a command on a key space, or `None` if the Key Value command set has no such opcode. That
    /// includes the UIO put and get, whose entries have no data pointer: they give key and value by address and length
    /// in fields of their own.
    #[must_use]
    #[inline]
    pub fn kv_transfer(&self) -> Option<CommandTransfer> {
        let data = u64::from(self.kv_data_bytes());
        let (bytes, length, changes_namespace) = match IoOpcode::from_number(self.opcode)? {
            // Base 7.1; KV 3.2.4.
            IoOpcode::Flush | IoOpcode::Exist => (0, LengthRule::Exact, false),
            // KV 3.2.1.
            IoOpcode::Delete => (0, LengthRule::Exact, true),
            // KV 3.2.5: Value Size, CDW10.
            IoOpcode::Store => (data, LengthRule::Exact, true),
            // KV 3.2.3 and 3.2.2: Host Buffer Size, CDW10.
            IoOpcode::Retrieve | IoOpcode::List => (data, LengthRule::AtLeast, false),
            IoOpcode::UioPut | IoOpcode::UioGet => return None,
        };
        let direction = DataTransfer::of_opcode(self.opcode);
        Some(CommandTransfer { direction, bytes, length, changes_namespace })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::kv::{self, DataPointer, InlineKey, StoreOptions};
    use crate::spec::nvm::{self, BlockOptions, BlockRange};

    const DATA: DataPointer = DataPointer { address: 0x1000, bytes: 700 };
    const LARGEST: BlockRange = BlockRange { start: 7, blocks: 65_536 };

    /// An expected transfer: direction, bytes, length rule, and true if the command changes the namespace.
    type Expected = (DataTransfer, u64, LengthRule, bool);

    fn fields(transfer: CommandTransfer) -> Expected {
        (transfer.direction, transfer.bytes, transfer.length, transfer.changes_namespace)
    }

    /// Returns the data of a block command (NVM 1.0 section 3.2), for blocks of 4,096 bytes and the entry of
    /// [`every_block_command`].
    fn expected_of_blocks(opcode: NvmOpcode) -> Expected {
        use DataTransfer::{ControllerToHost, HostToController};
        match opcode {
            // Base 7.1: no data.
            NvmOpcode::Flush => (DataTransfer::None, 0, LengthRule::Exact, false),
            // 3.2.6.
            NvmOpcode::Write => (HostToController, 1 << 28, LengthRule::Exact, true),
            // 3.2.4.
            NvmOpcode::Read => (ControllerToHost, 1 << 28, LengthRule::Exact, false),
            // 3.2.1.
            NvmOpcode::Compare => (HostToController, 1 << 28, LengthRule::Exact, false),
            // 3.2.8: blocks, but no data.
            NvmOpcode::WriteZeroes => (DataTransfer::None, 0, LengthRule::Exact, true),
            // 3.2.3: 256 ranges of 16 bytes.
            NvmOpcode::DatasetManagement => (HostToController, 256 * 16, LengthRule::AtLeast, true),
            // 3.2.5: blocks, but no data.
            NvmOpcode::Verify => (DataTransfer::None, 0, LengthRule::Exact, false),
            // 3.2.2: 128 ranges of 32 bytes.
            NvmOpcode::Copy => (HostToController, 128 * 32, LengthRule::AtLeast, true),
        }
    }

    fn every_block_command(opcode: NvmOpcode) -> SubmissionEntry {
        let none = BlockOptions::NONE;
        let list = |bytes| DataPointer { address: 0x1000, bytes };
        match opcode {
            NvmOpcode::Flush => kv::flush(1),
            NvmOpcode::Write => nvm::write(1, LARGEST, 0x1000, none),
            NvmOpcode::Read => nvm::read(1, LARGEST, 0x1000, none),
            NvmOpcode::Compare => nvm::compare(1, LARGEST, 0x1000, none),
            NvmOpcode::WriteZeroes => nvm::write_zeroes(1, LARGEST, none),
            NvmOpcode::DatasetManagement => nvm::deallocate(1, list(256 * 16)),
            NvmOpcode::Verify => nvm::verify(1, LARGEST, none),
            NvmOpcode::Copy => nvm::copy(1, 7, list(128 * 32), none),
        }
    }

    /// Returns the data of a key command (KV 1.0d section 3.2), for the entry of [`every_key_command`].
    fn expected_of_keys(opcode: IoOpcode) -> Option<Expected> {
        use DataTransfer::{ControllerToHost, HostToController};
        match opcode {
            // Base 7.1: no data.
            IoOpcode::Flush => Some((DataTransfer::None, 0, LengthRule::Exact, false)),
            // 3.2.5: the whole value.
            IoOpcode::Store => Some((HostToController, 700, LengthRule::Exact, true)),
            // 3.2.3: at most the Host Buffer Size.
            IoOpcode::Retrieve => Some((ControllerToHost, 700, LengthRule::AtLeast, false)),
            // 3.2.2: at most the Host Buffer Size.
            IoOpcode::List => Some((ControllerToHost, 700, LengthRule::AtLeast, false)),
            // 3.2.1: the key is in the entry.
            IoOpcode::Delete => Some((DataTransfer::None, 0, LengthRule::Exact, true)),
            // 3.2.4: the key is in the entry.
            IoOpcode::Exist => Some((DataTransfer::None, 0, LengthRule::Exact, false)),
            // Vendor specific: key and value by address.
            IoOpcode::UioPut | IoOpcode::UioGet => None,
        }
    }

    fn every_key_command(opcode: IoOpcode) -> SubmissionEntry {
        let key = InlineKey::new(b"key").unwrap();
        match opcode {
            IoOpcode::Flush => kv::flush(1),
            IoOpcode::Store => kv::store(1, key, DATA, StoreOptions::NONE),
            IoOpcode::Retrieve => kv::retrieve(1, key, DATA),
            IoOpcode::List => kv::list(1, None, DATA),
            IoOpcode::Delete => kv::delete(1, key),
            IoOpcode::Exist => kv::exist(1, key),
            IoOpcode::UioPut => kv::uio_put(1, DATA, DATA),
            IoOpcode::UioGet => kv::uio_get(1, DATA, DATA),
        }
    }

    #[test]
    fn every_block_command_transfers_what_its_section_states() {
        for &opcode in NvmOpcode::ALL {
            let entry = every_block_command(opcode);
            assert_eq!(entry.opcode, opcode.number());
            let transfer = entry.nvm_transfer(4_096).unwrap();
            assert_eq!(fields(transfer), expected_of_blocks(opcode), "{opcode:?}");
        }
        let one = nvm::read(1, BlockRange { start: 0, blocks: 1 }, 0x1000, BlockOptions::NONE);
        assert_eq!(one.nvm_transfer(512).unwrap().bytes, 512);
        let largest = nvm::read(1, LARGEST, 0x1000, BlockOptions::NONE);
        assert_eq!(largest.nvm_transfer(u32::MAX).unwrap().bytes, 65_536 * u64::from(u32::MAX));
    }

    #[test]
    fn every_key_command_transfers_what_its_section_states() {
        for &opcode in IoOpcode::ALL {
            let entry = every_key_command(opcode);
            assert_eq!(entry.opcode, opcode.number());
            assert_eq!(entry.kv_transfer().map(fields), expected_of_keys(opcode), "{opcode:?}");
        }
        let empty = DataPointer { address: 0x1000, bytes: 0 };
        let store = kv::store(1, InlineKey::new(b"key").unwrap(), empty, StoreOptions::NONE);
        assert_eq!(store.kv_transfer().unwrap().bytes, 0, "a key without a value");
    }

    #[test]
    fn lists_have_at_least_one_range() {
        let (mut hint, mut copy) = (SubmissionEntry::default(), SubmissionEntry::default());
        hint.opcode = NvmOpcode::DatasetManagement.number();
        copy.opcode = NvmOpcode::Copy.number();
        assert_eq!(hint.nvm_transfer(512).unwrap().bytes, 16);
        assert!(hint.nvm_transfer(512).unwrap().changes_namespace, "hints count as a change");
        assert_eq!(copy.nvm_transfer(512).unwrap().bytes, 32);
    }

    /// Checks for a former defect: the ranges of every format were counted with the 32 bytes of format 0h, so that a
    /// list of format 1h in a shorter buffer was accepted.
    #[test]
    fn descriptor_format_of_a_copy_determines_the_length_of_its_ranges() {
        let copy = nvm::copy(1, 7, DataPointer { address: 0x1000, bytes: 3 * 32 }, BlockOptions::NONE);
        let bytes = |format: u32| {
            let cdw12 = (copy.cdw12.get() | format << 8).into();
            SubmissionEntry { cdw12, ..copy }.nvm_transfer(512).map(|transfer| transfer.bytes)
        };
        assert_eq!((bytes(0), bytes(1)), (Some(3 * 32), Some(3 * 40)));
        assert!((2..16).all(|format| bytes(format).is_none()));
    }

    #[test]
    fn unknown_opcodes_transfer_nothing_that_is_known() {
        for opcode in 0..=u8::MAX {
            let entry = SubmissionEntry { opcode, ..SubmissionEntry::default() };
            assert_eq!(entry.nvm_transfer(512).is_some(), NvmOpcode::from_number(opcode).is_some());
            let is_uio = matches!(IoOpcode::from_number(opcode), Some(IoOpcode::UioPut | IoOpcode::UioGet));
            let is_known = IoOpcode::from_number(opcode).is_some() && !is_uio;
            assert_eq!(entry.kv_transfer().is_some(), is_known, "{opcode:02x}h");
        }
    }

    #[test]
    fn flush_is_a_transfer_of_nothing_in_both_sets() {
        assert_eq!(kv::flush(1).nvm_transfer(512), Some(CommandTransfer::NONE));
        assert_eq!(kv::flush(1).kv_transfer(), Some(CommandTransfer::NONE));
    }
}
