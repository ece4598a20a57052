//! Log page C0h: bytes written by clients, bytes programmed to the medium, and write amplification. Vendor specific;
//! described in `docs/formats/media-log.md`.

use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The layout of the page.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MediaLog {
    /// 1: this layout.
    pub version: U32,
    /// Write amplification in thousandths: media bytes written divided by client bytes written; 0 before the first
    /// write.
    pub write_amplification_thousandths: U32,
    /// Bytes of records that clients wrote, headers included.
    pub client_bytes_written: U64,
    /// Bytes programmed to the medium.
    pub media_bytes_written: U64,
    /// Bytes of records that garbage collection moved.
    pub moved_bytes: U64,
    /// Blocks erased.
    pub erases: U64,
    /// Flushes sent to the medium.
    pub flushes: U64,
    /// Current bytes of live records.
    pub live_bytes: U64,
    /// Maximum bytes of live records on the medium.
    pub capacity_bytes: U64,
    reserved_64: [u8; 448],
}

const _: () = assert!(size_of::<MediaLog>() == 512);
const _: () = assert!(offset_of!(MediaLog, client_bytes_written) == 8);
const _: () = assert!(offset_of!(MediaLog, capacity_bytes) == 56);
