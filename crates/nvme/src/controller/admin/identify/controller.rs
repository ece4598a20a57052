//! The Identify Controller page (NVMe Base 2.0 figure 275).
//!
//! Input: the controller's configuration and the subsystem. Output: the page. Invariant: a bit is set only for an
//! implemented feature.

use crate::controller::admin::data::is_supported;
use crate::controller::admin::errors::ERRORS_MAX;
use crate::controller::admin::events::REQUESTS_MAX;
use crate::controller::admin::features::WARNING_TEMPERATURE;
use crate::controller::admin::keep_alive::GRANULARITY_100MS;
use crate::controller::admin::{
    ControllerConfig, ControllerKind, ControllerTransport, MultipathMode, NvmSubsystem,
};
use crate::spec::fabrics::DISCOVERY_NAME;
use crate::spec::feature::async_event_bit;
use crate::spec::identify::{IdentifyController, KvController, LBA_FORMAT_SHIFTS};
use crate::spec::opcode::AdminOpcode;
use crate::spec::register::VERSION_2_0;
use headwater_host::width::narrow;
use zerocopy::little_endian::{U16, U32, U128};
use zerocopy::{FromZeros, IntoBytes};

/// The revision of the Key Value command set: major, minor and tertiary number.
const KEY_VALUE_REVISION: (u16, u8, u8) = (1, 3, 0);

/// The PCI vendor id that QEMU uses for its virtual NVMe controllers: Red Hat.
const PCI_VENDOR: u16 = 0x1B36;
/// The unit of capsule sizes, bytes.
const CAPSULE_16: u32 = 16;
const COMMAND_BYTES: u32 = 64;

pub(super) fn identify_controller(config: &ControllerConfig, subsystem: &impl NvmSubsystem) -> Vec<u8> {
    let mut page = IdentifyController::new_zeroed();
    describe_subsystem(&mut page, config, subsystem);
    describe_admin(&mut page, config);
    if config.kind == ControllerKind::Io {
        describe_io(&mut page, config, subsystem);
        describe_sharing(&mut page, config);
    }
    if config.transport == ControllerTransport::Fabrics {
        // OFCS bit 0: Disconnect.
        page.fabrics_commands = U16::new(1);
        page.command_capsule_16 = U32::new((COMMAND_BYTES + config.in_capsule_bytes) / CAPSULE_16);
        page.response_capsule_16 = U32::new(1);
        page.descriptors_max = 1;
    }
    page.as_bytes().to_vec()
}

fn describe_subsystem(
    page: &mut IdentifyController,
    config: &ControllerConfig,
    subsystem: &impl NvmSubsystem,
) {
    let identity = subsystem.identity();
    page.serial = identity.serial;
    page.model = identity.model;
    page.firmware = identity.firmware;
    page.fru_guid = identity.uuid;
    page.controller_id = U16::new(config.id);
    page.version = U32::new(VERSION_2_0);
    if config.transport == ControllerTransport::Pcie {
        page.pci_vendor = U16::new(PCI_VENDOR);
        page.pci_subsystem_vendor = U16::new(PCI_VENDOR);
    }
    // One byte stays zero: it terminates the name.
    let room = page.subsystem_name.len() - 1;
    let name = match config.kind {
        ControllerKind::Io => identity.subsystem_name.as_str(),
        // Another name would make hosts search for another discovery subsystem (Base 2.0 section 3.1.2.3.5).
        ControllerKind::Discovery => DISCOVERY_NAME,
    };
    for (byte, value) in page.subsystem_name.iter_mut().zip(name.bytes().take(room)) {
        *byte = value;
    }
}

fn describe_admin(page: &mut IdentifyController, config: &ControllerConfig) {
    let has = |opcode: AdminOpcode, bit: u16| if is_supported(config, opcode) { 1 << bit } else { 0_u16 };
    page.transfer_pages_shift = config.transfer_pages_shift;
    page.controller_type = match config.kind {
        ControllerKind::Io => 1,
        ControllerKind::Discovery => 2,
    };
    // A shutdown flushes and writes a checkpoint; ten seconds are sufficient.
    page.shutdown_latency = U32::new(10_000_000);
    page.admin_commands = U16::new(
        has(AdminOpcode::FormatNvm, 1)
            | has(AdminOpcode::NamespaceManagement, 3)
            | has(AdminOpcode::DoorbellBufferConfig, 8),
    );
    page.aborts_max = 3;
    page.async_event_requests_max = less_one(REQUESTS_MAX);
    page.error_entries_max = less_one(ERRORS_MAX);
    // One firmware slot, read-only.
    page.firmware_updates = 1 << 1 | 1;
    // Commands supported and effects, extended data, and the supported log pages.
    page.log_attributes = 1 << 1 | 1 << 2 | 1 << 5;
    page.keep_alive_granularity = U16::new(GRANULARITY_100MS);
    // The field cannot hold 65,536; a queue of so many slots has one command fewer in any case.
    page.commands_max = U16::new(u16::try_from(config.queue_slots_max).unwrap_or(u16::MAX));
    page.async_events = U32::new(match config.kind {
        ControllerKind::Discovery => async_event_bit::DISCOVERY_LOG,
        ControllerKind::Io if config.multipath == MultipathMode::Multipath => {
            async_event_bit::NAMESPACE_ATTRIBUTE | async_event_bit::ANA
        }
        ControllerKind::Io => async_event_bit::NAMESPACE_ATTRIBUTE,
    });
    // 128-bit host identifiers.
    page.attributes = U32::new(1);
    // SGLs without alignment. In host memory with bit buckets, and they may be longer than the data; on fabrics the
    // address is an offset into the capsule or belongs to the transport.
    page.sgl = U32::new(match (config.sgl, config.transport) {
        (_, ControllerTransport::Fabrics) => 1 | 1 << 20 | 1 << 21,
        (true, ControllerTransport::Pcie) => 1 | 1 << 16 | 1 << 18,
        (false, ControllerTransport::Pcie) => 0,
    });
}

fn describe_io(page: &mut IdentifyController, config: &ControllerConfig, subsystem: &impl NvmSubsystem) {
    page.arbitration_burst = 3;
    page.warning_temperature = U16::new(WARNING_TEMPERATURE);
    page.critical_temperature = U16::new(WARNING_TEMPERATURE + 15);
    let capacity = subsystem.capacity();
    page.total_capacity = U128::new(capacity.total_bytes.into());
    page.unallocated_capacity = U128::new(capacity.unallocated_bytes.into());
    // Block erase; it deallocates all blocks even if the host requests otherwise (NDI, NODMMAS 01b).
    page.sanitize = U32::new(1 << 1 | 1 << 29 | 0b01 << 30);
    page.submission_entry_shifts = 0x66;
    page.completion_entry_shifts = 0x44;
    page.namespaces = U32::new(subsystem.namespaces_max());
    // Compare, Dataset Management, Write Zeroes, Save and Select, Timestamp, Verify, Copy.
    page.io_commands = U16::new(1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 8);
    page.copy_formats = U16::new(1);
    // Flush may name one namespace or all (bits 2:1 are 11b).
    page.write_cache = 0b11 << 1 | u8::from(subsystem.has_write_cache());
    // A write of any length is atomic; its limit is the transfer size, in the largest blocks.
    let largest = LBA_FORMAT_SHIFTS.into_iter().max().unwrap_or(12);
    // A 0's based field; what is above its largest value is reported as that.
    let blocks =
        u16::try_from((config.transfer_bytes_max() >> largest).saturating_sub(1)).unwrap_or(u16::MAX);
    page.atomic_write_normal = U16::new(blocks);
    page.atomic_write_power_fail = U16::new(blocks);
    page.namespaces_allowed = U32::new(subsystem.namespaces_max());
    // One power state, of 25 watts.
    page.power[0].maximum_power = U16::new(2_500);
}

/// Builds the page of CNS 06h for the Key Value command set.
pub(super) fn key_value() -> Vec<u8> {
    let (major, minor, tertiary) = KEY_VALUE_REVISION;
    let mut page = KvController::new_zeroed();
    page.revision_major = U16::new(major);
    page.revision_minor = minor;
    page.revision_tertiary = tertiary;
    page.as_bytes().to_vec()
}

fn describe_sharing(page: &mut IdentifyController, config: &ControllerConfig) {
    if config.multipath == MultipathMode::SinglePath {
        return;
    }
    // More than one port, more than one controller, asymmetric access.
    page.multipath = 1 | 1 << 1 | 1 << 3;
    page.ana_transition_seconds = 10;
    // Reports optimized, non-optimized and inaccessible; ANAGRPID does not change.
    page.ana = 0b111 | 1 << 6;
    page.ana_group_max = U32::new(1);
    page.ana_groups = U32::new(1);
}

/// Encodes a count as a 0's based field.
fn less_one(count: usize) -> u8 {
    narrow(count.saturating_sub(1))
}
