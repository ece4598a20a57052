//! Examples of a reservation's results and errors, and a seeded run against a naive model.

use super::*;
use crate::shared_memory::SharedMemory;
use std::fs;

fn run(first: u32, pages: u32) -> PageRun {
    PageRun { first, pages }
}

fn small(pages: u32) -> Reservation {
    let mut reservation = Reservation::new(pages as usize * PAGE_BYTES).unwrap();
    reservation.commit(run(0, pages), BackingOrder::only(Backing::Small)).unwrap();
    reservation
}

#[test]
fn claim_gives_zeroed_bytes_of_exactly_its_pages() {
    let mut reservation = small(600);
    assert_eq!(reservation.address() % (2 << 20), 0);
    for wanted in [run(0, 1), run(1, 255), run(256, 344)] {
        let mut span = reservation.claim(wanted).unwrap();
        assert_eq!((span.run(), span.bytes(), span.len()), (wanted, wanted.bytes(), wanted.bytes()));
        assert_eq!(span.address(), reservation.address() + wanted.first as usize * PAGE_BYTES);
        assert!(span.iter().all(|&byte| byte == 0));
        span.fill(7);
        let lent = span.lend();
        assert_eq!(lent.bytes(), wanted.bytes());
        assert_eq!(reservation.release(lent.reclaim()), wanted);
    }
    assert_eq!(reservation.claimed_pages(), 0);
}

#[test]
fn long_reservation_starts_on_a_gibibyte() {
    for _ in 0..4 {
        assert_eq!(Reservation::new(1 << 30).unwrap().address() % (1 << 30), 0);
    }
}

#[test]
fn claim_of_claimed_or_uncommitted_page_is_refused() {
    let mut reservation = Reservation::new(64 * PAGE_BYTES).unwrap();
    assert_eq!(
        reservation.claim(run(3, 2)).unwrap_err(),
        ClaimError::NotCommitted { run: run(3, 2), page: 3 }
    );
    reservation.commit(run(0, 32), BackingOrder::TRANSPARENT).unwrap();
    let held = reservation.claim(run(8, 8)).unwrap();
    for overlapping in [run(8, 8), run(0, 9), run(15, 1), run(10, 2), run(15, 10)] {
        let refused = ClaimError::Claimed { run: overlapping };
        assert_eq!(reservation.claim(overlapping).unwrap_err(), refused);
    }
    assert!(matches!(reservation.claim(run(30, 4)), Err(ClaimError::NotCommitted { page: 32, .. })));
    for outside in [run(0, 0), run(64, 1), run(63, 2), run(u32::MAX, 1), run(1, u32::MAX)] {
        assert!(matches!(reservation.claim(outside), Err(ClaimError::OutOfRange { .. })));
        let refused = reservation.commit(outside, BackingOrder::HUGE);
        assert!(matches!(refused, Err(CommitError::OutOfRange { .. })));
        assert!(reservation.decommit(outside).is_err());
    }
    reservation.release(held);
    let all = reservation.claim(run(0, 32)).unwrap();
    reservation.release(all);
}

#[test]
fn decommit_takes_only_unclaimed_runs_exactly_as_committed() {
    let mut reservation = Reservation::new(64 * PAGE_BYTES).unwrap();
    assert_eq!(reservation.commit(run(8, 8), BackingOrder::only(Backing::Small)), Ok(Backing::Small));
    for overlapping in [run(8, 8), run(0, 9), run(15, 1), run(0, 64), run(9, 2)] {
        let refused = CommitError::Committed { run: overlapping, by: run(8, 8) };
        assert_eq!(reservation.commit(overlapping, BackingOrder::HUGE), Err(refused));
    }
    reservation.commit(run(16, 8), BackingOrder::only(Backing::Small)).unwrap();
    let mut across = reservation.claim(run(12, 8)).unwrap();
    across.fill(9);
    assert_eq!(reservation.decommit(run(8, 8)), Err(DecommitError::Claimed { run: run(8, 8) }));
    reservation.release(across);
    for other in [run(8, 7), run(9, 7), run(8, 16), run(0, 8)] {
        assert_eq!(reservation.decommit(other), Err(DecommitError::NotCommitted { run: other }));
    }
    reservation.decommit(run(8, 8)).unwrap();
    assert_eq!((reservation.backing(8), reservation.backing(16)), (None, Some(Backing::Small)));
    assert!(reservation.claim(run(12, 8)).is_err());
    reservation.commit(run(8, 8), BackingOrder::TRANSPARENT).unwrap();
    let span = reservation.claim(run(12, 8)).unwrap();
    let (again, kept) = span.split_at(4 * PAGE_BYTES);
    assert!(again.iter().all(|&byte| byte == 0), "fresh pages are zeroed");
    assert!(kept.iter().all(|&byte| byte == 9));
    reservation.release(span);
}

#[test]
fn span_outlives_its_dropped_reservation() {
    let mut reservation = small(4);
    let mut span = reservation.claim(run(1, 2)).unwrap();
    let kept = reservation.claim(run(3, 1)).unwrap();
    let table = reservation.table().clone();
    let address = table.leak(kept);
    drop(reservation);
    span.fill(3);
    assert!(span.iter().all(|&byte| byte == 3));
    assert_eq!(table.adopt(address.as_ptr()).unwrap().run(), run(3, 1));
}

#[test]
fn leaked_address_is_adopted_exactly_once() {
    let mut reservation = small(16);
    let table = reservation.table().clone();
    let mut span = reservation.claim(run(4, 3)).unwrap();
    span[0] = 42;
    let other = reservation.claim(run(8, 1)).unwrap();
    let address = table.leak(span).as_ptr();
    let at = |page: usize| (reservation.address() + page * PAGE_BYTES) as *const u8;
    assert_eq!(table.adopt(at(5)).unwrap_err(), AdoptError::Interior);
    assert_eq!(table.adopt(address.wrapping_add(1)).unwrap_err(), AdoptError::Interior);
    assert_eq!(table.adopt(at(8)).unwrap_err(), AdoptError::NotLeaked);
    assert_eq!(table.adopt(at(16)).unwrap_err(), AdoptError::Outside);
    assert_eq!(table.adopt(at(0).wrapping_sub(1)).unwrap_err(), AdoptError::Outside);
    assert_eq!(table.adopt(std::ptr::null()).unwrap_err(), AdoptError::Outside);
    assert_eq!(table.find(at(6)), Some(FoundClaim { run: run(4, 3), state: ClaimState::Raw }));
    assert_eq!((table.find(at(7)), table.find(at(3)), table.find(at(16))), (None, None, None));
    let back = table.adopt(address).unwrap();
    assert_eq!((back.run(), back[0]), (run(4, 3), 42));
    assert_eq!(table.adopt(address).unwrap_err(), AdoptError::DoubleFree, "while the value lives");
    assert_eq!(table.find(at(6)), Some(FoundClaim { run: run(4, 3), state: ClaimState::Adopted }));
    reservation.release(back);
    assert_eq!(table.adopt(address).unwrap_err(), AdoptError::DoubleFree, "after its release");
    reservation.release(other);
}

#[test]
#[should_panic(expected = "a span must be released to its own reservation")]
fn releasing_span_of_another_reservation_panics() {
    let (mut one, mut other) = (small(4), small(4));
    let span = one.claim(run(0, 1)).unwrap();
    other.release(span);
}

#[test]
fn committed_pages_are_present_and_excluded_from_fork() {
    for mut reservation in [Reservation::new(1 << 20).unwrap(), Reservation::shared(1 << 20).unwrap()] {
        reservation.commit(run(16, 64), BackingOrder::only(Backing::Small)).unwrap();
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let start = format!("{:x}-", reservation.address() + 16 * PAGE_BYTES);
        let entry: Vec<_> = maps.lines().skip_while(|line| !line.starts_with(&start)).take(30).collect();
        let of = |name: &str| *entry.iter().find(|line| line.starts_with(name)).unwrap();
        assert!(of("Rss:").split_whitespace().any(|word| word == "256"), "{}", of("Rss:"));
        assert!(of("VmFlags:").split_whitespace().any(|flag| flag == "dc"), "{}", of("VmFlags:"));
    }
}

#[test]
fn shared_reservation_is_visible_through_its_descriptor() {
    let mut reservation = Reservation::shared(64 * PAGE_BYTES).unwrap();
    reservation.commit(run(0, 64), BackingOrder::only(Backing::Huge2M).or(Backing::Small)).unwrap();
    let device = SharedMemory::map_descriptor(reservation.descriptor().unwrap(), 0, 64 * PAGE_BYTES).unwrap();
    let mut span = reservation.claim(run(5, 2)).unwrap();
    span[..4].copy_from_slice(b"ours");
    let lent = span.lend();
    let mut seen = [0; 4];
    device.copy_in(5 * PAGE_BYTES, &mut seen).unwrap();
    assert_eq!(&seen, b"ours");
    device.copy_out(5 * PAGE_BYTES, b"DMAs").unwrap();
    let span = lent.reclaim();
    assert_eq!(&span[..4], b"DMAs");
    reservation.release(span);
    reservation.decommit(run(0, 64)).unwrap();
    device.copy_in(5 * PAGE_BYTES, &mut seen).unwrap();
    assert_eq!(seen, [0; 4], "decommitted pages read as zero");
}

#[test]
fn invalid_lengths_are_errors() {
    assert_eq!(Reservation::new(0).unwrap_err(), ReserveError::Length { bytes: 0 });
    assert!(matches!(Reservation::new(usize::MAX), Err(ReserveError::Length { .. })));
    assert!(matches!(Reservation::shared(5 << 40), Err(ReserveError::Length { .. })));
    assert_eq!(Reservation::new(1).unwrap().pages(), 1);
}

#[test]
fn dropped_reservations_are_unmapped() {
    // Together far more than the address space: only unmapping makes this pass.
    for _ in 0..200 {
        let mut reservation = Reservation::new(1 << 40).unwrap();
        reservation.commit(run(1 << 20, 1), BackingOrder::only(Backing::Small)).unwrap();
        let span = reservation.claim(run(1 << 20, 1)).unwrap();
        reservation.release(span);
    }
}

/// The state of a page in a model that keeps one entry per page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModelPage {
    Nothing,
    Free { commit: u32 },
    Claimed { commit: u32, claim: u64 },
}

struct ReservationModel {
    pages: Vec<ModelPage>,
    spans: Vec<(u64, PageSpan)>,
    raw: Vec<(u64, usize, PageRun)>,
}

impl ReservationModel {
    fn of(&mut self, run: PageRun) -> Option<&mut [ModelPage]> {
        let end = run.first.checked_add(run.pages)?;
        self.pages.get_mut(run.first as usize..end as usize).filter(|pages| !pages.is_empty())
    }

    fn claim(&mut self, reservation: &mut Reservation, run: PageRun, claim: u64) {
        let free = |page: &ModelPage| matches!(page, ModelPage::Free { .. });
        let may = self.of(run).is_some_and(|pages| pages.iter().all(free));
        let got = reservation.claim(run);
        assert_eq!(got.is_ok(), may, "{run:?}");
        if let Ok(mut span) = got {
            for page in self.of(run).unwrap() {
                if let ModelPage::Free { commit } = *page {
                    *page = ModelPage::Claimed { commit, claim };
                }
            }
            span.fill(claim.to_le_bytes()[0]);
            self.spans.push((claim, span));
        }
    }

    fn release(&mut self, reservation: &mut Reservation, claim: u64, span: PageSpan) {
        assert!(span.iter().all(|&byte| byte == claim.to_le_bytes()[0]), "claim {claim} was overwritten");
        for page in self.of(span.run()).unwrap() {
            let ModelPage::Claimed { commit, claim: of } = *page else { unreachable!("{page:?}") };
            assert_eq!(of, claim);
            *page = ModelPage::Free { commit };
        }
        reservation.release(span);
    }

    fn commit(&mut self, reservation: &mut Reservation, run: PageRun) {
        let may = self.of(run).is_some_and(|pages| pages.iter().all(|page| *page == ModelPage::Nothing));
        assert_eq!(reservation.commit(run, BackingOrder::TRANSPARENT).is_ok(), may, "{run:?}");
        if may {
            self.of(run).unwrap().fill(ModelPage::Free { commit: run.first });
        }
    }

    fn decommit(&mut self, reservation: &mut Reservation, run: PageRun) {
        let ours = ModelPage::Free { commit: run.first };
        let before = run.end().try_into().ok().and_then(|end: usize| self.pages.get(end)).copied();
        let inside = self.of(run).is_some_and(|pages| pages.iter().all(|page| *page == ours));
        let whole = match before {
            Some(ModelPage::Free { commit } | ModelPage::Claimed { commit, .. }) => commit != run.first,
            _ => true,
        };
        assert_eq!(reservation.decommit(run).is_ok(), inside && whole, "{run:?}");
        if inside && whole {
            self.of(run).unwrap().fill(ModelPage::Nothing);
        }
    }
}

#[test]
fn random_requests_never_give_two_spans_over_one_byte() {
    const PAGES: u32 = 130;
    for (seed, shared) in [(1, false), (2, true), (3, false)] {
        let mut random = fastrand::Rng::with_seed(seed);
        let bytes = PAGES as usize * PAGE_BYTES;
        let reserved = if shared { Reservation::shared(bytes) } else { Reservation::new(bytes) };
        let mut reservation = reserved.unwrap();
        let mut model = ReservationModel {
            pages: vec![ModelPage::Nothing; PAGES as usize],
            spans: Vec::new(),
            raw: Vec::new(),
        };
        for step in 0..6_000_u64 {
            let wanted = run(random.u32(0..PAGES + 2), random.u32(0..20));
            let committed = random.choice(reservation.committed.iter()).map(|(&at, &(n, _))| run(at, n));
            match random.u32(0..12) {
                0..4 => model.claim(&mut reservation, wanted, step),
                4..6 if !model.spans.is_empty() => {
                    let (claim, span) = model.spans.swap_remove(random.usize(0..model.spans.len()));
                    model.release(&mut reservation, claim, span);
                }
                6 if !model.spans.is_empty() => {
                    let (claim, span) = model.spans.swap_remove(random.usize(0..model.spans.len()));
                    let run = span.run();
                    model.raw.push((claim, reservation.table().leak(span).as_ptr() as usize, run));
                }
                7..9 if !model.raw.is_empty() => {
                    let (claim, address, run) = model.raw.swap_remove(random.usize(0..model.raw.len()));
                    let address = address as *const u8;
                    let span = reservation.table().adopt(address).unwrap();
                    assert_eq!(span.run(), run);
                    assert_eq!(reservation.table().adopt(address).unwrap_err(), AdoptError::DoubleFree);
                    model.release(&mut reservation, claim, span);
                }
                9 => model.commit(&mut reservation, wanted),
                10 => model.decommit(&mut reservation, wanted),
                _ => model.decommit(&mut reservation, committed.unwrap_or(wanted)),
            }
            let claimed = model.pages.iter().filter(|page| matches!(page, ModelPage::Claimed { .. })).count();
            assert_eq!(reservation.claimed_pages() as usize, claimed, "seed {seed}, step {step}");
        }
    }
}
