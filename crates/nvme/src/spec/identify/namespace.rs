//! Identify Namespace: of the NVM command set (CNS 00h; NVM 1.0 figure 97), of Key Value (CNS 05h, CSI 01h; KV 1.0d
//! figure 39) and independent of command sets (CNS 08h; Base 2.0 figure 280).
//!
//! Input: fields by name. Output: the bytes of the data structure. A Namespace Management create carries the first
//! bytes of the same structures.

use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// LBADS of each LBA format: 512 and 4,096 bytes.
pub const LBA_FORMAT_SHIFTS: [u32; 2] = [9, 12];

/// Builds one LBA Format (NVM 1.0 figure 98): no metadata, blocks of `2 ^ shift` bytes, and the relative performance
/// (0 best, 3 degraded).
#[must_use]
pub const fn lba_format(shift: u32, relative_performance: u32) -> u32 {
    (shift & 0xFF) << 16 | (relative_performance & 0b11) << 24
}

/// The data structure of a block namespace (CNS 00h).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentifyNvm {
    /// NSZE, blocks.
    pub size: U64,
    /// NCAP, blocks.
    pub capacity: U64,
    /// NUSE, blocks.
    pub utilization: U64,
    /// NSFEAT.
    pub features: u8,
    /// NLBAF, 0's based.
    pub lba_formats: u8,
    /// FLBAS.
    pub format: u8,
    /// MC.
    pub metadata: u8,
    /// DPC.
    pub protection_capabilities: u8,
    /// DPS.
    pub protection: u8,
    /// NMIC.
    pub sharing: u8,
    /// RESCAP.
    pub reservations: u8,
    /// FPI.
    pub format_progress: u8,
    /// DLFEAT.
    pub deallocate: u8,
    /// NAWUN, 0's based.
    pub atomic_write_normal: U16,
    /// NAWUPF, 0's based.
    pub atomic_write_power_fail: U16,
    /// NACWU, NABSN, NABO, NABSPF.
    pub atomic_boundaries: [U16; 4],
    /// NOIOB.
    pub optimal_boundary: U16,
    /// NVMCAP, bytes.
    pub capacity_bytes: U128,
    /// NPWG, 0's based.
    pub write_granularity: U16,
    /// NPWA, 0's based.
    pub write_alignment: U16,
    /// NPDG, 0's based.
    pub deallocate_granularity: U16,
    /// NPDA, 0's based.
    pub deallocate_alignment: U16,
    /// NOWS, 0's based.
    pub optimal_write: U16,
    /// MSSRL: blocks of one source range of a Copy.
    pub copy_range_blocks_max: U16,
    /// MCL: blocks of a Copy.
    pub copy_blocks_max: U32,
    /// MSRC, 0's based: source ranges of a Copy.
    pub copy_ranges_max: u8,
    reserved_81: [u8; 11],
    /// ANAGRPID.
    pub ana_group: U32,
    reserved_96: [u8; 3],
    /// NSATTR.
    pub attributes: u8,
    /// NVMSETID.
    pub nvm_set: U16,
    /// ENDGID.
    pub endurance_group: U16,
    /// NGUID.
    pub nguid: [u8; 16],
    /// EUI64.
    pub eui64: [u8; 8],
    /// LBAF0 to LBAF63.
    pub formats: [U32; 64],
    /// Vendor specific.
    pub vendor: [u8; 3712],
}

const _: () = assert!(size_of::<IdentifyNvm>() == 4096);
const _: () = assert!(offset_of!(IdentifyNvm, features) == 24);
const _: () = assert!(offset_of!(IdentifyNvm, deallocate) == 33);
const _: () = assert!(offset_of!(IdentifyNvm, optimal_boundary) == 46);
const _: () = assert!(offset_of!(IdentifyNvm, write_granularity) == 64);
const _: () = assert!(offset_of!(IdentifyNvm, copy_range_blocks_max) == 74);
const _: () = assert!(offset_of!(IdentifyNvm, ana_group) == 92);
const _: () = assert!(offset_of!(IdentifyNvm, nguid) == 104);
const _: () = assert!(offset_of!(IdentifyNvm, formats) == 128);
const _: () = assert!(offset_of!(IdentifyNvm, vendor) == 384);

/// One KV format (KV 1.3 figure 42).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct KvFormat {
    /// Longest key, at most 16.
    pub key_bytes_max: U16,
    reserved_2: u8,
    /// Relative performance in 1:0.
    pub options: u8,
    /// Longest value.
    pub value_bytes_max: U32,
    /// Maximum number of keys, 0 for no limit.
    pub keys_max: U32,
    reserved_12: [u8; 4],
}

const _: () = assert!(size_of::<KvFormat>() == 16);
const _: () = assert!(offset_of!(KvFormat, value_bytes_max) == 4);

/// The data structure of a Key Value namespace (CNS 05h, CSI 01h; KV 1.3 figure 41).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentifyKv {
    /// NSZE, bytes.
    pub size: U64,
    reserved_8: [u8; 8],
    /// NUSE, bytes.
    pub utilization: U64,
    /// NSFEAT.
    pub features: u8,
    /// NKVF, 0's based.
    pub kv_formats: u8,
    /// NMIC.
    pub sharing: u8,
    /// RESCAP.
    pub reservations: u8,
    /// FPI.
    pub format_progress: u8,
    /// KVFC: the index of the format in use, in 3:0. Reserved, thus 0, before revision 1.3.
    pub format: u8,
    reserved_30: [u8; 2],
    /// NOVG, bytes.
    pub value_granularity: U32,
    /// ANAGRPID.
    pub ana_group: U32,
    reserved_40: [u8; 3],
    /// NSATTR.
    pub attributes: u8,
    /// NVMSETID.
    pub nvm_set: U16,
    /// ENDGID.
    pub endurance_group: U16,
    /// NGUID.
    pub nguid: [u8; 16],
    /// EUI64.
    pub eui64: [u8; 8],
    /// KVF0 to KVF15.
    pub formats: [KvFormat; 16],
    reserved_328: [u8; 3512],
    /// Vendor specific.
    pub vendor: [u8; 256],
}

const _: () = assert!(size_of::<IdentifyKv>() == 4096);
const _: () = assert!(offset_of!(IdentifyKv, utilization) == 16);
const _: () = assert!(offset_of!(IdentifyKv, kv_formats) == 25);
const _: () = assert!(offset_of!(IdentifyKv, format) == 29);
const _: () = assert!(offset_of!(IdentifyKv, value_granularity) == 32);
const _: () = assert!(offset_of!(IdentifyKv, attributes) == 43);
const _: () = assert!(offset_of!(IdentifyKv, nguid) == 48);
const _: () = assert!(offset_of!(IdentifyKv, formats) == 72);
const _: () = assert!(offset_of!(IdentifyKv, vendor) == 3840);

/// The data structure of a namespace of any command set (CNS 08h).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentifyIndependent {
    /// NSFEAT.
    pub features: u8,
    /// NMIC.
    pub sharing: u8,
    /// RESCAP.
    pub reservations: u8,
    /// FPI.
    pub format_progress: u8,
    /// ANAGRPID.
    pub ana_group: U32,
    /// NSATTR.
    pub attributes: u8,
    reserved_9: u8,
    /// NVMSETID.
    pub nvm_set: U16,
    /// ENDGID.
    pub endurance_group: U16,
    /// NSTAT; bit 0 is set if the namespace is ready.
    pub status: u8,
    reserved_15: [u8; 4081],
}

const _: () = assert!(size_of::<IdentifyIndependent>() == 4096);
const _: () = assert!(offset_of!(IdentifyIndependent, ana_group) == 4);
const _: () = assert!(offset_of!(IdentifyIndependent, status) == 14);
