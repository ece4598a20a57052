//! The unreadable pages whose contents a recovery lacks.
//!
//! Input: the reads that failed, and what recovery found. Output: the report by which an opening is refused. Invariant: a
//! page whose contents another page or copy gave is not in the report.

use super::Recovered;
use crate::ftl::recovering::RecoveringFtl;
use crate::media::Media;
use crate::media::unreadable::{PageNeed, UnreadablePage, UnreadablePages};

/// Sets the unreadable pages of a recovery whose contents the result lacks: pages of the log if some of it is lost, or if
/// they may be those of a commit that does not count without them, and pages with records that the result depends on.
pub(super) fn report_unreadable<M: Media>(
    ftl: &RecoveringFtl<M>,
    recovered: &mut Recovered,
    has_rejected: bool,
) {
    let lacks = |failed: &&UnreadablePage| match failed.need {
        // A page that the medium itself calls lost may be one of a commit that a power cut interrupted.
        PageNeed::Log | PageNeed::BlockSurvey => {
            !recovered.lost.is_empty() || has_rejected && failed.errno.is_some()
        }
        PageNeed::Index => failed.errno.is_some(),
        PageNeed::Checkpoint | PageNeed::Record => false,
    };
    let pages: Vec<UnreadablePage> = ftl.failures().pages().filter(lacks).copied().collect();
    recovered.passed_over = pages.iter().map(|failed| failed.page).collect();
    recovered.unreadable = UnreadablePages::new(pages, [recovered.log.epoch, recovered.log.number]);
}
