//! A thread that detects the end of lent queues, including idle ones.
//!
//! Input: the wake lines of lent queues. Output: unmapped doorbells and suspended leases. Invariant: soon after a wake
//! line hangs up, this process has no page of the controller mapped for its queue: a new daemon gets the controller
//! only when no process has it mapped.

use crate::error::IoError;
use headwater_host::registers::MappedRegisters;
use headwater_host::wake::WakeDescriptor;
use headwater_host::wake_line::{WakeEvent, WakeLine};
use headwater_nvme::driver::QueueLease;
use rustix::event::epoll;
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

/// The epoll key of the descriptor that stops the thread.
const STOP: u64 = 0;
/// Wake lines handled per call of `epoll_wait`.
const EVENTS_MAX: usize = 16;

/// The wake line, doorbells and lease of a lent queue.
#[derive(Debug)]
pub(in crate::attach) struct QueueLoan {
    line: WakeLine,
    registers: MappedRegisters,
    lease: QueueLease,
}

impl QueueLoan {
    pub(super) fn new(line: WakeLine, registers: MappedRegisters, lease: QueueLease) -> Self {
        Self { line, registers, lease }
    }

    /// Returns true if the wake line was found hung up and the reason is not yet resolved.
    pub(super) fn is_suspended(&self) -> bool {
        self.lease.is_suspended()
    }

    /// Ends the lease: the controller no longer accesses the queue.
    pub(super) fn end(&self) {
        self.lease.invalidate();
    }

    /// Fails the lease: the queue cannot be replaced.
    pub(super) fn fail(&self) {
        self.lease.mark_dead();
    }

    /// Unmaps the doorbells and suspends the lease if the daemon has closed its end. Returns true if it has.
    fn check_hang_up(&self) -> bool {
        if self.line.take() != WakeEvent::HungUp {
            return false;
        }
        // If unmapping fails for lack of memory they stay mapped, and the controller is free when this process ends.
        let _ = self.registers.detach();
        self.lease.suspend();
        true
    }
}

/// The watched queues by their number.
#[derive(Debug, Default)]
struct WatchedQueues {
    next: u64,
    queues: BTreeMap<u64, Weak<QueueLoan>>,
}

#[derive(Debug)]
struct WatcherState {
    epoll: OwnedFd,
    lines: Mutex<WatchedQueues>,
}

impl WatcherState {
    fn lines(&self) -> MutexGuard<'_, WatchedQueues> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Processes an event of a wake line.
    fn check_hang_up(&self, number: u64) {
        let found = self.lines().queues.get(&number).and_then(Weak::upgrade);
        if found.is_none_or(|borrowing| {
            borrowing.check_hang_up() && epoll::delete(&self.epoll, &borrowing.line).is_ok()
        }) {
            self.lines().queues.remove(&number);
        }
    }

    fn run(&self) {
        let mut room = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_MAX];
        loop {
            // An interrupted wait returns no events.
            let Ok((events, _)) = epoll::wait(&self.epoll, &mut room, None) else { continue };
            for event in events.iter() {
                match event.data.u64() {
                    STOP => return,
                    number => self.check_hang_up(number),
                }
            }
        }
    }
}

/// The handle of the thread, which ends when the handle is dropped.
#[derive(Debug)]
pub(in crate::attach) struct LoanWatcher {
    shared: Arc<WatcherState>,
    stop: WakeDescriptor,
    thread: Option<JoinHandle<()>>,
}

impl LoanWatcher {
    /// Starts the thread.
    pub(in crate::attach) fn start() -> Result<Self, IoError> {
        let failed = |error: std::io::Error| IoError::Device {
            reason: format!("cannot start the thread that watches lent queues: {error}"),
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
        let stop = WakeDescriptor::new()?;
        epoll::add(&epoll, &stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)
            .map_err(|errno| failed(errno.into()))?;
        let lines = WatchedQueues { next: STOP + 1, queues: BTreeMap::new() };
        let shared = Arc::new(WatcherState { epoll, lines: Mutex::new(lines) });
        let thread_shared = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("lent-queues".to_owned());
        let thread = thread.spawn(move || thread_shared.run()).map_err(failed)?;
        Ok(Self { shared, stop, thread: Some(thread) })
    }

    /// Watches the wake line of a queue until the queue is dropped.
    pub(in crate::attach) fn add(&self, borrowing: &Arc<QueueLoan>) -> Result<(), IoError> {
        let mut lines = self.shared.lines();
        lines.queues.retain(|_, queue| queue.strong_count() > 0);
        let number = lines.next;
        lines.next += 1;
        lines.queues.insert(number, Arc::downgrade(borrowing));
        let data = epoll::EventData::new_u64(number);
        epoll::add(&self.shared.epoll, &borrowing.line, data, epoll::EventFlags::IN).map_err(|errno| {
            IoError::Device { reason: format!("cannot watch the wake line of a lent queue: {errno}") }
        })
    }
}

impl Drop for LoanWatcher {
    fn drop(&mut self) {
        // A wake-up that cannot be sent is already pending.
        let _ = self.stop.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread is already reported by the panic hook.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_host::clock::{Clock, Nanos};
    use headwater_host::registers::DeviceRegisters as _;
    use headwater_host::ring_memory::HeapWords;
    use headwater_host::shared_memory::SharedMemory;
    use headwater_nvme::data_pointer::PageBytes;
    use headwater_nvme::driver::{
        DmaBlock, IoQueue, IoQueueState, LentMemory, LentTerms, QueueRules, SglUse,
    };
    use std::os::fd::AsFd as _;

    fn queue(registers: MappedRegisters) -> (IoQueue<HeapWords, MappedRegisters>, QueueLease) {
        let rules = QueueRules {
            page: PageBytes::MIN,
            sgl: SglUse::Never,
            transfer_bytes_max: 4_096,
            timeout: Nanos::from_millis(1_000),
        };
        let block = || DmaBlock { words: HeapWords::zeroed(512), address: 4_096 };
        let memory = LentMemory { submissions: block(), completions: block(), lists: block() };
        let terms = LentTerms { id: 1, depth: 3, doorbells: [8, 12], rules };
        IoQueue::borrowed(&terms, memory, registers, Nanos::ZERO).unwrap()
    }

    #[test]
    fn a_hung_up_wake_line_unmaps_the_doorbells_of_its_own_queue_only() {
        let (_, file) = SharedMemory::memfd(4_096).unwrap();
        let page = || MappedRegisters::map(file.as_fd(), 0, 4_096).unwrap();
        let watch = LoanWatcher::start().unwrap();
        let mut borrowed: Vec<_> = (0..3)
            .map(|_| {
                let (ours, theirs) = WakeLine::pair().unwrap();
                let registers = page();
                let (queue, lease) = queue(registers.clone());
                let borrowing = Arc::new(QueueLoan::new(theirs, registers, lease));
                watch.add(&borrowing).unwrap();
                (ours, queue, borrowing)
            })
            .collect();
        borrowed[0].0.wake().unwrap();
        let (line, queue, borrowing) = borrowed.remove(1);
        drop(line);
        while !borrowing.is_suspended() {
            Clock::sleep(Nanos::from_micros(100));
        }
        assert_eq!(queue.state(), IoQueueState::Waiting);
        borrowing.registers.store32(8, 7);
        assert_eq!(page().load32(8), 0, "the store does not reach the device");
        for (_, queue, borrowing) in &borrowed {
            assert!(!borrowing.is_suspended() && queue.state() == IoQueueState::Live);
            borrowing.registers.store32(8, 9);
            assert_eq!(page().load32(8), 9);
        }
    }
}
