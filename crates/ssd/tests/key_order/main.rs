//! Tests of the order of operations on several keys or blocks: those on one of them run in the order of their submission.

#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]
#![expect(clippy::print_stderr, reason = "a seeded test prints its seed")]

mod host;
mod model;

use headwater_nvme::spec::status::Status;
use headwater_ssd::command::SsdCommand;
use host::{FRONT_END, OrderHost, batch, range, read, retrieve, store, write};

/// Returns a batch that is carried out in parts, and so holds these keys for many turns.
fn long_batch(keys: impl IntoIterator<Item = u64>, value: u64) -> SsdCommand {
    batch(keys.into_iter().chain(10_000..10_040), value)
}

/// Returns a batch whose keys are held together, unlike those of a short one.
fn large_batch(keys: impl IntoIterator<Item = u64>, value: u64) -> SsdCommand {
    batch(keys.into_iter().chain(10_000..10_600), value)
}

#[test]
fn store_does_not_overtake_a_batch_that_waits() {
    // The batch held none of its keys while it waited for one, so that the store of another one ran before it.
    for first in [long_batch, large_batch] {
        for second in [batch([1, 500], 2), large_batch([1, 500], 2)] {
            let mut host = OrderHost::new();
            host.submit(first([1], 1));
            host.poll();
            host.submit(second);
            host.submit(store(500, 3));
            let read = host.submit(retrieve(500));
            let done = host.finish();
            assert_eq!(done[&read].value(), Some(3));
            assert_eq!((host.value_of(1), host.value_of(500)), (Some(2), Some(3)));
        }
    }
}

#[test]
fn write_does_not_overtake_a_range_that_waits() {
    // The range held none of its blocks while it waited for one, so that the write of another one ran before it.
    let mut host = OrderHost::new();
    host.submit(write(range(0, 40), 1));
    host.poll();
    host.submit(write(range(30, 30), 2));
    host.submit(write(range(50, 1), 3));
    host.submit(write(range(29, 2), 4));
    let reads = [28, 29, 30, 31, 49, 50, 51, 59, 60].map(|block| host.submit(read(range(block, 1))));
    let done = host.finish();
    let values = reads.map(|token| done[&token].value().unwrap());
    assert_eq!(values, [1, 4, 4, 2, 2, 3, 2, 2, 0]);
}

#[test]
fn batch_that_waits_for_two_keys_is_overtaken_on_neither() {
    for (first, second) in [(1, 2), (2, 1)] {
        let mut host = OrderHost::new();
        host.submit(long_batch([first], 1));
        host.submit(batch((second..=second).chain(20_000..20_090), 2));
        host.poll();
        host.submit(batch([1, 2], 3));
        host.submit(store(2, 4));
        host.submit(store(1, 5));
        host.finish();
        assert_eq!((host.value_of(1), host.value_of(2)), (Some(5), Some(4)));
    }
}

#[test]
fn operations_behind_two_keys_of_a_batch_keep_their_order() {
    // The waiters of one key ran before those of the next one, whichever came first.
    for keys in [[1, 2], [2, 1]] {
        for first in [long_batch, large_batch] {
            let mut host = OrderHost::new();
            host.submit(first(keys, 1));
            host.poll();
            host.submit(store(1, 2));
            host.submit(store(2, 3));
            host.submit(batch([1, 2], 4));
            host.submit(store(2, 5));
            host.submit(store(1, 6));
            host.finish();
            assert_eq!((host.value_of(1), host.value_of(2)), (Some(6), Some(5)));
        }
    }
}

#[test]
fn abort_of_a_batch_that_waits_lets_those_behind_it_run() {
    for second in [batch([1, 500, 501], 2), large_batch([1, 500, 501], 2)] {
        let mut host = OrderHost::new();
        let first = host.submit(batch((1..2).chain(20_000..20_090), 1));
        host.poll();
        let second = host.submit(second);
        let behind = host.submit(retrieve(500));
        host.poll();
        assert!(host.abort(second));
        // Nothing waited for this key of the aborted batch.
        let later = host.submit(retrieve(501));
        let done = host.finish();
        assert_eq!(done[&second].completion.status, Status::ABORT_REQUESTED);
        for token in [behind, later] {
            assert!(
                done[&token].turn < done[&first].turn,
                "it waits for an aborted batch, or the one before"
            );
            assert_eq!(done[&token].value(), None);
        }
        assert_eq!((host.value_of(1), host.device.in_flight()), (Some(1), 0));
    }
}

#[test]
fn operations_behind_an_aborted_one_wait_for_those_before_it() {
    for before_abort in [false, true] {
        let mut host = OrderHost::new();
        let first = host.submit(long_batch([1], 1));
        host.poll();
        let second = host.submit(batch([1, 500], 2));
        let mut read = before_abort.then(|| host.submit(retrieve(1)));
        host.poll();
        assert!(host.abort(second));
        let read = *read.get_or_insert_with(|| host.submit(retrieve(1)));
        let done = host.finish();
        assert_eq!(done[&read].value(), Some(1));
        assert!(done[&read].turn >= done[&first].turn);
    }
}

#[test]
fn abort_between_operations_leaves_their_order() {
    let mut host = OrderHost::new();
    host.submit(long_batch([1], 1));
    host.poll();
    let waiting: Vec<(u64, u64)> =
        (2..8).map(|value| (host.submit(batch([1, value], value)), host.submit(retrieve(1)))).collect();
    host.poll();
    for number in [5, 0, 2] {
        let (token, _) = waiting[number];
        assert!(host.abort(token));
        assert!(!host.device.abort(FRONT_END, token), "aborted twice");
    }
    let done = host.finish();
    let read: Vec<_> = waiting.iter().map(|(_, read)| done[read].value().unwrap()).collect();
    assert_eq!(read, [1, 3, 3, 5, 6, 6]);
    let values: Vec<_> = (2..8).map(|key| host.value_of(key)).collect();
    assert_eq!(values, [None, Some(3), None, Some(5), Some(6), None]);
}
