//! Identify data structures (NVMe Base 2.0 section 5.17.2, NVM 1.0 section 4.1.5, KV 1.3 section 4.1.5).
//!
//! Input: fields by name.
//! Output: 4,096 bytes as a host reads them. The controller chooses the values.

mod controller;
mod descriptor;
mod namespace;

pub use controller::{IdentifyController, KvController, NvmController, PowerState};
pub use descriptor::{DescriptorKind, DescriptorWriter, NSID_LIST_MAX, controller_list, namespace_list};
pub use namespace::{IdentifyIndependent, IdentifyKv, IdentifyNvm, KvFormat, LBA_FORMAT_SHIFTS, lba_format};

use super::numbered::numbered;

/// Bytes of every Identify data structure.
pub const IDENTIFY_BYTES: u32 = 4_096;

/// [`IDENTIFY_BYTES`] as a `usize`.
pub const IDENTIFY_LENGTH: usize = 4_096;

/// The NSID that addresses all namespaces.
pub const NSID_BROADCAST: u32 = 0xFFFF_FFFF;

/// The CNTID of the controller that processes the command.
pub const CONTROLLER_SELF: u16 = 0xFFFF;

/// An I/O command set (CSI, figure 274).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CommandSet {
    /// 00h.
    Nvm,
    /// 01h.
    KeyValue,
}

impl CommandSet {
    /// Returns the command set with this number, if this controller supports it.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0x00 => Some(Self::Nvm),
            0x01 => Some(Self::KeyValue),
            _ => None,
        }
    }

    /// Returns the CSI.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Nvm => 0x00,
            Self::KeyValue => 0x01,
        }
    }
}

numbered! {
    /// A data structure that Identify can return (CNS, figure 273).
    IdentifyView {
        /// An active namespace, NVM command set.
        Namespace = 0x00,
        /// The controller.
        Controller = 0x01,
        /// Active namespace identifiers.
        ActiveNamespaces = 0x02,
        /// Identification descriptors of a namespace.
        Descriptors = 0x03,
        /// An active namespace, as its command set describes it.
        CommandSetNamespace = 0x05,
        /// The controller, as a command set describes it.
        CommandSetController = 0x06,
        /// Active namespace identifiers of a command set.
        CommandSetActiveNamespaces = 0x07,
        /// An active namespace, independent of its command set.
        IndependentNamespace = 0x08,
        /// A format of blocks, NVM command set.
        NamespaceFormat = 0x09,
        /// A format of namespaces, as a command set describes it.
        CommandSetFormat = 0x0A,
        /// Allocated namespace identifiers.
        AllocatedNamespaces = 0x10,
        /// An allocated namespace, NVM command set.
        AllocatedNamespace = 0x11,
        /// Controllers that a namespace is attached to.
        AttachedControllers = 0x12,
        /// Controllers of the subsystem.
        Controllers = 0x13,
        /// Allocated namespace identifiers of a command set.
        CommandSetAllocatedNamespaces = 0x1A,
        /// An allocated namespace, as its command set describes it.
        CommandSetAllocatedNamespace = 0x1B,
        /// Combinations of command sets.
        CommandSetCombinations = 0x1C,
    }
}
