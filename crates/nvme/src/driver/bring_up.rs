//! The sequence of admin commands that prepares a controller, and the scan of namespaces, also repeated after changes.
//!
//! Input: completions. Output: facts, namespaces, and a controller that is ready. Invariant: the number of commands is
//! bounded by [`NAMESPACES_MAX`] namespaces; a refused optional step is skipped.
//!
//! ```text
//!   Controller > Combinations > Profile > Queues > Active > [ Descriptors > Namespace ] ... > Events > Weights > ready
//! ```

use super::admin_queue::{AdminPurpose, CompletedAdminCommand, PageUse};
use super::capabilities::CommandSetSelection;
use super::controller_info::{ControllerInfo, NamespaceFault, ScannedNamespace, command_set};
use super::entries;
use super::error::{DeathCause, ResetCause};
use super::events;
use super::lifecycle::DriverPhase;
use super::memory::HostMemory;
use super::nvme_driver::NvmeDriver;
use super::pci_function::PciFunction;
use super::recovery::DriverState;
use crate::queue_pair::CommandCompletion;
use crate::spec::feature::FeatureId;
use crate::spec::identify::{CommandSet, IdentifyView, NSID_LIST_MAX};
use crate::spec::status::Status;
use headwater_host::clock::Nanos;
use headwater_host::width::narrow;

/// Most namespaces that the driver scans; further namespaces of a controller are not used.
pub const NAMESPACES_MAX: usize = 1_024;
/// First version with a list of active namespaces (VS 1.1).
const VERSION_WITH_LISTS: u32 = 0x0001_0100;

/// A step of the sequence: one admin command, except for `Ready`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BringUpStep {
    Controller,
    Combinations,
    Profile(u32),
    Queues,
    Active { after: u32 },
    Descriptors { index: usize },
    Namespace { index: usize, set: u8 },
    Events,
    Weights,
    Ready,
}

/// A scan of all namespaces in progress.
#[derive(Debug, Default)]
pub(super) struct NamespaceScan {
    ids: Vec<u32>,
    found: Vec<ScannedNamespace>,
    /// True if namespaces changed again during the scan.
    pub(super) rescan: bool,
    pub(super) running: bool,
}

impl<F: PciFunction, H: HostMemory> NvmeDriver<F, H> {
    /// Sends the command of a step, or begins the next step if this one is not needed.
    pub(super) fn begin(&mut self, step: BringUpStep, now: Nanos) {
        let by_set = self.capabilities.is_some_and(|found| found.sets == CommandSetSelection::All);
        let (entry, page) = match step {
            BringUpStep::Controller => (entries::identify(IdentifyView::Controller, 0, 0), PageUse::ToHost),
            BringUpStep::Combinations if by_set => {
                (entries::identify_own(IdentifyView::CommandSetCombinations), PageUse::ToHost)
            }
            BringUpStep::Combinations => return self.begin(BringUpStep::Queues, now),
            BringUpStep::Profile(index) => {
                (entries::set_feature(FeatureId::CommandSetProfile, index), PageUse::None)
            }
            BringUpStep::Queues => {
                let wanted = u32::from(self.requested_queues() - 1);
                (entries::set_feature(FeatureId::NumberOfQueues, wanted << 16 | wanted), PageUse::None)
            }
            BringUpStep::Active { after: 0 } if self.is_before_lists() => return self.scan_all_ids(now),
            BringUpStep::Active { after } => {
                self.scan.running = true;
                (entries::identify(IdentifyView::ActiveNamespaces, after, 0), PageUse::ToHost)
            }
            BringUpStep::Descriptors { index } if !by_set => {
                return self.begin(BringUpStep::Namespace { index, set: 0 }, now);
            }
            BringUpStep::Descriptors { index } => match self.scan.ids.get(index) {
                Some(&id) => (entries::identify(IdentifyView::Descriptors, id, 0), PageUse::ToHost),
                None => return self.finish_scan(now),
            },
            BringUpStep::Namespace { index, set } => {
                match (self.scan.ids.get(index), CommandSet::from_number(set)) {
                    (Some(&id), Some(CommandSet::Nvm)) => {
                        (entries::identify(IdentifyView::Namespace, id, 0), PageUse::ToHost)
                    }
                    (Some(&id), Some(CommandSet::KeyValue)) => {
                        (entries::identify(IdentifyView::CommandSetNamespace, id, set), PageUse::ToHost)
                    }
                    (Some(&id), None) => {
                        let fault = NamespaceFault::CommandSet { namespace: id, command_set: set };
                        return self.store_namespace(index, Some(ScannedNamespace::unusable(id, fault)), now);
                    }
                    (None, _) => return self.finish_scan(now),
                }
            }
            BringUpStep::Events => {
                let offered = self.info.as_ref().map_or(0, |facts| facts.async_events);
                (entries::set_feature(FeatureId::AsyncEvents, events::enabled_events(offered)), PageUse::None)
            }
            BringUpStep::Weights => match self.arbitration_dword() {
                Some(dword) => (entries::set_feature(FeatureId::Arbitration, dword), PageUse::None),
                None => return self.begin(BringUpStep::Ready, now),
            },
            BringUpStep::Ready => return self.enter_ready(now),
        };
        let deadline = Some(now.after(self.config.admin_timeout));
        let Some(admin) = &mut self.admin else { return };
        // The driver sends one step at a time and the queue reserves room for it: a full queue is a fault of the
        // controller.
        if admin.send(entry, page, AdminPurpose::Step(step), deadline).is_err() {
            return self.start_reset(ResetCause::AdminTimeout { opcode: entry.opcode }, now);
        }
        admin.ring();
    }

    /// Processes the completion of any admin command.
    pub(super) fn handle_completion(&mut self, answered: CompletedAdminCommand<H::Words>, now: Nanos) {
        let CompletedAdminCommand { purpose, completion, data } = answered;
        match purpose {
            AdminPurpose::Step(step) => self.finish_step(step, completion, &data, now),
            AdminPurpose::EventRequest => self.handle_event(completion, now),
            AdminPurpose::ClearEvent(notice) => self.finish_event(notice, now),
            other => self.finish_request(other, completion, data, now),
        }
    }

    fn finish_step(&mut self, step: BringUpStep, completion: CommandCompletion, data: &[u8], now: Nanos) {
        let status = completion.status;
        let succeeded = status.is_success();
        match step {
            BringUpStep::Controller if succeeded => self.store_controller_info(data, now),
            BringUpStep::Controller => self.reset_after_refusal("Identify Controller", status, now),
            BringUpStep::Combinations if succeeded => match best_combination(data) {
                0 => self.begin(BringUpStep::Queues, now),
                index => self.begin(BringUpStep::Profile(index), now),
            },
            // If no profile is set, combination 0 stays in effect.
            BringUpStep::Combinations | BringUpStep::Profile(_) => self.begin(BringUpStep::Queues, now),
            BringUpStep::Queues if succeeded => {
                self.store_granted_queues(completion.result);
                self.begin(BringUpStep::Active { after: 0 }, now);
            }
            BringUpStep::Queues => self.reset_after_refusal("Set Features Number of Queues", status, now),
            BringUpStep::Active { after } if succeeded => self.listed(after, data, now),
            BringUpStep::Active { .. } => {
                self.reset_after_refusal("Identify Active Namespace ID list", status, now);
            }
            BringUpStep::Descriptors { index } => {
                let set = if succeeded { command_set(data) } else { 0 };
                self.begin(BringUpStep::Namespace { index, set }, now);
            }
            BringUpStep::Namespace { index, set } => {
                let id = self.scan.ids.get(index).copied().unwrap_or(0);
                let found = match (succeeded, set) {
                    (false, _) => Some(ScannedNamespace::unusable(
                        id,
                        NamespaceFault::Refused { namespace: id, status },
                    )),
                    (true, 0) => ScannedNamespace::parse_block(id, data),
                    (true, _) => ScannedNamespace::parse_key_value(id, data),
                };
                self.store_namespace(index, found, now);
            }
            BringUpStep::Events => self.begin(BringUpStep::Weights, now),
            BringUpStep::Weights => self.begin(BringUpStep::Ready, now),
            BringUpStep::Ready => {}
        }
    }

    fn reset_after_refusal(&mut self, what: &'static str, status: Status, now: Nanos) {
        self.start_reset(ResetCause::Refused { command: what, status }, now);
    }

    fn store_controller_info(&mut self, data: &[u8], now: Nanos) {
        let Some(capabilities) = self.capabilities else { return };
        let Some(mut facts) = ControllerInfo::read(data, &capabilities) else {
            return self.enter_dead(DeathCause::Identify);
        };
        facts.weighted_round_robin = self.uses_weights(&capabilities);
        self.info = Some(facts);
        self.begin(BringUpStep::Combinations, now);
    }

    fn requested_queues(&self) -> u16 {
        let possible = self.capabilities.map_or(1, |found| found.io_queues_max);
        self.config.io_queues.clamp(1, possible)
    }

    /// Stores NSQA and NCQA, which are 0's based; a controller may grant more than the driver requested.
    fn store_granted_queues(&mut self, result: u32) {
        let [a, b, c, d] = result.to_le_bytes();
        let granted = u16::from_le_bytes([a, b]).min(u16::from_le_bytes([c, d])).saturating_add(1);
        let wanted = self.requested_queues();
        if let Some(facts) = &mut self.info {
            facts.io_queues = granted.min(wanted);
        }
    }

    fn is_before_lists(&self) -> bool {
        self.capabilities.is_some_and(|found| found.version < VERSION_WITH_LISTS)
    }

    /// Scans namespaces 1 to NN of a controller without namespace lists; some of them may be inactive.
    fn scan_all_ids(&mut self, now: Nanos) {
        let count = self.info.as_ref().map_or(0, |facts| facts.namespaces_max);
        let max = narrow(NAMESPACES_MAX);
        self.scan =
            NamespaceScan { ids: (1..=count.min(max)).collect(), running: true, ..NamespaceScan::default() };
        self.begin(BringUpStep::Descriptors { index: 0 }, now);
    }

    fn listed(&mut self, after: u32, data: &[u8], now: Nanos) {
        if after == 0 {
            self.scan = NamespaceScan { running: true, ..NamespaceScan::default() };
        }
        let mut last = after;
        for id in data.chunks_exact(4).map(|id| id.try_into().map_or(0, u32::from_le_bytes)) {
            // Identifiers ascend and a zero ends the list; the first that does not ascend ends it too.
            if id <= last || self.scan.ids.len() == NAMESPACES_MAX {
                break;
            }
            self.scan.ids.push(id);
            last = id;
        }
        let is_full = self.scan.ids.len().is_multiple_of(NSID_LIST_MAX) && last != after;
        if is_full && self.scan.ids.len() < NAMESPACES_MAX {
            return self.begin(BringUpStep::Active { after: last }, now);
        }
        self.begin(BringUpStep::Descriptors { index: 0 }, now);
    }

    fn store_namespace(&mut self, index: usize, found: Option<ScannedNamespace>, now: Nanos) {
        self.scan.found.extend(found);
        self.begin(BringUpStep::Descriptors { index: index + 1 }, now);
    }

    fn finish_scan(&mut self, now: Nanos) {
        let scan = std::mem::take(&mut self.scan);
        self.namespaces = scan.found;
        if matches!(self.state, DriverState::BringUp) {
            return self.begin(BringUpStep::Events, now);
        }
        if scan.rescan {
            self.begin(BringUpStep::Active { after: 0 }, now);
        }
    }

    fn arbitration_dword(&self) -> Option<u32> {
        let weights = self.config.weights?;
        self.capabilities.filter(|found| self.uses_weights(found)).map(|_| weights.dword())
    }

    fn enter_ready(&mut self, now: Nanos) {
        self.state = DriverState::Ready { since: now };
        let max = self.info.as_ref().map_or(1, |facts| facts.events_max);
        for _ in 0..events::REQUESTS.min(max) {
            self.send_event_request();
        }
        self.lifecycle.set(DriverPhase::Ready);
    }
}

/// Returns the index of the combination with the most command sets that this driver supports; the first of equals
/// (CNS 1Ch).
fn best_combination(data: &[u8]) -> u32 {
    let known = |vector: u64| (vector & 0b11).count_ones();
    let vectors = data.chunks_exact(8).map(|vector| vector.try_into().map_or(0, u64::from_le_bytes));
    let mut best = (0, 0);
    for (index, vector) in (0_u32..).zip(vectors.take_while(|&vector| vector != 0)) {
        if known(vector) > best.1 {
            best = (index, known(vector));
        }
    }
    best.0
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn combination_with_most_supported_sets_is_chosen_first_of_equals() {
        let page =
            |vectors: &[u64]| vectors.iter().flat_map(|vector| vector.to_le_bytes()).collect::<Vec<_>>();
        assert_eq!(best_combination(&page(&[0b1, 0b101, 0b111, 0b11, 0])), 2);
        assert_eq!(best_combination(&page(&[0b11, 0b11])), 0);
        assert_eq!(best_combination(&page(&[0, 0b11])), 0, "a list ends with a zero");
        assert_eq!(best_combination(&[]), 0);
    }
}
