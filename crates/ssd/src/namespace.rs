//! Namespaces: type of data, size, durability and rate limits of each.
//!
//! Input: a [`NamespaceChange`] from an administrator. Output: the [`Namespace`] behind a number, for front ends that
//! decode commands, for Identify and for the limits. Invariant: the visible table is durable; a namespace number keeps
//! its meaning from its creation to its deletion.
//!
//! Numbers go from 1 to [`NAMESPACES`](crate::limits::NAMESPACES). A namespace that was not created is *implicit*: a
//! key space without limits that RESP databases may use and that NVMe hosts see as soon as it holds a key (number 1:
//! always). Creation takes the lowest implicit number without keys from 2 on. A setting turns an implicit namespace
//! into a created one.

pub(crate) mod attachment;
pub(crate) mod rate_limiter;
pub mod sanitize;

use crate::config::Durability;
use sanitize::SanitizeMark;

/// The type of data that a namespace holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceKind {
    /// Keys and values (command set identifier 01h).
    Kv,
    /// Logical blocks of this format (command set identifier 00h).
    Block(BlockFormat),
}

/// Size of a logical block. The position of a variant is the LBA format number of Identify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockFormat {
    /// 512 bytes, format 0.
    B512,
    /// 4,096 bytes, format 1.
    B4096,
}

impl BlockFormat {
    /// Every format, indexed by its number.
    pub const ALL: [Self; 2] = [Self::B512, Self::B4096];

    /// Returns the bytes of a block.
    #[must_use]
    #[inline]
    pub const fn bytes(self) -> usize {
        1 << self.shift()
    }

    /// Returns the block size as a power of two (LBADS).
    #[must_use]
    #[inline]
    pub const fn shift(self) -> u32 {
        match self {
            Self::B512 => 9,
            Self::B4096 => 12,
        }
    }
}

/// The status of a delete of a missing key: bit EDNEK of the namespace (KV 1.0d section 4.1.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingKey {
    /// Success.
    #[default]
    Ignored,
    /// [`Status::KEY_DOES_NOT_EXIST`](headwater_nvme::spec::status::Status::KEY_DOES_NOT_EXIST).
    Reported,
}

/// Rate limits of a namespace; 0 means unlimited. The device enforces them for all front ends together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceLimits {
    /// Commands a second.
    pub iops: u32,
    /// Bytes of data a second.
    pub bytes_per_second: u64,
    /// Commands that may start at once after a pause, at least one. The burst in bytes is this number times the mean
    /// bytes of a command: `bytes_per_second` by `iops`, or 4,096 if commands are not limited.
    pub burst: u32,
}

/// The properties of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// The type of its data.
    pub kind: NamespaceKind,
    /// Block: its size in blocks. KV: the most bytes its records may take, 0 for no quota.
    pub size: u64,
    /// Its durability; `None` takes the one that the node is configured with.
    pub durability: Option<Durability>,
    /// Its rate limits.
    pub limits: NamespaceLimits,
    /// Its globally unique identifier (NGUID and UUID).
    pub uuid: [u8; 16],
    /// The status of a delete of a missing key.
    pub missing_key: MissingKey,
}

impl Namespace {
    /// A key space that was not created.
    pub const IMPLICIT: Self = Self {
        kind: NamespaceKind::Kv,
        size: 0,
        durability: None,
        limits: NamespaceLimits { iops: 0, bytes_per_second: 0, burst: 0 },
        uuid: [0; 16],
        missing_key: MissingKey::Ignored,
    };
}

/// A change of the namespace table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamespaceChange {
    /// Creates a namespace that is attached to every controller.
    Create(Namespace),
    /// Creates a namespace that is attached to no controller, as NVMe hosts do.
    CreateDetached(Namespace),
    /// Deletes the namespace with its contents.
    Delete,
    /// Changes its size or quota. Shrinking a block namespace removes the blocks behind the new end, which must be no
    /// more than one batch has writes ([`BATCH_WRITES_MAX`](crate::limits::BATCH_WRITES_MAX)): deallocate the rest
    /// first.
    Resize(u64),
    /// Removes its contents and gives it this kind. Its size in bytes stays the same.
    Format(NamespaceKind),
    /// Changes its durability.
    Durability(Option<Durability>),
    /// Changes its rate limits.
    Limits(NamespaceLimits),
    /// Changes the status of a delete of a missing key.
    MissingKey(MissingKey),
    /// Attaches it to these controllers.
    Attach(Vec<u16>),
    /// Detaches it from these controllers.
    Detach(Vec<u16>),
    /// Detaches it from every controller, including future ones.
    DetachAll,
    /// Records that a sanitize operation of the whole device began or ended; the namespace of the command is ignored.
    Sanitize(SanitizeMark),
}
