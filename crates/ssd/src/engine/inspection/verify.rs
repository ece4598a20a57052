//! Reads every record that the index names and verifies its checksum.
//!
//! Input: a recovered translation layer. Output: counts by namespace, and the locations of faulty records. Invariant:
//! records are read in order of their addresses, and each is checked by its own bytes alone.

use super::{MediumInspection, RecordFault, RecordLocation};
use crate::engine::progress::OpenProgress;
use crate::engine::recovery::{damaged_extent_pages, read_into_dram, retry_with_pages};
use crate::ftl::recovering::RecoveringFtl;
use crate::ftl::{Ftl, RecordPart, RecordPieces, StallReason};
use crate::index::{IndexEntry, KeyHash, RecordIndex};
use crate::log::record::{FLAG_CLEAR, FLAG_TOMBSTONE, UNIT_BYTES};
use crate::media::unreadable::PageNeed;
use crate::media::{Media, MediaError, MediumVersion, PageAddress};
use headwater_host::clock::Nanos;
use std::collections::BTreeSet;

/// Maximum of records whose pages are read together.
const RECORDS_PER_READ: usize = 4_096;

/// The result of the check of one record.
enum RecordVerdict {
    Intact {
        value_bytes: u32,
    },
    Expired,
    /// It is intact, and may be superseded by a lost one.
    InDoubt,
    /// This page of it cannot be read, or does not prove itself.
    BadPage(PageAddress),
    Fault(RecordFault),
}

/// Reads and checks every record that the index names. Adds the pages of them that do not prove themselves.
pub(in crate::engine) fn verify<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    found: &mut MediumInspection,
    damaged_pages: &mut BTreeSet<PageAddress>,
    now: &mut Nanos,
    progress: &mut dyn FnMut(OpenProgress),
) -> Result<(), MediaError> {
    let entries = entries_by_address(ftl);
    let total = entries.len() as u64;
    let mut done = 0;
    let mut rest = &entries[..];
    while !rest.is_empty() {
        let (here, behind) = rest.split_at(read_record_pages(ftl, rest, now)?);
        for &(hash, entry) in here {
            let check = |ftl: &Ftl<M>| match check_record(ftl, hash, entry) {
                Err(StallReason::Unreadable(page)) => Ok(RecordVerdict::BadPage(page)),
                checked => checked,
            };
            let mut verdict = retry_with_pages(ftl, now, PageNeed::Record, check)?;
            if matches!(verdict, RecordVerdict::Intact { .. }) && entry.has_extents {
                verdict = check_extents(ftl, entry, now)?.unwrap_or(verdict);
            }
            if let RecordVerdict::BadPage(page) = verdict {
                let is_unreadable = ftl.failures().has(page);
                verdict = if is_unreadable {
                    RecordVerdict::Fault(RecordFault::Unreadable)
                } else {
                    damaged_pages.insert(page);
                    found.damaged_records += 1;
                    RecordVerdict::Fault(RecordFault::Damaged)
                };
            }
            let Some(counts) = found.namespaces.get_mut(entry.namespace.index()) else { continue };
            counts.records += 1;
            match verdict {
                RecordVerdict::Intact { value_bytes } => {
                    counts.intact += 1;
                    counts.bytes += u64::from(value_bytes);
                }
                RecordVerdict::Expired => counts.expired += 1,
                RecordVerdict::InDoubt => {
                    counts.in_doubt += 1;
                    found.doubtful_records.add(RecordLocation::of(hash, entry));
                }
                RecordVerdict::BadPage(page) => unreachable!("{page} was found unreadable or damaged above"),
                RecordVerdict::Fault(fault) => {
                    counts.damaged += 1;
                    found.faults.add((RecordLocation::of(hash, entry), fault));
                }
            }
            done += 1;
            progress(OpenProgress { stage: "verify", done, total });
        }
        rest = behind;
    }
    Ok(())
}

/// Returns all entries in order of their records' addresses.
fn entries_by_address<M: Media>(ftl: &Ftl<M>) -> Vec<(KeyHash, IndexEntry)> {
    let mut entries = Vec::with_capacity(usize::try_from(ftl.index().len()).unwrap_or(0));
    let mut from = KeyHash(0);
    while let Some((hash, _)) = ftl.index().next(from) {
        entries.extend((0..).map_while(|nth| ftl.index().find(hash, nth)).map(|entry| (hash, entry)));
        from = KeyHash(hash.0 + 1);
    }
    entries.sort_unstable_by_key(|(_, entry)| entry.address);
    entries
}

/// Reads the pages of the first records, and returns the number of these records: at least one.
fn read_record_pages<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    entries: &[(KeyHash, IndexEntry)],
    now: &mut Nanos,
) -> Result<usize, MediaError> {
    let room = ftl.page_cache().available() / 2;
    let mut pages = Vec::new();
    let mut ahead = 0;
    for (_, entry) in entries.iter().take(RECORDS_PER_READ) {
        let mut missing =
            RecordPieces::new(ftl, entry.address, 0, entry.units as usize * UNIT_BYTES).missing();
        // Records are small: the next one often begins on the page where the previous one ended.
        missing.retain(|page| pages.last() != Some(page));
        if ahead > 0 && pages.len() + missing.len() > room {
            break;
        }
        ahead += 1;
        pages.extend(missing);
    }
    pages.sort_unstable();
    pages.dedup();
    read_into_dram(ftl, PageNeed::Record, pages, now)?;
    Ok(ahead)
}

fn check_record<M: Media>(
    ftl: &Ftl<M>,
    hash: KeyHash,
    entry: IndexEntry,
) -> Result<RecordVerdict, StallReason> {
    let Some(header) = ftl.header(entry, RecordPart::Whole)? else {
        return Ok(RecordVerdict::Fault(RecordFault::Damaged));
    };
    if !ftl.is_intact(entry, &header)? {
        return Ok(RecordVerdict::Fault(RecordFault::Damaged));
    }
    if !is_proven(ftl, entry) {
        return Ok(RecordVerdict::Fault(RecordFault::Damaged));
    }
    let gone = header.flags & (FLAG_TOMBSTONE | FLAG_CLEAR) != 0;
    if gone || header.namespace != entry.namespace || ftl.index_key(entry, &header)? != hash {
        return Ok(RecordVerdict::Fault(RecordFault::OtherKey));
    }
    Ok(if ftl.doubts().covers(header.namespace, header.sequence) {
        RecordVerdict::InDoubt
    } else if ftl.is_expired(&header) {
        RecordVerdict::Expired
    } else {
        RecordVerdict::Intact { value_bytes: header.value_len_u32() }
    })
}

/// Returns the fault of an intact record's extents; `None` if every page of them is intact.
fn check_extents<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    entry: IndexEntry,
    now: &mut Nanos,
) -> Result<Option<RecordVerdict>, MediaError> {
    let extents_of = |ftl: &Ftl<M>| match ftl.header(entry, RecordPart::Whole)? {
        Some(header) => ftl.extents_of(entry.address, &header),
        None => Ok(None),
    };
    let extents = retry_with_pages(ftl, now, PageNeed::Record, extents_of)?;
    let Some(extents) = extents else { return Ok(Some(RecordVerdict::Fault(RecordFault::Damaged))) };
    let damaged = damaged_extent_pages(ftl, PageNeed::Record, &extents, now)?;
    Ok(damaged.first().map(|page| RecordVerdict::BadPage(*page)))
}

/// Returns true if each page of a record that is in device DRAM is proven. Pages enter it only with the proof that held at
/// that time, so this matters where it became stricter: in an upgrade.
fn is_proven<M: Media>(ftl: &Ftl<M>, entry: IndexEntry) -> bool {
    if ftl.media().traits().version != MediumVersion::One {
        return true;
    }
    let proof = ftl.proof();
    let mut pieces = RecordPieces::new(ftl, entry.address, 0, entry.units as usize * UNIT_BYTES);
    std::iter::from_fn(|| pieces.next_span()).all(|(page, ..)| {
        let order = ftl.blocks().get(page.block).order;
        ftl.page(page).is_none_or(|bytes| proof.holds(bytes, page, order))
    })
}
