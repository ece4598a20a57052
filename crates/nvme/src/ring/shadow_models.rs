//! Loom models of shadow doorbells: every interleaving of a guest that rings as Linux does and a controller that
//! sleeps.
//!
//! Input: none. Output: proof, within loom's bounds, that the controller finds every command and every freed slot, by a
//! register write or by its own check. A lost wake-up shows as a deadlock, which loom reports.

use crate::ring::completion::CompletionProducer;
use crate::ring::host_doorbell::DoorbellCell;
use crate::ring::layout::QueueSlots;
use crate::ring::submission::SubmissionConsumer;
use crate::spec::command::SubmissionEntry;
use crate::spec::completion::{CompletionEntry, PhaseTag};
use headwater_host::ring_memory::{HeapWords, RingMemory};
use headwater_host::sync::{Condvar, ModelBuilder, Mutex, thread};
use std::sync::Arc;
use zerocopy::little_endian::U16;

/// Context switches that loom may force at arbitrary points, beside those at which a thread waits.
const PREEMPTIONS: usize = 3;

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = ModelBuilder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

/// A model of a doorbell register: a write ends the controller's sleep, and is kept until it does.
#[derive(Default)]
struct ModelRegister {
    written: Mutex<bool>,
    changed: Condvar,
}

impl ModelRegister {
    fn write(&self) {
        *self.written.lock().unwrap() = true;
        self.changed.notify_one();
    }

    fn wait(&self) {
        let mut written = self.written.lock().unwrap();
        while !*written {
            written = self.changed.wait(written).unwrap();
        }
        *written = false;
    }
}

/// One doorbell of a guest, with its pages.
struct ShadowDoorbell {
    doorbells: HeapWords,
    events: HeapWords,
    register: Arc<ModelRegister>,
    old: u16,
}

impl ShadowDoorbell {
    /// Creates a doorbell and the controller's cell of it.
    fn new() -> (Self, DoorbellCell<HeapWords>, Arc<ModelRegister>) {
        let (doorbells, events) = (HeapWords::zeroed(1), HeapWords::zeroed(1));
        let register = Arc::new(ModelRegister::default());
        let cell = DoorbellCell { doorbells: doorbells.clone(), events: Some(events.clone()), cell: 0 };
        (Self { doorbells, events, register: Arc::clone(&register), old: 0 }, cell, register)
    }

    /// Rings as Linux does: store, fence, compare 16 bits, write the register if the event was passed.
    fn ring(&mut self, new: u16) {
        self.doorbells.store_cell_release(0, u32::from(new));
        self.doorbells.fence();
        let [low, high, ..] = self.events.load_cell_acquire(0).to_le_bytes();
        let event = u16::from_le_bytes([low, high]);
        if new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(self.old) {
            self.register.write();
        }
        self.old = new;
    }
}

fn write_command(memory: &HeapWords, position: u16, id: u16) {
    let entry = SubmissionEntry { command_id: U16::new(id), ..SubmissionEntry::default() };
    for (word, value) in (usize::from(position) * 8..).zip(entry.to_words()) {
        memory.store_relaxed(word, value);
    }
}

#[test]
fn loom_sleeping_controller_is_woken_by_a_guest_that_compares_events() {
    check(|| {
        const SLOTS: u16 = 3;
        let memory = HeapWords::zeroed(usize::from(SLOTS) * 8);
        let (mut doorbell, cell, register) = ShadowDoorbell::new();
        let slots = QueueSlots::new(u32::from(SLOTS)).unwrap();
        let mut fetcher = SubmissionConsumer::over(memory.clone(), slots);
        fetcher.set_doorbell_cell(cell);
        let controller = thread::spawn(move || {
            for id in 0..2 {
                while !fetcher.has_work() {
                    fetcher.arm();
                    if !fetcher.has_work() {
                        register.wait();
                    }
                    fetcher.disarm();
                }
                let entry = fetcher.fetch().unwrap().expect("there is work");
                assert_eq!(entry.command_id.get(), id);
            }
        });
        for id in 0..2 {
            write_command(&memory, id, id);
            doorbell.ring(id + 1);
        }
        controller.join().unwrap();
    });
}

/// Covers a guest whose tail wraps at the end of the queue, where positions fall and the 16-bit distance is large.
#[test]
fn loom_sleeping_controller_is_woken_across_the_end_of_the_queue() {
    check(|| {
        const SLOTS: u16 = 2;
        let memory = HeapWords::zeroed(usize::from(SLOTS) * 8);
        let (mut doorbell, cell, register) = ShadowDoorbell::new();
        let mut fetcher =
            SubmissionConsumer::over(memory.clone(), QueueSlots::new(u32::from(SLOTS)).unwrap());
        fetcher.set_doorbell_cell(cell);
        let to_guest = Arc::new(ModelRegister::default());
        let fetched = Arc::clone(&to_guest);
        let controller = thread::spawn(move || {
            for id in 0..2 {
                while !fetcher.has_work() {
                    fetcher.arm();
                    if !fetcher.has_work() {
                        register.wait();
                    }
                    fetcher.disarm();
                }
                let entry = fetcher.fetch().unwrap().expect("there is work");
                assert_eq!(entry.command_id.get(), id);
                fetched.write();
            }
        });
        for id in 0..2 {
            write_command(&memory, id, id);
            doorbell.ring((id + 1) % SLOTS);
            to_guest.wait();
        }
        controller.join().unwrap();
    });
}

#[test]
fn loom_controller_that_waits_for_slots_is_woken_when_they_are_freed() {
    check(|| {
        const SLOTS: u16 = 2;
        let memory = HeapWords::zeroed(usize::from(SLOTS) * 2);
        let (mut doorbell, cell, register) = ShadowDoorbell::new();
        let mut poster = CompletionProducer::over(memory.clone(), QueueSlots::new(u32::from(SLOTS)).unwrap());
        poster.set_doorbell_cell(cell);
        let controller = thread::spawn(move || {
            for id in 0..3_u16 {
                let answer = CompletionEntry { command_id: U16::new(id), ..CompletionEntry::default() };
                // The queue holds one entry: the next waits until the guest has freed the slot.
                while poster.post(answer).is_err() {
                    poster.arm();
                    if !poster.head_moved() {
                        register.wait();
                    }
                    poster.disarm();
                    poster.refresh().unwrap();
                }
            }
        });
        let mut phase = PhaseTag::One;
        for id in 0..3_u16 {
            let head = id % SLOTS;
            let word = usize::from(head) * 2;
            let second = loop {
                let second = memory.load_acquire(word + 1);
                if PhaseTag::of_word(second) == phase {
                    break second;
                }
                thread::yield_now();
            };
            let entry = CompletionEntry::from_words([memory.load_relaxed(word), second]);
            assert_eq!(entry.command_id.get(), id);
            if head + 1 == SLOTS {
                phase = phase.flipped();
            }
            doorbell.ring((head + 1) % SLOTS);
        }
        controller.join().unwrap();
    });
}
