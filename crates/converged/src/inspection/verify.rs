//! Every record that the index names, read and summed.
//!
//! In: a recovered translation layer. Out: counts by namespace, and the whereabouts of what is wrong. Invariant: records are
//! read in the order in which they lie, whatever the order of the index, and each is judged by its own bytes alone.

use super::{Inspection, RecordFault, Whereabouts};
use crate::device::Progress;
use crate::index::{Entry, Index, KeyHash};
use crate::media::{Media, MediaError};
use crate::record::{FLAG_CLEAR, FLAG_TOMBSTONE, UNIT_BYTES};
use crate::recovery::{bring_in, reach};
use crate::utl::{Gather, Reach, Stall, Utl};
use headwater_host::clock::Nanos;

/// Most records whose pages are read together.
const RECORDS_AHEAD: usize = 4_096;

/// What a record is.
enum Verdict {
    Whole { value_bytes: u32 },
    Expired,
    Fault(RecordFault),
}

/// Reads everything that the index names.
pub(super) fn verify<M: Media>(
    utl: &mut Utl<M>,
    found: &mut Inspection,
    now: &mut Nanos,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), MediaError> {
    let entries = by_place(utl);
    let total = entries.len() as u64;
    let mut done = 0;
    let mut rest = &entries[..];
    while !rest.is_empty() {
        let (here, behind) = rest.split_at(read_ahead(utl, rest, now)?);
        for &(hash, entry) in here {
            let verdict = reach(utl, now, |utl| judge(utl, hash, entry))?;
            let Some(counts) = found.namespaces.get_mut(entry.namespace.index()) else { continue };
            counts.counted += 1;
            match verdict {
                Verdict::Whole { value_bytes } => {
                    counts.whole += 1;
                    counts.bytes += u64::from(value_bytes);
                }
                Verdict::Expired => counts.expired += 1,
                Verdict::Fault(fault) => {
                    counts.damaged += 1;
                    found.faults.add((Whereabouts::of(hash, entry), fault));
                }
            }
            done += 1;
            progress(Progress { stage: "verify", done, total });
        }
        rest = behind;
    }
    Ok(())
}

/// All entries in the order in which their records lie.
fn by_place<M: Media>(utl: &Utl<M>) -> Vec<(KeyHash, Entry)> {
    let mut entries = Vec::with_capacity(usize::try_from(utl.index.len()).unwrap_or(0));
    let mut from = KeyHash(0);
    while let Some((hash, _)) = utl.index.next(from) {
        entries.extend((0..).map_while(|nth| utl.index.find(hash, nth)).map(|entry| (hash, entry)));
        from = KeyHash(hash.0 + 1);
    }
    entries.sort_unstable_by_key(|(_, entry)| entry.address);
    entries
}

/// Brings in the pages of the first records, and returns of how many: at least one.
fn read_ahead<M: Media>(
    utl: &mut Utl<M>,
    entries: &[(KeyHash, Entry)],
    now: &mut Nanos,
) -> Result<usize, MediaError> {
    let room = utl.dram.available() / 2;
    let mut pages = Vec::new();
    let mut ahead = 0;
    for (_, entry) in entries.iter().take(RECORDS_AHEAD) {
        let mut missing = Gather::new(utl, entry.address, 0, entry.units as usize * UNIT_BYTES).missing();
        // Records are small: the next one often begins where the last one ended.
        missing.retain(|page| pages.last() != Some(page));
        if ahead > 0 && pages.len() + missing.len() > room {
            break;
        }
        ahead += 1;
        pages.extend(missing);
    }
    pages.sort_unstable();
    pages.dedup();
    bring_in(utl, pages, now)?;
    Ok(ahead)
}

fn judge<M: Media>(utl: &Utl<M>, hash: KeyHash, entry: Entry) -> Result<Verdict, Stall> {
    let Some(header) = utl.header(entry, Reach::Value)? else {
        return Ok(Verdict::Fault(RecordFault::Damaged));
    };
    if !utl.is_intact(entry, &header)? {
        return Ok(Verdict::Fault(RecordFault::Damaged));
    }
    let gone = header.flags & (FLAG_TOMBSTONE | FLAG_CLEAR) != 0;
    if gone || header.namespace != entry.namespace || utl.hash_of(entry, &header)? != hash {
        return Ok(Verdict::Fault(RecordFault::Foreign));
    }
    Ok(if header.is_expired(utl.wall_ms) {
        Verdict::Expired
    } else {
        Verdict::Whole { value_bytes: header.value_bytes }
    })
}
