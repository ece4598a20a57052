//! A command: an NVMe entry, and a typed reference to the bytes it moves.
//!
//! Input: arguments of the application. Output: a [`Command`] without a data pointer; each backend writes its own.
//! Invariant: the lengths in the entry are those of the buffers.

use crate::buffer::Buffer;
use crate::error::IoError;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::kv::{self, DataPointer, InlineKey, StoreOptions};
use headwater_nvme::spec::nvm::{self, BlockOptions, BlockRange, DatasetRange};
use headwater_nvme::spec::opcode::DataTransfer;
use zerocopy::IntoBytes as _;
use zerocopy::little_endian::{U32, U64};

/// The most bytes of a value, and of a run of blocks that one blocking call moves in one command.
pub const TRANSFER_BYTES_MAX: usize = 16 << 20;
/// Bytes of the longest value of a device of Headwater, which one command moves over attach and in process.
pub const VALUE_BYTES_MAX: usize = 256 << 20;

/// The most ranges of one command.
pub const RANGES_MAX: usize = 256;
/// The most blocks of one command: the largest value of the zero-based 16 bits of CDW12.
pub const BLOCKS_MAX: u32 = 1 << 16;

/// The condition of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreCondition {
    /// No condition.
    #[default]
    Always,
    /// The key exists.
    IfExists,
    /// The key does not exist.
    IfAbsent,
}

/// The use of the device's memory for the pages of a value that a get reads from the medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ValueCaching {
    /// Pages of short values stay until their room is needed; those of long values leave with the get.
    #[default]
    ByLength,
    /// Pages of a long value stay too, for gets that follow.
    Keep,
}

/// The options of a get, all vendor specific: the namespace says if its device has them
/// ([`ClientNamespace::retrieve_options`](crate::ClientNamespace)). The default is a get without options, which every device
/// has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GetOptions {
    /// The first byte of the value to read.
    pub offset: u32,
    /// The use of the device's memory.
    pub caching: ValueCaching,
}

/// The durability of a write against a power cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteDurability {
    /// Durable as the namespace guarantees.
    #[default]
    NamespaceDefault,
    /// Durable before the write completes.
    Immediate,
}

impl WriteDurability {
    /// Returns the corresponding write option.
    pub(crate) const fn options(self) -> BlockOptions {
        match self {
            Self::NamespaceDefault => BlockOptions::NONE,
            Self::Immediate => BlockOptions::FORCE_UNIT_ACCESS,
        }
    }
}

/// The bytes that a command moves.
#[derive(Clone, Debug, Default)]
pub enum TransferData {
    /// No bytes.
    #[default]
    None,
    /// Bytes from this buffer to the device.
    ToDevice(Buffer),
    /// Bytes from the device to this buffer.
    FromDevice(Buffer),
    /// Bytes from these buffers, in order, to the device.
    Gather(Vec<Buffer>),
    /// Bytes from the device to these buffers, in order.
    Scatter(Vec<Buffer>),
}

impl TransferData {
    /// Returns the buffers, in order.
    #[must_use]
    #[inline]
    pub fn buffers(&self) -> &[Buffer] {
        match self {
            Self::None => &[],
            Self::ToDevice(buffer) | Self::FromDevice(buffer) => std::slice::from_ref(buffer),
            Self::Gather(buffers) | Self::Scatter(buffers) => buffers,
        }
    }

    /// Returns the total length of the buffers, in bytes.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> usize {
        self.buffers().iter().map(Buffer::bytes).sum()
    }

    /// Returns the direction, as an opcode states it.
    #[inline]
    pub(crate) fn direction(&self) -> DataTransfer {
        match self {
            Self::None => DataTransfer::None,
            Self::ToDevice(_) | Self::Gather(_) => DataTransfer::HostToController,
            Self::FromDevice(_) | Self::Scatter(_) => DataTransfer::ControllerToHost,
        }
    }

    /// Leaks the memory, so that it is never reused: a device may still write to it.
    pub fn leak(self) {
        match self {
            Self::None => {}
            Self::ToDevice(buffer) | Self::FromDevice(buffer) => buffer.leak(),
            Self::Gather(buffers) | Self::Scatter(buffers) => buffers.into_iter().for_each(Buffer::leak),
        }
    }
}

/// A command with its data.
#[derive(Clone, Debug)]
pub struct Command {
    /// The entry, with command id and data pointer still zero.
    pub entry: SubmissionEntry,
    /// The bytes it moves.
    pub data: TransferData,
}

impl Command {
    /// Builds a retrieve of a key's value to the start of `into`. The completion's result is the value's full length.
    ///
    /// # Errors
    /// [`IoError`] for an invalid key or length.
    pub fn get(namespace: u32, key: &[u8], into: Buffer) -> Result<Self, IoError> {
        let entry = kv::retrieve(namespace, inline(key)?, length_of(&into)?);
        Ok(Self { entry, data: TransferData::FromDevice(into) })
    }

    /// Builds a retrieve of a part of a key's value to the start of `into`: what follows the offset, as much as fits, and nothing
    /// from the end of the value on. The completion's result is the value's full length.
    ///
    /// # Errors
    /// [`IoError`] for an invalid key or length.
    pub fn get_part(namespace: u32, key: &[u8], into: Buffer, options: GetOptions) -> Result<Self, IoError> {
        let kept = match options.caching {
            ValueCaching::ByLength => StoreOptions::NONE,
            ValueCaching::Keep => StoreOptions::RETRIEVE_KEEP,
        };
        let part = (options.offset, kept);
        let entry = kv::retrieve_part(namespace, inline(key)?, length_of(&into)?, part);
        Ok(Self { entry, data: TransferData::FromDevice(into) })
    }

    /// Builds a store of a value under a key.
    ///
    /// # Errors
    /// [`IoError`] for an invalid key or length.
    pub fn put(
        namespace: u32,
        key: &[u8],
        value: Buffer,
        condition: StoreCondition,
    ) -> Result<Self, IoError> {
        let options = match condition {
            StoreCondition::Always => StoreOptions::NONE,
            StoreCondition::IfExists => StoreOptions::ONLY_IF_EXISTS,
            StoreCondition::IfAbsent => StoreOptions::ONLY_IF_ABSENT,
        };
        let entry = kv::store(namespace, inline(key)?, length_of(&value)?, options);
        Ok(Self { entry, data: TransferData::ToDevice(value) })
    }

    /// Builds a delete of a key.
    ///
    /// # Errors
    /// [`IoError::Key`].
    pub fn delete(namespace: u32, key: &[u8]) -> Result<Self, IoError> {
        Ok(Self { entry: kv::delete(namespace, inline(key)?), data: TransferData::None })
    }

    /// Builds a test of a key's existence.
    ///
    /// # Errors
    /// [`IoError::Key`].
    pub fn exist(namespace: u32, key: &[u8]) -> Result<Self, IoError> {
        Ok(Self { entry: kv::exist(namespace, inline(key)?), data: TransferData::None })
    }

    /// Builds a list of keys in the device's order, from one key or from the first; [`key_list`](crate::key_list)
    /// decodes it.
    ///
    /// # Errors
    /// [`IoError`] for an invalid key or length.
    pub fn list(namespace: u32, from: Option<&[u8]>, into: Buffer) -> Result<Self, IoError> {
        let from = from.map(inline).transpose()?;
        let entry = kv::list(namespace, from, length_of(&into)?);
        Ok(Self { entry, data: TransferData::FromDevice(into) })
    }

    /// Builds a flush: everything that the namespace acknowledged before becomes durable.
    #[must_use]
    pub fn flush(namespace: u32) -> Self {
        Self { entry: kv::flush(namespace), data: TransferData::None }
    }

    /// Builds a read of whole blocks from `lba` on, as many as fill `into`.
    ///
    /// # Errors
    /// [`IoError`] when the buffer is not a whole number of blocks, or holds too many.
    pub fn read(namespace: u32, lba: u64, block_bytes: u32, into: Buffer) -> Result<Self, IoError> {
        let range = range_of(lba, into.bytes(), block_bytes)?;
        Ok(Self {
            entry: nvm::read(namespace, range, 0, BlockOptions::NONE),
            data: TransferData::FromDevice(into),
        })
    }

    /// Builds a write of whole blocks from `lba` on, all that `from` holds.
    ///
    /// # Errors
    /// [`IoError`] when the buffer is not a whole number of blocks, or holds too many.
    pub fn write(
        namespace: u32,
        lba: u64,
        block_bytes: u32,
        from: Buffer,
        durable: WriteDurability,
    ) -> Result<Self, IoError> {
        let range = range_of(lba, from.bytes(), block_bytes)?;
        Ok(Self {
            entry: nvm::write(namespace, range, 0, durable.options()),
            data: TransferData::ToDevice(from),
        })
    }

    /// Builds a read of whole blocks from `lba` on into several buffers in order.
    ///
    /// # Errors
    /// As for [`read`](Self::read), for the buffers together.
    pub fn read_scattered(
        namespace: u32,
        lba: u64,
        block_bytes: u32,
        into: Vec<Buffer>,
    ) -> Result<Self, IoError> {
        let data = match <[Buffer; 1]>::try_from(into) {
            Ok([only]) => TransferData::FromDevice(only),
            Err(several) => TransferData::Scatter(several),
        };
        let range = range_of(lba, data.bytes(), block_bytes)?;
        Ok(Self { entry: nvm::read(namespace, range, 0, BlockOptions::NONE), data })
    }

    /// Builds a write of whole blocks from `lba` on from several buffers in order.
    ///
    /// # Errors
    /// As for [`write`](Self::write), for the buffers together.
    pub fn write_gathered(
        namespace: u32,
        lba: u64,
        block_bytes: u32,
        from: Vec<Buffer>,
        durable: WriteDurability,
    ) -> Result<Self, IoError> {
        let data = match <[Buffer; 1]>::try_from(from) {
            Ok([only]) => TransferData::ToDevice(only),
            Err(several) => TransferData::Gather(several),
        };
        let range = range_of(lba, data.bytes(), block_bytes)?;
        Ok(Self { entry: nvm::write(namespace, range, 0, durable.options()), data })
    }

    /// Builds a comparison of blocks from `lba` on with the bytes of `with`; the status is
    /// [`COMPARE_FAILURE`](headwater_nvme::spec::status::Status::COMPARE_FAILURE) when a byte differs.
    ///
    /// # Errors
    /// [`IoError`] when the buffer is not a whole number of blocks, or holds too many.
    pub fn compare(namespace: u32, lba: u64, block_bytes: u32, with: Buffer) -> Result<Self, IoError> {
        let range = range_of(lba, with.bytes(), block_bytes)?;
        Ok(Self {
            entry: nvm::compare(namespace, range, 0, BlockOptions::NONE),
            data: TransferData::ToDevice(with),
        })
    }

    /// Builds a command that zeroes `blocks` blocks from `lba` on.
    ///
    /// # Errors
    /// [`IoError::BlocksOutOfRange`] for no blocks, or more than one command covers.
    pub fn write_zeroes(
        namespace: u32,
        lba: u64,
        blocks: u32,
        durable: WriteDurability,
    ) -> Result<Self, IoError> {
        if blocks == 0 || blocks > BLOCKS_MAX {
            return Err(IoError::BlocksOutOfRange {
                first: lba,
                blocks: blocks.into(),
                size: BLOCKS_MAX.into(),
            });
        }
        let range = BlockRange { start: lba, blocks };
        Ok(Self { entry: nvm::write_zeroes(namespace, range, durable.options()), data: TransferData::None })
    }

    /// Builds a Dataset Management command that deallocates runs of blocks. `ranges` are first block and count; they
    /// are written to the start of `list`, 16 bytes each, which the command keeps.
    ///
    /// # Errors
    /// [`IoError::TransferTooLong`] for no ranges, more than 256, or more than the list has room for.
    pub fn discard(namespace: u32, ranges: &[(u64, u32)], list: &Buffer) -> Result<Self, IoError> {
        let bytes = ranges.len() * size_of::<DatasetRange>();
        if ranges.is_empty() || ranges.len() > RANGES_MAX {
            return Err(IoError::TransferTooLong { bytes, max: RANGES_MAX * size_of::<DatasetRange>() });
        }
        let list = list.slice(0, bytes)?;
        let named = |&(first, blocks): &(u64, u32)| DatasetRange {
            blocks: U32::new(blocks),
            start: U64::new(first),
            ..DatasetRange::default()
        };
        let ranges: Vec<DatasetRange> = ranges.iter().map(named).collect();
        list.write(0, ranges.as_bytes())?;
        Ok(Self { entry: nvm::deallocate(namespace, length_of(&list)?), data: TransferData::ToDevice(list) })
    }

    /// Returns the command's first buffer, for either direction.
    #[must_use]
    #[inline]
    pub fn buffer(&self) -> Option<&Buffer> {
        self.data.buffers().first()
    }
}

fn inline(key: &[u8]) -> Result<InlineKey, IoError> {
    InlineKey::new(key).ok_or(IoError::Key { bytes: key.len() })
}

/// Returns a data pointer that holds only the length.
fn length_of(buffer: &Buffer) -> Result<DataPointer, IoError> {
    let bytes = u32::try_from(buffer.bytes())
        .map_err(|_| IoError::TransferTooLong { bytes: buffer.bytes(), max: u32::MAX as usize })?;
    Ok(DataPointer { address: 0, bytes })
}

/// Returns the range of blocks from `lba` on that these bytes fill.
fn range_of(lba: u64, bytes: usize, block_bytes: u32) -> Result<BlockRange, IoError> {
    let block_bytes = block_bytes as usize;
    if bytes == 0 || block_bytes == 0 || !bytes.is_multiple_of(block_bytes) {
        return Err(IoError::PartialBlocks { bytes, block_bytes });
    }
    let blocks = u32::try_from(bytes / block_bytes).ok().filter(|&blocks| blocks <= BLOCKS_MAX);
    let most = block_bytes * BLOCKS_MAX as usize;
    Ok(BlockRange { start: lba, blocks: blocks.ok_or(IoError::TransferTooLong { bytes, max: most })? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_dma::iova::Iova;
    use headwater_host::shared_memory::SharedMemory;

    fn buffer(bytes: usize) -> Buffer {
        Buffer::from_region(SharedMemory::anonymous(1 << 20).unwrap(), Iova(0)).slice(0, bytes).unwrap()
    }

    #[test]
    fn entry_lengths_equal_the_buffer_lengths() {
        let get = Command::get(1, b"k", buffer(77)).unwrap().entry;
        assert_eq!(get.kv_data_bytes(), 77);
        let whole = Command::get_part(1, b"k", buffer(77), GetOptions::default()).unwrap().entry;
        assert_eq!(whole, get, "a get without options is not the command of every device");
        let options = GetOptions { offset: 5, caching: ValueCaching::Keep };
        let part = Command::get_part(1, b"k", buffer(77), options).unwrap().entry;
        assert_eq!((part.cdw11.get(), part.cdw12.get(), part.kv_data_bytes()), (0xC001, 5, 77));
        let write =
            Command::write(2, 0x1_2345_6789, 512, buffer(1_536), WriteDurability::Immediate).unwrap().entry;
        assert_eq!((write.cdw10.get(), write.cdw11.get()), (0x2345_6789, 1));
        assert_eq!(write.cdw12.get(), 2 | 1 << 30);
        assert_eq!(write.namespace.get(), 2);
        assert!(matches!(Command::read(1, 0, 512, buffer(100)), Err(IoError::PartialBlocks { .. })));
        assert!(matches!(Command::read(1, 0, 512, buffer(0)), Err(IoError::PartialBlocks { .. })));
        let several = vec![buffer(512), buffer(1_024)];
        let read = Command::read_scattered(1, 7, 512, several).unwrap();
        assert_eq!((read.entry.cdw12.get(), read.data.bytes()), (2, 1_536));
    }

    #[test]
    fn discard_lists_its_ranges_and_write_zeroes_has_no_data() {
        let list = buffer(4_096);
        let discard = Command::discard(3, &[(8, 2), (1 << 33, 7)], &list).unwrap();
        assert_eq!((discard.entry.opcode, discard.entry.cdw10.get(), discard.entry.cdw11.get()), (9, 1, 4));
        let mut ranges = [0; 32];
        discard.buffer().unwrap().read(0, &mut ranges).unwrap();
        assert_eq!(ranges[..16], [0, 0, 0, 0, 2, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ranges[16..], [0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
        assert!(Command::discard(3, &[], &list).is_err());
        assert!(Command::discard(3, &[(0, 1); 257], &list).is_err());
        assert!(Command::discard(3, &[(0, 1); 2], &list.slice(0, 16).unwrap()).is_err());
        let zeroes = Command::write_zeroes(1, 5, 1 << 16, WriteDurability::Immediate).unwrap().entry;
        assert_eq!((zeroes.opcode, zeroes.cdw12.get()), (8, 0xFFFF | 1 << 30));
        assert!(Command::write_zeroes(1, 5, 0, WriteDurability::Immediate).is_err());
    }

    #[test]
    fn keys_too_long_or_empty_are_refused_with_their_length() {
        for key in [&b""[..], &[7; 17]] {
            assert!(matches!(Command::exist(1, key), Err(IoError::Key { bytes }) if bytes == key.len()));
        }
    }
}
