//! Identify Controller (CNS 01h; NVMe Base 2.0 figure 275) and its NVM command set part (CNS 06h; NVM 1.0 figure 103).
//!
//! Input: fields by name. Output: the bytes of the data structure.

use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// One Power State Descriptor (figure 276).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PowerState {
    /// MP, in hundredths of a watt.
    pub maximum_power: U16,
    /// Reserved, MXPS, NOPS.
    pub flags: [u8; 2],
    /// ENLAT and EXLAT, latencies and relative performance.
    pub latencies: [u8; 28],
}

const _: () = assert!(size_of::<PowerState>() == 32);

/// The Identify Controller data structure (figure 275).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentifyController {
    /// VID.
    pub pci_vendor: U16,
    /// SSVID.
    pub pci_subsystem_vendor: U16,
    /// SN, ASCII, filled with spaces.
    pub serial: [u8; 20],
    /// MN, ASCII, filled with spaces.
    pub model: [u8; 40],
    /// FR, ASCII, filled with spaces.
    pub firmware: [u8; 8],
    /// RAB, the recommended burst, a power of two.
    pub arbitration_burst: u8,
    /// IEEE.
    pub oui: [u8; 3],
    /// CMIC.
    pub multipath: u8,
    /// MDTS, a power of two of 4 KiB pages; 0 for no limit.
    pub transfer_pages_shift: u8,
    /// CNTLID.
    pub controller_id: U16,
    /// VER.
    pub version: U32,
    /// RTD3R.
    pub resume_latency: U32,
    /// RTD3E: duration of a shutdown, in microseconds.
    pub shutdown_latency: U32,
    /// OAES.
    pub async_events: U32,
    /// CTRATT.
    pub attributes: U32,
    /// RRLS.
    pub read_recovery_levels: U16,
    reserved_102: [u8; 9],
    /// CNTRLTYPE.
    pub controller_type: u8,
    /// FGUID.
    pub fru_guid: [u8; 16],
    /// CRDT1 to CRDT3.
    pub retry_delays: [U16; 3],
    reserved_134: [u8; 122],
    /// OACS.
    pub admin_commands: U16,
    /// ACL, 0's based.
    pub aborts_max: u8,
    /// AERL, 0's based.
    pub async_event_requests_max: u8,
    /// FRMW.
    pub firmware_updates: u8,
    /// LPA.
    pub log_attributes: u8,
    /// ELPE, 0's based.
    pub error_entries_max: u8,
    /// NPSS, 0's based.
    pub power_states: u8,
    /// AVSCC.
    pub admin_vendor_commands: u8,
    /// APSTA.
    pub autonomous_power: u8,
    /// WCTEMP, kelvin.
    pub warning_temperature: U16,
    /// CCTEMP, kelvin.
    pub critical_temperature: U16,
    /// MTFA.
    pub firmware_activation_time: U16,
    /// HMPRE and HMMIN.
    pub host_memory: [U32; 2],
    /// TNVMCAP, bytes.
    pub total_capacity: U128,
    /// UNVMCAP, bytes.
    pub unallocated_capacity: U128,
    /// RPMBS.
    pub replay_protected: U32,
    /// EDSTT.
    pub self_test_minutes: U16,
    /// DSTO.
    pub self_test_options: u8,
    /// FWUG.
    pub firmware_granularity: u8,
    /// KAS, in 100 ms.
    pub keep_alive_granularity: U16,
    /// HCTMA, MNTMT, MXTMT.
    pub thermal_management: [U16; 3],
    /// SANICAP.
    pub sanitize: U32,
    /// HMMINDS, HMMAXD, NSETIDMAX, ENDGIDMAX.
    pub host_memory_and_sets: [u8; 10],
    /// ANATT, in seconds.
    pub ana_transition_seconds: u8,
    /// ANACAP.
    pub ana: u8,
    /// ANAGRPMAX.
    pub ana_group_max: U32,
    /// NANAGRPID.
    pub ana_groups: U32,
    /// PELS.
    pub persistent_event_log: U32,
    /// Domain Identifier, reserved bytes, MEGCAP.
    pub domain: [u8; 28],
    reserved_384: [u8; 128],
    /// SQES.
    pub submission_entry_shifts: u8,
    /// CQES.
    pub completion_entry_shifts: u8,
    /// MAXCMD.
    pub commands_max: U16,
    /// NN.
    pub namespaces: U32,
    /// ONCS.
    pub io_commands: U16,
    /// FUSES.
    pub fused: U16,
    /// FNA.
    pub format: u8,
    /// VWC.
    pub write_cache: u8,
    /// AWUN, 0's based logical blocks.
    pub atomic_write_normal: U16,
    /// AWUPF, 0's based logical blocks.
    pub atomic_write_power_fail: U16,
    /// ICSVSCC.
    pub io_vendor_commands: u8,
    /// NWPC.
    pub write_protection: u8,
    /// ACWU, 0's based logical blocks.
    pub atomic_compare_and_write: U16,
    /// OCFS, formats of Copy descriptors.
    pub copy_formats: U16,
    /// SGLS.
    pub sgl: U32,
    /// MNAN.
    pub namespaces_allowed: U32,
    /// MAXDNA and MAXCNA.
    pub attachments_max: [u8; 20],
    reserved_564: [u8; 204],
    /// SUBNQN, UTF-8, null-terminated.
    pub subsystem_name: [u8; 256],
    reserved_1024: [u8; 768],
    /// IOCCSZ, in 16 bytes.
    pub command_capsule_16: U32,
    /// IORCSZ, in 16 bytes.
    pub response_capsule_16: U32,
    /// ICDOFF, in 16 bytes.
    pub in_capsule_offset_16: U16,
    /// FCATT.
    pub fabrics_attributes: u8,
    /// MSDBD.
    pub descriptors_max: u8,
    /// OFCS.
    pub fabrics_commands: U16,
    reserved_1806: [u8; 242],
    /// PSD0 to PSD31.
    pub power: [PowerState; 32],
    /// Vendor specific.
    pub vendor: [u8; 1024],
}

const _: () = assert!(size_of::<IdentifyController>() == 4096);
const _: () = assert!(offset_of!(IdentifyController, arbitration_burst) == 72);
const _: () = assert!(offset_of!(IdentifyController, controller_id) == 78);
const _: () = assert!(offset_of!(IdentifyController, async_events) == 92);
const _: () = assert!(offset_of!(IdentifyController, controller_type) == 111);
const _: () = assert!(offset_of!(IdentifyController, retry_delays) == 128);
const _: () = assert!(offset_of!(IdentifyController, admin_commands) == 256);
const _: () = assert!(offset_of!(IdentifyController, warning_temperature) == 266);
const _: () = assert!(offset_of!(IdentifyController, total_capacity) == 280);
const _: () = assert!(offset_of!(IdentifyController, replay_protected) == 312);
const _: () = assert!(offset_of!(IdentifyController, keep_alive_granularity) == 320);
const _: () = assert!(offset_of!(IdentifyController, sanitize) == 328);
const _: () = assert!(offset_of!(IdentifyController, ana_transition_seconds) == 342);
const _: () = assert!(offset_of!(IdentifyController, ana_groups) == 348);
const _: () = assert!(offset_of!(IdentifyController, domain) == 356);
const _: () = assert!(offset_of!(IdentifyController, submission_entry_shifts) == 512);
const _: () = assert!(offset_of!(IdentifyController, namespaces) == 516);
const _: () = assert!(offset_of!(IdentifyController, write_cache) == 525);
const _: () = assert!(offset_of!(IdentifyController, sgl) == 536);
const _: () = assert!(offset_of!(IdentifyController, subsystem_name) == 768);
const _: () = assert!(offset_of!(IdentifyController, command_capsule_16) == 1792);
const _: () = assert!(offset_of!(IdentifyController, fabrics_commands) == 1804);
const _: () = assert!(offset_of!(IdentifyController, power) == 2048);
const _: () = assert!(offset_of!(IdentifyController, vendor) == 3072);

/// Identify Controller data of the NVM command set (CNS 06h, CSI 00h; NVM 1.0 figure 103). 0 means no limit other than
/// the transfer size.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NvmController {
    /// VSL, Verify.
    pub verify_pages_shift: u8,
    /// WZSL, Write Zeroes.
    pub write_zeroes_pages_shift: u8,
    /// WUSL, Write Uncorrectable.
    pub write_uncorrectable_pages_shift: u8,
    /// DMRL, ranges of a Dataset Management at most.
    pub dataset_ranges_max: u8,
    /// DMRSL, blocks of one such range at most.
    pub dataset_range_blocks_max: U32,
    /// DMSL, blocks of all its ranges together at most.
    pub dataset_blocks_max: U64,
    reserved: [u8; 4080],
}

const _: () = assert!(size_of::<NvmController>() == 4096);
const _: () = assert!(offset_of!(NvmController, dataset_range_blocks_max) == 4);

/// Identify Controller data of the Key Value command set (CNS 06h, CSI 01h; KV 1.3 figures 43 and 44). Reserved, thus all
/// zeroes, before revision 1.3.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct KvController {
    /// VER 7:0, the tertiary number of the revision of the specification.
    pub revision_tertiary: u8,
    /// VER 15:8, the minor number.
    pub revision_minor: u8,
    /// VER 31:16, the major number.
    pub revision_major: U16,
    reserved: [u8; 4092],
}

const _: () = assert!(size_of::<KvController>() == 4096);
const _: () = assert!(offset_of!(KvController, revision_major) == 2);
