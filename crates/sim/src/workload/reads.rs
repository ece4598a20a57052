//! The reads of a workload: whole values, the first bytes of some, and any part where a world asks for that.
//!
//! Input: the numbers of the stream, and numbers of their own for the parts. Output: Retrieves. Invariant: what is drawn for parts
//! changes no other command.

use super::{CommandStream, FeatureUse};
use headwater_host::width::narrow;
use headwater_ssd::command::{ReadCaching, SsdCommand};
use headwater_ssd::media::PAGE_DATA_BYTES;

impl CommandStream {
    pub(super) fn retrieve(&mut self) -> SsdCommand {
        let short = self.rng.u8(0..10) == 0;
        let (key, sink) = (self.any_key().1, Vec::new().into());
        let bytes_max = if short { self.rng.u32(0..64) } else { u32::MAX };
        // The offset takes no random number, so that a seed keeps its commands.
        let offset = if bytes_max < 16 { bytes_max % 4 } else { 0 };
        let (offset, bytes_max, caching) = match self.config.parts {
            FeatureUse::Never => (offset, bytes_max, ReadCaching::ByLength),
            FeatureUse::Some | FeatureUse::Most => self.part((offset, bytes_max)),
        };
        SsdCommand::Retrieve { key, sink, offset, bytes_max, caching, release: self.release() }
    }

    /// Draws a part of a value, or behind it, in place of the usual one; half of the time the range stays as it is.
    fn part(&mut self, (offset, bytes_max): (u32, u32)) -> (u32, u32, ReadCaching) {
        let longest: u32 = narrow(self.config.chained_bytes.end.max(self.config.value_bytes_max));
        let page: u32 = narrow(PAGE_DATA_BYTES);
        let ranges = &mut self.ranges;
        let caching = if ranges.u8(0..3) == 0 { ReadCaching::Keep } else { ReadCaching::ByLength };
        if ranges.bool() {
            return (offset, bytes_max, caching);
        }
        let offset = match ranges.u8(0..8) {
            0 => 0,
            1 => ranges.u32(0..100),
            2 => ranges.u32(0..=longest / page) * page,
            3 => u32::MAX - ranges.u32(0..2),
            _ => ranges.u32(0..=longest),
        };
        let bytes_max = match ranges.u8(0..4) {
            0 => u32::MAX,
            1 => ranges.u32(0..64),
            2 => ranges.u32(0..20_000),
            _ => ranges.u32(0..=longest),
        };
        (offset, bytes_max, caching)
    }
}
