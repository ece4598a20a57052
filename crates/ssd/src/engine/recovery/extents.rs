//! The extents of values during recovery: those of the last commit must be intact, those of live records are in use
//! (`docs/formats/medium-2.md`, rule 4).
//!
//! Input: records of the window, and the recovered index. Output: the records of the last commit that lack an extent, and the
//! extents of each live record. Invariant: no extent of a live record is free, unless its list cannot be read; no damaged list
//! takes an extent from an intact record, nor from one that cannot be read now.

use super::evidence::durable_prefix;
use super::page_reads::read_pages;
use super::replay::{read_into_dram, retry_with_pages, unless_unreadable};
use super::survey::BlockLife;
use super::window::FoundWindow;
use crate::command::Sequence;
use crate::ftl::recovering::RecoveringFtl;
use crate::ftl::{Ftl, RecordPart, StallReason};
use crate::index::IndexEntry;
use crate::log::commit_record::CommitRecord;
use crate::log::extent_list::Extent;
use crate::log::page::{PageKind, PageSpare};
use crate::log::prefix::{Tick, is_up_to_epoch};
use crate::log::record::RecordAddress;
use crate::media::geometry::{BlockId, PAGES_PER_BLOCK, PageAddress};
use crate::media::unreadable::PageNeed;
use crate::media::{Media, MediaError};
use crate::mutant::{Mutant, mutant};
use headwater_host::clock::Nanos;
use std::collections::{BTreeMap, BTreeSet};

/// Records whose first pages are read together.
const RECORDS_PER_READ: usize = 1_024;

/// A record of the window whose value has extents.
#[derive(Debug)]
pub(super) struct ExtentRecord {
    /// The tick of its last page.
    pub(super) last: Tick,
    pub(super) sequence: Sequence,
    pub(super) extents: Vec<Extent>,
}

/// The claim of a record to a block that is named more than once.
#[derive(Clone, Copy, Debug)]
struct ExtentClaim {
    entry: IndexEntry,
    order: u64,
    /// True if the block has the life that the list names, or may have it because no page of the block can be read.
    is_there: bool,
}

/// The state of a record with a claim. The greatest one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ClaimProof {
    /// A page of the record or its checksum is wrong.
    Damaged,
    /// A page of the record cannot be read now.
    Unreadable,
    /// The record, its list with it, is the one that was written.
    Intact,
}

/// Returns the last ticks of the new records behind what is known to be durable that name an extent which is not intact: a
/// commit with one of them does not count. A record that collection moved has a sequence that is known to be durable. Only
/// records of the epoch of the commit matter: what an older epoch left behind its end counts for nothing, and its extents may
/// hold other values.
pub(super) fn torn_records<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    records: &[CommitRecord],
    window: &FoundWindow,
    now: &mut Nanos,
) -> Result<Vec<Tick>, MediaError> {
    let durable = durable_prefix(records, window);
    let is_new = |record: &&ExtentRecord| record.last > durable.tick && record.sequence > durable.sequence;
    let mut torn = Vec::new();
    for record in window.extents.iter().filter(is_new) {
        if !damaged_pages(ftl, PageNeed::Log, &record.extents, now)?.is_empty() {
            torn.push(record.last);
        }
    }
    if mutant(Mutant::TornExtentAccepted) {
        torn.clear();
    }
    Ok(torn)
}

/// Reads every page of some extents, and returns those that are not intact or cannot be read.
#[expect(clippy::cast_possible_truncation, reason = "64 pages a block")]
pub(in crate::engine) fn damaged_pages<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    need: PageNeed,
    extents: &[Extent],
    now: &mut Nanos,
) -> Result<Vec<PageAddress>, MediaError> {
    let (seed, blocks) = (ftl.media().traits().checksum_seed, ftl.geometry().blocks);
    let (here, missing): (Vec<Extent>, Vec<Extent>) =
        extents.iter().partition(|extent| extent.block.0 < blocks);
    let mut damaged: Vec<PageAddress> =
        missing.iter().map(|extent| PageAddress::new(extent.block, 0)).collect();
    let pages = here
        .iter()
        .flat_map(|extent| (0..PAGES_PER_BLOCK as u8).map(|page| PageAddress::new(extent.block, page)));
    let mut orders = here.iter().flat_map(|extent| std::iter::repeat_n(extent.order, PAGES_PER_BLOCK));
    let (mut source, _) = ftl.reading(need);
    read_pages(&mut source, now, pages, |page, bytes| {
        let order = orders.next().expect("one page was read for each that was asked for");
        let spare = bytes.programmed().and_then(|bytes| PageSpare::of_intact(bytes, page, seed));
        if spare.is_none_or(|spare| spare.kind != PageKind::Extent || spare.order != order) {
            damaged.push(page);
        }
    })?;
    Ok(damaged)
}

/// Puts the extents of all live records into use.
pub(super) fn adopt_extents<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    lives: &[BlockLife],
    epoch: u64,
    now: &mut Nanos,
) -> Result<(), MediaError> {
    let mut found: Vec<(IndexEntry, Vec<Extent>)> = Vec::new();
    for entries in ftl.take_with_extents().chunks(RECORDS_PER_READ) {
        read_first_pages(ftl, entries, now)?;
        for entry in entries {
            let extents_of = |ftl: &Ftl<M>| match ftl.header(*entry, RecordPart::Key)? {
                Some(header) if header.units() == entry.units => ftl.extents_of(entry.address, &header),
                _ => Ok(None),
            };
            let attempt = |ftl: &Ftl<M>| unless_unreadable(extents_of(ftl), None);
            let extents = retry_with_pages(ftl, now, PageNeed::Index, attempt)?.unwrap_or_default();
            let possible = extents.into_iter().filter(|extent| is_up_to_epoch(extent.order, epoch));
            found.push((*entry, possible.collect()));
        }
    }
    let unowned = settle_contested(ftl, lives, &mut found, now)?;
    if !mutant(Mutant::ExtentsNotAdopted) {
        ftl.load_extents(found, &unowned);
    }
    Ok(())
}

/// Leaves each block that is named more than once to one record, which frees it later, and returns the blocks that no record
/// may free: records that cannot be told apart claim them. A list is damaged then, or older than the life of the block.
fn settle_contested<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    lives: &[BlockLife],
    found: &mut [(IndexEntry, Vec<Extent>)],
    now: &mut Nanos,
) -> Result<Vec<Extent>, MediaError> {
    let mut owners: BTreeMap<BlockId, Option<ExtentClaim>> = BTreeMap::new();
    let (mut unowned, mut proofs) = (Vec::new(), BTreeMap::new());
    for (block, claims) in contested_claims(lives, found) {
        let owner = owner_of(ftl, &claims, &mut proofs, now)?;
        if owner.is_none() {
            let orders = claims.iter().filter(|claim| claim.is_there).map(|claim| claim.order);
            unowned.extend(orders.max().map(|order| Extent { block, order }));
        }
        owners.insert(block, owner);
    }
    for (entry, extents) in found {
        let is_claim = |claim: &ExtentClaim, extent: &Extent| {
            (claim.entry.address, claim.order) == (entry.address, extent.order)
        };
        extents.retain(|extent| match owners.get(&extent.block) {
            Some(owner) => owner.as_ref().is_some_and(|claim| is_claim(claim, extent)),
            None => true,
        });
    }
    Ok(unowned)
}

/// Returns the claim that counts; `None` if records that are not intact have claims of one rank. A claim to a life that the
/// block does not have serves no reader: only where the life tells nothing, the records are checked as a whole.
fn owner_of<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    claims: &[ExtentClaim],
    proofs: &mut BTreeMap<RecordAddress, ClaimProof>,
    now: &mut Nanos,
) -> Result<Option<ExtentClaim>, MediaError> {
    if mutant(Mutant::FirstClaimWins) {
        return Ok(claims.first().copied());
    }
    let is_there = claims.iter().any(|claim| claim.is_there);
    let mut best: Vec<ExtentClaim> =
        claims.iter().filter(|claim| claim.is_there == is_there).copied().collect();
    best.sort_unstable_by_key(|claim| (claim.order, claim.entry.address));
    if !is_there || !are_of_several_records(&best) {
        return Ok(best.pop());
    }
    let mut greatest = ClaimProof::Damaged;
    for claim in &best {
        let proof = match proofs.get(&claim.entry.address).copied() {
            Some(proof) => proof,
            None => proof_of(ftl, claim.entry, now)?,
        };
        proofs.insert(claim.entry.address, proof);
        greatest = greatest.max(proof);
    }
    best.retain(|claim| proofs.get(&claim.entry.address) == Some(&greatest));
    let is_undecided = greatest != ClaimProof::Intact && are_of_several_records(&best);
    Ok(if is_undecided { None } else { best.pop() })
}

/// Returns true if the claims are those of several records.
fn are_of_several_records(claims: &[ExtentClaim]) -> bool {
    claims.windows(2).any(|pair| pair[0].entry.address != pair[1].entry.address)
}

/// Returns the claims to the blocks that are named more than once, in the order of the records' addresses.
fn contested_claims(
    lives: &[BlockLife],
    found: &[(IndexEntry, Vec<Extent>)],
) -> BTreeMap<BlockId, Vec<ExtentClaim>> {
    let contested = contested_blocks(found);
    let mut claims: BTreeMap<BlockId, Vec<ExtentClaim>> = BTreeMap::new();
    for (entry, extents) in found {
        for extent in extents.iter().filter(|extent| contested.contains(&extent.block)) {
            let is_there = match lives.get(extent.block.index()) {
                Some(BlockLife::Extent { order, .. }) => *order == extent.order,
                Some(BlockLife::Unknown(is_unreadable)) => *is_unreadable,
                _ => false,
            };
            let claim = ExtentClaim { entry: *entry, order: extent.order, is_there };
            claims.entry(extent.block).or_default().push(claim);
        }
    }
    claims
}

/// Returns the blocks that are named more than once.
fn contested_blocks(found: &[(IndexEntry, Vec<Extent>)]) -> BTreeSet<BlockId> {
    let all = found.iter().flat_map(|(_, extents)| extents);
    let mut named: Vec<BlockId> = all.map(|extent| extent.block).collect();
    named.sort_unstable();
    named.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect()
}

/// Reads a whole record and checks it. A page of it that cannot be read keeps no device from opening.
fn proof_of<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    entry: IndexEntry,
    now: &mut Nanos,
) -> Result<ClaimProof, MediaError> {
    let check = |ftl: &Ftl<M>| match is_intact(ftl, entry) {
        Err(StallReason::Unreadable(page)) => Ok(Err(page)),
        checked => checked.map(Ok),
    };
    Ok(match retry_with_pages(ftl, now, PageNeed::Record, check)? {
        Ok(true) => ClaimProof::Intact,
        // A page that could be read and does not prove itself is damaged.
        Err(page) if ftl.failures().has(page) => ClaimProof::Unreadable,
        Ok(false) | Err(_) => ClaimProof::Damaged,
    })
}

fn is_intact<M: Media>(ftl: &Ftl<M>, entry: IndexEntry) -> Result<bool, StallReason> {
    match ftl.header(entry, RecordPart::Whole)? {
        Some(header) => ftl.is_intact(entry, &header),
        None => Ok(false),
    }
}

fn read_first_pages<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    entries: &[IndexEntry],
    now: &mut Nanos,
) -> Result<(), MediaError> {
    let mut pages: Vec<PageAddress> = entries.iter().map(|entry| entry.address.page()).collect();
    pages.retain(|page| ftl.page(*page).is_none());
    pages.dedup();
    pages.truncate(ftl.page_cache().available() / 2);
    read_into_dram(ftl, PageNeed::Index, pages, now)
}
