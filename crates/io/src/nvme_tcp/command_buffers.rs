//! The data of a command on a connection: one buffer, or several in order.
//!
//! Input: buffers of a command. Output: parts of them by a range of the command's data. Invariant: the parts of a range
//! are in order and together as long as the range. A capsule names data by their length alone, so that several buffers
//! cost the peer nothing.

use crate::buffer::Buffer;
use crate::command::TransferData;
use headwater_nvme::tcp::{CommandTransfer, LentBytes};
use std::ops::Range;
use std::sync::Arc;

/// The buffers of a command, lent to a connection.
#[derive(Clone, Debug)]
pub(super) enum CommandBuffers {
    /// One buffer.
    One(Buffer),
    /// Several buffers, in order.
    Several(Arc<[Buffer]>),
}

impl CommandBuffers {
    /// Returns the transfer of a command's data.
    pub(super) fn transfer(data: &TransferData) -> CommandTransfer<Self> {
        match data {
            TransferData::None => CommandTransfer::None,
            TransferData::ToDevice(buffer) => CommandTransfer::Out(Self::One(buffer.clone())),
            TransferData::FromDevice(buffer) => CommandTransfer::In(Self::One(buffer.clone())),
            TransferData::Gather(buffers) => CommandTransfer::Out(Self::Several(buffers.as_slice().into())),
            TransferData::Scatter(buffers) => CommandTransfer::In(Self::Several(buffers.as_slice().into())),
        }
    }

    /// Returns the transfer of one buffer.
    pub(super) fn of_one(transfer: CommandTransfer<Buffer>) -> CommandTransfer<Self> {
        match transfer {
            CommandTransfer::None => CommandTransfer::None,
            CommandTransfer::Out(buffer) => CommandTransfer::Out(Self::One(buffer)),
            CommandTransfer::In(buffer) => CommandTransfer::In(Self::One(buffer)),
        }
    }

    fn buffers(&self) -> &[Buffer] {
        match self {
            Self::One(buffer) => std::slice::from_ref(buffer),
            Self::Several(buffers) => buffers,
        }
    }

    /// Returns the parts of a range of the data: each a buffer and a range of it.
    pub(super) fn parts(&self, range: Range<usize>) -> impl Iterator<Item = (&Buffer, Range<usize>)> {
        let mut start = 0;
        self.buffers().iter().filter_map(move |buffer| {
            let here = start;
            start += Buffer::bytes(buffer);
            let part = range.start.max(here)..range.end.min(start);
            (part.start < part.end).then(|| (buffer, part.start - here..part.end - here))
        })
    }
}

impl LentBytes for CommandBuffers {
    fn bytes(&self) -> usize {
        self.buffers().iter().map(Buffer::bytes).sum()
    }

    fn append_to(&self, range: Range<usize>, text: &mut Vec<u8>) {
        self.parts(range).for_each(|(buffer, part)| buffer.append_to(part, text));
    }

    fn crc32c(&self, seed: u32, range: Range<usize>) -> u32 {
        self.parts(range).fold(seed, |crc, (buffer, part)| LentBytes::crc32c(buffer, crc, part))
    }

    fn write_at(&mut self, at: usize, bytes: &[u8]) {
        let mut rest = bytes;
        for (buffer, part) in self.parts(at..at + bytes.len()) {
            let (here, later) = rest.split_at(part.len());
            let copied = buffer.write(part.start, here);
            assert!(copied.is_ok(), "a range outside the lent buffer");
            rest = later;
        }
        assert!(rest.is_empty(), "a range outside the lent buffers");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_dma::pool::Pool;

    fn buffer(bytes: usize) -> Buffer {
        let whole = Buffer::from_pool(Pool::of_process().unwrap().buffer(bytes).unwrap());
        whole.slice(0, bytes).unwrap()
    }

    #[test]
    fn any_range_of_several_buffers_reads_writes_and_checksums_as_that_of_one() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let lengths: Vec<usize> = (0..random.usize(1..6)).map(|_| random.usize(1..9_000)).collect();
            let total = lengths.iter().sum::<usize>();
            let mut one = CommandBuffers::One(buffer(total));
            let mut several = CommandBuffers::Several(lengths.iter().map(|&bytes| buffer(bytes)).collect());
            assert_eq!((one.bytes(), several.bytes()), (total, total));
            let all: Vec<u8> = (0..total).map(|_| random.u8(..)).collect();
            one.write_at(0, &all);
            several.write_at(0, &all);
            let (a, b) = (random.usize(..=total), random.usize(..=total));
            let range = a.min(b)..a.max(b);
            let changed: Vec<u8> = range.clone().map(|_| random.u8(..)).collect();
            one.write_at(range.start, &changed);
            several.write_at(range.start, &changed);
            let (mut left, mut right) = (vec![1, 2], vec![1, 2]);
            one.append_to(range.clone(), &mut left);
            several.append_to(range.clone(), &mut right);
            assert_eq!(left, right, "seed {seed}");
            assert_eq!(left[2..], changed, "seed {seed}");
            assert_eq!(one.crc32c(7, range.clone()), several.crc32c(7, range.clone()));
            assert_eq!(several.parts(range.clone()).map(|(_, part)| part.len()).sum::<usize>(), range.len());
            assert!(several.parts(range.end..range.end).next().is_none());
        }
    }
}
