//! The data of admin commands, and the set of admin commands that a controller supports.
//!
//! Input: an entry. Output: a direction and a length within the maximum transfer size, or the status that refuses the
//! entry.

use super::config::{ControllerConfig, ControllerKind, ControllerTransport};
use super::step::AdminData;
use crate::spec::admin::{FeatureDwords, LogDwords, NamespaceDwords};
use crate::spec::command::SubmissionEntry;
use crate::spec::feature::FeatureId;
use crate::spec::identify::IDENTIFY_BYTES;
use crate::spec::opcode::AdminOpcode;
use crate::spec::status::Status;

/// The FUSE field of dword 0.
const FUSE: u8 = 0b11;
/// The PSDT field of dword 0.
const SGL: u8 = 0b11 << 6;

/// Returns true if the controller supports the opcode.
pub(super) const fn is_supported(config: &ControllerConfig, opcode: AdminOpcode) -> bool {
    let (on_discovery, on_pcie) = match opcode {
        AdminOpcode::Identify
        | AdminOpcode::GetLogPage
        | AdminOpcode::GetFeatures
        | AdminOpcode::SetFeatures
        | AdminOpcode::AsyncEventRequest
        | AdminOpcode::Abort
        | AdminOpcode::KeepAlive => (true, true),
        AdminOpcode::CreateCompletionQueue
        | AdminOpcode::CreateSubmissionQueue
        | AdminOpcode::DeleteCompletionQueue
        | AdminOpcode::DeleteSubmissionQueue
        | AdminOpcode::DoorbellBufferConfig => (false, true),
        AdminOpcode::NamespaceManagement
        | AdminOpcode::NamespaceAttachment
        | AdminOpcode::FormatNvm
        | AdminOpcode::Sanitize => (false, false),
    };
    match config.kind {
        ControllerKind::Discovery => on_discovery,
        ControllerKind::Io => {
            on_discovery || !on_pcie || matches!(config.transport, ControllerTransport::Pcie)
        }
    }
}

/// Implements [`Controller::admin_data`](super::Controller::admin_data).
pub(super) fn admin_data(config: &ControllerConfig, entry: &SubmissionEntry) -> Result<AdminData, Status> {
    let opcode = AdminOpcode::from_number(entry.opcode)
        .filter(|&opcode| is_supported(config, opcode))
        .ok_or(Status::INVALID_OPCODE)?;
    // Admin commands of a PCIe function use PRPs (section 4.1.1); the transport has checked the descriptors of a
    // capsule.
    let forbidden = if config.transport == ControllerTransport::Pcie { FUSE | SGL } else { FUSE };
    if entry.flags & forbidden != 0 {
        return Err(Status::INVALID_FIELD);
    }
    match opcode {
        AdminOpcode::Identify => Ok(AdminData::ToHost(IDENTIFY_BYTES)),
        AdminOpcode::GetLogPage => u32::try_from(LogDwords::from_entry(entry).dwords * 4)
            .ok()
            .filter(|&bytes| bytes <= config.transfer_bytes_max())
            .map(AdminData::ToHost)
            .ok_or(Status::INVALID_FIELD),
        AdminOpcode::GetFeatures => Ok(match feature_bytes(entry) {
            0 => AdminData::None,
            bytes => AdminData::ToHost(bytes),
        }),
        AdminOpcode::SetFeatures => Ok(match feature_bytes(entry) {
            0 => AdminData::None,
            bytes => AdminData::FromHost(bytes),
        }),
        AdminOpcode::NamespaceManagement => Ok(match NamespaceDwords::from_entry(entry).select {
            0 => AdminData::FromHost(IDENTIFY_BYTES),
            _ => AdminData::None,
        }),
        AdminOpcode::NamespaceAttachment => Ok(AdminData::FromHost(IDENTIFY_BYTES)),
        _ => Ok(AdminData::None),
    }
}

/// Returns the data length of a feature. Its capabilities (SEL 011b) have no data, and a host identifier may be 8
/// bytes.
fn feature_bytes(entry: &SubmissionEntry) -> u32 {
    let fields = FeatureDwords::from_entry(entry);
    let is_get = entry.opcode == AdminOpcode::GetFeatures.number();
    match FeatureId::from_number(fields.feature) {
        Some(_) if is_get && fields.select == 3 => 0,
        Some(FeatureId::HostIdentifier) if fields.value & 1 == 0 => 8,
        Some(feature) => feature.data_bytes(),
        None => 0,
    }
}
