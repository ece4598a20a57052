//! Tests of the namespace table: the effect, the refusal and the durability of each change.

use super::host::{FRONT_END, NamespaceHost, WALL, blocks};
use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{NamespaceId, SsdCommand};
use headwater_ssd::engine::{DeviceConfig, Durability};
use headwater_ssd::limits::{NAMESPACE_BLOCKS_MAX, NAMESPACES};
use headwater_ssd::namespace::{BlockFormat, Namespace, NamespaceChange, NamespaceKind, NamespaceLimits};

const SECOND: NamespaceId = NamespaceId(2);

fn host() -> NamespaceHost {
    NamespaceHost::new(
        32,
        DeviceConfig { durability: [Durability::OnFlush; NAMESPACES], ..DeviceConfig::default() },
    )
}

#[test]
fn create_takes_the_lowest_unused_number() {
    let mut host = host();
    assert_eq!(host.set(SECOND, b"k", b"v"), Status::SUCCESS);
    let made = blocks(BlockFormat::B4096, 100);
    assert_eq!(host.create(made), NamespaceId(3));
    assert_eq!(host.device.namespace(NamespaceId(3)), Some(made));
    assert_eq!(host.device.namespace(SECOND), Some(Namespace::IMPLICIT));
    assert_eq!(host.device.namespace(NamespaceId::FIRST), Some(Namespace::IMPLICIT));
    assert_eq!(host.device.namespace(NamespaceId(4)), None);
    for number in [0, 17, 18, 255] {
        assert_eq!(host.device.namespace(NamespaceId(number)), None, "{number}");
    }
    for number in 4..=16 {
        assert_eq!(host.create(made), NamespaceId(number));
    }
    let another = host.change(NamespaceId::FIRST, NamespaceChange::Create(made));
    assert_eq!(another, Status::NAMESPACE_ID_UNAVAILABLE);
    assert_eq!(host.change(NamespaceId(9), NamespaceChange::Delete), Status::SUCCESS);
    assert_eq!(host.device.namespace(NamespaceId(9)), None);
    assert_eq!(host.create(made), NamespaceId(9));
}

#[test]
fn every_change_survives_power_cuts_and_checkpoints() {
    let mut host = host();
    let first = host.create(blocks(BlockFormat::B512, 64));
    let second = host.create(Namespace { size: 5_000, ..Namespace::IMPLICIT });
    let limits = NamespaceLimits { iops: 1_000_000, bytes_per_second: 1 << 40, burst: 3 };
    let within = Durability::Interval(Nanos::from_millis(5));
    assert_eq!(host.change(first, NamespaceChange::Resize(99)), Status::SUCCESS);
    assert_eq!(host.change(first, NamespaceChange::Limits(limits)), Status::SUCCESS);
    assert_eq!(host.change(second, NamespaceChange::Durability(Some(within))), Status::SUCCESS);
    let changed = Namespace { size: 99, limits, ..blocks(BlockFormat::B512, 64) };
    for round in 0..4 {
        host = if round % 2 == 0 { host.reopened() } else { host.restarted() };
        assert_eq!(host.device.namespace(first), Some(changed), "round {round}");
        let kv = Namespace { size: 5_000, durability: Some(within), ..Namespace::IMPLICIT };
        assert_eq!(host.device.namespace(second), Some(kv), "round {round}");
        assert_eq!(host.device.durability(second), within);
        assert_eq!(host.device.durability(first), Durability::OnFlush, "not the configured durability");
    }
    assert_eq!(host.change(first, NamespaceChange::Delete), Status::SUCCESS);
    host = host.reopened().restarted();
    assert_eq!((host.device.namespace(first), host.device.keys(NamespaceId(17))), (None, 1));
}

#[test]
fn deleted_namespace_loses_all_its_data() {
    let mut host = host();
    let made = host.create(Namespace { size: 1 << 20, ..Namespace::IMPLICIT });
    assert_eq!(host.set(made, b"k", b"v"), Status::SUCCESS);
    assert_eq!(host.set(NamespaceId::FIRST, b"k", b"kept"), Status::SUCCESS);
    assert_eq!(host.change(made, NamespaceChange::Delete), Status::SUCCESS);
    for _ in 0..2 {
        assert_eq!(host.get(made, b"k"), Err(Status::KEY_DOES_NOT_EXIST));
        assert_eq!(host.get(NamespaceId::FIRST, b"k").unwrap(), b"kept");
        assert_eq!(host.change(made, NamespaceChange::Delete), Status::INVALID_NAMESPACE);
        host = host.reopened();
    }
    assert_eq!(host.create(blocks(BlockFormat::B512, 8)), made);
    assert_eq!(host.device.namespace_usage(made), 0);
}

#[test]
fn quota_limits_its_own_namespace_only() {
    let mut host = host();
    let made = host.create(Namespace { size: 3_000, ..Namespace::IMPLICIT });
    assert_eq!(host.set(made, b"a", &[1; 1_000]), Status::SUCCESS);
    assert_eq!(host.set(made, b"b", &[1; 1_000]), Status::SUCCESS);
    let used = host.device.namespace_usage(made);
    assert!((2_000..2_200).contains(&used), "{used}");
    assert_eq!(host.set(made, b"c", &[1; 1_000]), Status::CAPACITY_EXCEEDED);
    assert_eq!(
        host.set(made, b"b", &[2; 1_500]),
        Status::SUCCESS,
        "a replacement counted with its full size"
    );
    assert_eq!(host.set(NamespaceId::FIRST, b"c", &[1; 10_000]), Status::SUCCESS);
    assert_eq!(
        host.change(made, NamespaceChange::Resize(1)),
        Status::SUCCESS,
        "a quota below the usage was refused"
    );
    host = host.reopened();
    assert_eq!(host.set(made, b"b", &[3; 1_500]), Status::SUCCESS, "a write that adds nothing was refused");
    assert_eq!(host.set(made, b"b", &[3; 1_600]), Status::CAPACITY_EXCEEDED);
    assert_eq!(host.change(made, NamespaceChange::Resize(0)), Status::SUCCESS);
    assert_eq!(host.set(made, b"c", &[1; 10_000]), Status::SUCCESS, "a write without quota was refused");
}

#[test]
fn changes_outside_the_limits_are_refused_and_change_nothing() {
    let mut host = host();
    for size in [0, NAMESPACE_BLOCKS_MAX + 1] {
        let refused =
            host.change(NamespaceId::FIRST, NamespaceChange::Create(blocks(BlockFormat::B512, size)));
        assert_eq!(refused, Status::INVALID_FIELD, "{size}");
    }
    let made = host.create(blocks(BlockFormat::B512, 10));
    assert_eq!(host.change(made, NamespaceChange::Resize(0)), Status::INVALID_FIELD);
    assert_eq!(
        host.change(SECOND, NamespaceChange::Format(NamespaceKind::Block(BlockFormat::B4096))),
        Status::SUCCESS
    );
    assert_eq!(
        host.device.namespace(made).map(|now| now.size),
        Some(1),
        "not the whole blocks of the old size"
    );
    let first = NamespaceId::FIRST;
    let kind = NamespaceKind::Block(BlockFormat::B4096);
    assert_eq!(host.change(first, NamespaceChange::Format(kind)), Status::INVALID_FORMAT, "no size");
    assert_eq!(host.change(NamespaceId(9), NamespaceChange::Format(kind)), Status::INVALID_NAMESPACE);
    assert_eq!(host.change(NamespaceId(9), NamespaceChange::Delete), Status::INVALID_NAMESPACE);
    assert_eq!(host.device.namespace(NamespaceId(9)), None);
}

#[test]
fn key_commands_are_refused_on_block_namespaces() {
    let mut host = host();
    let made = host.create(blocks(BlockFormat::B512, 10));
    assert_eq!(host.set(made, b"k", b"v"), Status::INVALID_NAMESPACE);
    assert_eq!(host.get(made, b"k"), Err(Status::INVALID_NAMESPACE));
    assert_eq!(host.run(made, SsdCommand::Flush).status, Status::SUCCESS);
    assert_eq!(host.run(made, SsdCommand::Clear).status, Status::SUCCESS);
}

#[test]
fn change_is_visible_once_it_is_acknowledged() {
    let mut host = host();
    let generation = host.device.namespace_generation();
    host.submit(
        NamespaceId::FIRST,
        SsdCommand::Namespace(NamespaceChange::Create(blocks(BlockFormat::B512, 1))),
    );
    let mut polls = 0;
    loop {
        host.device.poll(host.now, WALL);
        let shown = host.device.namespace(SECOND).is_some();
        let answered = host.device.next_completion(FRONT_END).is_some();
        assert!(shown || !answered, "an acknowledged change is not visible");
        if answered {
            break;
        }
        polls += 1;
        assert!(polls < 1_000);
    }
    assert!(host.device.namespace_generation() > generation);
}

#[test]
fn generation_grows_when_implicit_namespaces_appear_and_disappear() {
    let mut host = host();
    let mut generation = host.device.namespace_generation();
    let mut has_changed = |host: &NamespaceHost| {
        let before = std::mem::replace(&mut generation, host.device.namespace_generation());
        generation > before
    };
    host.set(SECOND, b"k", b"v");
    assert!(has_changed(&host));
    host.set(SECOND, b"l", b"v");
    assert!(!has_changed(&host));
    host.run(SECOND, SsdCommand::Clear);
    assert!(has_changed(&host));
}
