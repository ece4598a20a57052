//! Tests of namespace limits, in virtual time.

use super::host::{FRONT_END, NamespaceHost, WALL, blocks, pattern, read, write};
use bytes::Bytes;
use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{Fua, NamespaceId, ReadRelease, SsdCommand, SubmitError};
use headwater_ssd::engine::{DeviceConfig, Durability};
use headwater_ssd::limits::{NAMESPACES, THROTTLED_MAX};
use headwater_ssd::namespace::{BlockFormat, Namespace, NamespaceChange, NamespaceLimits};

const FORMAT: BlockFormat = BlockFormat::B512;

fn limited(limits: NamespaceLimits) -> (NamespaceHost, NamespaceId) {
    let durability = [Durability::OnFlush; NAMESPACES];
    let mut host = NamespaceHost::new(64, DeviceConfig { durability, ..DeviceConfig::default() });
    let disk = host.create(Namespace { limits, ..blocks(FORMAT, 10_000) });
    (host, disk)
}

/// Returns the tokens of commands completed by a time, in order of completion.
fn completed_by(host: &mut NamespaceHost, now: Nanos) -> Vec<u64> {
    host.now = now;
    while host.device.poll(now, WALL) {}
    std::iter::from_fn(|| host.device.next_completion(FRONT_END)).map(|completion| completion.token).collect()
}

#[test]
fn commands_over_the_limit_start_in_order_when_due() {
    let (mut host, disk) = limited(NamespaceLimits { iops: 1_000, bytes_per_second: 0, burst: 3 });
    host.now = Nanos::from_millis(100);
    let start = host.now;
    completed_by(&mut host, start);
    let tokens: Vec<u64> = (0..8).map(|lba| host.submit(disk, write(lba, vec![1; 512], Fua::No))).collect();
    assert_eq!(completed_by(&mut host, Nanos::from_millis(100)), tokens[..3]);
    for (late, token) in tokens.iter().enumerate().skip(3) {
        let due = Nanos::from_millis(98 + u64::try_from(late).unwrap());
        assert_eq!(host.device.next_deadline(), Some(due), "the deadline is not the next start time");
        assert_eq!(completed_by(&mut host, Nanos(due.0 - 1)), [0; 0], "a command started early");
        assert_eq!(completed_by(&mut host, due), [*token]);
    }
    assert_eq!(host.device.next_deadline(), None);
}

#[test]
fn byte_limit_covers_reads_and_writes() {
    // 1 MB and 1,000 commands a second: 1,000 bytes a command on average, two at once.
    let limits = NamespaceLimits { iops: 1_000, bytes_per_second: 1_000_000, burst: 2 };
    let (mut host, disk) = limited(limits);
    let first = host.submit(disk, write(0, pattern(FORMAT, 1, 8), Fua::No));
    let second = host.submit(disk, read(0, 8));
    assert_eq!(completed_by(&mut host, Nanos::ZERO), [first], "4,096 bytes must leave a debt of 2,096");
    assert_eq!(completed_by(&mut host, Nanos(4_095_999)), [0; 0]);
    assert_eq!(completed_by(&mut host, Nanos(4_096_000)), [second]);
}

#[test]
fn byte_limit_counts_all_of_a_value_in_extents() {
    let (mut host, _) = limited(NamespaceLimits::default());
    assert_eq!(host.set(NamespaceId::FIRST, b"long", &vec![7; 300_000]), Status::SUCCESS);
    let limits = NamespaceLimits { iops: 0, bytes_per_second: 1_000_000, burst: 1 };
    let change = host.submit(NamespaceId::FIRST, SsdCommand::Namespace(NamespaceChange::Limits(limits)));
    assert_eq!(completed_by(&mut host, Nanos::ZERO), [change]);
    let retrieve = || {
        SsdCommand::retrieve_whole(Bytes::from_static(b"long"), Vec::new().into(), ReadRelease::WhenDurable)
    };
    let tokens = [(); 2].map(|()| host.submit(NamespaceId::FIRST, retrieve()));
    assert_eq!(completed_by(&mut host, Nanos::ZERO), tokens[..1]);
    assert_eq!(completed_by(&mut host, Nanos::from_millis(299)), [0; 0]);
    assert_eq!(completed_by(&mut host, Nanos::from_millis(301)), tokens[1..]);
}

#[test]
fn short_command_starts_at_its_own_time_when_the_long_one_before_it_is_aborted() {
    let (mut host, disk) = limited(NamespaceLimits { iops: 0, bytes_per_second: 1_000_000, burst: 1 });
    let first = host.submit(disk, write(0, pattern(FORMAT, 1, 8), Fua::No));
    let long = host.submit(disk, read(0, 8));
    let short = host.submit(disk, read(0, 1));
    assert_eq!(completed_by(&mut host, Nanos::ZERO), [first]);
    assert_eq!(completed_by(&mut host, Nanos(100_000)), [0; 0]);
    assert!(host.device.abort(FRONT_END, long));
    assert_eq!(completed_by(&mut host, Nanos(100_000)), [long]);
    assert_eq!(host.device.next_deadline(), Some(Nanos(512_000)));
    assert_eq!(completed_by(&mut host, Nanos(511_999)), [0; 0]);
    assert_eq!(completed_by(&mut host, Nanos(512_000)), [short]);
}

#[test]
fn new_limits_count_for_commands_that_wait() {
    let (mut host, disk) = limited(NamespaceLimits { iops: 1, bytes_per_second: 0, burst: 1 });
    let tokens: Vec<u64> = (0..2).map(|lba| host.submit(disk, write(lba, vec![1; 512], Fua::No))).collect();
    assert_eq!(completed_by(&mut host, Nanos::ZERO), tokens[..1]);
    let limits = NamespaceLimits { iops: 1_000, bytes_per_second: 0, burst: 1 };
    let change = host.submit(disk, SsdCommand::Namespace(NamespaceChange::Limits(limits)));
    assert_eq!(completed_by(&mut host, Nanos::from_micros(1)), [change]);
    assert_eq!(completed_by(&mut host, Nanos::from_millis(1)), tokens[1..]);
}

#[test]
fn throttled_namespace_delays_no_other() {
    let (mut host, disk) = limited(NamespaceLimits { iops: 1, bytes_per_second: 0, burst: 1 });
    for lba in 0..50 {
        host.submit(disk, write(lba, vec![1; 512], Fua::No));
    }
    assert_eq!(completed_by(&mut host, Nanos::ZERO).len(), 1);
    assert_eq!(host.set(NamespaceId::FIRST, b"k", b"v"), Status::SUCCESS);
    assert_eq!(host.get(NamespaceId::FIRST, b"k").unwrap(), b"v");
    let flush = host.submit(disk, SsdCommand::Flush);
    assert_eq!(completed_by(&mut host, Nanos::ZERO), [flush], "a flush counted against the limit");
}

#[test]
fn full_wait_queue_is_busy_and_removed_limits_release_all_commands() {
    let (mut host, disk) = limited(NamespaceLimits { iops: 1, bytes_per_second: 0, burst: 1 });
    for lba in 0..=u64::try_from(THROTTLED_MAX).unwrap() {
        host.submit(disk, write(lba, vec![1; 512], Fua::No));
    }
    let refused = host.device.submit(FRONT_END, disk, 0, read(0, 1));
    assert_eq!(refused, Err(SubmitError::Busy(THROTTLED_MAX)));
    assert_eq!(completed_by(&mut host, Nanos::ZERO).len(), 1);
    host.submit(disk, SsdCommand::Namespace(NamespaceChange::Limits(NamespaceLimits::default())));
    assert_eq!(completed_by(&mut host, Nanos::ZERO).len(), THROTTLED_MAX + 1);
    assert_eq!(host.device.namespace_usage(disk), u64::try_from(THROTTLED_MAX).unwrap() + 1);
}
