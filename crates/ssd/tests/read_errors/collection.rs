//! Collection: a block with an unreadable page is never erased, it keeps no memory, and a collector that cannot go on
//! says so.

use crate::failing_media::{EIO, ENODATA};
use crate::host::{ReadErrorHost, key, text, value};
use headwater_nvme::spec::status::Status;
use headwater_ssd::engine::{DeviceConfig, VictimPolicy};
use std::collections::BTreeSet;

const KEYS: usize = 100;

fn fifo() -> DeviceConfig {
    DeviceConfig { victim: VictimPolicy::Fifo, ..DeviceConfig::default() }
}

/// Returns a device with cold keys, whose collector takes the oldest block first.
fn cold_host(blocks: u32, config: &DeviceConfig) -> ReadErrorHost {
    let mut host = ReadErrorHost::new(blocks, config.clone());
    for number in 0..KEYS {
        assert_eq!(host.set(&key(number), &value(number)), Status::SUCCESS);
    }
    ReadErrorHost::open(host.stopped(), config).unwrap()
}

/// Overwrites one key until every block was opened a few times.
fn churn(host: &mut ReadErrorHost, blocks: usize) -> Result<(), Status> {
    for _ in 0..blocks * 64 * 3 {
        match host.set("churned", &value(999)) {
            Status::SUCCESS => {}
            failed => return Err(failed),
        }
    }
    host.settle();
    Ok(())
}

#[test]
fn block_with_an_unreadable_page_is_not_erased() {
    let mut host = cold_host(20, &fifo());
    let page = host.device.media().page_with(&text(7));
    host.device.media_mut().fail(page, ENODATA, u64::MAX);
    churn(&mut host, 20).unwrap();
    assert!(!host.device.media().erased.contains(&page.block), "{page} was erased");
    assert_eq!(host.device.stats().quarantined, 1);
    host.device.media_mut().mend();
    for number in 0..KEYS {
        assert_eq!(host.get(&key(number)), Ok(value(number)), "key {number}");
    }
}

#[test]
fn quarantined_block_is_erased_when_every_record_in_it_was_written_again() {
    let mut host = cold_host(20, &fifo());
    let page = host.device.media().page_with(&text(7));
    host.device.media_mut().fail(page, ENODATA, u64::MAX);
    churn(&mut host, 20).unwrap();
    assert_eq!(host.device.stats().quarantined, 1);
    for number in 0..KEYS {
        assert_eq!(host.set(&key(number), &value(number + 1)), Status::SUCCESS);
    }
    host.device.media_mut().mend();
    churn(&mut host, 20).unwrap();
    assert!(host.device.media().erased.contains(&page.block), "{} was kept", page.block);
    assert_eq!(host.device.stats().quarantined, 0);
    for number in 0..KEYS {
        assert_eq!(host.get(&key(number)), Ok(value(number + 1)), "key {number}");
    }
}

#[test]
fn tombstones_on_an_unreadable_page_are_not_erased_while_an_older_block_is_left() {
    let mut host = cold_host(20, &fifo());
    // The block of the keys stays, because the one that is left in it cannot be read.
    let cold = host.device.media().page_with(&text(0));
    for number in 1..KEYS {
        assert_eq!(host.delete(&key(number)), Status::SUCCESS);
    }
    let block = host.device.media().page_with(b"key 50").block;
    assert_ne!(block, cold.block);
    churn(&mut host, 1).unwrap();
    let mut host = ReadErrorHost::open(host.stopped(), &fifo()).unwrap();
    host.device.media_mut().fail(cold, ENODATA, u64::MAX);
    for page in host.device.media().pages_with(b"key 50") {
        if page.block == block {
            host.device.media_mut().fail(page, ENODATA, u64::MAX);
        }
    }
    churn(&mut host, 20).unwrap();
    assert!(!host.device.media().erased.contains(&block), "{block} was erased");
    assert_eq!(host.device.stats().quarantined, 2);
    assert_eq!(host.set(&key(0), &value(1)), Status::SUCCESS);
    churn(&mut host, 40).unwrap();
    assert!(host.device.media().erased.contains(&block), "{block} is not needed");
    assert_eq!(host.device.stats().quarantined, 0);
}

#[test]
fn collector_repeats_a_read_that_fails_once() {
    let mut host = cold_host(20, &fifo());
    let page = host.device.media().page_with(&text(7));
    host.device.media_mut().fail(page, EIO, 3);
    churn(&mut host, 20).unwrap();
    assert!(host.device.media().erased.contains(&page.block), "{page} was not collected");
    assert_eq!((host.device.stats().quarantined, host.device.stats().read_errors), (0, 3));
    for number in 0..KEYS {
        assert_eq!(host.get(&key(number)), Ok(value(number)), "key {number}");
    }
}

/// Returns a device with little memory and keys in many blocks, each of which has one unreadable page.
fn host_of_unreadable_blocks(blocks: u32, failing: usize) -> ReadErrorHost {
    let config = DeviceConfig { frames_max: 300, ..fifo() };
    let mut host = ReadErrorHost::new(blocks, config.clone());
    let keys = failing * 70;
    for number in 0..keys {
        assert_eq!(host.set(&key(number), &value(number)), Status::SUCCESS);
    }
    let mut host = ReadErrorHost::open(host.stopped(), &config).unwrap();
    let mut seen = BTreeSet::new();
    for page in host.device.media().pages_with(b"<value ") {
        if page.page > 10 && seen.len() < failing && seen.insert(page.block) {
            host.device.media_mut().fail(page, ENODATA, u64::MAX);
        }
    }
    assert_eq!(seen.len(), failing);
    host
}

#[test]
fn quarantined_blocks_keep_no_memory() {
    const BLOCKS: u32 = 48;
    let mut host = host_of_unreadable_blocks(BLOCKS, 10);
    churn(&mut host, BLOCKS as usize).unwrap();
    assert_eq!(host.device.stats().quarantined, 10);
}

#[test]
fn collector_without_a_block_to_free_says_so_and_writes_fail() {
    const BLOCKS: u32 = 30;
    let mut host = host_of_unreadable_blocks(BLOCKS, 17);
    let failed = churn(&mut host, 2 * BLOCKS as usize).expect_err("every write found room");
    assert_eq!(failed, Status::WRITE_FAULT);
    assert!(host.device.stats().quarantined > 0);
    assert!(host.device.stats().collection_stuck);
    assert!(host.get("churned").is_ok(), "reads must go on");
}
