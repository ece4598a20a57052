//! The ways in which a device can break its word.
//!
//! A violation names the promise, the namespace and the number of the key (keys of a simulation are numbered; bytes are
//! not shown). Whoever reports it adds the seed.

use headwater_converged::command::NamespaceId;
use headwater_nvme::spec::status::Status;

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A completion for a token that was not in flight: a second one, or one for a refused command.
    #[error("completion for token {token}, which is not in flight: exactly one completion a command")]
    UnaskedCompletion {
        /// The token.
        token: u64,
    },
    /// Commands that were accepted and never completed.
    #[error("{count} accepted commands were never completed, first token {first}")]
    NeverCompleted {
        /// How many.
        count: usize,
        /// The oldest one's token.
        first: u64,
    },
    /// More commands in flight than the limit.
    #[error("{in_flight} commands in flight, the limit is {limit}")]
    OverBound {
        /// Commands accepted and not completed.
        in_flight: usize,
        /// The limit.
        limit: usize,
    },
    /// A write that had to be there is not, and nothing newer replaces it.
    #[error("{namespace} key {key}: {saw}, but {expected}: something promised was lost")]
    Lost {
        /// Key space.
        namespace: NamespaceId,
        /// Number of the key.
        key: usize,
        /// What was found.
        saw: String,
        /// What would have been allowed.
        expected: String,
    },
    /// What was found was there once, but something newer had to replace it.
    #[error("{namespace} key {key}: {saw}, but {expected}: an older state came back")]
    CameBack {
        /// Key space.
        namespace: NamespaceId,
        /// Number of the key.
        key: usize,
        /// What was found.
        saw: String,
        /// What would have been allowed.
        expected: String,
    },
    /// What was found was never written under this key.
    #[error("{namespace} key {key}: {saw}, which was never written; {expected}")]
    NeverWritten {
        /// Key space.
        namespace: NamespaceId,
        /// Number of the key.
        key: usize,
        /// What was found.
        saw: String,
        /// What would have been allowed.
        expected: String,
    },
    /// Part of a batch is there and part is not.
    #[error(
        "{namespace}: batch {batch} is there under key {present} and not under key {missing}: all or nothing"
    )]
    TornBatch {
        /// Key space.
        namespace: NamespaceId,
        /// Number of the batch.
        batch: u64,
        /// A key that shows it.
        present: usize,
        /// A key that does not.
        missing: usize,
    },
    /// A condition was judged in a way that no state of the key allows.
    #[error("{namespace} key {key}: answered {status:?}, but {expected}: the condition was misjudged")]
    ConditionMisjudged {
        /// Key space.
        namespace: NamespaceId,
        /// Number of the key.
        key: usize,
        /// The answer.
        status: Status,
        /// The states the key may have.
        expected: String,
    },
    /// A write that named the record it replaces succeeded though another write lay between.
    #[error(
        "{namespace} key {key}: write {own} replaced sequence {base} by condition, but {between} lies between"
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
    /// A status that a healthy device has no reason to give.
    #[error("token {token} answered {status:?}, which nothing in this run explains")]
    UnexpectedStatus {
        /// The token.
        token: u64,
        /// The answer.
        status: Status,
    },
    /// A write got a sequence that is not above one that was acknowledged before it was asked.
    #[error(
        "token {token} got sequence {sequence}, not above {before}, which was acknowledged before it was asked"
    )]
    SequenceWentBack {
        /// The token.
        token: u64,
        /// Its sequence.
        sequence: u64,
        /// The sequence before.
        before: u64,
    },
    /// A listing names a key that cannot be there, names one twice, or leaves out one that must be there.
    #[error("{namespace} listing: {what} (key {key})")]
    Listing {
        /// Key space.
        namespace: NamespaceId,
        /// Number of the key, or `usize::MAX` for one that was never used.
        key: usize,
        /// What is wrong.
        what: &'static str,
    },
}
