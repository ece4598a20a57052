//! Commit cells are overwritten in place: a power cut decides on each write that no flush covered, and faults strike
//! cells as they strike pages.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use headwater_dma::frame::MediaFrame;
use headwater_host::clock::Nanos;
use headwater_sim::faults::{
    DamagePlan, FaultPlace, FaultPlan, FaultyOperation, LyingProgram, OperationError, ProgramLie,
};
use headwater_sim::flash::SECTOR_BYTES;
use headwater_sim::media::{FlashMisuse, MediaBacking, SimMedia, SimMediaConfig};
use headwater_sim::presets::{FEMU, FILE, TimingPreset};
use headwater_ssd::media::{
    CELL_BYTES, CellNumber, Media, MediaCompletion, MediaError, MediaOp, MediaToken, NandRule,
    PAGES_PER_BLOCK, PageState, RefusalReason,
};

const BLOCKS: u32 = 4;
const CELLS: u16 = 64;
const OLD: u8 = 1;
const NEW: u8 = 2;
const HARSH: DamagePlan =
    DamagePlan { whole_percent: 33, torn_percent: 34, neighbour_percent: 100, ..DamagePlan::CLEAN };

fn media(preset: TimingPreset, backing: MediaBacking) -> SimMedia {
    let mut media = SimMedia::new(SimMediaConfig { backing, ..SimMediaConfig::new(preset, BLOCKS) });
    media.start().unwrap();
    media
}

fn write(cell: u16, fill: u8) -> MediaOp {
    let mut frame = MediaFrame::zeroed();
    frame[..CELL_BYTES].fill(fill);
    MediaOp::WriteCell { cell: CellNumber(cell), frame }
}

fn settle(media: &mut SimMedia) -> Vec<MediaCompletion> {
    let (mut now, mut done) = (Nanos::ZERO, Vec::new());
    while media.in_flight() > 0 {
        now = media.wait(now);
        media.poll(now, &mut done);
    }
    done
}

fn run(media: &mut SimMedia, op: MediaOp) -> MediaCompletion {
    media.submit(MediaToken(0), op, Nanos::ZERO).unwrap();
    let mut done = settle(media);
    assert_eq!(done.len(), 1);
    done.pop().unwrap()
}

fn read(media: &mut SimMedia, cell: u16) -> Vec<u8> {
    let done = run(media, MediaOp::ReadCell { cell: CellNumber(cell), frame: MediaFrame::zeroed() });
    assert_eq!(done.result, Ok(PageState::Programmed));
    done.frame.unwrap()[..CELL_BYTES].to_vec()
}

fn is_filled(bytes: &[u8], fill: u8) -> bool {
    bytes.iter().all(|&byte| byte == fill)
}

/// Numbers of cells that a power cut left as they were, replaced, and torn.
#[derive(Default)]
struct CutTally {
    old: u32,
    new: u32,
    torn: u32,
    garbage: u32,
}

impl CutTally {
    fn count(&mut self, bytes: &[u8]) {
        match (is_filled(bytes, OLD), is_filled(bytes, NEW)) {
            (true, _) => self.old += 1,
            (_, true) => self.new += 1,
            _ => {
                self.torn += 1;
                let strange = |sector: &&[u8]| !is_filled(sector, OLD) && !is_filled(sector, NEW);
                self.garbage += u32::from(bytes.chunks(SECTOR_BYTES).any(|sector| strange(&sector)));
            }
        }
    }
}

#[test]
fn a_power_cut_decides_on_each_write_of_a_cell_that_no_flush_covered() {
    for backing in [MediaBacking::Flash, MediaBacking::File] {
        let mut tally = CutTally::default();
        for seed in 0..20 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut media = media(FILE, backing);
            for cell in 0..CELLS {
                assert!(run(&mut media, write(cell, OLD)).result.is_ok());
            }
            assert!(run(&mut media, MediaOp::Flush).result.is_ok());
            for cell in (0..CELLS).step_by(2) {
                assert!(run(&mut media, write(cell, NEW)).result.is_ok());
                assert!(is_filled(&read(&mut media, cell), NEW), "a completed write is visible");
            }
            let mut media = media.power_cut(&mut rng, &HARSH);
            media.start().unwrap();
            for cell in 0..CELLS {
                let bytes = read(&mut media, cell);
                if cell % 2 == 0 {
                    tally.count(&bytes);
                } else {
                    assert!(is_filled(&bytes, OLD), "seed {seed} cell {cell}: a flushed cell changed");
                }
            }
        }
        let CutTally { old, new, torn, garbage } = tally;
        assert!(old.min(new).min(torn).min(garbage) > 10, "{backing:?} {old} {new} {torn} {garbage}");
    }
}

#[test]
fn cells_without_a_volatile_cache_are_durable_when_they_complete() {
    for seed in 0..20 {
        let mut media = media(FEMU, MediaBacking::Flash);
        assert!(run(&mut media, write(5, NEW)).result.is_ok());
        let mut media = media.power_cut(&mut fastrand::Rng::with_seed(seed), &HARSH);
        assert!(is_filled(&read(&mut media, 5), NEW), "seed {seed}");
    }
}

#[test]
fn a_flush_covers_only_writes_that_completed_before_it() {
    let mut media = media(FILE, MediaBacking::Flash);
    assert!(run(&mut media, write(0, NEW)).result.is_ok());
    media.submit(MediaToken(1), write(1, NEW), Nanos::ZERO).unwrap();
    media.submit(MediaToken(2), MediaOp::Flush, Nanos::ZERO).unwrap();
    assert!(settle(&mut media).iter().all(|done| done.result.is_ok()));
    let mut media = media.power_cut(&mut fastrand::Rng::with_seed(1), &DamagePlan::CLEAN);
    assert!(is_filled(&read(&mut media, 0), NEW));
    assert!(is_filled(&read(&mut media, 1), 0));
}

#[test]
fn injected_errors_name_the_cell_and_leave_it_unchanged() {
    let mut media = media(FILE, MediaBacking::Flash);
    assert!(run(&mut media, write(9, OLD)).result.is_ok());
    let pages = u64::from(BLOCKS) * PAGES_PER_BLOCK as u64;
    let place = FaultPlace::Range { start: pages + 9, end: pages + 10 };
    for operation in [FaultyOperation::Program, FaultyOperation::Read] {
        let error = OperationError { operation, place, times: 1, errno: 61 };
        media.inject(&FaultPlan { error: Some(error), ..FaultPlan::NONE });
        let expected = Err(MediaError::Cell { errno: 61, cell: CellNumber(9) });
        let op = match operation {
            FaultyOperation::Program => write(9, NEW),
            _ => MediaOp::ReadCell { cell: CellNumber(9), frame: MediaFrame::zeroed() },
        };
        let done = run(&mut media, op);
        assert_eq!(done.result, expected);
        assert!(done.frame.is_some());
        assert!(is_filled(&read(&mut media, 9), OLD));
        assert!(is_filled(&read(&mut media, 10), 0));
    }
}

#[test]
fn a_lying_write_of_a_cell_is_lost_misdirected_or_partly_done() {
    let lied = |lie| {
        let mut media = media(FILE, MediaBacking::Flash);
        assert!(run(&mut media, write(9, OLD)).result.is_ok());
        media.inject(&FaultPlan { lie: Some(LyingProgram { nth: 2, lie }), ..FaultPlan::NONE });
        assert!(run(&mut media, write(3, NEW)).result.is_ok());
        assert!(run(&mut media, write(9, NEW)).result.is_ok());
        assert!(is_filled(&read(&mut media, 3), NEW));
        media
    };
    assert!(is_filled(&read(&mut lied(ProgramLie::Lost), 9), OLD));
    let mut media = lied(ProgramLie::Misdirected { pages: 20 });
    assert!(is_filled(&read(&mut media, 9), OLD));
    assert!(is_filled(&read(&mut media, 29), NEW));
    assert!(is_filled(&read(&mut lied(ProgramLie::Misdirected { pages: 60 }), 9), OLD));
    let partly = read(&mut lied(ProgramLie::Partly { sectors: 3 }), 9);
    assert!(is_filled(&partly[..3 * SECTOR_BYTES], NEW));
    assert!(is_filled(&partly[3 * SECTOR_BYTES..], OLD));
}

#[test]
fn a_stale_cell_is_as_it_was_when_the_boot_began() {
    for backing in [MediaBacking::Flash, MediaBacking::File] {
        let mut media = media(FILE, backing);
        assert!(run(&mut media, write(9, OLD)).result.is_ok());
        assert!(run(&mut media, MediaOp::Flush).result.is_ok());
        media.inject(&FaultPlan { stale_page: true, ..FaultPlan::NONE });
        assert!(run(&mut media, write(9, NEW)).result.is_ok());
        assert!(run(&mut media, MediaOp::Flush).result.is_ok());
        assert!(is_filled(&read(&mut media, 9), NEW));
        let mut media = media.power_cut(&mut fastrand::Rng::with_seed(1), &DamagePlan::CLEAN);
        media.start().unwrap();
        assert!(is_filled(&read(&mut media, 9), OLD), "{backing:?}");
    }
}

#[test]
fn a_cell_that_does_not_exist_is_misuse() {
    let mut media = media(FILE, MediaBacking::Flash);
    let refused = media.submit(MediaToken(0), write(CELLS, NEW), Nanos::ZERO).unwrap_err();
    assert_eq!(refused.reason, RefusalReason::Rule(NandRule::OutsideGeometry));
    let misuse = media.crash_image().misuse();
    assert!(matches!(misuse, Some(FlashMisuse::Rule { rule: NandRule::OutsideGeometry, .. })));
}
