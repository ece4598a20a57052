//! Opening: a read error that passes delays it, one that stays refuses it, and only the exact loss can be accepted.

use crate::failing_media::{EIO, ENODATA, FailingMedia};
use crate::host::{ReadErrorHost, WALL, key, killed_medium, text, value};
use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;
use headwater_ssd::engine::inspection::{RecordFault, inspect};
use headwater_ssd::engine::{DeviceConfig, LossDigest, OpenReason, StartTime};
use headwater_ssd::media::unreadable::{PageNeed, UnreadablePages};
use headwater_ssd::media::{BlockId, PageAddress};

const KEYS: usize = 100;
const FOR_EVER: u64 = u64::MAX;

/// Returns a medium with keys, as a stopped process leaves it: with a checkpoint.
fn stopped_medium() -> FailingMedia {
    ReadErrorHost::open(killed_medium(KEYS), &DeviceConfig::default()).unwrap().stopped()
}

fn accepting(digest: LossDigest) -> DeviceConfig {
    DeviceConfig { accept_loss: Some(digest), ..DeviceConfig::default() }
}

/// Opens a medium that must be refused, and returns it with the report.
fn refused(media: FailingMedia, config: &DeviceConfig) -> (FailingMedia, UnreadablePages) {
    let error = ReadErrorHost::open(media, config).err().expect("the medium opened");
    assert_eq!(error.media.erased, [], "a refused opening erased");
    assert_eq!(error.media.programs, 0, "a refused opening programmed");
    match error.reason {
        OpenReason::Unreadable { report, .. } => (error.media, report),
        other => panic!("refused because of {other}"),
    }
}

fn assert_all_keys(host: &mut ReadErrorHost) {
    for number in 0..KEYS {
        assert_eq!(host.get(&key(number)), Ok(value(number)), "key {number}");
    }
}

#[test]
fn read_error_that_passes_delays_the_opening_and_nothing_else() {
    let mut media = killed_medium(KEYS);
    let page = media.page_with(&text(40));
    // It fails in a window, alone, and after 10 ms.
    media.fail(page, EIO, 3);
    let mut host = ReadErrorHost::open(media, &DeviceConfig::default()).unwrap();
    let waits = std::mem::take(&mut host.device.media_mut().waits);
    assert_eq!(waits, [Nanos::from_millis(10), Nanos::from_millis(100)]);
    assert_eq!((host.device.opening_reads().repeated, &host.device.opening_reads().accepted), (1, &None));
    assert_eq!(host.device.stats().read_errors, 1);
    assert_eq!((host.device.stats().damaged, host.device.stats().unreadable_pages), (0, 0));
    assert_all_keys(&mut host);
}

#[test]
fn page_that_can_be_read_only_at_the_end_of_the_opening_is_not_lost() {
    let mut media = killed_medium(KEYS);
    let page = media.page_with(&text(40));
    media.fail(page, EIO, 5);
    let mut host = ReadErrorHost::open(media, &DeviceConfig::default()).unwrap();
    assert_eq!(host.device.opening_reads().repeated, 1);
    assert_all_keys(&mut host);
}

#[test]
fn page_that_stays_unreadable_refuses_the_opening_and_a_later_start_succeeds() {
    let mut media = killed_medium(KEYS);
    let page = media.page_with(&text(40));
    media.fail(page, EIO, FOR_EVER);
    let (mut media, report) = refused(media, &DeviceConfig::default());
    let found: Vec<(PageAddress, Option<i32>, PageNeed)> =
        report.pages.iter().map(|page| (page.page, page.errno, page.need)).collect();
    assert_eq!(found, [(page, Some(EIO), PageNeed::Log)]);
    let error = OpenReason::Unreadable { report: report.clone(), accepted: None }.to_string();
    for part in ["1 pages", &page.to_string(), "for the log (errno 5)", "a later start may succeed"] {
        assert!(error.contains(part), "{part} is missing in: {error}");
    }
    assert!(error.contains(&format!("--accept-loss={}", report.digest)), "{error}");
    media.mend();
    assert_all_keys(&mut ReadErrorHost::open(media, &DeviceConfig::default()).unwrap());
}

#[test]
fn medium_error_is_not_waited_for() {
    let mut media = killed_medium(KEYS);
    let page = media.page_with(&text(40));
    media.fail(page, ENODATA, FOR_EVER);
    let (media, report) = refused(media, &DeviceConfig::default());
    assert_eq!(media.waits, []);
    assert_eq!(report.pages[0].errno, Some(ENODATA));
}

#[test]
fn accepted_loss_opens_serves_the_rest_and_is_reported() {
    let mut media = killed_medium(KEYS);
    let page = media.page_with(&text(40));
    media.fail(page, EIO, FOR_EVER);
    let (media, report) = refused(media, &DeviceConfig::default());
    let (media, again) = refused(media, &accepting(LossDigest(report.digest.0 ^ 1)));
    assert_eq!(again.digest, report.digest, "the digest of one loss changed");
    let mut host = ReadErrorHost::open(media, &accepting(report.digest)).unwrap();
    assert_eq!(host.device.opening_reads().accepted, Some(report));
    assert_eq!(host.device.stats().unreadable_pages, 1);
    assert!(host.device.stats().damaged > 0);
    let lost = (0..KEYS).filter(|number| host.get(&key(*number)) != Ok(value(*number))).count();
    assert!((1..=3).contains(&lost), "{lost} keys are lost with one page");
    assert_eq!(host.set("later", b"write"), Status::SUCCESS);
    let mut host = host.reopened();
    assert_eq!(host.get("later"), Ok(b"write".to_vec()));
}

#[test]
fn digest_of_an_earlier_loss_does_not_accept_a_later_one_of_the_same_page() {
    let mut media = killed_medium(KEYS);
    let page = media.page_with(&text(40));
    media.fail(page, EIO, FOR_EVER);
    let (mut media, report) = refused(media, &DeviceConfig::default());
    media.mend();
    let mut host = ReadErrorHost::open(media, &DeviceConfig::default()).unwrap();
    assert_eq!(host.set("newer", b"state"), Status::SUCCESS);
    let mut media = host.killed();
    media.fail(page, EIO, FOR_EVER);
    let (_, other) = refused(media, &accepting(report.digest));
    assert_eq!(other.pages.len(), 1);
    assert_ne!(other.digest, report.digest);
}

#[test]
fn unreadable_page_of_a_map_is_taken_from_the_other_copy() {
    for copy in 0..2 {
        let mut media = stopped_medium();
        let page = media.pages_with(b"HWCK")[copy];
        media.fail(page, EIO, FOR_EVER);
        let mut host = ReadErrorHost::open(media, &DeviceConfig::default()).unwrap();
        assert_eq!(host.device.opening_losses().damaged_checkpoint_pages, 1);
        assert_all_keys(&mut host);
    }
}

#[test]
fn unreadable_first_page_of_a_block_that_the_checkpoint_covers_costs_only_its_own_keys() {
    let mut media = stopped_medium();
    // The first page of the first block has no records.
    let block = media.page_with(&text(KEYS - 1)).block;
    assert_ne!(block, media.page_with(&text(0)).block);
    let first = PageAddress::new(block, 0);
    media.fail(first, EIO, FOR_EVER);
    let mut host = ReadErrorHost::open(media, &DeviceConfig::default()).unwrap();
    let failed = (0..KEYS).filter(|number| host.get(&key(*number)) == Err(Status::UNRECOVERED_ERROR)).count();
    assert!((1..=3).contains(&failed), "{failed} keys fail");
    host.device.media_mut().mend();
    assert_all_keys(&mut host);
}

#[test]
fn block_of_which_nothing_can_be_read_keeps_its_keys_as_errors() {
    let mut media = stopped_medium();
    let block = media.page_with(&text(3)).block;
    let keys = |media: &FailingMedia| {
        (0..KEYS).filter(|number| media.page_with(&text(*number)).block == block).collect::<Vec<_>>()
    };
    let inside = keys(&media);
    (0..64).for_each(|page| media.fail(PageAddress::new(block, page), EIO, FOR_EVER));
    // The map tells which keys it holds; no other key can be affected.
    let mut host = ReadErrorHost::open(media, &DeviceConfig::default()).unwrap();
    for number in inside {
        assert_eq!(host.get(&key(number)), Err(Status::UNRECOVERED_ERROR), "key {number}");
    }
    assert!(!host.device.media().erased.contains(&block), "a block with keys was erased");
}

#[test]
fn damage_of_the_record_that_a_log_record_replaces_is_refused() {
    let mut host = ReadErrorHost::open(stopped_medium(), &DeviceConfig::default()).unwrap();
    assert_eq!(host.set(&key(3), &value(1_003)), Status::SUCCESS);
    let mut media = host.killed();
    let page = media.page_with(&text(3));
    media.fail(page, EIO, FOR_EVER);
    let (mut media, report) = refused(media, &DeviceConfig::default());
    assert_eq!(report.pages[0].need, PageNeed::Index);
    media.mend();
    let mut host = ReadErrorHost::open(media, &DeviceConfig::default()).unwrap();
    assert_eq!(host.get(&key(3)), Ok(value(1_003)));
}

#[test]
fn inspection_reports_the_loss_with_the_digest_that_the_refusal_prints() {
    let mut media = killed_medium(KEYS);
    let page = media.page_with(&text(40));
    media.fail(page, EIO, FOR_EVER);
    let (media, report) = refused(media, &DeviceConfig::default());
    let start = StartTime { now: Nanos::ZERO, wall: WALL };
    let (found, media) = inspect(media, &DeviceConfig::default(), start, &mut |_| {}).unwrap();
    assert_eq!(found.opening_losses, report);
    assert_eq!(found.unreadable_pages.count, 1);
    assert_eq!((media.erased.len(), media.programs), (0, 0));
}

#[test]
fn inspection_reports_a_record_that_cannot_be_read_apart_from_a_damaged_one() {
    let mut media = stopped_medium();
    let page = media.page_with(&text(40));
    media.fail(page, ENODATA, FOR_EVER);
    let start = StartTime { now: Nanos::ZERO, wall: WALL };
    let (found, _) = inspect(media, &DeviceConfig::default(), start, &mut |_| {}).unwrap();
    assert_eq!(found.opening_losses.pages, []);
    assert_eq!(found.unreadable_pages.first[0].page, page);
    assert!(found.faults.count > 0);
    assert!(
        found.faults.first.iter().all(|(_, fault)| *fault == RecordFault::Unreadable),
        "{:?}",
        found.faults
    );
}

#[test]
fn medium_that_reads_nothing_is_refused_in_bounded_time() {
    let mut media = killed_medium(KEYS);
    let pages = (0..24).flat_map(|block| (0..64).map(move |page| PageAddress::new(BlockId(block), page)));
    pages.for_each(|page| media.fail(page, EIO, FOR_EVER));
    let (media, report) = refused(media, &DeviceConfig::default());
    assert_eq!(report.pages.len(), 24 * 64);
    let waited: u64 = media.waits.iter().map(|wait| wait.0).sum();
    assert!(Nanos(waited) < Nanos::from_millis(60_000), "{waited} ns");
    assert!(matches!(report.pages[0].errno, Some(EIO)));
}
