//! A command: an NVMe entry, and a typed reference to the bytes it moves.
//!
//! In: what the application wants. Out: a [`Command`] without a data pointer: each backend writes that at its own edge.
//! Invariant: the lengths in the entry are those of the buffer.

use crate::buffer::Buffer;
use crate::error::IoError;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::kv::{self, DataPointer, InlineKey, StoreOptions};
use zerocopy::little_endian::U32;

/// NVM Write (NVM Command Set 1.0c section 3.2.6).
const WRITE: u8 = 0x01;
/// NVM Read (3.2.4).
const READ: u8 = 0x02;
/// CDW12 bit 30 of reads and writes: Force Unit Access.
const FORCE_UNIT_ACCESS: u32 = 1 << 30;
/// Most blocks of one command: what the zero-based 16 bits of CDW12 say.
pub const BLOCKS_MAX: u32 = 1 << 16;

/// What must hold for a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// Nothing.
    #[default]
    Always,
    /// The key exists.
    IfExists,
    /// The key does not exist.
    IfAbsent,
}

/// When a write is safe from a power cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durable {
    /// As the namespace promises.
    #[default]
    AsPromised,
    /// Before it completes.
    Now,
}

/// The bytes that a command moves.
#[derive(Clone, Debug)]
pub enum Data {
    /// None.
    None,
    /// From this buffer to the device.
    ToDevice(Buffer),
    /// From the device to this buffer.
    FromDevice(Buffer),
}

/// One command.
#[derive(Clone, Debug)]
pub struct Command {
    /// The entry, its command id and data pointer still zero.
    pub entry: SubmissionEntry,
    /// What it moves.
    pub data: Data,
}

impl Command {
    /// Read the value of a key to the front of `into`. The completion's result is the value's full length.
    ///
    /// # Errors
    /// [`IoError`] for an impossible key or length.
    pub fn get(namespace: u32, key: &[u8], into: Buffer) -> Result<Self, IoError> {
        let entry = kv::retrieve(namespace, inline(key)?, length_of(&into)?);
        Ok(Self { entry, data: Data::FromDevice(into) })
    }

    /// Store a value under a key.
    ///
    /// # Errors
    /// [`IoError`] for an impossible key or length.
    pub fn put(namespace: u32, key: &[u8], value: Buffer, condition: Condition) -> Result<Self, IoError> {
        let options = match condition {
            Condition::Always => StoreOptions::NONE,
            Condition::IfExists => StoreOptions::ONLY_IF_EXISTS,
            Condition::IfAbsent => StoreOptions::ONLY_IF_ABSENT,
        };
        let entry = kv::store(namespace, inline(key)?, length_of(&value)?, options);
        Ok(Self { entry, data: Data::ToDevice(value) })
    }

    /// Remove a key.
    ///
    /// # Errors
    /// [`IoError::Key`].
    pub fn delete(namespace: u32, key: &[u8]) -> Result<Self, IoError> {
        Ok(Self { entry: kv::delete(namespace, inline(key)?), data: Data::None })
    }

    /// Ask whether a key exists.
    ///
    /// # Errors
    /// [`IoError::Key`].
    pub fn exist(namespace: u32, key: &[u8]) -> Result<Self, IoError> {
        Ok(Self { entry: kv::exist(namespace, inline(key)?), data: Data::None })
    }

    /// Read keys in the device's order, from one on or from the front; [`key_list`](crate::key_list) reads the answer.
    ///
    /// # Errors
    /// [`IoError`] for an impossible key or length.
    pub fn list(namespace: u32, from: Option<&[u8]>, into: Buffer) -> Result<Self, IoError> {
        let from = from.map(inline).transpose()?;
        let entry = kv::list(namespace, from, length_of(&into)?);
        Ok(Self { entry, data: Data::FromDevice(into) })
    }

    /// Make everything durable that the namespace acknowledged before.
    #[must_use]
    pub fn flush(namespace: u32) -> Self {
        Self { entry: kv::flush(namespace), data: Data::None }
    }

    /// Read whole blocks from `lba` on, as many as fill `into`.
    ///
    /// # Errors
    /// [`IoError`] when the buffer is no whole number of blocks, or too many.
    pub fn read(namespace: u32, lba: u64, block_bytes: u32, into: Buffer) -> Result<Self, IoError> {
        let blocks = blocks_in(&into, block_bytes)?;
        Ok(Self { entry: on_blocks(READ, namespace, lba, blocks, 0), data: Data::FromDevice(into) })
    }

    /// Write whole blocks from `lba` on, all that `from` holds.
    ///
    /// # Errors
    /// [`IoError`] when the buffer is no whole number of blocks, or too many.
    pub fn write(
        namespace: u32,
        lba: u64,
        block_bytes: u32,
        from: Buffer,
        durable: Durable,
    ) -> Result<Self, IoError> {
        let blocks = blocks_in(&from, block_bytes)?;
        let flags = match durable {
            Durable::AsPromised => 0,
            Durable::Now => FORCE_UNIT_ACCESS,
        };
        Ok(Self { entry: on_blocks(WRITE, namespace, lba, blocks, flags), data: Data::ToDevice(from) })
    }

    /// The buffer, whichever way its bytes go.
    #[must_use]
    #[inline]
    pub fn buffer(&self) -> Option<&Buffer> {
        match &self.data {
            Data::None => None,
            Data::ToDevice(buffer) | Data::FromDevice(buffer) => Some(buffer),
        }
    }
}

fn inline(key: &[u8]) -> Result<InlineKey, IoError> {
    InlineKey::new(key).ok_or(IoError::Key { bytes: key.len() })
}

/// A data pointer that says the length only.
fn length_of(buffer: &Buffer) -> Result<DataPointer, IoError> {
    let bytes = u32::try_from(buffer.bytes())
        .map_err(|_| IoError::Length { bytes: buffer.bytes(), most: u32::MAX as usize })?;
    Ok(DataPointer { address: 0, bytes })
}

fn blocks_in(buffer: &Buffer, block_bytes: u32) -> Result<u32, IoError> {
    let (bytes, block_bytes) = (buffer.bytes(), block_bytes as usize);
    if bytes == 0 || block_bytes == 0 || !bytes.is_multiple_of(block_bytes) {
        return Err(IoError::Blocks { bytes, block_bytes });
    }
    u32::try_from(bytes / block_bytes)
        .ok()
        .filter(|&blocks| blocks <= BLOCKS_MAX)
        .ok_or(IoError::Length { bytes, most: block_bytes * BLOCKS_MAX as usize })
}

fn on_blocks(opcode: u8, namespace: u32, lba: u64, blocks: u32, flags: u32) -> SubmissionEntry {
    let [low, high]: [U32; 2] = zerocopy::transmute!(zerocopy::little_endian::U64::new(lba));
    SubmissionEntry {
        opcode,
        namespace: U32::new(namespace),
        cdw10: low,
        cdw11: high,
        cdw12: U32::new(blocks.saturating_sub(1) | flags),
        ..SubmissionEntry::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_dma::iova::Iova;
    use headwater_host::foreign::Foreign;

    fn buffer(bytes: usize) -> Buffer {
        Buffer::whole(Foreign::anonymous(1 << 20).unwrap(), Iova(0)).slice(0, bytes).unwrap()
    }

    #[test]
    fn lengths_in_the_entry_are_those_of_the_buffer() {
        assert_eq!(Command::get(1, b"k", buffer(77)).unwrap().entry.kv_data_bytes(), 77);
        let write = Command::write(2, 0x1_2345_6789, 512, buffer(1_536), Durable::Now).unwrap().entry;
        assert_eq!((write.cdw10.get(), write.cdw11.get()), (0x2345_6789, 1));
        assert_eq!(write.cdw12.get(), 2 | FORCE_UNIT_ACCESS);
        assert_eq!(write.namespace.get(), 2);
        assert!(matches!(Command::read(1, 0, 512, buffer(100)), Err(IoError::Blocks { .. })));
        assert!(matches!(Command::read(1, 0, 512, buffer(0)), Err(IoError::Blocks { .. })));
    }

    #[test]
    fn keys_that_no_entry_carries_are_refused_with_their_length() {
        for key in [&b""[..], &[7; 17]] {
            assert!(matches!(Command::exist(1, key), Err(IoError::Key { bytes }) if bytes == key.len()));
        }
    }
}
