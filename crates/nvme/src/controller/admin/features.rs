//! Get Features and Set Features (NVMe Base 2.0 sections 5.15 and 5.27; KV 1.0d section 4.1.3).
//!
//! Input: entries and their data. Output: dword 0, data, or a change of stored values. Invariant: every feature has a
//! current value at any time; a reset restores all defaults but those of namespaces, which the subsystem stores.

mod values;

pub(super) use values::{FeatureValues, WARNING_TEMPERATURE};

use super::{
    AdminCompletion, AdminStep, ControllerKind, ControllerTransport, DeviceController, NamespaceAction,
    NvmSubsystem,
};
use crate::spec::admin::FeatureDwords;
use crate::spec::command::SubmissionEntry;
use crate::spec::feature::{FeatureId, FeatureScope, FeatureSelect, supported_dword};
use crate::spec::identify::{CommandSet, NSID_BROADCAST};
use crate::spec::register::CommandSets;
use crate::spec::status::Status;
use headwater_host::clock::Nanos;
use headwater_host::width::narrow;

/// The reserved value of NSQR and NCQR.
const QUEUES_RESERVED: u32 = 0xFFFF;
/// The IOCSCI field of the Command Set Profile.
const PROFILE_INDEX: u32 = 0x1FF;

impl DeviceController {
    /// Returns true if the feature exists on this kind of controller.
    pub(super) fn has_feature(&self, feature: FeatureId) -> bool {
        let on_pcie = self.config.transport == ControllerTransport::Pcie;
        if self.config.kind == ControllerKind::Discovery {
            return matches!(feature, FeatureId::AsyncEvents | FeatureId::KeepAliveTimer);
        }
        match feature {
            FeatureId::InterruptCoalescing | FeatureId::InterruptVector => on_pcie,
            _ => true,
        }
    }

    fn feature(&self, fields: &FeatureDwords, subsystem: &impl NvmSubsystem) -> Result<FeatureId, Status> {
        FeatureId::from_number(fields.feature)
            .filter(|&feature| self.has_feature(feature))
            // Without a write cache the feature does not exist (5.27.1.4).
            .filter(|&feature| feature != FeatureId::WriteCache || subsystem.has_write_cache())
            .ok_or(Status::INVALID_FIELD)
    }

    pub(super) fn get_features(
        &mut self,
        entry: &SubmissionEntry,
        subsystem: &impl NvmSubsystem,
        now: Nanos,
    ) -> Result<AdminCompletion, Status> {
        let fields = FeatureDwords::from_entry(entry);
        let feature = self.feature(&fields, subsystem)?;
        let select = FeatureSelect::from_number(fields.select).ok_or(Status::INVALID_FIELD)?;
        let nsid = entry.namespace.get();
        if feature.scope() == FeatureScope::Namespace {
            self.check_namespace_feature(feature, nsid, subsystem)?;
        }
        match (select, feature) {
            (FeatureSelect::Supported, _) => Ok(AdminCompletion::with_result(supported_dword(feature))),
            (FeatureSelect::Current, FeatureId::KeyValueConfiguration) => {
                let is_error = subsystem.namespace(nsid).is_some_and(|facts| facts.missing_key_is_error);
                Ok(AdminCompletion::with_result(u32::from(is_error)))
            }
            (_, FeatureId::KeyValueConfiguration) => Ok(AdminCompletion::with_result(0)),
            (_, FeatureId::WriteCache) => Ok(AdminCompletion::with_result(1)),
            (FeatureSelect::Current, FeatureId::KeepAliveTimer) => {
                Ok(AdminCompletion::with_result(self.keep_alive.timeout_ms()))
            }
            (FeatureSelect::Current, _) => self.features.get(feature, fields.value, now),
            // No value can be saved, so the saved value is the default (5.15).
            (FeatureSelect::Default | FeatureSelect::Saved, _) => {
                FeatureValues::new(&self.config, now).get(feature, fields.value, now)
            }
        }
    }

    pub(super) fn set_features(
        &mut self,
        entry: &SubmissionEntry,
        data: &[u8],
        subsystem: &impl NvmSubsystem,
        now: Nanos,
    ) -> Result<AdminStep, Status> {
        let fields = FeatureDwords::from_entry(entry);
        let feature = self.feature(&fields, subsystem)?;
        let nsid = entry.namespace.get();
        if fields.saves {
            return Err(Status::FEATURE_NOT_SAVEABLE);
        }
        match feature.scope() {
            FeatureScope::Controller if nsid != 0 && nsid != NSID_BROADCAST => {
                return Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC);
            }
            FeatureScope::Namespace if nsid != NSID_BROADCAST => {
                self.check_namespace_feature(feature, nsid, subsystem)?;
            }
            _ => {}
        }
        match feature {
            FeatureId::NumberOfQueues => self.set_number_of_queues(fields.value),
            FeatureId::KeyValueConfiguration => {
                let is_error = fields.value & 1 == 1;
                Ok(AdminStep::Namespace(NamespaceAction::SetMissingKeyError { nsid, is_error }))
            }
            FeatureId::KeepAliveTimer => {
                // A fabrics host cannot turn its Keep Alive timer off (3.9).
                if fields.value == 0
                    && self.config.transport == ControllerTransport::Fabrics
                    && self.keep_alive.timeout_ms() > 0
                {
                    return Err(Status::INVALID_FIELD);
                }
                self.keep_alive.set(fields.value, now);
                Ok(AdminStep::success())
            }
            FeatureId::CommandSetProfile => self.select_profile(fields.value),
            FeatureId::WriteCache if fields.value & 1 == 1 => Ok(AdminStep::success()),
            FeatureId::WriteCache => Err(Status::FEATURE_NOT_CHANGEABLE),
            // Connect sets the host identifier (5.27.1.25).
            FeatureId::HostIdentifier if self.config.transport == ControllerTransport::Fabrics => {
                Err(Status::COMMAND_SEQUENCE_ERROR)
            }
            _ => self.features.set(feature, fields.value, data, now).map(|()| AdminStep::success()),
        }
    }

    /// Checks that the namespace is attached and that its command set has the feature.
    fn check_namespace_feature(
        &self,
        feature: FeatureId,
        nsid: u32,
        subsystem: &impl NvmSubsystem,
    ) -> Result<(), Status> {
        let facts = self.active_namespace(nsid, subsystem)?.ok_or(Status::INVALID_FIELD)?;
        let set = match feature {
            FeatureId::KeyValueConfiguration => CommandSet::KeyValue,
            _ => CommandSet::Nvm,
        };
        if facts.format.command_set() == set { Ok(()) } else { Err(Status::INVALID_NAMESPACE) }
    }

    /// Sets Number of Queues (5.27.1.5): 0's based, both kinds; only before the first I/O queue is created.
    fn set_number_of_queues(&mut self, value: u32) -> Result<AdminStep, Status> {
        if self.queues_created {
            return Err(Status::COMMAND_SEQUENCE_ERROR);
        }
        let (submission, completion) = (value & 0xFFFF, value >> 16);
        if submission == QUEUES_RESERVED || completion == QUEUES_RESERVED {
            return Err(Status::INVALID_FIELD);
        }
        let requested = submission.max(completion) + 1;
        let granted = narrow(requested.min(self.config.io_queues_max.into()).max(1));
        self.features.grant_io_queues(granted);
        Ok(AdminStep::Done(AdminCompletion::with_result(self.features.number_of_queues())))
    }

    /// Selects the I/O Command Set Profile (5.27.1.21): the only combination, 0, is always selected.
    fn select_profile(&self, value: u32) -> Result<AdminStep, Status> {
        if self.configuration().command_sets() != Some(CommandSets::All) {
            return Err(Status::INVALID_FIELD);
        }
        if value & PROFILE_INDEX != 0 {
            return Err(Status::COMMAND_SET_COMBINATION_REJECTED);
        }
        Ok(AdminStep::Done(AdminCompletion::with_result(0)))
    }
}
