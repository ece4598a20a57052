//! The interface from a controller to its NVM subsystem.
//!
//! Input: a device that another component owns. Output: its current properties. The controller stores only a generation
//! number and the namespaces that it last compared, to detect changes.

use crate::spec::identify::CommandSet;
use crate::spec::log_page::{AnaState, MediaLog};

/// The identification of a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubsystemIdentity {
    /// SN, ASCII, filled with spaces.
    pub serial: [u8; 20],
    /// MN, ASCII, filled with spaces.
    pub model: [u8; 40],
    /// FR, ASCII, filled with spaces.
    pub firmware: [u8; 8],
    /// SUBNQN, at most 223 bytes.
    pub subsystem_name: String,
    /// A unique id that does not depend on the name (FGUID).
    pub uuid: [u8; 16],
}

/// The format of a namespace.
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
    /// Returns the command set of the namespace.
    #[must_use]
    pub const fn command_set(self) -> CommandSet {
        match self {
            Self::Block { .. } => CommandSet::Nvm,
            Self::KeyValue => CommandSet::KeyValue,
        }
    }
}

/// The properties of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceProperties {
    /// Its format.
    pub format: NamespaceFormat,
    /// NSZE: blocks of its format, or bytes of a key space.
    pub size: u64,
    /// NUSE, in the same unit, at most `size`.
    pub utilization: u64,
    /// NGUID and UUID.
    pub uuid: [u8; 16],
    /// EDNEK: true if deleting a missing key is an error.
    pub missing_key_is_error: bool,
}

/// Limits of one command, beside its transfer size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandLimits {
    /// The maximum bytes of a value.
    pub value_bytes_max: u32,
    /// MSSRL: blocks of one source range of a Copy.
    pub copy_range_blocks_max: u16,
    /// MCL: blocks of a Copy.
    pub copy_blocks_max: u32,
    /// MSRC plus one: source ranges of a Copy, 1 to 256.
    pub copy_ranges_max: u16,
}

/// The capacity of a subsystem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubsystemCapacity {
    /// Total bytes available to namespaces.
    pub total_bytes: u64,
    /// Bytes that no namespace has allocated.
    pub unallocated_bytes: u64,
}

/// Health counters and warnings of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubsystemHealth {
    /// True if free blocks are used up except for the reserve.
    pub spare_is_low: bool,
    /// True if the medium failed and accepts no more writes.
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
    /// Openings of the medium.
    pub power_cycles: u64,
    /// Openings of the medium that the one before did not close.
    pub unsafe_shutdowns: u64,
    /// Hours for which the medium was open.
    pub power_on_hours: u64,
}

/// The progress of the last sanitize operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SanitizeState {
    /// No sanitize was ever requested.
    #[default]
    Never,
    /// In progress; the value is the completed part of 65,536.
    Running(u16),
    /// Completed.
    Completed,
    /// Failed: only another sanitize, or Exit Failure Mode, is allowed.
    Failed,
}

/// The last sanitize operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SanitizeStatus {
    /// Its progress.
    pub state: SanitizeState,
    /// Dword 10 of the command that started it.
    pub command: u32,
    /// True if data was written since it completed.
    pub written_since: bool,
    /// Operations that controllers have started since the device was opened.
    pub started: u64,
}

/// The NVM subsystem as one of its controllers sees it.
pub trait NvmSubsystem {
    /// Returns the identification.
    fn identity(&self) -> &SubsystemIdentity;

    /// Returns NN, the largest valid NSID.
    fn namespaces_max(&self) -> u32;

    /// Returns an allocated namespace.
    fn namespace(&self, nsid: u32) -> Option<NamespaceProperties>;

    /// Returns true if a namespace is attached to a controller.
    fn is_attached(&self, nsid: u32, controller: u16) -> bool;

    /// Returns the controller ids, in ascending order.
    fn controllers(&self) -> Vec<u16>;

    /// Returns a number that grows whenever [`namespace`](Self::namespace) (except for utilization),
    /// [`is_attached`](Self::is_attached), [`ana_state`](Self::ana_state) or [`sanitize`](Self::sanitize) would return
    /// another value.
    fn generation(&self) -> u64;

    /// Returns the limits of one command.
    fn limits(&self) -> CommandLimits;

    /// Returns the capacity.
    fn capacity(&self) -> SubsystemCapacity;

    /// Returns the health of the device.
    fn health(&self) -> SubsystemHealth;

    /// Returns true if a namespace acknowledges writes before they are durable.
    fn has_write_cache(&self) -> bool;

    /// Returns the last sanitize operation.
    fn sanitize(&self) -> SanitizeStatus;

    /// Returns the operation counters of the medium.
    fn media(&self) -> MediaLog;

    /// Returns the ANA state of this path to the namespaces, which form one group.
    fn ana_state(&self) -> AnaState {
        AnaState::Optimized
    }

    /// Returns the discovery log page, which only discovery controllers read.
    fn discovery_log(&self) -> Vec<u8> {
        Vec::new()
    }
}
