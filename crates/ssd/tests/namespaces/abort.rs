//! Commands that are given up: nothing of them is done, and each has one completion.

use super::host::{FACE, Host, WALL, blocks, pattern, read, write};
use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{Fua, NamespaceId};
use headwater_ssd::engine::{DeviceConfig, Durability};
use headwater_ssd::limits::NAMESPACES;
use headwater_ssd::namespace::{BlockFormat, Namespace, NamespaceLimits};

const FORMAT: BlockFormat = BlockFormat::B512;

fn host(iops: u32) -> (Host, NamespaceId) {
    let durability = [Durability::OnFlush; NAMESPACES];
    let mut host = Host::new(64, DeviceConfig { durability, ..DeviceConfig::default() });
    let limits = NamespaceLimits { iops, bytes_per_second: 0, burst: 1 };
    let disk = host.create(Namespace { limits, ..blocks(FORMAT, 1_000) });
    (host, disk)
}

fn answered(host: &mut Host) -> Vec<(u64, Status)> {
    while host.device.poll(host.now, WALL) {}
    let completions = std::iter::from_fn(|| host.device.next_completion(FACE));
    completions.map(|completion| (completion.token, completion.status)).collect()
}

#[test]
fn a_command_whose_turn_has_not_come_is_given_up_and_does_nothing() {
    let (mut host, disk) = host(0);
    assert_eq!(host.write(disk, 5, pattern(FORMAT, 1, 1)), Status::SUCCESS);
    let first = host.submit(disk, write(5, pattern(FORMAT, 7, 1), Fua::No));
    let second = host.submit(disk, write(6, pattern(FORMAT, 8, 1), Fua::No));
    assert!(host.device.abort(FACE, first));
    assert!(!host.device.abort(FACE, first), "once");
    let own = host.device.next_completion(FACE).unwrap();
    assert_eq!((own.token, own.status), (first, Status::ABORT_REQUESTED), "at once");
    assert_eq!(answered(&mut host), [(second, Status::SUCCESS)]);
    assert_eq!(host.read(disk, 5, 1).unwrap(), pattern(FORMAT, 1, 1));
    assert_eq!(host.read(disk, 6, 1).unwrap(), pattern(FORMAT, 8, 1));
}

#[test]
fn what_has_been_answered_or_was_never_asked_is_not_given_up() {
    let (mut host, disk) = host(0);
    let token = host.submit(disk, read(0, 1));
    assert_eq!(answered(&mut host), [(token, Status::SUCCESS)]);
    assert!(!host.device.abort(FACE, token));
    assert!(!host.device.abort(FACE, 999));
    let token = host.submit(disk, read(0, 1));
    assert!(!host.device.abort(headwater_ssd::command::FaceId(2), token), "of another face");
    assert_eq!(answered(&mut host), [(token, Status::SUCCESS)]);
}

#[test]
fn a_command_that_waits_for_its_namespaces_limits_is_given_up_and_those_behind_it_go_on() {
    let (mut host, disk) = host(1);
    let tokens: Vec<u64> = (0..4).map(|lba| host.submit(disk, write(lba, vec![1; 512], Fua::No))).collect();
    assert_eq!(answered(&mut host), [(tokens[0], Status::SUCCESS)]);
    assert!(host.device.abort(FACE, tokens[1]) && host.device.abort(FACE, tokens[3]));
    let aborted = Status::ABORT_REQUESTED;
    assert_eq!(answered(&mut host), [(tokens[1], aborted), (tokens[3], aborted)]);
    host.now = Nanos::from_millis(1_000);
    assert_eq!(answered(&mut host), [(tokens[2], Status::SUCCESS)], "one place further to the front");
    assert_eq!(host.device.next_deadline(), None);
    assert_eq!(host.device.in_flight(), 0);
    assert_eq!(host.device.namespace_usage(disk), 2);
}
