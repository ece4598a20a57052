//! Loads the namespace table from its records.
//!
//! Input: a complete index. Output: the settings of each namespace, and the phase of the last sanitize operation.
//! Invariant: a record that exists but cannot be read makes its number unusable, never an implicit key space.

use super::replay::{retry_with_pages, unless_unreadable};
use crate::command::{Lba, NamespaceId, Sequence, ValueSink};
use crate::ftl::namespace_table::{NamespaceDefinition, decode, record_position};
use crate::ftl::recovering::RecoveringFtl;
use crate::ftl::sanitize_mark::{self, FoundMark};
use crate::ftl::{FoundRecord, Ftl, RecordPart, SinkRange, StallReason};
use crate::index::{KeyHash, RecordIndex};
use crate::limits::NAMESPACES;
use crate::media::unreadable::PageNeed;
use crate::media::{Media, MediaError};
use crate::namespace::attachment::NamespaceAttachment;
use headwater_host::clock::Nanos;

const DAMAGED: (NamespaceDefinition, NamespaceAttachment) =
    (NamespaceDefinition::Damaged, NamespaceAttachment::ALL_CONTROLLERS);

/// Fills the namespace table.
pub(super) fn load_namespace_table<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    now: &mut Nanos,
) -> Result<(), MediaError> {
    for number in (1..).take(NAMESPACES).map(NamespaceId) {
        let (slot, attachment) = match ftl.index().find(record_position(number), 0) {
            // Blocks without a namespace record: damage has destroyed the record.
            None if has_blocks(ftl, number) || is_in_doubt(ftl, number) => DAMAGED,
            None => (NamespaceDefinition::Implicit, NamespaceAttachment::ALL_CONTROLLERS),
            Some(_) => retry_with_pages(ftl, now, PageNeed::Index, |ftl| slot_of(ftl, number))?,
        };
        ftl.load_namespace(number, slot, &attachment.after_restart());
    }
    let mark = retry_with_pages(ftl, now, PageNeed::Index, |ftl| mark_of(ftl))?;
    ftl.load_sanitize(mark);
    Ok(())
}

/// Reads the mark of the last sanitize operation; `None` if there was none.
fn mark_of<M: Media>(ftl: &Ftl<M>) -> Result<Option<FoundMark>, StallReason> {
    Ok(match value_of(ftl, sanitize_mark::mark_position())? {
        Value::Absent => None,
        Value::Damaged => Some(FoundMark::DAMAGED),
        Value::Intact(sequence, bytes) => {
            let mark = sanitize_mark::decode(&bytes).map(|mark| FoundMark { mark, sequence });
            Some(mark.unwrap_or(FoundMark::DAMAGED))
        }
    })
}

/// Returns true if the medium may have lost the record of a namespace that has none.
fn is_in_doubt<M: Media>(ftl: &Ftl<M>, number: NamespaceId) -> bool {
    ftl.doubts().covers_absence(NamespaceId::SYSTEM, || u128::from(record_position(number).0))
}

fn has_blocks<M: Media>(ftl: &Ftl<M>, number: NamespaceId) -> bool {
    let first = ftl.index().next(KeyHash::of_block(number, Lba(0)));
    first.is_some_and(|(_, entry)| entry.namespace == number)
}

fn slot_of<M: Media>(
    ftl: &Ftl<M>,
    number: NamespaceId,
) -> Result<(NamespaceDefinition, NamespaceAttachment), StallReason> {
    Ok(match value_of(ftl, record_position(number))? {
        Value::Intact(_, bytes) => decode(&bytes)
            .map_or(DAMAGED, |(namespace, attachment)| (NamespaceDefinition::Created(namespace), attachment)),
        Value::Absent | Value::Damaged => DAMAGED,
    })
}

/// The value of a record of the table.
enum Value {
    Absent,
    Damaged,
    Intact(Sequence, Vec<u8>),
}

fn value_of<M: Media>(ftl: &Ftl<M>, place: KeyHash) -> Result<Value, StallReason> {
    unless_unreadable(read_value_of(ftl, place), Value::Damaged)
}

fn read_value_of<M: Media>(ftl: &Ftl<M>, place: KeyHash) -> Result<Value, StallReason> {
    if ftl.index().find(place, 0).is_none() {
        let in_doubt = ftl.doubts().covers_absence(NamespaceId::SYSTEM, || u128::from(place.0));
        return Ok(if in_doubt { Value::Damaged } else { Value::Absent });
    }
    let (system, lba) = place.namespace_and_lba();
    let found = ftl.find(place, system, &lba.0.to_le_bytes(), RecordPart::Whole)?;
    let Some(FoundRecord { entry, header: Some(header) }) = found else {
        return Ok(Value::Damaged);
    };
    let mut sink = ValueSink::Bytes(Vec::new());
    let intact = ftl.read_value(entry, &header, &mut sink, SinkRange::front(header.value_bytes))?;
    Ok(match sink {
        ValueSink::Bytes(bytes) if intact => Value::Intact(header.sequence, bytes),
        _ => Value::Damaged,
    })
}
