//! A simulation of a device with its flash, clients and faults, in one loop of virtual time.
//!
//! Input: a seed. Output: a [`RunReport`] or a [`RunFailure`].
//! Invariant: nothing here reads a clock or any random source but the seed.
//! A run is a sequence of boots on one medium. Each boot opens the device (recovery), reads every key, submits commands
//! until the power is cut, and leaves the crash image to the next boot. The last boot has no fault.

mod across_config;
mod block_namespace;
mod boot_plan;
mod config;
mod excuses;
mod extent_config;
mod idle;
mod long_config;
mod part_config;
mod receiving;
mod recovery_check;
mod report;
mod reuse_config;
mod submission;
mod swarm_config;

pub use config::{
    ACROSS_SEEDS, BATCH_CLEAR_SEEDS, BLOCK_SEEDS, BlockNamespaceConfig, BootLength, CHECK_SEEDS,
    EXTENT_SEEDS, FILE_SEEDS, GATHER_SEEDS, LONG_SEEDS, LYING_SEEDS, MOVE_SEEDS, MediumHonesty, PART_SEEDS,
    RECEIPT_SEEDS, REUSE_SEEDS, SWARM_SEEDS, WorldConfig, WorldSwitches, has_channels,
};
pub use report::{FailureCause, LineSink, RunFailure, RunReport};

use crate::checker::{DeviceChecker, ValueFingerprint};
use crate::faults::{FaultPlan, PowerCut};
use crate::flash::SimFlash;
use crate::media::{CrashImage, SimMedia};
use crate::simulated_device::{BootTime, SimulatedDevice};
use crate::timeline::SlowDie;
use crate::workload::{CommandStream, FeatureUse};
use block_namespace::BlockNamespaceModel;
use config::{BLOCK_NAMESPACE, drawn_seed};
use excuses::MediumPast;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{SsdCommand, SsdCompletion};
use receiving::ReceivingClients;
use std::marker::PhantomData;

/// Wall time at the start of every world.
const WALL_START: u64 = 1_700_000_000_000;
/// Number of polls without progress after which the device counts as stuck.
const IDLE_POLLS_MAX: u32 = 100_000;
/// Number of polls with progress and without a completion after which the device counts as stuck.
const BUSY_POLLS_MAX: u32 = 400_000;

/// Statuses that a device may return when its medium has lost power; with the power on they are unexpected.
const FAILURES: &[Status] = &[
    Status::INTERNAL_ERROR,
    Status::MEDIUM_FAILED,
    Status::UNRECOVERED_ERROR,
    Status::UNRECOVERED_READ_ERROR,
    Status::DATA_TRANSFER_ERROR,
    Status::NAMESPACE_NOT_READY,
];

/// The state of the power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SimPower {
    On,
    PowerLost,
}

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorldStep {
    Progressed,
    /// Nothing will happen until a command is submitted.
    Idle,
    PowerLost,
}

/// One simulated world.
pub struct SimWorld<'a, E> {
    seed: u64,
    config: WorldConfig,
    rng: fastrand::Rng,
    checker: DeviceChecker,
    workload: CommandStream,
    disk: Option<BlockNamespaceModel>,
    receiving: ReceivingClients,
    sink: Option<LineSink<'a>>,
    first_cut: Option<PowerCut>,
    now: Nanos,
    wall_offset: u64,
    next_token: u64,
    boot: u32,
    idle_polls: u32,
    busy_polls: u32,
    past: MediumPast,
    slow_die: Option<SlowDie>,
    /// True if the boot ended when a record on the medium said that everything is durable.
    said_durable: bool,
    /// True if the device of this boot was opened.
    has_opened: bool,
    /// True if commit records of one side were lost.
    has_lost_cells: bool,
    completions: Vec<(SsdCompletion, UnixMillis)>,
    report: RunReport,
    engine: PhantomData<E>,
}

impl<E> std::fmt::Debug for SimWorld<'_, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimWorld")
            .field("seed", &self.seed)
            .field("boot", &self.boot)
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

impl<'a, E: SimulatedDevice> SimWorld<'a, E> {
    /// Creates a world before its first boot.
    #[must_use]
    pub fn new(seed: u64, config: WorldConfig) -> Self {
        let mut rng = fastrand::Rng::with_seed(drawn_seed(seed));
        Self {
            seed,
            checker: excuses::checker_of(&config),
            workload: config.command_stream(rng.u64(..)),
            disk: config.block_namespace.map(BlockNamespaceModel::new),
            receiving: ReceivingClients::new(drawn_seed(seed), config.switches.receipts == FeatureUse::Some),
            config,
            rng,
            sink: None,
            first_cut: None,
            now: Nanos::ZERO,
            wall_offset: WALL_START,
            next_token: 0,
            boot: 0,
            idle_polls: 0,
            busy_polls: 0,
            past: MediumPast::Honest,
            slow_die: None,
            said_durable: false,
            has_opened: false,
            has_lost_cells: false,
            completions: Vec::new(),
            report: RunReport { seed, digest: seed, ..RunReport::default() },
            engine: PhantomData,
        }
    }

    /// Cuts the power of the first boot at `cut`, counted from the start of the boot. A test uses it to cut one run at
    /// every point.
    #[must_use]
    pub fn cut_at(mut self, cut: PowerCut) -> Self {
        self.first_cut = Some(cut);
        self
    }

    /// Writes one line to `sink` for every command, completion and cut.
    #[must_use]
    pub fn verbose(mut self, sink: LineSink<'a>) -> Self {
        self.sink = Some(sink);
        self
    }

    /// Runs all boots.
    ///
    /// # Errors
    /// The first promise that the device broke.
    pub fn run(mut self) -> Result<RunReport, RunFailure> {
        match self.run_boots() {
            Ok(()) => {
                self.report.received = self.receiving.stored;
                self.report.received_again = self.receiving.stored_again;
                self.report.virtual_time = self.now;
                Ok(self.report)
            }
            Err(cause) => Err(RunFailure {
                seed: self.seed,
                boot: self.boot,
                commands: self.report.commands,
                at: self.now,
                cause,
            }),
        }
    }

    fn run_boots(&mut self) -> Result<(), FailureCause> {
        let mut media = SimMedia::new(self.config.media);
        for boot in 0..self.config.rounds {
            self.boot = boot;
            let plan = self.plan_boot(boot);
            match self.run_boot(media, plan)? {
                Some(next) => media = next,
                None => return Ok(()),
            }
        }
        self.boot = self.config.rounds;
        self.run_boot(media, FaultPlan::NONE).map(drop)
    }

    /// Runs one boot. Returns the medium of the next one, or `None` if the device refused to open a medium that lied.
    fn run_boot(&mut self, mut media: SimMedia, plan: FaultPlan) -> Result<Option<SimMedia>, FailureCause> {
        media.set_slow_die(plan.slow_die);
        (self.slow_die, self.said_durable, self.has_opened) = (plan.slow_die, false, false);
        if plan.has_lie() {
            media.inject(&plan);
            self.past = MediumPast::Faulty;
            self.checker.begin_faulty();
        } else if self.past == MediumPast::Faulty {
            self.past = MediumPast::Damaged;
            self.checker.begin_honest();
        }
        // Some boots may lose their power during recovery, the rest only while they serve.
        let (mut early, mut cut) = (self.one_in(self.config.switches.early_cut_every), plan.cut);
        early |= matches!(cut, PowerCut::Cell(_));
        if early {
            cut = self.early_cut(cut);
        }
        if let (Some(first), 0) = (self.first_cut, self.boot) {
            (early, cut) = (true, first);
        }
        media.arm(if early { cut } else { PowerCut::Never });
        let image = media.crash_image();
        let (boot, now) = (self.boot, self.now);
        self.log(|| format!("boot {boot} at {now}, faults {plan:?}"));
        let at = self.boot_time();
        // The inspection takes a copy of the medium, so it cannot affect the world.
        if self.config.switches.inspection == FeatureUse::Some
            && self.past == MediumPast::Honest
            && let Some(copy) = media.snapshot()
        {
            E::inspect(copy, &self.config.device, at).map_err(FailureCause::Inspection)?;
        }
        match E::open(media, &self.config.device, at) {
            Err(why) if !image.has_lost_power() => {
                if self.past != MediumPast::Honest && image.misuse().is_none() {
                    self.report.refused_to_open = true;
                    return Ok(None);
                }
                return Err(image.misuse().map_or(FailureCause::Open(why), FailureCause::from));
            }
            Err(_) => self.report.cuts_in_recovery += 1,
            Ok(mut engine) => {
                self.has_opened = true;
                self.receiving.clear();
                self.now = self.now.max(image.now());
                if !early {
                    image.arm(cut);
                }
                self.drive_device(&mut engine, &image)?;
                self.report.activity.add(engine.activity());
            }
        }
        if let Some(misuse) = image.misuse() {
            return Err(misuse.into());
        }
        self.now = self.now.max(image.now());
        if self.boot == 0 {
            self.report.first_boot_points = image.points();
        }
        self.report.media_operations += image.points();
        self.report.cuts += 1;
        // A device that cannot write any more says so, and keeps no promise of a later time.
        let promised = image.first_error().map_or(self.now, |at| at.min(self.now));
        self.checker.power_cut(promised, self.media_slack(self.slow_die));
        self.log(|| format!("power cut at {}, point {}", image.now(), image.points()));
        self.wall_offset += self.rng.u64(0..2_000);
        self.check_sides(&image)?;
        let media = self.end_boot(&image, &plan).ok_or(FailureCause::MediumLost)?;
        self.excuse_unwitnessed(&image);
        self.report.faults = media.flash().map_or(0, SimFlash::interrupted);
        Ok(Some(media))
    }

    /// Damages the medium as planned, and returns the one of the next boot.
    fn end_boot(&mut self, image: &CrashImage, plan: &FaultPlan) -> Option<SimMedia> {
        if let Some(fault) = plan.resting {
            image.strike_at_rest(fault);
        }
        if plan.kill {
            image.next_boot_after_kill(&mut self.rng)
        } else {
            image.next_boot(&mut self.rng, &plan.damage)
        }
    }

    /// Drives the device from the end of recovery to the loss of power.
    fn drive_device(&mut self, engine: &mut E, image: &CrashImage) -> Result<(), FailureCause> {
        if self.check_after_recovery(engine, image)? == SimPower::PowerLost {
            return Ok(());
        }
        let mut left = self.rng.u32(0..=self.config.commands_max);
        while left > 0 {
            let wanted = self.rng.usize(0..=self.config.depth);
            while left > 0 && self.checker.in_flight() < wanted {
                left -= 1;
                if let Some(command) = self.next_block_command() {
                    let changes = matches!(command, SsdCommand::Namespace(_));
                    if changes && self.drain(engine, image)? == SimPower::PowerLost {
                        return Ok(());
                    }
                    if self.submit(engine, BLOCK_NAMESPACE, command)?.is_none() {
                        break;
                    }
                    continue;
                }
                let wall = self.wall();
                let checker = &self.checker;
                let known = |namespace, key: &[u8]| checker.known_sequence(namespace, key);
                let request = self.workload.next(wall, &known);
                if self.submit_or_receive(engine, request.namespace, request.command)?.is_none() {
                    break;
                }
            }
            self.receive_part(engine)?;
            if self.step(engine, image)? == WorldStep::PowerLost {
                return Ok(());
            }
            if self.one_in(self.config.switches.checkpoint_every) {
                engine.request_maintenance();
            }
            if self.rng.u8(0..32) == 0 {
                self.now = self.now.after(Nanos(self.rng.u64(0..3_000_000)));
            }
        }
        // Some boots end with commands in flight, some idle.
        if self.boot < self.config.rounds && self.rng.bool() {
            return Ok(());
        }
        if self.drain(engine, image)? == SimPower::PowerLost {
            return Ok(());
        }
        if self.config.switches.idle_ends == FeatureUse::Some && self.rng.bool() {
            return self.be_idle(engine, image).map(drop);
        }
        if self.rng.bool() && self.config.switches.shutdown == FeatureUse::Some {
            let at = self.boot_time();
            if let Some(now) = engine.shut_down(at)
                && !image.has_lost_power()
            {
                self.now = self.now.max(now);
                self.checker.shut_down();
            }
        }
        Ok(())
    }

    /// Returns true once in `every` times; never for 0.
    fn one_in(&mut self, every: u8) -> bool {
        every != 0 && self.rng.u8(0..every) == 0
    }

    fn drain(&mut self, engine: &mut E, image: &CrashImage) -> Result<SimPower, FailureCause> {
        while self.checker.in_flight() > 0 {
            match self.step(engine, image)? {
                WorldStep::Progressed => {}
                WorldStep::Idle => self.checker.check_idle()?,
                WorldStep::PowerLost => return Ok(SimPower::PowerLost),
            }
        }
        Ok(SimPower::On)
    }

    fn step(&mut self, engine: &mut E, image: &CrashImage) -> Result<WorldStep, FailureCause> {
        let moved = engine.poll(self.now, self.wall());
        let mut answered = false;
        while let Some(completion) = engine.next_completion() {
            answered = true;
            self.busy_polls = 0;
            self.handle_completion(completion, image)?;
        }
        if let Some(misuse) = image.misuse() {
            return Err(misuse.into());
        }
        if image.has_lost_power() {
            return Ok(WorldStep::PowerLost);
        }
        if moved || answered {
            self.idle_polls = 0;
            self.busy_polls += 1;
            if self.busy_polls > BUSY_POLLS_MAX {
                return Err(FailureCause::NoProgress { in_flight: self.checker.in_flight() });
            }
            return Ok(WorldStep::Progressed);
        }
        self.idle_polls += 1;
        if self.idle_polls > IDLE_POLLS_MAX {
            return Err(FailureCause::NoProgress { in_flight: self.checker.in_flight() });
        }
        match engine.next_deadline() {
            None => Ok(WorldStep::Idle),
            Some(at) => {
                // Time advances even if the deadline has passed without progress.
                self.now = at.max(self.now.after(Nanos(1)));
                Ok(WorldStep::Progressed)
            }
        }
    }

    fn handle_completion(
        &mut self,
        completion: SsdCompletion,
        image: &CrashImage,
    ) -> Result<(), FailureCause> {
        let wall = self.wall();
        self.report.completions += 1;
        self.receiving.completed(&completion);
        self.log(|| {
            format!(
                "{} completed with {:?}, sequence {}, {} bytes",
                completion.token, completion.status, completion.sequence.0, completion.value_bytes
            )
        });
        for part in [
            completion.token,
            u64::from(completion.status.code_type) << 8 | u64::from(completion.status.code),
            completion.sequence.0,
            u64::from(completion.value_bytes),
            ValueFingerprint::of(&completion.sink).hash,
            completion.keys.len() as u64,
            self.now.0,
        ] {
            let mixed = (self.report.digest ^ part).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            self.report.digest = mixed ^ (mixed >> 29);
        }
        if image.has_lost_power() && FAILURES.contains(&completion.status) {
            self.checker.failed(completion.token)?;
        } else if self.is_excused(&completion) {
            self.excuse(&completion)?;
        } else {
            if let Some(disk) = &mut self.disk {
                disk.completed(&completion);
            }
            self.checker.completed(&completion, self.now, wall)?;
        }
        self.completions.clear();
        self.completions.push((completion, wall));
        Ok(())
    }

    /// Returns the time that the media may need for everything that can be queued when an interval ends.
    fn media_slack(&self, slow: Option<SlowDie>) -> Nanos {
        let preset = self.config.media.preset;
        let slowest = preset.program.iter().max().copied().unwrap_or_default();
        let factor = slow.map_or(1, |slow| u64::from(slow.factor));
        let queued = slowest.0.saturating_mul(512).saturating_add(preset.erase.0);
        Nanos::from_millis(100).after(Nanos(queued.saturating_mul(factor)))
    }

    fn boot_time(&self) -> BootTime {
        BootTime { now: self.now, wall: self.wall() }
    }

    fn wall(&self) -> UnixMillis {
        UnixMillis(self.wall_offset + self.now.0 / 1_000_000)
    }

    fn log(&mut self, line: impl FnOnce() -> String) {
        if let Some(sink) = &mut self.sink {
            sink(&line());
        }
    }
}
