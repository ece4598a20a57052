//! An implementation of [`Media`] over simulated flash, or over the real file medium and a simulated file, in virtual
//! time, with power cuts.
//!
//! Input: media operations with the time of their submission, and a [`PowerCut`].
//! Output: completions when channels and dies have finished.
//! Invariant: each accepted operation completes once, with or without power; a broken rule of NAND is recorded even if
//! the device hides the refusal.
//! After a power cut, operations in flight and all later ones complete with an input/output error, so that a device in
//! the middle of recovery terminates. The flash itself stays in the [`CrashImage`], whose [`CrashImage::next_boot`] returns the
//! medium as the next boot finds it.

mod cell_writes;
mod crash_image;
mod file_backed;
mod injected_faults;
mod media_config;
mod media_request;
mod resting_fault;
pub mod struck;

pub use crash_image::{CrashImage, FlashMisuse};
pub use media_config::{MediaBacking, SimMediaConfig};

use crate::faults::{DamagePlan, PowerCut};
use crate::flash::{CELLS, CacheKind, PageAddressing, SLOT_BYTES, SimFlash};
use crate::id_window::IdWindow;
use crate::timeline::{FlashOperation, FlashTimeline, SlowDie};
use file_backed::FileBacked;
use headwater_dma::frame::MediaFrame;
use headwater_host::clock::Nanos;
use headwater_ssd::media::file::OpenAccess;
use headwater_ssd::media::{
    BlockId, CELL_BYTES, CellNumber, FlashGeometry, Media, MediaCompletion, MediaError, MediaOp, MediaToken,
    MediaTraits, MediumVersion, NandRule, NandRules, PageAddress, PageState, RefusalReason, RefusedOp,
};
use injected_faults::InjectedFaults;
use media_request::MediaRequest;
use std::collections::VecDeque;
use std::sync::Arc;

/// Operations that a medium without power answers with [`ENODATA`]; further reads of pages break a rule, which ends a
/// recovery. Otherwise it would ask for every page of the medium, and again for each that it did not get.
const ANSWERS_WITHOUT_POWER: u32 = 64;

/// The kernel's errno of missing data, with which a medium without power completes operations. Unlike other errors it
/// tells the device that it need not repeat a read many times.
const ENODATA: i32 = 61;

#[derive(Debug)]
struct InFlight {
    token: MediaToken,
    frame: Option<MediaFrame>,
    request: MediaRequest,
    /// The injected error of the operation.
    failed: Option<i32>,
}

/// Simulated flash.
#[derive(Debug)]
pub struct SimMedia {
    config: SimMediaConfig,
    flash: Option<SimFlash>,
    rules: NandRules,
    timeline: FlashTimeline,
    in_flight: IdWindow<InFlight>,
    ready: VecDeque<(u64, MediaCompletion)>,
    next_id: u64,
    points: u64,
    cut_point: Option<u64>,
    cut_time: Option<Nanos>,
    /// Writes of cells until the cut.
    cut_cell: Option<u64>,
    last_event: Nanos,
    power_lost: bool,
    /// Operations submitted since the power was lost.
    without_power: u32,
    crash_image: CrashImage,
    faults: InjectedFaults,
    /// The file medium; everything else is idle beside it.
    file: Option<FileBacked>,
}

impl SimMedia {
    /// Creates a medium on which every block is erased.
    #[must_use]
    pub fn new(config: SimMediaConfig) -> Self {
        if config.backing == MediaBacking::File {
            return Self::with_file(config, FileBacked::new(&config));
        }
        let flash = SimFlash::blank(config.geometry, config.cache(), config.addressing);
        Self::with_flash(config, flash, NandRules::erased(config.geometry))
    }

    fn with_flash(config: SimMediaConfig, flash: SimFlash, rules: NandRules) -> Self {
        Self {
            config,
            rules,
            timeline: FlashTimeline::new(config.preset, config.geometry, None),
            in_flight: IdWindow::default(),
            ready: VecDeque::new(),
            next_id: flash.last_pending(),
            flash: Some(flash),
            points: 0,
            cut_point: None,
            cut_time: None,
            cut_cell: None,
            last_event: Nanos::ZERO,
            power_lost: false,
            without_power: 0,
            crash_image: CrashImage { config, state: Arc::default() },
            faults: InjectedFaults::default(),
            file: None,
        }
    }

    /// Returns a medium with the same pages, for an inspection that must not affect time, points or a coming cut.
    #[must_use]
    pub fn snapshot(&self) -> Option<Self> {
        if let Some(file) = &self.file {
            let copy = FileBacked::over(file.file().snapshot(), OpenAccess::ReadOnly);
            return Some(Self::with_file(self.config, copy));
        }
        let flash = self.flash.clone()?;
        Some(Self::with_flash(self.config, flash, NandRules::unknown(self.config.geometry)))
    }

    /// Sets the moment of the power cut, counted from now.
    pub fn arm(&mut self, cut: PowerCut) {
        if let Some(file) = &self.file {
            file.file().arm(cut);
            return;
        }
        (self.cut_point, self.cut_time, self.cut_cell) = (None, None, None);
        match cut {
            PowerCut::Never => {}
            PowerCut::Point(point) => self.cut_point = Some(self.points.saturating_add(point.max(1))),
            PowerCut::Time(at) => self.cut_time = Some(at),
            PowerCut::Cell(nth) => self.cut_cell = Some(nth.max(1)),
        }
    }

    /// Makes one die slow. Call before the first operation.
    pub fn set_slow_die(&mut self, slow: Option<SlowDie>) {
        self.timeline = FlashTimeline::new(self.config.preset, self.config.geometry, slow);
    }

    /// Returns the handle to this medium while a device owns it, and to its flash afterwards.
    #[must_use]
    pub fn crash_image(&self) -> CrashImage {
        self.crash_image.clone()
    }

    /// Cuts the power now and boots again.
    #[must_use]
    pub fn power_cut(mut self, rng: &mut fastrand::Rng, damage: &DamagePlan) -> Self {
        self.lose_power();
        let (config, image) = (self.config, self.crash_image());
        drop(self);
        image.next_boot(rng, damage).unwrap_or_else(|| Self::new(config))
    }

    /// Flips bits of a programmed page. Returns true if the page was programmed.
    pub fn flip_bits(&mut self, rng: &mut fastrand::Rng, page: PageAddress, flips: usize) -> bool {
        self.flash.as_mut().is_some_and(|flash| flash.flip_bits(rng, page, flips))
    }

    /// Returns the contents of the flash.
    #[must_use]
    pub fn flash(&self) -> Option<&SimFlash> {
        self.flash.as_ref()
    }

    /// Returns the contents of the flash, for a test that damages them.
    #[must_use]
    pub fn flash_mut(&mut self) -> Option<&mut SimFlash> {
        self.flash.as_mut()
    }

    /// Returns the configuration of the medium.
    #[must_use]
    pub fn config(&self) -> SimMediaConfig {
        self.config
    }

    fn pass_point(&mut self) {
        self.points += 1;
        self.crash_image.note_point(self.points, self.last_event);
        if self.cut_point == Some(self.points) {
            self.lose_power();
        }
    }

    fn lose_power(&mut self) {
        if self.power_lost {
            return;
        }
        self.power_lost = true;
        self.crash_image.note_power_lost();
        self.timeline.discard_all();
        for (id, op) in self.in_flight.take_all() {
            self.ready.push_back((id, failed_completion(op)));
        }
    }

    fn advance(&mut self, now: Nanos) {
        while !self.power_lost {
            let due = self.timeline.next_at().filter(|&at| at <= now);
            if let Some(cut) = self.cut_time.filter(|&cut| cut <= now && due.is_none_or(|at| at > cut)) {
                self.last_event = cut;
                self.lose_power();
                return;
            }
            let Some((at, finished)) = due.and_then(|_| self.timeline.step(now)) else { return };
            self.last_event = self.last_event.max(at);
            if let Some(id) = finished {
                self.finish(id);
            }
        }
    }

    fn finish(&mut self, id: u64) {
        let Some(mut op) = self.in_flight.remove(id) else {
            return;
        };
        let Some(flash) = self.flash.as_mut() else { return };
        let result = match (&op.request, op.failed) {
            (request, Some(errno)) => {
                flash.discard(id);
                Err(request.error(errno))
            }
            (MediaRequest::Read(page), None) => read(flash, *page, op.frame.as_mut()),
            (MediaRequest::ReadCell(cell), None) => {
                read_cell(flash, *cell, op.frame.as_mut());
                Ok(PageState::Programmed)
            }
            (MediaRequest::Program(_) | MediaRequest::Erase(_) | MediaRequest::WriteCell(_), None) => {
                flash.finish(id);
                Ok(PageState::Programmed)
            }
            (MediaRequest::Flush(covered), None) => {
                flash.make_durable(covered);
                Ok(PageState::Programmed)
            }
        };
        // The work is done before the cut, but its completion is not delivered.
        let dead_after = self.cut_point == Some(self.points + 1);
        if dead_after {
            self.ready.push_back((id, failed_completion(op)));
        } else {
            let (token, frame) = (op.token, op.frame);
            self.ready.push_back((id, MediaCompletion { token, frame, result }));
        }
        self.pass_point();
    }

    fn check(&mut self, op: &MediaOp) -> Result<(), RefusalReason> {
        if self.in_flight.len() + self.ready.len() >= self.config.queue_max {
            return Err(RefusalReason::QueueFull);
        }
        if self.power_lost {
            return Ok(());
        }
        let checked = match op {
            MediaOp::Read { page, .. } => self.rules.read(*page),
            MediaOp::Program { page, .. } => self.rules.program(*page),
            MediaOp::Erase { block } => {
                // A misdirected program may hit any block.
                let races = self.flash.as_ref().is_some_and(|flash| flash.has_incomplete_program(*block));
                if races && !self.faults.has_lie() {
                    self.report_misuse(FlashMisuse::EraseRacesProgram { block: *block });
                }
                self.rules.erase(*block)
            }
            MediaOp::ReadCell { cell, .. } | MediaOp::WriteCell { cell, .. } => {
                if cell.0 < CELLS.0 + CELLS.1 { Ok(()) } else { Err(NandRule::OutsideGeometry) }
            }
            MediaOp::Flush => return Ok(()),
        };
        checked.map_err(|rule| {
            self.report_misuse(FlashMisuse::Rule { rule, page: MediaRequest::of(op).page() });
            RefusalReason::Rule(rule)
        })
    }

    fn report_misuse(&self, misuse: FlashMisuse) {
        self.crash_image.lock().misuse.get_or_insert(misuse);
    }

    fn begin(&mut self, id: u64, op: MediaOp, now: Nanos) -> (Option<MediaFrame>, MediaRequest) {
        let timeline = &mut self.timeline;
        match op {
            MediaOp::Read { page, frame } => {
                timeline.start(id, page.block, FlashOperation::Read(page.page), now);
                (Some(frame), MediaRequest::Read(page))
            }
            MediaOp::Program { page, frame } => {
                timeline.start(id, page.block, FlashOperation::Program(page.page), now);
                let arrives = self.faults.arrival(page, &frame, self.config.geometry);
                if let (Some(flash), Some((page, image))) = (self.flash.as_mut(), arrives) {
                    flash.begin_program(id, page, image);
                }
                (Some(frame), MediaRequest::Program(page))
            }
            MediaOp::Erase { block } => {
                timeline.start(id, block, FlashOperation::Erase, now);
                if let Some(flash) = self.flash.as_mut() {
                    flash.begin_erase(id, block);
                }
                (None, MediaRequest::Erase(block))
            }
            // A cell takes as long as a page, on one of the dies.
            MediaOp::ReadCell { cell, frame } => {
                timeline.start(id, BlockId(u32::from(cell.0)), FlashOperation::Read(0), now);
                (Some(frame), MediaRequest::ReadCell(cell))
            }
            MediaOp::WriteCell { cell, frame } => {
                timeline.start(id, BlockId(u32::from(cell.0)), FlashOperation::Program(0), now);
                self.begin_cell(id, cell, &frame);
                (Some(frame), MediaRequest::WriteCell(cell))
            }
            MediaOp::Flush => {
                timeline.flush(id, now);
                let covered = self.flash.as_ref().map(SimFlash::covered_by_flush);
                (None, MediaRequest::Flush(covered.unwrap_or_default()))
            }
        }
    }
}

impl Drop for SimMedia {
    /// Leaves the flash to the crash image when the device is gone, with or without power; operations in flight may or
    /// may not have taken effect.
    fn drop(&mut self) {
        self.crash_image.lock().flash = self.flash.take();
    }
}

impl Media for SimMedia {
    fn geometry(&self) -> FlashGeometry {
        self.config.geometry
    }

    fn traits(&self) -> MediaTraits {
        if let Some(file) = self.file.as_ref().and_then(FileBacked::opened) {
            return file.traits();
        }
        MediaTraits {
            volatile_cache: self.config.cache() == CacheKind::Volatile,
            guard_pages: self.config.guard_pages,
            addressable: self.config.addressing == PageAddressing::InPlace,
            queue_max: self.config.queue_max,
            version: MediumVersion::Two,
            has_extents: true,
            cells: CELLS,
            checksum_seed: 0,
        }
    }

    fn submit(&mut self, token: MediaToken, op: MediaOp, now: Nanos) -> Result<(), RefusedOp> {
        if let Some(file) = &mut self.file {
            return file.submit(&self.crash_image, token, op, now);
        }
        self.advance(now);
        self.last_event = self.last_event.max(now);
        let armed = self.crash_image.take_armed();
        if let Some(cut) = armed {
            self.arm(cut);
        }
        if let Err(reason) = self.check(&op) {
            return Err(RefusedOp { op, reason });
        }
        self.next_id += 1;
        let id = self.next_id;
        if self.power_lost {
            let request = MediaRequest::of(&op);
            let frame = match op {
                MediaOp::Read { frame, .. }
                | MediaOp::Program { frame, .. }
                | MediaOp::ReadCell { frame, .. }
                | MediaOp::WriteCell { frame, .. } => Some(frame),
                MediaOp::Erase { .. } | MediaOp::Flush => None,
            };
            self.without_power += 1;
            let is_endless = self.without_power > ANSWERS_WITHOUT_POWER;
            let read = if let MediaRequest::Read(page) = request { Some(page) } else { None };
            let mut answer = failed_completion(InFlight { token, frame, request, failed: None });
            if let Some(page) = read.filter(|_| is_endless) {
                answer.result = Err(MediaError::Rule { rule: NandRule::OutsideGeometry, page });
            }
            self.ready.push_back((id, answer));
            return Ok(());
        }
        let failed = self.faults.strike(&op, self.config.geometry);
        self.note_struck(&op);
        if failed.is_some() {
            self.crash_image.lock().first_error.get_or_insert(now);
        }
        let (frame, asked) = self.begin(id, op, now);
        let is_cell = matches!(asked, MediaRequest::WriteCell(_));
        self.in_flight.insert(id, InFlight { token, frame, request: asked, failed });
        self.pass_point();
        if is_cell {
            self.pass_cell();
        }
        Ok(())
    }

    fn poll(&mut self, now: Nanos, done: &mut Vec<MediaCompletion>) {
        if let Some(Ok(media)) = self.file.as_mut().map(FileBacked::media) {
            return media.poll(now, done);
        }
        self.advance(now);
        for (id, answer) in self.ready.drain(..) {
            if let (Some(flash), Ok(_)) = (self.flash.as_mut(), &answer.result) {
                flash.complete_to_caller(id);
            }
            done.push(answer);
        }
    }

    fn wait(&mut self, now: Nanos) -> Nanos {
        if let Some(Ok(media)) = self.file.as_mut().map(FileBacked::media) {
            return media.wait(now);
        }
        let mut now = now;
        self.advance(now);
        while self.ready.is_empty() {
            let Some(next) = self.next_event() else { return now };
            now = now.max(next);
            self.advance(now);
        }
        now
    }

    fn next_event(&self) -> Option<Nanos> {
        if let Some(media) = self.file.as_ref().and_then(FileBacked::opened) {
            return media.next_event();
        }
        if !self.ready.is_empty() {
            return Some(self.last_event);
        }
        let cut = self.cut_time.filter(|_| !self.power_lost);
        match (self.timeline.next_at(), cut) {
            (Some(step), Some(cut)) => Some(step.min(cut)),
            (step, cut) => step.or(cut),
        }
    }

    fn in_flight(&self) -> usize {
        if let Some(media) = self.file.as_ref().and_then(FileBacked::opened) {
            return media.in_flight();
        }
        self.in_flight.len() + self.ready.len()
    }

    fn view(&self, page: PageAddress) -> Option<&[u8]> {
        if self.config.addressing == PageAddressing::ByRead || self.power_lost {
            return None;
        }
        let image = self.flash.as_ref()?.page(page)?;
        image.is_readable().then(|| image.bytes().as_slice())
    }
}

fn failed_completion(op: InFlight) -> MediaCompletion {
    MediaCompletion {
        token: op.token,
        result: Err(match op.request {
            MediaRequest::ReadCell(_) | MediaRequest::WriteCell(_) => op.request.error(ENODATA),
            _ => MediaError::Io { errno: ENODATA, page: op.request.page() },
        }),
        frame: op.frame,
    }
}

fn read(
    flash: &SimFlash,
    page: PageAddress,
    frame: Option<&mut MediaFrame>,
) -> Result<PageState, MediaError> {
    let Some(image) = flash.page(page) else {
        return Ok(PageState::Blank);
    };
    if !image.is_readable() {
        return Err(MediaError::Unreadable { page });
    }
    if let Some(frame) = frame {
        frame[..SLOT_BYTES].copy_from_slice(image.bytes());
    }
    Ok(PageState::Programmed)
}

fn read_cell(flash: &SimFlash, cell: CellNumber, frame: Option<&mut MediaFrame>) {
    if let (Some(frame), Some(bytes)) = (frame, flash.cell(cell)) {
        frame[..CELL_BYTES].copy_from_slice(bytes);
    }
}
