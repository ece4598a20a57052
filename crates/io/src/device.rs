//! A device, whichever way leads to it: one namespace of it, blocking calls, and queues for those who do not block.
//!
//! In: keys, values and blocks as slices. Out: the same, copied once more than a queue would. Invariant: a call returns
//! when its commands are answered; nothing of it stays in flight.
//!
//! # Trying again
//! A way that loses its device and finds it again (attach, NVMe/TCP) sends what was not answered once more. A get, an exist, a list, a
//! read and a flush are then simply late. A put, a delete and a write end in the same state as once, unless somebody else
//! changed the same key or block in between: then the later of the two wins, as with any two writers. A put with a
//! condition tells what it finds, which may be its own first try.

use crate::attach::admin::{NamespaceText, NamespaceWish};
use crate::backend::Backend;
use crate::buffer::Buffer;
use crate::command::{Command, Condition, Durable};
use crate::error::IoError;
use crate::facts::NamespaceFacts;
use crate::handle::{Handle, HandleBuilder};
use crate::key_list::keys_of;
use crate::queue::{Completion, Queue};
use headwater_nvme::controller::Priority;
use headwater_nvme::spec::status::Status;

/// Bytes of the buffer that blocking calls use, to begin with.
const SCRATCH_BYTES: usize = 1 << 20;
/// Depth of the queue that blocking calls use.
const BLOCKING_DEPTH: u32 = 16;
/// Bytes of the longest value, and of the longest run of blocks that one blocking call moves in one command.
pub const TRANSFER_BYTES_MAX: usize = 16 << 20;

/// An open device, seen through one of its namespaces.
#[derive(Debug)]
pub struct Device {
    backend: Box<dyn Backend>,
    namespace: NamespaceFacts,
    blocking: Option<Blocking>,
}

/// What blocking calls work with.
#[derive(Debug)]
struct Blocking {
    queue: Queue,
    scratch: Buffer,
}

impl Device {
    /// A device over a backend, seen through one namespace.
    ///
    /// # Errors
    /// [`IoError`] when the namespace is not there, or the device cannot be asked.
    pub fn over(mut backend: Box<dyn Backend>, namespace: u32) -> Result<Self, IoError> {
        let facts = facts_of(backend.as_mut(), namespace)?;
        Ok(Self { backend, namespace: facts, blocking: None })
    }

    /// The namespace.
    #[must_use]
    pub fn namespace(&self) -> &NamespaceFacts {
        &self.namespace
    }

    /// Every namespace that this client may use.
    ///
    /// # Errors
    /// [`IoError`] when the device cannot be asked.
    pub fn namespaces(&mut self) -> Result<Vec<NamespaceFacts>, IoError> {
        self.backend.namespaces()
    }

    /// Looks through another namespace from now on.
    ///
    /// # Errors
    /// [`IoError`] when it is not there, or the device cannot be asked.
    pub fn choose(&mut self, namespace: u32) -> Result<(), IoError> {
        self.namespace = facts_of(self.backend.as_mut(), namespace)?;
        Ok(())
    }

    /// Makes a namespace; its number.
    ///
    /// # Errors
    /// [`IoError`] when the device refuses, or this client may not.
    pub fn create_namespace(&mut self, text: NamespaceText) -> Result<u32, IoError> {
        self.backend.change_namespace(0, NamespaceWish::Create(text)).map(u32::from)
    }

    /// Changes a namespace, this one or another.
    ///
    /// # Errors
    /// [`IoError`] when the device refuses, or this client may not.
    pub fn change_namespace(&mut self, namespace: u32, wish: NamespaceWish) -> Result<(), IoError> {
        let id = u8::try_from(namespace)
            .map_err(|_| IoError::Namespace { namespace, what: "is a number that none can have" })?;
        self.backend.change_namespace(id, wish)?;
        if let Ok(facts) = facts_of(self.backend.as_mut(), self.namespace.id) {
            self.namespace = facts;
        }
        Ok(())
    }

    /// Memory for commands, in one piece, on a page, of the pool of this device. It goes back when the last handle to it is
    /// dropped, commands in flight included, and holds whatever this process last had there.
    ///
    /// # Errors
    /// [`IoError`] when there is no memory, or a limit is reached.
    pub fn buffer(&mut self, bytes: usize) -> Result<Buffer, IoError> {
        self.backend.region(bytes)
    }

    /// A queue for up to `depth` commands in flight; it may go to another thread.
    ///
    /// # Errors
    /// [`IoError`] for an impossible depth, or when a limit is reached.
    pub fn queue(&mut self, depth: u32) -> Result<Queue, IoError> {
        self.backend.queue(depth).map(Queue::over)
    }

    /// A queue of a class, where the device itself serves its queues by classes: weighted round robin of an SSD. What waits in a
    /// handle is scheduled by the handle; this is about what the device has.
    ///
    /// # Errors
    /// [`IoError::Refused`] where it does not; else as [`queue`](Self::queue).
    pub fn queue_of(&mut self, depth: u32, priority: Priority) -> Result<Queue, IoError> {
        self.backend.queue_of(depth, priority).map(Queue::over)
    }

    /// A handle on the namespace, to be built with policies and more queues; its first queue has this depth.
    ///
    /// # Errors
    /// [`IoError`] for an impossible depth, or when a limit is reached.
    pub fn handle(&mut self, depth: u32) -> Result<HandleBuilder, IoError> {
        let queue = self.queue(depth)?;
        Ok(Handle::builder(&self.namespace).queue(queue))
    }

    /// The value of a key, or `None` when there is no such key.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, IoError> {
        let namespace = self.namespace.id;
        loop {
            let scratch = self.answer_scratch()?;
            let completion = self.run(Command::get(namespace, key, scratch.clone())?)?;
            if completion.status.is(Status::KEY_DOES_NOT_EXIST) {
                return Ok(None);
            }
            let bytes = usize::try_from(completion.ok()?).unwrap_or(usize::MAX);
            if bytes <= scratch.bytes() {
                let mut value = vec![0; bytes];
                scratch.read(0, &mut value)?;
                return Ok(Some(value));
            }
            let most = self.transfer_bytes_max()?;
            if bytes > most {
                return Err(IoError::Length { bytes, most });
            }
            // The value is longer than the buffer was: once more with a longer one.
            self.scratch(bytes)?;
        }
    }

    /// Stores a value under a key.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), IoError> {
        self.put_if(key, value, Condition::Always)
    }

    /// Stores a value under a key if the condition holds; else the error's status is
    /// [`KEY_DOES_NOT_EXIST`](Status::KEY_DOES_NOT_EXIST) or [`KEY_EXISTS`](Status::KEY_EXISTS).
    ///
    /// # Errors
    /// [`IoError`].
    pub fn put_if(&mut self, key: &[u8], value: &[u8], condition: Condition) -> Result<(), IoError> {
        let most = self.transfer_bytes_max()?;
        if value.len() > most {
            return Err(IoError::Length { bytes: value.len(), most });
        }
        let from = self.scratch(value.len())?.slice(0, value.len())?;
        from.write(0, value)?;
        self.run(Command::put(self.namespace.id, key, from, condition)?)?.ok().map(drop)
    }

    /// Removes a key; one that is not there is fine.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn delete(&mut self, key: &[u8]) -> Result<(), IoError> {
        match self.run(Command::delete(self.namespace.id, key)?)?.ok() {
            Ok(_) => Ok(()),
            Err(IoError::Status(status)) if status.is(Status::KEY_DOES_NOT_EXIST) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether a key exists.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn exist(&mut self, key: &[u8]) -> Result<bool, IoError> {
        match self.run(Command::exist(self.namespace.id, key)?)?.ok() {
            Ok(_) => Ok(true),
            Err(IoError::Status(status)) if status.is(Status::KEY_DOES_NOT_EXIST) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Keys in the device's own order, from one on (itself included) or from the front, as many as fit an answer. The
    /// last one is where to go on.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn list(&mut self, from: Option<&[u8]>) -> Result<Vec<Vec<u8>>, IoError> {
        let scratch = self.answer_scratch()?;
        // An answer that is shorter than the last one must not be read beyond its end: the count in front says how far.
        self.run(Command::list(self.namespace.id, from, scratch.clone())?)?.ok()?;
        let mut answer = vec![0; scratch.bytes()];
        scratch.read(0, &mut answer)?;
        Ok(keys_of(&answer))
    }

    /// Makes everything durable that the namespace acknowledged before.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn flush(&mut self) -> Result<(), IoError> {
        self.run(Command::flush(self.namespace.id))?.ok().map(drop)
    }

    /// Reads whole blocks.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn read(&mut self, lba: u64, into: &mut [u8]) -> Result<(), IoError> {
        let mut at = lba;
        for piece in into.chunks_mut(self.piece_bytes()?) {
            let buffer = self.scratch(piece.len())?.slice(0, piece.len())?;
            let command = Command::read(self.namespace.id, at, self.namespace.block_bytes, buffer.clone())?;
            self.run(command)?.ok()?;
            buffer.read(0, piece)?;
            at += blocks(piece.len(), self.namespace.block_bytes);
        }
        Ok(())
    }

    /// Writes whole blocks. Each run of up to [`TRANSFER_BYTES_MAX`] is all or nothing.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn write(&mut self, lba: u64, from: &[u8], durable: Durable) -> Result<(), IoError> {
        let mut at = lba;
        for piece in from.chunks(self.piece_bytes()?) {
            let buffer = self.scratch(piece.len())?.slice(0, piece.len())?;
            buffer.write(0, piece)?;
            let block_bytes = self.namespace.block_bytes;
            let command = Command::write(self.namespace.id, at, block_bytes, buffer, durable)?;
            self.run(command)?.ok()?;
            at += blocks(piece.len(), block_bytes);
        }
        Ok(())
    }

    /// Bytes of the largest command on blocks.
    fn piece_bytes(&mut self) -> Result<usize, IoError> {
        let namespace = self.namespace.id;
        let block_bytes = self.namespace.block_bytes as usize;
        if block_bytes == 0 {
            return Err(IoError::Namespace { namespace, what: "holds keys; read and write need blocks" });
        }
        let most = self.transfer_bytes_max()?;
        Ok(block_bytes * (most / block_bytes).clamp(1, crate::command::BLOCKS_MAX as usize))
    }

    /// Most bytes of one blocking call's command.
    fn transfer_bytes_max(&mut self) -> Result<usize, IoError> {
        self.scratch(0)?;
        let limits = self.blocking.as_ref().map(|blocking| blocking.queue.limits());
        Ok(limits.map_or(TRANSFER_BYTES_MAX, |limits| limits.transfer_bytes_max.min(TRANSFER_BYTES_MAX)))
    }

    /// The buffer of blocking calls, as much of it as one command may fill.
    fn answer_scratch(&mut self) -> Result<Buffer, IoError> {
        let most = self.transfer_bytes_max()?;
        let scratch = self.scratch(0)?;
        Ok(scratch.slice(0, scratch.bytes().min(most))?)
    }

    /// The buffer of blocking calls, of at least so many bytes.
    fn scratch(&mut self, bytes: usize) -> Result<Buffer, IoError> {
        if bytes > TRANSFER_BYTES_MAX {
            return Err(IoError::Length { bytes, most: TRANSFER_BYTES_MAX });
        }
        let have = match &mut self.blocking {
            Some(blocking) => blocking,
            None => {
                let queue = Queue::over(self.backend.queue(BLOCKING_DEPTH)?);
                let scratch = self.backend.region(SCRATCH_BYTES)?;
                self.blocking.insert(Blocking { queue, scratch })
            }
        };
        if have.scratch.bytes() < bytes {
            have.scratch = self.backend.region(bytes.next_power_of_two())?;
        }
        Ok(have.scratch.clone())
    }

    /// One command from its submission to its completion.
    fn run(&mut self, command: Command) -> Result<Completion, IoError> {
        self.scratch(0)?;
        let gone = || IoError::Device { reason: "the device ended without an answer".to_owned() };
        let queue = &mut self.blocking.as_mut().ok_or_else(gone)?.queue;
        queue.submit(command, 0)?;
        queue.wait(None)?.ok_or_else(gone)
    }
}

fn facts_of(backend: &mut dyn Backend, namespace: u32) -> Result<NamespaceFacts, IoError> {
    let facts = backend.namespaces()?.into_iter().find(|facts| facts.id == namespace);
    facts.ok_or(IoError::Namespace { namespace, what: "is not there, or not for this client" })
}

fn blocks(bytes: usize, block_bytes: u32) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX) / u64::from(block_bytes.max(1))
}
