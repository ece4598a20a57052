//! What every NVMe transport does with a decoded command: it becomes a command of the device and the way to answer it.
//!
//! In: an [`IoCommand`] and the bytes that came with it, or the resolved place of its bytes ([`Data`]). Out: a
//! [`Request`], or the status that refuses it. Invariant: the data is exactly as long as [`IoCommand::data`] said; what a
//! client may still write to is copied in once and judged after.
//!
//! # What this does not do
//! It knows no capsule: whoever carries the command over a network has its bytes. What lies in client memory [`Places`]
//! finds, by flat address, PRPs or SGLs.

mod address;
mod answer;
mod blocks;
#[cfg(test)]
mod tests;

use crate::command::{Command, Condition, Expiry, Fua, ListPosition, NamespaceId, Payload, Release, Sink};
use crate::config::Durability;
use crate::engine::Device;
use crate::media::Media;
use crate::nvme::interpreter::{DataNeed, IoCommand, IoOperation};
use bytes::{Bytes, BytesMut};
use headwater_dma::iova::Segments;
use headwater_nvme::spec::status::Status;

pub use address::{AddressMode, Places};
pub use answer::{Answer, Closed, Flushed, ListAnswer};

/// Bytes of keys that are made room for at a time.
const KEYS_BYTES: usize = 4_096;

/// The bytes of a command, or their place.
#[derive(Debug)]
pub enum Data {
    /// The command moves none.
    None,
    /// They come from, or go to, client memory.
    Client(Segments),
    /// They came with the command.
    Bytes(Bytes),
    /// They go back with the answer, in [`Closed::data`].
    Room,
    /// UIO put and get: key and value lie in client memory, each at its own address.
    Keyed {
        /// Where the key lies.
        key: Segments,
        /// Where the value lies or goes.
        value: Segments,
    },
}

/// A command for the device and how it is to be answered.
#[derive(Debug)]
pub struct Request {
    /// The namespace to submit it with.
    pub namespace: NamespaceId,
    /// What the device is asked.
    pub command: Command,
    /// What becomes of its completion.
    pub answer: Answer,
}

impl Request {
    /// Joins a command with its data.
    ///
    /// # Errors
    /// The status that the command completes with: [`Status::DATA_SGL_LENGTH_INVALID`] for data that is not as long as
    /// the command says, [`Status::DATA_TRANSFER_ERROR`] for client memory that cannot be read.
    pub fn new<M: Media>(
        io: &IoCommand,
        data: Data,
        keys: &mut Keys,
        device: &Device<M>,
    ) -> Result<Self, Status> {
        let need = io.data();
        let namespace = io.namespace;
        let request = |command, answer| Self { namespace, command, answer };
        Ok(match io.operation {
            IoOperation::Store { key, condition, .. } => {
                request(store(keys.keep(key.as_bytes()), payload(data, need)?, condition), Answer::Status)
            }
            IoOperation::Retrieve { key, .. } => {
                request(retrieve(keys.keep(key.as_bytes()), sink(data, need)?, need), Answer::Length)
            }
            IoOperation::Put { .. } => {
                let (key, value) = keyed(data)?;
                let value = payload(Data::Client(value), need)?;
                request(store(key, value, Condition::Always), Answer::Status)
            }
            IoOperation::Get { .. } => {
                let (key, value) = keyed(data)?;
                request(retrieve(key, sink(Data::Client(value), need)?, need), Answer::Length)
            }
            IoOperation::Delete { key, missing } => {
                let key = keys.keep(key.as_bytes());
                request(Command::Delete { key, condition: Condition::Always }, Answer::Removal(missing))
            }
            IoOperation::Exist { key } => {
                let key = keys.keep(key.as_bytes());
                request(Command::Exist { key, release: Release::WhenDurable }, Answer::Status)
            }
            IoOperation::Flush => request(Command::Flush, Answer::Status),
            IoOperation::List { from, bytes } => {
                let from =
                    from.map_or(ListPosition::START, |key| device.position_of(namespace, key.as_bytes()));
                let into = match sink(data, need)? {
                    Sink::Client(segments) => Some(segments),
                    Sink::Bytes(_) => None,
                };
                let list = ListAnswer::new(namespace, from, bytes, into).ok_or(Status::INVALID_FIELD)?;
                request(list.next_command().1, Answer::List(Box::new(list)))
            }
            IoOperation::Block(operation) => {
                let (command, read) = blocks::command(operation, data)?;
                let request = request(command, Answer::Status);
                // What is read is durable where the namespace is by itself; else Force Unit Access asks for it.
                if read == Fua::Yes && device.durability(namespace) != Durability::Always {
                    return Ok(request.after_flush());
                }
                request
            }
        })
    }

    /// The command that touches data, whatever is submitted before it: what a client's rights are asked about.
    #[must_use]
    #[inline]
    pub fn judged(&self) -> &Command {
        match &self.answer {
            Answer::Flushed(flushed) => flushed.command(),
            _ => &self.command,
        }
    }

    fn after_flush(self) -> Self {
        let answer = Answer::Flushed(Box::new(Flushed::new(self.namespace, self.command)));
        Self { namespace: self.namespace, command: Command::Flush, answer }
    }
}

/// Where the keys of commands in flight lie: side by side, because an allocation for each costs more than the key.
#[derive(Debug, Default)]
pub struct Keys {
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

fn store(key: Bytes, value: Payload, condition: Condition) -> Command {
    Command::Store { key, value, condition, expiry: Expiry::Never }
}

fn retrieve(key: Bytes, sink: Sink, need: DataNeed) -> Command {
    Command::Retrieve { key, sink, bytes_max: need.bytes(), release: Release::WhenDurable }
}

/// The bytes that a command brings.
#[inline]
fn payload(data: Data, need: DataNeed) -> Result<Payload, Status> {
    let payload = match data {
        Data::Client(segments) => Payload::Client(segments),
        Data::Bytes(bytes) => Payload::Bytes(bytes),
        Data::None | Data::Room | Data::Keyed { .. } => Payload::Bytes(Bytes::new()),
    };
    fits(payload.len(), need)?;
    Ok(payload)
}

/// Where the bytes go that a command asks for.
#[inline]
fn sink(data: Data, need: DataNeed) -> Result<Sink, Status> {
    match data {
        Data::Client(segments) => {
            fits(segments.bytes(), need)?;
            Ok(Sink::Client(segments))
        }
        Data::Room => Ok(Sink::Bytes(Vec::new())),
        Data::None | Data::Bytes(_) | Data::Keyed { .. } => {
            fits(0, need)?;
            Ok(Sink::Bytes(Vec::new()))
        }
    }
}

/// The transport resolved what [`IoCommand::data`] asked for, no more and no less.
#[inline]
fn fits(bytes: usize, need: DataNeed) -> Result<(), Status> {
    if u32::try_from(bytes) == Ok(need.bytes()) { Ok(()) } else { Err(Status::DATA_SGL_LENGTH_INVALID) }
}

/// A key of the UIO commands, copied before it is looked at: its client may go on writing there.
fn keyed(data: Data) -> Result<(Bytes, Segments), Status> {
    let Data::Keyed { key, value } = data else {
        return Err(Status::INVALID_FIELD);
    };
    let mut bytes = vec![0; key.bytes()];
    if key.copy_in(0, &mut bytes) != bytes.len() {
        return Err(Status::DATA_TRANSFER_ERROR);
    }
    Ok((bytes.into(), value))
}
