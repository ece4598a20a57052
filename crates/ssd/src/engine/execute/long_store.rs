//! Builds the records of long values in parts, so that a store of many megabytes keeps no other operation waiting.
//!
//! Input: the records of an operation, and its progress. Output: a draft of each record that is long, once all are built;
//! before, a stall until the operation's next turn. Invariant: the operation holds its keys between the parts, and nothing
//! of the drafts is in the log or the index before all of them are whole. Only the operation whose turn it is, and the first
//! one that waits for room, hold frames: another one that stalls is begun anew.

use crate::engine::operation::StoreProgress;
use crate::ftl::{Ftl, NewRecord, StallReason};
use crate::limits::COPY_PART_BYTES;
use crate::log::RecordSource;
use crate::log::flash_log::AppendSize;
use crate::log::record_draft::RecordDraft;
use crate::media::{Media, PAGE_DATA_BYTES};
use crate::mutant::{Mutant, mutant};

/// Returns true if the record of a value of this length is built in parts.
pub(super) const fn is_built_in_parts(value_bytes: usize) -> bool {
    value_bytes > COPY_PART_BYTES
}

/// Returns the bytes that a record of `bytes` may take in the log: one that is built in parts begins on a page of its own.
pub(super) const fn room_of(bytes: usize, value_bytes: usize) -> usize {
    if is_built_in_parts(value_bytes) { bytes + PAGE_DATA_BYTES } else { bytes }
}

/// Checks that a record, which takes at most `bytes` in the log, can be appended now. Before that builds the next part of a
/// long one. Returns the draft of a long one.
pub(super) fn prepare<M: Media>(
    ftl: &mut Ftl<M>,
    record: NewRecord<'_>,
    bytes: usize,
    progress: &mut Option<StoreProgress>,
) -> Result<Option<RecordDraft>, StallReason> {
    if !is_built_in_parts(value_of(&record).len()) {
        ftl.check_client_room(bytes)?;
        return Ok(None);
    }
    build(ftl, std::iter::once(record), bytes, progress)?;
    let drafts = progress.iter().flat_map(|progress| &progress.drafts);
    let drafted = drafts.map(RecordDraft::held_bytes).sum();
    ftl.check_client_append(AppendSize { bytes, drafted })?;
    Ok(Some(take_next(progress)))
}

/// Builds the next part of the first record that is not whole. All of them are long, and take at most `bytes` in the log.
/// Stalls until all are whole.
pub(super) fn build<'a, M: Media>(
    ftl: &mut Ftl<M>,
    long: impl Iterator<Item = NewRecord<'a>>,
    bytes: usize,
    progress: &mut Option<StoreProgress>,
) -> Result<(), StallReason> {
    let Some(StoreProgress { drafts, is_whole }) = progress else {
        // Each part takes its own frames: to make memory for all of them at once would take as long as to fill it.
        ftl.check_client_append(AppendSize { bytes, drafted: bytes })?;
        *progress = Some(StoreProgress::default());
        return Err(StallReason::Turn);
    };
    if *is_whole {
        return Ok(());
    }
    for (nth, record) in long.enumerate() {
        if nth == drafts.len() {
            drafts.push_back(RecordDraft::default());
        }
        if drafts[nth].payload_bytes() < record.key.len() + value_of(&record).len() {
            build_part(ftl, &record, &mut drafts[nth])?;
            return Err(StallReason::Turn);
        }
    }
    *is_whole = true;
    Ok(())
}

/// Takes the draft of the next record.
///
/// # Panics
/// There is none.
pub(super) fn take_next(progress: &mut Option<StoreProgress>) -> RecordDraft {
    let draft = progress.as_mut().and_then(|progress| progress.drafts.pop_front());
    draft.expect("a long record is appended before it is built")
}

fn value_of<'a>(record: &NewRecord<'a>) -> RecordSource<'a> {
    record.value.unwrap_or(RecordSource::Bytes(&[]))
}

/// Copies the next part of a record into its draft.
fn build_part<M: Media>(
    ftl: &mut Ftl<M>,
    record: &NewRecord<'_>,
    draft: &mut RecordDraft,
) -> Result<(), StallReason> {
    ftl.check_draft_room(record.key.len() + COPY_PART_BYTES)?;
    if draft.payload_bytes() == 0 {
        ftl.extend_draft(draft, RecordSource::Bytes(record.key));
    }
    let value = value_of(record);
    let offset = draft.payload_bytes() - record.key.len();
    let len = COPY_PART_BYTES.min(value.len() - offset);
    if offset > 0 && mutant(Mutant::LaterPartsNotStored) {
        ftl.extend_draft(draft, RecordSource::Bytes(&vec![0; len]));
        return Ok(());
    }
    let part = match value {
        RecordSource::Bytes(bytes) => RecordSource::Bytes(&bytes[offset..offset + len]),
        RecordSource::Client(segments) => RecordSource::Part { segments, offset, len },
        RecordSource::Part { segments, offset: start, .. } => {
            RecordSource::Part { segments, offset: start + offset, len }
        }
    };
    ftl.extend_draft(draft, part);
    Ok(())
}
