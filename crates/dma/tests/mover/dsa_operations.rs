//! Work queues that permit a part of the operations of their device.

use super::dsa::{Form, LONG, PlannedFault, SHORT, kind, mover, run_cell};
use super::{check_job, noise};
use bytes::Bytes;
use headwater_dma::mover::policy::{MoveOperation, PolicyConfig};
use headwater_dma::mover::{
    ChannelRefusal, DsaChannel, DsaConfig, JobEnd, MemoryPlace, MoveChannel, MoveDurability, MoveJob,
    MoveMemory, MoveStep, Mover, StepResult,
};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::copy::crc32c;
use headwater_host::dsa::{
    DsaOpcode, DsaOpcodeSet, FaultSource, NoFaults, PortalFault, PortalKind, SoftwarePortal,
};
use headwater_host::shared_memory::SharedMemory;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, mpsc};

/// Returns settings by which jobs go to channels alone.
pub(super) fn eager() -> PolicyConfig {
    PolicyConfig {
        threshold_bytes: [1; 4],
        part_min_bytes: 1,
        cpu_bytes_per_ns: 0.000_001,
        channel_bytes_per_ns: 1_000.0,
        channel_fixed_ns: 0.0,
        ..PolicyConfig::default()
    }
}

fn permitting(form: Form, opcodes: &[DsaOpcode]) -> PortalKind {
    PortalKind { opcodes: DsaOpcodeSet::of(opcodes), ..kind(form) }
}

/// A record of the operations that a device got.
#[derive(Clone, Default)]
struct SeenOpcodes(Arc<Mutex<BTreeSet<DsaOpcode>>>);

impl FaultSource for SeenOpcodes {
    fn fault(&mut self, _nth: u64, opcode: Option<DsaOpcode>) -> PortalFault {
        self.0.lock().unwrap().extend(opcode);
        PortalFault::None
    }
}

#[test]
fn a_device_gets_permitted_operations_alone_and_the_cpu_does_the_rest() {
    for form in [Form::Direct, Form::Batch] {
        let (mut rounds, mut not_permitted) = (0, 0);
        for seed in 0..300 {
            let mut random = fastrand::Rng::with_seed(seed ^ 0x0C0F);
            let permitted: Vec<DsaOpcode> = DsaOpcode::ALL.into_iter().filter(|_| random.bool()).collect();
            let seen = SeenOpcodes::default();
            let (mut mover, counters) = mover(permitting(form, &permitted), LONG, seen.clone());
            check_job(&mut mover, seed);
            let seen = seen.0.lock().unwrap();
            let is_permitted = seen.iter().all(|opcode| permitted.contains(opcode));
            assert!(is_permitted, "seed {seed}, {form:?}: of {permitted:?} the device got {seen:?}");
            let counters = counters.read();
            (rounds, not_permitted) = (rounds + counters.rounds, not_permitted + counters.not_permitted);
        }
        assert!(rounds > 0 && not_permitted > 0, "{form:?}: {rounds} rounds, {not_permitted} pieces");
    }
}

#[test]
fn a_job_without_a_permitted_operation_is_refused_as_it_was_given() {
    let kind = permitting(Form::Batch, &[DsaOpcode::MemoryMove]);
    let portal = SoftwarePortal::start(kind, NoFaults).unwrap();
    let mut channel = DsaChannel::software(portal, DsaConfig::default()).unwrap();
    let known = channel.traits().operations;
    // The channel does a dualcast by two copies.
    let expected = [MoveOperation::Copy, MoveOperation::Dualcast];
    for operation in MoveOperation::ALL {
        assert_eq!(known.contains(operation), expected.contains(&operation), "{operation:?}");
    }
    let mut job = MoveJob::new();
    let (source, target) = (job.add_memory(vec![1; 100]), job.add_memory(vec![2; 100]));
    let all = MemoryPlace::new(source, 0).range(100);
    job.add_step(MoveStep::Fill { to: all, value: 7 });
    job.add_step(MoveStep::Crc32c { of: all, seed: 0 });
    let refused = channel.submit(1, job, Nanos::ZERO).unwrap_err();
    assert_eq!(refused.reason, ChannelRefusal::NotPermitted);
    let mut job = refused.job;
    assert_eq!((job.steps().len(), job.results()), (2, &[][..]));
    // With a copy behind them the CPU does both where they are.
    job.add_step(MoveStep::Copy { from: all, to: MemoryPlace::new(target, 0) });
    channel.submit(2, job, Nanos::ZERO).unwrap();
    let ended = loop {
        match channel.poll(Nanos::ZERO) {
            Some(ended) => break ended,
            None => std::hint::spin_loop(),
        }
    };
    assert_eq!((ended.token, ended.end), (2, JobEnd::Done));
    let crc = StepResult::Crc32c(crc32c(0, &[7; 100]));
    assert_eq!(ended.job.results(), [StepResult::Done, crc, StepResult::Done]);
    let copied = ended.job.into_memories().into_iter().filter_map(MoveMemory::into_vec);
    assert!(copied.eq([vec![7; 100], vec![7; 100]]));
    let counters = channel.counters().read();
    assert_eq!((counters.rounds, counters.not_permitted, counters.unreachable), (1, 2, 0), "{counters:?}");
}

#[test]
fn part_that_its_queue_may_not_do_goes_to_another_one_which_gives_its_own_part_for_it() {
    const STEP_BYTES: usize = 4_096;
    let channel = |opcodes: DsaOpcodeSet| {
        let portal = SoftwarePortal::start(PortalKind { opcodes, ..kind(Form::Batch) }, NoFaults).unwrap();
        DsaChannel::software(portal, DsaConfig { full_retries: 3, patience: LONG }).unwrap()
    };
    for has_fills in [false, true] {
        let all = channel(DsaOpcodeSet::ALL);
        let restricted = channel(DsaOpcodeSet::of(&[DsaOpcode::MemoryMove, DsaOpcode::Batch]));
        let (all_counters, restricted_counters) = (all.counters(), restricted.counters());
        let channels: Vec<Box<dyn MoveChannel>> = vec![Box::new(all), Box::new(restricted)];
        let mut mover = Mover::with_channels(channels, eager(), Clock::start());
        mover.policy_mut().unwrap().freeze();
        let target = SharedMemory::anonymous(64 * STEP_BYTES).unwrap();
        let mut job = MoveJob::new();
        let from = job.add_memory(Bytes::from(vec![5; 64 * STEP_BYTES]));
        let to = job.add_memory(target.clone());
        for nth in 0..64 {
            let place = MemoryPlace::new(to, nth * STEP_BYTES);
            // The last steps are those of the last channel.
            job.add_step(if has_fills && nth >= 32 {
                MoveStep::Fill { to: place.range(STEP_BYTES), value: 9 }
            } else {
                let from = MemoryPlace::new(from, nth * STEP_BYTES).range(STEP_BYTES);
                MoveStep::Copy { from, to: place }
            });
        }
        mover.run(&mut job).unwrap();
        assert_eq!(job.results(), [StepResult::Done; 64]);
        let mut found = vec![0; 64 * STEP_BYTES];
        target.copy_in(0, &mut found).unwrap();
        let filled = if has_fills { 9 } else { 5 };
        let half = 32 * STEP_BYTES;
        assert!(
            found[..half].iter().all(|byte| *byte == 5) && found[half..].iter().all(|byte| *byte == filled)
        );
        let counters = mover.channel_counters();
        assert_eq!((counters.refused, counters.not_permitted), (0, u64::from(has_fills)), "{counters:?}");
        assert!(counters.channel_jobs > 0 && all_counters.read().rounds > 0, "{counters:?}");
        let restricted = restricted_counters.read();
        assert!(restricted.rounds > 0 && restricted.not_permitted == 0, "{restricted:?}");
    }
}

#[test]
fn step_that_a_queue_may_not_do_leaves_it_the_rest_of_its_part() {
    const STEPS: usize = 64;
    const STEP_BYTES: usize = 4_096;
    // The queue gets a run of copies at the end, or in front of what it may not do there.
    for (checked, channel_steps) in [(vec![20], 43), (vec![63], 63), (vec![20, 62, 63], 41)] {
        let permitted = permitting(Form::Batch, &[DsaOpcode::MemoryMove, DsaOpcode::Batch]);
        let (mut mover, counters) = mover(permitted, LONG, NoFaults);
        let content = noise(STEPS * STEP_BYTES, &mut fastrand::Rng::with_seed(channel_steps));
        let target = SharedMemory::anonymous(STEPS * STEP_BYTES).unwrap();
        let mut job = MoveJob::new();
        let from = job.add_memory(Bytes::from(content.clone()));
        let to = job.add_memory(target.clone());
        let (mut expected, mut results) = (content.clone(), Vec::new());
        for nth in 0..STEPS {
            let part = nth * STEP_BYTES..(nth + 1) * STEP_BYTES;
            let from = MemoryPlace::new(from, part.start).range(STEP_BYTES);
            if checked.contains(&nth) {
                job.add_step(MoveStep::Crc32c { of: from, seed: 0 });
                results.push(StepResult::Crc32c(crc32c(0, &content[part.clone()])));
                expected[part].fill(0);
            } else {
                job.add_step(MoveStep::Copy { from, to: MemoryPlace::new(to, part.start) });
                results.push(StepResult::Done);
            }
        }
        let steps = job.steps().to_vec();
        mover.run(&mut job).unwrap();
        assert_eq!((job.steps(), job.results()), (steps.as_slice(), results.as_slice()), "{checked:?}");
        let mut found = vec![0; STEPS * STEP_BYTES];
        target.copy_in(0, &mut found).unwrap();
        assert!(found == expected, "{checked:?}");
        let (moved, device) = (mover.channel_counters(), counters.read());
        assert_eq!((moved.channel_jobs, moved.not_permitted), (1, 1), "{checked:?}: {moved:?}");
        assert_eq!(moved.channel_bytes, channel_steps * STEP_BYTES as u64, "{checked:?}: {moved:?}");
        assert!(device.rounds > 0 && device.not_permitted == 0, "{checked:?}: {device:?}");
    }
}

#[test]
fn a_device_without_drains_is_stopped_when_work_is_lost() {
    let permitted: Vec<DsaOpcode> =
        DsaOpcode::ALL.into_iter().filter(|opcode| *opcode != DsaOpcode::Drain).collect();
    for form in [Form::Direct, Form::Batch] {
        let lost = PlannedFault::At { nth: 0, fault: PortalFault::Lost };
        let (mut mover, counters) = mover(permitting(form, &permitted), SHORT, lost);
        for cell in ["lost", "behind the stop"] {
            run_cell(&mut mover, 0, cell);
        }
        let counters = counters.read();
        assert_eq!((counters.drains, counters.stops), (0, 1), "{form:?}: {counters:?}");
    }
}

#[test]
fn merged_steps_return_as_they_were_given_though_the_device_faults_or_dies_within_them() {
    const STEPS: usize = 8;
    const STEP_BYTES: usize = 1_500;
    let page = |done| PortalFault::PageFault { done, is_write: true };
    let (status, lost, dies) = (PortalFault::Status(0x1A), PortalFault::Lost, PortalFault::Dies);
    let faults = [page(0), page(2_000), status, lost, PortalFault::Late, dies];
    for form in [Form::Direct, Form::Batch] {
        // Three operations do the merged step; the first descriptor of a batch is the batch.
        for (nth, fault) in (0..3_u64).flat_map(|nth| faults.map(|fault| (nth, fault))) {
            let cell = format!("{form:?} {nth} {fault:?}");
            let (mut mover, _) = mover(kind(form), SHORT, PlannedFault::At { nth, fault });
            let content = noise(STEPS * STEP_BYTES, &mut fastrand::Rng::with_seed(nth));
            let mut job = MoveJob::new();
            let from = job.add_memory(Bytes::from(content.clone()));
            let to = job.add_memory(Vec::with_capacity(content.len()));
            for step in 0..STEPS {
                let from = MemoryPlace::new(from, step * STEP_BYTES).range(STEP_BYTES);
                job.add_step(MoveStep::Copy { from, to: MemoryPlace::new(to, step * STEP_BYTES) });
            }
            let given = job.steps().to_vec();
            let ticket = mover.start(job).unwrap();
            let done = mover.wait(&ticket, LONG).unwrap();
            assert_eq!(done.steps(), given, "{cell}");
            assert_eq!(done.results(), [StepResult::Done; STEPS], "{cell}");
            assert!(done.into_memories().remove(to).into_vec().unwrap() == content, "{cell}");
            assert_eq!(mover.channel_counters().merged_steps, STEPS as u64 - 1, "{cell}");
        }
    }
}

#[test]
fn persistent_job_whose_readback_meets_an_absent_page_leaves_the_channel_in_use() {
    const BYTES: usize = 9_000;
    const READBACK_FAULT: u8 = 0x1F;
    for form in [Form::Direct, Form::Batch] {
        // The first descriptor of a batch is the batch.
        let nth = u64::from(form == Form::Batch);
        let fault = PortalFault::Status(READBACK_FAULT);
        let (mut mover, counters) = mover(kind(form), LONG, PlannedFault::At { nth, fault });
        let content = noise(BYTES, &mut fastrand::Rng::with_seed(nth));
        for rounds in 1..=2 {
            let mut job = MoveJob::new().with_durability(MoveDurability::Persistent);
            let from = job.add_memory(Bytes::from(content.clone()));
            let to = job.add_memory(vec![0; BYTES]);
            let from = MemoryPlace::new(from, 0).range(BYTES);
            job.add_step(MoveStep::Copy { from, to: MemoryPlace::new(to, 0) });
            let ticket = mover.start(job).unwrap();
            let done = mover.wait(&ticket, LONG).unwrap();
            assert!(done.promise().is_some(), "{form:?}");
            assert!(done.into_memories().remove(to).into_vec().unwrap() == content, "{form:?}");
            let counters = counters.read();
            assert_eq!((counters.repeated, counters.abandoned), (1, 0), "{form:?}: {counters:?}");
            assert_eq!(counters.rounds, rounds, "{form:?}: {counters:?}");
        }
        assert_eq!(mover.channel_counters().refused, 0, "{form:?}");
    }
}

/// A device that hangs in front of each descriptor until the other end is dropped.
struct HangingPortal(mpsc::Receiver<()>);

impl FaultSource for HangingPortal {
    fn fault(&mut self, _nth: u64, _opcode: Option<DsaOpcode>) -> PortalFault {
        let _ = self.0.recv();
        PortalFault::None
    }
}

#[test]
fn a_device_that_hangs_is_stopped_while_its_owner_goes_on() {
    let permitted: Vec<DsaOpcode> =
        DsaOpcode::ALL.into_iter().filter(|opcode| *opcode != DsaOpcode::Drain).collect();
    let (sender, hang) = mpsc::channel();
    let (mut mover, counters) = mover(permitting(Form::Direct, &permitted), SHORT, HangingPortal(hang));
    // Dropped before the mover, whose end waits for the device.
    let release = sender;
    let fill = |value: u8| {
        let mut job = MoveJob::new();
        // One descriptor: the portal takes no second one while it hangs.
        let memory = job.add_memory(vec![0; 4_000]);
        job.add_step(MoveStep::Fill { to: MemoryPlace::new(memory, 0).range(4_000), value });
        job
    };
    let hanging = mover.start(fill(3)).unwrap();
    while counters.read().stops == 0 {
        assert!(mover.poll(&hanging).is_none());
    }
    let other = mover.start(fill(4)).unwrap();
    let filled = |job: MoveJob| job.into_memories().remove(0).into_vec().unwrap();
    assert_eq!(filled(mover.poll(&other).unwrap()), [4; 4_000]);
    assert!(mover.poll(&hanging).is_none(), "the device may still write");
    drop(release);
    assert_eq!(filled(mover.wait(&hanging, LONG).unwrap()), [3; 4_000]);
    let counters = counters.read();
    assert_eq!((counters.drains, counters.stops), (0, 1), "{counters:?}");
}
