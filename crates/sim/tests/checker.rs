//! The checker reports each broken promise and nothing else, in small hand-written histories.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_sim::checker::{DeviceChecker, PromiseViolation, WallSpan};
use headwater_ssd::command::{
    BatchClear, BatchWrite, ListPosition, ListedKey, NamespaceId, NamespaceRun, ReadRelease, RecordExpiry,
    Sequence, SsdCommand, SsdCompletion, WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, Durability};

const ALWAYS: NamespaceId = NamespaceId(1);
const INTERVAL: NamespaceId = NamespaceId(2);
const ON_FLUSH: NamespaceId = NamespaceId(3);

type CheckResult = Result<(), PromiseViolation>;

/// A history under construction, token by token, at one wall time unless a test changes it.
struct CheckedHistory {
    checker: DeviceChecker,
    now: Nanos,
    wall: UnixMillis,
}

fn history() -> CheckedHistory {
    let mut config = DeviceConfig::default();
    config.durability[INTERVAL.index()] = Durability::Interval(Nanos::from_millis(10));
    config.durability[ON_FLUSH.index()] = Durability::OnFlush;
    CheckedHistory {
        checker: DeviceChecker::new(&config.durability),
        now: Nanos::ZERO,
        wall: UnixMillis(1_000),
    }
}

fn key(name: &'static str) -> Bytes {
    Bytes::from_static(name.as_bytes())
}

fn store(name: &'static str, value: &'static str) -> SsdCommand {
    SsdCommand::Store {
        key: key(name),
        value: key(value).into(),
        condition: WriteCondition::Always,
        expiry: RecordExpiry::Never,
    }
}

fn delete(name: &'static str) -> SsdCommand {
    let condition = WriteCondition::Always;
    SsdCommand::Delete { key: key(name), condition }
}

fn batch(values: &[(&'static str, &'static str)]) -> SsdCommand {
    let writes = values.iter().map(|(name, value)| BatchWrite::Store {
        key: key(name),
        value: key(value),
        condition: WriteCondition::Always,
        expiry: RecordExpiry::Never,
    });
    SsdCommand::Batch { writes: writes.collect() }
}

/// Stores the key `a` of two namespaces in one batch.
fn batch_across(namespaces: [NamespaceId; 2]) -> SsdCommand {
    let (condition, expiry) = (WriteCondition::Always, RecordExpiry::Never);
    let write = BatchWrite::Store { key: key("a"), value: key("one"), condition, expiry };
    let runs = (1..)
        .zip(namespaces)
        .map(|(end, namespace)| NamespaceRun { namespace, end, clear: BatchClear::No })
        .collect();
    SsdCommand::BatchAcross { writes: vec![write.clone(), write], runs }
}

fn get(name: &'static str) -> SsdCommand {
    SsdCommand::retrieve_whole(key(name), Vec::new().into(), ReadRelease::WhenDurable)
}

fn answer(token: u64, status: Status, sequence: u64) -> SsdCompletion {
    SsdCompletion {
        token,
        status,
        value_bytes: 0,
        sequence: Sequence(sequence),
        expiry_ms: 0,
        position: 0,
        sink: Vec::new(),
        keys: Vec::new(),
        next_position: None,
    }
}

fn found(token: u64, value: &str, sequence: u64) -> SsdCompletion {
    SsdCompletion {
        value_bytes: u32::try_from(value.len()).unwrap(),
        sink: value.as_bytes().to_vec(),
        ..answer(token, Status::SUCCESS, sequence)
    }
}

fn nothing(token: u64) -> SsdCompletion {
    answer(token, Status::KEY_DOES_NOT_EXIST, 0)
}

impl CheckedHistory {
    fn submit(&mut self, namespace: NamespaceId, token: u64, command: &SsdCommand) {
        let asked = self.checker.prepare(namespace, command, self.wall);
        self.checker.accepted(token, asked).unwrap();
    }

    fn answer(&mut self, completion: &SsdCompletion) -> CheckResult {
        self.checker.completed(completion, self.now, self.wall)
    }

    fn write(&mut self, namespace: NamespaceId, token: u64, command: &SsdCommand, sequence: u64) {
        self.submit(namespace, token, command);
        self.answer(&answer(token, Status::SUCCESS, sequence)).unwrap();
    }

    fn cut(&mut self) {
        self.checker.power_cut(self.now, Nanos::from_millis(100));
    }

    fn settle(&mut self, namespace: NamespaceId, name: &'static str, seen: &SsdCompletion) -> CheckResult {
        let wall = WallSpan { asked: self.wall, answered: self.wall };
        self.checker.check_recovered_key(namespace, &key(name), seen, wall)
    }
}

#[test]
fn lost_acknowledged_write_is_reported() {
    let mut run = history();
    run.write(ALWAYS, 1, &store("a", "one"), 1);
    run.cut();
    assert!(matches!(run.settle(ALWAYS, "a", &nothing(0)), Err(PromiseViolation::Lost { .. })));
}

#[test]
fn returned_older_value_is_reported() {
    let mut run = history();
    run.write(ALWAYS, 1, &store("a", "one"), 1);
    run.submit(ALWAYS, 2, &get("a"));
    run.write(ALWAYS, 3, &store("a", "two"), 2);
    run.cut();
    let back = run.settle(ALWAYS, "a", &found(0, "one", 1));
    assert!(matches!(back, Err(PromiseViolation::CameBack { .. })), "{back:?}");
}

#[test]
fn resurrected_delete_is_reported() {
    let mut run = history();
    run.submit(ALWAYS, 9, &get("a"));
    run.write(ALWAYS, 10, &store("a", "one"), 1);
    run.write(ALWAYS, 11, &delete("a"), 2);
    run.cut();
    let back = run.settle(ALWAYS, "a", &found(0, "one", 1));
    assert!(matches!(back, Err(PromiseViolation::CameBack { .. })), "{back:?}");
}

#[test]
fn second_completion_is_reported() {
    let mut run = history();
    run.write(ALWAYS, 1, &store("a", "one"), 1);
    let second = run.answer(&answer(1, Status::SUCCESS, 1));
    assert_eq!(second, Err(PromiseViolation::UnexpectedCompletion { token: 1 }));
}

#[test]
fn missing_completion_is_reported() {
    let mut run = history();
    run.submit(ALWAYS, 4, &store("a", "one"));
    let missing = PromiseViolation::NeverCompleted { count: 1, first: 4 };
    assert_eq!(run.checker.check_idle(), Err(missing));
}

#[test]
fn value_never_written_is_reported() {
    let mut run = history();
    run.write(ALWAYS, 1, &store("a", "one"), 1);
    run.cut();
    let unknown = run.settle(ALWAYS, "a", &found(0, "eno", 1));
    assert!(matches!(unknown, Err(PromiseViolation::NeverWritten { .. })), "{unknown:?}");
}

#[test]
fn unacknowledged_write_may_exist_or_not_but_not_change_later() {
    for there in [true, false] {
        let mut run = history();
        run.write(ALWAYS, 1, &store("a", "one"), 1);
        run.submit(ALWAYS, 2, &store("a", "two"));
        run.cut();
        let (seen, other) = (found(0, "one", 1), found(0, "two", 2));
        let (seen, other) = if there { (other, seen) } else { (seen, other) };
        run.settle(ALWAYS, "a", &seen).unwrap();
        run.checker.finish_recovery_check();
        run.cut();
        assert!(run.settle(ALWAYS, "a", &other).is_err(), "there: {there}");
    }
}

#[test]
fn value_returned_by_a_read_must_survive() {
    let mut run = history();
    run.submit(ALWAYS, 1, &store("a", "one"));
    run.submit(ALWAYS, 2, &get("a"));
    run.answer(&found(2, "one", 1)).unwrap();
    run.cut();
    assert!(matches!(run.settle(ALWAYS, "a", &nothing(0)), Err(PromiseViolation::Lost { .. })));
}

#[test]
fn speculative_read_promises_nothing_until_a_fence() {
    for fenced in [false, true] {
        let mut run = history();
        run.submit(ALWAYS, 1, &store("a", "one"));
        let command = SsdCommand::retrieve_whole(key("a"), Vec::new().into(), ReadRelease::Speculative);
        run.submit(ALWAYS, 2, &command);
        run.answer(&found(2, "one", 1)).unwrap();
        if fenced {
            let up_to = Sequence(1);
            run.write(ALWAYS, 3, &SsdCommand::Fence { up_to }, 0);
        }
        run.cut();
        assert_eq!(run.settle(ALWAYS, "a", &nothing(0)).is_err(), fenced);
    }
}

#[test]
fn half_a_batch_is_reported_in_either_order() {
    for swapped in [false, true] {
        let mut run = history();
        run.submit(ALWAYS, 1, &batch(&[("a", "from the batch"), ("b", "from the batch too")]));
        run.cut();
        let states = [("a", found(0, "from the batch", 1)), ("b", nothing(0))];
        let order = if swapped { [1, 0] } else { [0, 1] };
        let judged: Vec<_> =
            order.iter().map(|&at| run.settle(ALWAYS, states[at].0, &states[at].1)).collect();
        assert!(judged.iter().any(Result::is_err), "{judged:?}");
    }
}

#[test]
fn whole_batch_or_none_of_it_is_accepted() {
    for there in [false, true] {
        let mut run = history();
        run.submit(ALWAYS, 1, &batch(&[("a", "from the batch"), ("b", "from the batch too")]));
        run.cut();
        let none = nothing(0);
        let (a, b) = (found(0, "from the batch", 1), found(0, "from the batch too", 2));
        run.settle(ALWAYS, "a", if there { &a } else { &none }).unwrap();
        run.settle(ALWAYS, "b", if there { &b } else { &none }).unwrap();
    }
}

#[test]
fn half_a_batch_over_namespaces_is_reported_in_either_order() {
    for [present, missing] in [[ALWAYS, ON_FLUSH], [ON_FLUSH, ALWAYS]] {
        let mut run = history();
        run.submit(ON_FLUSH, 1, &batch_across([ON_FLUSH, ALWAYS]));
        run.cut();
        run.settle(present, "a", &found(0, "one", 1)).unwrap();
        let judged = run.settle(missing, "a", &nothing(0));
        assert!(judged.is_err(), "{present} and {missing}: {judged:?}");
    }
}

#[test]
fn batch_over_namespaces_may_be_lost_only_if_all_of_them_may_lose_it() {
    let flush = |run: &mut CheckedHistory, namespace| run.write(namespace, 2, &SsdCommand::Flush, 0);
    let judge = |namespaces: [NamespaceId; 2], waited, flushed: Option<NamespaceId>| {
        let mut run = history();
        run.write(namespaces[0], 1, &batch_across(namespaces), 2);
        run.now = Nanos::from_millis(waited);
        flushed.into_iter().for_each(|namespace| flush(&mut run, namespace));
        run.cut();
        namespaces.map(|namespace| run.settle(namespace, "a", &nothing(0)).is_ok())
    };
    assert_eq!(judge([ON_FLUSH, INTERVAL], 5, None), [true; 2]);
    assert_eq!(judge([ON_FLUSH, INTERVAL], 1_000, None), [false; 2]);
    assert_eq!(judge([ON_FLUSH, INTERVAL], 5, Some(INTERVAL)), [false; 2]);
    assert_eq!(judge([INTERVAL, ON_FLUSH], 5, Some(ON_FLUSH)), [false; 2]);
    assert_eq!(judge([INTERVAL, ON_FLUSH], 5, Some(ALWAYS)), [true; 2]);
    assert_eq!(judge([ON_FLUSH, ALWAYS], 0, None), [false; 2]);
    assert_eq!(judge([ALWAYS, ON_FLUSH], 0, None), [false; 2]);
}

#[test]
fn on_flush_may_lose_only_unflushed_writes() {
    let mut run = history();
    run.write(ON_FLUSH, 1, &store("a", "one"), 1);
    run.write(ON_FLUSH, 2, &SsdCommand::Flush, 0);
    run.write(ON_FLUSH, 3, &store("a", "two"), 2);
    run.cut();
    run.settle(ON_FLUSH, "a", &found(0, "one", 1)).unwrap();

    let mut run = history();
    run.write(ON_FLUSH, 1, &store("a", "zero"), 1);
    run.write(ON_FLUSH, 2, &store("a", "one"), 2);
    run.write(ON_FLUSH, 3, &SsdCommand::Flush, 0);
    run.cut();
    assert!(run.settle(ON_FLUSH, "a", &found(0, "zero", 1)).is_err());
}

#[test]
fn interval_may_lose_only_its_own_length() {
    for (waited, may_be_lost) in [(5, true), (1_000, false)] {
        let mut run = history();
        run.write(INTERVAL, 1, &store("a", "one"), 1);
        run.now = Nanos::from_millis(waited);
        run.cut();
        assert_eq!(run.settle(INTERVAL, "a", &nothing(0)).is_ok(), may_be_lost);
    }
}

#[test]
fn expired_key_must_be_absent_and_unexpired_key_present() {
    let store = SsdCommand::Store {
        key: key("a"),
        value: key("one").into(),
        condition: WriteCondition::Always,
        expiry: RecordExpiry::At(2_000),
    };
    let there = SsdCompletion { expiry_ms: 2_000, ..found(2, "one", 1) };
    for (wall, living) in [(1_999, true), (2_000, false)] {
        for (seen, fits) in [(&there, living), (&nothing(2), !living)] {
            let mut run = history();
            run.write(ALWAYS, 1, &store, 1);
            run.wall = UnixMillis(wall);
            run.submit(ALWAYS, 2, &get("a"));
            assert_eq!(run.answer(seen).is_ok(), fits, "wall {wall}");
        }
    }
}

fn store_until(name: &'static str, value: &'static str, expiry: RecordExpiry) -> SsdCommand {
    let condition = WriteCondition::Always;
    SsdCommand::Store { key: key(name), value: key(value).into(), condition, expiry }
}

/// Guards a regression: the checker computed the lifetime that a write keeps when the write was submitted, and so
/// reported as lost a key whose record took over the expiry of a write that was submitted later and executed earlier.
#[test]
fn kept_lifetime_may_be_that_of_a_write_submitted_later() {
    let run = |later: RecordExpiry| {
        let mut history = history();
        history.submit(ALWAYS, 1, &store_until("a", "first", RecordExpiry::Never));
        history.answer(&answer(1, Status::SUCCESS, 1)).unwrap();
        history.submit(ALWAYS, 2, &store_until("a", "kept", RecordExpiry::Keep));
        history.submit(ALWAYS, 3, &store_until("a", "later", later));
        history.answer(&answer(3, Status::SUCCESS, 2)).unwrap();
        history.answer(&answer(2, Status::SUCCESS, 3)).unwrap();
        history.wall = UnixMillis(3_000);
        history.submit(ALWAYS, 4, &get("a"));
        history.answer(&nothing(4))
    };
    run(RecordExpiry::At(2_000)).unwrap();
    assert!(matches!(run(RecordExpiry::Never), Err(PromiseViolation::Lost { .. })));
}

#[test]
fn stale_read_without_a_cut_is_reported() {
    let mut run = history();
    run.write(ALWAYS, 1, &store("a", "one"), 1);
    run.write(ALWAYS, 2, &store("a", "two"), 2);
    run.submit(ALWAYS, 3, &get("a"));
    assert!(run.answer(&found(3, "one", 1)).is_err());
}

#[test]
fn read_concurrent_with_a_write_may_return_either_value() {
    for seen in [found(3, "one", 1), found(3, "two", 2)] {
        let mut run = history();
        run.write(ALWAYS, 1, &store("a", "one"), 1);
        run.submit(ALWAYS, 2, &store("a", "two"));
        run.submit(ALWAYS, 3, &get("a"));
        run.answer(&answer(2, Status::SUCCESS, 2)).unwrap();
        run.answer(&seen).unwrap();
    }
}

#[test]
fn misjudged_condition_is_reported() {
    let absent = SsdCommand::Store {
        key: key("a"),
        value: key("two").into(),
        condition: WriteCondition::IfAbsent,
        expiry: RecordExpiry::Never,
    };
    let mut run = history();
    run.write(ALWAYS, 1, &store("a", "one"), 1);
    run.submit(ALWAYS, 2, &absent);
    let judged = run.answer(&answer(2, Status::SUCCESS, 2));
    assert!(matches!(judged, Err(PromiseViolation::ConditionMisjudged { .. })), "{judged:?}");
    let mut run = history();
    run.submit(ALWAYS, 1, &absent);
    let judged = run.answer(&answer(1, Status::KEY_EXISTS, 0));
    assert!(matches!(judged, Err(PromiseViolation::ConditionMisjudged { .. })), "{judged:?}");
}

#[test]
fn wrong_listings_are_reported() {
    let mut run = history();
    run.write(ALWAYS, 1, &store("a", "one"), 1);
    run.write(ALWAYS, 2, &store("b", "two"), 2);
    run.write(ALWAYS, 3, &delete("b"), 3);
    run.submit(ALWAYS, 4, &SsdCommand::List { position: ListPosition::START, keys_max: 9 });
    let listed = |name| ListedKey { key: key(name), value_bytes: 3, expiry_ms: 0 };
    let mut gone = answer(4, Status::SUCCESS, 0);
    gone.keys = vec![listed("a"), listed("b")];
    assert!(matches!(run.answer(&gone), Err(PromiseViolation::Listing { .. })));
    run.cut();
    run.settle(ALWAYS, "a", &found(0, "one", 1)).unwrap();
    run.settle(ALWAYS, "b", &nothing(0)).unwrap();
    let wall = WallSpan { asked: run.wall, answered: run.wall };
    run.checker.check_listing(ALWAYS, &[key("a")], wall).unwrap();
    for wrong in [vec![], vec![key("a"), key("b")], vec![key("a"), key("a")], vec![key("a"), key("c")]] {
        assert!(run.checker.check_listing(ALWAYS, &wrong, wall).is_err(), "{wrong:?}");
    }
}

#[test]
fn lost_update_is_reported() {
    let replace = |value: &'static str| SsdCommand::Store {
        key: key("a"),
        value: key(value).into(),
        condition: WriteCondition::IfSequence(Sequence(1)),
        expiry: RecordExpiry::Never,
    };
    let mut run = history();
    run.write(ALWAYS, 1, &store("a", "one"), 1);
    run.submit(ALWAYS, 2, &replace("two"));
    run.submit(ALWAYS, 3, &replace("three"));
    run.answer(&answer(3, Status::SUCCESS, 3)).unwrap();
    let lost = run.answer(&answer(2, Status::SUCCESS, 2));
    assert!(matches!(lost, Err(PromiseViolation::LostUpdate { .. })), "{lost:?}");
}

fn store_if(condition: WriteCondition) -> SsdCommand {
    SsdCommand::Store { key: key("a"), value: key("two").into(), condition, expiry: RecordExpiry::Never }
}

#[test]
fn batch_that_decided_an_acknowledged_write_must_survive_whole() {
    for lost in [false, true] {
        let mut run = history();
        run.submit(ALWAYS, 1, &batch(&[("a", "from the batch"), ("b", "from the batch too")]));
        // The key was absent before: only the batch, which was not acknowledged, can have stored a record.
        run.write(ALWAYS, 2, &store_if(WriteCondition::IfExists), 3);
        run.cut();
        run.settle(ALWAYS, "a", &found(0, "two", 3)).unwrap();
        let other = if lost { nothing(0) } else { found(0, "from the batch too", 2) };
        let judged = run.settle(ALWAYS, "b", &other);
        assert_eq!(matches!(judged, Err(PromiseViolation::Lost { .. })), lost, "{judged:?}");
    }
}

#[test]
fn clear_that_decided_an_acknowledged_write_must_survive() {
    let mut run = history();
    run.write(ALWAYS, 1, &store("a", "one"), 1);
    run.write(ALWAYS, 2, &store("b", "one"), 2);
    run.submit(ALWAYS, 3, &SsdCommand::Clear);
    run.write(ALWAYS, 4, &store_if(WriteCondition::IfAbsent), 4);
    run.cut();
    run.settle(ALWAYS, "a", &found(0, "two", 4)).unwrap();
    assert!(matches!(run.settle(ALWAYS, "b", &found(0, "one", 2)), Err(PromiseViolation::CameBack { .. })));
}

#[test]
fn write_that_outlives_the_batch_it_replaced_is_reported() {
    for lost in [false, true] {
        let mut run = history();
        run.write(ON_FLUSH, 1, &batch(&[("a", "from the batch"), ("b", "from the batch too")]), 2);
        run.submit(ON_FLUSH, 2, &get("a"));
        run.answer(&found(2, "from the batch", 1)).unwrap();
        run.submit(ON_FLUSH, 3, &store_if(WriteCondition::IfSequence(Sequence(1))));
        run.cut();
        run.settle(ON_FLUSH, "a", &found(0, "two", 3)).unwrap();
        let other = if lost { nothing(0) } else { found(0, "from the batch too", 2) };
        let judged = run.settle(ON_FLUSH, "b", &other);
        assert_eq!(matches!(judged, Err(PromiseViolation::TornBatch { .. })), lost, "{judged:?}");
    }
}
