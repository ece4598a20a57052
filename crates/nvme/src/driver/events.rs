//! Asynchronous events (NVMe Base 2.0 section 5.2), at the host.
//!
//! In: dword 0 of an answer. Out: what happened, and which log page lets the next event of its kind come.

use crate::spec::feature::async_event_bit;
use crate::spec::log_page::LogPage;

/// Event requests that wait at the controller.
pub(super) const REQUESTS: u32 = 2;
/// Events that their owner has not taken; later ones are dropped, as nothing of theirs is lost: log pages say all.
pub(super) const NOTICES_MAX: usize = 64;
/// Bytes of a log page that are read to let an event go: an entry of the error log, the health page, a list.
const ERROR_BYTES: u32 = 64;
const PAGE_BYTES: u32 = 512;
const LIST_BYTES: u32 = 4_096;

/// What a controller told without being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncNotice {
    /// Type (figure 145): 0 error, 1 health, 2 notice, 6 I/O command set, 7 vendor.
    pub kind: u8,
    /// Information, by type.
    pub information: u8,
    /// The log page that says more.
    pub log_page: u8,
}

impl AsyncNotice {
    pub(super) const fn of(dword: u32) -> Self {
        let [kind, information, log_page, _] = dword.to_le_bytes();
        Self { kind: kind & 0b111, information, log_page }
    }

    /// Whether namespaces came, went or changed.
    #[must_use]
    pub const fn is_namespace_change(self) -> bool {
        self.kind == 2 && self.information == 0
    }

    /// How much of the log page to read.
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

/// The events to let out: those of health that always exist, and changes of namespaces if the controller tells them.
pub(super) const fn wanted(offered: u32) -> u32 {
    async_event_bit::SMART | offered & async_event_bit::NAMESPACE_ATTRIBUTE
}
