//! Recovery: rebuilds index, block table and counts from a medium.
//!
//! Input: a medium in any state that a power cut can leave. Output: a translation layer that indexes all valid records.
//!
//! 1. The first page of every block gives the block's kind and order ([`survey`]).
//! 2. The newest whole checkpoint, if any, gives the index at its time ([`load`]).
//! 3. Every block of the log from the checkpoint on is scanned, page by page ([`scan`]).
//! 4. Of each key the record with the highest sequence wins; incomplete batches are discarded ([`replay`]).
//! 5. The records of the system namespace give the settings of each namespace ([`load_namespace_table`]).
//!
//! Invariant: the result depends on the medium's bytes alone, and running it twice gives the same. A page that cannot be
//! read is not taken for zeroes: the caller decides by [`Recovered::unreadable`] whether the result may be used.

mod block_pages;
mod corruption;
mod load;
mod lost_records;
mod namespace_table;
mod page_reads;
mod replay;
mod scan;
mod survey;
mod unreadable;

use crate::config::DeviceConfig;
use crate::engine::OpenProgress;
use crate::media::geometry::{BlockId, PageAddress};
use crate::media::unreadable::UnreadablePages;
use crate::media::{Media, MediaError};
pub(crate) use page_reads::is_readable_now;
pub(crate) use replay::{read_into_dram, retry_with_pages, unless_unreadable};

use crate::ftl::IncompleteBatches;
use crate::ftl::recovering::RecoveringFtl;
use crate::index::{IndexEntry, KeyHash, KeyHasher};
use headwater_host::clock::Nanos;
use std::collections::BTreeSet;

/// The index from which recovery starts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Base {
    /// The newest whole checkpoint.
    Checkpoint,
    /// An empty index: the whole log is scanned, and keys are hashed with this hasher.
    Log(KeyHasher),
}

/// The state of the checkpoints on a medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckpointFound {
    /// There is none, or recovery did not search for one.
    #[default]
    None,
    /// There is a whole one.
    Whole,
    /// There is only an unfinished one.
    Unfinished,
    /// There is only one with unreadable pages, or with a wrong checksum.
    Damaged,
}

/// The findings of recovery, beside the translation layer itself.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) checkpoint_blocks: Vec<BlockId>,
    pub(crate) checkpoint_next: u64,
    pub(crate) start_order: u64,
    /// The highest block order accepted.
    pub(crate) accepted_order: u64,
    /// Blocks with damage, or with records of incomplete batches: collected before the first command.
    pub(crate) incomplete: IncompleteBatches,
    pub(crate) checkpoint: CheckpointFound,
    /// Blocks with programmed pages none of which can be read.
    pub(crate) unknown_blocks: u32,
    /// Durable records that the checkpoint names in the log after it, and that are lost there.
    pub(crate) lost_records: Vec<(KeyHash, IndexEntry)>,
    /// Pages of the log that the medium calls lost although they were durable.
    pub(crate) durable_losses: BTreeSet<PageAddress>,
    /// The pages that could not be read and whose contents the result lacks.
    pub(crate) unreadable: UnreadablePages,
}

/// Rebuilds a translation layer, and advances `now` by the time that the media takes.
pub(crate) fn recover<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    config: &DeviceConfig,
    base: Base,
    now: &mut Nanos,
    progress: &mut dyn FnMut(OpenProgress),
) -> Result<Recovered, MediaError> {
    let survey = survey::survey(ftl, now, progress)?;
    let mut recovered = Recovered {
        checkpoint_blocks: Vec::new(),
        checkpoint_next: survey.checkpoint_next,
        start_order: 0,
        accepted_order: 0,
        incomplete: IncompleteBatches::default(),
        checkpoint: CheckpointFound::None,
        unknown_blocks: survey.unknown_blocks(),
        lost_records: Vec::new(),
        durable_losses: BTreeSet::new(),
        unreadable: UnreadablePages::default(),
    };
    let (checkpoint, found) = match base {
        Base::Checkpoint => load::newest_checkpoint(ftl, &survey, now, progress)?,
        Base::Log(_) => (None, CheckpointFound::None),
    };
    recovered.checkpoint = found;
    if let Some((blocks, decoded)) = &checkpoint {
        recovered.checkpoint_blocks.clone_from(blocks);
        recovered.start_order = decoded.start_order;
    }
    let decoded = checkpoint.map(|(_, decoded)| decoded);
    let hasher = match (&decoded, base) {
        (Some(decoded), _) => KeyHasher::from_parts(decoded.hasher),
        (None, Base::Log(hasher)) => hasher,
        (None, Base::Checkpoint) => KeyHasher::new(config.hash_seed, config.hash_bits),
    };
    ftl.set_hasher(hasher);
    let scanned = scan::scan(ftl, &survey, recovered.start_order, now, progress)?;
    recovered.accepted_order =
        load::adopt(ftl, &survey, &scanned, decoded.as_ref(), &recovered.checkpoint_blocks);
    recovered.incomplete.blocks.extend(&scanned.damaged_blocks);
    recovered.incomplete.unlisted_records.extend(&scanned.unlisted_records);
    replay::replay(ftl, scanned, decoded.as_ref(), &mut recovered, now, progress)?;
    namespace_table::load_namespace_table(ftl, now)?;
    unreadable::report_unreadable(ftl, &survey, &mut recovered);
    ftl.release_frames();
    Ok(recovered)
}
