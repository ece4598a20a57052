//! The table of namespaces, read back from its records.
//!
//! In: an index that is whole. Out: what each number means, and how far the last sanitize operation is. Invariant: a record that is there and cannot be read makes its
//! number unusable, never a key space that nobody made.

use super::replay::reach;
use crate::command::{Lba, NamespaceId, Sequence, Sink};
use crate::ftl::namespace_table::{Slot, decode, place};
use crate::ftl::sanitize_mark::{self, FoundMark};
use crate::ftl::{Found, Ftl, Reach, Stall, Window};
use crate::index::{Index, KeyHash};
use crate::limits::NAMESPACES;
use crate::media::{Media, MediaError};
use crate::namespace::attachment::Attachment;
use headwater_host::clock::Nanos;

const DAMAGED: (Slot, Attachment) = (Slot::Damaged, Attachment::EVERYBODY);

/// Fills the table.
pub(super) fn table<M: Media>(ftl: &mut Ftl<M>, now: &mut Nanos) -> Result<(), MediaError> {
    for number in (1..).take(NAMESPACES).map(NamespaceId) {
        let (slot, attachment) = match ftl.index.find(place(number), 0) {
            // Blocks whose namespace nobody made: its record was lost to damage.
            None if has_blocks(ftl, number) => DAMAGED,
            None => (Slot::Implicit, Attachment::EVERYBODY),
            Some(_) => reach(ftl, now, |ftl| slot_of(ftl, number))?,
        };
        ftl.table.load(number, slot, &attachment.after_restart());
    }
    let mark = reach(ftl, now, |ftl| mark_of(ftl))?;
    ftl.table.load_sanitize(mark);
    Ok(())
}

/// What the last sanitize operation came to; `None` if there was none.
fn mark_of<M: Media>(ftl: &Ftl<M>) -> Result<Option<FoundMark>, Stall> {
    Ok(match value_of(ftl, sanitize_mark::place())? {
        Value::Absent => None,
        Value::Damaged => Some(FoundMark::DAMAGED),
        Value::Intact(sequence, bytes) => {
            let mark = sanitize_mark::decode(&bytes).map(|mark| FoundMark { mark, sequence });
            Some(mark.unwrap_or(FoundMark::DAMAGED))
        }
    })
}

fn has_blocks<M: Media>(ftl: &Ftl<M>, number: NamespaceId) -> bool {
    let first = ftl.index.next(KeyHash::of_block(number, Lba(0)));
    first.is_some_and(|(_, entry)| entry.namespace == number)
}

fn slot_of<M: Media>(ftl: &Ftl<M>, number: NamespaceId) -> Result<(Slot, Attachment), Stall> {
    Ok(match value_of(ftl, place(number))? {
        Value::Intact(_, bytes) => {
            decode(&bytes).map_or(DAMAGED, |(namespace, attachment)| (Slot::Made(namespace), attachment))
        }
        Value::Absent | Value::Damaged => DAMAGED,
    })
}

/// What lies at a place of the table.
enum Value {
    Absent,
    Damaged,
    Intact(Sequence, Vec<u8>),
}

fn value_of<M: Media>(ftl: &Ftl<M>, place: KeyHash) -> Result<Value, Stall> {
    if ftl.index.find(place, 0).is_none() {
        return Ok(Value::Absent);
    }
    let (system, lba) = place.block();
    let found = ftl.find(place, system, &lba.0.to_le_bytes(), Reach::Value)?;
    let Some(Found { entry, header: Some(header) }) = found else {
        return Ok(Value::Damaged);
    };
    let mut sink = Sink::Bytes(Vec::new());
    let intact = ftl.read_value(entry, &header, &mut sink, Window::front(header.value_bytes))?;
    Ok(match sink {
        Sink::Bytes(bytes) if intact => Value::Intact(header.sequence, bytes),
        _ => Value::Damaged,
    })
}
