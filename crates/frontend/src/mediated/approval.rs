//! Whether an entry of a client may reach the controller, and as what.
//!
//! In: an entry as its client wrote it, the client's rights, the controller's namespaces. Out: an entry of the node's own,
//! which holds nothing but what was checked, or the status that refuses the client's. Invariant: every block that an
//! approved entry names lies in the namespace, and in the blocks that the client may touch.

use headwater_nvme::driver::{Namespace, NamespaceKind};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::nvm::{self, BlockOptions, BlockRange, DatasetRange};
use headwater_nvme::spec::opcode::NvmOpcode;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::NamespaceId;
use headwater_ssd::nvme::rings::rights::{Access, Rights};
use std::mem::size_of;
use std::ops::Range;
use zerocopy::little_endian::U32;

/// What may be asked beside the blocks.
const OPTIONS: BlockOptions = BlockOptions::FORCE_UNIT_ACCESS.and(BlockOptions::LIMITED_RETRY);

/// The blocks that a client may name in a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Window {
    allowed: Option<Range<u64>>,
    /// Blocks of the namespace.
    size: u64,
}

impl Window {
    /// Judges a range of blocks.
    fn check(&self, start: u64, blocks: u64) -> Result<(), Status> {
        let end = start.checked_add(blocks).ok_or(Status::LBA_OUT_OF_RANGE)?;
        if let Some(allowed) = &self.allowed
            && (start < allowed.start || end > allowed.end)
        {
            return Err(Status::ACCESS_DENIED);
        }
        if end > self.size { Err(Status::LBA_OUT_OF_RANGE) } else { Ok(()) }
    }

    /// Judges the ranges of a Dataset Management, one by one, and takes out what is no block: hints.
    ///
    /// # Errors
    /// The status for the first that is not the client's.
    pub(super) fn check_ranges(&self, ranges: &mut [DatasetRange]) -> Result<(), Status> {
        for range in ranges {
            self.check(range.start.get(), range.blocks.get().into())?;
            range.context = U32::new(0);
        }
        Ok(())
    }
}

/// The data of an approved entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// None.
    Nothing,
    /// So many bytes of client memory, one way or the other.
    Blocks(u64),
    /// So many ranges that lie in client memory, to be read once and judged by the window.
    Ranges(u16, Window),
}

/// An entry that may be submitted once its data has a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Approved {
    pub(super) entry: SubmissionEntry,
    pub(super) need: Need,
}

/// Judges an entry. `transfer_bytes_max` is the most that one command moves.
///
/// # Errors
/// The status that the client gets.
pub(super) fn approve(
    entry: &SubmissionEntry,
    rights: &Rights,
    namespaces: &[Namespace],
    transfer_bytes_max: u64,
) -> Result<Approved, Status> {
    let opcode = NvmOpcode::from_number(entry.opcode).ok_or(Status::INVALID_OPCODE)?;
    let number = entry.namespace.get();
    let id = u8::try_from(number).map(NamespaceId).map_err(|_| Status::INVALID_NAMESPACE)?;
    let own = rights.of(id).ok_or(Status::ACCESS_DENIED)?;
    let found = namespaces.iter().find(|namespace| namespace.id == number);
    let Some(NamespaceKind::Block { block_shift, blocks: size }) = found.map(|namespace| &namespace.kind)
    else {
        return Err(Status::INVALID_NAMESPACE);
    };
    if entry.has_special_flags() {
        return Err(Status::INVALID_FIELD);
    }
    let window = Window { allowed: own.blocks.clone(), size: *size };
    let range = BlockRange { start: entry.nvm_start(), blocks: entry.nvm_blocks() };
    let bytes = u64::from(range.blocks) << block_shift;
    let options = |allowed| options_of(entry, allowed);
    let (needs, approved) = match opcode {
        NvmOpcode::Flush => (Access::Read, flush(number)),
        NvmOpcode::Read => {
            let entry = nvm::read(number, range, 0, options(OPTIONS)?);
            (Access::Read, moving(entry, bytes, transfer_bytes_max)?)
        }
        NvmOpcode::Compare => {
            let entry = nvm::compare(number, range, 0, options(OPTIONS)?);
            (Access::Read, moving(entry, bytes, transfer_bytes_max)?)
        }
        NvmOpcode::Write => {
            let entry = nvm::write(number, range, 0, options(OPTIONS)?);
            (Access::Write, moving(entry, bytes, transfer_bytes_max)?)
        }
        NvmOpcode::WriteZeroes => {
            let entry = nvm::write_zeroes(number, range, options(OPTIONS.and(BlockOptions::DEALLOCATE))?);
            (Access::Write, Approved { entry, need: Need::Nothing })
        }
        NvmOpcode::DatasetManagement => (Access::Write, dataset(entry, number, window.clone())?),
        NvmOpcode::Verify | NvmOpcode::Copy => return Err(Status::INVALID_OPCODE),
    };
    if needs == Access::Write && own.access == Access::Read {
        return Err(Status::ACCESS_DENIED);
    }
    if !matches!(opcode, NvmOpcode::Flush | NvmOpcode::DatasetManagement) {
        window.check(range.start, range.blocks.into())?;
    }
    Ok(approved)
}

fn flush(namespace: u32) -> Approved {
    let entry = SubmissionEntry {
        opcode: NvmOpcode::Flush.number(),
        namespace: U32::new(namespace),
        ..SubmissionEntry::default()
    };
    Approved { entry, need: Need::Nothing }
}

fn moving(entry: SubmissionEntry, bytes: u64, most: u64) -> Result<Approved, Status> {
    if bytes > most { Err(Status::INVALID_FIELD) } else { Ok(Approved { entry, need: Need::Blocks(bytes) }) }
}

fn dataset(entry: &SubmissionEntry, namespace: u32, window: Window) -> Result<Approved, Status> {
    // A hint how ranges will be used changes nothing that anybody reads; the controller need not hear of it.
    if !entry.nvm_dataset_deallocate() {
        return Err(Status::INVALID_FIELD);
    }
    let ranges = entry.nvm_dataset_ranges();
    let bytes = u32::from(ranges) * u32::try_from(size_of::<DatasetRange>()).unwrap_or(u32::MAX);
    let entry = nvm::deallocate(namespace, headwater_nvme::spec::kv::DataPointer { address: 0, bytes });
    Ok(Approved { entry, need: Need::Ranges(ranges, window) })
}

/// The options of a block command, if there are none but those that are allowed.
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

    type Maker = fn(u32, BlockRange, u64, BlockOptions) -> SubmissionEntry;

    fn namespaces() -> Vec<Namespace> {
        let block = NamespaceKind::Block { block_shift: 12, blocks: 1_000 };
        let keys = NamespaceKind::KeyValue { bytes: 9, key_bytes_max: 16, value_bytes_max: 9 };
        [(1, block.clone()), (2, keys), (300, block)]
            .map(|(id, kind)| Namespace { id, kind, is_writable: true })
            .to_vec()
    }

    fn part(access: Access) -> Rights {
        let part = NamespaceRights { access, blocks: Some(100..200) };
        Rights::none().with(NamespaceId(1), part)
    }

    fn judge(entry: &SubmissionEntry, rights: &Rights) -> Result<Approved, Status> {
        approve(entry, rights, &namespaces(), MOST)
    }

    fn range(start: u64, blocks: u32) -> BlockRange {
        BlockRange { start, blocks }
    }

    #[test]
    fn only_the_blocks_of_the_grant_are_reached() {
        let writer = part(Access::Write);
        let none = BlockOptions::NONE;
        let zeroes: Maker = |namespace, range, _, options| nvm::write_zeroes(namespace, range, options);
        let makers: [Maker; 4] = [nvm::read, nvm::write, nvm::compare, zeroes];
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
                let verdict = judge(&make(1, range(start, blocks), 7, none), &writer);
                assert_eq!(verdict.is_ok(), fine, "{start} {blocks}");
            }
            assert!(judge(&make(1, range(0, 100), 7, none), &Rights::all()).is_ok());
            let end = judge(&make(1, range(999, 2), 7, none), &Rights::all());
            assert_eq!(end, Err(Status::LBA_OUT_OF_RANGE));
            for (namespace, status) in [
                (2, Status::INVALID_NAMESPACE),
                (3, Status::INVALID_NAMESPACE),
                (u32::MAX, Status::INVALID_NAMESPACE),
            ] {
                assert_eq!(judge(&make(namespace, range(0, 1), 7, none), &Rights::all()), Err(status));
            }
            assert_eq!(judge(&make(1, range(0, 1), 7, none), &Rights::none()), Err(Status::ACCESS_DENIED));
        }
    }

    #[test]
    fn every_range_of_a_discard_is_judged_and_loses_its_hints() {
        let list = headwater_nvme::spec::kv::DataPointer { address: 7, bytes: 48 };
        let approved = judge(&nvm::deallocate(1, list), &part(Access::Write)).unwrap();
        let Need::Ranges(3, window) = approved.need else { panic!("{:?}", approved.need) };
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
    fn a_reader_changes_nothing() {
        let reader = part(Access::Read);
        let none = BlockOptions::NONE;
        let list = headwater_nvme::spec::kv::DataPointer { address: 7, bytes: 16 };
        assert!(judge(&nvm::read(1, range(100, 1), 7, none), &reader).is_ok());
        assert!(judge(&nvm::compare(1, range(100, 1), 7, none), &reader).is_ok());
        for change in [
            nvm::write(1, range(100, 1), 7, none),
            nvm::write_zeroes(1, range(100, 1), none),
            nvm::deallocate(1, list),
        ] {
            assert_eq!(judge(&change, &reader), Err(Status::ACCESS_DENIED));
        }
    }

    #[test]
    fn an_approved_entry_holds_nothing_that_was_not_checked() {
        let options = BlockOptions::FORCE_UNIT_ACCESS.and(BlockOptions::LIMITED_RETRY);
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
        let approved = judge(&dirty, &Rights::all()).unwrap();
        assert_eq!((approved.entry, approved.need), (clean, Need::Blocks(9 * 4_096)));
        let flush = SubmissionEntry { opcode: 0, cdw10: noise, cdw12: noise, ..dirty };
        let approved = judge(&flush, &Rights::all()).unwrap();
        assert_eq!(approved.entry, SubmissionEntry { namespace: U32::new(1), ..SubmissionEntry::default() });
    }

    #[test]
    fn what_is_not_known_is_refused() {
        let clean = nvm::write(1, range(100, 1), 0, BlockOptions::NONE);
        for opcode in (0..=u8::MAX).filter(|opcode| ![0, 1, 2, 5, 8, 9].contains(opcode)) {
            let verdict = judge(&SubmissionEntry { opcode, ..clean }, &Rights::all());
            assert_eq!(verdict, Err(Status::INVALID_OPCODE), "{opcode:#x}");
        }
        for flags in [1, 2, 0x40, 0x80, 0x20] {
            let verdict = judge(&SubmissionEntry { flags, ..clean }, &Rights::all());
            assert_eq!(verdict, Err(Status::INVALID_FIELD));
        }
        for bit in 16..30 {
            let cdw12 = U32::new(1 << bit);
            assert!(judge(&SubmissionEntry { cdw12, ..clean }, &Rights::all()).is_err(), "bit {bit}");
        }
        let long = nvm::read(1, range(0, 257), 0, BlockOptions::NONE);
        assert_eq!(
            judge(&long, &Rights::all()),
            Err(Status::INVALID_FIELD),
            "more than the controller takes"
        );
    }
}
