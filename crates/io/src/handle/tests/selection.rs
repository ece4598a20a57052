//! Tests that the selector's choice is the queue that receives the entry.

use super::*;
use crate::backend::{ArmResult, QueueTransport};
use crate::command::Command;
use crate::error::RejectedCommand;
use crate::error::RequestError;
use crate::selector::{QueueLoad, SelectionContext};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

/// A queue that records the entries it receives: queue number and first block.
#[derive(Debug)]
struct RecordingQueue {
    inner: Box<dyn QueueTransport>,
    number: u32,
    seen: Arc<Mutex<Vec<(u32, u64)>>>,
}

impl QueueTransport for RecordingQueue {
    fn limits(&self) -> IoLimits {
        self.inner.limits()
    }

    fn submit(&mut self, command: Command, token: u64) -> Result<(), RejectedCommand> {
        let lba = command.entry.nvm_start();
        self.inner.submit(command, token)?;
        self.seen.lock().unwrap().push((self.number, lba));
        Ok(())
    }

    fn ring(&mut self) -> Result<(), IoError> {
        self.inner.ring()
    }

    fn reap(&mut self) -> Result<Option<CompletedCommand>, IoError> {
        self.inner.reap()
    }

    fn sleep(&mut self, longest: Option<Nanos>) -> Result<(), IoError> {
        self.inner.sleep(longest)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }

    fn arm(&mut self) -> Result<ArmResult, IoError> {
        self.inner.arm()
    }

    fn visit_tokens(&mut self, visit: &mut dyn FnMut(&mut u64)) {
        self.inner.visit_tokens(visit);
    }

    fn in_flight(&self) -> u32 {
        self.inner.in_flight()
    }

    fn depth(&self) -> u32 {
        self.inner.depth()
    }
}

/// Covers B1: the selector was called, but the first queue was used regardless.
#[test]
fn b1_entry_goes_to_the_queue_that_the_selector_names() {
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let time = IoClock::virtual_at_zero();
        let mut model = timed_model(&time, 65_536, ServiceTimes::default());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let queues = rng.u32(1..5);
        let mut builder = Handle::builder(model.facts()).waiting_max(1_000).clock(time.clone());
        for number in 0..queues {
            let inner = model.queue(rng.u32(1..9)).unwrap();
            builder =
                builder.queue(Queue::over(Box::new(RecordingQueue { inner, number, seen: seen.clone() })));
        }
        let answers = Arc::new(Mutex::new(BTreeMap::new()));
        let said = answers.clone();
        let mut choose = rng.fork();
        let selector = QueueSelector::Function(Box::new(move |choice: &SelectionContext<'_>| {
            let QueueLoad { name, .. } = choice.queues[choose.usize(..choice.queues.len())];
            said.lock().unwrap().insert(choice.offset / 512, name.0);
            name
        }));
        let mut handle = builder.selector(selector).build().unwrap();
        for token in 0..300 {
            if rng.u8(..20) == 0 {
                handle.set_scheduling(SchedulingPolicy::Priority { overtakes_max: rng.u32(..9) });
            }
            let request = match rng.u8(..3) {
                0 => IoRequest::write_zeroes(token * 512, 512, WriteDurability::Immediate),
                1 => IoRequest::write(token * 512, model.region(512).unwrap(), WriteDurability::Immediate),
                _ => IoRequest::read(token * 512, model.region(512).unwrap()),
            };
            handle.submit(request, token).unwrap();
            if rng.u8(..4) == 0 {
                handle.poll().unwrap();
            }
        }
        while handle.wait(None).unwrap().is_some() {}
        let (seen, answers) = (seen.lock().unwrap(), answers.lock().unwrap());
        assert_eq!(seen.len(), 300, "seed {seed}");
        for (number, lba) in seen.iter() {
            assert_eq!(answers[lba], *number, "seed {seed}, block {lba}");
        }
    }
}

#[test]
fn unknown_queue_from_the_selector_is_an_error_and_submits_nothing() {
    let mut model = ModelDevice::new(ModelSettings::null_device(SIZE)).unwrap();
    let own = model_queue(&mut model, 4);
    let mut handle = Handle::builder(model.facts())
        .queue(own)
        .selector(QueueSelector::Function(Box::new(|_| QueueName(9))))
        .build()
        .unwrap();
    let Err(refused) = handle.submit(IoRequest::flush(), 0) else {
        panic!("a request to an unknown queue was accepted")
    };
    assert_eq!(refused.error, RequestError::NoSuchQueue { name: 9, queues: 1 });
    assert_eq!(handle.outstanding(), 0);
}

#[test]
fn reads_apart_selector_gives_reads_their_own_queue() {
    let time = IoClock::virtual_at_zero();
    let mut model = timed_model(&time, 65_536, ServiceTimes::default());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let mut witness = |number| {
        let inner = model.queue(4).unwrap();
        Queue::over(Box::new(RecordingQueue { inner, number, seen: seen.clone() }))
    };
    let (reads, rest) = (QueueName(0), QueueName(1));
    let builder = Handle::builder(&ClientNamespace { size: SIZE / 512, ..recording_namespace() });
    let mut handle = builder
        .queue(witness(0))
        .queue(witness(1))
        .selector(QueueSelector::SeparateReads { reads, rest })
        .clock(time.clone())
        .build()
        .unwrap();
    handle.submit(IoRequest::flush(), 0).unwrap();
    handle.submit(IoRequest::read(512, model.region(512).unwrap()), 1).unwrap();
    handle.submit(IoRequest::write_zeroes(1_024, 512, WriteDurability::Immediate), 2).unwrap();
    drain(&mut handle);
    assert_eq!(*seen.lock().unwrap(), [(1, 0), (0, 1), (1, 2)]);
}

fn recording_namespace() -> ClientNamespace {
    ClientNamespace {
        id: 1,
        block_bytes: 512,
        size: 0,
        writable: true,
        blocks: None,
        retrieve_options: false,
    }
}
