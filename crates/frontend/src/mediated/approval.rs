//! Validation of a client's entry against its rights, and construction of the node's own entry.
//!
//! Input: an entry as its client wrote it, the client's rights, the controller's namespaces. Output: the node's own
//! entry, which holds validated fields only, or the status that refuses the client's entry. Invariant: every block that
//! an approved entry names lies in the namespace, and in the blocks that the client may access.

use headwater_host::width::narrow;
use headwater_nvme::driver::{NamespaceKind, ScannedNamespace};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::kv::DataPointer;
use headwater_nvme::spec::nvm::{self, BlockOptions, BlockRange, DatasetRange};
use headwater_nvme::spec::opcode::NvmOpcode;
use headwater_nvme::spec::status::Status;
use headwater_nvme::spec::transfer::CommandTransfer;
use headwater_ssd::command::NamespaceId;
use headwater_ssd::nvme::rings::rights::{AccessLevel, ClientRights};
use std::ops::Range;
use zerocopy::little_endian::U32;

/// The command options that clients may set.
const OPTIONS: BlockOptions = BlockOptions::FORCE_UNIT_ACCESS.union(BlockOptions::LIMITED_RETRY);

/// The blocks that a client may name in a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GrantedBlocks {
    allowed: Option<Range<u64>>,
    /// Blocks of the namespace.
    size: u64,
}

impl GrantedBlocks {
    /// Validates a range of blocks.
    fn check(&self, start: u64, blocks: u64) -> Result<(), Status> {
        let end = start.checked_add(blocks).ok_or(Status::LBA_OUT_OF_RANGE)?;
        if let Some(allowed) = &self.allowed
            && (start < allowed.start || end > allowed.end)
        {
            return Err(Status::ACCESS_DENIED);
        }
        if end > self.size { Err(Status::LBA_OUT_OF_RANGE) } else { Ok(()) }
    }

    /// Validates the ranges of a Dataset Management, and clears their context attributes, which are hints.
    ///
    /// # Errors
    /// The status for the first range outside the client's blocks.
    pub(super) fn check_ranges(&self, ranges: &mut [DatasetRange]) -> Result<(), Status> {
        for range in ranges {
            self.check(range.start.get(), range.blocks.get().into())?;
            range.context = U32::new(0);
        }
        Ok(())
    }
}

/// The data that an approved entry needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DataRequirement {
    /// No data.
    Nothing,
    /// Bytes of client memory to read or write.
    Blocks(u64),
    /// The number of ranges in client memory, to be copied once and validated by the window.
    Ranges(u16, GrantedBlocks),
}

/// An entry that may be submitted once its data pointer is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApprovedEntry {
    pub(super) entry: SubmissionEntry,
    pub(super) need: DataRequirement,
}

/// Validates an entry. `transfer_bytes_max` is the maximum length of one command's data.
///
/// # Errors
/// The status that the client receives.
pub(super) fn approve(
    entry: &SubmissionEntry,
    rights: &ClientRights,
    namespaces: &[ScannedNamespace],
    transfer_bytes_max: u64,
) -> Result<ApprovedEntry, Status> {
    let opcode = NvmOpcode::from_number(entry.opcode).ok_or(Status::INVALID_OPCODE)?;
    let number = entry.namespace.get();
    let id = u8::try_from(number).map(NamespaceId).map_err(|_| Status::INVALID_NAMESPACE)?;
    let own = rights.rights_in(id).ok_or(Status::ACCESS_DENIED)?;
    let found = namespaces.iter().find(|namespace| namespace.id == number);
    let Some(NamespaceKind::Block { block_shift, blocks: size }) = found.map(|namespace| &namespace.kind)
    else {
        return Err(Status::INVALID_NAMESPACE);
    };
    if entry.has_special_flags() {
        return Err(Status::INVALID_FIELD);
    }
    let window = GrantedBlocks { allowed: own.blocks.clone(), size: *size };
    let range = BlockRange { start: entry.nvm_start(), blocks: entry.nvm_blocks() };
    let transfer = entry.nvm_transfer(1 << block_shift).ok_or(Status::INVALID_OPCODE)?;
    let bytes = transfer.bytes;
    let options = |allowed| options_of(entry, allowed);
    let approved = match opcode {
        NvmOpcode::Flush => approve_flush(number),
        NvmOpcode::Read => {
            let entry = nvm::read(number, range, 0, options(OPTIONS)?);
            approve_transfer(entry, bytes, transfer_bytes_max)?
        }
        NvmOpcode::Compare => {
            let entry = nvm::compare(number, range, 0, options(OPTIONS)?);
            approve_transfer(entry, bytes, transfer_bytes_max)?
        }
        NvmOpcode::Write => {
            let entry = nvm::write(number, range, 0, options(OPTIONS)?);
            approve_transfer(entry, bytes, transfer_bytes_max)?
        }
        NvmOpcode::WriteZeroes => {
            let entry = nvm::write_zeroes(number, range, options(OPTIONS.union(BlockOptions::DEALLOCATE))?);
            ApprovedEntry { entry, need: DataRequirement::Nothing }
        }
        NvmOpcode::DatasetManagement => approve_dataset_management(entry, &transfer, window.clone())?,
        NvmOpcode::Verify | NvmOpcode::Copy => return Err(Status::INVALID_OPCODE),
    };
    if transfer.changes_namespace && own.access == AccessLevel::Read {
        return Err(Status::ACCESS_DENIED);
    }
    if !matches!(opcode, NvmOpcode::Flush | NvmOpcode::DatasetManagement) {
        window.check(range.start, range.blocks.into())?;
        let named = BlockRange { start: approved.entry.nvm_start(), blocks: approved.entry.nvm_blocks() };
        assert!(named == range, "an entry for {range:?} was validated, and one for {named:?} was built");
    }
    Ok(approved)
}

fn approve_flush(namespace: u32) -> ApprovedEntry {
    let entry = SubmissionEntry {
        opcode: NvmOpcode::Flush.number(),
        namespace: U32::new(namespace),
        ..SubmissionEntry::default()
    };
    ApprovedEntry { entry, need: DataRequirement::Nothing }
}

fn approve_transfer(entry: SubmissionEntry, bytes: u64, max: u64) -> Result<ApprovedEntry, Status> {
    if bytes > max {
        Err(Status::INVALID_FIELD)
    } else {
        Ok(ApprovedEntry { entry, need: DataRequirement::Blocks(bytes) })
    }
}

fn approve_dataset_management(
    entry: &SubmissionEntry,
    transfer: &CommandTransfer,
    window: GrantedBlocks,
) -> Result<ApprovedEntry, Status> {
    // Only Deallocate is forwarded: the other attributes are access hints and change no data.
    if !entry.nvm_dataset_deallocate() {
        return Err(Status::INVALID_FIELD);
    }
    let ranges = entry.nvm_dataset_ranges();
    let list = DataPointer { address: 0, bytes: narrow(transfer.bytes) };
    let entry = nvm::deallocate(entry.namespace.get(), list);
    Ok(ApprovedEntry { entry, need: DataRequirement::Ranges(ranges, window) })
}

/// Returns the options of a block command, if all of them are allowed.
fn options_of(entry: &SubmissionEntry, allowed: BlockOptions) -> Result<BlockOptions, Status> {
    match entry.nvm_options() {
        asked if allowed.contains(asked) => Ok(asked),
        _ if entry.nvm_protection() => Err(Status::INVALID_PROTECTION),
        _ => Err(Status::INVALID_FIELD),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_ssd::nvme::rings::rights::NamespaceRights;
    use zerocopy::little_endian::U64;

    const MOST: u64 = 1 << 20;

    type EntryMaker = fn(u32, BlockRange, u64, BlockOptions) -> SubmissionEntry;

    fn namespaces() -> Vec<ScannedNamespace> {
        let block = NamespaceKind::Block { block_shift: 12, blocks: 1_000 };
        let keys = NamespaceKind::KeyValue {
            bytes: 9,
            key_bytes_max: 16,
            value_bytes_max: 9,
            retrieve_options: false,
        };
        [(1, block.clone()), (2, keys), (300, block)]
            .map(|(id, kind)| ScannedNamespace { id, kind, is_writable: true })
            .to_vec()
    }

    fn part(access: AccessLevel) -> ClientRights {
        let part = NamespaceRights { access, blocks: Some(100..200) };
        ClientRights::none().with_namespace(NamespaceId(1), part)
    }

    fn validate(entry: &SubmissionEntry, rights: &ClientRights) -> Result<ApprovedEntry, Status> {
        approve(entry, rights, &namespaces(), MOST)
    }

    fn range(start: u64, blocks: u32) -> BlockRange {
        BlockRange { start, blocks }
    }

    #[test]
    fn only_blocks_of_the_grant_are_accessible() {
        let writer = part(AccessLevel::Write);
        let none = BlockOptions::NONE;
        let zeroes: EntryMaker = |namespace, range, _, options| nvm::write_zeroes(namespace, range, options);
        let makers: [EntryMaker; 4] = [nvm::read, nvm::write, nvm::compare, zeroes];
        for make in makers {
            for (start, blocks, fine) in [
                (100, 100, true),
                (199, 1, true),
                (99, 1, false),
                (99, 2, false),
                (199, 2, false),
                (200, 1, false),
                (u64::MAX, 1, false),
                (u64::MAX - 5, 100, false),
                (0, 65_536, false),
            ] {
                let validated = validate(&make(1, range(start, blocks), 7, none), &writer);
                assert_eq!(validated.is_ok(), fine, "{start} {blocks}");
            }
            assert!(validate(&make(1, range(0, 100), 7, none), &ClientRights::all()).is_ok());
            let end = validate(&make(1, range(999, 2), 7, none), &ClientRights::all());
            assert_eq!(end, Err(Status::LBA_OUT_OF_RANGE));
            for (namespace, status) in [
                (2, Status::INVALID_NAMESPACE),
                (3, Status::INVALID_NAMESPACE),
                (u32::MAX, Status::INVALID_NAMESPACE),
            ] {
                assert_eq!(
                    validate(&make(namespace, range(0, 1), 7, none), &ClientRights::all()),
                    Err(status)
                );
            }
            assert_eq!(
                validate(&make(1, range(0, 1), 7, none), &ClientRights::none()),
                Err(Status::ACCESS_DENIED)
            );
        }
    }

    #[test]
    fn every_range_of_a_discard_is_validated_and_its_hints_are_cleared() {
        let list = DataPointer { address: 7, bytes: 48 };
        let approved = validate(&nvm::deallocate(1, list), &part(AccessLevel::Write)).unwrap();
        let DataRequirement::Ranges(3, window) = approved.need else { panic!("{:?}", approved.need) };
        let ranges = |places: &[(u64, u32)]| -> Vec<DatasetRange> {
            let one = |&(start, blocks): &(u64, u32)| DatasetRange {
                context: U32::new(7),
                blocks: U32::new(blocks),
                start: U64::new(start),
            };
            places.iter().map(one).collect()
        };
        let mut fine = ranges(&[(100, 1), (199, 1), (150, 0)]);
        assert_eq!(window.check_ranges(&mut fine), Ok(()));
        assert!(fine.iter().all(|range| range.context.get() == 0));
        for bad in [(99, 1), (199, 2), (200, 1), (u64::MAX, u32::MAX), (0, u32::MAX)] {
            let mut ranges = ranges(&[(100, 1), bad, (150, 1)]);
            assert!(window.check_ranges(&mut ranges).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_read_only_client_cannot_change_data() {
        let reader = part(AccessLevel::Read);
        let none = BlockOptions::NONE;
        let list = DataPointer { address: 7, bytes: 16 };
        assert!(validate(&nvm::read(1, range(100, 1), 7, none), &reader).is_ok());
        assert!(validate(&nvm::compare(1, range(100, 1), 7, none), &reader).is_ok());
        for change in [
            nvm::write(1, range(100, 1), 7, none),
            nvm::write_zeroes(1, range(100, 1), none),
            nvm::deallocate(1, list),
        ] {
            assert_eq!(validate(&change, &reader), Err(Status::ACCESS_DENIED));
        }
    }

    #[test]
    fn an_approved_entry_holds_validated_fields_only() {
        let options = BlockOptions::FORCE_UNIT_ACCESS.union(BlockOptions::LIMITED_RETRY);
        let clean = nvm::write(1, range(100, 9), 0, options);
        let noise = U32::new(0xDEAD_BEEF);
        let dirty = SubmissionEntry {
            command_id: 9.into(),
            cdw2: noise,
            cdw3: noise,
            metadata_pointer: U64::new(0xBAD),
            prp1: U64::new(0xBAD),
            prp2: U64::new(0xBAD),
            cdw13: noise,
            cdw14: noise,
            cdw15: noise,
            ..clean
        };
        let approved = validate(&dirty, &ClientRights::all()).unwrap();
        assert_eq!((approved.entry, approved.need), (clean, DataRequirement::Blocks(9 * 4_096)));
        let flush = SubmissionEntry { opcode: 0, cdw10: noise, cdw12: noise, ..dirty };
        let approved = validate(&flush, &ClientRights::all()).unwrap();
        assert_eq!(approved.entry, SubmissionEntry { namespace: U32::new(1), ..SubmissionEntry::default() });
    }

    #[test]
    fn unknown_opcodes_flags_and_options_are_refused() {
        let clean = nvm::write(1, range(100, 1), 0, BlockOptions::NONE);
        for opcode in (0..=u8::MAX).filter(|opcode| ![0, 1, 2, 5, 8, 9].contains(opcode)) {
            let validated = validate(&SubmissionEntry { opcode, ..clean }, &ClientRights::all());
            assert_eq!(validated, Err(Status::INVALID_OPCODE), "{opcode:#x}");
        }
        for flags in [1, 2, 0x40, 0x80, 0x20] {
            let validated = validate(&SubmissionEntry { flags, ..clean }, &ClientRights::all());
            assert_eq!(validated, Err(Status::INVALID_FIELD));
        }
        for bit in 16..30 {
            let cdw12 = U32::new(1 << bit);
            assert!(
                validate(&SubmissionEntry { cdw12, ..clean }, &ClientRights::all()).is_err(),
                "bit {bit}"
            );
        }
        let long = nvm::read(1, range(0, 257), 0, BlockOptions::NONE);
        assert_eq!(
            validate(&long, &ClientRights::all()),
            Err(Status::INVALID_FIELD),
            "more bytes than the controller's limit"
        );
    }
}
