//! The table of namespaces, read back from its records.
//!
//! In: an index that is whole. Out: what each number means, and how far the last sanitize operation is. Invariant: a record that is there and cannot be read makes its
//! number unusable, never a key space that nobody made.

use super::replay::reach;
use crate::command::{Lba, NamespaceId, Sequence, Sink};
use crate::index::{Index, KeyHash};
use crate::limits::NAMESPACES;
use crate::media::{Media, MediaError};
use crate::namespace::attachment::Attachment;
use crate::namespace::sanitize_mark::{self, FoundMark};
use crate::namespace::table::{Slot, decode, place};
use crate::utl::{Found, Reach, Stall, Utl, Window};
use headwater_host::clock::Nanos;

const DAMAGED: (Slot, Attachment) = (Slot::Damaged, Attachment::EVERYBODY);

/// Fills the table.
pub(super) fn table<M: Media>(utl: &mut Utl<M>, now: &mut Nanos) -> Result<(), MediaError> {
    for number in (1..).take(NAMESPACES).map(NamespaceId) {
        let (slot, attachment) = match utl.index.find(place(number), 0) {
            // Blocks whose namespace nobody made: its record was lost to damage.
            None if has_blocks(utl, number) => DAMAGED,
            None => (Slot::Implicit, Attachment::EVERYBODY),
            Some(_) => reach(utl, now, |utl| slot_of(utl, number))?,
        };
        utl.table.load(number, slot, &attachment.after_restart());
    }
    let mark = reach(utl, now, |utl| mark_of(utl))?;
    utl.table.load_sanitize(mark);
    Ok(())
}

/// What the last sanitize operation came to; `None` if there was none.
fn mark_of<M: Media>(utl: &Utl<M>) -> Result<Option<FoundMark>, Stall> {
    Ok(match value_of(utl, sanitize_mark::place())? {
        Value::Absent => None,
        Value::Damaged => Some(FoundMark::DAMAGED),
        Value::Intact(sequence, bytes) => {
            let mark = sanitize_mark::decode(&bytes).map(|mark| FoundMark { mark, sequence });
            Some(mark.unwrap_or(FoundMark::DAMAGED))
        }
    })
}

fn has_blocks<M: Media>(utl: &Utl<M>, number: NamespaceId) -> bool {
    let first = utl.index.next(KeyHash::of_block(number, Lba(0)));
    first.is_some_and(|(_, entry)| entry.namespace == number)
}

fn slot_of<M: Media>(utl: &Utl<M>, number: NamespaceId) -> Result<(Slot, Attachment), Stall> {
    Ok(match value_of(utl, place(number))? {
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

fn value_of<M: Media>(utl: &Utl<M>, place: KeyHash) -> Result<Value, Stall> {
    if utl.index.find(place, 0).is_none() {
        return Ok(Value::Absent);
    }
    let (system, lba) = place.block();
    let found = utl.find(place, system, &lba.0.to_le_bytes(), Reach::Value)?;
    let Some(Found { entry, header: Some(header) }) = found else {
        return Ok(Value::Damaged);
    };
    let mut sink = Sink::Bytes(Vec::new());
    let intact = utl.read_value(entry, &header, &mut sink, Window::front(header.value_bytes))?;
    Ok(match sink {
        Sink::Bytes(bytes) if intact => Value::Intact(header.sequence, bytes),
        _ => Value::Damaged,
    })
}
