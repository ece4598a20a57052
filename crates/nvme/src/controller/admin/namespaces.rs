//! Namespace Management, Namespace Attachment, Format NVM and Sanitize (NVMe Base 2.0 sections 5.14, 5.22 to 5.24).
//!
//! Input: entries and their data. Output: a [`NamespaceAction`] with validated numbers, which the subsystem performs.

use super::{AdminStep, DeviceController, NamespaceAction, NamespaceFormat, NvmSubsystem, SanitizeState};
use crate::spec::admin::{FormatDwords, NamespaceDwords, SanitizeDwords};
use crate::spec::command::SubmissionEntry;
use crate::spec::identify::{CommandSet, IDENTIFY_LENGTH, IdentifyNvm, LBA_FORMAT_SHIFTS, NSID_BROADCAST};
use crate::spec::status::Status;
use zerocopy::FromBytes;

/// The largest supported SES of Format NVM: no erase, or erase of user data. Cryptographic erase is not supported.
const SECURE_ERASE_MAX: u8 = 1;

impl DeviceController {
    pub(super) fn manage_namespace(
        &self,
        entry: &SubmissionEntry,
        data: &[u8],
        subsystem: &impl NvmSubsystem,
    ) -> Result<AdminStep, Status> {
        refuse_while_sanitizing(subsystem)?;
        let fields = NamespaceDwords::from_entry(entry);
        let nsid = entry.namespace.get();
        match fields.select {
            0 if nsid != 0 => Err(Status::INVALID_FIELD),
            0 => decode_create(fields.command_set, data),
            1 => {
                if nsid != NSID_BROADCAST {
                    check_allocated(nsid, subsystem)?;
                }
                Ok(AdminStep::Namespace(NamespaceAction::Delete { nsid }))
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    pub(super) fn attach_namespace(
        &self,
        entry: &SubmissionEntry,
        data: &[u8],
        subsystem: &impl NvmSubsystem,
    ) -> Result<AdminStep, Status> {
        refuse_while_sanitizing(subsystem)?;
        let nsid = entry.namespace.get();
        check_allocated(nsid, subsystem)?;
        let controllers = controllers_of(data, &subsystem.controllers())?;
        let is_attached = |id: &u16| subsystem.is_attached(nsid, *id);
        match NamespaceDwords::from_entry(entry).select {
            0 if controllers.iter().any(is_attached) => Err(Status::NAMESPACE_ALREADY_ATTACHED),
            0 => Ok(AdminStep::Namespace(NamespaceAction::Attach { nsid, controllers })),
            1 if !controllers.iter().all(is_attached) => Err(Status::NAMESPACE_NOT_ATTACHED),
            1 => Ok(AdminStep::Namespace(NamespaceAction::Detach { nsid, controllers })),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    pub(super) fn format(
        &self,
        entry: &SubmissionEntry,
        subsystem: &impl NvmSubsystem,
    ) -> Result<AdminStep, Status> {
        refuse_while_sanitizing(subsystem)?;
        let fields = FormatDwords::from_entry(entry);
        let nsid = entry.namespace.get();
        if fields.secure_erase > SECURE_ERASE_MAX {
            return Err(Status::INVALID_FIELD);
        }
        if fields.protection != 0 {
            return Err(Status::INVALID_FORMAT);
        }
        let has_format = |format: NamespaceFormat| match format {
            NamespaceFormat::Block { .. } => usize::from(fields.format) < LBA_FORMAT_SHIFTS.len(),
            NamespaceFormat::KeyValue => fields.format == 0,
        };
        let formats = if nsid == NSID_BROADCAST {
            let all = (1..=subsystem.namespaces_max())
                .filter_map(|nsid| self.active_namespace(nsid, subsystem).ok()?);
            all.map(|facts| facts.format).collect()
        } else {
            let facts = self.active_namespace(nsid, subsystem)?.ok_or(Status::INVALID_FIELD)?;
            vec![facts.format]
        };
        if !formats.into_iter().all(has_format) {
            return Err(Status::INVALID_FORMAT);
        }
        Ok(AdminStep::Namespace(NamespaceAction::Format { nsid, index: fields.format }))
    }

    pub(super) fn sanitize(
        &mut self,
        entry: &SubmissionEntry,
        subsystem: &impl NvmSubsystem,
    ) -> Result<AdminStep, Status> {
        refuse_while_sanitizing(subsystem)?;
        let fields = SanitizeDwords::from_entry(entry);
        match fields.action {
            // Exit Failure Mode: allowed only if the failed sanitize permitted it (section 8.21).
            1 => match subsystem.sanitize() {
                facts if facts.state != SanitizeState::Failed => Ok(AdminStep::success()),
                facts if facts.command & 1 << 3 != 0 => {
                    Ok(AdminStep::Namespace(NamespaceAction::LeaveSanitizeFailure))
                }
                _ => Err(Status::SANITIZE_FAILED),
            },
            // Block erase. Blocks cannot stay allocated (SANICAP.NDI), and no mode merely warns of it.
            2 if fields.no_deallocate => Err(Status::INVALID_FIELD),
            2 => {
                self.sanitizes_before = Some(subsystem.sanitize().started);
                Ok(AdminStep::Namespace(NamespaceAction::Sanitize { command: entry.cdw10.get() }))
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }
}

fn refuse_while_sanitizing(subsystem: &impl NvmSubsystem) -> Result<(), Status> {
    match subsystem.sanitize().state {
        SanitizeState::Running(_) => Err(Status::SANITIZE_IN_PROGRESS),
        _ => Ok(()),
    }
}

/// Checks that the NSID names an allocated namespace, attached or not.
fn check_allocated(nsid: u32, subsystem: &impl NvmSubsystem) -> Result<(), Status> {
    if !(1..=subsystem.namespaces_max()).contains(&nsid) {
        return Err(Status::INVALID_NAMESPACE);
    }
    subsystem.namespace(nsid).map(|_| ()).ok_or(Status::INVALID_FIELD)
}

/// Decodes a create. The relevant fields of both command sets lie at the same offsets (NVM 1.0 figure 105, KV 1.0d
/// figure 41).
fn decode_create(command_set: u8, data: &[u8]) -> Result<AdminStep, Status> {
    let set = CommandSet::from_number(command_set).ok_or(Status::COMMAND_SET_NOT_SUPPORTED)?;
    let (page, _) = IdentifyNvm::ref_from_prefix(data).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
    let size = page.size.get();
    let format = match set {
        CommandSet::KeyValue => NamespaceFormat::KeyValue,
        CommandSet::Nvm => {
            // FLBAS 3:0 and 6:5; bit 4 requests metadata at the end of the data.
            let index = page.format & 0xF | (page.format >> 1) & 0x30;
            if usize::from(index) >= LBA_FORMAT_SHIFTS.len()
                || page.format & 1 << 4 != 0
                || page.protection != 0
            {
                return Err(Status::INVALID_FORMAT);
            }
            if page.capacity.get() != size {
                return Err(Status::THIN_PROVISIONING_NOT_SUPPORTED);
            }
            if size == 0 {
                return Err(Status::INVALID_FIELD);
            }
            NamespaceFormat::Block { index }
        }
    };
    Ok(AdminStep::Namespace(NamespaceAction::Create { format, size }))
}

/// Decodes a Controller List (4.4.1): at least one, in ascending order, each an existing controller.
fn controllers_of(data: &[u8], known: &[u16]) -> Result<Vec<u16>, Status> {
    let mut words =
        data.chunks_exact(2).take(IDENTIFY_LENGTH / 2).map(|word| u16::from_le_bytes([word[0], word[1]]));
    let count = usize::from(words.next().unwrap_or(0));
    let controllers: Vec<u16> = words.take(count).collect();
    let in_order = controllers.windows(2).all(|pair| pair[0] < pair[1]);
    let all_known = controllers.iter().all(|id| known.contains(id));
    if count == 0 || controllers.len() != count || !in_order || !all_known {
        return Err(Status::CONTROLLER_LIST_INVALID);
    }
    Ok(controllers)
}
