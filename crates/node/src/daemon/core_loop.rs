//! The core loop: polls the front ends and the device, and sleeps while both are idle.
//!
//! Input: a device, its front ends, a [`StopSignal`]. Output: a drained device after a stop request. After the calibrated
//! spin time without progress the loop sleeps until a descriptor is readable or a deadline passes.
//! Invariant: an idle node sleeps; there is no periodic tick.
//!
//! ```text
//!   serving --(stop requested)--> draining --(every front end drained, or the limit)--> ended
//! ```

mod wait_set;

use crate::daemon::damage_log::{DamageLog, log_failure};
use crate::daemon::metrics::{MetricsBoard, NodeHealth};
use crate::daemon::stop::StopSignal;
use headwater_frontend::core_device::CoreWork;
use headwater_frontend::counters::FrontEndCounters;
use headwater_frontend::front_end::{FrontEnd, PollCost};
use headwater_host::clock::{Clock, Nanos};
use headwater_nvme::queue_pair::SleepDecision;
use std::os::fd::AsFd as _;
use wait_set::{ReadyFrontEnds, WaitSet};

/// Time to a deadline for which the loop polls instead of sleeping.
const SLEEP_MIN: Nanos = Nanos(200_000);
/// Maximum wait for clients to receive their last replies.
pub const DRAIN_MAX: Nanos = Nanos(10_000_000_000);
/// Minimum time between two publications of the counters.
const PUBLISH_INTERVAL: Nanos = Nanos(100_000_000);

/// Minimum time between two polls of a front end that needs system calls, while another one is polled in memory.
const SYSCALL_POLL_INTERVAL: Nanos = Nanos(5_000);
/// Minimum time between two searches for work of idle front ends while another one is active.
const IDLE_POLL_INTERVAL: Nanos = Nanos(10_000);
/// Minimum time between two polls of a front end without known work, which may have got room that another one released.
const ALL_POLL_INTERVAL: Nanos = Nanos(1_000_000);
/// Time without progress after which a front end is idle.
const IDLE_AFTER: Nanos = Nanos(50_000);

/// The core loop with everything that it runs.
pub struct CoreLoop<'a, 'f, D> {
    /// The device.
    pub device: &'a mut D,
    /// Its front ends.
    pub front_ends: Vec<Box<dyn FrontEnd<D> + 'f>>,
    /// The clock.
    pub clock: Clock,
    /// Time to poll without progress before sleeping.
    pub spin: Nanos,
    /// The board that receives the counters.
    pub board: &'a MetricsBoard,
    /// The state that decides which front ends are polled more often.
    pub schedule: PollSchedule,
}

/// The poll times and activity of the front ends.
#[derive(Debug, Default)]
pub struct PollSchedule {
    /// Time of the last search for work of all front ends.
    searched: Nanos,
    /// Time of the last poll of all front ends.
    all_polled: Nanos,
    /// True if all front ends are polled in the next turn.
    must_poll_all: bool,
    /// True if all front ends were polled in the last turn, and neither one of them nor the device made progress.
    is_quiet: bool,
    /// The turns so far.
    turn: u64,
    /// The last turn in which the device had completions or other progress.
    device_progress: u64,
    front_ends: Vec<FrontEndActivity>,
}

/// The activity of one front end.
#[derive(Clone, Copy, Debug, Default)]
struct FrontEndActivity {
    /// Time of its last progress.
    progress: Nanos,
    /// True if its last poll made progress, so that it may have more work, which its descriptor need not announce.
    moved: bool,
    /// The turn of its last poll.
    polled: u64,
}

impl<D> std::fmt::Debug for CoreLoop<'_, '_, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CoreLoop")
            .field("front_ends", &self.front_ends.len())
            .field("spin", &self.spin)
            .finish_non_exhaustive()
    }
}

/// The result of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainResult {
    /// Every client received its replies.
    Drained,
    /// Some client did not receive its replies within [`DRAIN_MAX`].
    DrainLimit,
}

impl<D: CoreWork> CoreLoop<'_, '_, D> {
    /// Runs until a stop is requested and the front ends are drained.
    ///
    /// # Errors
    /// When the system refuses the descriptors that the loop sleeps on.
    pub fn run(&mut self, stop: &StopSignal) -> std::io::Result<DrainResult> {
        let wait_set = self.create_wait_set(stop)?;
        let mut moved_at = self.clock.now();
        let mut publish_at = moved_at;
        let mut unpublished = true;
        let mut draining_since = None;
        let mut damage = DamageLog::default();
        loop {
            let now = self.clock.now();
            if stop.is_requested() && draining_since.is_none() {
                draining_since = Some(now);
                self.board.set_health(NodeHealth::Draining);
                self.front_ends.iter_mut().for_each(|front_end| front_end.drain());
            }
            if self.poll(now, &wait_set, draining_since.is_some()) {
                moved_at = now;
                unpublished = true;
            }
            unpublished |= damage.deadline().is_some_and(|due| due <= now);
            if unpublished && now >= publish_at && self.publish(&mut damage, now) {
                publish_at = now.after(PUBLISH_INTERVAL);
                unpublished = false;
            }
            if let Some(since) = draining_since {
                if self.front_ends.iter().all(|front_end| front_end.is_drained()) {
                    return Ok(DrainResult::Drained);
                }
                if now.since(since) >= DRAIN_MAX {
                    return Ok(DrainResult::DrainLimit);
                }
            }
            if now.since(moved_at) < self.spin {
                std::hint::spin_loop();
                continue;
            }
            if !self.schedule.is_quiet {
                self.schedule.must_poll_all = true;
                continue;
            }
            if self
                .front_ends
                .iter_mut()
                .any(|front_end| front_end.prepare_sleep() == SleepDecision::WorkPending)
                || self.device.prepare_sleep() == SleepDecision::WorkPending
            {
                continue;
            }
            let own = [
                unpublished.then_some(publish_at),
                draining_since.map(|since| since.after(DRAIN_MAX)),
                damage.deadline(),
            ];
            self.sleep(&wait_set, now, own.into_iter().flatten().min(), stop.is_requested())?;
        }
    }

    /// Polls the front ends that have work, those that had some a moment ago, and the device.
    fn poll(&mut self, now: Nanos, wait_set: &WaitSet, draining: bool) -> bool {
        let wall = self.clock.wall();
        let mut moved = false;
        let schedule = &mut self.schedule;
        schedule.turn += 1;
        schedule.front_ends.resize(self.front_ends.len(), FrontEndActivity::default());
        let in_memory = self.front_ends.iter().any(|front_end| front_end.poll_cost() == PollCost::Memory);
        let is_lively = |activity: &FrontEndActivity| now.since(activity.progress) < IDLE_AFTER;
        let every = match (in_memory, schedule.front_ends.iter().any(is_lively)) {
            (true, _) => SYSCALL_POLL_INTERVAL,
            (false, true) => IDLE_POLL_INTERVAL,
            (false, false) => Nanos::ZERO,
        };
        // A drain ends by steps that no descriptor announces.
        let polls_all =
            schedule.must_poll_all || draining || now.since(schedule.all_polled) >= ALL_POLL_INTERVAL;
        let all = polls_all || now.since(schedule.searched) >= every;
        let ready = match (polls_all, all) {
            (true, _) => ReadyFrontEnds::ALL,
            (false, true) => wait_set.ready(),
            (false, false) => ReadyFrontEnds::NONE,
        };
        if all {
            schedule.searched = now;
        }
        if polls_all {
            schedule.all_polled = now;
            schedule.must_poll_all = false;
        }
        for (number, (front_end, activity)) in
            self.front_ends.iter_mut().zip(&mut schedule.front_ends).enumerate()
        {
            let is_due = match front_end.poll_cost() {
                PollCost::Memory => true,
                PollCost::Kernel => {
                    let in_turn = is_lively(activity) && (all || !in_memory);
                    let has_work = || {
                        ready.contains(number)
                            || activity.moved
                            || (activity.polled <= schedule.device_progress && front_end.waits_for_device())
                            || front_end.next_deadline().is_some_and(|due| due <= now)
                    };
                    in_turn || (all && has_work())
                }
            };
            if !is_due {
                continue;
            }
            activity.polled = schedule.turn;
            activity.moved = front_end.poll(self.device, now, wall);
            if activity.moved {
                activity.progress = now;
                moved = true;
            }
        }
        if self.device.poll(now, wall) {
            schedule.device_progress = schedule.turn;
            moved = true;
        }
        schedule.is_quiet = polls_all && !moved;
        moved
    }

    /// Creates the set of everything that can end a sleep.
    fn create_wait_set(&self, stop: &StopSignal) -> std::io::Result<WaitSet> {
        let front_ends = self.front_ends.iter().map(|front_end| front_end.wake_descriptor());
        let device = self.device.wake_descriptor().into_iter().chain(self.device.move_descriptors());
        Ok(WaitSet::new(front_ends, device, stop.as_fd())?)
    }

    fn sleep(
        &self,
        wait_set: &WaitSet,
        now: Nanos,
        own: Option<Nanos>,
        stopping: bool,
    ) -> std::io::Result<()> {
        let of_front_ends = self.front_ends.iter().filter_map(|front_end| front_end.next_deadline()).min();
        let until = [own, of_front_ends, self.device.next_deadline(now, self.clock.wall())]
            .into_iter()
            .flatten()
            .min();
        let span = match until {
            None => None,
            Some(until) if until <= now.after(SLEEP_MIN) => return Ok(()),
            // Rounded up to whole milliseconds: after an early wake-up the loop would only sleep again.
            Some(until) => Some(timespec(until.since(now))),
        };
        tracing::trace!(?until, stopping, "core sleeps");
        wait_set.wait(span.as_ref())?;
        Ok(())
    }

    fn publish(&self, damage: &mut DamageLog, now: Nanos) -> bool {
        let mut numbers = FrontEndCounters::default();
        for front_end in &self.front_ends {
            front_end.add_counters(&mut numbers);
        }
        numbers.trace = self.device.trace();
        let stats = self.device.stats();
        damage.update(&stats, now);
        if let Some(failed) = damage.take_failure(&stats) {
            log_failure(&failed, self.device.file_place(failed.address()));
        }
        self.board.publish(&stats, numbers)
    }
}

fn timespec(span: Nanos) -> rustix::time::Timespec {
    let millis = span.0.div_ceil(1_000_000);
    rustix::time::Timespec {
        // A sleep is cut to a day; the wake-up costs nothing.
        tv_sec: (millis / 1_000).min(86_400).cast_signed(),
        tv_nsec: (millis % 1_000).cast_signed() * 1_000_000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_host::clock::UnixMillis;
    use headwater_ssd::engine::DeviceStats;
    use std::cell::Cell;
    use std::io::{Read as _, Write as _};
    use std::os::fd::BorrowedFd;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A device that does nothing except that one deadline can pass.
    #[derive(Default)]
    struct IdleDevice {
        polls: AtomicU64,
        deadline: Cell<Option<Nanos>>,
    }

    impl CoreWork for IdleDevice {
        fn shutdown(&mut self, _: &Clock) -> Result<(), String> {
            Ok(())
        }
        fn poll(&mut self, now: Nanos, _wall: UnixMillis) -> bool {
            self.polls.fetch_add(1, Ordering::Relaxed);
            match self.deadline.get() {
                Some(at) if at <= now => {
                    self.deadline.set(None);
                    true
                }
                _ => false,
            }
        }
        fn next_deadline(&self, _now: Nanos, _wall: UnixMillis) -> Option<Nanos> {
            self.deadline.get()
        }
        fn stats(&self) -> DeviceStats {
            DeviceStats::default()
        }
    }

    /// A front end that echoes bytes; it is drained as soon as a drain is requested.
    struct EchoFrontEnd {
        stream: UnixStream,
        draining: bool,
    }

    impl FrontEnd<IdleDevice> for EchoFrontEnd {
        fn poll(&mut self, _device: &mut IdleDevice, _now: Nanos, _wall: UnixMillis) -> bool {
            let mut bytes = [0; 16];
            match self.stream.read(&mut bytes) {
                Ok(read) if read > 0 => self.stream.write_all(&bytes[..read]).is_ok(),
                _ => false,
            }
        }
        fn wake_descriptor(&self) -> BorrowedFd<'_> {
            self.stream.as_fd()
        }
        fn drain(&mut self) {
            self.draining = true;
        }
        fn is_drained(&self) -> bool {
            self.draining
        }
        fn add_counters(&self, into: &mut FrontEndCounters) {
            into.connections += 1;
        }
    }

    #[test]
    fn sleeping_loop_wakes_for_front_end_and_for_stop_request() {
        let (mut client, server) = UnixStream::pair().unwrap();
        server.set_nonblocking(true).unwrap();
        let (stop, mut handle) = StopSignal::manual().unwrap();
        let board = MetricsBoard::default();
        let mut device = IdleDevice::default();
        std::thread::scope(|scope| {
            let running = scope.spawn(|| {
                let mut core = CoreLoop {
                    device: &mut device,
                    front_ends: vec![Box::new(EchoFrontEnd { stream: server, draining: false })],
                    clock: Clock::start(),
                    spin: Nanos::ZERO,
                    board: &board,
                    schedule: PollSchedule::default(),
                };
                core.run(&stop).unwrap()
            });
            for _ in 0..3 {
                client.write_all(b"ping").unwrap();
                let mut answer = [0; 4];
                client.read_exact(&mut answer).unwrap();
                assert_eq!(&answer, b"ping");
                Clock::sleep(Nanos::from_millis(5));
            }
            handle.request();
            assert_eq!(running.join().unwrap(), DrainResult::Drained);
        });
        assert_eq!(board.health(), NodeHealth::Draining);
        assert_eq!(board.snapshot().front_ends.connections, 1);
    }

    /// A front end with a number of steps of work, which its descriptor never announces.
    struct SteppingFrontEnd<'c> {
        stream: UnixStream,
        steps: u64,
        polls: &'c Cell<u64>,
    }

    impl FrontEnd<IdleDevice> for SteppingFrontEnd<'_> {
        fn poll(&mut self, _device: &mut IdleDevice, _now: Nanos, _wall: UnixMillis) -> bool {
            self.polls.set(self.polls.get() + 1);
            let moved = self.steps > 0;
            self.steps = self.steps.saturating_sub(1);
            moved
        }
        fn wake_descriptor(&self) -> BorrowedFd<'_> {
            self.stream.as_fd()
        }
        fn drain(&mut self) {}
        fn is_drained(&self) -> bool {
            true
        }
        fn add_counters(&self, _into: &mut FrontEndCounters) {}
    }

    #[test]
    fn front_end_that_made_progress_is_polled_again_however_long_the_turn_took() {
        let pairs: Vec<_> = (0..2).map(|_| UnixStream::pair().unwrap()).collect();
        let polls = [Cell::new(0), Cell::new(0)];
        let (stop, _handle) = StopSignal::manual().unwrap();
        let board = MetricsBoard::default();
        let front_ends = pairs.iter().zip([3, u64::MAX]).zip(&polls).map(|((pair, steps), polls)| {
            let stream = pair.0.try_clone().unwrap();
            Box::new(SteppingFrontEnd { stream, steps, polls }) as Box<dyn FrontEnd<IdleDevice>>
        });
        let mut core = CoreLoop {
            device: &mut IdleDevice::default(),
            front_ends: front_ends.collect(),
            clock: Clock::start(),
            spin: Nanos::ZERO,
            board: &board,
            schedule: PollSchedule::default(),
        };
        let wait_set = core.create_wait_set(&stop).unwrap();
        // Each turn is longer than the time after which a front end counts as idle.
        let turn = Nanos(2 * IDLE_AFTER.0);
        let turns = ALL_POLL_INTERVAL.0 / turn.0;
        for number in 0..turns {
            core.poll(ALL_POLL_INTERVAL.after(Nanos(number * turn.0)), &wait_set, false);
        }
        assert_eq!(polls[0].get(), 4, "three polls with progress, and one that ended without");
        assert_eq!(polls[1].get(), turns);
        core.poll(ALL_POLL_INTERVAL.after(ALL_POLL_INTERVAL), &wait_set, false);
        assert_eq!(polls[0].get(), 5, "all front ends are polled from time to time");
    }

    #[test]
    fn idle_loop_sleeps_until_its_deadline() {
        let (stop, mut handle) = StopSignal::manual().unwrap();
        let board = MetricsBoard::default();
        let mut device = IdleDevice::default();
        device.deadline.set(Some(Nanos::from_millis(50)));
        let polls = std::thread::scope(|scope| {
            let running = scope.spawn(|| {
                let mut core = CoreLoop {
                    device: &mut device,
                    front_ends: Vec::new(),
                    clock: Clock::start(),
                    spin: Nanos::ZERO,
                    board: &board,
                    schedule: PollSchedule::default(),
                };
                core.run(&stop).unwrap();
                drop(core);
                device.polls.load(Ordering::Relaxed)
            });
            Clock::sleep(Nanos::from_millis(300));
            handle.request();
            running.join().unwrap()
        });
        // Start, publication, deadline, its publication, stop: a loop that never slept would count millions.
        assert!(polls < 20, "{polls} polls in 300 ms without work");
        assert_eq!(device.deadline.get(), None, "the device was not polled at its deadline");
    }
}
