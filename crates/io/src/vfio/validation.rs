//! The validation of a command's data against its submission entry, before a controller trusts the entry.
//!
//! Input: a command and the namespaces. Output: an error unless the data has the length and direction of the entry, and
//! its blocks exist. Invariant: no command passes whose data pointer would end before the data does: a controller would
//! read whatever lies behind it as addresses.

use crate::client_namespace::ClientNamespace;
use crate::command::{Command, TransferData};
use crate::error::SubmitError;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::opcode::{IoOpcode, NvmOpcode};

/// Bytes of a range of Dataset Management and of Copy.
const DATASET_RANGE_BYTES: u64 = 16;
const COPY_RANGE_BYTES: u64 = 32;

const WRONG_LENGTH: SubmitError =
    SubmitError::Unfit { what: "the command's data differs from its entry in length or direction" };
const UNKNOWN: SubmitError =
    SubmitError::Unfit { what: "this queue does not support the command: the length of its data is unknown" };
const NO_NAMESPACE: SubmitError =
    SubmitError::Unfit { what: "the command's namespace does not exist, or cannot be used" };

/// The direction of a command's data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DataDirection {
    None,
    Out,
    In,
}

/// Validates a command.
#[inline]
pub(super) fn check(command: &Command, namespaces: &[ClientNamespace]) -> Result<(), SubmitError> {
    let Command { entry, data } = command;
    let id = entry.namespace.get();
    if entry.opcode == IoOpcode::Flush.number() {
        return fits(data, DataDirection::None, 0, LengthRule::Exact);
    }
    let found = namespaces.iter().find(|found| found.id == id).ok_or(NO_NAMESPACE)?;
    if found.is_key_space() { check_keys(entry, data) } else { check_blocks(entry, data, found) }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LengthRule {
    Exact,
    AtLeast,
}

fn fits(data: &TransferData, way: DataDirection, bytes: u64, fit: LengthRule) -> Result<(), SubmitError> {
    let goes = match data {
        TransferData::None => DataDirection::None,
        TransferData::ToDevice(_) | TransferData::Gather(_) => DataDirection::Out,
        TransferData::FromDevice(_) | TransferData::Scatter(_) => DataDirection::In,
    };
    let has = data.bytes() as u64;
    let is_long = if fit == LengthRule::Exact { has == bytes } else { has >= bytes };
    // Data of zero bytes has no direction.
    if is_long && (goes == way || (has == 0 && bytes == 0)) { Ok(()) } else { Err(WRONG_LENGTH) }
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
    let blocks = u64::from(entry.nvm_blocks());
    let bytes = blocks * u64::from(namespace.block_bytes);
    match NvmOpcode::from_number(entry.opcode).ok_or(UNKNOWN)? {
        NvmOpcode::Flush => Ok(()),
        NvmOpcode::Read => {
            range(blocks).and_then(|()| fits(data, DataDirection::In, bytes, LengthRule::Exact))
        }
        NvmOpcode::Write | NvmOpcode::Compare => {
            range(blocks).and_then(|()| fits(data, DataDirection::Out, bytes, LengthRule::Exact))
        }
        NvmOpcode::WriteZeroes | NvmOpcode::Verify => {
            range(blocks).and_then(|()| fits(data, DataDirection::None, 0, LengthRule::Exact))
        }
        NvmOpcode::DatasetManagement => {
            let bytes = u64::from(entry.nvm_dataset_ranges()) * DATASET_RANGE_BYTES;
            fits(data, DataDirection::Out, bytes, LengthRule::AtLeast)?;
            ranges_inside(data, entry.nvm_dataset_ranges(), namespace)
        }
        NvmOpcode::Copy => {
            let bytes = u64::from(entry.nvm_copy_ranges()) * COPY_RANGE_BYTES;
            fits(data, DataDirection::Out, bytes, LengthRule::AtLeast)
        }
    }
}

/// Checks that every range of a discard lies in the namespace.
fn ranges_inside(data: &TransferData, ranges: u16, namespace: &ClientNamespace) -> Result<(), SubmitError> {
    let [list] = data.buffers() else { return Err(SubmitError::IN_PIECES) };
    let mut range = [0; 16];
    for index in 0..usize::from(ranges) {
        list.read(index * range.len(), &mut range).map_err(|_| WRONG_LENGTH)?;
        let [.., a, b, c, d, e, f, g, h] = range;
        let first = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let [_, _, _, _, a, b, c, d, ..] = range;
        let blocks = u64::from(u32::from_le_bytes([a, b, c, d]));
        if first.checked_add(blocks).is_none_or(|end| end > namespace.size) {
            return Err(SubmitError::Range { first, blocks, size: namespace.size });
        }
    }
    Ok(())
}

fn check_keys(entry: &SubmissionEntry, data: &TransferData) -> Result<(), SubmitError> {
    let bytes = u64::from(entry.kv_data_bytes());
    match IoOpcode::from_number(entry.opcode).ok_or(UNKNOWN)? {
        IoOpcode::Store => fits(data, DataDirection::Out, bytes, LengthRule::Exact),
        IoOpcode::Retrieve | IoOpcode::List => fits(data, DataDirection::In, bytes, LengthRule::AtLeast),
        IoOpcode::Flush | IoOpcode::Delete | IoOpcode::Exist => {
            fits(data, DataDirection::None, 0, LengthRule::Exact)
        }
        // Their addresses lie elsewhere in the entry; only Headwater devices take them.
        IoOpcode::UioPut | IoOpcode::UioGet => Err(UNKNOWN),
    }
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
