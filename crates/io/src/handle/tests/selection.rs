//! Tests that the selector's choice is the queue that receives the entry.

use super::*;
use crate::backend::{Armed, Transport};
use crate::command::Command;
use crate::error::Rejected;
use crate::selector::{Choice, QueueLoad};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

/// A queue that records the entries it receives: queue number and first block.
#[derive(Debug)]
struct Witness {
    inner: Box<dyn Transport>,
    number: u32,
    seen: Arc<Mutex<Vec<(u32, u64)>>>,
}

impl Transport for Witness {
    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn submit(&mut self, command: Command, token: u64) -> Result<(), Rejected> {
        let lba = command.entry.nvm_start();
        self.inner.submit(command, token)?;
        self.seen.lock().unwrap().push((self.number, lba));
        Ok(())
    }

    fn ring(&mut self) -> Result<(), IoError> {
        self.inner.ring()
    }

    fn reap(&mut self) -> Result<Option<Answer>, IoError> {
        self.inner.reap()
    }

    fn sleep(&mut self, longest: Option<Nanos>) -> Result<(), IoError> {
        self.inner.sleep(longest)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }

    fn arm(&mut self) -> Result<Armed, IoError> {
        self.inner.arm()
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
        let time = Timepiece::at_zero();
        let mut model = model(&time, 65_536, Service::default());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let queues = rng.u32(1..5);
        let mut builder = Handle::builder(model.facts()).waiting_max(1_000).time(time.clone());
        for number in 0..queues {
            let inner = model.queue(rng.u32(1..9)).unwrap();
            builder = builder.queue(Queue::over(Box::new(Witness { inner, number, seen: seen.clone() })));
        }
        let answers = Arc::new(Mutex::new(BTreeMap::new()));
        let said = answers.clone();
        let mut choose = rng.fork();
        let selector = Selector::Function(Box::new(move |choice: &Choice<'_>| {
            let QueueLoad { name, .. } = choice.queues[choose.usize(..choice.queues.len())];
            said.lock().unwrap().insert(choice.offset / 512, name.0);
            name
        }));
        let mut handle = builder.selector(selector).build().unwrap();
        for token in 0..300 {
            if rng.u8(..20) == 0 {
                handle.set_scheduling(Scheduling::Priority { overtakes_max: rng.u32(..9) });
            }
            let request = match rng.u8(..3) {
                0 => Request::write_zeroes(token * 512, 512, Durable::Now),
                1 => Request::write(token * 512, model.region(512).unwrap(), Durable::Now),
                _ => Request::read(token * 512, model.region(512).unwrap()),
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
    let mut model = Model::new(ModelSettings::null(SIZE)).unwrap();
    let own = queue(&mut model, 4);
    let mut handle = Handle::builder(model.facts())
        .queue(own)
        .selector(Selector::Function(Box::new(|_| QueueName(9))))
        .build()
        .unwrap();
    let Err(refused) = handle.submit(Request::flush(), 0) else {
        panic!("a request to an unknown queue was accepted")
    };
    assert_eq!(refused.error, RequestError::NoSuchQueue { answer: 9, queues: 1 });
    assert_eq!(handle.unanswered(), 0);
}

#[test]
fn reads_apart_selector_gives_reads_their_own_queue() {
    let time = Timepiece::at_zero();
    let mut model = model(&time, 65_536, Service::default());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let mut witness = |number| {
        let inner = model.queue(4).unwrap();
        Queue::over(Box::new(Witness { inner, number, seen: seen.clone() }))
    };
    let (reads, others) = (QueueName(0), QueueName(1));
    let builder = Handle::builder(&crate::NamespaceFacts { size: SIZE / 512, ..witness_facts() });
    let mut handle = builder
        .queue(witness(0))
        .queue(witness(1))
        .selector(Selector::ReadsApart { reads, others })
        .time(time.clone())
        .build()
        .unwrap();
    handle.submit(Request::flush(), 0).unwrap();
    handle.submit(Request::read(512, model.region(512).unwrap()), 1).unwrap();
    handle.submit(Request::write_zeroes(1_024, 512, Durable::Now), 2).unwrap();
    drain(&mut handle);
    assert_eq!(*seen.lock().unwrap(), [(1, 0), (0, 1), (1, 2)]);
}

fn witness_facts() -> crate::NamespaceFacts {
    crate::NamespaceFacts { id: 1, block_bytes: 512, size: 0, writable: true, blocks: None }
}
