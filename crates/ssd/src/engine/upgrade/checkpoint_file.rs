//! The first checkpoint of an upgraded file, written into its free blocks past the medium.
//!
//! Input: the translation layer that recovery by the rules of version 1 filled. Output: the checkpoint's place. Invariant:
//! only blocks are written of which version 1 reads nothing, each of them whole, so that nothing of an interrupted upgrade
//! is left in them.

use super::UpgradeError;
use crate::command::Sequence;
use crate::engine::OpenProgress;
use crate::engine::checkpoint::map_encoder::MapEncoder;
use crate::engine::checkpoint::stream::{IndexEncoder, page_context};
use crate::ftl::Ftl;
use crate::ftl::recovering::RecoveringFtl;
use crate::index::SEGMENTS;
use crate::log::commit_record::{CheckpointRoot, StreamExtent};
use crate::log::page::{NO_RECORD, PageKind, PageSpare, PagesBefore};
use crate::log::prefix::{EPOCH_SHIFT, Prefix, Tick};
use crate::media::file::{FileMedia, FileUpgrade, StartupFile, TransferRing};
use crate::media::geometry::{BlockId, PAGE_DATA_BYTES, PAGES_PER_BLOCK, PageAddress};
use crate::media::{Media, PAGE_SPARE_BYTES};
use headwater_dma::frame::FRAME_BYTES;

/// Writes the map and the index. The epoch is above every one that version 1 used; it numbers the checkpoint too, so that a
/// page that an interrupted upgrade left elsewhere is not taken for one of this checkpoint.
pub(super) fn write_checkpoint<R: TransferRing, F: StartupFile>(
    ftl: &mut RecoveringFtl<FileMedia<R>>,
    upgrade: &FileUpgrade<'_, F>,
    epoch: u64,
    progress: &mut dyn FnMut(OpenProgress),
) -> Result<CheckpointRoot, UpgradeError> {
    let (needed, free) = (ftl.checkpoint_blocks(), ftl.blocks().free_count());
    let blocks: Vec<(BlockId, u64)> =
        std::iter::from_fn(|| ftl.take_checkpoint_block()).take(needed).collect();
    let start = epoch << EPOCH_SHIFT;
    let root =
        CheckpointRoot { number: epoch, start_order: start, start: Tick(start), ..CheckpointRoot::default() };
    let mut file = CheckpointFile {
        upgrade,
        number: epoch,
        blocks: blocks.iter().copied(),
        room: (needed, free),
        block: None,
        slots: vec![0; PAGES_PER_BLOCK * FRAME_BYTES],
        page: 0,
        page_next: 0,
    };
    let first = file.write_map(ftl, &root)?;
    // Where room is short one copy of the map must do until the next checkpoint.
    let second = if free < needed { first } else { file.write_map(ftl, &root)? };
    let index = file.write_index(ftl, progress)?;
    file.end_block()?;
    Ok(CheckpointRoot { maps: [first, second], index, ..root })
}

/// A checkpoint being written, a block at a time.
struct CheckpointFile<'a, F, B> {
    upgrade: &'a FileUpgrade<'a, F>,
    number: u64,
    /// Free blocks, with the orders that they get.
    blocks: B,
    /// Blocks that the checkpoint needs at most, and free ones.
    room: (usize, usize),
    /// The present block, with its order.
    block: Option<(BlockId, u64)>,
    /// The slots of the present block.
    slots: Vec<u8>,
    /// The next page of the present block.
    page: usize,
    /// The next page of the checkpoint.
    page_next: u32,
}

impl<F: StartupFile, B: Iterator<Item = (BlockId, u64)>> CheckpointFile<'_, F, B> {
    /// Writes a copy of the map, which shares no block with the other one.
    fn write_map<M: Media>(
        &mut self,
        ftl: &Ftl<M>,
        root: &CheckpointRoot,
    ) -> Result<StreamExtent, UpgradeError> {
        self.end_block()?;
        let first = self.page_next;
        let mut encoder = MapEncoder::new(ftl, root);
        let mut data = [0; PAGE_DATA_BYTES];
        while !encoder.is_written() {
            encoder.fill(ftl, usize::MAX);
            let used = encoder.buffer().copy_page(&mut data);
            self.write_page(&data[..used])?;
            encoder.buffer().consume(used);
        }
        Ok(StreamExtent { first, pages: self.page_next - first, crc: encoder.buffer().crc() })
    }

    fn write_index<M: Media>(
        &mut self,
        ftl: &Ftl<M>,
        progress: &mut dyn FnMut(OpenProgress),
    ) -> Result<StreamExtent, UpgradeError> {
        let first = self.page_next;
        let mut encoder = IndexEncoder::new();
        let mut data = [0; PAGE_DATA_BYTES];
        let (mut segment, mut is_encoded) = (0, false);
        while !is_encoded || encoder.buffer().len() > 0 {
            while !is_encoded && encoder.buffer().len() < PAGE_DATA_BYTES {
                if segment < SEGMENTS {
                    segment += encoder.push_segments(&ftl.index().hashed, segment);
                    progress(OpenProgress { stage: "write", done: segment as u64, total: SEGMENTS as u64 });
                } else if !encoder.push_block_run(&ftl.index().flat) && !encoder.push_expiries(ftl, u64::MAX)
                {
                    is_encoded = true;
                }
            }
            let used = encoder.buffer().copy_page(&mut data);
            self.write_page(&data[..used])?;
            encoder.buffer().consume(used);
        }
        Ok(StreamExtent { first, pages: self.page_next - first, crc: encoder.buffer().crc() })
    }

    fn write_page(&mut self, data: &[u8]) -> Result<(), UpgradeError> {
        if self.page == PAGES_PER_BLOCK {
            self.end_block()?;
        }
        let (block, order) = match self.block {
            Some(block) => block,
            None => {
                let (needed, free) = self.room;
                let next = self.blocks.next().ok_or(UpgradeError::NoRoom { needed, free })?;
                *self.block.insert(next)
            }
        };
        let slot = &mut self.slots[self.page * FRAME_BYTES..][..PAGE_DATA_BYTES + PAGE_SPARE_BYTES];
        slot[..data.len()].copy_from_slice(data);
        let spare = PageSpare {
            kind: PageKind::Checkpoint,
            address: PageAddress::new(block, u8::try_from(self.page).expect("64 pages a block")),
            first: NO_RECORD,
            used: u16::try_from(data.len()).expect("a page has 4,096 bytes"),
            order,
            tick: Tick(0),
            open_sequence: Sequence(0),
            durable: Prefix::default(),
            accepted: Prefix::default(),
            continues: page_context(self.number, u64::from(self.page_next)),
            before: PagesBefore::default(),
        };
        spare.encode(slot, self.upgrade.traits().checksum_seed);
        self.page += 1;
        self.page_next += 1;
        Ok(())
    }

    /// Writes the present block, its unused pages as zeros.
    fn end_block(&mut self) -> Result<(), UpgradeError> {
        if let Some((block, _)) = self.block.take() {
            self.upgrade.write_block(block, &self.slots).map_err(UpgradeError::Unchanged)?;
        }
        self.slots.fill(0);
        self.page = 0;
        Ok(())
    }
}
