//! Pages that could not be read, and the loss that an operator accepts by its digest.
//!
//! Input: failed reads. Output: a report that names the pages, with a digest of exactly this loss. Invariant: a failed
//! read says nothing about the bytes of its page, so a page is named here and never taken for zeroes.

use super::{BlockId, MediaError, PageAddress};
use crate::config::{FailedOperation, FailedRead, FailedWrite, LossDigest};
use headwater_host::clock::Nanos;
use std::collections::BTreeMap;
use std::fmt;

/// The delays after which a page that may become readable is asked for again.
pub const READ_RETRY_DELAYS: [Nanos; 3] =
    [Nanos::from_millis(10), Nanos::from_millis(100), Nanos::from_millis(1_000)];

/// Pages that the text of a report names; further ones are only counted.
const NAMED_MAX: usize = 16;

/// Linux error numbers of reads: no data (a medium error), and an illegal byte sequence (a protection error).
const STICKY_ERRNOS: [i32; 2] = [61, 84];

impl MediaError {
    /// Returns true if the same read may succeed later: the kernel reported neither a medium error nor a protection
    /// error, and the medium did not say that the data is lost.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Io { errno, .. } | Self::Cell { errno, .. } => !STICKY_ERRNOS.contains(errno),
            // The read may have been of another page.
            Self::Damaged { .. } => true,
            Self::Unreadable { .. } | Self::Rule { .. } => false,
        }
    }

    /// Returns the delays after which the collector repeats the read, which may keep writes waiting. A page is read again
    /// once if its bytes are wrong, in case the read was of another page: bytes that are wrong twice stay so, while an
    /// error of the transfer may take its time to pass.
    #[must_use]
    pub fn retry_delays(&self) -> &'static [Nanos] {
        match self {
            Self::Damaged { .. } => &READ_RETRY_DELAYS[..1],
            _ if self.may_pass() => &READ_RETRY_DELAYS,
            _ => &[],
        }
    }

    /// Returns the kernel's error number; `None` if the medium itself says that the page is lost.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Io { errno, .. } | Self::Cell { errno, .. } => Some(*errno),
            Self::Unreadable { .. } | Self::Damaged { .. } | Self::Rule { .. } => None,
        }
    }
}

impl FailedRead {
    /// Returns the failed read of a page; `None` for the error of a commit cell.
    #[must_use]
    pub(crate) fn of_page(error: MediaError) -> Option<Self> {
        let errno = error.errno();
        match error {
            MediaError::Rule { page, .. }
            | MediaError::Io { page, .. }
            | MediaError::Damaged { page }
            | MediaError::Unreadable { page } => Some(Self { block: page.block.0, page: page.page, errno }),
            MediaError::Cell { .. } => None,
        }
    }
}

impl FailedWrite {
    /// Describes the failure of an operation on a medium.
    #[must_use]
    pub fn new(operation: FailedOperation, error: MediaError) -> Self {
        let nowhere = FailedRead { block: 0, page: 0, errno: error.errno() };
        let FailedRead { block, page, errno } = FailedRead::of_page(error).unwrap_or(nowhere);
        Self { operation, block, page, errno }
    }

    /// Describes the last write that found no space beneath a medium.
    pub(crate) fn for_lack_of_space(error: MediaError) -> Self {
        let is_cell = matches!(error, MediaError::Cell { .. });
        Self::new(if is_cell { FailedOperation::CommitRecord } else { FailedOperation::Program }, error)
    }

    /// Returns the address of the page.
    #[must_use]
    pub fn address(&self) -> PageAddress {
        PageAddress::new(BlockId(self.block), self.page)
    }
}

/// The purpose for which a page was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PageNeed {
    /// To identify its block.
    BlockSurvey,
    /// It is part of a checkpoint.
    Checkpoint,
    /// It is part of the log after the checkpoint.
    Log,
    /// It holds a record of the checkpoint's index which the log may have replaced, or a record of the namespace table.
    Index,
    /// It holds a record of the index that is being checked.
    Record,
}

impl PageNeed {
    /// Returns the purpose in words.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BlockSurvey => "block survey",
            Self::Checkpoint => "checkpoint",
            Self::Log => "log",
            Self::Index => "index",
            Self::Record => "record",
        }
    }
}

/// A page that could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnreadablePage {
    /// The page.
    pub page: PageAddress,
    /// The kernel's error number; `None` if the medium itself says that the page is lost.
    pub errno: Option<i32>,
    /// The purpose of the read that failed.
    pub need: PageNeed,
}

impl fmt::Display for UnreadablePage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for the {}", self.page, self.need.as_str())?;
        match self.errno {
            Some(errno) => write!(f, " (errno {errno})"),
            None => f.write_str(" (lost by the medium)"),
        }
    }
}

impl LossDigest {
    /// Returns the digest of numbers that describe a loss.
    #[must_use]
    pub(crate) fn of(words: impl Iterator<Item = u64>) -> Self {
        // FNV-1a: it protects from mistakes, not from an adversary.
        let digest = words.flat_map(u64::to_le_bytes).fold(0xCBF2_9CE4_8422_2325, |digest: u64, byte| {
            (digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
        });
        Self(digest)
    }
}

/// The pages that opening a device needs and that could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnreadablePages {
    /// The pages, in order.
    pub pages: Vec<UnreadablePage>,
    /// The digest of these pages on this state of the medium.
    pub digest: LossDigest,
}

impl UnreadablePages {
    /// Makes the report of these pages. `state` differs between any two states of the medium that a device wrote: an
    /// accepted digest must not accept the loss of the same pages later.
    #[must_use]
    pub fn new(mut pages: Vec<UnreadablePage>, state: [u64; 2]) -> Self {
        pages.sort_unstable_by_key(|page| page.page);
        let words = pages.iter().map(|page| page.page.index() as u64);
        let digest = LossDigest::of(state.into_iter().chain(words));
        Self { pages, digest }
    }

    /// Returns the number of pages that were needed for a purpose.
    #[must_use]
    pub fn count(&self, need: PageNeed) -> usize {
        self.pages.iter().filter(|page| page.need == need).count()
    }
}

impl fmt::Display for UnreadablePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pages cannot be read", self.pages.len())?;
        for (number, page) in self.pages.iter().take(NAMED_MAX).enumerate() {
            write!(f, "{} {page}", if number == 0 { ":" } else { "," })?;
        }
        match self.pages.len().checked_sub(NAMED_MAX) {
            Some(more) if more > 0 => write!(f, ", and {more} more"),
            _ => Ok(()),
        }
    }
}

/// The failed reads of one opening.
#[derive(Debug, Default)]
pub(crate) struct ReadFailures {
    failed: BTreeMap<PageAddress, UnreadablePage>,
    /// Pages that were read after at least one failure.
    passed: u64,
    /// Times that reads have waited before they were repeated.
    waits: u32,
}

/// Times that one opening waits before it repeats reads. Each wait serves all failed reads in flight; a medium on which
/// everything fails must not delay the refusal for hours.
const WAITS_MAX: u32 = 64;

impl ReadFailures {
    /// Adds a page that could not be read.
    pub(crate) fn add(&mut self, error: &MediaError, page: PageAddress, need: PageNeed) {
        self.failed.insert(page, UnreadablePage { page, errno: error.errno(), need });
    }

    /// Returns true if the page could not be read. Then a page that was read to identify its block, or only to check a
    /// record, is known to be needed for more.
    pub(crate) fn is_known(&mut self, page: PageAddress, need: PageNeed) -> bool {
        let Some(known) = self.failed.get_mut(&page) else { return false };
        let needs_more = match known.need {
            PageNeed::BlockSurvey => need != PageNeed::Record,
            PageNeed::Record => true,
            PageNeed::Checkpoint | PageNeed::Log | PageNeed::Index => false,
        };
        if needs_more {
            known.need = need;
        }
        true
    }

    /// Returns true if the page could not be read.
    pub(crate) fn has(&self, page: PageAddress) -> bool {
        self.failed.contains_key(&page)
    }

    /// Counts a page that was read after a failure.
    pub(crate) fn add_passed(&mut self) {
        self.passed += 1;
    }

    /// Returns true if a read may wait before it is repeated, and counts the wait.
    pub(crate) fn may_wait(&mut self) -> bool {
        self.waits += 1;
        self.waits <= WAITS_MAX
    }

    /// Returns the pages that could not be read, in order.
    pub(crate) fn pages(&self) -> impl Iterator<Item = &UnreadablePage> {
        self.failed.values()
    }

    /// Returns the number of pages whose read failed, those that were read later among them.
    pub(crate) fn count(&self) -> u64 {
        self.failed.len() as u64 + self.passed
    }

    /// Returns the number of pages that were read after a failure.
    pub(crate) fn passed(&self) -> u64 {
        self.passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::BlockId;

    fn page(block: u32, errno: i32) -> UnreadablePage {
        let page = PageAddress::new(BlockId(block), 3);
        UnreadablePage { page, errno: Some(errno), need: PageNeed::Log }
    }

    #[test]
    fn digest_names_the_pages_and_the_state_but_not_the_error_numbers() {
        let report =
            |pages: &[UnreadablePage], state| UnreadablePages::new(pages.to_vec(), [state, 0]).digest;
        let one = report(&[page(1, 5), page(2, 5)], 7);
        assert_eq!(one, report(&[page(2, 61), page(1, 110)], 7));
        assert_ne!(one, report(&[page(1, 5)], 7));
        assert_ne!(one, report(&[page(1, 5), page(2, 5)], 8));
        assert_eq!(one.to_string().parse(), Ok(one));
    }

    #[test]
    fn report_names_the_first_pages_and_counts_the_rest() {
        let pages = (0..20).map(|block| page(block, 5)).collect();
        let text = UnreadablePages::new(pages, [0, 0]).to_string();
        assert!(
            text.starts_with("20 pages cannot be read: block 0 page 3 for the log (errno 5), "),
            "{text}"
        );
        assert!(text.ends_with(", and 4 more"), "{text}");
    }

    #[test]
    fn a_page_that_was_read_for_less_is_known_to_be_needed_for_more() {
        let page = PageAddress::new(BlockId(1), 2);
        let after = |first: PageNeed, second: PageNeed| {
            let mut failures = ReadFailures::default();
            assert!(!failures.is_known(page, first));
            failures.add(&MediaError::Io { errno: 5, page }, page, first);
            assert!(failures.is_known(page, second));
            failures.pages().map(|failed| failed.need).collect::<Vec<_>>()
        };
        assert_eq!(after(PageNeed::Record, PageNeed::Index), [PageNeed::Index]);
        assert_eq!(after(PageNeed::Index, PageNeed::Record), [PageNeed::Index]);
        assert_eq!(after(PageNeed::BlockSurvey, PageNeed::Log), [PageNeed::Log]);
        assert_eq!(after(PageNeed::BlockSurvey, PageNeed::Record), [PageNeed::BlockSurvey]);
    }

    #[test]
    fn medium_errors_are_sticky_and_transfer_errors_may_pass() {
        let page = PageAddress::new(BlockId(0), 0);
        for (errno, passes) in
            [(61, false), (84, false), (5, true), (110, true), (67, true), (121, true), (11, true)]
        {
            let error = MediaError::Io { errno, page };
            assert_eq!(error.may_pass(), passes, "errno {errno}");
            assert_eq!(error.retry_delays().len(), if passes { 3 } else { 0 }, "errno {errno}");
        }
        assert!(!MediaError::Unreadable { page }.may_pass());
        assert!(MediaError::Unreadable { page }.retry_delays().is_empty());
        assert_eq!(MediaError::Damaged { page }.retry_delays(), [Nanos::from_millis(10)]);
    }
}
