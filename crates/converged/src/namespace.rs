//! Namespaces: what each one is, how large it may become, what it promises, and how fast it may be used.
//!
//! In: a [`NamespaceChange`] from whoever administers the device. Out: a [`Namespace`] for everybody who must know what a
//! number means: faces that decode commands, Identify, the limits. Invariant: the table that is shown is durable; a
//! namespace number means one thing from its creation to its deletion.
//!
//! Numbers go from 1 to [`NAMESPACES`](crate::limits::NAMESPACES). One that nobody made is *implicit*: a key space
//! without limits that RESP databases may use and NVMe hosts see as soon as it holds a key (number 1: always). Creation
//! takes the lowest implicit number without keys from 2 on, and a setting makes an implicit namespace one that was made.

pub(crate) mod attachment;
pub(crate) mod bucket;
pub mod sanitize_mark;
pub(crate) mod table;

use crate::device::Durability;
use sanitize_mark::SanitizeMark;

/// What kind of data a namespace holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceKind {
    /// Keys and values (command set identifier 01h).
    Kv,
    /// Logical blocks of this format (command set identifier 00h).
    Block(BlockFormat),
}

/// Bytes of a logical block. The LBA format number of Identify is its place here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockFormat {
    /// 512 bytes, format 0.
    B512,
    /// 4,096 bytes, format 1.
    B4096,
}

impl BlockFormat {
    /// Every format, by its number.
    pub const ALL: [Self; 2] = [Self::B512, Self::B4096];

    /// Bytes of a block.
    #[must_use]
    #[inline]
    pub const fn bytes(self) -> usize {
        1 << self.shift()
    }

    /// The power of two (LBADS).
    #[must_use]
    #[inline]
    pub const fn shift(self) -> u32 {
        match self {
            Self::B512 => 9,
            Self::B4096 => 12,
        }
    }
}

/// What a delete of a key that is not there is answered with: bit EDNEK of the namespace (KV 1.0d section 4.1.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingKey {
    /// Success.
    #[default]
    Ignored,
    /// [`Status::KEY_DOES_NOT_EXIST`](headwater_nvme::spec::status::Status::KEY_DOES_NOT_EXIST).
    Told,
}

/// How fast a namespace may be used; 0 means without limit. Enforced in the device, for all faces together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceLimits {
    /// Commands a second.
    pub iops: u32,
    /// Bytes of data a second.
    pub bytes_per_second: u64,
    /// Commands that may come at once after a pause, at least one; and as many times the mean command's bytes, which is
    /// `bytes_per_second` by `iops`, or 4,096 where commands are not limited.
    pub burst: u32,
}

/// What a namespace is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// What it holds.
    pub kind: NamespaceKind,
    /// Block: its size in blocks. KV: the most bytes its records may take, 0 for no quota.
    pub size: u64,
    /// When an acknowledged write is safe; `None` takes what the node is configured with.
    pub durability: Option<Durability>,
    /// How fast it may be used.
    pub limits: NamespaceLimits,
    /// Its globally unique identifier (NGUID and UUID).
    pub uuid: [u8; 16],
    /// What deleting a key that is not there is answered with.
    pub missing_key: MissingKey,
}

impl Namespace {
    /// A key space that nobody made.
    pub const IMPLICIT: Self = Self {
        kind: NamespaceKind::Kv,
        size: 0,
        durability: None,
        limits: NamespaceLimits { iops: 0, bytes_per_second: 0, burst: 0 },
        uuid: [0; 16],
        missing_key: MissingKey::Ignored,
    };
}

/// A change of the table of namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamespaceChange {
    /// Make one that is attached to every controller.
    Create(Namespace),
    /// Make one that is attached to none, as NVMe hosts do.
    CreateDetached(Namespace),
    /// Remove it with everything it holds.
    Delete,
    /// Change its size or quota; shrinking a block namespace removes what lies behind, which must not be more blocks
    /// than one batch has writes ([`BATCH_WRITES_MAX`](crate::limits::BATCH_WRITES_MAX)): deallocate others first.
    Resize(u64),
    /// Remove everything it holds, and give it this kind. Its size in bytes stays what it was.
    Format(NamespaceKind),
    /// Change what it promises.
    Durability(Option<Durability>),
    /// Change how fast it may be used.
    Limits(NamespaceLimits),
    /// Change what deleting a missing key is answered with.
    MissingKey(MissingKey),
    /// Attach it to these controllers.
    Attach(Vec<u16>),
    /// Detach it from these controllers.
    Detach(Vec<u16>),
    /// Detach it from every controller, those to come included.
    DetachAll,
    /// A sanitize operation of the whole device began or ended; whatever namespace it is submitted with.
    Sanitize(SanitizeMark),
}
