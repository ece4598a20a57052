//! Firmware Slot Information, Asymmetric Namespace Access and Sanitize Status (NVMe Base 2.0 figures 208, 222 to 224
//! and 246).

use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The Firmware Slot Information log page.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FirmwareLog {
    /// AFI: the active slot.
    pub active: u8,
    reserved_1: [u8; 7],
    /// FRS1 to FRS7, ASCII.
    pub revisions: [[u8; 8]; 7],
    reserved_64: [u8; 448],
}

const _: () = assert!(size_of::<FirmwareLog>() == 512);
const _: () = assert!(offset_of!(FirmwareLog, revisions) == 8);

/// The asymmetric access state of a controller to a group of namespaces (section 8.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnaState {
    /// 01h.
    Optimized,
    /// 02h.
    NonOptimized,
    /// 03h.
    Inaccessible,
}

impl AnaState {
    /// Returns the number on the wire.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Optimized => 1,
            Self::NonOptimized => 2,
            Self::Inaccessible => 3,
        }
    }
}

/// The header of an ANA log page; the group descriptors follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AnaHeader {
    /// Change Count of the page.
    pub changes: U64,
    /// Number of ANA Group Descriptors.
    pub groups: U16,
    reserved_10: [u8; 6],
}

const _: () = assert!(size_of::<AnaHeader>() == 16);

/// One ANA Group Descriptor; its namespace identifiers follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AnaGroup {
    /// ANA Group ID.
    pub id: U32,
    /// Number of NSID Values.
    pub namespaces: U32,
    /// Change Count of the group.
    pub changes: U64,
    /// Asymmetric Namespace Access State.
    pub state: u8,
    reserved_17: [u8; 15],
}

const _: () = assert!(size_of::<AnaGroup>() == 32);
const _: () = assert!(offset_of!(AnaGroup, state) == 16);

/// The Sanitize Status log page.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SanitizeLog {
    /// SPROG, in 1/65,536 of the work; FFFFh when no sanitize is in progress.
    pub progress: U16,
    /// SSTAT.
    pub status: U16,
    /// SCDW10: dword 10 of the last command.
    pub command: U32,
    /// Estimated times in seconds, FFFFFFFFh when not known: overwrite, block erase, crypto erase, and the same
    /// three without deallocation.
    pub estimates: [U32; 6],
    reserved_32: [u8; 480],
}

const _: () = assert!(size_of::<SanitizeLog>() == 512);
const _: () = assert!(offset_of!(SanitizeLog, command) == 4);
