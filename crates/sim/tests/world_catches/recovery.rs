//! The toy device's recovery: it reads every page and applies complete entries in order.

use crate::log_entry::{decode, le};
use crate::toy_device::{HEADER_BYTES, PART_BYTES, ToyDevice, ToyFlaw};
use headwater_dma::frame::MediaFrame;
use headwater_host::clock::Nanos;
use headwater_ssd::media::{
    BlockId, Media, MediaError, MediaOp, MediaToken, PAGES_PER_BLOCK, PageAddress, PageState,
};
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64;

impl<const FLAW: usize> ToyDevice<FLAW> {
    pub(crate) fn recover(&mut self, mut now: Nanos) -> Result<(), String> {
        let mut entries: BTreeMap<u64, BTreeMap<u64, (u64, Vec<u8>)>> = BTreeMap::new();
        for block in 0..self.media.geometry().blocks {
            let mut blank = true;
            for page in 0..u8::try_from(PAGES_PER_BLOCK).unwrap() {
                let page = PageAddress::new(BlockId(block), page);
                let frame = MediaFrame::zeroed();
                let op = MediaOp::Read { page, frame };
                self.media.submit(MediaToken(0), op, now).map_err(|refused| format!("{refused:?}"))?;
                now = self.media.wait(now);
                let mut done = Vec::new();
                self.media.poll(now, &mut done);
                let done = done.pop().ok_or("no answer")?;
                let Some(frame) = done.frame else {
                    return Err("no frame".into());
                };
                match done.result {
                    Ok(PageState::Blank) => continue,
                    Ok(PageState::Programmed) => blank = false,
                    Err(error) if matches!(error, MediaError::Io { .. }) => {
                        return Err(error.to_string());
                    }
                    Err(_) => {
                        blank = false;
                        continue;
                    }
                }
                let hash_holds = le(&frame[..8]) == xxh3_64(&frame[8..4_096]);
                if (hash_holds || Self::has(ToyFlaw::SkipsChecksums)) && &frame[8..12] == b"toy!" {
                    let (sequence, part, parts) =
                        (le(&frame[16..24]), le(&frame[24..26]), le(&frame[26..28]));
                    let length = usize::try_from(le(&frame[28..30])).unwrap().min(PART_BYTES);
                    let bytes = frame[HEADER_BYTES..HEADER_BYTES + length].to_vec();
                    entries.entry(sequence).or_default().insert(part, (parts, bytes));
                }
            }
            if blank {
                self.free.push_back(BlockId(block));
            }
        }
        for (sequence, parts) in entries {
            self.next_sequence = self.next_sequence.max(sequence + 1);
            let wanted = parts.values().next().map_or(0, |(wanted, _)| *wanted);
            if parts.len() as u64 == wanted {
                let bytes: Vec<u8> = parts.into_values().flat_map(|(_, bytes)| bytes).collect();
                for op in decode(&bytes) {
                    self.apply(op, sequence);
                }
            }
        }
        Ok(())
    }
}
