//! Asynchronous events (NVMe Base 2.0 section 5.2) on the host side.
//!
//! Input: dword 0 of a completion. Output: the event, and the log page to read so that the controller may send the next
//! event of its type.

use crate::spec::feature::async_event_bit;
use crate::spec::log_page::LogPage;

/// Asynchronous Event Requests outstanding at the controller.
pub(super) const REQUESTS: u32 = 2;
/// Most notices that wait for the owner; later ones are dropped without loss, because the log pages hold the state.
pub(super) const NOTICES_MAX: usize = 64;
/// Bytes of a log page read to clear an event: an entry of the error log, the health page, a list.
const ERROR_BYTES: u32 = 64;
const PAGE_BYTES: u32 = 512;
const LIST_BYTES: u32 = 4_096;

/// An asynchronous event of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncNotice {
    /// Type (figure 145): 0 error, 1 health, 2 notice, 6 I/O command set, 7 vendor.
    pub kind: u8,
    /// Information, by type.
    pub information: u8,
    /// The log page with the details.
    pub log_page: u8,
}

impl AsyncNotice {
    pub(super) const fn of(dword: u32) -> Self {
        let [kind, information, log_page, _] = dword.to_le_bytes();
        Self { kind: kind & 0b111, information, log_page }
    }

    /// Returns true if namespaces were attached, detached or changed.
    #[must_use]
    pub const fn is_namespace_change(self) -> bool {
        self.kind == 2 && self.information == 0
    }

    /// Returns how many bytes of the log page to read.
    pub(super) const fn log_bytes(self) -> u32 {
        const ERROR: u8 = LogPage::Error.number();
        const CHANGED: u8 = LogPage::ChangedNamespaces.number();
        match self.log_page {
            ERROR => ERROR_BYTES,
            CHANGED => LIST_BYTES,
            _ => PAGE_BYTES,
        }
    }
}

/// Returns the events to enable: health events, which always exist, and namespace changes if the controller offers
/// them.
pub(super) const fn enabled_events(offered: u32) -> u32 {
    async_event_bit::SMART | offered & async_event_bit::NAMESPACE_ATTRIBUTE
}
