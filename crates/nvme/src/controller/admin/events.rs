//! Asynchronous events (NVMe Base 2.0 section 5.2).
//!
//! Input: Asynchronous Event Requests of a host, and events. Output: one completion for each request. Invariant: a
//! reported event is not reported again before its log page is read; at most [`REQUESTS_MAX`] requests wait.

use crate::spec::feature::async_event_bit;
use crate::spec::log_page::LogPage;
use crate::spec::status::Status;
use std::collections::VecDeque;

/// The maximum number of outstanding Asynchronous Event Requests: AERL plus one.
pub(super) const REQUESTS_MAX: usize = 4;

/// An event that a controller reports to a host asynchronously.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AsyncEvent {
    /// A doorbell of a queue that does not exist was written.
    InvalidDoorbell,
    /// A doorbell was written with an invalid value.
    InvalidDoorbellValue,
    /// An internal part failed permanently.
    PersistentInternalError,
    /// The medium accepts no more writes.
    ReliabilityDegraded,
    /// Spare blocks are used up.
    SpareLow,
    /// Namespaces changed.
    NamespaceAttribute,
    /// The ANA state of the namespaces changed.
    AnaChange,
    /// The discovery log changed.
    DiscoveryLog,
    /// A sanitize operation ended.
    SanitizeCompleted,
}

impl AsyncEvent {
    /// Returns type, information (figures 145 to 150) and the log page that clears the event.
    const fn fields(self) -> (u32, u32, LogPage) {
        match self {
            Self::InvalidDoorbell => (0, 0x00, LogPage::Error),
            Self::InvalidDoorbellValue => (0, 0x01, LogPage::Error),
            Self::PersistentInternalError => (0, 0x03, LogPage::Error),
            Self::ReliabilityDegraded => (1, 0x00, LogPage::Health),
            Self::SpareLow => (1, 0x02, LogPage::Health),
            Self::NamespaceAttribute => (2, 0x00, LogPage::ChangedNamespaces),
            Self::AnaChange => (2, 0x03, LogPage::Ana),
            Self::DiscoveryLog => (2, 0xF0, LogPage::Discovery),
            Self::SanitizeCompleted => (6, 0x01, LogPage::Sanitize),
        }
    }

    /// Returns the bits of the Asynchronous Event Configuration that enable the event; 0 if it is always enabled.
    const fn enabled_by(self) -> u32 {
        match self {
            Self::ReliabilityDegraded => 1 << 2 | 1 << 3,
            Self::SpareLow => 1 << 0,
            Self::NamespaceAttribute => async_event_bit::NAMESPACE_ATTRIBUTE,
            Self::AnaChange => async_event_bit::ANA,
            Self::DiscoveryLog => async_event_bit::DISCOVERY_LOG,
            _ => 0,
        }
    }

    const fn dword(self) -> u32 {
        let (kind, information, page) = self.fields();
        kind | information << 8 | (page.number() as u32) << 16
    }
}

/// The completion of an Asynchronous Event Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEventCompletion {
    /// The request's command identifier.
    pub command_id: u16,
    /// Dword 0: the event.
    pub result: u32,
    /// Success, or the status of an aborted request.
    pub status: Status,
}

/// The requests and events of one controller.
#[derive(Clone, Debug, Default)]
pub(super) struct AsyncEventState {
    requests: VecDeque<u16>,
    aborted: VecDeque<u16>,
    pending: Vec<AsyncEvent>,
    /// Reported events whose log page was not read since.
    masked: Vec<AsyncEvent>,
}

impl AsyncEventState {
    /// Adds a request of the host.
    pub(super) fn request(&mut self, command_id: u16) -> Result<(), Status> {
        if self.requests.len() >= REQUESTS_MAX {
            return Err(Status::ASYNC_EVENT_LIMIT_EXCEEDED);
        }
        self.requests.push_back(command_id);
        Ok(())
    }

    /// Aborts a request of the host. Returns false if there is none with this id.
    pub(super) fn abort(&mut self, command_id: u16) -> bool {
        let Some(index) = self.requests.iter().position(|&waiting| waiting == command_id) else {
            return false;
        };
        self.requests.remove(index);
        self.aborted.push_back(command_id);
        true
    }

    /// Removes a request that its host has given up, without a completion.
    pub(super) fn forget(&mut self, command_id: u16) {
        self.requests.retain(|&waiting| waiting != command_id);
    }

    /// Enqueues an event. `enabled` is the Asynchronous Event Configuration.
    pub(super) fn notify(&mut self, event: AsyncEvent, enabled: u32) {
        let wanted = event.enabled_by() == 0 || event.enabled_by() & enabled != 0;
        if wanted && !self.pending.contains(&event) {
            self.pending.push(event);
        }
    }

    /// Unmasks the events of a log page, which the host read without retaining them.
    pub(super) fn clear(&mut self, page: LogPage) {
        self.masked.retain(|event| event.fields().2 != page);
    }

    /// Returns the next completion, if both a request and an unmasked event wait.
    pub(super) fn take(&mut self) -> Option<AsyncEventCompletion> {
        if let Some(command_id) = self.aborted.pop_front() {
            return Some(AsyncEventCompletion { command_id, result: 0, status: Status::ABORT_REQUESTED });
        }
        let masked = &self.masked;
        let index = self.pending.iter().position(|event| !is_masked(masked, *event))?;
        let command_id = self.requests.pop_front()?;
        let event = self.pending.remove(index);
        self.masked.push(event);
        Some(AsyncEventCompletion { command_id, result: event.dword(), status: Status::SUCCESS })
    }
}

/// Returns true if a reported event of the same page masks this one: the host has not read the page since.
fn is_masked(masked: &[AsyncEvent], event: AsyncEvent) -> bool {
    masked.iter().any(|reported| reported.fields().2 == event.fields().2)
}
