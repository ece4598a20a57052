//! An open device over any backend: one of its namespaces, blocking calls, and queues for non-blocking use.
//!
//! Input: keys, values and blocks as slices. Output: the same, with one more copy than over a queue. Invariant: a call
//! returns after its commands have completed; none stays in flight.
//!
//! # Retries
//! A backend that reconnects to a lost device (attach, NVMe/TCP) resubmits the commands that had not completed. A get,
//! an exist, a list, a read and a flush then only complete late. A put, a delete and a write end in the same state as
//! if sent once, unless another client changed the same key or block in between: then the last writer wins, as with any
//! two writers. A put with a condition reports the state it finds, which may be that of its own first attempt.

use crate::backend::DeviceBackend;
use crate::buffer::Buffer;
use crate::client_namespace::ClientNamespace;
use crate::command::TRANSFER_BYTES_MAX;
use crate::command::{Command, GetOptions, StoreCondition, WriteDurability};
use crate::error::IoError;
use crate::handle::{Handle, HandleBuilder};
use crate::key_list::decode_key_list;
use crate::namespace_request::{NamespaceRequest, NamespaceSpec};
use crate::queue::{Completion, Queue};
use headwater_dma::pool::PoolError;
use headwater_host::width::{narrow, to_usize};
use headwater_nvme::spec::priority::QueuePriority;
use headwater_nvme::spec::status::Status;

/// The initial size of the buffer of blocking calls, in bytes.
const SCRATCH_BYTES: usize = 1 << 20;
/// The depth of the queue of blocking calls.
const BLOCKING_QUEUE_DEPTH: u32 = 16;

mod memory;

pub use memory::{BufferFuture, ImportedBuffer};

/// The most pieces of memory of a blocking call's command.
const SEGMENTS_MAX: usize = 256;

/// An open device, accessed through one of its namespaces.
#[derive(Debug)]
pub struct Device {
    backend: Box<dyn DeviceBackend>,
    namespace: ClientNamespace,
    blocking: Option<BlockingState>,
}

/// The queue of blocking calls, and the buffer of those whose length the device decides.
#[derive(Debug)]
struct BlockingState {
    queue: Queue,
    scratch: Option<Buffer>,
}

/// The lengths of a part of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValuePart {
    /// Bytes of the part that were read: fewer than asked for at the end of the value, none from its end on.
    pub bytes: usize,
    /// Bytes of the whole value.
    pub value_bytes: usize,
}

impl Device {
    /// Opens a device over a backend, accessed through one namespace.
    ///
    /// # Errors
    /// [`IoError`] when the namespace does not exist, or the device cannot be queried.
    pub fn over(mut backend: Box<dyn DeviceBackend>, namespace: u32) -> Result<Self, IoError> {
        let facts = facts_of(backend.as_mut(), namespace)?;
        Ok(Self { backend, namespace: facts, blocking: None })
    }

    /// Returns the namespace.
    #[must_use]
    pub fn namespace(&self) -> &ClientNamespace {
        &self.namespace
    }

    /// Returns the namespaces that this client may use.
    ///
    /// # Errors
    /// [`IoError`] when the device cannot be queried.
    pub fn namespaces(&mut self) -> Result<Vec<ClientNamespace>, IoError> {
        self.backend.namespaces()
    }

    /// Switches to another namespace.
    ///
    /// # Errors
    /// [`IoError`] when it does not exist, or the device cannot be queried.
    pub fn select_namespace(&mut self, namespace: u32) -> Result<(), IoError> {
        self.namespace = facts_of(self.backend.as_mut(), namespace)?;
        Ok(())
    }

    /// Creates a namespace, and returns its number.
    ///
    /// # Errors
    /// [`IoError`] when the device refuses, or this client lacks the right.
    pub fn create_namespace(&mut self, text: NamespaceSpec) -> Result<u32, IoError> {
        self.backend.change_namespace(0, NamespaceRequest::Create(text)).map(u32::from)
    }

    /// Changes this namespace or another one.
    ///
    /// # Errors
    /// [`IoError`] when the device refuses, or this client lacks the right.
    pub fn change_namespace(&mut self, namespace: u32, change: NamespaceRequest) -> Result<(), IoError> {
        let id = u8::try_from(namespace).map_err(|_| IoError::Namespace {
            namespace,
            what: "is not a valid number; list the namespaces",
        })?;
        self.backend.change_namespace(id, change)?;
        if let Ok(facts) = facts_of(self.backend.as_mut(), self.namespace.id) {
            self.namespace = facts;
        }
        Ok(())
    }

    /// Creates a queue for up to `depth` commands in flight; it may move to another thread.
    ///
    /// # Errors
    /// [`IoError`] for an invalid depth, or when a limit is reached.
    pub fn queue(&mut self, depth: u32) -> Result<Queue, IoError> {
        self.backend.queue(depth).map(Queue::over)
    }

    /// Creates a queue of a priority class, if the device arbitrates by class (weighted round robin of an SSD). A
    /// handle schedules its own waiting requests; this class applies to commands at the device.
    ///
    /// # Errors
    /// [`IoError::Unsupported`] if it does not; else as [`queue`](Self::queue).
    pub fn queue_of_class(&mut self, depth: u32, priority: QueuePriority) -> Result<Queue, IoError> {
        self.backend.queue_of_class(depth, priority).map(Queue::over)
    }

    /// Returns a builder of a handle on the namespace, for policies and more queues; its first queue has this depth.
    ///
    /// # Errors
    /// [`IoError`] for an invalid depth, or when a limit is reached.
    pub fn handle(&mut self, depth: u32) -> Result<HandleBuilder, IoError> {
        let queue = self.queue(depth)?;
        Ok(Handle::builder(&self.namespace).queue(queue))
    }

    /// Returns the value of a key, or `None` when the key does not exist.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, IoError> {
        let namespace = self.namespace.id;
        let mut long = None;
        loop {
            let scratch = match long.take() {
                Some(buffer) => buffer,
                None => self.transfer_scratch()?,
            };
            let completion = self.run(Command::get(namespace, key, scratch.clone())?)?;
            if completion.status.same_code(Status::KEY_DOES_NOT_EXIST) {
                return Ok(None);
            }
            let bytes = completion.into_result()? as usize;
            if bytes <= scratch.bytes() {
                let mut value = vec![0; bytes];
                scratch.read(0, &mut value)?;
                return Ok(Some(value));
            }
            let most = self.value_bytes_max()?;
            if bytes > most {
                return Err(IoError::TransferTooLong { bytes, max: most });
            }
            // The value is longer than the buffer: retry with a longer one, which is kept unless it is very long.
            if bytes > self.transfer_bytes_max()? {
                long = Some(self.backend.region(bytes)?.slice(0, bytes)?);
            } else {
                self.scratch(bytes)?;
            }
        }
    }

    /// Reads a part of the value of a key: as many bytes from the offset on as fit `into`, all of one value, also while another
    /// client stores it. Returns `None` when the key does not exist.
    ///
    /// # Errors
    /// [`IoError::Unsupported`] for options that the device does not have, [`IoError::TransferTooLong`] for more bytes than one
    /// command moves; else [`IoError`].
    pub fn get_part(
        &mut self,
        key: &[u8],
        options: GetOptions,
        into: &mut [u8],
    ) -> Result<Option<ValuePart>, IoError> {
        if options != GetOptions::default() && !self.namespace.retrieve_options {
            let reason =
                "the device reads values only from their front and past its cache; get the whole value";
            return Err(IoError::Unsupported { reason: reason.to_owned() });
        }
        let (wanted, max) = (into.len(), self.value_bytes_max()?);
        if wanted > max {
            return Err(IoError::TransferTooLong { bytes: wanted, max });
        }
        let memory = if wanted > self.transfer_bytes_max()? {
            self.backend.region(wanted)?
        } else {
            self.scratch(wanted)?
        };
        // Not every transport moves no bytes.
        let memory = memory.slice(0, wanted.max(1))?;
        let command = Command::get_part(self.namespace.id, key, memory.clone(), options)?;
        let completion = self.run(command)?;
        if completion.status.same_code(Status::KEY_DOES_NOT_EXIST) {
            return Ok(None);
        }
        let value_bytes = to_usize(completion.into_result()?.into());
        let bytes = value_bytes.saturating_sub(to_usize(options.offset.into())).min(wanted);
        memory.read(0, &mut into[..bytes])?;
        Ok(Some(ValuePart { bytes, value_bytes }))
    }

    /// Stores a value under a key.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), IoError> {
        self.put_if(key, value, StoreCondition::Always)
    }

    /// Stores a value under a key if the condition holds; else the error's status is
    /// [`KEY_DOES_NOT_EXIST`](Status::KEY_DOES_NOT_EXIST) or [`KEY_EXISTS`](Status::KEY_EXISTS).
    ///
    /// # Errors
    /// [`IoError`].
    pub fn put_if(&mut self, key: &[u8], value: &[u8], condition: StoreCondition) -> Result<(), IoError> {
        let most = self.value_bytes_max()?;
        if value.len() > most {
            return Err(IoError::TransferTooLong { bytes: value.len(), max: most });
        }
        let from = self.backend.region(value.len()).or_else(|error| self.instead_of(error, value.len()))?;
        let from = from.slice(0, value.len())?;
        from.write(0, value)?;
        self.run(Command::put(self.namespace.id, key, from, condition)?)?.into_result().map(drop)
    }

    /// Removes a key; a missing key is no error.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn delete(&mut self, key: &[u8]) -> Result<(), IoError> {
        match self.run(Command::delete(self.namespace.id, key)?)?.into_result() {
            Ok(_) => Ok(()),
            Err(IoError::Status(status)) if status.same_code(Status::KEY_DOES_NOT_EXIST) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns true if a key exists.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn exist(&mut self, key: &[u8]) -> Result<bool, IoError> {
        match self.run(Command::exist(self.namespace.id, key)?)?.into_result() {
            Ok(_) => Ok(true),
            Err(IoError::Status(status)) if status.same_code(Status::KEY_DOES_NOT_EXIST) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns keys in the device's order, from one key (inclusive) or from the first, as many as fit one buffer.
    /// Continue from the last one.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn list(&mut self, from: Option<&[u8]>) -> Result<Vec<Vec<u8>>, IoError> {
        let scratch = self.transfer_scratch()?;
        // A list may be shorter than the buffer's previous contents: its leading count bounds what is read.
        self.run(Command::list(self.namespace.id, from, scratch.clone())?)?.into_result()?;
        let mut answer = vec![0; scratch.bytes()];
        scratch.read(0, &mut answer)?;
        Ok(decode_key_list(&answer))
    }

    /// Makes everything durable that the namespace acknowledged before.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn flush(&mut self) -> Result<(), IoError> {
        self.run(Command::flush(self.namespace.id))?.into_result().map(drop)
    }

    /// Reads whole blocks.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn read(&mut self, lba: u64, into: &mut [u8]) -> Result<(), IoError> {
        let mut at = lba;
        for piece in into.chunks_mut(self.block_transfer_bytes_max()?) {
            let buffers = self.payload(piece.len())?;
            let command =
                Command::read_scattered(self.namespace.id, at, self.namespace.block_bytes, buffers.clone())?;
            self.run(command)?.into_result()?;
            at += blocks(piece.len(), self.namespace.block_bytes);
            let mut rest = piece;
            for buffer in &buffers {
                let (here, later) = rest.split_at_mut(buffer.bytes());
                buffer.read(0, here)?;
                rest = later;
            }
        }
        Ok(())
    }

    /// Writes whole blocks. Each run of up to [`TRANSFER_BYTES_MAX`] is atomic.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn write(&mut self, lba: u64, from: &[u8], durable: WriteDurability) -> Result<(), IoError> {
        let mut at = lba;
        for piece in from.chunks(self.block_transfer_bytes_max()?) {
            let buffers = self.payload(piece.len())?;
            let mut rest = piece;
            for buffer in &buffers {
                let (here, later) = rest.split_at(buffer.bytes());
                buffer.write(0, here)?;
                rest = later;
            }
            let block_bytes = self.namespace.block_bytes;
            let command = Command::write_gathered(self.namespace.id, at, block_bytes, buffers, durable)?;
            self.run(command)?.into_result()?;
            at += blocks(piece.len(), block_bytes);
        }
        Ok(())
    }

    /// Returns the bytes of the largest block command.
    fn block_transfer_bytes_max(&mut self) -> Result<usize, IoError> {
        let namespace = self.namespace.id;
        let block_bytes = self.namespace.block_bytes as usize;
        if block_bytes == 0 {
            return Err(IoError::Namespace { namespace, what: "holds keys; use get and put" });
        }
        let most = self.transfer_bytes_max()?;
        Ok(block_bytes * (most / block_bytes).clamp(1, crate::command::BLOCKS_MAX as usize))
    }

    /// Returns the most bytes of one blocking call's command.
    fn transfer_bytes_max(&mut self) -> Result<usize, IoError> {
        Ok(self.blocking()?.queue.limits().transfer_bytes_max.min(TRANSFER_BYTES_MAX))
    }

    /// Returns the most bytes of a value that one command moves.
    fn value_bytes_max(&mut self) -> Result<usize, IoError> {
        self.backend.value_bytes_max().map_or_else(|| self.transfer_bytes_max(), Ok)
    }

    /// Returns the buffer of blocking calls, up to the length that one command may fill.
    fn transfer_scratch(&mut self) -> Result<Buffer, IoError> {
        let most = self.transfer_bytes_max()?;
        let scratch = self.scratch(0)?;
        Ok(scratch.slice(0, scratch.bytes().min(most))?)
    }

    /// Returns the buffer of blocking calls, grown to at least this many bytes.
    fn scratch(&mut self, bytes: usize) -> Result<Buffer, IoError> {
        if bytes > TRANSFER_BYTES_MAX {
            return Err(IoError::TransferTooLong { bytes, max: TRANSFER_BYTES_MAX });
        }
        let have = self.blocking()?.scratch.clone();
        if let Some(scratch) = have.filter(|scratch| scratch.bytes() >= bytes) {
            return Ok(scratch);
        }
        let scratch = self.backend.region(bytes.next_power_of_two().max(SCRATCH_BYTES))?;
        self.blocking()?.scratch = Some(scratch.clone());
        Ok(scratch)
    }

    /// Returns the memory of one command that moves blocks: a slot, pieces of the pool, or memory of its own, by its
    /// length.
    fn payload(&mut self, bytes: usize) -> Result<Vec<Buffer>, IoError> {
        let segments = self.blocking()?.queue.limits().segments_max.clamp(1, SEGMENTS_MAX);
        match self.buffers(bytes, narrow(segments)) {
            Ok(buffers) => Ok(buffers),
            Err(error) => Ok(vec![self.instead_of(error, bytes)?]),
        }
    }

    /// Returns the buffer of blocking calls if the program holds all other memory, so that a call need not wait for
    /// buffers that only its own thread can return.
    fn instead_of(&mut self, error: IoError, bytes: usize) -> Result<Buffer, IoError> {
        match (error, self.blocking()?.scratch.clone()) {
            (IoError::Pool(PoolError::WouldBlock { .. }), Some(scratch)) if scratch.bytes() >= bytes => {
                Ok(scratch.slice(0, bytes)?)
            }
            (error, _) => Err(error),
        }
    }

    /// Returns the state of blocking calls, whose queue is created with the first.
    fn blocking(&mut self) -> Result<&mut BlockingState, IoError> {
        if self.blocking.is_none() {
            let queue = Queue::over(self.backend.queue(BLOCKING_QUEUE_DEPTH)?);
            self.blocking = Some(BlockingState { queue, scratch: None });
        }
        match &mut self.blocking {
            Some(blocking) => Ok(blocking),
            None => unreachable!("the state was set two lines above"),
        }
    }

    /// Submits one command and waits for its completion.
    fn run(&mut self, command: Command) -> Result<Completion, IoError> {
        let gone =
            || IoError::Device { reason: "a command did not complete; open the device again".to_owned() };
        let queue = &mut self.blocking()?.queue;
        queue.submit(command, 0)?;
        queue.wait(None)?.ok_or_else(gone)
    }
}

fn facts_of(backend: &mut dyn DeviceBackend, namespace: u32) -> Result<ClientNamespace, IoError> {
    let facts = backend.namespaces()?.into_iter().find(|facts| facts.id == namespace);
    facts.ok_or(IoError::Namespace {
        namespace,
        what: "does not exist or is not granted; list the namespaces",
    })
}

fn blocks(bytes: usize, block_bytes: u32) -> u64 {
    bytes as u64 / u64::from(block_bytes.max(1))
}
