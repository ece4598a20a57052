//! Aborted commands change nothing, and each has one completion.

use super::host::{FRONT_END, NamespaceHost, WALL, blocks, pattern, read, write};
use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{Fua, NamespaceId};
use headwater_ssd::engine::{DeviceConfig, Durability};
use headwater_ssd::limits::NAMESPACES;
use headwater_ssd::namespace::{BlockFormat, Namespace, NamespaceLimits};

const FORMAT: BlockFormat = BlockFormat::B512;

fn host(iops: u32) -> (NamespaceHost, NamespaceId) {
    let durability = [Durability::OnFlush; NAMESPACES];
    let mut host = NamespaceHost::new(64, DeviceConfig { durability, ..DeviceConfig::default() });
    let limits = NamespaceLimits { iops, bytes_per_second: 0, burst: 1 };
    let disk = host.create(Namespace { limits, ..blocks(FORMAT, 1_000) });
    (host, disk)
}

fn completed(host: &mut NamespaceHost) -> Vec<(u64, Status)> {
    while host.device.poll(host.now, WALL) {}
    let completions = std::iter::from_fn(|| host.device.next_completion(FRONT_END));
    completions.map(|completion| (completion.token, completion.status)).collect()
}

#[test]
fn queued_command_is_aborted_and_changes_nothing() {
    let (mut host, disk) = host(0);
    assert_eq!(host.write(disk, 5, pattern(FORMAT, 1, 1)), Status::SUCCESS);
    let first = host.submit(disk, write(5, pattern(FORMAT, 7, 1), Fua::No));
    let second = host.submit(disk, write(6, pattern(FORMAT, 8, 1), Fua::No));
    assert!(host.device.abort(FRONT_END, first));
    assert!(!host.device.abort(FRONT_END, first), "aborted twice");
    let aborted = host.device.next_completion(FRONT_END).unwrap();
    assert_eq!((aborted.token, aborted.status), (first, Status::ABORT_REQUESTED));
    assert_eq!(completed(&mut host), [(second, Status::SUCCESS)]);
    assert_eq!(host.read(disk, 5, 1).unwrap(), pattern(FORMAT, 1, 1));
    assert_eq!(host.read(disk, 6, 1).unwrap(), pattern(FORMAT, 8, 1));
}

#[test]
fn completed_and_unknown_commands_are_not_aborted() {
    let (mut host, disk) = host(0);
    let token = host.submit(disk, read(0, 1));
    assert_eq!(completed(&mut host), [(token, Status::SUCCESS)]);
    assert!(!host.device.abort(FRONT_END, token));
    assert!(!host.device.abort(FRONT_END, 999));
    let token = host.submit(disk, read(0, 1));
    assert!(
        !host.device.abort(headwater_ssd::command::FrontEndId(2), token),
        "aborted from another front end"
    );
    assert_eq!(completed(&mut host), [(token, Status::SUCCESS)]);
}

#[test]
fn throttled_command_is_aborted_and_later_ones_move_up() {
    let (mut host, disk) = host(1);
    let tokens: Vec<u64> = (0..4).map(|lba| host.submit(disk, write(lba, vec![1; 512], Fua::No))).collect();
    assert_eq!(completed(&mut host), [(tokens[0], Status::SUCCESS)]);
    assert!(host.device.abort(FRONT_END, tokens[1]) && host.device.abort(FRONT_END, tokens[3]));
    let aborted = Status::ABORT_REQUESTED;
    assert_eq!(completed(&mut host), [(tokens[1], aborted), (tokens[3], aborted)]);
    host.now = Nanos::from_millis(1_000);
    assert_eq!(completed(&mut host), [(tokens[2], Status::SUCCESS)], "the later command did not move up");
    assert_eq!(host.device.next_deadline(), None, "no command is left to start");
    assert_eq!(host.device.in_flight(), 0);
    assert_eq!(host.device.namespace_usage(disk), 2);
}
