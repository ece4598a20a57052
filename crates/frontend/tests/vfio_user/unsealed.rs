//! Guests in memory that their hypervisor can shrink.

use crate::driver::{DATA, DoorbellMode, SHADOW, SLOTS, start};
use crate::hypervisor::VfioTestNode;
use headwater_nvme::spec::kv::{DataPointer, InlineKey, StoreOptions, retrieve, store};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{FrontEndId, NamespaceId, ReadCaching, ReadRelease, SsdCommand, ValueSink};
use headwater_testkit::unsealed_memory::unsealed_files;
use rustix::fs::ftruncate;

/// Bytes of guest memory: as `hypervisor::MEMORY_BYTES`.
const BYTES: u64 = crate::hypervisor::MEMORY_BYTES as u64;

fn key() -> InlineKey {
    InlineKey::new(b"unsealed").unwrap()
}

#[test]
fn guest_in_unsealed_memory_is_served_like_any_other() {
    for (name, file) in unsealed_files(BYTES) {
        for ringing in [DoorbellMode::Registers, DoorbellMode::Shadow] {
            let mut node = VfioTestNode::new();
            let mut guest = node.guest_over(file.try_clone().unwrap());
            let (_admin, mut queue) = start(&mut node, &mut guest, ringing);
            let value: Vec<u8> = (0..=u8::MAX).cycle().take(4_096).collect();
            guest.memory.copy_out(usize::try_from(DATA).unwrap(), &value).unwrap();
            let data = DataPointer { address: DATA, bytes: 4_096 };
            for _ in 0..3 * SLOTS {
                let stored = queue.run(&mut node, &mut guest, store(1, key(), data, StoreOptions::NONE));
                assert_eq!(stored.0, Status::SUCCESS, "{name}");
            }
            let back = DataPointer { address: DATA + 0x1_0000, bytes: 4_096 };
            let read = queue.run(&mut node, &mut guest, retrieve(1, key(), back));
            assert_eq!(read, (Status::SUCCESS, 4_096), "{name}");
            let mut found = vec![0; 4_096];
            guest.memory.copy_in(usize::try_from(DATA).unwrap() + 0x1_0000, &mut found).unwrap();
            assert!(found == value, "{name}: the value read differs from the value stored");
        }
    }
}

/// Truncates the guest's memory to `kept` bytes under load; its connection ends, and everything else goes on.
fn truncate_under_load(ringing: DoorbellMode, kept: u64) {
    for (name, file) in unsealed_files(4 << 20) {
        let mut node = VfioTestNode::new();
        let mut guest = node.guest_over(file.try_clone().unwrap());
        let (_admin, mut queue) = start(&mut node, &mut guest, ringing);
        let data = DataPointer { address: DATA, bytes: 0x8_0000 };
        let mut entry = store(1, key(), data, StoreOptions::NONE);
        // A list of its pages; the list is among the first pages, the data is not.
        let list: Vec<u8> = (1..0x80_u64).flat_map(|page| (DATA + page * 4_096).to_le_bytes()).collect();
        guest.memory.copy_out(0x6000, &list).unwrap();
        entry.prp2.set(0x6000);
        assert_eq!(queue.run(&mut node, &mut guest, entry).0, Status::SUCCESS, "{name}");
        for _ in 0..4 {
            queue.submit(&mut node, &mut guest, entry);
        }
        // A file of huge pages has whole ones only.
        if ftruncate(&file, kept).is_err() {
            ftruncate(&file, 0).unwrap();
        }
        let other = FrontEndId(9);
        for token in 0..100 {
            let exists = SsdCommand::Exist { key: b"other"[..].into(), release: ReadRelease::WhenDurable };
            node.device.submit(other, NamespaceId::FIRST, token, exists).unwrap();
            node.run_until_idle();
            assert_eq!(node.device.next_completion(other).unwrap().token, token, "{name}");
        }
        assert!(!guest.is_connected(), "{name}: the guest without memory is still connected");
        // The next guest finds the device.
        let mut next = node.guest();
        let (_admin, mut queue) = start(&mut node, &mut next, ringing);
        let small = DataPointer { address: DATA, bytes: 4_096 };
        let stored = queue.run(&mut node, &mut next, store(1, key(), small, StoreOptions::NONE));
        assert_eq!(stored.0, Status::SUCCESS, "{name}");
    }
}

#[test]
fn truncated_data_costs_the_guest_its_connection_and_no_other_client_anything() {
    truncate_under_load(DoorbellMode::Registers, DATA + 0x2_0000);
}

#[test]
fn truncated_rings_cost_the_guest_its_connection_and_no_other_client_anything() {
    truncate_under_load(DoorbellMode::Registers, 0x1000);
    truncate_under_load(DoorbellMode::Shadow, SHADOW);
    truncate_under_load(DoorbellMode::Shadow, 0);
}

/// Checks for a former defect: a store that was in flight when the hypervisor truncated the memory stored zeroes.
#[test]
fn store_in_flight_during_a_truncation_stores_nothing() {
    let other = FrontEndId(9);
    let read = |node: &mut VfioTestNode| {
        let (key, sink) = (b"unsealed"[..].into(), ValueSink::Bytes(Vec::new()));
        let get = SsdCommand::Retrieve {
            key,
            sink,
            offset: 0,
            bytes_max: 4_096,
            caching: ReadCaching::ByLength,
            release: ReadRelease::WhenDurable,
        };
        node.device.submit(other, NamespaceId::FIRST, 1, get).unwrap();
        node.run_until_idle();
        let found = node.device.next_completion(other).unwrap();
        (found.status, found.sink)
    };
    for (name, file) in unsealed_files(4 << 20) {
        let mut node = VfioTestNode::new();
        let mut guest = node.guest_over(file.try_clone().unwrap());
        let (_admin, mut queue) = start(&mut node, &mut guest, DoorbellMode::Shadow);
        let data = DataPointer { address: DATA, bytes: 4_096 };
        let entry = store(1, key(), data, StoreOptions::NONE);
        guest.memory.copy_out(usize::try_from(DATA).unwrap(), &[1; 4_096]).unwrap();
        assert_eq!(queue.run(&mut node, &mut guest, entry).0, Status::SUCCESS, "{name}");
        guest.memory.copy_out(usize::try_from(DATA).unwrap(), &[2; 4_096]).unwrap();
        // The device has the command, and not yet copied its value.
        queue.submit(&mut node, &mut guest, entry);
        node.front_end.poll(&mut node.device, node.now);
        if ftruncate(&file, DATA).is_err() {
            ftruncate(&file, 0).unwrap();
        }
        assert!(read(&mut node) == (Status::SUCCESS, vec![1; 4_096]), "{name}: not the older value");
        assert!(!guest.is_connected(), "{name}: the guest without memory is still connected");
    }
}
