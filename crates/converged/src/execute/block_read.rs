//! Commands that read blocks: Read, Verify, Compare, and the first half of Copy.
//!
//! In: ranges of blocks. Out: their bytes, or whether they are what they should be. Blocks are taken as their pages come,
//! and what was taken is not asked for again. Invariant: a block without a record reads as zeroes, and a block whose record
//! does not carry its checksum is never passed on.

use super::extent::{BlockRecord, Extent};
use super::{Gate, Outcome, joint_sequence};
use crate::command::{Command, Completion, Lba, LbaRange, Payload, Sequence, Sink};
use crate::media::Media;
use crate::namespace::BlockFormat;
use crate::operation::{Operation, Walk, Work};
use crate::utl::{Stall, Utl, Window};
use headwater_nvme::spec::status::Status;

const LARGEST: usize = BlockFormat::B4096.bytes();
static ZEROES: [u8; LARGEST] = [0; LARGEST];

/// Blocks verified before others get a turn: a verification may be of as many blocks as there are.
const VERIFIED_PER_TURN: u64 = 1_024;

/// What a block is read for.
enum Use<'a> {
    /// Its bytes go here.
    Sink(&'a mut Sink),
    /// They should be these.
    Compare(&'a Payload),
    /// Whether it can be read.
    Verify,
}

/// Runs a command that reads blocks and writes none.
#[inline]
pub(super) fn run<M: Media>(utl: &mut Utl<M>, operation: &mut Operation) -> Result<Outcome, Stall> {
    let extent = match Extent::of(utl, operation) {
        Ok(extent) => extent,
        Err(status) => return Ok(Outcome::status(status, Sequence(0))),
    };
    let Operation { work: Work::Command(command), walk, .. } = operation else {
        return Ok(Outcome::status(Status::INTERNAL_ERROR, Sequence(0)));
    };
    let (range, mut purpose) = match command {
        Command::Read { range, sink } => (*range, Use::Sink(sink)),
        Command::Verify { range } => (*range, Use::Verify),
        Command::Compare { start, data } => {
            let blocks = u32::try_from(data.len() >> extent.format.shift()).unwrap_or(u32::MAX);
            (LbaRange { start: *start, blocks }, Use::Compare(data))
        }
        _ => return Ok(Outcome::status(Status::INVALID_OPCODE, Sequence(0))),
    };
    if let Err(status) = extent.check(range) {
        return Ok(Outcome::status(status, Sequence(0)));
    }
    let status = walk_blocks(utl, &extent, &[range], walk, &mut purpose)?;
    let mut completion = Completion::new(0, status);
    completion.sequence = walk.seen;
    if let Use::Sink(_) = purpose
        && status.is_success()
    {
        completion.value_bytes = range.blocks << extent.format.shift();
    }
    Ok(Outcome { completion, gate: Gate::Promise(walk.seen) })
}

/// Reads the sources of a copy into the walk's own bytes.
pub(super) fn gather<M: Media>(
    utl: &mut Utl<M>,
    extent: &Extent,
    sources: &[LbaRange],
    walk: &mut Walk,
) -> Result<Status, Stall> {
    let mut sink = Sink::Bytes(std::mem::take(&mut walk.bytes));
    let status = walk_blocks(utl, extent, sources, walk, &mut Use::Sink(&mut sink));
    if let Sink::Bytes(bytes) = sink {
        walk.bytes = bytes;
    }
    status
}

/// Goes through the blocks of all ranges from where the walk stands.
#[inline]
fn walk_blocks<M: Media>(
    utl: &mut Utl<M>,
    extent: &Extent,
    ranges: &[LbaRange],
    walk: &mut Walk,
    purpose: &mut Use<'_>,
) -> Result<Status, Stall> {
    let mut before = 0;
    for (number, range) in ranges.iter().enumerate() {
        let blocks = u64::from(range.blocks);
        while walk.blocks < before + blocks {
            let lba = Lba(range.start.0 + (walk.blocks - before));
            let status = match one_block(utl, extent, lba, walk, purpose) {
                Ok(status) => status,
                Err(Stall::Pages(_)) => {
                    let here = LbaRange { start: lba, blocks: left(range, lba) };
                    let ahead = std::iter::once(&here).chain(&ranges[number + 1..]).flat_map(blocks_of);
                    return Err(Stall::Pages(extent.pages_ahead(utl, ahead)));
                }
                Err(stall) => return Err(stall),
            };
            if !status.is_success() {
                take_back(extent, walk, purpose);
                utl.stats.damaged += u64::from(status == Status::UNRECOVERED_READ_ERROR);
                return Ok(status);
            }
            let turn = walk.blocks / VERIFIED_PER_TURN;
            walk.blocks += 1;
            if let Use::Verify = purpose {
                walk.blocks += extent.absent(utl, LbaRange { start: lba, blocks: left(range, lba) });
                if walk.blocks < before + blocks && walk.blocks / VERIFIED_PER_TURN != turn {
                    // Others get a turn before it goes on.
                    return Err(Stall::Pages(Vec::new()));
                }
            }
        }
        before += blocks;
    }
    Ok(Status::SUCCESS)
}

fn left(range: &LbaRange, from: Lba) -> u32 {
    u32::try_from(range.start.0 + u64::from(range.blocks) - from.0).unwrap_or(u32::MAX)
}

fn blocks_of(range: &LbaRange) -> impl Iterator<Item = Lba> + use<> {
    let start = range.start.0;
    (start..start + u64::from(range.blocks)).map(Lba)
}

/// A read that fails brings nothing.
#[expect(clippy::cast_possible_truncation, reason = "what was read is in memory, so its length is a usize")]
fn take_back(extent: &Extent, walk: &Walk, purpose: &mut Use<'_>) {
    if let Use::Sink(Sink::Bytes(bytes)) = purpose {
        bytes.truncate(bytes.len() - ((walk.blocks as usize) << extent.format.shift()));
    }
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the bytes of a command are limited at submission")]
fn one_block<M: Media>(
    utl: &Utl<M>,
    extent: &Extent,
    lba: Lba,
    walk: &mut Walk,
    purpose: &mut Use<'_>,
) -> Result<Status, Stall> {
    let bytes = extent.format.bytes();
    let at = (walk.blocks as usize) << extent.format.shift();
    let (found, header) = match extent.find(utl, lba)? {
        BlockRecord::Damaged => return Ok(Status::UNRECOVERED_READ_ERROR),
        BlockRecord::Absent => {
            // What made it absent may still be lost; the last removal covers it.
            walk.seen = walk.seen.max(utl.last_removal);
            walk.joint = walk.joint.max(utl.last_joint_removal);
            return Ok(absent(&ZEROES[..bytes], at, purpose));
        }
        BlockRecord::Present(found, header) => (found, header),
    };
    walk.joint = walk.joint.max(joint_sequence(&header));
    let intact = match purpose {
        Use::Verify => utl.is_intact(found.entry, &header)?,
        Use::Sink(sink) => {
            let window = Window { at, bytes_max: header.value_bytes };
            utl.read_value(found.entry, &header, sink, window)?
        }
        Use::Compare(data) => {
            let mut sink = Sink::Bytes(std::mem::take(&mut walk.bytes));
            let intact = utl.read_value(found.entry, &header, &mut sink, Window::front(header.value_bytes));
            if let Sink::Bytes(bytes) = sink {
                walk.bytes = bytes;
            }
            let intact = intact?;
            let same = !intact || is_same(data, at, &walk.bytes);
            walk.bytes.clear();
            if !same {
                walk.seen = walk.seen.max(header.sequence);
                return Ok(Status::COMPARE_FAILURE);
            }
            intact
        }
    };
    walk.seen = walk.seen.max(header.sequence);
    Ok(if intact { Status::SUCCESS } else { Status::UNRECOVERED_READ_ERROR })
}

fn absent(zeroes: &[u8], at: usize, purpose: &mut Use<'_>) -> Status {
    match purpose {
        Use::Sink(Sink::Bytes(bytes)) => bytes.extend_from_slice(zeroes),
        Use::Sink(Sink::Client(segments)) => {
            segments.copy_out(at, zeroes);
        }
        Use::Compare(data) if !is_same(data, at, zeroes) => return Status::COMPARE_FAILURE,
        Use::Compare(_) | Use::Verify => {}
    }
    Status::SUCCESS
}

/// Whether the payload has these bytes at this place. A client's are copied first, for it may change them meanwhile.
fn is_same(data: &Payload, at: usize, block: &[u8]) -> bool {
    match data {
        Payload::Bytes(bytes) => bytes.get(at..at + block.len()) == Some(block),
        Payload::Client(segments) => {
            let mut copy = [0; LARGEST];
            let copy = &mut copy[..block.len()];
            segments.copy_in(at, copy) == block.len() && copy == block
        }
    }
}
