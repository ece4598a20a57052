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
//! Invariant: the result depends on the medium's bytes alone, and running it twice gives the same.

mod block_pages;
mod corruption;
mod load;
mod lost_records;
mod namespace_table;
mod replay;
mod scan;
mod survey;

use crate::config::DeviceConfig;
use crate::engine::OpenProgress;
use crate::limits::RECOVERY_FRAMES;
use crate::media::geometry::{BlockId, PageAddress};
use crate::media::{Media, MediaCompletion, MediaError, MediaOp, MediaToken, PageState, RefusedOp};
pub(crate) use replay::{read_into_dram, retry_with_pages};

use crate::ftl::IncompleteBatches;
use crate::ftl::recovering::RecoveringFtl;
use crate::index::{IndexEntry, KeyHash, KeyHasher};
use headwater_dma::frame::{FramePool, MediaFrame};
use headwater_host::clock::Nanos;
use std::collections::VecDeque;

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
#[derive(Debug, Default)]
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
        checkpoint_next: survey.checkpoint_next,
        unknown_blocks: survey.unknown_blocks(),
        ..Recovered::default()
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
    ftl.release_frames();
    Ok(recovered)
}

/// Reads pages in the given order, several in flight, and passes each to `each`: its bytes, or `None` for a blank page.
/// An unreadable page is passed as zeroes; a media failure ends the reads with an error.
fn read_pages<M: Media>(
    media: &mut M,
    spare: &mut FramePool,
    now: &mut Nanos,
    mut pages: impl Iterator<Item = PageAddress>,
    mut each: impl FnMut(PageAddress, Option<&[u8]>),
) -> Result<(), MediaError> {
    let addressable = media.traits().addressable;
    let depth = media.traits().queue_max.clamp(1, RECOVERY_FRAMES);
    let mut in_flight: VecDeque<(PageAddress, Option<MediaCompletion>)> = VecDeque::new();
    let mut first_token = 0;
    let mut done = Vec::new();
    let mut refused = None;
    loop {
        while refused.is_none() && in_flight.len() < depth {
            if addressable {
                let Some(page) = pages.next() else { break };
                each(page, media.view(page));
                continue;
            }
            // Recovery must go on even if the medium did not return its frames.
            let last_resort = || in_flight.is_empty().then(MediaFrame::zeroed);
            let Some(frame) = spare.take().or_else(last_resort) else { break };
            let Some(page) = pages.next() else {
                spare.put_back(frame);
                break;
            };
            refused = Some((page, frame));
            submit_read(media, *now, first_token, &mut in_flight, &mut refused);
        }
        submit_read(media, *now, first_token, &mut in_flight, &mut refused);
        if in_flight.is_empty() && refused.is_none() {
            return Ok(());
        }
        media.poll(*now, &mut done);
        if done.is_empty() {
            *now = media.wait(*now);
            continue;
        }
        for answer in done.drain(..) {
            let at = usize::try_from(answer.token.0.wrapping_sub(first_token)).unwrap_or(usize::MAX);
            if let Some(slot) = in_flight.get_mut(at) {
                slot.1 = Some(answer);
            }
        }
        while let Some((page, Some(answer))) = in_flight.pop_front_if(|(_, answer)| answer.is_some()) {
            first_token += 1;
            let Some(mut frame) = answer.frame else { continue };
            match answer.result {
                Ok(PageState::Programmed) => each(page, Some(&frame)),
                Ok(PageState::Blank) => each(page, None),
                Err(MediaError::Unreadable { .. }) => {
                    frame.fill(0);
                    each(page, Some(&frame));
                }
                Err(error) => return Err(error),
            }
            spare.put_back(frame);
        }
    }
}

/// Submits the waiting read to the media; it keeps waiting if the media's queue is full.
fn submit_read<M: Media>(
    media: &mut M,
    now: Nanos,
    first_token: u64,
    in_flight: &mut VecDeque<(PageAddress, Option<MediaCompletion>)>,
    waiting: &mut Option<(PageAddress, MediaFrame)>,
) {
    let Some((page, frame)) = waiting.take() else {
        return;
    };
    let token = MediaToken(first_token + in_flight.len() as u64);
    match media.submit(token, MediaOp::Read { page, frame }, now) {
        Ok(()) => in_flight.push_back((page, None)),
        Err(RefusedOp { op: MediaOp::Read { frame, .. }, .. }) => *waiting = Some((page, frame)),
        Err(RefusedOp { op, .. }) => unreachable!("the medium rejected a read of {page} and returned {op:?}"),
    }
}
