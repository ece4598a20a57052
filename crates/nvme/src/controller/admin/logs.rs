//! Get Log Page (NVMe Base 2.0 section 5.16).
//!
//! Input: an entry. Output: the requested number of bytes from the requested offset; bytes after the end of a page are
//! zero. Reading a page clears its event unless the host retains it (RAE).

use super::identify::ANA_GROUP;
use super::{ControllerKind, DeviceController, MultipathMode, NvmSubsystem, SanitizeState, data};
use crate::spec::admin::LogDwords;
use crate::spec::command::SubmissionEntry;
use crate::spec::feature::FeatureId;
use crate::spec::identify::{CommandSet, NSID_BROADCAST, NSID_LIST_MAX};
use crate::spec::log_page::{
    AnaGroup, AnaHeader, FEATURE_EFFECTS_BYTES, FirmwareLog, LOG_PAGE_SUPPORTED, LogPage, SanitizeLog,
    SmartLog, command_effects, feature_effects,
};
use crate::spec::opcode::AdminOpcode;
use crate::spec::status::Status;
use headwater_host::width::narrow;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromZeros, IntoBytes};

/// The composite temperature, kelvin: a process has no sensor, so this is a typical room temperature.
const TEMPERATURE: u16 = 303;
/// The Available Spare Threshold, percent.
const SPARE_THRESHOLD: u8 = 10;
/// A data unit of SMART: 1,000 times 512 bytes.
const DATA_UNIT_BYTES: u64 = 512_000;
/// Bit 0 of LSP of the ANA log page: groups without their namespaces.
const GROUPS_ONLY: u8 = 1;
/// SPROG when no sanitize runs.
const SANITIZE_IDLE: u16 = 0xFFFF;
/// The value for "no estimate".
const NO_ESTIMATE: u32 = 0xFFFF_FFFF;

impl DeviceController {
    fn has_log_page(&self, page: LogPage) -> bool {
        match self.config.kind {
            ControllerKind::Discovery => {
                matches!(page, LogPage::SupportedPages | LogPage::Error | LogPage::Discovery)
            }
            ControllerKind::Io => match page {
                LogPage::Discovery => false,
                LogPage::Ana => self.config.multipath == MultipathMode::Multipath,
                _ => true,
            },
        }
    }

    pub(super) fn log_page(
        &mut self,
        entry: &SubmissionEntry,
        subsystem: &impl NvmSubsystem,
    ) -> Result<Vec<u8>, Status> {
        let fields = LogDwords::from_entry(entry);
        let page = LogPage::from_number(fields.page)
            .filter(|&page| self.has_log_page(page))
            .ok_or(Status::INVALID_LOG_PAGE)?;
        if fields.offset_is_index || !fields.offset.is_multiple_of(4) {
            return Err(Status::INVALID_FIELD);
        }
        let nsid = entry.namespace.get();
        // No page is specific to a namespace (LPA bit 0 is 0).
        if page == LogPage::Health && nsid != 0 && nsid != NSID_BROADCAST {
            return Err(Status::INVALID_FIELD);
        }
        let whole = self.whole_page(page, &fields, subsystem)?;
        let offset = usize::try_from(fields.offset).map_err(|_| Status::INVALID_FIELD)?;
        let length = usize::try_from(fields.dwords * 4).map_err(|_| Status::INVALID_FIELD)?;
        let rest = whole.get(offset..).ok_or(Status::INVALID_FIELD)?;
        let mut bytes = Vec::with_capacity(length);
        bytes.extend(rest.iter().take(length));
        bytes.resize(length, 0);
        if !fields.retains_event {
            self.events.clear(page);
            if page == LogPage::ChangedNamespaces {
                self.watch.clear();
            }
        }
        Ok(bytes)
    }

    fn whole_page(
        &self,
        page: LogPage,
        fields: &LogDwords,
        subsystem: &impl NvmSubsystem,
    ) -> Result<Vec<u8>, Status> {
        Ok(match page {
            LogPage::SupportedPages => self.supported_pages(),
            LogPage::Error => {
                let mut page: Vec<u8> =
                    self.errors.entries().flat_map(|entry| entry.as_bytes().to_vec()).collect();
                page.resize(super::errors::ERRORS_MAX * 64, 0);
                page
            }
            LogPage::Health => self.health(subsystem),
            LogPage::FirmwareSlots => {
                let mut page = FirmwareLog::new_zeroed();
                page.active = 1;
                page.revisions[0] = subsystem.identity().firmware;
                page.as_bytes().to_vec()
            }
            LogPage::ChangedNamespaces => {
                let mut page: Vec<u8> = self.watch.changed().flat_map(u32::to_le_bytes).collect();
                page.resize(NSID_LIST_MAX * 4, 0);
                page
            }
            LogPage::CommandEffects => {
                let taken = AdminOpcode::ALL.iter().copied();
                let taken = taken.filter(|&opcode| data::is_supported(&self.config, opcode));
                command_effects(taken, CommandSet::from_number(fields.command_set))
            }
            LogPage::Ana => ana(fields, self.config.id, subsystem),
            LogPage::FeatureEffects => {
                feature_effects(FeatureId::ALL.iter().copied().filter(|&feature| self.has_feature(feature)))
            }
            LogPage::ManagementEffects => vec![0; FEATURE_EFFECTS_BYTES],
            LogPage::Discovery => subsystem.discovery_log(),
            LogPage::Sanitize => sanitize(subsystem),
            LogPage::Media => subsystem.media().as_bytes().to_vec(),
        })
    }

    fn supported_pages(&self) -> Vec<u8> {
        (0..=u8::MAX)
            .flat_map(|number| {
                let has = LogPage::from_number(number).is_some_and(|page| self.has_log_page(page));
                u32::to_le_bytes(if has { LOG_PAGE_SUPPORTED } else { 0 })
            })
            .collect()
    }

    fn health(&self, subsystem: &impl NvmSubsystem) -> Vec<u8> {
        let health = subsystem.health();
        let mut page = SmartLog::new_zeroed();
        page.critical_warning = u8::from(health.spare_is_low) | u8::from(health.is_read_only) << 3;
        page.temperature = U16::new(TEMPERATURE);
        page.available_spare = health.available_spare.min(100);
        page.spare_threshold = SPARE_THRESHOLD;
        page.data_units_read = U128::new(health.host_bytes_read.div_ceil(DATA_UNIT_BYTES).into());
        page.data_units_written = U128::new(health.host_bytes_written.div_ceil(DATA_UNIT_BYTES).into());
        page.host_reads = U128::new(health.host_reads.into());
        page.host_writes = U128::new(health.host_writes.into());
        page.power_cycles = U128::new(health.power_cycles.into());
        page.unsafe_shutdowns = U128::new(health.unsafe_shutdowns.into());
        page.power_on_hours = U128::new(health.power_on_hours.into());
        page.media_errors = U128::new(health.media_errors.into());
        page.error_entries = U128::new(self.errors.count().into());
        page.as_bytes().to_vec()
    }
}

/// Returns the ANA log: one group, with every namespace attached to the controller.
fn ana(fields: &LogDwords, controller: u16, subsystem: &impl NvmSubsystem) -> Vec<u8> {
    let attached: Vec<u32> = if fields.specific & GROUPS_ONLY == 0 {
        (1..=subsystem.namespaces_max())
            .filter(|&nsid| subsystem.is_attached(nsid, controller) && subsystem.namespace(nsid).is_some())
            .collect()
    } else {
        Vec::new()
    };
    let mut header = AnaHeader::new_zeroed();
    header.changes = U64::new(subsystem.generation());
    header.groups = U16::new(1);
    let mut group = AnaGroup::new_zeroed();
    group.id = U32::new(ANA_GROUP);
    group.namespaces = U32::new(narrow(attached.len()));
    group.changes = U64::new(subsystem.generation());
    group.state = subsystem.ana_state().number();
    let mut page = header.as_bytes().to_vec();
    page.extend_from_slice(group.as_bytes());
    page.extend(attached.into_iter().flat_map(u32::to_le_bytes));
    page
}

fn sanitize(subsystem: &impl NvmSubsystem) -> Vec<u8> {
    let facts = subsystem.sanitize();
    let mut page = SanitizeLog::new_zeroed();
    let (progress, state) = match facts.state {
        SanitizeState::Never => (SANITIZE_IDLE, 0),
        SanitizeState::Completed => (SANITIZE_IDLE, 1),
        SanitizeState::Running(progress) => (progress, 2),
        SanitizeState::Failed => (SANITIZE_IDLE, 3),
    };
    // GDE: no data was written since the device was created, or since it was sanitized.
    let erased = facts.state == SanitizeState::Completed && !facts.written_since;
    page.progress = U16::new(progress);
    page.status = U16::new(state | u16::from(erased) << 8);
    page.command = U32::new(facts.command);
    page.estimates = [U32::new(NO_ESTIMATE); 6];
    page.as_bytes().to_vec()
}
