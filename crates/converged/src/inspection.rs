//! Inspection: what a medium holds, looked at without a single write.
//!
//! In: a medium of a device that is not running. Out: an [`Inspection`]. Every record that the index names is read, its
//! checksum computed and its key hashed again; then the index is built a second time, from the log alone, and held against
//! the one that the checkpoint gave (`compare`).
//! Invariant: nothing is programmed, erased or flushed, and of clients' data nothing but places and lengths comes out.

mod compare;
mod verify;

#[cfg(test)]
mod tests;

use crate::device::{DeviceConfig, OpenError, Progress, Start, layer};
use crate::index::{Entry, KeyHash};
use crate::media::{Media, PageAddress};
pub use crate::recovery::CheckpointFound;
use crate::recovery::{Base, recover};

/// Findings of one kind that are kept; of the others it is only known how many there are.
const KEPT_MAX: usize = 32;

/// Findings of one kind: all are counted, the first ones kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Findings<T> {
    /// How many there are.
    pub count: u64,
    /// The first of them.
    pub first: Vec<T>,
}

impl<T> Default for Findings<T> {
    fn default() -> Self {
        Self { count: 0, first: Vec::new() }
    }
}

impl<T> Findings<T> {
    fn add(&mut self, finding: T) {
        self.count += 1;
        if self.first.len() < KEPT_MAX {
            self.first.push(finding);
        }
    }
}

/// A key or block, as far as it may be told: not what it is, but where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whereabouts {
    /// Whose.
    pub namespace: u8,
    /// The hash of the key, or the place of the block ([`KeyHash`]).
    pub hash: KeyHash,
    /// The page on which the record begins.
    pub page: PageAddress,
    /// Where in the page's block, in bytes.
    pub offset: usize,
}

impl Whereabouts {
    fn of(hash: KeyHash, entry: Entry) -> Self {
        let address = entry.address;
        Self { namespace: entry.namespace.0, hash, page: address.page(), offset: address.offset_in_block() }
    }
}

/// What is wrong with a record that the index names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordFault {
    /// It does not carry its checksum, or is no record at all.
    Damaged,
    /// It is whole, and another key's.
    Foreign,
}

/// An entry that the two ways to the index do not agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Where the checkpoint, and the log behind it, have the record.
    pub by_checkpoint: Option<Whereabouts>,
    /// Where the whole log has it.
    pub by_log: Option<Whereabouts>,
}

/// What was found in one namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceFound {
    /// Keys or blocks that the index names.
    pub counted: u64,
    /// Those whose record is whole.
    pub whole: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// Those whose record is damaged, or another key's.
    pub damaged: u64,
    /// Those that have ceased to exist, and whose record is whole.
    pub expired: u64,
}

/// What a medium holds.
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// By namespace; the last one is the table of namespaces itself.
    pub namespaces: [NamespaceFound; crate::limits::SPACES],
    /// Records that the index names and that are not what it says.
    pub faults: Findings<(Whereabouts, RecordFault)>,
    /// What there is of checkpoints.
    pub checkpoint: CheckpointFound,
    /// Where the index from the checkpoint and the index from the whole log differ.
    pub differences: Findings<Difference>,
    /// Records anywhere in the log that do not carry their checksum, whether a key needs them or not. A power cut leaves
    /// some; a node that opens the device cleans them up.
    pub damaged_records: u64,
    /// Records of batches that a power cut left incomplete.
    pub discarded_records: u64,
    /// Blocks that hold something of which no page can be read.
    pub unreadable_blocks: u32,
    /// Bytes of live records.
    pub live_bytes: u64,
    /// Blocks that hold nothing.
    pub free_blocks: u32,
}

/// Looks at everything. Blocks on the media.
///
/// # Errors
/// [`OpenError`] gives the medium back with the reason why it cannot be read.
pub fn inspect<M: Media>(
    media: M,
    config: &DeviceConfig,
    start: Start,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Inspection, M), OpenError<M>> {
    let mut now = start.now;
    let mut utl = layer(media, config)?;
    utl.wall_ms = start.wall.0;
    let mut found = Inspection::default();
    let looked = recover(&mut utl, config, Base::Checkpoint, &mut now, progress).and_then(|recovered| {
        found.checkpoint = recovered.checkpoint;
        found.unreadable_blocks = recovered.unknown_blocks;
        found.discarded_records = recovered.debris.discarded.len() as u64;
        found.damaged_records = utl.stats.damaged;
        for (hash, entry) in recovered.vanished {
            let by_checkpoint = Some(Whereabouts::of(hash, entry));
            found.differences.add(Difference { by_checkpoint, by_log: None });
        }
        found.live_bytes = utl.blocks.live_bytes();
        found.free_blocks = u32::try_from(utl.blocks.free()).unwrap_or(u32::MAX);
        verify::verify(&mut utl, &mut found, &mut now, progress)
    });
    if let Err(error) = looked {
        return Err(OpenError { media: utl.media, reason: error.into() });
    }
    // What else the first look has, device DRAM above all, goes before the second begins.
    let (hasher, index, mut media) = utl.into_parts();
    if found.checkpoint == CheckpointFound::Whole {
        let mut utl = layer(media, config)?;
        if let Err(error) = recover(&mut utl, config, Base::Log(hasher), &mut now, progress) {
            return Err(OpenError { media: utl.media, reason: error.into() });
        }
        found.damaged_records = found.damaged_records.max(utl.stats.damaged);
        compare::compare(&index, &utl.index, &mut found.differences, progress);
        media = utl.media;
    }
    Ok((found, media))
}
