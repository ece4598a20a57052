//! Identify Namespace pages (NVM 1.0 figure 97, KV 1.3 figure 41, Base 2.0 figure 280).
//!
//! Input: the properties of a namespace. Output: the page of its command set.

use crate::controller::admin::{
    DeviceController, MultipathMode, NamespaceFormat, NamespaceProperties, NvmSubsystem,
};
use crate::spec::identify::{
    CommandSet, IdentifyIndependent, IdentifyKv, IdentifyNvm, KvFormat, LBA_FORMAT_SHIFTS, lba_format,
};
use crate::spec::kv::{KV_KEY_BYTES_MAX, RETRIEVE_VENDOR_OPTIONS, VENDOR_SIGNATURE};
use crate::spec::status::Status;
use headwater_host::width::narrow;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromZeros, IntoBytes};

/// NSFEAT bit 3: identifiers are never reused.
const IDENTIFIERS_NEVER_REUSED: u8 = 1 << 3;
/// NSFEAT bit 4: NPWG, NPWA, NPDG, NPDA and NOWS are valid.
const HAS_GRANULARITY: u8 = 1 << 4;
/// DLFEAT: deallocated blocks read as zeroes, and Write Zeroes may deallocate.
const DEALLOCATED_ARE_ZEROES: u8 = 0b001 | 1 << 3;
/// The only ANA group.
pub(in crate::controller::admin) const ANA_GROUP: u32 = 1;
/// Bytes of a page of the medium, into which small writes are gathered.
const GRANULARITY_BYTES: u32 = 4_096;

fn sharing_bit(sharing: MultipathMode) -> u8 {
    match sharing {
        MultipathMode::SinglePath => 0,
        MultipathMode::Multipath => 1,
    }
}

fn ana_group(sharing: MultipathMode) -> U32 {
    U32::new(match sharing {
        MultipathMode::SinglePath => 0,
        MultipathMode::Multipath => ANA_GROUP,
    })
}

/// Returns the fields common to all namespaces of a command set (NSID FFFFFFFFh).
pub(super) fn capabilities(
    controller: &DeviceController,
    set: CommandSet,
    subsystem: &impl NvmSubsystem,
) -> Vec<u8> {
    match set {
        CommandSet::Nvm => nvm(controller, 0, subsystem).as_bytes().to_vec(),
        CommandSet::KeyValue => kv(controller, subsystem).as_bytes().to_vec(),
    }
}

/// Returns what all namespaces of a format have in common, by the number of the format in its command set.
///
/// # Errors
/// [`Status::INVALID_FIELD`] if the command set has no such format.
pub(super) fn format_page(
    controller: &DeviceController,
    set: CommandSet,
    index: u16,
    subsystem: &impl NvmSubsystem,
) -> Result<Vec<u8>, Status> {
    match set {
        CommandSet::Nvm if usize::from(index) < LBA_FORMAT_SHIFTS.len() => {
            let mut page = nvm(controller, narrow(index), subsystem);
            // Of a namespace, not of a format.
            page.format = 0;
            Ok(page.as_bytes().to_vec())
        }
        CommandSet::KeyValue if index == 0 => Ok(kv(controller, subsystem).as_bytes().to_vec()),
        CommandSet::Nvm | CommandSet::KeyValue => Err(Status::INVALID_FIELD),
    }
}

/// Returns the page of one namespace.
pub(super) fn namespace_page(
    controller: &DeviceController,
    facts: &NamespaceProperties,
    subsystem: &impl NvmSubsystem,
) -> Vec<u8> {
    match facts.format {
        NamespaceFormat::Block { index } => {
            let mut page = nvm(controller, index, subsystem);
            page.size = U64::new(facts.size);
            page.capacity = U64::new(facts.size);
            page.utilization = U64::new(facts.utilization.min(facts.size));
            page.nguid = facts.uuid;
            page.features |= IDENTIFIERS_NEVER_REUSED;
            page.ana_group = ana_group(controller.config.multipath);
            page.capacity_bytes = U128::new(u128::from(facts.size) << shift_of(index));
            page.as_bytes().to_vec()
        }
        NamespaceFormat::KeyValue => {
            let mut page = kv(controller, subsystem);
            page.size = U64::new(facts.size);
            page.utilization = U64::new(facts.utilization.min(facts.size));
            page.nguid = facts.uuid;
            page.features = if facts.uuid == [0; 16] { 0 } else { IDENTIFIERS_NEVER_REUSED };
            page.ana_group = ana_group(controller.config.multipath);
            page.as_bytes().to_vec()
        }
    }
}

/// Returns the page that is independent of command sets: shared or not, and ready.
pub(super) fn independent(sharing: MultipathMode) -> Vec<u8> {
    let mut page = IdentifyIndependent::new_zeroed();
    page.features = IDENTIFIERS_NEVER_REUSED;
    page.sharing = sharing_bit(sharing);
    page.ana_group = ana_group(sharing);
    page.status = 1;
    page.as_bytes().to_vec()
}

fn shift_of(index: u8) -> u32 {
    LBA_FORMAT_SHIFTS.get(usize::from(index)).copied().unwrap_or(LBA_FORMAT_SHIFTS[0])
}

fn nvm(controller: &DeviceController, index: u8, subsystem: &impl NvmSubsystem) -> IdentifyNvm {
    let limits = subsystem.limits();
    let mut page = IdentifyNvm::new_zeroed();
    page.features = HAS_GRANULARITY;
    page.lba_formats = narrow(LBA_FORMAT_SHIFTS.len() - 1);
    page.format = index;
    page.sharing = sharing_bit(controller.config.multipath);
    page.deallocate = DEALLOCATED_ARE_ZEROES;
    let granularity = narrow((GRANULARITY_BYTES >> shift_of(index)).saturating_sub(1));
    for field in [
        &mut page.write_granularity,
        &mut page.write_alignment,
        &mut page.deallocate_granularity,
        &mut page.deallocate_alignment,
        &mut page.optimal_write,
    ] {
        *field = U16::new(granularity);
    }
    page.copy_range_blocks_max = U16::new(limits.copy_range_blocks_max);
    page.copy_blocks_max = U32::new(limits.copy_blocks_max);
    page.copy_ranges_max = narrow(limits.copy_ranges_max.saturating_sub(1));
    for (slot, shift) in page.formats.iter_mut().zip(LBA_FORMAT_SHIFTS) {
        // Blocks of a page need one index entry per page; smaller blocks need more.
        let relative_performance = if 1 << shift == GRANULARITY_BYTES { 0 } else { 2 };
        *slot = U32::new(lba_format(shift, relative_performance));
    }
    page
}

fn kv(controller: &DeviceController, subsystem: &impl NvmSubsystem) -> IdentifyKv {
    let mut page = IdentifyKv::new_zeroed();
    page.kv_formats = 0;
    page.sharing = sharing_bit(controller.config.multipath);
    let mut format = KvFormat::new_zeroed();
    format.key_bytes_max = U16::new(u16::try_from(KV_KEY_BYTES_MAX).unwrap_or(16));
    // One command cannot transfer a longer value.
    let value_bytes = subsystem.limits().value_bytes_max.min(controller.config.transfer_bytes_max());
    format.value_bytes_max = U32::new(value_bytes);
    page.formats[0] = format;
    let [features, signature @ ..] = &mut page.vendor;
    *features = RETRIEVE_VENDOR_OPTIONS;
    signature[..VENDOR_SIGNATURE.len()].copy_from_slice(&VENDOR_SIGNATURE);
    page
}
