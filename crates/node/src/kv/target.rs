//! Where the `kv` commands go: a live node over RESP, or the data directory of a stopped one.
//!
//! In: keys and records in batches. Out: one answer an item, as each arrives. Invariant: an item that was answered
//! "stored" was acknowledged by the device under its namespace's durability.

pub mod embedded;
pub mod live;

use crate::kv::resp_client::ClientError;

/// Bytes a batch of items may hold before it is sent.
pub const BATCH_BYTES: usize = 4 << 20;
/// Items a batch may hold before it is sent.
pub const BATCH_ITEMS: usize = 256;

/// A key, its value and when it ceases.
#[derive(Clone, PartialEq, Eq)]
pub struct Record {
    /// Key bytes.
    pub key: Vec<u8>,
    /// Value bytes.
    pub value: Vec<u8>,
    /// Wall time in milliseconds at which the record ceases, if it does.
    pub expiry_ms: Option<u64>,
}

impl std::fmt::Debug for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Record({} + {} bytes)", self.key.len(), self.value.len())
    }
}

/// What became of one record of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// Acknowledged.
    Acknowledged,
    /// Refused, with the reason; the batch goes on.
    Refused(String),
}

/// Why a target cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum KvError {
    /// The live node.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The local end of the operation: a file that cannot be written, an output that is closed.
    #[error(transparent)]
    Local(#[from] std::io::Error),
    /// The embedded device.
    #[error("{0}")]
    Device(String),
}

/// A place in a scan; [`Cursor::START`] begins one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor(pub u64);

impl Cursor {
    /// Before the first key.
    pub const START: Self = Self(0);
}

/// Hears what became of each record of a batch, by its index.
pub type OnStored<'a> = &'a mut dyn FnMut(usize, Stored) -> Result<(), KvError>;
/// Hears the value of each key of a batch, by its index; `None` is a key that is not there.
pub type OnFound<'a> = &'a mut dyn FnMut(usize, Option<Vec<u8>>) -> Result<(), KvError>;

/// A key-value store the command line can talk to. No key of a batch may come twice in it.
pub trait KvTarget {
    /// Stores records; `answer` hears of each in order, also of those acknowledged before a failure.
    ///
    /// # Errors
    /// When the target cannot go on; records not yet answered may or may not be stored.
    fn set(&mut self, records: &[Record], answer: OnStored<'_>) -> Result<(), KvError>;

    /// Reads values in order.
    ///
    /// # Errors
    /// When the target cannot go on.
    fn get(&mut self, keys: &[Vec<u8>], answer: OnFound<'_>) -> Result<(), KvError>;

    /// When each key ceases: wall time in milliseconds, or `None` for never or no such key.
    ///
    /// # Errors
    /// When the target cannot go on.
    fn expiry(&mut self, keys: &[Vec<u8>]) -> Result<Vec<Option<u64>>, KvError>;

    /// Removes keys and returns how many were there.
    ///
    /// # Errors
    /// When the target cannot go on.
    fn del(&mut self, keys: &[Vec<u8>]) -> Result<u64, KvError>;

    /// Which keys are there.
    ///
    /// # Errors
    /// When the target cannot go on.
    fn exists(&mut self, keys: &[Vec<u8>]) -> Result<Vec<bool>, KvError>;

    /// Some keys that match, and where to go on, or `None` at the end. Every key that is there from the first call to
    /// the last comes at least once.
    ///
    /// # Errors
    /// When the target cannot go on.
    fn scan(
        &mut self,
        from: Cursor,
        pattern: Option<&[u8]>,
    ) -> Result<(Vec<Vec<u8>>, Option<Cursor>), KvError>;

    /// How many keys there are, for a progress bar.
    ///
    /// # Errors
    /// When the target cannot go on.
    fn key_count(&mut self) -> Result<u64, KvError>;

    /// Ends: everything that was stored is durable whatever the namespace's mode.
    ///
    /// # Errors
    /// When the target cannot make it durable.
    fn close(&mut self) -> Result<(), KvError> {
        Ok(())
    }
}
