//! The page reads of recovery: many in flight, and repeated when they fail.
//!
//! Input: pages in the order in which they are wanted. Output: each page with its bytes, in that order. Invariant: a page
//! that could not be read is passed as [`PageBytes::Unreadable`], never as zeroes, and is among the failed reads; a page
//! that does not prove itself was read twice, because the first read may have been of another page.

use crate::ftl::recovering::PageSource;
use crate::limits::RECOVERY_FRAMES;
use crate::log::page_proof::is_own_page;
use crate::media::unreadable::{PageNeed, READ_RETRY_DELAYS};
use crate::media::{
    Media, MediaCompletion, MediaError, MediaOp, MediaToken, MediumVersion, PageAddress, PageState,
    RefusalReason, RefusedOp,
};
use headwater_dma::frame::MediaFrame;
use headwater_host::clock::Nanos;
use std::collections::VecDeque;

/// Token of a page that is read alone; the tokens of a window count from 0.
const ALONE: MediaToken = MediaToken(u64::MAX);

/// A page as recovery gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageBytes<'a> {
    /// Its bytes: data, then spare.
    Programmed(&'a [u8]),
    /// It is erased.
    Blank,
    /// It could not be read: nothing is known about its bytes.
    Unreadable,
}

impl<'a> PageBytes<'a> {
    /// Returns the bytes of a page that was programmed and could be read.
    pub(crate) fn programmed(self) -> Option<&'a [u8]> {
        match self {
            Self::Programmed(bytes) => Some(bytes),
            Self::Blank | Self::Unreadable => None,
        }
    }
}

/// A page that was asked for.
#[derive(Debug)]
enum PageSlot {
    Waiting(PageAddress),
    Answered(PageAddress, PageState, MediaFrame),
    /// Its bytes are not those of the page.
    Unproven(PageAddress),
    Failed(PageAddress, MediaError),
}

impl PageSlot {
    /// Drops the bytes of an answer.
    fn into_unproven<M: Media>(self, source: &mut PageSource<'_, M>) -> Self {
        let Self::Answered(page, _, frame) = self else { return self };
        source.frames.put_back(frame);
        Self::Unproven(page)
    }
}

/// Reads pages in the given order, several in flight, and passes each to `each`. A page whose read fails is asked for
/// again, alone and after each of [`READ_RETRY_DELAYS`].
///
/// # Errors
/// The medium says that the caller broke a rule.
pub(super) fn read_pages<M: Media>(
    source: &mut PageSource<'_, M>,
    now: &mut Nanos,
    mut pages: impl Iterator<Item = PageAddress>,
    mut each: impl FnMut(PageAddress, PageBytes<'_>),
) -> Result<(), MediaError> {
    let depth = source.media.traits().queue_max.clamp(1, RECOVERY_FRAMES);
    let mut window = ReadWindow::default();
    loop {
        window.fill(source, depth, *now, &mut pages, &mut each);
        if window.slots.is_empty() && window.refused.is_none() {
            return Ok(());
        }
        let waits = window.slots.iter().any(|slot| matches!(slot, PageSlot::Waiting(_)));
        if waits {
            window.poll(source, now)?;
        } else if window.has_failed {
            retry_failed(source, &mut window.slots, now)?;
            window.has_failed = false;
        }
        window.pass_front(source, &mut each);
    }
}

/// The pages that were asked for and not passed on yet, in order.
#[derive(Debug, Default)]
struct ReadWindow {
    slots: VecDeque<PageSlot>,
    /// Token of the first slot.
    first_token: u64,
    /// A read that the medium did not accept.
    refused: Option<(PageAddress, MediaFrame)>,
    /// True if a read failed, or gave other bytes, and was not repeated yet; until then no new page is asked for.
    has_failed: bool,
    done: Vec<MediaCompletion>,
}

impl ReadWindow {
    /// Asks for pages while there is room.
    fn fill<M: Media>(
        &mut self,
        source: &mut PageSource<'_, M>,
        depth: usize,
        now: Nanos,
        pages: &mut impl Iterator<Item = PageAddress>,
        each: &mut impl FnMut(PageAddress, PageBytes<'_>),
    ) {
        let addressable = source.media.traits().addressable;
        self.submit(source, now);
        while self.refused.is_none() && !self.has_failed && self.slots.len() < depth {
            // Recovery must go on even if the medium did not return its frames.
            let last_resort = || self.slots.is_empty().then(MediaFrame::zeroed);
            let Some(frame) = source.frames.take().or_else(last_resort) else { return };
            let Some(page) = pages.next() else { return source.frames.put_back(frame) };
            if source.failures.is_known(page, source.need) {
                source.frames.put_back(frame);
                self.slots.push_back(PageSlot::Failed(page, MediaError::Unreadable { page }));
                continue;
            }
            // The pages of an addressable medium are passed in place, in order. It does not show a page that is blank, or
            // that cannot be read.
            if addressable
                && self.slots.is_empty()
                && let Some(bytes) = source.media.view(page)
            {
                source.frames.put_back(frame);
                each(page, PageBytes::Programmed(bytes));
                continue;
            }
            self.refused = Some((page, frame));
            self.submit(source, now);
            if addressable {
                return;
            }
        }
    }

    /// Submits the waiting read to the media; it keeps waiting if the media's queue is full.
    fn submit<M: Media>(&mut self, source: &mut PageSource<'_, M>, now: Nanos) {
        let Some((page, frame)) = self.refused.take() else {
            return;
        };
        let token = MediaToken(self.first_token + self.slots.len() as u64);
        match source.media.submit(token, MediaOp::Read { page, frame }, now) {
            Ok(()) => self.slots.push_back(PageSlot::Waiting(page)),
            Err(RefusedOp { op: MediaOp::Read { frame, .. }, .. }) => self.refused = Some((page, frame)),
            Err(RefusedOp { op, .. }) => {
                unreachable!("the medium rejected a read of {page} and returned {op:?}")
            }
        }
    }

    /// Takes completions, or waits for one.
    fn poll<M: Media>(&mut self, source: &mut PageSource<'_, M>, now: &mut Nanos) -> Result<(), MediaError> {
        source.media.poll(*now, &mut self.done);
        if self.done.is_empty() {
            *now = source.media.wait(*now);
        }
        for completion in self.done.drain(..) {
            let at = completion.token.0.wrapping_sub(self.first_token);
            let slot = usize::try_from(at).ok().and_then(|at| self.slots.get_mut(at));
            let Some(slot) = slot else { continue };
            if let PageSlot::Waiting(page) = *slot {
                let answered = answer(source, page, completion)?;
                *slot =
                    if is_unproven(source, &answered) { answered.into_unproven(source) } else { answered };
                self.has_failed |= matches!(slot, PageSlot::Failed(..) | PageSlot::Unproven(_));
            }
        }
        Ok(())
    }

    /// Passes on the answered pages at the front. A failed page is passed on after it was repeated.
    fn pass_front<M: Media>(
        &mut self,
        source: &mut PageSource<'_, M>,
        each: &mut impl FnMut(PageAddress, PageBytes<'_>),
    ) {
        let has_failed = self.has_failed;
        let is_ready = |slot: &mut PageSlot| match slot {
            PageSlot::Waiting(_) => false,
            PageSlot::Answered(..) => true,
            PageSlot::Failed(..) | PageSlot::Unproven(_) => !has_failed,
        };
        while let Some(slot) = self.slots.pop_front_if(is_ready) {
            self.first_token += 1;
            match slot {
                PageSlot::Answered(page, state, frame) => {
                    match state {
                        PageState::Programmed => each(page, PageBytes::Programmed(&frame)),
                        PageState::Blank => each(page, PageBytes::Blank),
                    }
                    source.frames.put_back(frame);
                }
                PageSlot::Failed(page, _) => each(page, PageBytes::Unreadable),
                PageSlot::Waiting(page) | PageSlot::Unproven(page) => {
                    unreachable!("{page} was passed on before it was read")
                }
            }
        }
    }
}

/// Returns true if the bytes of an answer are not those of the page.
fn is_unproven<M: Media>(source: &PageSource<'_, M>, slot: &PageSlot) -> bool {
    let traits = source.media.traits();
    match slot {
        PageSlot::Answered(page, PageState::Programmed, frame) => !is_own_page(frame, *page, &traits),
        // The page of a record was programmed; recovery also reads pages that were not.
        PageSlot::Answered(_, PageState::Blank, _) => {
            matches!(source.need, PageNeed::Index | PageNeed::Record) && traits.version == MediumVersion::Two
        }
        PageSlot::Waiting(_) | PageSlot::Unproven(_) | PageSlot::Failed(..) => false,
    }
}

/// Repeats the failed reads, each alone: at once, and after each delay those that may pass. What fails still is added to
/// the failures. A page that did not prove itself is read once more, and counts as it is then.
fn retry_failed<M: Media>(
    source: &mut PageSource<'_, M>,
    slots: &mut VecDeque<PageSlot>,
    now: &mut Nanos,
) -> Result<(), MediaError> {
    for slot in slots.iter_mut() {
        if let PageSlot::Unproven(page) = *slot {
            *slot = read_alone(source, page, now)?;
            if matches!(slot, PageSlot::Answered(..)) && !is_unproven(source, slot) {
                source.failures.add_passed();
            }
        }
    }
    for delay in std::iter::once(Nanos::ZERO).chain(READ_RETRY_DELAYS) {
        let repeats =
            |error: &MediaError| error.may_pass() || delay == Nanos::ZERO && error.errno().is_some();
        let due = |slot: &PageSlot| matches!(slot, PageSlot::Failed(_, error) if repeats(error));
        if !slots.iter().any(due) || delay > Nanos::ZERO && !source.failures.may_wait() {
            break;
        }
        *now = source.media.wait_until(*now, now.after(delay));
        for slot in slots.iter_mut().filter(|slot| due(slot)) {
            if let PageSlot::Failed(page, _) = *slot {
                *slot = read_alone(source, page, now)?;
                if !matches!(slot, PageSlot::Failed(..)) {
                    source.failures.add_passed();
                }
            }
        }
    }
    for slot in slots {
        if let PageSlot::Failed(page, error) = slot
            && !source.failures.is_known(*page, source.need)
        {
            source.failures.add(error, *page, source.need);
        }
    }
    Ok(())
}

/// Reads one page while nothing else is in flight.
fn read_alone<M: Media>(
    source: &mut PageSource<'_, M>,
    page: PageAddress,
    now: &mut Nanos,
) -> Result<PageSlot, MediaError> {
    let frame = source.frames.take().unwrap_or_else(MediaFrame::zeroed);
    let completion = run_alone(source.media, MediaOp::Read { page, frame }, now);
    answer(source, page, completion)
}

/// Runs one operation while nothing else is in flight, and returns its completion.
pub(crate) fn run_alone<M: Media>(media: &mut M, op: MediaOp, now: &mut Nanos) -> MediaCompletion {
    let mut waiting = Some(op);
    let mut done = Vec::new();
    loop {
        if let Some(op) = waiting.take() {
            waiting = media.submit(ALONE, op, *now).err().map(|refused| {
                assert!(
                    refused.reason == RefusalReason::QueueFull,
                    "the medium refused {:?}: {:?}",
                    refused.op,
                    refused.reason
                );
                refused.op
            });
        }
        media.poll(*now, &mut done);
        if let Some(completion) = done.drain(..).find(|completion| completion.token == ALONE) {
            return completion;
        }
        *now = media.wait(*now);
    }
}

/// Returns true if a page can be read now.
pub(crate) fn is_readable_now<M: Media>(
    source: &mut PageSource<'_, M>,
    page: PageAddress,
    now: &mut Nanos,
) -> Result<bool, MediaError> {
    Ok(match read_alone(source, page, now)? {
        PageSlot::Answered(_, _, frame) => {
            source.frames.put_back(frame);
            true
        }
        PageSlot::Failed(..) | PageSlot::Waiting(_) | PageSlot::Unproven(_) => false,
    })
}

/// Makes the slot of a completed read.
fn answer<M: Media>(
    source: &mut PageSource<'_, M>,
    page: PageAddress,
    completion: MediaCompletion,
) -> Result<PageSlot, MediaError> {
    let MediaCompletion { frame, result, .. } = completion;
    match (result, frame) {
        (Ok(state), Some(frame)) => Ok(PageSlot::Answered(page, state, frame)),
        (Err(error @ MediaError::Rule { .. }), _) => Err(error),
        (Err(error), frame) => {
            if let Some(frame) = frame {
                source.frames.put_back(frame);
            }
            Ok(PageSlot::Failed(page, error))
        }
        (Ok(_), None) => unreachable!("the medium completed a read of {page} without its frame"),
    }
}
