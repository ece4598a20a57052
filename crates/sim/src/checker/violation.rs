//! The violations of promises that the checker reports.
//!
//! A violation names the promise, the namespace and the number of the key (keys of a simulation are numbered; bytes are
//! not printed). The caller that reports it adds the seed.

use headwater_nvme::spec::status::Status;
use headwater_ssd::command::NamespaceId;

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PromiseViolation {
    /// A completion for a token that was not in flight: a second one, or one for a refused command.
    #[error("completion for token {token}, which is not in flight: exactly one completion a command")]
    UnexpectedCompletion {
        /// The token.
        token: u64,
    },
    /// Commands that were accepted and never completed.
    #[error("{count} accepted commands were never completed, first token {first}")]
    NeverCompleted {
        /// The number of commands.
        count: usize,
        /// The token of the oldest one.
        first: u64,
    },
    /// An error for a key that was written after the last fault of its medium.
    #[error("{namespace} key {key}: {status}, although it was written since the medium is honest again")]
    SettledKeyFailed {
        /// Key space.
        namespace: NamespaceId,
        /// Number of the key.
        key: usize,
        /// The error.
        status: Status,
    },
    /// More commands in flight than the limit.
    #[error("{in_flight} commands in flight, the limit is {limit}")]
    TooManyInFlight {
        /// Commands accepted and not completed.
        in_flight: usize,
        /// The limit.
        limit: usize,
    },
    /// A write that must exist does not, and nothing newer replaces it.
    #[error("{namespace} key {key}: {found}, but {expected}: a promised write was lost")]
    Lost {
        /// Key space.
        namespace: NamespaceId,
        /// Number of the key.
        key: usize,
        /// The state found.
        found: String,
        /// The states allowed.
        expected: String,
    },
    /// The state found existed once, but a newer one must have replaced it.
    #[error("{namespace} key {key}: {found}, but {expected}: an older state came back")]
    CameBack {
        /// Key space.
        namespace: NamespaceId,
        /// Number of the key.
        key: usize,
        /// The state found.
        found: String,
        /// The states allowed.
        expected: String,
    },
    /// The value found was never written under this key.
    #[error("{namespace} key {key}: {found}, which was never written; {expected}")]
    NeverWritten {
        /// Key space.
        namespace: NamespaceId,
        /// Number of the key.
        key: usize,
        /// The state found.
        found: String,
        /// The states allowed.
        expected: String,
    },
    /// Part of a batch exists and part does not.
    #[error(
        "{namespace}: batch {batch} exists under key {present} and not under key {missing}: all or nothing"
    )]
    TornBatch {
        /// Key space.
        namespace: NamespaceId,
        /// Number of the batch.
        batch: u64,
        /// A key that contains it.
        present: usize,
        /// A key that lacks it.
        missing: usize,
    },
    /// A condition was evaluated in a way that no possible state of the key allows.
    #[error("{namespace} key {key}: status {status:?}, but {expected}: the condition was misjudged")]
    ConditionMisjudged {
        /// Key space.
        namespace: NamespaceId,
        /// Number of the key.
        key: usize,
        /// The status.
        status: Status,
        /// The states that the key may have.
        expected: String,
    },
    /// A write conditional on the record that it replaces succeeded although another write came between.
    #[error(
        "{namespace} key {key}: write {own} replaced sequence {base} by condition, but {between} came between"
    )]
    LostUpdate {
        /// Key space.
        namespace: NamespaceId,
        /// Number of the key.
        key: usize,
        /// The sequence that the condition named.
        base: u64,
        /// The sequence of the write.
        own: u64,
        /// The sequence in between.
        between: u64,
    },
    /// A write was refused because the medium is full, although little of it can be in use.
    #[error(
        "{namespace}: refused {wanted} bytes as too many with at most {in_use} bytes in use and room for {room}"
    )]
    RefusedWithRoom {
        /// Key space.
        namespace: NamespaceId,
        /// Bytes of the records of the write.
        wanted: u64,
        /// Bytes of all records that can exist.
        in_use: u64,
        /// Bytes of records that the device has room for.
        room: u64,
    },
    /// A status that a healthy device has no reason to return.
    #[error("token {token} completed with {status:?}, which nothing in this run explains")]
    UnexpectedStatus {
        /// The token.
        token: u64,
        /// The status.
        status: Status,
    },
    /// A write received a sequence not above one that was acknowledged before its submission.
    #[error("token {token} got sequence {sequence}, not above {before}, acknowledged before its submission")]
    SequenceWentBack {
        /// The token.
        token: u64,
        /// Its sequence.
        sequence: u64,
        /// The sequence before.
        before: u64,
    },
    /// A listing names a key that cannot exist, names one twice, or omits one that must exist.
    #[error("{namespace} listing: {error} (key {key})")]
    Listing {
        /// Key space.
        namespace: NamespaceId,
        /// Number of the key, or `usize::MAX` for one that was never used.
        key: usize,
        /// The error in the listing.
        error: &'static str,
    },
}
