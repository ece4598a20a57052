//! Asynchronous events (NVMe Base 2.0 section 5.2).
//!
//! In: requests that a host leaves, and events. Out: one completion a request, never more. Invariant: an event that was
//! reported is not reported again before its log page was read; at most [`REQUESTS_MAX`] requests wait.

use crate::spec::feature::async_event_bit;
use crate::spec::log_page::LogPage;
use crate::spec::status::Status;
use std::collections::VecDeque;

/// AERL plus one: Asynchronous Event Requests that wait at once.
pub(super) const REQUESTS_MAX: usize = 4;

/// What a host may be told without asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AsyncEvent {
    /// A doorbell of a queue that does not exist was written.
    InvalidDoorbell,
    /// A doorbell was written with an impossible value.
    InvalidDoorbellValue,
    /// Something inside failed for good.
    PersistentInternalError,
    /// The medium takes no more writes.
    ReliabilityDegraded,
    /// Spare blocks are used up.
    SpareLow,
    /// Namespaces changed.
    NamespaceAttribute,
    /// The way to the namespaces changed.
    AnaChange,
    /// The discovery log changed.
    DiscoveryLog,
    /// A sanitize operation ended.
    SanitizeCompleted,
}

impl AsyncEvent {
    /// Type, information (figures 145 to 150) and the log page that clears it.
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

    /// The bit of the Asynchronous Event Configuration that lets it out; 0 when none is needed.
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

/// The answer to an Asynchronous Event Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncAnswer {
    /// The request's command identifier.
    pub command_id: u16,
    /// Dword 0: which event.
    pub result: u32,
    /// Success, or that the request was aborted.
    pub status: Status,
}

/// Requests and events of one controller.
#[derive(Clone, Debug, Default)]
pub(super) struct Events {
    requests: VecDeque<u16>,
    aborted: VecDeque<u16>,
    pending: Vec<AsyncEvent>,
    /// Reported, and their page not read since.
    masked: Vec<AsyncEvent>,
}

impl Events {
    /// A host leaves a request.
    pub(super) fn request(&mut self, command_id: u16) -> Result<(), Status> {
        if self.requests.len() >= REQUESTS_MAX {
            return Err(Status::ASYNC_EVENT_LIMIT_EXCEEDED);
        }
        self.requests.push_back(command_id);
        Ok(())
    }

    /// A host gives a request up. Whether it was there.
    pub(super) fn abort(&mut self, command_id: u16) -> bool {
        let Some(place) = self.requests.iter().position(|&waiting| waiting == command_id) else {
            return false;
        };
        self.requests.remove(place);
        self.aborted.push_back(command_id);
        true
    }

    /// Something happened. `enabled` is the Asynchronous Event Configuration.
    pub(super) fn notify(&mut self, event: AsyncEvent, enabled: u32) {
        let wanted = event.enabled_by() == 0 || event.enabled_by() & enabled != 0;
        if wanted && !self.pending.contains(&event) {
            self.pending.push(event);
        }
    }

    /// A log page was read, not retaining its event.
    pub(super) fn clear(&mut self, page: LogPage) {
        self.masked.retain(|event| event.fields().2 != page);
    }

    /// The next completion, if a request and an event meet.
    pub(super) fn take(&mut self) -> Option<AsyncAnswer> {
        if let Some(command_id) = self.aborted.pop_front() {
            return Some(AsyncAnswer { command_id, result: 0, status: Status::ABORT_REQUESTED });
        }
        let masked = &self.masked;
        let place = self.pending.iter().position(|event| !is_masked(masked, *event))?;
        let command_id = self.requests.pop_front()?;
        let event = self.pending.remove(place);
        self.masked.push(event);
        Some(AsyncAnswer { command_id, result: event.dword(), status: Status::SUCCESS })
    }
}

/// An event is masked by any of the same page: its host has not looked yet.
fn is_masked(masked: &[AsyncEvent], event: AsyncEvent) -> bool {
    masked.iter().any(|reported| reported.fields().2 == event.fields().2)
}
