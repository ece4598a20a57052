//! Detection of sequential read streams for prefetch.
//!
//! Input: the pages of each read of one user. Output: pages to prefetch. Invariant: a stream prefetches each page once;
//! the window doubles with each correct prediction, and starts small for each new stream.

use std::ops::Range;

/// The most concurrent streams of one user.
const STREAMS_MAX: usize = 4;
/// The pages of the first prefetch of a stream.
const WINDOW_MIN: u32 = 4;

/// The streams of one user.
#[derive(Debug, Default)]
pub(super) struct ReadStreams {
    streams: [ReadStream; STREAMS_MAX],
    /// The stream matched last; `oldest` is the one to replace next.
    recent: usize,
    oldest: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct ReadStream {
    /// The page that would continue the stream.
    next: u64,
    /// The first page not yet prefetched.
    prefetched_to: u64,
    window: u32,
}

impl ReadStreams {
    /// Notes a read of `[first, end)`, and returns the pages to prefetch, if any.
    #[inline]
    pub(super) fn record_read(&mut self, first: u64, end: u64, max: u32) -> Option<Range<u64>> {
        let recent = &mut self.streams[self.recent];
        if recent.continues(first) {
            return recent.advance(end, max);
        }
        self.match_other_stream(first, end, max)
    }

    fn match_other_stream(&mut self, first: u64, end: u64, max: u32) -> Option<Range<u64>> {
        if let Some(at) = self.streams.iter().position(|stream| stream.continues(first)) {
            self.recent = at;
            return self.streams[at].advance(end, max);
        }
        self.recent = self.oldest;
        self.oldest = (self.oldest + 1) % STREAMS_MAX;
        self.streams[self.recent] = ReadStream { next: end, prefetched_to: end, window: 0 };
        None
    }
}

impl ReadStream {
    #[inline]
    fn continues(&self, first: u64) -> bool {
        first == self.next || first + 1 == self.next
    }

    #[inline]
    fn advance(&mut self, end: u64, max: u32) -> Option<Range<u64>> {
        // Another part of the same page predicts nothing about the next page.
        if end <= self.next {
            return None;
        }
        self.next = end;
        if self.prefetched_to >= end + u64::from(self.window / 2) && self.window > 0 {
            return None;
        }
        self.window = (self.window * 2).max(WINDOW_MIN).min(max);
        let from = self.prefetched_to.max(end);
        self.prefetched_to = end + u64::from(self.window);
        (from < self.prefetched_to).then_some(from..self.prefetched_to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_window_grows_and_prefetches_each_page_once() {
        let mut streams = ReadStreams::default();
        let mut asked: Vec<u64> = Vec::new();
        let mut most = 0;
        for page in 100..600 {
            if let Some(pages) = streams.record_read(page, page + 1, 64) {
                assert!(pages.start > page);
                most = most.max(pages.end - pages.start);
                asked.extend(pages);
            }
        }
        assert_eq!(asked, (asked[0]..asked[0] + u64::try_from(asked.len()).unwrap()).collect::<Vec<_>>());
        assert!(most > 16 && most <= 64, "{most}");
        assert!(*asked.last().unwrap() >= 600);
    }

    #[test]
    fn random_reads_and_parts_of_one_page_prefetch_nothing() {
        let mut streams = ReadStreams::default();
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..1_000 {
            let page = random.u64(0..1 << 30) * 8;
            assert_eq!(streams.record_read(page, page + 1, 64), None);
            assert_eq!(streams.record_read(page, page + 1, 64), None);
        }
    }

    #[test]
    fn several_streams_of_one_user_are_detected() {
        let mut streams = ReadStreams::default();
        let mut asked = [0; 3];
        for step in 0..50 {
            for (stream, asked) in asked.iter_mut().enumerate() {
                let page = u64::try_from(stream).unwrap() * 10_000 + step;
                *asked += u32::from(streams.record_read(page, page + 1, 32).is_some());
            }
        }
        assert!(asked.iter().all(|&asked| asked >= 3), "{asked:?}");
    }

    #[test]
    fn window_of_zero_disables_prefetch() {
        let mut streams = ReadStreams::default();
        assert!((0..100).all(|page| streams.record_read(page, page + 1, 0).is_none()));
    }
}
