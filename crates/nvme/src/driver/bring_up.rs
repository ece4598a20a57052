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
    pub(super) again: bool,
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
                let wanted = u32::from(self.queues_wanted() - 1);
                (entries::set_feature(FeatureId::NumberOfQueues, wanted << 16 | wanted), PageUse::None)
            }
            BringUpStep::Active { after: 0 } if self.is_before_lists() => return self.without_lists(now),
            BringUpStep::Active { after } => {
                self.scan.running = true;
                (entries::identify(IdentifyView::ActiveNamespaces, after, 0), PageUse::ToHost)
            }
            BringUpStep::Descriptors { index } if !by_set => {
                return self.begin(BringUpStep::Namespace { index, set: 0 }, now);
            }
            BringUpStep::Descriptors { index } => match self.scan.ids.get(index) {
                Some(&id) => (entries::identify(IdentifyView::Descriptors, id, 0), PageUse::ToHost),
                None => return self.scanned(now),
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
                        return self.note(index, Some(ScannedNamespace::unusable(id, fault)), now);
                    }
                    (None, _) => return self.scanned(now),
                }
            }
            BringUpStep::Events => {
                let offered = self.facts.as_ref().map_or(0, |facts| facts.async_events);
                (entries::set_feature(FeatureId::AsyncEvents, events::wanted(offered)), PageUse::None)
            }
            BringUpStep::Weights => match self.weights() {
                Some(dword) => (entries::set_feature(FeatureId::Arbitration, dword), PageUse::None),
                None => return self.begin(BringUpStep::Ready, now),
            },
            BringUpStep::Ready => return self.become_ready(now),
        };
        let deadline = Some(now.after(self.config.admin_timeout));
        let Some(admin) = &mut self.admin else { return };
        // The driver sends one step at a time and the queue reserves room for it: a full queue is a fault of the
        // controller.
        if admin.send(entry, page, AdminPurpose::Step(step), deadline).is_err() {
            return self.recover(ResetCause::AdminTimeout { opcode: entry.opcode }, now);
        }
        admin.ring();
    }

    /// Processes the completion of any admin command.
    pub(super) fn answered(&mut self, answered: CompletedAdminCommand<H::Words>, now: Nanos) {
        let CompletedAdminCommand { purpose, completion, data } = answered;
        match purpose {
            AdminPurpose::Step(step) => self.step_done(step, completion, &data, now),
            AdminPurpose::Event => self.event(completion, now),
            AdminPurpose::Clear(notice) => self.event_cleared(notice, now),
            other => self.request_done(other, completion, data, now),
        }
    }

    fn step_done(&mut self, step: BringUpStep, completion: CommandCompletion, data: &[u8], now: Nanos) {
        let status = completion.status;
        let succeeded = status.is_success();
        match step {
            BringUpStep::Controller if succeeded => self.controller_described(data, now),
            BringUpStep::Controller => self.refused("Identify Controller", status, now),
            BringUpStep::Combinations if succeeded => match combination(data) {
                0 => self.begin(BringUpStep::Queues, now),
                index => self.begin(BringUpStep::Profile(index), now),
            },
            // If no profile is set, combination 0 stays in effect.
            BringUpStep::Combinations | BringUpStep::Profile(_) => self.begin(BringUpStep::Queues, now),
            BringUpStep::Queues if succeeded => {
                self.queues_granted(completion.result);
                self.begin(BringUpStep::Active { after: 0 }, now);
            }
            BringUpStep::Queues => self.refused("Set Features Number of Queues", status, now),
            BringUpStep::Active { after } if succeeded => self.listed(after, data, now),
            BringUpStep::Active { .. } => self.refused("Identify Active Namespace ID list", status, now),
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
                    (true, 0) => ScannedNamespace::read_block(id, data),
                    (true, _) => ScannedNamespace::read_keys(id, data),
                };
                self.note(index, found, now);
            }
            BringUpStep::Events => self.begin(BringUpStep::Weights, now),
            BringUpStep::Weights => self.begin(BringUpStep::Ready, now),
            BringUpStep::Ready => {}
        }
    }

    fn refused(&mut self, what: &'static str, status: Status, now: Nanos) {
        self.recover(ResetCause::Refused { what, status }, now);
    }

    fn controller_described(&mut self, data: &[u8], now: Nanos) {
        let Some(capabilities) = self.capabilities else { return };
        let Some(mut facts) = ControllerInfo::read(data, &capabilities) else {
            return self.die(DeathCause::Identify);
        };
        facts.weighted_round_robin = self.uses_weights(&capabilities);
        self.facts = Some(facts);
        self.begin(BringUpStep::Combinations, now);
    }

    fn queues_wanted(&self) -> u16 {
        let possible = self.capabilities.map_or(1, |found| found.io_queues_max);
        self.config.io_queues.clamp(1, possible)
    }

    /// Stores NSQA and NCQA, which are 0's based; a controller may grant more than the driver requested.
    fn queues_granted(&mut self, result: u32) {
        let [a, b, c, d] = result.to_le_bytes();
        let granted = u16::from_le_bytes([a, b]).min(u16::from_le_bytes([c, d])).saturating_add(1);
        let wanted = self.queues_wanted();
        if let Some(facts) = &mut self.facts {
            facts.io_queues = granted.min(wanted);
        }
    }

    fn is_before_lists(&self) -> bool {
        self.capabilities.is_some_and(|found| found.version < VERSION_WITH_LISTS)
    }

    /// Scans namespaces 1 to NN of a controller without namespace lists; some of them may be inactive.
    fn without_lists(&mut self, now: Nanos) {
        let count = self.facts.as_ref().map_or(0, |facts| facts.namespaces_max);
        let max = u32::try_from(NAMESPACES_MAX).unwrap_or(u32::MAX);
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

    fn note(&mut self, index: usize, found: Option<ScannedNamespace>, now: Nanos) {
        self.scan.found.extend(found);
        self.begin(BringUpStep::Descriptors { index: index + 1 }, now);
    }

    fn scanned(&mut self, now: Nanos) {
        let scan = std::mem::take(&mut self.scan);
        self.namespaces = scan.found;
        if matches!(self.state, DriverState::BringUp) {
            return self.begin(BringUpStep::Events, now);
        }
        if scan.again {
            self.begin(BringUpStep::Active { after: 0 }, now);
        }
    }

    fn weights(&self) -> Option<u32> {
        let weights = self.config.weights?;
        self.capabilities.filter(|found| self.uses_weights(found)).map(|_| weights.dword())
    }

    fn become_ready(&mut self, now: Nanos) {
        self.state = DriverState::Ready { since: now };
        let max = self.facts.as_ref().map_or(1, |facts| facts.events_max);
        for _ in 0..events::REQUESTS.min(max) {
            self.request_event();
        }
        self.life.set(DriverPhase::Ready);
    }
}

/// Returns the index of the combination with the most command sets that this driver supports; the first of equals
/// (CNS 1Ch).
fn combination(data: &[u8]) -> u32 {
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
        assert_eq!(combination(&page(&[0b1, 0b101, 0b111, 0b11, 0])), 2);
        assert_eq!(combination(&page(&[0b11, 0b11])), 0);
        assert_eq!(combination(&page(&[0, 0b11])), 0, "a list ends with a zero");
        assert_eq!(combination(&[]), 0);
    }
}
