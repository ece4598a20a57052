//! Error Information and SMART / Health Information (NVMe Base 2.0 figures 206 and 207).

use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// One entry of the Error Information log page.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ErrorEntry {
    /// Error Count: the first error is 1; 0 marks an unused entry.
    pub count: U64,
    /// SQID.
    pub queue: U16,
    /// CID.
    pub command: U16,
    /// Status Field as in a completion, phase tag included.
    pub status: U16,
    /// Parameter Error Location, FFFFh if no parameter caused the error.
    pub parameter: U16,
    /// LBA.
    pub lba: U64,
    /// NSID.
    pub namespace: U32,
    /// Vendor Specific Information Available.
    pub vendor_page: u8,
    /// TRTYPE.
    pub transport: u8,
    reserved_30: [u8; 2],
    /// Command Specific Information.
    pub specific: U64,
    /// Transport Type Specific Information.
    pub transport_specific: U16,
    reserved_42: [u8; 22],
}

const _: () = assert!(size_of::<ErrorEntry>() == 64);
const _: () = assert!(offset_of!(ErrorEntry, status) == 12);
const _: () = assert!(offset_of!(ErrorEntry, namespace) == 24);
const _: () = assert!(offset_of!(ErrorEntry, specific) == 32);

/// The SMART / Health Information log page.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SmartLog {
    /// Critical Warning.
    pub critical_warning: u8,
    /// Composite Temperature, kelvin.
    pub temperature: U16,
    /// Available Spare, percent.
    pub available_spare: u8,
    /// Available Spare Threshold, percent.
    pub spare_threshold: u8,
    /// Percentage Used.
    pub percentage_used: u8,
    /// Endurance Group Critical Warning Summary.
    pub endurance_warning: u8,
    reserved_7: [u8; 25],
    /// Data Units Read, in thousands of 512 bytes, rounded up.
    pub data_units_read: U128,
    /// Data Units Written, in thousands of 512 bytes, rounded up.
    pub data_units_written: U128,
    /// Host Read Commands.
    pub host_reads: U128,
    /// Host Write Commands.
    pub host_writes: U128,
    /// Controller Busy Time, minutes.
    pub busy_minutes: U128,
    /// Power Cycles.
    pub power_cycles: U128,
    /// Power On Hours.
    pub power_on_hours: U128,
    /// Unsafe Shutdowns.
    pub unsafe_shutdowns: U128,
    /// Media and Data Integrity Errors.
    pub media_errors: U128,
    /// Number of Error Information Log Entries, over the life of the controller.
    pub error_entries: U128,
    /// Warning and Critical Composite Temperature Time, minutes.
    pub temperature_minutes: [U32; 2],
    reserved_200: [u8; 312],
}

const _: () = assert!(size_of::<SmartLog>() == 512);
const _: () = assert!(offset_of!(SmartLog, data_units_read) == 32);
const _: () = assert!(offset_of!(SmartLog, host_reads) == 64);
const _: () = assert!(offset_of!(SmartLog, media_errors) == 160);
const _: () = assert!(offset_of!(SmartLog, temperature_minutes) == 192);
