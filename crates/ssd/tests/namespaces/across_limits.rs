//! Tests of batches over several namespaces that wait for rate limits.

use super::across::{across, put};
use super::host::{FRONT_END, NamespaceHost, WALL};
use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    BatchWrite, NamespaceId, ReadRelease, RecordExpiry, SsdCommand, SubmitError, WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, Durability};
use headwater_ssd::limits::{NAMESPACES, THROTTLED_MAX};
use headwater_ssd::namespace::{Namespace, NamespaceLimits};

const FIRST: NamespaceId = NamespaceId::FIRST;

/// Returns a device with two namespaces that have limits, and those.
fn host_with(iops: [u32; 2]) -> (NamespaceHost, [NamespaceId; 2]) {
    let durability = [Durability::OnFlush; NAMESPACES];
    let mut host = NamespaceHost::new(32, DeviceConfig { durability, ..DeviceConfig::default() });
    let limited = iops.map(|iops| {
        let limits = NamespaceLimits { iops, bytes_per_second: 0, burst: 1 };
        host.create(Namespace { limits, ..Namespace::IMPLICIT })
    });
    completed_by(&mut host, Nanos::ZERO);
    (host, limited)
}

/// Returns the tokens and statuses of commands completed by a time, in order of completion.
fn completed_by(host: &mut NamespaceHost, now: Nanos) -> Vec<(u64, Status)> {
    host.now = now;
    while host.device.poll(now, WALL) {}
    let completions = std::iter::from_fn(|| host.device.next_completion(FRONT_END));
    completions.map(|completion| (completion.token, completion.status)).collect()
}

fn submit_across(host: &mut NamespaceHost, parts: Vec<(NamespaceId, Vec<BatchWrite>)>) -> u64 {
    let (first, command) = across(parts);
    host.submit(first, command)
}

#[test]
fn batch_that_waits_for_limits_is_overtaken_on_no_key_and_pays_once() {
    // Clients of the other namespace changed a key that the batch checks, as often as its transaction began again.
    let (mut host, [slow, other]) = host_with([100, 100]);
    assert_eq!(host.set(FIRST, b"read", b"v"), Status::SUCCESS);
    let read = SsdCommand::Exist { key: "read".into(), release: ReadRelease::WhenDurable };
    host.submit(FIRST, SsdCommand::Flush);
    completed_by(&mut host, Nanos::ZERO);
    let seen = host.run(FIRST, read).sequence;
    let parts = |key: &'static str| vec![(slow, vec![put(key, "v")]), (other, vec![put(key, "v")])];
    let before = submit_across(&mut host, parts("a"));
    assert_eq!(completed_by(&mut host, Nanos::ZERO), [(before, Status::SUCCESS)]);
    let condition = WriteCondition::IfSequence(seen);
    let (key, value, expiry) = ("read".into(), "batch".into(), RecordExpiry::Never);
    let mut all = vec![(FIRST, vec![BatchWrite::Store { key, value, condition, expiry }])];
    all.extend(parts("b"));
    let batch = submit_across(&mut host, all);
    assert_eq!(completed_by(&mut host, Nanos::ZERO), []);
    let later = host.submit(FIRST, SsdCommand::Batch { writes: vec![put("read", "later")] });
    assert_eq!(completed_by(&mut host, Nanos(9_999_999)), [], "a write overtook a batch that holds its key");
    assert_eq!(host.set(FIRST, b"free", b"v"), Status::SUCCESS, "a key that the batch does not name is free");
    let done = completed_by(&mut host, Nanos::from_millis(10));
    assert_eq!(done, [(batch, Status::SUCCESS), (later, Status::SUCCESS)]);
    assert_eq!(host.get(FIRST, b"read").unwrap(), b"later");
    // Each bucket has been paid once: the next token is there 10 ms later.
    let next = submit_across(&mut host, parts("c"));
    assert_eq!(completed_by(&mut host, Nanos(19_999_999)), []);
    assert_eq!(completed_by(&mut host, Nanos::from_millis(20)), [(next, Status::SUCCESS)]);
}

#[test]
fn queue_of_each_namespace_of_a_batch_is_bounded() {
    // Batches that had waited for one namespace entered the queue of the next one, however long it was.
    let (mut host, [slow, second]) = host_with([1_000, 10]);
    let submit = |host: &mut NamespaceHost, namespaces: [NamespaceId; 2], key: u64| {
        let key = format!("k{key}");
        let parts = namespaces.iter().map(|namespace| (*namespace, vec![put(key.clone(), "v")]));
        let (first, command) = across(parts.collect());
        host.device.submit(FRONT_END, first, 1_000_000, command)
    };
    // Half of the queue of the second namespace is of its own commands, of which one starts.
    let half = THROTTLED_MAX as u64 / 2;
    for key in 0..=half {
        host.submit(second, SsdCommand::Batch { writes: vec![put(format!("own{key}"), "v")] });
    }
    let mut accepted = 0;
    while submit(&mut host, [slow, second], accepted).is_ok() {
        accepted += 1;
    }
    assert_eq!(accepted, half);
    let refused = submit(&mut host, [slow, second], accepted);
    assert_eq!(refused, Err(SubmitError::Busy(THROTTLED_MAX)));
    let own = SsdCommand::Batch { writes: vec![put("x", "v")] };
    let refused = host.device.submit(FRONT_END, second, 1_000_001, own);
    assert_eq!(refused, Err(SubmitError::Busy(THROTTLED_MAX)));
    assert_eq!(submit(&mut host, [FIRST, slow], 999_999), Ok(()), "the first namespace has room");
    // A bucket holds one command: each step starts one of the first namespace, and every hundredth one of the second.
    let step = |host: &mut NamespaceHost, millis: u64| {
        for _ in 0..millis {
            let now = host.now.after(Nanos::from_millis(1));
            completed_by(host, now);
        }
    };
    step(&mut host, 500);
    let mut again = 0;
    while submit(&mut host, [slow, second], 10_000 + again).is_ok() {
        again += 1;
    }
    assert_eq!(again, 5, "each command of the second namespace that has started leaves a place");
    step(&mut host, 30_000);
    assert_eq!(host.device.stats().keys[slow.index()], accepted + again + 1);
    assert_eq!(host.device.stats().keys[second.index()], accepted + again + half + 1);
}

#[test]
fn batch_that_waits_for_limits_is_aborted_and_releases_what_it_held() {
    let (mut host, [slow, second]) = host_with([100, 100]);
    let parts = |key: &'static str| {
        vec![(FIRST, vec![put("k", key)]), (slow, vec![put(key, "v")]), (second, vec![put(key, "v")])]
    };
    let first = submit_across(&mut host, parts("a"));
    let batch = submit_across(&mut host, parts("b"));
    assert_eq!(completed_by(&mut host, Nanos::ZERO), [(first, Status::SUCCESS)]);
    let later = host.submit(FIRST, SsdCommand::Batch { writes: vec![put("k", "later")] });
    assert_eq!(completed_by(&mut host, Nanos::ZERO), []);
    assert!(host.device.abort(FRONT_END, batch));
    let mut done = completed_by(&mut host, Nanos::ZERO);
    done.sort_unstable_by_key(|(token, _)| *token);
    assert_eq!(done, [(batch, Status::ABORT_REQUESTED), (later, Status::SUCCESS)]);
    // One that has not had its turn yet.
    let unturned = submit_across(&mut host, parts("c"));
    assert!(host.device.abort(FRONT_END, unturned));
    let next = submit_across(&mut host, parts("d"));
    let done = completed_by(&mut host, Nanos::from_millis(10));
    assert_eq!(done, [(unturned, Status::ABORT_REQUESTED), (next, Status::SUCCESS)]);
    assert_eq!(host.get(FIRST, b"k").unwrap(), b"d");
}
