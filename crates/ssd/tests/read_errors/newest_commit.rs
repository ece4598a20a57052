//! The newest commit on a medium that cannot be read: an opening refuses what could hide it, and never takes it for torn.

use crate::failing_media::{EIO, ENODATA, FailingMedia};
use crate::host::{ReadErrorHost, key, killed_medium, text, value};
use headwater_ssd::engine::{DeviceConfig, OpenReason, RecoveryError};
use headwater_ssd::media::{BlockId, Media, PAGES_PER_BLOCK, PageAddress};

const KEYS: usize = 40;
const FOR_EVER: u64 = u64::MAX;

fn refusal(media: FailingMedia) -> (FailingMedia, OpenReason) {
    let error = ReadErrorHost::open(media, &DeviceConfig::default()).err().expect("the medium opened");
    assert_eq!(
        (error.media.programs, error.media.erased.len()),
        (0, 0),
        "a refused opening changed the medium"
    );
    (error.media, error.reason)
}

fn assert_opens_with_all_keys(media: FailingMedia) {
    let mut host = ReadErrorHost::open(media, &DeviceConfig::default()).unwrap();
    for number in 0..KEYS {
        assert_eq!(host.get(&key(number)), Ok(value(number)), "key {number}");
    }
}

/// Repeats what broke: a commit whose pages could not be read was taken for one that a power cut interrupted.
#[test]
fn unreadable_page_of_the_last_commit_refuses_the_opening() {
    for errno in [EIO, ENODATA] {
        let mut media = killed_medium(KEYS);
        let page = media.page_with(&text(KEYS - 1));
        media.fail(page, errno, FOR_EVER);
        let (mut media, reason) = refusal(media);
        let OpenReason::Unreadable { report, .. } = reason else { panic!("refused because of {reason}") };
        assert_eq!(report.pages.iter().map(|page| page.page).collect::<Vec<_>>(), [page]);
        media.mend();
        assert_opens_with_all_keys(media);
    }
}

#[test]
fn unreadable_cells_of_one_side_change_nothing() {
    let (front, tail) = killed_medium(KEYS).traits().cells;
    for cells in [0..front, front..front + tail] {
        let mut media = killed_medium(KEYS);
        media.failing_cells = Some((cells, ENODATA));
        assert_opens_with_all_keys(media);
    }
}

#[test]
fn unreadable_cells_on_both_sides_refuse_the_opening() {
    let (front, tail) = killed_medium(KEYS).traits().cells;
    for cells in [0..front + tail, front - 1..front + 1, 3..front + 1] {
        let mut media = killed_medium(KEYS);
        let wanted = cells.len();
        media.failing_cells = Some((cells, ENODATA));
        let (mut media, reason) = refusal(media);
        assert_eq!(reason, OpenReason::Recovery(RecoveryError::CellsUnreadable { cells: wanted }));
        media.mend();
        assert_opens_with_all_keys(media);
    }
}

/// Repeats what broke: a medium of which nothing could be read was opened as an empty one.
#[test]
fn medium_that_cannot_be_read_at_all_is_not_taken_for_a_blank_one() {
    for errno in [EIO, ENODATA] {
        let mut media = killed_medium(KEYS);
        let cells = media.traits().cell_count();
        media.failing_cells = Some((0..cells, errno));
        for block in (0..media.geometry().blocks).map(BlockId) {
            for page in 0..u8::try_from(PAGES_PER_BLOCK).unwrap() {
                media.fail(PageAddress::new(block, page), errno, FOR_EVER);
            }
        }
        let (mut media, _) = refusal(media);
        media.mend();
        assert_opens_with_all_keys(media);
    }
}
