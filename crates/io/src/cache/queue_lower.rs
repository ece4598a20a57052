//! A queue of a device as what is below a cache.
//!
//! In: transfers in bytes from the first that this client may touch. Out: commands of its namespace. Invariant: a transfer
//! is one command; the list of a discard is used again when the device is done with it.

use super::lower::{Done, Kind, Lower, LowerLimits, NotTaken, Transfer};
use super::shape::Shape;
use crate::backend::Answer;
use crate::buffer::Buffer;
use crate::command::{BLOCKS_MAX, Command, Data};
use crate::error::{IoError, Rejected, SubmitError};
use crate::facts::NamespaceFacts;
use crate::queue::Queue;
use headwater_nvme::spec::status::Status;

/// Bytes of the list of a discard of one range.
const LIST_BYTES: usize = 16;
/// Bytes of memory to cut the lists from.
pub const LISTS_BYTES: usize = 1_024;

/// A queue below a cache. Offset 0 of the cache is the first block that this client may touch.
#[derive(Debug)]
pub struct QueueLower {
    queue: Queue,
    namespace: u32,
    block_bytes: u32,
    first: u64,
    blocks: u64,
    limits: LowerLimits,
    lists: Vec<Buffer>,
    failure: Option<IoError>,
}

impl QueueLower {
    /// Over a queue that is used for nothing else, with a buffer of the same device of at least 16 bytes for each
    /// discard at a time ([`LISTS_BYTES`] are plenty).
    ///
    /// # Errors
    /// [`IoError::Namespace`] for one without blocks.
    pub fn new(queue: Queue, facts: &NamespaceFacts, lists: &Buffer) -> Result<Self, IoError> {
        let namespace = facts.id;
        if facts.block_bytes == 0 {
            return Err(IoError::Namespace { namespace, what: "holds keys; a cache needs blocks" });
        }
        let (first, end) = facts.blocks.unwrap_or((0, facts.size));
        let block = facts.block_bytes as usize;
        let most = queue.limits();
        let range_blocks = u64::from(BLOCKS_MAX);
        let limits = LowerLimits {
            transfer_bytes_max: most.transfer_bytes_max.min(block * BLOCKS_MAX as usize),
            segments_max: most.segments_max.max(1),
            range_bytes_max: range_blocks * u64::from(facts.block_bytes),
        };
        let cut = |at| lists.slice(at * LIST_BYTES, LIST_BYTES);
        let lists = (0..lists.bytes() / LIST_BYTES).map(cut).collect::<Result<_, _>>()?;
        let (block_bytes, blocks) = (facts.block_bytes, end.min(facts.size).saturating_sub(first));
        Ok(Self { queue, namespace, block_bytes, first, blocks, limits, lists, failure: None })
    }

    /// What a cache over it caches.
    #[must_use]
    pub fn shape(&self) -> Shape {
        let device_bytes = self.blocks.saturating_mul(u64::from(self.block_bytes));
        Shape { device_bytes, block_bytes: self.block_bytes }
    }

    /// The queue, for whoever waits on it.
    pub fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }

    /// Why the device is gone, once.
    pub fn take_failure(&mut self) -> Option<IoError> {
        self.failure.take()
    }

    fn command(&mut self, transfer: Transfer) -> Result<Command, IoError> {
        let Transfer { kind, offset, bytes, durable, mut segments } = transfer;
        let (namespace, block_bytes) = (self.namespace, self.block_bytes);
        let lba = self.first + offset / u64::from(block_bytes);
        let blocks = u32::try_from(bytes / u64::from(block_bytes)).unwrap_or(u32::MAX);
        match kind {
            Kind::Read if segments.len() > 1 => {
                Command::read_scattered(namespace, lba, block_bytes, segments)
            }
            Kind::Write if segments.len() > 1 => {
                Command::write_gathered(namespace, lba, block_bytes, segments, durable)
            }
            Kind::Read | Kind::Write => {
                let nothing = IoError::Blocks { bytes: 0, block_bytes: block_bytes as usize };
                let segment = segments.pop().ok_or(nothing)?;
                if kind == Kind::Read {
                    Command::read(namespace, lba, block_bytes, segment)
                } else {
                    Command::write(namespace, lba, block_bytes, segment, durable)
                }
            }
            Kind::Zeroes => Command::write_zeroes(namespace, lba, blocks, durable),
            Kind::Discard => {
                let nothing = IoError::Length { bytes: 0, most: LIST_BYTES };
                let list = self.lists.pop().ok_or(nothing)?;
                Command::discard(namespace, &[(lba, blocks)], &list)
            }
            Kind::Flush => Ok(Command::flush(namespace)),
        }
    }

    /// Takes the list of a discard back.
    fn recover(&mut self, kind: Kind, data: Data) -> Vec<Buffer> {
        match data {
            Data::None => Vec::new(),
            Data::ToDevice(list) if kind == Kind::Discard => {
                self.lists.push(list);
                Vec::new()
            }
            Data::ToDevice(segment) | Data::FromDevice(segment) => vec![segment],
            Data::Gather(segments) | Data::Scatter(segments) => segments,
        }
    }
}

impl Lower for QueueLower {
    fn limits(&self) -> LowerLimits {
        self.limits
    }

    fn submit(&mut self, transfer: Transfer, ticket: u64) -> Result<(), NotTaken> {
        if transfer.kind == Kind::Discard && self.lists.is_empty() {
            return Err(NotTaken::Full(transfer));
        }
        let Transfer { kind, offset, bytes, durable, .. } = transfer;
        let command = match self.command(transfer) {
            Ok(command) => command,
            Err(error) => return Err(NotTaken::Failed(error.status().unwrap_or(Status::INVALID_FIELD))),
        };
        match self.queue.submit(command, ticket) {
            Ok(()) => Ok(()),
            Err(Rejected { command, reason }) => {
                let segments = self.recover(kind, command.data);
                Err(match reason {
                    SubmitError::Full => NotTaken::Full(Transfer { kind, offset, bytes, durable, segments }),
                    SubmitError::Range { .. } => NotTaken::Failed(Status::LBA_OUT_OF_RANGE),
                    SubmitError::Gone => NotTaken::Failed(Status::INTERNAL_ERROR),
                    _ => NotTaken::Failed(Status::INVALID_FIELD),
                })
            }
        }
    }

    fn poll(&mut self) -> Result<Option<Done>, Status> {
        match self.queue.poll_with() {
            Ok(None) => Ok(None),
            Ok(Some(Answer { completion, data })) => {
                // Nothing else moves so few bytes.
                if data.bytes() == LIST_BYTES {
                    self.recover(Kind::Discard, data);
                }
                Ok(Some(Done { ticket: completion.token, status: completion.status }))
            }
            Err(error) => {
                let status = error.status().unwrap_or(Status::INTERNAL_ERROR);
                self.failure = Some(error);
                Err(status)
            }
        }
    }
}
