//! The core's loop: faces, device, and sleep when nothing moves.
//!
//! In: a device, its faces, a [`Stop`]. Out: the device again, drained, when it was asked to stop. The loop polls; when
//! nothing has moved for the calibrated spin time it sleeps until a descriptor is readable or a deadline passes.
//! Invariant: an idle node sleeps; there is no periodic tick.
//!
//! ```text
//!   serving --(asked to stop)--> draining --(every face drained, or the limit)--> ended
//! ```

use crate::daemon::metrics::{Board, Health};
use crate::daemon::stop::Stop;
use headwater_frontend::core_device::CoreWork;
use headwater_frontend::front_end::{Face, PollCost};
use headwater_frontend::numbers::FaceNumbers;
use headwater_host::clock::{Clock, Nanos};
use headwater_nvme::queue_pair::Sleep;
use rustix::event::epoll;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Longest wait for clients to take their last answers.
pub const DRAIN_MAX: Nanos = Nanos(10_000_000_000);
/// Least time between two publications of the numbers.
const PUBLISH_EVERY: Nanos = Nanos(100_000_000);

/// Least time between two looks at faces that cost calls into the kernel, while another one is looked at in memory.
const KERNEL_EVERY: Nanos = Nanos(5_000);
/// Least time between two looks at such a face while it is quiet and another one is not.
const QUIET_EVERY: Nanos = Nanos(10_000);
/// How long ago a face may have moved that is not quiet.
const QUIET_AFTER: Nanos = Nanos(50_000);

/// Everything the loop runs.
pub struct CoreLoop<'a, 'f, D> {
    /// The device.
    pub device: &'a mut D,
    /// Its faces.
    pub faces: Vec<Box<dyn Face<D> + 'f>>,
    /// Time.
    pub clock: Clock,
    /// How long to poll in vain before sleeping.
    pub spin: Nanos,
    /// Where the numbers go.
    pub board: &'a Board,
    /// Which faces are looked at more often than others.
    pub attention: Attention,
}

/// What the loop remembers of its faces.
#[derive(Debug, Default)]
pub struct Attention {
    /// When all faces were last looked at.
    all_polled: Nanos,
    /// When each face last moved.
    moved: Vec<Nanos>,
}

impl<D> std::fmt::Debug for CoreLoop<'_, '_, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CoreLoop")
            .field("faces", &self.faces.len())
            .field("spin", &self.spin)
            .finish_non_exhaustive()
    }
}

/// How a loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every client had its answers.
    Drained,
    /// Some client did not take its answers within [`DRAIN_MAX`].
    DrainLimit,
}

impl<D: CoreWork> CoreLoop<'_, '_, D> {
    /// Runs until asked to stop and drained.
    ///
    /// # Errors
    /// When the system refuses the descriptors the loop sleeps on.
    pub fn run(&mut self, stop: &Stop) -> std::io::Result<Ended> {
        let bed = self.make_bed(stop)?;
        let mut moved_at = self.clock.now();
        let mut publish_at = moved_at;
        let mut unpublished = true;
        let mut draining_since = None;
        loop {
            let now = self.clock.now();
            if stop.asked() && draining_since.is_none() {
                draining_since = Some(now);
                self.board.set_health(Health::Draining);
                self.faces.iter_mut().for_each(|face| face.drain());
            }
            if self.poll(now) {
                moved_at = now;
                unpublished = true;
            }
            if unpublished && now >= publish_at && self.publish() {
                publish_at = now.after(PUBLISH_EVERY);
                unpublished = false;
            }
            if let Some(since) = draining_since {
                if self.faces.iter().all(|face| face.is_drained()) {
                    return Ok(Ended::Drained);
                }
                if now.since(since) >= DRAIN_MAX {
                    return Ok(Ended::DrainLimit);
                }
            }
            if now.since(moved_at) < self.spin {
                std::hint::spin_loop();
                continue;
            }
            if self.faces.iter_mut().any(|face| face.prepare_sleep() == Sleep::No) {
                continue;
            }
            let own = [unpublished.then_some(publish_at), draining_since.map(|since| since.after(DRAIN_MAX))];
            self.sleep(&bed, now, own.into_iter().flatten().min(), stop.asked())?;
        }
    }

    fn poll(&mut self, now: Nanos) -> bool {
        let wall = self.clock.wall();
        let mut moved = false;
        let Attention { all_polled, moved: last } = &mut self.attention;
        last.resize(self.faces.len(), Nanos::ZERO);
        let in_memory = self.faces.iter().any(|face| face.poll_cost() == PollCost::Memory);
        let is_lively = |moved: Nanos| now.since(moved) < QUIET_AFTER;
        let lively = last.iter().any(|&moved| is_lively(moved));
        let every = match (in_memory, lively) {
            (true, _) => KERNEL_EVERY,
            (false, true) => QUIET_EVERY,
            (false, false) => Nanos::ZERO,
        };
        let all = now.since(*all_polled) >= every;
        if all {
            *all_polled = now;
        }
        for (face, last) in self.faces.iter_mut().zip(last) {
            let in_turn = face.poll_cost() == PollCost::Memory || (!in_memory && is_lively(*last));
            if (all || in_turn) && face.poll(self.device, now, wall) {
                *last = now;
                moved = true;
            }
        }
        moved |= self.device.poll(now, wall);
        moved
    }

    /// Everything that can end a sleep, in one descriptor.
    fn make_bed(&self, stop: &Stop) -> std::io::Result<OwnedFd> {
        let bed = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let add = |descriptor: BorrowedFd<'_>| {
            epoll::add(&bed, descriptor, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
        };
        for face in &self.faces {
            add(face.wake_descriptor())?;
        }
        if let Some(media) = self.device.wake_descriptor() {
            add(media)?;
        }
        // Edge-triggered: the byte is never read, and once the loop drains it must be able to sleep all the same.
        epoll::add(
            &bed,
            stop.as_fd(),
            epoll::EventData::new_u64(1),
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        )?;
        Ok(bed)
    }

    fn sleep(&self, bed: &OwnedFd, now: Nanos, own: Option<Nanos>, stopping: bool) -> std::io::Result<()> {
        let faces = self.faces.iter().filter_map(|face| face.next_deadline()).min();
        let until =
            [own, faces, self.device.next_deadline(now, self.clock.wall())].into_iter().flatten().min();
        let span = match until {
            None => None,
            Some(until) if until <= now => return Ok(()),
            // Rounded up to whole milliseconds: waking early would only mean sleeping again.
            Some(until) => Some(timespec(until.since(now))),
        };
        tracing::trace!(?until, stopping, "core sleeps");
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 8];
        match epoll::wait(bed.as_fd(), &mut events, span.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn publish(&self) -> bool {
        let mut numbers = FaceNumbers::default();
        for face in &self.faces {
            face.count(&mut numbers);
        }
        numbers.trace = self.device.trace();
        self.board.publish(&self.device.stats(), numbers)
    }
}

fn timespec(span: Nanos) -> rustix::time::Timespec {
    let millis = span.0.div_ceil(1_000_000);
    rustix::time::Timespec {
        // A sleep of more than a day ends early, which costs nothing.
        tv_sec: i64::try_from(millis / 1_000).unwrap_or(86_400).min(86_400),
        tv_nsec: i64::try_from(millis % 1_000).unwrap_or(0) * 1_000_000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_host::clock::UnixMillis;
    use headwater_ssd::engine::DeviceStats;
    use std::cell::Cell;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A device that does nothing, for the loop's own sake.
    #[derive(Default)]
    struct Quiet {
        polls: AtomicU64,
        deadline: Cell<Option<Nanos>>,
    }

    impl CoreWork for Quiet {
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

    /// Echoes bytes; drained when it was told to drain and has answered everything.
    struct Echo {
        stream: UnixStream,
        draining: bool,
    }

    impl Face<Quiet> for Echo {
        fn poll(&mut self, _device: &mut Quiet, _now: Nanos, _wall: UnixMillis) -> bool {
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
        fn count(&self, into: &mut FaceNumbers) {
            into.connections += 1;
        }
    }

    #[test]
    fn a_sleeping_loop_wakes_for_a_face_and_for_the_stop() {
        let (mut client, server) = UnixStream::pair().unwrap();
        server.set_nonblocking(true).unwrap();
        let (stop, mut handle) = Stop::by_hand().unwrap();
        let board = Board::default();
        let mut device = Quiet::default();
        std::thread::scope(|scope| {
            let running = scope.spawn(|| {
                let mut core = CoreLoop {
                    device: &mut device,
                    faces: vec![Box::new(Echo { stream: server, draining: false })],
                    clock: Clock::start(),
                    spin: Nanos::ZERO,
                    board: &board,
                    attention: Attention::default(),
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
            handle.ask();
            assert_eq!(running.join().unwrap(), Ended::Drained);
        });
        assert_eq!(board.health(), Health::Draining);
        assert_eq!(board.snapshot().faces.connections, 1);
    }

    #[test]
    fn an_idle_loop_sleeps_until_its_deadline_instead_of_polling() {
        let (stop, mut handle) = Stop::by_hand().unwrap();
        let board = Board::default();
        let mut device = Quiet::default();
        device.deadline.set(Some(Nanos::from_millis(50)));
        let polls = std::thread::scope(|scope| {
            let running = scope.spawn(|| {
                let mut core = CoreLoop {
                    device: &mut device,
                    faces: Vec::new(),
                    clock: Clock::start(),
                    spin: Nanos::ZERO,
                    board: &board,
                    attention: Attention::default(),
                };
                core.run(&stop).unwrap();
                drop(core);
                device.polls.load(Ordering::Relaxed)
            });
            Clock::sleep(Nanos::from_millis(300));
            handle.ask();
            running.join().unwrap()
        });
        // Start, publication, deadline, its publication, stop: a loop that polled would count millions.
        assert!(polls < 20, "{polls} polls in 300 ms of idleness");
        assert_eq!(device.deadline.get(), None, "the deadline was met");
    }
}
