//! Reads of extents that fail or return other bytes: the page is read again by itself, and its neighbours are not.

use crate::failing_media::{EIO, FailingMedia};
use crate::host::ReadErrorHost;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::ReadCaching;
use headwater_ssd::engine::{DeviceConfig, FailedRead};
use headwater_ssd::limits::EXTENT_BYTES;
use headwater_ssd::media::{PAGE_DATA_BYTES, PageAddress};

/// Returns a value of two extents and a rest, of which every page begins with the value's mark and its number.
fn long(mark: char) -> Vec<u8> {
    let mut value = Vec::new();
    while value.len() < 2 * EXTENT_BYTES + 1_000 {
        let start = page_start(mark, value.len() / PAGE_DATA_BYTES);
        value.extend_from_slice(&start);
        value.resize(value.len() + PAGE_DATA_BYTES - start.len(), b'x');
    }
    value.truncate(2 * EXTENT_BYTES + 1_000);
    value
}

fn page_start(mark: char, number: usize) -> Vec<u8> {
    format!("<{mark} {number:03}>").into_bytes()
}

/// Returns a device with the value, that has no page in device DRAM.
fn cold_host() -> ReadErrorHost {
    let config = DeviceConfig::default();
    let mut host = ReadErrorHost::new(24, config.clone());
    assert_eq!(host.set("long", &long('a')), Status::SUCCESS);
    assert_eq!(host.set("other", &long('b')), Status::SUCCESS);
    ReadErrorHost::open(host.killed(), &config).unwrap()
}

/// Returns the pages of the extents of the first value, in order.
fn extent_pages(media: &FailingMedia) -> Vec<PageAddress> {
    (0..2 * EXTENT_BYTES / PAGE_DATA_BYTES).map(|number| media.page_with(&page_start('a', number))).collect()
}

#[test]
fn page_of_an_extent_that_is_read_from_elsewhere_once_is_read_again_and_answered() {
    let mut host = cold_host();
    let pages = extent_pages(host.device.media());
    for number in [0, 1, 63, 64, 100, 127] {
        let mut host = cold_host();
        let page = pages[number];
        host.device.media_mut().misdirect(page, pages[(number + 1) % pages.len()], 0, 1);
        host.device.media_mut().reads.clear();
        assert!(host.get("long") == Ok(long('a')), "page {number}");
        for (other, page) in pages.iter().enumerate() {
            let reads = if other == number { 2 } else { 1 };
            assert_eq!(host.device.media().reads[page], reads, "page {other} beside page {number}");
        }
        let stats = host.device.stats();
        assert_eq!((stats.read_errors, stats.damaged_pages, stats.damaged), (1, 0, 0));
        let failed = FailedRead { block: page.block.0, page: page.page, errno: None };
        assert_eq!(stats.last_read_error, Some(failed));
    }
    host.device.media_mut().misdirect(pages[5], pages[6], 0, 2);
    // Wrong and not proven when page 5 ends the command, so that it must not stay.
    host.device.media_mut().misdirect(pages[20], pages[21], 0, 1);
    assert_eq!(host.get("long"), Err(Status::UNRECOVERED_ERROR));
    let stats = host.device.stats();
    assert_eq!((stats.read_errors, stats.damaged_pages), (2, 1));
    assert!(host.get("long") == Ok(long('a')), "the next command asks the medium again");
}

#[test]
fn pages_of_extents_that_fail_once_are_read_again_and_no_other_page_is() {
    let mut host = cold_host();
    let pages = extent_pages(host.device.media());
    let failing = [pages[3], pages[4], pages[70]];
    failing.iter().for_each(|page| host.device.media_mut().fail(*page, EIO, 1));
    host.device.media_mut().reads.clear();
    assert!(host.get("long") == Ok(long('a')));
    for page in &pages {
        let reads = if failing.contains(page) { 2 } else { 1 };
        assert_eq!(host.device.media().reads[page], reads, "{page}");
    }
    assert_eq!(host.device.stats().read_errors, 3);
    host.device.media_mut().fail(pages[64], EIO, 2);
    assert_eq!(host.get("long"), Err(Status::UNRECOVERED_ERROR));
    assert!(host.get("other") == Ok(long('b')));
    assert!(host.get("long") == Ok(long('a')), "the next command asks the medium again");
}

#[test]
fn only_pages_that_prove_themselves_are_kept() {
    let mut host = cold_host();
    let pages = extent_pages(host.device.media());
    host.device.media_mut().misdirect(pages[5], pages[6], 0, 2);
    assert_eq!(host.get_with("long", ReadCaching::Keep), Err(Status::UNRECOVERED_ERROR));
    assert!(host.get_with("long", ReadCaching::Keep) == Ok(long('a')), "a page of elsewhere was kept");
    host.device.media_mut().reads.clear();
    assert!(host.get("long") == Ok(long('a')));
    let reads = &host.device.media().reads;
    assert!(pages.iter().all(|page| !reads.contains_key(page)), "the pages did not stay");
    assert!(host.get("other") == Ok(long('b')));
}
