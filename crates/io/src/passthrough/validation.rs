//! The validation and translation of commands for a device that is shared with other users.
//!
//! Input: a command of the client, the properties of its namespace, the window it may access. Output: the command for
//! the device, or the refusal. Invariants: every block of the command lies in the window, whose start is added here and
//! nowhere else; the command transfers exactly the bytes of its data; an unknown command is refused.

use super::device_file::BlockWindow;
use crate::client_namespace::ClientNamespace;
use crate::command::{Command, TransferData};
use crate::uring::queue::UnsentReason;
use crate::uring::translate::dataset_ranges;
use headwater_host::device_ring::NvmeCommand;
use headwater_host::width::narrow;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::nvm::DatasetRange;
use headwater_nvme::spec::opcode::NvmOpcode;
use headwater_nvme::spec::status::Status;
use headwater_nvme::spec::transfer::CommandTransfer;
use zerocopy::little_endian::{U32, U64};

/// A validated command.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ValidatedCommand {
    /// The command for the device.
    pub(super) command: NvmeCommand,
    /// A copy of the ranges that replaces the client's list, which the client could change after the validation.
    pub(super) ranges: Option<Vec<[u8; 16]>>,
}

/// Validates a command.
#[inline]
pub(super) fn validate(
    command: &Command,
    facts: &ClientNamespace,
    window: BlockWindow,
) -> Result<ValidatedCommand, UnsentReason> {
    let entry = &command.entry;
    // The broadcast namespace (FFFFFFFFh) is refused too.
    if entry.namespace.get() != facts.id {
        return Err(Status::INVALID_NAMESPACE.into());
    }
    if entry.has_special_flags() {
        return Err(Status::INVALID_FIELD.into());
    }
    if facts.is_key_space() {
        Ok(validate_key_command(command, facts)?)
    } else {
        validate_block_command(command, facts, window)
    }
}

fn validate_key_command(command: &Command, facts: &ClientNamespace) -> Result<ValidatedCommand, Status> {
    let Command { entry, data } = command;
    let transfer = entry.kv_transfer().ok_or(Status::INVALID_OPCODE)?;
    if transfer.changes_namespace && !facts.writable {
        return Err(Status::READ_ONLY);
    }
    // A buffer longer than the entry states is refused too, although a Retrieve would use the front of it.
    let fits = u64::try_from(data.bytes()) == Ok(transfer.bytes);
    // A value of zero bytes has no buffer, or one that the driver would not map.
    if !fits || (transfer.bytes > 0 && data.direction() != transfer.direction) {
        return Err(Status::DATA_SGL_LENGTH_INVALID);
    }
    Ok(ValidatedCommand { command: driver_command(entry), ranges: None })
}

#[inline]
fn validate_block_command(
    command: &Command,
    facts: &ClientNamespace,
    window: BlockWindow,
) -> Result<ValidatedCommand, UnsentReason> {
    let Command { entry, data } = command;
    let opcode = NvmOpcode::from_number(entry.opcode).ok_or(Status::INVALID_OPCODE)?;
    let transfer = entry.nvm_transfer(facts.block_bytes).ok_or(Status::INVALID_OPCODE)?;
    // Its source ranges are in client memory, in formats that may name other namespaces.
    if opcode == NvmOpcode::Copy {
        return Err(Status::INVALID_OPCODE.into());
    }
    if transfer.changes_namespace && !facts.writable {
        return Err(Status::READ_ONLY.into());
    }
    if data.direction() != transfer.direction {
        return Err(Status::DATA_SGL_LENGTH_INVALID.into());
    }
    let mut command = driver_command(entry);
    match opcode {
        NvmOpcode::Flush => return Ok(ValidatedCommand { command, ranges: None }),
        NvmOpcode::DatasetManagement => {
            return Ok(ValidatedCommand { command, ranges: Some(located_ranges(&transfer, data, window)?) });
        }
        _ => {}
    }
    let start = window.locate(entry.nvm_start(), entry.nvm_blocks().into())?;
    if u64::try_from(data.bytes()) != Ok(transfer.bytes) {
        return Err(Status::DATA_SGL_LENGTH_INVALID.into());
    }
    let [low, high]: [U32; 2] = zerocopy::transmute!(U64::new(start));
    (command.words_10_15[0], command.words_10_15[1]) = (low.get(), high.get());
    Ok(ValidatedCommand { command, ranges: None })
}

/// Returns the ranges of a Dataset Management, where the device has them.
fn located_ranges(
    transfer: &CommandTransfer,
    data: &TransferData,
    window: BlockWindow,
) -> Result<Vec<[u8; 16]>, UnsentReason> {
    let listed = dataset_ranges(transfer, data)?;
    let mut ranges = Vec::with_capacity(listed.len());
    for (first, blocks) in listed {
        let start = window.locate(first, blocks)?;
        let blocks = U32::new(narrow(blocks));
        let range = DatasetRange { blocks, start: U64::new(start), ..DatasetRange::default() };
        ranges.push(zerocopy::transmute!(range));
    }
    Ok(ranges)
}

/// Returns the entry in the driver's format.
#[inline]
fn driver_command(entry: &SubmissionEntry) -> NvmeCommand {
    NvmeCommand {
        opcode: entry.opcode,
        namespace: entry.namespace.get(),
        words_2_3: [entry.cdw2.get(), entry.cdw3.get()],
        words_10_15: [entry.cdw10, entry.cdw11, entry.cdw12, entry.cdw13, entry.cdw14, entry.cdw15]
            .map(U32::get),
        timeout_ms: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Buffer;
    use crate::command::WriteDurability;
    use crate::error::SubmitError;
    use headwater_dma::iova::Iova;
    use headwater_host::shared_memory::SharedMemory;
    use headwater_nvme::spec::opcode::IoOpcode;

    const WINDOW: BlockWindow = BlockWindow { start: 1 << 33, blocks: 100 };

    fn facts() -> ClientNamespace {
        ClientNamespace {
            id: 7,
            block_bytes: 512,
            size: WINDOW.blocks,
            writable: true,
            blocks: None,
            retrieve_options: false,
        }
    }

    fn buffer(bytes: usize) -> Buffer {
        Buffer::from_region(SharedMemory::anonymous(64 << 10).unwrap(), Iova(0)).slice(0, bytes).unwrap()
    }

    /// Returns the status that a command completes with before it is sent.
    fn status(command: &Command, facts: &ClientNamespace) -> Status {
        match validate(command, facts, WINDOW) {
            Err(UnsentReason::Completed(status)) => status,
            other => panic!("{command:?} gave {other:?}"),
        }
    }

    fn start(fit: &ValidatedCommand) -> u64 {
        u64::from(fit.command.words_10_15[1]) << 32 | u64::from(fit.command.words_10_15[0])
    }

    /// Returns one of every command that names a run of blocks.
    fn on(lba: u64, blocks: u32) -> Vec<Command> {
        let bytes = blocks as usize * 512;
        let mut verify = Command::write_zeroes(7, lba, blocks, WriteDurability::NamespaceDefault).unwrap();
        verify.entry.opcode = NvmOpcode::Verify.number();
        vec![
            Command::read(7, lba, 512, buffer(bytes)).unwrap(),
            Command::write(7, lba, 512, buffer(bytes), WriteDurability::Immediate).unwrap(),
            Command::compare(7, lba, 512, buffer(bytes)).unwrap(),
            Command::write_zeroes(7, lba, blocks, WriteDurability::Immediate).unwrap(),
            verify,
        ]
    }

    #[test]
    fn every_command_lies_in_the_window_or_is_refused_with_the_numbers() {
        let firsts = (0..=101).chain([u64::MAX - 1, u64::MAX, WINDOW.start, WINDOW.start + 50]);
        for first in firsts {
            for blocks in [1_u32, 2, 50, 100, 101] {
                let inside = first.checked_add(blocks.into()).is_some_and(|end| end <= 100);
                for command in on(first, blocks) {
                    let verdict = validate(&command, &facts(), WINDOW);
                    if inside {
                        assert_eq!(start(&verdict.unwrap()), (1 << 33) + first, "{command:?}");
                    } else {
                        let refused =
                            SubmitError::BlocksOutOfRange { first, blocks: blocks.into(), size: 100 };
                        assert_eq!(verdict, Err(UnsentReason::Rejected(refused)), "{command:?}");
                    }
                }
                let list = buffer(4_096);
                let discard = Command::discard(7, &[(0, 100), (first, blocks), (3, 0)], &list).unwrap();
                match validate(&discard, &facts(), WINDOW) {
                    Ok(fit) => {
                        assert!(inside);
                        let ranges = fit.ranges.unwrap();
                        let starts: Vec<u64> =
                            ranges.iter().map(|range| crate::identify::word_at(range, 8)).collect();
                        assert_eq!(starts, [1 << 33, (1 << 33) + first, (1 << 33) + 3]);
                        let counts: Vec<u64> =
                            ranges.iter().map(|range| crate::identify::word_at(range, 0) >> 32).collect();
                        assert_eq!(counts, [100, blocks.into(), 0]);
                    }
                    refused => {
                        assert!(!inside);
                        let range = SubmitError::BlocksOutOfRange { first, blocks: blocks.into(), size: 100 };
                        assert_eq!(refused, Err(UnsentReason::Rejected(range)));
                    }
                }
            }
        }
    }

    #[test]
    fn data_whose_length_or_direction_differs_from_the_entry_is_refused() {
        let status = |command: &Command| status(command, &facts());
        for mut command in on(0, 4) {
            command.entry.cdw12.set(command.entry.cdw12.get() + 1);
            let opcode = command.entry.opcode;
            if command.data.bytes() > 0 {
                assert_eq!(status(&command), Status::DATA_SGL_LENGTH_INVALID, "{opcode}");
                command.data = TransferData::None;
            } else {
                command.data = TransferData::ToDevice(buffer(5 * 512));
            }
            assert_eq!(status(&command), Status::DATA_SGL_LENGTH_INVALID, "{opcode}");
        }
        let mut write = Command::write(7, 0, 512, buffer(512), WriteDurability::Immediate).unwrap();
        write.data = TransferData::FromDevice(buffer(512));
        assert_eq!(status(&write), Status::DATA_SGL_LENGTH_INVALID, "the direction of the data is wrong");
        let mut discard = Command::discard(7, &[(0, 1)], &buffer(16)).unwrap();
        discard.entry.cdw10.set(1);
        assert_eq!(status(&discard), Status::DATA_SGL_LENGTH_INVALID, "the list is one range short");
    }

    #[test]
    fn unknown_commands_are_refused() {
        for opcode in 0..=u8::MAX {
            let mut command = Command::flush(7);
            command.entry.opcode = opcode;
            if opcode != 0 && validate(&command, &facts(), WINDOW).is_ok() {
                assert!([0x08, 0x0C].contains(&opcode), "{opcode:#x}");
            }
        }
        let other = Command::flush(u32::MAX);
        assert_eq!(status(&other, &facts()), Status::INVALID_NAMESPACE);
        let mut fused = Command::flush(7);
        fused.entry.flags = 1;
        assert_eq!(status(&fused, &facts()), Status::INVALID_FIELD);
        let read_only = ClientNamespace { writable: false, ..facts() };
        let write = Command::write(7, 0, 512, buffer(512), WriteDurability::Immediate).unwrap();
        assert_eq!(status(&write, &read_only), Status::READ_ONLY);
    }

    #[test]
    fn key_commands_pass_unchanged_if_their_data_matches() {
        let keys = ClientNamespace::key_space(7);
        let put =
            Command::put(7, b"some key of many", buffer(77), crate::command::StoreCondition::Always).unwrap();
        let fit = validate(&put, &keys, WINDOW).unwrap();
        assert_eq!((fit.command.opcode, fit.command.words_10_15[0]), (1, 77));
        assert_eq!(fit.command.words_2_3, [put.entry.cdw2.get(), put.entry.cdw3.get()]);
        for command in [
            Command::get(7, b"k", buffer(4_096)).unwrap(),
            Command::list(7, None, buffer(4_096)).unwrap(),
            Command::delete(7, b"k").unwrap(),
            Command::exist(7, b"k").unwrap(),
            Command::flush(7),
        ] {
            assert!(validate(&command, &keys, WINDOW).is_ok());
            let mut longer = command;
            longer.data = TransferData::FromDevice(buffer(100));
            assert_eq!(status(&longer, &keys), Status::DATA_SGL_LENGTH_INVALID);
        }
        let mut uio = Command::flush(7);
        uio.entry.opcode = IoOpcode::UioGet.number();
        assert_eq!(
            status(&uio, &keys),
            Status::INVALID_OPCODE,
            "its addresses are not in the command's data"
        );
    }
}
