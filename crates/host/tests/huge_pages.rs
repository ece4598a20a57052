//! Tests of reservations over huge pages of 2 MiB, from the kernel's pool, which the test enlarges if it may.
//!
//! Input: a machine. Output: checks with pages of 2 MiB, or the reason why they were skipped. Invariant: the machine's
//! number of huge pages is the same before and after, also if the test fails.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stderr, reason = "a skipped test prints its reason")]

use headwater_host::numa::{NodeId, node_of};
use headwater_host::reservation::{Backing, BackingOrder, CommitError, PageRun, Reservation};
use headwater_host::topology::Topology;
use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

const COUNT: &str = "/proc/sys/vm/nr_hugepages";
/// Pages of 4 KiB in one of 2 MiB.
const HUGE: u32 = 512;

/// Serialises the tests of this file: the machine has one pool.
static TURN: Mutex<()> = Mutex::new(());

/// An enlarged pool of huge pages, restored on drop.
struct EnlargedPool {
    before: u64,
    _turn: MutexGuard<'static, ()>,
}

impl EnlargedPool {
    /// Enlarges the pool; prints the reason and returns `None` where it cannot.
    fn enlarge(pages: u64) -> Option<Self> {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(before) = count(COUNT) else {
            eprintln!("skipped: this kernel has no huge pages");
            return None;
        };
        let raised = Self { before, _turn: turn };
        if let Err(error) = fs::write(COUNT, (before + pages).to_string()) {
            eprintln!("skipped: {COUNT} cannot be written: {error}");
            return None;
        }
        if count(COUNT).unwrap() < before + pages || free_huge_pages() < pages {
            eprintln!("skipped: the kernel found no {pages} huge pages in one piece each");
            return None;
        }
        Some(raised)
    }
}

impl Drop for EnlargedPool {
    fn drop(&mut self) {
        // Best effort: if this fails, the pool could not be enlarged either.
        let _ = fs::write(COUNT, self.before.to_string());
    }
}

fn count(path: &str) -> std::io::Result<u64> {
    let text = fs::read_to_string(path)?;
    text.trim().parse().map_err(|_| std::io::ErrorKind::InvalidData.into())
}

/// Returns the number of free huge pages of 2 MiB.
fn free_huge_pages() -> u64 {
    count("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages").unwrap_or(0)
}

fn run(first: u32, pages: u32) -> PageRun {
    PageRun { first, pages }
}

#[test]
fn huge_pages_come_zeroed_from_the_pool_and_return() {
    let Some(_raised) = EnlargedPool::enlarge(4) else { return };
    let mut reservation = Reservation::new(8 << 20).unwrap();
    let before = free_huge_pages();
    for _ in 0..2 {
        let got = reservation.commit(run(HUGE, 2 * HUGE), BackingOrder::only(Backing::Huge2M)).unwrap();
        assert_eq!((got, before - free_huge_pages()), (Backing::Huge2M, 2), "present from the start");
        let mut span = reservation.claim(run(HUGE, 2 * HUGE)).unwrap();
        assert!(span.iter().all(|&byte| byte == 0));
        span.fill(9);
        reservation.release(span);
        reservation.decommit(run(HUGE, 2 * HUGE)).unwrap();
        assert_eq!(free_huge_pages(), before);
    }
    reservation.commit(run(0, HUGE), BackingOrder::HUGE).unwrap();
    drop(reservation);
    assert_eq!(free_huge_pages(), before, "a dropped reservation returns its huge pages");
}

#[test]
fn empty_pool_is_an_error_or_falls_back_never_a_signal() {
    let Some(_raised) = EnlargedPool::enlarge(2) else { return };
    let pages = u32::try_from(free_huge_pages()).unwrap() + 1;
    let mut reservation = Reservation::new((pages as usize + 1) << 21).unwrap();
    let long = run(0, pages * HUGE);
    let before = free_huge_pages();
    let refused = reservation.commit(long, BackingOrder::only(Backing::Huge2M)).unwrap_err();
    assert!(matches!(refused, CommitError::Refused { backing: Backing::Huge2M, .. }), "{refused}");
    assert_eq!(free_huge_pages(), before, "pages taken before the refusal are returned");
    assert_eq!(reservation.commit(long, BackingOrder::HUGE.or(Backing::Small)), Ok(Backing::Transparent));
    let mut span = reservation.claim(long).unwrap();
    span[long.bytes() - 1] = 1;
    reservation.release(span);
}

#[test]
fn huge_pages_of_a_bound_reservation_come_from_its_node() {
    let Some(_raised) = EnlargedPool::enlarge(2) else { return };
    let mut reservation = Reservation::new(4 << 20).unwrap();
    let topology = Topology::read();
    let node = topology.nodes_with_memory().next().map_or(NodeId(0), |node| NodeId(node.number));
    if let Err(error) = reservation.bind(node) {
        return eprintln!("skipped: {error}");
    }
    if let Err(error) = reservation.commit(run(0, HUGE), BackingOrder::only(Backing::Huge2M)) {
        return eprintln!("skipped: the huge pages are on other nodes: {error}");
    }
    assert_eq!(node_of(reservation.memory(run(0, HUGE)).unwrap()), Some(node));
    // Small pages beside the huge ones, and in their place, are bound to the same node.
    reservation.commit(run(HUGE, 1), BackingOrder::only(Backing::Small)).unwrap();
    assert_eq!(node_of(reservation.memory(run(HUGE, 1)).unwrap()), Some(node));
    reservation.decommit(run(0, HUGE)).unwrap();
    reservation.commit(run(0, HUGE), BackingOrder::only(Backing::Small)).unwrap();
    assert_eq!(node_of(reservation.memory(run(HUGE - 1, 1)).unwrap()), Some(node));
}
