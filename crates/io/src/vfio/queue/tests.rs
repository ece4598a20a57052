//! Tests of the validation of commands.

use super::*;
use crate::buffer::Buffer;
use crate::command::{StoreCondition, WriteDurability};
use headwater_dma::iova::Iova;
use headwater_host::shared_memory::SharedMemory;
use headwater_nvme::spec::kv::DataPointer;
use headwater_nvme::spec::nvm::{self, BlockOptions};

fn buffer(bytes: usize) -> Buffer {
    Buffer::from_region(SharedMemory::anonymous(1 << 20).unwrap(), Iova(0)).slice(0, bytes).unwrap()
}

fn namespaces() -> Vec<ClientNamespace> {
    let blocks = ClientNamespace { block_bytes: 512, size: 100, ..ClientNamespace::key_space(1) };
    vec![blocks, ClientNamespace::key_space(2)]
}

fn validate(command: &Command) -> Result<(), SubmitError> {
    validate_command(command, &namespaces())
}

#[test]
fn every_constructed_command_passes() {
    let list = buffer(64);
    for command in [
        Command::read(1, 99, 512, buffer(512)).unwrap(),
        Command::write(1, 0, 512, buffer(51_200), WriteDurability::Immediate).unwrap(),
        Command::read_scattered(1, 4, 512, vec![buffer(512), buffer(1_024)]).unwrap(),
        Command::compare(1, 0, 512, buffer(512)).unwrap(),
        Command::write_zeroes(1, 0, 100, WriteDurability::NamespaceDefault).unwrap(),
        Command::discard(1, &[(0, 1), (99, 1)], &list).unwrap(),
        Command::flush(1),
        Command::flush(u32::MAX),
        Command::put(2, b"k", buffer(77), StoreCondition::Always).unwrap(),
        Command::get(2, b"k", buffer(77)).unwrap(),
        Command::list(2, None, buffer(4_096)).unwrap(),
        Command::delete(2, b"k").unwrap(),
        Command::exist(2, b"k").unwrap(),
    ] {
        assert_eq!(validate(&command), Ok(()), "{command:?}");
    }
}

#[test]
fn data_shorter_than_its_entry_or_in_the_wrong_direction_is_refused() {
    let mut long = Command::read(1, 0, 512, buffer(1_024)).unwrap();
    long.data = TransferData::FromDevice(buffer(512));
    assert_eq!(validate(&long), Err(WRONG_LENGTH));
    let mut turned = Command::read(1, 0, 512, buffer(512)).unwrap();
    turned.data = TransferData::ToDevice(buffer(512));
    assert_eq!(validate(&turned), Err(WRONG_LENGTH));
    let mut bare = Command::write(1, 0, 512, buffer(512), WriteDurability::Immediate).unwrap();
    bare.data = TransferData::None;
    assert_eq!(validate(&bare), Err(WRONG_LENGTH));
    let mut value = Command::get(2, b"k", buffer(100)).unwrap();
    value.data = TransferData::FromDevice(buffer(99));
    assert_eq!(validate(&value), Err(WRONG_LENGTH));
    let mut list = Command::discard(1, &[(0, 1), (1, 1)], &buffer(64)).unwrap();
    list.data = TransferData::ToDevice(buffer(16));
    assert_eq!(validate(&list), Err(WRONG_LENGTH));
}

/// Checks for a former defect: the list of a Copy with descriptor format 1h passed with the length of format 0h, so the
/// device read beyond it.
#[test]
fn list_of_a_copy_has_the_length_of_its_descriptor_format() {
    let mut copy = Command::flush(1);
    let list = DataPointer { address: 0, bytes: 3 * 32 };
    copy.entry = nvm::copy(1, 7, list, BlockOptions::NONE);
    copy.data = TransferData::ToDevice(buffer(3 * 32));
    assert_eq!(validate(&copy), Ok(()));
    copy.entry.cdw12.set(copy.entry.cdw12.get() | 1 << 8);
    assert_eq!(validate(&copy), Err(WRONG_LENGTH));
    copy.data = TransferData::ToDevice(buffer(3 * 40));
    assert_eq!(validate(&copy), Ok(()));
    copy.entry.cdw12.set(copy.entry.cdw12.get() + (1 << 8));
    assert_eq!(validate(&copy), Err(UNSUPPORTED), "format 2h");
}

/// Covers NVMeDirect's defect B3: the ranges of a discard were never checked.
#[test]
fn b3_blocks_beyond_the_end_are_refused_with_the_numbers_discards_included() {
    let range = |first, blocks| Err(SubmitError::BlocksOutOfRange { first, blocks, size: 100 });
    assert_eq!(validate(&Command::read(1, 100, 512, buffer(512)).unwrap()), range(100, 1));
    assert_eq!(validate(&Command::read(1, u64::MAX, 512, buffer(512)).unwrap()), range(u64::MAX, 1));
    let zeroes = Command::write_zeroes(1, 1, 100, WriteDurability::NamespaceDefault).unwrap();
    assert_eq!(validate(&zeroes), range(1, 100));
    let list = buffer(64);
    let discard = Command::discard(1, &[(0, 1), (99, 2)], &list).unwrap();
    assert_eq!(validate(&discard), range(99, 2));
}

#[test]
fn unknown_commands_and_namespaces_are_refused() {
    let mut vendor = Command::flush(1);
    vendor.entry.opcode = 0xC1;
    assert_eq!(validate(&vendor), Err(UNSUPPORTED));
    assert_eq!(validate(&Command::read(9, 0, 512, buffer(512)).unwrap()), Err(NO_NAMESPACE));
    let mut uio = Command::put(2, b"k", buffer(1), StoreCondition::Always).unwrap();
    uio.entry.opcode = 0x81;
    assert_eq!(validate(&uio), Err(UNSUPPORTED));
}
