//! Simulated flash takes the time that the closed formulas give.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use headwater_dma::frame::MediaFrame;
use headwater_host::clock::Nanos;
use headwater_sim::media::{SimMedia, SimMediaConfig};
use headwater_sim::presets::{FEMU, FILE, TimingPreset};
use headwater_sim::timeline::SlowDie;
use headwater_ssd::media::{
    BlockId, FlashGeometry, Media, MediaOp, MediaToken, PAGE_DATA_BYTES, PAGES_PER_BLOCK, PageAddress,
};

fn media(preset: TimingPreset, blocks: u32) -> SimMedia {
    let mut config = SimMediaConfig::new(preset, blocks);
    config.queue_max = 1 << 20;
    SimMedia::new(config)
}

fn page(block: u32, page: u8) -> PageAddress {
    PageAddress::new(BlockId(block), page)
}

fn read(at: PageAddress) -> MediaOp {
    let frame = MediaFrame::zeroed();
    MediaOp::Read { page: at, frame }
}

fn program(at: PageAddress) -> MediaOp {
    let frame = MediaFrame::zeroed();
    MediaOp::Program { page: at, frame }
}

/// Submits all operations at one time. Returns the time of the last completion.
fn run(media: &mut SimMedia, now: Nanos, ops: impl IntoIterator<Item = MediaOp>) -> Nanos {
    for (token, op) in (0..).zip(ops) {
        media.submit(MediaToken(token), op, now).unwrap();
    }
    drain(media, now)
}

fn drain(media: &mut SimMedia, now: Nanos) -> Nanos {
    let mut now = now;
    let mut done = Vec::new();
    while media.in_flight() > 0 {
        now = media.wait(now);
        media.poll(now, &mut done);
    }
    assert!(done.iter().all(|answer| answer.result.is_ok()), "{done:?}");
    now
}

#[test]
fn single_read_takes_sensing_plus_transfer() {
    let mut media = media(FEMU, 32);
    let end = run(&mut media, Nanos(7), [read(page(3, 0))]);
    assert_eq!(end, Nanos(7 + 40_000 + 5_120));
}

#[test]
fn command_cycles_occupy_the_channel() {
    let preset = TimingPreset { command: Nanos(300), ..FEMU };
    let end = run(&mut media(preset, 32), Nanos::ZERO, [read(page(0, 0))]);
    assert_eq!(end, Nanos(40_000 + 5_120 + 300));
}

#[test]
fn saturated_reads_keep_every_die_busy() {
    let mut media = media(FEMU, 32);
    let rounds = 100;
    let reads = (0..rounds).flat_map(|round| (0..32).map(move |die| read(page(die, round % 64))));
    let end = run(&mut media, Nanos::ZERO, reads);
    // 32 dies / 40 us; the last round adds the transfers of the four dies of one channel.
    let dies_bound = Nanos::from_micros(40 * u64::from(rounds));
    assert!(end >= dies_bound && end.since(dies_bound) <= Nanos(4 * 5_120), "{end}");
}

#[test]
fn bus_bound_reads_keep_every_channel_busy() {
    let slow_bus = TimingPreset { channel_megabytes_per_second: 100, ..FEMU };
    let mut media = media(slow_bus, 32);
    let reads = (0..50).flat_map(|round| (0..32).map(move |die| read(page(die, round % 64))));
    let end = run(&mut media, Nanos::ZERO, reads);
    // 1,600 reads over 8 channels of 40.96 us each, after the first sensing.
    assert_eq!(end, Nanos(40_000 + 200 * 40_960));
}

#[test]
fn program_bound_writes_take_one_program_time_per_page_of_a_die() {
    let mut media = media(FEMU, 32);
    let pages = u8::try_from(PAGES_PER_BLOCK).unwrap();
    let programs = (0..pages).flat_map(|at| (0..32).map(move |die| program(page(die, at))));
    let end = run(&mut media, Nanos::ZERO, programs);
    let dies_bound = Nanos::from_micros(200 * u64::from(pages));
    assert!(end > dies_bound && end.since(dies_bound) <= Nanos(4 * 5_120), "{end}");
    let megabytes = (32 * PAGES_PER_BLOCK * PAGE_DATA_BYTES) as u64 * 1_000 / end.0;
    assert!((650..=656).contains(&megabytes), "{megabytes} MB/s");
}

#[test]
fn stripe_takes_one_round_per_page_of_a_die() {
    for pages in [1_u32, 31, 32, 33, 64, 65] {
        let mut media = media(FEMU, 128);
        let reads = (0..pages).map(|block| read(page(block, 0)));
        let end = run(&mut media, Nanos::ZERO, reads);
        let rounds = Nanos::from_micros(40 * u64::from(pages.div_ceil(32)));
        assert!(end > rounds && end.since(rounds) <= Nanos(4 * 5_120), "{pages} pages: {end}");
    }
}

#[test]
fn erase_before_a_read_adds_its_whole_time() {
    let mut media = media(FEMU, 32);
    let end = run(&mut media, Nanos::ZERO, [MediaOp::Erase { block: BlockId(5) }, read(page(5, 0))]);
    assert_eq!(end, Nanos(2_000_000 + 40_000 + 5_120));
}

#[test]
fn erase_does_not_delay_other_dies_of_its_channel() {
    let mut media = media(FEMU, 32);
    media.submit(MediaToken(1), MediaOp::Erase { block: BlockId(0) }, Nanos::ZERO).unwrap();
    media.submit(MediaToken(2), read(page(0, 0)), Nanos::ZERO).unwrap();
    media.submit(MediaToken(3), read(page(8, 0)), Nanos::ZERO).unwrap();
    let first = media.wait(Nanos::ZERO);
    let mut done = Vec::new();
    media.poll(first, &mut done);
    assert_eq!((first, done[0].token), (Nanos(45_120), MediaToken(3)));
}

#[test]
fn slow_die_does_not_delay_other_dies() {
    let mut media = media(FEMU, 32);
    media.set_slow_die(Some(SlowDie { die: 2, factor: 10 }));
    assert_eq!(run(&mut media, Nanos::ZERO, [read(page(2, 0))]), Nanos(405_120));
    let later = Nanos(1_000_000);
    assert_eq!(run(&mut media, later, [read(page(3, 0))]).since(later), Nanos(45_120));
}

#[test]
fn cached_write_completes_before_the_die_and_a_flush_waits_for_the_die() {
    let preset = TimingPreset { cached: Some(Nanos::from_micros(4)), ..FEMU };
    let mut media = media(preset, 32);
    let written = run(&mut media, Nanos::ZERO, [program(page(0, 0))]);
    assert_eq!(written, Nanos(5_120 + 4_000));
    assert_eq!(run(&mut media, written, [MediaOp::Flush]), Nanos(5_120 + 200_000));
}

#[test]
fn file_flush_takes_its_own_time() {
    let mut media = media(FILE, 16);
    let written = run(&mut media, Nanos::ZERO, [program(page(0, 0))]);
    assert_eq!(written, Nanos(2_048 + 40_000));
    assert_eq!(run(&mut media, written, [MediaOp::Flush]).since(written), Nanos(100_000));
}

#[test]
fn programs_of_a_block_complete_in_order() {
    for preset in headwater_sim::presets::PRESETS {
        let mut media = SimMedia::new(SimMediaConfig {
            geometry: FlashGeometry::with_blocks(32),
            ..SimMediaConfig::new(*preset, 32)
        });
        media.submit(MediaToken(0), MediaOp::Erase { block: BlockId(9) }, Nanos::ZERO).unwrap();
        for at in 0..64 {
            let token = MediaToken(u64::from(at) + 1);
            media.submit(token, program(page(9, at)), Nanos::ZERO).unwrap();
        }
        let (mut now, mut done) = (Nanos::ZERO, Vec::new());
        while media.in_flight() > 0 {
            now = media.wait(now);
            media.poll(now, &mut done);
        }
        let order: Vec<_> = done.iter().map(|answer| answer.token.0).collect();
        assert_eq!(order, (0..65).collect::<Vec<_>>(), "{}", preset.name);
    }
}
