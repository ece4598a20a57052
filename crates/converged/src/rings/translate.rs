//! The DMA stage of rings: a decoded command, whose bytes are named by address, becomes a command of the device.
//!
//! In: an [`IoCommand`] and the memory table of the client that sent it. Out: a [`Request`], or the status that refuses
//! it. Invariant: every address is resolved whole before the command starts; a key is copied in once and judged after.

use super::answer::{Answer, ListAnswer};
use crate::command::{Command, Condition, Expiry, ListPosition, NamespaceId, Payload, Release, Sink};
use crate::device::Device;
use crate::interpreter::{IoCommand, IoOperation};
use crate::media::Media;
use bytes::{Bytes, BytesMut};
use headwater_dma::iova::{ClientMemory, IovaRange, Segments};
use headwater_nvme::spec::status::Status;

/// Bytes of keys that are made room for at a time.
const KEYS_BYTES: usize = 4_096;

/// A command for the device and how it is to be answered.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) namespace: NamespaceId,
    pub(super) command: Command,
    pub(super) answer: Answer,
}

impl Request {
    /// Looks up every address that a command names.
    pub(super) fn resolve<M: Media>(
        io: &IoCommand,
        memory: &ClientMemory,
        keys: &mut Keys,
        device: &Device<M>,
    ) -> Result<Self, Status> {
        let namespace = io.namespace;
        let request = |command, answer| Self { namespace, command, answer };
        Ok(match io.operation {
            IoOperation::Store { key, value, condition } => {
                let value = segments(memory, value)?;
                request(store(keys.keep(key.as_bytes()), value, condition), Answer::Status)
            }
            IoOperation::Put { key, value } => {
                let key = copy_key(memory, key)?;
                let value = segments(memory, value)?;
                request(store(key, value, Condition::Always), Answer::Status)
            }
            IoOperation::Retrieve { key, buffer } => {
                let sink = segments(memory, buffer)?;
                request(retrieve(keys.keep(key.as_bytes()), sink, buffer), Answer::Length)
            }
            IoOperation::Get { key, buffer } => {
                let key = copy_key(memory, key)?;
                let sink = segments(memory, buffer)?;
                request(retrieve(key, sink, buffer), Answer::Length)
            }
            IoOperation::Delete { key } => {
                let command =
                    Command::Delete { key: keys.keep(key.as_bytes()), condition: Condition::Always };
                request(command, Answer::Removal)
            }
            IoOperation::Exist { key } => {
                let command =
                    Command::Exist { key: keys.keep(key.as_bytes()), release: Release::WhenDurable };
                request(command, Answer::Status)
            }
            IoOperation::Flush => request(Command::Flush, Answer::Status),
            IoOperation::List { from, buffer } => {
                let from =
                    from.map_or(ListPosition::START, |key| device.position_of(namespace, key.as_bytes()));
                let list = ListAnswer::new(namespace, from, segments(memory, buffer)?);
                let list = list.ok_or(Status::INVALID_FIELD)?;
                request(list.next_command().1, Answer::List(Box::new(list)))
            }
        })
    }
}

/// Where the keys of commands in flight lie: side by side, because an allocation for each costs more than the key.
#[derive(Debug, Default)]
pub(super) struct Keys {
    room: BytesMut,
}

impl Keys {
    #[inline]
    fn keep(&mut self, key: &[u8]) -> Bytes {
        if self.room.capacity() < key.len() {
            // Takes the old room again when no key is left in it.
            self.room.reserve(KEYS_BYTES.max(key.len()));
        }
        self.room.extend_from_slice(key);
        self.room.split().freeze()
    }
}

fn store(key: Bytes, value: Segments, condition: Condition) -> Command {
    Command::Store { key, value: Payload::Client(value), condition, expiry: Expiry::Never }
}

fn retrieve(key: Bytes, sink: Segments, buffer: IovaRange) -> Command {
    Command::Retrieve {
        key,
        sink: Sink::Client(sink),
        bytes_max: buffer.bytes,
        release: Release::WhenDurable,
    }
}

#[inline]
fn segments(memory: &ClientMemory, range: IovaRange) -> Result<Segments, Status> {
    memory.resolve(range.start, u64::from(range.bytes)).map_err(|_| Status::DATA_TRANSFER_ERROR)
}

/// A key of the UIO commands, copied before it is looked at: its client may go on writing there.
fn copy_key(memory: &ClientMemory, range: IovaRange) -> Result<Bytes, Status> {
    let place = segments(memory, range)?;
    let mut key = vec![0; place.bytes()];
    if place.copy_in(0, &mut key) != key.len() {
        return Err(Status::DATA_TRANSFER_ERROR);
    }
    Ok(key.into())
}
