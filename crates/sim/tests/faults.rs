//! A power cut loses only what was not durable.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use headwater_dma::frame::MediaFrame;
use headwater_host::clock::Nanos;
use headwater_sim::faults::{DamagePlan, PowerCut};
use headwater_sim::flash::{SECTOR_BYTES, SLOT_BYTES};
use headwater_sim::media::{FlashMisuse, SimMedia, SimMediaConfig};
use headwater_sim::presets::{FEMU, FILE, INSTANT, TimingPreset};
use headwater_ssd::media::{
    BlockId, Media, MediaError, MediaOp, MediaToken, NandRule, PageAddress, PageState, RefusalReason,
};

const ALL_TORN: DamagePlan = DamagePlan { torn_percent: 100, neighbour_percent: 100, ..DamagePlan::CLEAN };
const HARSH: DamagePlan = DamagePlan {
    whole_percent: 33,
    torn_percent: 34,
    neighbour_percent: 100,
    unreadable_percent: 10,
    ..DamagePlan::CLEAN
};

fn media(preset: TimingPreset, guard_pages: u8) -> SimMedia {
    SimMedia::new(SimMediaConfig { guard_pages, ..SimMediaConfig::new(preset, 16) })
}

fn page(block: u32, page: u8) -> PageAddress {
    PageAddress::new(BlockId(block), page)
}

fn program(at: PageAddress, fill: u8) -> MediaOp {
    let mut frame = MediaFrame::zeroed();
    frame.fill(fill);
    MediaOp::Program { page: at, frame }
}

fn settle(media: &mut SimMedia) -> Vec<Result<PageState, MediaError>> {
    let (mut now, mut done) = (Nanos::ZERO, Vec::new());
    while media.in_flight() > 0 {
        now = media.wait(now);
        media.poll(now, &mut done);
    }
    done.into_iter().map(|answer| answer.result).collect()
}

fn submit(media: &mut SimMedia, op: MediaOp) {
    media.submit(MediaToken(0), op, Nanos::ZERO).unwrap();
}

fn bytes(media: &SimMedia, at: PageAddress) -> Option<Vec<u8>> {
    let image = media.flash().unwrap().page(at)?;
    Some(image.bytes().to_vec())
}

#[test]
fn finished_work_survives_any_cut() {
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut media = media(FEMU, 0);
        for at in 0..4 {
            submit(&mut media, program(page(1, at), at + 1));
        }
        settle(&mut media);
        submit(&mut media, program(page(1, 4), 9));
        let media = media.power_cut(&mut rng, &HARSH);
        for at in 0..4 {
            let kept = bytes(&media, page(1, at)).unwrap();
            assert!(kept.iter().all(|&byte| byte == at + 1), "seed {seed} page {at}");
        }
    }
}

#[test]
fn volatile_cache_keeps_only_programs_flushed_after_their_completion() {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut media = media(FILE, 0);
    submit(&mut media, program(page(0, 0), 1));
    settle(&mut media);
    submit(&mut media, program(page(0, 1), 2));
    // The second program has not completed yet: this flush does not cover it.
    submit(&mut media, MediaOp::Flush);
    settle(&mut media);
    let media = media.power_cut(&mut rng, &DamagePlan::CLEAN);
    assert_eq!(bytes(&media, page(0, 0)), Some(vec![1; SLOT_BYTES]));
    assert_eq!(bytes(&media, page(0, 1)), None);
}

#[test]
fn flush_cut_before_its_end_promises_nothing() {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut media = media(FILE, 0);
    submit(&mut media, program(page(0, 0), 1));
    settle(&mut media);
    media.arm(PowerCut::Point(1));
    submit(&mut media, MediaOp::Flush);
    assert!(matches!(settle(&mut media)[..], [Err(MediaError::Io { errno: 61, .. })]));
    let media = media.power_cut(&mut rng, &DamagePlan::CLEAN);
    assert_eq!(bytes(&media, page(0, 0)), None);
}

#[test]
fn cut_at_the_end_of_an_operation_keeps_it_and_loses_its_completion() {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut media = media(FEMU, 0);
    media.arm(PowerCut::Point(2));
    submit(&mut media, program(page(0, 0), 1));
    assert!(matches!(settle(&mut media)[..], [Err(MediaError::Io { errno: 61, .. })]));
    let media = media.power_cut(&mut rng, &DamagePlan::CLEAN);
    assert_eq!(bytes(&media, page(0, 0)), Some(vec![1; SLOT_BYTES]));
}

#[test]
fn cut_by_time_keeps_everything_due_before() {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut media = media(FEMU, 0);
    media.arm(PowerCut::Time(Nanos(205_120)));
    submit(&mut media, program(page(0, 0), 1));
    submit(&mut media, program(page(0, 1), 2));
    assert!(matches!(settle(&mut media)[..], [Ok(_), Err(_)]));
    let media = media.power_cut(&mut rng, &DamagePlan::CLEAN);
    assert!(bytes(&media, page(0, 0)).is_some() && bytes(&media, page(0, 1)).is_none());
}

#[test]
fn torn_page_has_some_new_sectors_and_lacks_some() {
    let mut some_kept = 0;
    for seed in 0..100 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut media = media(FEMU, 0);
        submit(&mut media, program(page(0, 0), 0xA5));
        let media = media.power_cut(&mut rng, &ALL_TORN);
        let torn = bytes(&media, page(0, 0)).unwrap();
        let kept = torn.chunks(SECTOR_BYTES).filter(|sector| sector.iter().all(|&b| b == 0xA5));
        let kept = kept.count();
        assert!(kept < SLOT_BYTES.div_ceil(SECTOR_BYTES), "seed {seed} tore nothing");
        some_kept += usize::from(kept > 0);
    }
    assert!(some_kept > 90, "{some_kept}");
}

#[test]
fn neighbours_are_damaged_only_within_the_guard() {
    for guard_pages in 0..3_u8 {
        let mut damaged = [0_u32; 4];
        for seed in 0..50 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut media = media(FEMU, guard_pages);
            for at in 0..4 {
                submit(&mut media, program(page(0, at), 7));
            }
            settle(&mut media);
            submit(&mut media, program(page(0, 4), 8));
            let media = media.power_cut(&mut rng, &ALL_TORN);
            for (at, count) in (0..4).zip(&mut damaged) {
                let kept = bytes(&media, page(0, at)).unwrap();
                *count += u32::from(kept.iter().any(|&byte| byte != 7));
            }
        }
        for (at, &count) in (0..4_u8).zip(&damaged) {
            let in_reach = 4 - at <= guard_pages;
            assert_eq!(count > 0, in_reach, "guard {guard_pages}, page {at}: {damaged:?}");
        }
    }
}

#[test]
fn interrupted_erase_leaves_blank_intact_and_garbled_pages() {
    let mut rng = fastrand::Rng::with_seed(3);
    let mut media = media(FEMU, 0);
    for at in 0..64 {
        submit(&mut media, program(page(2, at), 7));
    }
    settle(&mut media);
    submit(&mut media, MediaOp::Erase { block: BlockId(2) });
    let media = media.power_cut(&mut rng, &ALL_TORN);
    let pages: Vec<_> = (0..64).map(|at| bytes(&media, page(2, at))).collect();
    let blank = pages.iter().filter(|page| page.is_none()).count();
    let intact = pages.iter().flatten().filter(|page| page.iter().all(|&b| b == 7)).count();
    assert!(blank > 5 && intact > 5 && blank + intact < 60, "{blank} blank, {intact} intact");
}

#[test]
fn the_next_boot_must_erase_before_it_programs() {
    let mut rng = fastrand::Rng::with_seed(3);
    let mut media = media(INSTANT, 0).power_cut(&mut rng, &DamagePlan::CLEAN);
    let refused = media.submit(MediaToken(0), program(page(0, 0), 1), Nanos::ZERO).unwrap_err();
    assert_eq!(refused.reason, RefusalReason::Rule(NandRule::NotErased));
    assert!(matches!(media.crash_image().misuse(), Some(FlashMisuse::Rule { .. })));
    submit(&mut media, MediaOp::Erase { block: BlockId(0) });
    submit(&mut media, program(page(0, 0), 1));
    assert!(settle(&mut media).iter().all(Result::is_ok));
}

#[test]
fn every_operation_completes_after_a_power_cut() {
    let mut media = media(FEMU, 0);
    media.arm(PowerCut::Point(3));
    for at in 0..6 {
        submit(&mut media, program(page(0, at), 1));
    }
    let answers = settle(&mut media);
    assert_eq!(answers.len(), 6);
    assert!(answers.iter().all(Result::is_err));
    assert!(media.crash_image().has_lost_power());
}

#[test]
fn flipped_bits_stay_flipped() {
    let mut rng = fastrand::Rng::with_seed(3);
    let mut media = media(INSTANT, 0);
    submit(&mut media, program(page(0, 0), 0));
    settle(&mut media);
    assert!(media.flip_bits(&mut rng, page(0, 0), 3));
    assert!(!media.flip_bits(&mut rng, page(0, 1), 3));
    let media = media.power_cut(&mut rng, &DamagePlan::CLEAN);
    let ones: u32 = bytes(&media, page(0, 0)).unwrap().iter().map(|b| b.count_ones()).sum();
    assert_eq!(ones, 3);
}

#[test]
fn erase_that_races_a_program_is_reported() {
    let mut media = media(FEMU, 0);
    submit(&mut media, program(page(0, 0), 1));
    submit(&mut media, MediaOp::Erase { block: BlockId(0) });
    let race = FlashMisuse::EraseRacesProgram { block: BlockId(0) };
    assert_eq!(media.crash_image().misuse(), Some(race));
}
