//! The validation of a command's data against its submission entry, before a controller trusts the entry.
//!
//! Input: a command and the namespaces. Output: an error unless the data has the length and direction of the entry, and
//! its blocks exist. Invariant: no command passes whose data pointer would end before the data does: a controller would
//! read whatever lies behind it as addresses.

use crate::client_namespace::ClientNamespace;
use crate::command::{Command, TransferData};
use crate::error::SubmitError;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::nvm::DatasetRange;
use headwater_nvme::spec::opcode::{IoOpcode, NvmOpcode};
use headwater_nvme::spec::transfer::{CommandTransfer, LengthRule};
use zerocopy::{FromZeros as _, IntoBytes as _};

const WRONG_LENGTH: SubmitError =
    SubmitError::Unfit { what: "the command's data differs from its entry in length or direction" };
const UNKNOWN: SubmitError =
    SubmitError::Unfit { what: "this queue does not support the command: the length of its data is unknown" };
const NO_NAMESPACE: SubmitError =
    SubmitError::Unfit { what: "the command's namespace does not exist, or cannot be used" };

/// Validates a command.
#[inline]
pub(super) fn check(command: &Command, namespaces: &[ClientNamespace]) -> Result<(), SubmitError> {
    let Command { entry, data } = command;
    let id = entry.namespace.get();
    if entry.opcode == IoOpcode::Flush.number() {
        return fits(data, &CommandTransfer::NONE);
    }
    let found = namespaces.iter().find(|found| found.id == id).ok_or(NO_NAMESPACE)?;
    if found.is_key_space() {
        // Only Headwater devices accept the UIO put and get, whose data the entry names elsewhere.
        fits(data, &entry.kv_transfer().ok_or(UNKNOWN)?)
    } else {
        check_blocks(entry, data, found)
    }
}

/// Checks that a command's data has the direction and a length of this transfer.
#[inline]
fn fits(data: &TransferData, transfer: &CommandTransfer) -> Result<(), SubmitError> {
    let bytes = data.bytes() as u64;
    let is_long = match transfer.length {
        LengthRule::Exact => bytes == transfer.bytes,
        LengthRule::AtLeast => bytes >= transfer.bytes,
    };
    // Data of zero bytes has no direction.
    let is_empty = bytes == 0 && transfer.bytes == 0;
    if is_long && (is_empty || data.direction() == transfer.direction) { Ok(()) } else { Err(WRONG_LENGTH) }
}

fn check_blocks(
    entry: &SubmissionEntry,
    data: &TransferData,
    namespace: &ClientNamespace,
) -> Result<(), SubmitError> {
    let range = |blocks: u64| {
        let first = entry.nvm_start();
        match first.checked_add(blocks) {
            Some(end) if end <= namespace.size => Ok(()),
            _ => Err(SubmitError::Range { first, blocks, size: namespace.size }),
        }
    };
    let opcode = NvmOpcode::from_number(entry.opcode).ok_or(UNKNOWN)?;
    let transfer = entry.nvm_transfer(namespace.block_bytes).ok_or(UNKNOWN)?;
    match opcode {
        NvmOpcode::Read
        | NvmOpcode::Write
        | NvmOpcode::Compare
        | NvmOpcode::WriteZeroes
        | NvmOpcode::Verify => {
            range(entry.nvm_blocks().into())?;
            fits(data, &transfer)
        }
        NvmOpcode::DatasetManagement => {
            fits(data, &transfer)?;
            ranges_inside(data, entry.nvm_dataset_ranges(), namespace)
        }
        NvmOpcode::Flush | NvmOpcode::Copy => fits(data, &transfer),
    }
}

/// Checks that every range of a discard lies in the namespace.
fn ranges_inside(data: &TransferData, ranges: u16, namespace: &ClientNamespace) -> Result<(), SubmitError> {
    let [list] = data.buffers() else { return Err(SubmitError::IN_PIECES) };
    let mut range = DatasetRange::new_zeroed();
    for index in 0..usize::from(ranges) {
        list.read(index * size_of::<DatasetRange>(), range.as_mut_bytes()).map_err(|_| WRONG_LENGTH)?;
        let (first, blocks) = (range.start.get(), u64::from(range.blocks.get()));
        if first.checked_add(blocks).is_none_or(|end| end > namespace.size) {
            return Err(SubmitError::Range { first, blocks, size: namespace.size });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Buffer;
    use crate::command::{StoreCondition, WriteDurability};
    use headwater_dma::iova::Iova;
    use headwater_host::shared_memory::SharedMemory;

    fn buffer(bytes: usize) -> Buffer {
        Buffer::whole(SharedMemory::anonymous(1 << 20).unwrap(), Iova(0)).slice(0, bytes).unwrap()
    }

    fn namespaces() -> Vec<ClientNamespace> {
        let blocks = ClientNamespace { block_bytes: 512, size: 100, ..ClientNamespace::key_space(1) };
        vec![blocks, ClientNamespace::key_space(2)]
    }

    fn judge(command: &Command) -> Result<(), SubmitError> {
        check(command, &namespaces())
    }

    #[test]
    fn every_constructed_command_passes() {
        let list = buffer(64);
        for command in [
            Command::read(1, 99, 512, buffer(512)).unwrap(),
            Command::write(1, 0, 512, buffer(51_200), WriteDurability::Now).unwrap(),
            Command::read_scattered(1, 4, 512, vec![buffer(512), buffer(1_024)]).unwrap(),
            Command::compare(1, 0, 512, buffer(512)).unwrap(),
            Command::write_zeroes(1, 0, 100, WriteDurability::AsPromised).unwrap(),
            Command::discard(1, &[(0, 1), (99, 1)], &list).unwrap(),
            Command::flush(1),
            Command::flush(u32::MAX),
            Command::put(2, b"k", buffer(77), StoreCondition::Always).unwrap(),
            Command::get(2, b"k", buffer(77)).unwrap(),
            Command::list(2, None, buffer(4_096)).unwrap(),
            Command::delete(2, b"k").unwrap(),
            Command::exist(2, b"k").unwrap(),
        ] {
            assert_eq!(judge(&command), Ok(()), "{command:?}");
        }
    }

    #[test]
    fn data_shorter_than_its_entry_or_in_the_wrong_direction_is_refused() {
        let mut long = Command::read(1, 0, 512, buffer(1_024)).unwrap();
        long.data = TransferData::FromDevice(buffer(512));
        assert_eq!(judge(&long), Err(WRONG_LENGTH));
        let mut turned = Command::read(1, 0, 512, buffer(512)).unwrap();
        turned.data = TransferData::ToDevice(buffer(512));
        assert_eq!(judge(&turned), Err(WRONG_LENGTH));
        let mut bare = Command::write(1, 0, 512, buffer(512), WriteDurability::Now).unwrap();
        bare.data = TransferData::None;
        assert_eq!(judge(&bare), Err(WRONG_LENGTH));
        let mut value = Command::get(2, b"k", buffer(100)).unwrap();
        value.data = TransferData::FromDevice(buffer(99));
        assert_eq!(judge(&value), Err(WRONG_LENGTH));
        let mut list = Command::discard(1, &[(0, 1), (1, 1)], &buffer(64)).unwrap();
        list.data = TransferData::ToDevice(buffer(16));
        assert_eq!(judge(&list), Err(WRONG_LENGTH));
    }

    /// Covers NVMeDirect's defect B3: the ranges of a discard were never checked.
    #[test]
    fn b3_blocks_beyond_the_end_are_refused_with_the_numbers_discards_included() {
        let range = |first, blocks| Err(SubmitError::Range { first, blocks, size: 100 });
        assert_eq!(judge(&Command::read(1, 100, 512, buffer(512)).unwrap()), range(100, 1));
        assert_eq!(judge(&Command::read(1, u64::MAX, 512, buffer(512)).unwrap()), range(u64::MAX, 1));
        let zeroes = Command::write_zeroes(1, 1, 100, WriteDurability::AsPromised).unwrap();
        assert_eq!(judge(&zeroes), range(1, 100));
        let list = buffer(64);
        let discard = Command::discard(1, &[(0, 1), (99, 2)], &list).unwrap();
        assert_eq!(judge(&discard), range(99, 2));
    }

    #[test]
    fn unknown_commands_and_namespaces_are_refused() {
        let mut vendor = Command::flush(1);
        vendor.entry.opcode = 0xC1;
        assert_eq!(judge(&vendor), Err(UNKNOWN));
        assert_eq!(judge(&Command::read(9, 0, 512, buffer(512)).unwrap()), Err(NO_NAMESPACE));
        let mut uio = Command::put(2, b"k", buffer(1), StoreCondition::Always).unwrap();
        uio.entry.opcode = 0x81;
        assert_eq!(judge(&uio), Err(UNKNOWN));
    }
}
