//! The buddy allocator against a vector of booleans: examples, and random histories with a printed seed.

use super::*;

/// A model with one boolean per page and linear search.
struct NaiveModel(Vec<bool>);

impl NaiveModel {
    fn all(&self, first: usize, pages: usize, free: bool) -> bool {
        self.0.get(first..first + pages).is_some_and(|row| row.iter().all(|&page| page == free))
    }

    fn set(&mut self, run: PageRun, free: bool) {
        let (first, pages) = (run.first as usize, run.pages as usize);
        assert!(self.all(first, pages, !free), "{run:?} overlaps");
        self.0[first..first + pages].fill(free);
    }

    fn runs(&self) -> Vec<PageRun> {
        let mut runs: Vec<PageRun> = Vec::new();
        for (page, _) in self.0.iter().enumerate().filter(|(_, free)| **free) {
            let page = u32::try_from(page).unwrap();
            match runs.last_mut() {
                Some(run) if run.first + run.pages == page => run.pages += 1,
                _ => runs.push(PageRun { first: page, pages: 1 }),
            }
        }
        runs
    }

    fn largest_block(&self) -> u32 {
        let orders = (0..=self.0.len().ilog2().min(TOP_ORDER)).rev();
        let mut sizes = orders.map(|order| 1_usize << order);
        let found = sizes.find(|&size| (0..self.0.len()).step_by(size).any(|at| self.all(at, size, true)));
        found.map_or(0, |size| u32::try_from(size).unwrap())
    }
}

fn full(pages: u32) -> BuddyAllocator<Vec<u64>> {
    let mut buddy = BuddyAllocator::new(pages);
    buddy.free(PageRun { first: 0, pages }).unwrap();
    buddy
}

fn check(buddy: &BuddyAllocator<Vec<u64>>, naive: &NaiveModel) {
    let runs = naive.runs();
    assert_eq!(buddy.free_runs().collect::<Vec<_>>(), runs);
    assert_eq!(buddy.free_pages(), runs.iter().map(|run| run.pages).sum::<u32>());
    assert_eq!(buddy.largest(), naive.largest_block());
}

#[test]
#[expect(clippy::print_stderr, reason = "a failing run is repeated from its seed")]
fn matches_a_vector_of_booleans_over_random_histories() {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for pages in [1, 63, 64, 65, 200, 1_024, 3_000, 5_000] {
        let (mut buddy, mut naive) = (full(pages), NaiveModel(vec![true; pages as usize]));
        let mut held: Vec<PageRun> = Vec::new();
        for _ in 0..1_200 {
            let part = random.u32(1..=40);
            let wanted = random.u32(1..=(pages / part).max(1));
            let align = 1 << random.u32(0..8);
            match random.u32(0..8) {
                0..3 => match buddy.allocate_aligned(wanted, align) {
                    Some(run) => {
                        assert_eq!((run.pages, run.first % align), (wanted, 0));
                        naive.set(run, false);
                        held.push(run);
                    }
                    None => assert!(naive.largest_block() < wanted.next_power_of_two().max(align)),
                },
                3 => match buddy.allocate_across_blocks(wanted, align) {
                    Some(run) => {
                        assert_eq!((run.pages, run.first % align), (wanted, 0));
                        naive.set(run, false);
                        held.push(run);
                    }
                    None => assert!(
                        naive.runs().iter().all(|run| {
                            run.first.next_multiple_of(align) + wanted > run.first + run.pages
                        }),
                        "{wanted} pages at {align}"
                    ),
                },
                4 => {
                    let run = PageRun { first: random.u32(..pages), pages: wanted };
                    match buddy.take(run) {
                        Ok(()) => {
                            naive.set(run, false);
                            held.push(run);
                        }
                        Err(_) => assert!(!naive.all(run.first as usize, run.pages as usize, true)),
                    }
                }
                _ if held.is_empty() => {}
                part => {
                    let run = held.swap_remove(random.usize(..held.len()));
                    // Sometimes in two pieces, the later one first.
                    let cut = if part == 5 { random.u32(0..run.pages) } else { 0 };
                    let rest = PageRun { first: run.first + cut, pages: run.pages - cut };
                    buddy.free(rest).unwrap();
                    naive.set(rest, true);
                    if cut > 0 {
                        buddy.free(PageRun { pages: cut, ..run }).unwrap();
                        naive.set(PageRun { pages: cut, ..run }, true);
                    }
                    assert!(matches!(buddy.free(run), Err(RunError::DoubleFree { .. })));
                }
            }
            check(&buddy, &naive);
        }
        let reopened = BuddyAllocator::open(buddy.words.clone(), pages);
        check(&reopened, &naive);
        for run in held {
            buddy.free(run).unwrap();
        }
        assert_eq!(buddy.free_runs().collect::<Vec<_>>(), [PageRun { first: 0, pages }]);
    }
}

#[test]
fn a_reopened_buddy_continues_from_its_stored_bits() {
    let mut buddy = full(1_000);
    let first = buddy.allocate(100).unwrap();
    let second = buddy.allocate(7).unwrap();
    buddy.free(first).unwrap();
    let mut reopened = BuddyAllocator::open(buddy.words.clone(), 1_000);
    for pages in [1, 5, 64, 70, 128, 300] {
        assert_eq!(reopened.allocate(pages), buddy.allocate(pages), "{pages} pages");
    }
    assert_eq!(reopened.free(second), buddy.free(second));
}

#[test]
fn bits_past_the_last_page_are_ignored() {
    let buddy = BuddyAllocator::open(vec![u64::MAX; 2], 70);
    assert_eq!(buddy.free_pages(), 70);
    assert_eq!(buddy.free_runs().collect::<Vec<_>>(), [PageRun { first: 0, pages: 70 }]);
}

#[test]
fn an_exact_count_is_taken_and_the_tail_stays_free() {
    let mut buddy = full(1_024);
    assert_eq!(buddy.allocate(700), Some(PageRun { first: 0, pages: 700 }));
    assert_eq!(buddy.free_pages(), 324);
    assert_eq!(buddy.largest(), 256);
    // The tail is four pages, four times ten, and 256: the smallest sufficient block is used first.
    assert_eq!(buddy.allocate(3), Some(PageRun { first: 700, pages: 3 }));
}

#[test]
fn freed_halves_merge_in_any_order() {
    let mut buddy = full(256);
    let runs: Vec<PageRun> = (0..16).map(|_| buddy.allocate(16).unwrap()).collect();
    assert_eq!(buddy.allocate(1), None);
    for index in [1, 3, 2, 0, 15, 13, 14, 12, 5, 4, 7, 6, 9, 8, 10, 11] {
        buddy.free(runs[index]).unwrap();
    }
    assert_eq!(buddy.largest(), 256);
}

#[test]
fn a_run_across_blocks_is_found_by_allocate_joined() {
    let mut buddy = full(256);
    let all = buddy.allocate(256).unwrap();
    buddy.free(PageRun { first: 60, pages: 100 }).unwrap();
    assert_eq!(buddy.allocate(100), None);
    assert_eq!(buddy.allocate_across_blocks(101, 1), None);
    assert_eq!(buddy.allocate_across_blocks(100, 1), Some(PageRun { first: 60, pages: 100 }));
    assert_eq!(all.pages - buddy.free_pages(), 256);
}

#[test]
fn a_refused_free_or_take_changes_nothing() {
    let mut buddy = full(128);
    let run = buddy.allocate(10).unwrap();
    let before = (buddy.words.clone(), buddy.free_pages());
    let outside = PageRun { first: 120, pages: 9 };
    assert_eq!(buddy.free(outside), Err(RunError::Outside { first: 120, count: 9, pages: 128 }));
    assert!(buddy.free(PageRun { first: u32::MAX, pages: 2 }).is_err());
    assert!(buddy.free(PageRun { first: 0, pages: 0 }).is_err());
    let page = run.first + run.pages;
    assert_eq!(buddy.free(PageRun { pages: 11, ..run }), Err(RunError::DoubleFree { page }));
    assert_eq!(buddy.take(PageRun { first: page - 1, pages: 4 }), Err(RunError::InUse { page: page - 1 }));
    assert_eq!((buddy.words.clone(), buddy.free_pages()), before);
    for pages in [0, 129, u32::MAX] {
        assert_eq!(buddy.allocate(pages), None);
        assert_eq!(buddy.allocate_across_blocks(pages, 1), None);
    }
    assert_eq!(buddy.allocate_aligned(1, 1 << 31), None);
}
