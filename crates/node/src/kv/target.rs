//! The targets of the `kv` commands: a live node over RESP, or the data directory of a stopped one.
//!
//! Input: keys and records in batches. Output: one result for each item. Invariant: the device has acknowledged every
//! item that is reported as stored, under the durability of its namespace.

pub mod embedded;
pub mod live;

use crate::kv::resp_client::ClientError;

/// Maximum bytes of a batch.
pub const BATCH_BYTES: usize = 4 << 20;
/// Maximum items of a batch.
pub const BATCH_ITEMS: usize = 256;

/// A key with its value and its time of expiry.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyValueRecord {
    /// Key bytes.
    pub key: Vec<u8>,
    /// Value bytes.
    pub value: Vec<u8>,
    /// Wall time in milliseconds at which the record expires, if it does.
    pub expiry_ms: Option<u64>,
}

impl std::fmt::Debug for KeyValueRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyValueRecord({} + {} bytes)", self.key.len(), self.value.len())
    }
}

/// The part of a value that a read returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvRange {
    /// Its first byte. There is nothing to read from the end of the value on.
    pub offset: u32,
    /// Its most bytes.
    pub bytes_max: u32,
}

/// The result of storing one record of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreResult {
    /// Acknowledged.
    Acknowledged,
    /// Refused, with the reason; the batch continues.
    Refused(String),
}

/// The error of a target that failed.
#[derive(Debug, thiserror::Error)]
pub enum KvError {
    /// The live node or the connection to it failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A local file or output could not be written.
    #[error(transparent)]
    Local(#[from] std::io::Error),
    /// The embedded device failed.
    #[error("{0}")]
    Device(String),
}

/// A position in a scan; a scan starts at [`ScanCursor::START`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanCursor(pub u64);

impl ScanCursor {
    /// The position before the first key.
    pub const START: Self = Self(0);
}

/// A callback that receives the result of each record of a batch, with its index.
pub type OnStored<'a> = &'a mut dyn FnMut(usize, StoreResult) -> Result<(), KvError>;
/// A callback that receives the value of each key of a batch, with its index; `None` for a key that does not exist.
pub type OnFound<'a> = &'a mut dyn FnMut(usize, Option<Vec<u8>>) -> Result<(), KvError>;

/// A key-value store that the command line reads and writes. No key may occur twice in a batch.
pub trait KvTarget {
    /// Stores records; `answer` receives the result of each in order, also of those acknowledged before a failure.
    ///
    /// # Errors
    /// When the target fails; records without a result may or may not be stored.
    fn set(&mut self, records: &[KeyValueRecord], answer: OnStored<'_>) -> Result<(), KvError>;

    /// Reads values in order.
    ///
    /// # Errors
    /// When the target fails.
    fn get(&mut self, keys: &[Vec<u8>], answer: OnFound<'_>) -> Result<(), KvError>;

    /// Reads a part of a value; `None` if the key does not exist.
    ///
    /// # Errors
    /// When the target fails.
    fn get_range(&mut self, key: &[u8], range: KvRange) -> Result<Option<Vec<u8>>, KvError>;

    /// Returns the wall time in milliseconds at which each key expires, or `None` for never or no such key.
    ///
    /// # Errors
    /// When the target fails.
    fn expiry(&mut self, keys: &[Vec<u8>]) -> Result<Vec<Option<u64>>, KvError>;

    /// Deletes keys and returns the number of those that existed.
    ///
    /// # Errors
    /// When the target fails.
    fn del(&mut self, keys: &[Vec<u8>]) -> Result<u64, KvError>;

    /// Returns for each key whether it exists.
    ///
    /// # Errors
    /// When the target fails.
    fn exists(&mut self, keys: &[Vec<u8>]) -> Result<Vec<bool>, KvError>;

    /// Returns some keys that match, and the next position, or `None` at the end. A key that exists from the first call
    /// to the last is returned at least once.
    ///
    /// # Errors
    /// When the target fails.
    fn scan(
        &mut self,
        from: ScanCursor,
        pattern: Option<&[u8]>,
    ) -> Result<(Vec<Vec<u8>>, Option<ScanCursor>), KvError>;

    /// Returns the number of keys, for a progress bar.
    ///
    /// # Errors
    /// When the target fails.
    fn key_count(&mut self) -> Result<u64, KvError>;

    /// Closes the target. An embedded device makes all records durable; a live node keeps the mode of the namespace.
    ///
    /// # Errors
    /// When the target cannot make it durable.
    fn close(&mut self) -> Result<(), KvError> {
        Ok(())
    }
}
