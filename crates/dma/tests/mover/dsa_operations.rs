//! Work queues that permit a part of the operations of their device.

use super::check_job;
use super::dsa::{Form, LONG, PlannedFault, SHORT, kind, mover, run_cell};
use headwater_dma::mover::policy::MoveOperation;
use headwater_dma::mover::{
    ChannelRefusal, DsaChannel, DsaConfig, JobEnd, MemoryPlace, MoveChannel as _, MoveJob, MoveMemory,
    MoveStep, StepResult,
};
use headwater_host::clock::Nanos;
use headwater_host::copy::crc32c;
use headwater_host::dsa::{
    DsaOpcode, DsaOpcodeSet, FaultSource, NoFaults, PortalFault, PortalKind, SoftwarePortal,
};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

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
    for operation in MoveOperation::ALL {
        assert_eq!(known.contains(operation), operation == MoveOperation::Copy, "{operation:?}");
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
