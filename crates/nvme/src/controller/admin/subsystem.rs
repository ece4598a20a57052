//! What a controller must know about the subsystem it belongs to.
//!
//! In: a device that others own. Out: facts, at the moment they are asked for. The controller keeps none of them but a
//! generation, so that nothing here can go stale.

use crate::spec::identify::CommandSet;
use crate::spec::log_page::{AnaState, MediaLog};

/// Who the subsystem is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// SN, ASCII, filled with spaces.
    pub serial: [u8; 20],
    /// MN, ASCII, filled with spaces.
    pub model: [u8; 40],
    /// FR, ASCII, filled with spaces.
    pub firmware: [u8; 8],
    /// SUBNQN, at most 223 bytes.
    pub subsystem_name: String,
    /// Tells the subsystem from others whatever it is called (FGUID).
    pub uuid: [u8; 16],
}

/// What a namespace is formatted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceFormat {
    /// Logical blocks; the index of [`LBA_FORMAT_SHIFTS`](crate::spec::identify::LBA_FORMAT_SHIFTS).
    Block {
        /// LBA format.
        index: u8,
    },
    /// Keys and values, KV format 0.
    KeyValue,
}

impl NamespaceFormat {
    /// Which commands it takes.
    #[must_use]
    pub const fn command_set(self) -> CommandSet {
        match self {
            Self::Block { .. } => CommandSet::Nvm,
            Self::KeyValue => CommandSet::KeyValue,
        }
    }
}

/// What a namespace is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceFacts {
    /// How it is formatted.
    pub format: NamespaceFormat,
    /// NSZE: blocks of its format, or bytes of a key space.
    pub size: u64,
    /// NUSE, in the same unit, at most `size`.
    pub utilization: u64,
    /// NGUID and UUID.
    pub uuid: [u8; 16],
    /// EDNEK: whether deleting a missing key is an error.
    pub missing_key_is_error: bool,
}

/// How much one command may ask for, beside its transfer size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandLimits {
    /// Longest value.
    pub value_bytes_max: u32,
    /// MSSRL: blocks of one source range of a Copy.
    pub copy_range_blocks_max: u16,
    /// MCL: blocks of a Copy.
    pub copy_blocks_max: u32,
    /// MSRC plus one: source ranges of a Copy, 1 to 256.
    pub copy_ranges_max: u16,
}

/// How much room there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Bytes that namespaces may hold together.
    pub total_bytes: u64,
    /// Bytes of them that no namespace was promised.
    pub unallocated_bytes: u64,
}

/// How the device does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Free blocks ran out but for the reserve.
    pub spare_is_low: bool,
    /// The medium failed: nothing is written any more.
    pub is_read_only: bool,
    /// Percent of spare blocks left.
    pub available_spare: u8,
    /// Bytes that hosts read.
    pub host_bytes_read: u64,
    /// Bytes that hosts wrote.
    pub host_bytes_written: u64,
    /// Commands that read.
    pub host_reads: u64,
    /// Commands that wrote.
    pub host_writes: u64,
    /// Records whose checksum did not match.
    pub media_errors: u64,
    /// Hours since the device was opened.
    pub power_on_hours: u64,
}

/// How far the last sanitize operation is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SanitizeState {
    /// There was none.
    #[default]
    Never,
    /// It goes on; so many of 65,536 parts are done.
    Running(u16),
    /// It completed.
    Completed,
    /// It failed, and only another one, or leaving the failure, is allowed.
    Failed,
}

/// The last sanitize operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SanitizeFacts {
    /// How far it is.
    pub state: SanitizeState,
    /// Dword 10 of the command that began it.
    pub command: u32,
    /// Whether anything was written since it completed.
    pub written_since: bool,
}

/// The subsystem, as one of its controllers sees it.
pub trait Subsystem {
    /// Who it is.
    fn identity(&self) -> &Identity;

    /// NN: the highest number that a namespace can have.
    fn namespaces_max(&self) -> u32;

    /// An allocated namespace.
    fn namespace(&self, nsid: u32) -> Option<NamespaceFacts>;

    /// Whether a namespace is attached to a controller.
    fn is_attached(&self, nsid: u32, controller: u16) -> bool;

    /// The controllers, in ascending order.
    fn controllers(&self) -> Vec<u16>;

    /// Grows whenever [`namespace`](Self::namespace) (but for utilization), [`is_attached`](Self::is_attached),
    /// [`ana_state`](Self::ana_state) or [`sanitize`](Self::sanitize) would answer differently.
    fn generation(&self) -> u64;

    /// How much commands may ask for.
    fn limits(&self) -> CommandLimits;

    /// How much room there is.
    fn capacity(&self) -> Capacity;

    /// How the device does.
    fn health(&self) -> Health;

    /// Whether some namespace acknowledges writes before they are durable.
    fn has_write_cache(&self) -> bool;

    /// The last sanitize operation.
    fn sanitize(&self) -> SanitizeFacts;

    /// What the medium was asked to do.
    fn media(&self) -> MediaLog;

    /// How well this path reaches the namespaces, all of one group.
    fn ana_state(&self) -> AnaState {
        AnaState::Optimized
    }

    /// The discovery log page, which discovery controllers only are asked for.
    fn discovery_log(&self) -> Vec<u8> {
        Vec::new()
    }
}
