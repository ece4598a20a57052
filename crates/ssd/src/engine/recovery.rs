//! Recovery: rebuilds index, block table and counts from a medium, by what the medium proves (`docs/formats/medium-2.md`).
//!
//! Input: a medium in any state. Output: a translation layer that indexes all records that count.
//!
//! 1. The commit cells give the newest commit record ([`commit_cells`]).
//! 2. An intact page of every block gives the block's kind and order ([`survey`]).
//! 3. The checkpoint that the record names gives the index at its time ([`checkpoint_load`]).
//! 4. Every block of the log from its start on is read, page by page ([`window`]).
//! 5. Records and pages tell which prefix of the log counts and which pages of it are lost ([`evidence`]).
//! 6. Of each key the record with the highest sequence wins ([`replay`]).
//! 7. The records of the system namespace give the settings of each namespace ([`load_namespace_table`]).
//!
//! Invariant: the result depends on the medium's bytes alone, and running it twice gives the same. A page that cannot be
//! read is not taken for zeroes: the caller decides by [`Recovered::unreadable`] whether the result may be used.
//! A medium of version 1 has rules of its own ([`version1`]).

mod checkpoint_load;
mod commit_cells;
mod damaged_pages;
mod evidence;
mod extents;
mod namespace_table;
mod page_reads;
mod recovery_error;
mod replaced;
mod replay;
mod survey;
mod unreadable;
mod version1;
mod window;

use crate::config::DeviceConfig;
use crate::engine::checkpoint::stream::{DecodedIndex, DecodedMap};
use crate::engine::progress::OpenProgress;
use crate::ftl::doubt::Doubts;
use crate::ftl::recovering::{FoundLog, RecoveringFtl};
use crate::index::{IndexEntry, KeyHash, KeyHasher};
use crate::limits::SPACES;
use crate::log::blocks::{BlockEntry, BlockState, EMPTY_ENTRY, is_checkpoint_order};
use crate::log::prefix::{EPOCH_SHIFT, Tick};
use crate::media::geometry::{BlockId, PageAddress};
use crate::media::unreadable::{PageNeed, UnreadablePages};
use crate::media::{CellNumber, Media, MediaError, MediumVersion};
use crate::mutant::{Mutant, mutant};
pub use checkpoint_load::DamagedCheckpoint;
use checkpoint_load::{LoadedCheckpoint, load_checkpoint};
use commit_cells::{FoundRecords, read_commit_cells};
use damaged_pages::{damaged_in_block, damaged_in_window};
use evidence::CountedLog;
pub(crate) use evidence::LostPages;
pub(in crate::engine) use extents::damaged_pages as damaged_extent_pages;
use headwater_host::clock::Nanos;
pub(crate) use page_reads::{is_readable_now, run_alone};
pub use recovery_error::RecoveryError;
use replaced::ReplacedKeys;
use replay::{CheckpointBase, Line};
pub(crate) use replay::{read_into_dram, retry_with_pages};
use std::collections::{BTreeMap, BTreeSet};
use survey::BlockLife;
use window::{FoundWindow, read_window};

/// The index from which recovery starts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Base {
    /// The newest whole checkpoint.
    Checkpoint,
    /// An empty index: the whole log is scanned, and keys are hashed with this hasher.
    Log(KeyHasher),
}

/// The state of the checkpoint on a medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckpointFound {
    /// There is none, or recovery did not search for one.
    #[default]
    None,
    /// There is a whole one.
    Whole,
    /// There is only an unfinished one, on a medium of version 1.
    Unfinished,
    /// Pages of it are unreadable, or have a wrong checksum.
    Damaged,
}

/// The findings of recovery, beside the translation layer itself.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    pub(crate) checkpoint_blocks: Vec<BlockId>,
    pub(crate) checkpoint: CheckpointFound,
    /// The end of the log that the opening continues.
    pub(crate) log: FoundLog,
    /// Pages of the log that were durable and are lost.
    pub(crate) lost: Vec<LostPages>,
    /// Pages of the log that count and are not intact, as far as a page or the map tells where they are. Those in front of
    /// the window are read only if the index is built from them.
    pub(crate) damaged_pages: Vec<PageAddress>,
    /// Records on intact pages in front of the window whose own checksum differs.
    pub(crate) damaged_old_records: u64,
    /// Pages of the checkpoint that are not intact.
    pub(crate) damaged_checkpoint: DamagedCheckpoint,
    /// Commit cells that hold no intact record, or cannot be read.
    pub(crate) damaged_cells: Vec<CellNumber>,
    /// Commit cells without the record that the medium shows was durable there.
    pub(crate) stale_cells: Vec<CellNumber>,
    /// True if the newest record names a commit of which pages are missing, so that it does not count.
    pub(crate) is_commit_discarded: bool,
    /// Records of batches that a power cut left incomplete, on a medium of version 1.
    pub(crate) discarded_records: u64,
    /// Blocks with programmed pages none of which is intact.
    pub(crate) unknown_blocks: u32,
    /// Durable records that the checkpoint names in the log after it, and that are lost there, on a medium of version 1.
    pub(crate) lost_records: Vec<(KeyHash, IndexEntry)>,
    /// The pages that could not be read and whose contents the result lacks.
    pub(crate) unreadable: UnreadablePages,
    /// Pages that the collector need not read once their loss is accepted.
    pub(crate) passed_over: BTreeSet<PageAddress>,
}

/// Rebuilds a translation layer, and advances `now` by the time that the media takes.
pub(crate) fn recover<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    config: &DeviceConfig,
    base: Base,
    now: &mut Nanos,
    progress: &mut dyn FnMut(OpenProgress),
) -> Result<Recovered, RecoveryError> {
    match ftl.media().traits().version {
        MediumVersion::One => Ok(version1::recover(ftl, config, base, now, progress)?),
        MediumVersion::Two => recover_version_2(ftl, config, base, now, progress),
    }
}

fn recover_version_2<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    config: &DeviceConfig,
    base: Base,
    now: &mut Nanos,
    progress: &mut dyn FnMut(OpenProgress),
) -> Result<Recovered, RecoveryError> {
    let cells = read_commit_cells(&mut ftl.reading(PageNeed::Checkpoint).0, now);
    if cells.may_hide_newest(ftl.media().traits().cells) {
        return Err(RecoveryError::CellsUnreadable { cells: cells.unreadable.len() });
    }
    let mut lives = survey::survey(ftl, now, progress)?;
    let used = lives.iter().filter(|life| life.order().is_some()).count();
    if cells.records.is_empty() && used > 0 {
        return Err(RecoveryError::NoCommitRecord { pages: used });
    }
    let root = cells.records.last().map(|record| record.root).unwrap_or_default();
    let mut loaded = match root.number {
        0 => None,
        _ => Some(load_checkpoint(ftl, &lives, &root, now, progress)?),
    };
    if loaded.as_ref().is_some_and(|loaded| loaded.damaged.pages() > 0) {
        // Pages of it may lie in blocks whose first page was read as one that was never written.
        let unknown = blocks_where(&lives, |life| life.order().is_none());
        let is_part = |_, life: &BlockLife| matches!(life, BlockLife::Checkpoint { number, .. } if *number == root.number);
        survey::survey_again(ftl, &mut lives, unknown, is_part, now)?;
        loaded = Some(load_checkpoint(ftl, &lives, &root, now, progress)?);
    }
    let map_damaged = RecoveryError::MapDamaged { number: root.number };
    let mut recovered = Recovered {
        damaged_cells: cells.damaged.iter().chain(&cells.unreadable).copied().collect(),
        stale_cells: cells.stale(&ftl.media().traits()),
        unknown_blocks: unknown_blocks(&lives),
        ..Recovered::default()
    };
    let mut recovery =
        Recovery { lives, cells, index: None, map: None, start_order: 0, start: root.start, by_scan: false };
    if let Some(LoadedCheckpoint { blocks, map, index, damaged }) = loaded {
        let map = map.ok_or(map_damaged)?;
        recovered.checkpoint =
            if index.is_some() { CheckpointFound::Whole } else { CheckpointFound::Damaged };
        recovered.damaged_checkpoint = damaged;
        recovered.checkpoint_blocks = blocks;
        recovery.start_order = map.start_order;
        recovery.index = index.filter(|_| matches!(base, Base::Checkpoint));
        if recovery.index.is_none() && map.version_1_below > 0 {
            return Err(RecoveryError::IndexDamaged { number: map.number });
        }
        recovery.by_scan = recovery.index.is_none() && !mutant(Mutant::DamagedIndexEmpty);
        recovery.map = Some(map);
    }
    let hasher = match (&recovery.map, base) {
        (_, Base::Log(hasher)) => hasher,
        (Some(map), _) => KeyHasher::from_parts(map.hasher),
        (None, Base::Checkpoint) => KeyHasher::new(config.hash_seed, config.hash_bits),
    };
    ftl.set_hasher(hasher);
    let unproven = recovery.map_blocks().filter(|(.., proven)| !proven);
    let unproven: BTreeMap<BlockId, u64> = unproven.map(|(block, entry, _)| (block, entry.order)).collect();
    let is_listed = |block, life: &BlockLife| life.order() == unproven.get(&block).copied();
    survey::survey_again(ftl, &mut recovery.lives, unproven.keys().copied().collect(), is_listed, now)?;
    recovery.run(ftl, recovered, now, progress)
}

/// Returns the blocks of which this is true.
fn blocks_where(lives: &[BlockLife], is_wanted: impl Fn(&BlockLife) -> bool) -> Vec<BlockId> {
    (0..).map(BlockId).zip(lives).filter(|(_, life)| is_wanted(life)).map(|(block, _)| block).collect()
}

fn unknown_blocks(lives: &[BlockLife]) -> u32 {
    let unknown = lives.iter().filter(|life| **life == BlockLife::Unknown(true)).count();
    u32::try_from(unknown).expect("a medium has at most 2^26 blocks")
}

/// The parts of a recovery that the last steps need.
struct Recovery {
    lives: Vec<BlockLife>,
    cells: FoundRecords,
    map: Option<DecodedMap>,
    index: Option<DecodedIndex>,
    start_order: u64,
    start: Tick,
    /// True if the index is built from the blocks of the map instead of the checkpoint's index.
    by_scan: bool,
}

impl Recovery {
    fn run<M: Media>(
        mut self,
        ftl: &mut RecoveringFtl<M>,
        mut recovered: Recovered,
        now: &mut Nanos,
        progress: &mut dyn FnMut(OpenProgress),
    ) -> Result<Recovered, RecoveryError> {
        let mut blocks = self.window_blocks();
        let mut window = read_window(ftl, &blocks, self.start_order, PageNeed::Log, now, progress)?;
        let mut torn = extents::torn_records(ftl, &self.cells.records, &window, now)?;
        let mut counted = CountedLog::new(&self.cells.records, &window, (self.start, &torn));
        let is_doubtful = counted.has_rejected && !mutant(Mutant::SecondPagesIgnored);
        if !counted.lost.is_empty() || is_doubtful {
            // A lost first page may have made a block look older than it is, or unused.
            // A block of the checkpoint may still have pages of a life before it that never counted.
            let of_log = |block: &BlockId| !recovered.checkpoint_blocks.contains(block);
            let unknown = (0..ftl.geometry().blocks).map(BlockId).filter(of_log);
            let start_order = self.start_order;
            let is_window =
                |_, life: &BlockLife| matches!(life, BlockLife::Log { order, .. } if *order >= start_order);
            if counted.lost.is_empty() {
                // Most often a power cut tore the last commit. If a fault took the page by which its block is known, the
                // next one tells.
                let second = unknown.map(|block| PageAddress::new(block, 1));
                survey::survey_pages(ftl, &mut self.lives, second, is_window, now)?;
            } else {
                survey::survey_again(ftl, &mut self.lives, unknown.collect(), is_window, now)?;
            }
            let known = std::mem::replace(&mut blocks, self.window_blocks());
            if !counted.lost.is_empty() || known != blocks {
                window = read_window(ftl, &blocks, self.start_order, PageNeed::Log, now, progress)?;
                torn = extents::torn_records(ftl, &self.cells.records, &window, now)?;
                counted = CountedLog::new(&self.cells.records, &window, (self.start, &torn));
            }
        }
        counted.check_orders(&window)?;
        let mut doubts = self.map.as_ref().map(|map| map.doubts.clone()).unwrap_or_default();
        for lost in counted.lost.iter().filter(|_| !mutant(Mutant::DoubtIgnored)) {
            doubts.raise(lost.namespaces, lost.below);
        }
        let mut lines: Vec<Line> = Vec::with_capacity(window.records.len());
        if self.by_scan {
            let old = self.read_old_blocks(ftl, &mut doubts, &mut recovered, now, progress)?;
            // It read the window once more.
            recovered.damaged_old_records -= window.damaged_records.min(recovered.damaged_old_records);
            lines.extend(old);
        }
        lines.extend(window.records.iter().filter(|(last, _)| counted.counts(*last)).map(|(_, line)| *line));
        recovered.log = self.found_log(&window, &counted);
        let unproven = self.adopt(ftl, &window, &counted, &recovered);
        let is_whole = unproven.is_empty() && counted.lost.is_empty();
        let replaced = if is_whole { ReplacedKeys::default() } else { ReplacedKeys::new(&lines) };
        ftl.finish_adoption(recovered.log.epoch + 1);
        ftl.set_version_1_below(recovered.log.version_1_below);
        ftl.set_doubts(doubts);
        let lost_pages: u64 = counted.lost.iter().map(LostPages::pages).sum();
        ftl.count_damaged(window.damaged_records + lost_pages);
        let base = CheckpointBase {
            start_order: self.start_order,
            cleared: self.map.as_ref().map(|map| map.cleared),
            index: self.index.as_ref(),
        };
        let cleared = replay::replay(ftl, lines, &base, now, progress)?;
        if !is_whole && !mutant(Mutant::LostEntriesDropped) {
            self.keep_lost_entries(ftl, &unproven, &replaced, &cleared);
        }
        // First: what it needs and lacks is reported, while a page that the extents lack is only a failed read.
        namespace_table::load_namespace_table(ftl, now)?;
        extents::adopt_extents(ftl, &self.lives, recovered.log.epoch, now)?;
        recovered.damaged_pages.extend(damaged_in_window(&window, &counted));
        recovered.is_commit_discarded = counted.has_rejected;
        recovered.lost = counted.lost;
        ftl.continue_after(recovered.log.clone());
        unreadable::report_unreadable(ftl, &mut recovered, counted.has_rejected);
        ftl.release_frames();
        Ok(recovered)
    }

    /// Returns the blocks of the window in the order in which they were opened.
    fn window_blocks(&self) -> Vec<BlockId> {
        let mut blocks: Vec<(u64, BlockId)> = (0..)
            .map(BlockId)
            .zip(&self.lives)
            .filter_map(|(block, life)| match life {
                BlockLife::Log { order, .. } if *order >= self.start_order => Some((*order, block)),
                _ => None,
            })
            .collect();
        blocks.sort_unstable();
        blocks.into_iter().map(|(_, block)| block).collect()
    }

    fn life(&self, block: BlockId) -> BlockLife {
        self.lives.get(block.index()).copied().unwrap_or(BlockLife::Unknown(false))
    }

    /// Returns the blocks of the map with their entries, and whether a page of the block says that it is the same life.
    fn map_blocks(&self) -> impl Iterator<Item = (BlockId, BlockEntry, bool)> + '_ {
        let blocks = self.map.iter().flat_map(|map| &map.blocks);
        let blocks = blocks.filter(|(block, _)| block.index() < self.lives.len());
        blocks.filter_map(|(block, entry)| {
            let root = self.map.as_ref().map_or(0, |map| map.number);
            match self.life(*block) {
                BlockLife::Log { order, .. } if order == entry.order => Some((*block, *entry, true)),
                // It was freed since, and is used again: the log has newer records of all that it held.
                BlockLife::Log { order, .. } if order >= self.start_order => None,
                BlockLife::Extent { log_order, .. } if log_order > entry.order => None,
                // So it was for a checkpoint that is as new. A number may have been given out in an older epoch too.
                BlockLife::Checkpoint { number, order, .. }
                    if number >= root && order >> EPOCH_SHIFT >= self.start_order >> EPOCH_SHIFT =>
                {
                    None
                }
                _ => Some((*block, *entry, false)),
            }
        })
    }

    /// Reads the records of the map's blocks, of which no index is left. A page that is not intact puts everything in doubt
    /// that its block could hold.
    fn read_old_blocks<M: Media>(
        &self,
        ftl: &mut RecoveringFtl<M>,
        doubts: &mut Doubts,
        recovered: &mut Recovered,
        now: &mut Nanos,
        progress: &mut dyn FnMut(OpenProgress),
    ) -> Result<Vec<Line>, MediaError> {
        let mut entries: Vec<(BlockId, BlockEntry, bool)> = self.map_blocks().collect();
        entries.sort_unstable_by_key(|(_, entry, _)| entry.order);
        let blocks: BTreeSet<BlockId> = entries.iter().map(|(block, ..)| *block).collect();
        let in_order = entries.iter().map(|(block, ..)| *block);
        // A record may begin in the last of them and end in the window.
        let in_order: Vec<BlockId> = in_order.chain(self.window_blocks()).collect();
        let mut found = read_window(ftl, &in_order, 0, PageNeed::Log, now, progress)?;
        for (block, entry, _) in &entries {
            let before = recovered.damaged_pages.len();
            recovered.damaged_pages.extend(damaged_in_block(&found, *block, entry));
            // A block none of whose pages is left was freed, or is lost.
            if recovered.damaged_pages.len() > before && !mutant(Mutant::OldBlocksNotDoubted) {
                doubts.raise(evidence::ALL_NAMESPACES, entry.max_sequence);
            }
        }
        // A block that is used again could hold the removal of a record that another block of the map still holds.
        let unread = self.map.iter().flat_map(|map| &map.blocks).filter(|(block, _)| !blocks.contains(block));
        unread.for_each(|(_, entry)| doubts.raise(evidence::ALL_NAMESPACES, entry.max_sequence));
        let lives: BTreeMap<BlockId, (u64, u8)> =
            entries.iter().map(|(block, entry, _)| (*block, (entry.order, entry.pages))).collect();
        // Pages behind those that the map lists do not count.
        found.records.retain(|(_, line)| {
            let life = lives.get(&line.address.block());
            life.is_some_and(|(order, pages)| *order == line.order && line.address.page().page < *pages)
        });
        recovered.damaged_old_records = found.damaged_records;
        Ok(found.records.into_iter().map(|(_, line)| line).collect())
    }

    fn found_log(&self, window: &FoundWindow, counted: &CountedLog) -> FoundLog {
        let records = &self.cells.records;
        let newest = records.last();
        let orders =
            self.lives.iter().filter_map(BlockLife::order).chain([window.highest_order, self.start_order]);
        let epochs =
            records.iter().map(|record| record.epoch).chain(orders.map(|order| order >> EPOCH_SHIFT));
        let of_map =
            self.map.iter().flat_map(|map| map.doubts.below().iter().chain([&map.sequence]).copied());
        let sequences = records.iter().map(|record| record.end.sequence).chain(of_map);
        let mut epoch_ends = counted.epoch_ends.clone();
        if counted.accepted.tick.place() > 0 {
            epoch_ends.retain(|end| end.tick.epoch() < counted.accepted.tick.epoch());
            epoch_ends.push(counted.accepted);
        }
        FoundLog {
            accepted: counted.accepted,
            epoch: epochs.chain([counted.accepted.tick.epoch()]).max().unwrap_or(0),
            number: newest.map_or(0, |record| record.number),
            sequence: sequences.chain([window.sequence, counted.accepted.sequence]).max().unwrap_or_default(),
            root: newest.map(|record| record.root).unwrap_or_default(),
            checkpoint_number: self.lives.iter().filter_map(BlockLife::checkpoint).max().unwrap_or(0),
            epoch_ends,
            version_1_below: self.map.as_ref().map_or(0, |map| map.version_1_below),
            health: newest.map(|record| record.health_at_next_opening()).unwrap_or_default(),
        }
    }

    /// Keeps the entries of the checkpoint that point into blocks of which no page is left, or to records of the window that
    /// are lost, and for whose keys the log has no newer record: they are answered with errors. Every other block of the
    /// map of which no page is left was freed.
    fn keep_lost_entries<M: Media>(
        &self,
        ftl: &mut RecoveringFtl<M>,
        unproven: &BTreeMap<BlockId, BlockEntry>,
        replaced: &ReplacedKeys,
        cleared: &[bool; SPACES],
    ) {
        let index = self.index.iter();
        let all = index.flat_map(|index| index.segments.iter().flatten().chain(&index.flat));
        for (hash, entry) in all.filter(|(_, entry)| !cleared[entry.namespace.index()]) {
            let block = entry.address.block();
            if block.index() >= self.lives.len() {
                continue;
            }
            let order = ftl.blocks().get(block).order;
            if let Some(lost) = unproven.get(&block) {
                if !replaced.replaces(entry.namespace, *hash, lost.max_sequence) {
                    ftl.insert_lost(block, *lost, *hash, *entry);
                }
            } else if order >= self.start_order
                && ftl.blocks().get(block).is_of_log()
                && !replaced.has(entry.namespace, *hash)
            {
                // A record of the log that is older than the lost one has a sequence in doubt.
                ftl.insert_lost(block, BlockEntry { order, ..EMPTY_ENTRY }, *hash, *entry);
            }
        }
        unproven.iter().for_each(|(block, entry)| ftl.note_freed(*block, entry.open_sequence));
    }

    /// Puts the blocks in use into the block table. Returns those of the map of which no page says that they are still the
    /// same.
    fn adopt<M: Media>(
        &self,
        ftl: &mut RecoveringFtl<M>,
        window: &FoundWindow,
        counted: &CountedLog,
        recovered: &Recovered,
    ) -> BTreeMap<BlockId, BlockEntry> {
        let mut found: BTreeMap<u64, (BlockId, BlockEntry)> = BTreeMap::new();
        let mut unproven = BTreeMap::new();
        for (block, entry, proven) in self.map_blocks() {
            if proven {
                found.insert(entry.order, (block, entry));
            } else {
                unproven.insert(block, entry);
            }
        }
        // Where the index is built from the map's blocks, a tombstone is needed until no map lists an older block.
        let listed = self.map.iter().flat_map(|map| &map.blocks);
        let gone = listed.filter(|(block, entry)| {
            let is_here = block.index() < self.lives.len();
            is_here && !found.contains_key(&entry.order) && !unproven.contains_key(block)
        });
        gone.for_each(|(block, entry)| ftl.note_freed(*block, entry.open_sequence));
        for (tick, page) in window.pages.iter().filter(|(tick, _)| counted.counts(**tick)) {
            let (_, entry) = found.entry(page.order).or_insert_with(|| {
                let entry = BlockEntry {
                    state: BlockState::Closed,
                    order: page.order,
                    open_sequence: page.open_sequence,
                    ..EMPTY_ENTRY
                };
                (page.address.block, entry)
            });
            entry.pages = entry.pages.max(page.address.page + 1);
            entry.last_tick = entry.last_tick.max(*tick);
        }
        for (_, line) in window.records.iter().filter(|(last, _)| counted.counts(*last)) {
            if let Some((_, entry)) = found.get_mut(&line.order) {
                entry.max_sequence = entry.max_sequence.max(line.sequence);
            }
        }
        let order: Vec<(u64, BlockId)> = found.iter().map(|(order, (block, _))| (*order, *block)).collect();
        for pair in order.windows(2) {
            let continues = matches!(self.life(pair[1].1), BlockLife::Log { continues: true, .. });
            if let Some((_, entry)) = found.get_mut(&pair[0].0).filter(|_| continues) {
                entry.next = Some(pair[1].1);
            }
        }
        for (block, entry) in found.into_values() {
            ftl.adopt(block, entry);
        }
        for block in &recovered.checkpoint_blocks {
            let order = self.life(*block).order().unwrap_or(0);
            assert!(is_checkpoint_order(order), "{block} of a checkpoint has the order of a log block");
            ftl.adopt(*block, BlockEntry::of_checkpoint(order));
        }
        unproven
    }
}
