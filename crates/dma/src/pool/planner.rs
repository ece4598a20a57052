//! The scatter/gather planner: chooses free runs for a request that no single one can serve.
//!
//! Input: the free runs of a node, of any chunks. Output: a list of runs, as short as possible. Invariant: the runs are
//! free, do not overlap and have exactly the requested pages; each is whole pages, so any list is PRP-legal: all
//! segments but the first start on a page and all but the last end on one (NVMe Base 2.1, 4.3.1).

use headwater_host::reservation::PageRun;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Chooses segments for `pages` pages from `runs`: the longest runs first, which makes the list shortest, and for the
/// rest the shortest sufficient run, which preserves the long ones. The first segment starts at a multiple of
/// `align_pages`.
pub(super) fn plan(
    runs: impl Iterator<Item = PageRun>,
    pages: u32,
    align_pages: u32,
    segments_max: u32,
) -> Option<Vec<PageRun>> {
    let longest = longest_of(runs, segments_max);
    let mut plan = Vec::new();
    let mut missing = pages;
    let mut left = longest.as_slice();
    while let Some((&longest, rest)) = left.split_first() {
        let run = if plan.is_empty() { aligned(longest, align_pages) } else { Some(longest) };
        if let Some(run) = run.filter(|run| run.pages < missing) {
            missing -= run.pages;
            plan.push(run);
            left = rest;
            continue;
        }
        // Runs are sorted: the last sufficient one is the shortest.
        let fitting = left
            .iter()
            .rev()
            .filter_map(|&run| if plan.is_empty() { aligned(run, align_pages) } else { Some(run) });
        if let Some(run) = fitting.into_iter().find(|run| run.pages >= missing) {
            plan.push(PageRun { first: run.first, pages: missing });
            return Some(plan);
        }
        left = rest;
    }
    None
}

/// Returns the `count` longest runs, the longest first, of equal ones the lowest.
fn longest_of(runs: impl Iterator<Item = PageRun>, count: u32) -> Vec<PageRun> {
    let mut heap = BinaryHeap::new();
    for run in runs {
        let rank = Reverse((run.pages, Reverse(run.first)));
        if heap.len() < count as usize {
            heap.push(rank);
        } else if heap.peek().is_some_and(|shortest| rank < *shortest) {
            heap.pop();
            heap.push(rank);
        }
    }
    let sorted = heap.into_sorted_vec().into_iter();
    sorted.map(|Reverse((pages, Reverse(first)))| PageRun { first, pages }).collect()
}

/// Returns the part of a run from its first aligned page on.
fn aligned(run: PageRun, align_pages: u32) -> Option<PageRun> {
    let first = run.first.checked_next_multiple_of(align_pages)?;
    let pages = run.end().checked_sub(first).filter(|&pages| pages > 0)?;
    Some(PageRun { first, pages })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(list: &[(u32, u32)]) -> impl Iterator<Item = PageRun> {
        list.iter().map(|&(first, pages)| PageRun { first, pages })
    }

    fn planned(list: &[(u32, u32)], pages: u32, align: u32, most: u32) -> Option<Vec<(u32, u32)>> {
        let plan = plan(runs(list), pages, align, most)?;
        Some(plan.into_iter().map(|run| (run.first, run.pages)).collect())
    }

    const FREE: &[(u32, u32)] = &[(3, 4), (10, 1), (20, 8), (40, 2), (50, 8)];

    #[test]
    fn the_longest_runs_come_first_and_the_smallest_sufficient_one_last() {
        assert_eq!(planned(FREE, 10, 1, 8), Some(vec![(20, 8), (40, 2)]));
        assert_eq!(planned(FREE, 8, 1, 8), Some(vec![(50, 8)]));
        assert_eq!(planned(FREE, 4, 1, 8), Some(vec![(3, 4)]));
        assert_eq!(planned(FREE, 23, 1, 8), Some(vec![(20, 8), (50, 8), (3, 4), (40, 2), (10, 1)]));
    }

    #[test]
    fn no_plan_is_longer_than_allowed() {
        assert_eq!(planned(FREE, 16, 1, 2), Some(vec![(20, 8), (50, 8)]));
        assert_eq!(planned(FREE, 17, 1, 2), None);
        assert_eq!(planned(FREE, 24, 1, 9), None);
        assert_eq!(planned(&[], 1, 1, 9), None);
    }

    #[test]
    fn the_first_segment_is_aligned() {
        assert_eq!(planned(FREE, 8, 16, 8), None);
        assert_eq!(planned(FREE, 12, 4, 8), Some(vec![(20, 8), (3, 4)]));
        assert_eq!(planned(&[(5, 20), (40, 3)], 12, 16, 8), Some(vec![(16, 9), (40, 3)]));
    }
}
