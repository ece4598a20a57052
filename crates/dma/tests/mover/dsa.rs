//! The fault matrix of the DSA channel: every fault of a software portal, every operation, alone and in a batch, against a byte
//! loop.

use super::dsa_operations::eager;
use super::{check_job, crc_of, noise};
use bytes::Bytes;
use headwater_dma::mover::{
    DsaChannel, DsaConfig, DsaCountersReader, MemoryPlace, MoveDurability, MoveJob, MoveMemory, MoveStep,
    Mover, StepResult,
};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::dsa::{
    DsaOpcode, DsaOpcodeSet, DsaStatus, FaultSource, NoFaults, PortalFault, PortalKind, SoftwarePortal,
    WorkQueueMode,
};
use headwater_host::lent_bytes::LentBytes;
use headwater_host::shared_memory::SharedMemory;

/// Steps of a job of the matrix.
const STEPS: usize = 4;
/// Bytes of a step: three operations of it, the last one short.
const BYTES: usize = 2 * TRANSFER_BYTES + 700;
const TRANSFER_BYTES: usize = 4_096;

/// The patience where nothing is lost, so that no test depends on the time of the machine; and where the loss is the point.
pub(super) const LONG: Nanos = Nanos::from_millis(600_000);
pub(super) const SHORT: Nanos = Nanos::from_micros(300);

/// The form in which descriptors are submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Direct,
    Batch,
}

pub(super) fn kind(form: Form) -> PortalKind {
    PortalKind {
        mode: WorkQueueMode::Dedicated,
        size: 8,
        transfer_bytes_max: 4_096,
        batch_max: if form == Form::Batch { 16 } else { 1 },
        opcodes: DsaOpcodeSet::ALL,
    }
}

/// Returns a mover that gives every job to one DSA channel.
pub(super) fn mover(
    kind: PortalKind,
    patience: Nanos,
    faults: impl FaultSource,
) -> (Mover, DsaCountersReader) {
    let portal = SoftwarePortal::start(kind, faults).unwrap();
    let config = DsaConfig { full_retries: 3, patience };
    let channel = DsaChannel::software(portal, config).unwrap();
    let counters = channel.counters();
    let mut mover = Mover::with_channels(vec![Box::new(channel)], eager(), Clock::start());
    mover.policy_mut().unwrap().freeze();
    (mover, counters)
}

/// One fault, at one descriptor, or at each submission.
#[derive(Clone, Copy, Debug)]
pub(super) enum PlannedFault {
    At { nth: u64, fault: PortalFault },
    Full { submissions: u64 },
}

impl FaultSource for PlannedFault {
    fn refuses(&mut self, nth: u64) -> bool {
        matches!(self, Self::Full { submissions } if nth < *submissions)
    }

    fn fault(&mut self, nth: u64, _opcode: Option<DsaOpcode>) -> PortalFault {
        match self {
            Self::At { nth: at, fault } if *at == nth => *fault,
            _ => PortalFault::None,
        }
    }
}

/// The seven operations.
const OPERATIONS: [&str; 7] = ["copy", "copy and crc", "dualcast", "fill", "compare", "crc", "flush"];

/// A job of the matrix: steps of one operation over private and shared memories, and the bytes and results of a byte loop.
pub(super) struct MatrixJob {
    job: MoveJob,
    shared: SharedMemory,
    expected: Vec<Vec<u8>>,
    results: Vec<StepResult>,
}

impl MatrixJob {
    /// Returns the job of an operation. Memory 0 is the source, `1 + 2 n` and `2 + 2 n` are the targets of step n; the targets of
    /// the last step lie in shared memory.
    fn new(operation: usize) -> Self {
        let mut random = fastrand::Rng::with_seed(operation as u64);
        let source = noise(BYTES, &mut random);
        let shared = SharedMemory::anonymous(4 * 16_384).unwrap();
        let mut job = MoveJob::new();
        job.add_memory(Bytes::from(source.clone()));
        let (mut expected, mut results) = (vec![source.clone()], Vec::new());
        for step in 0..STEPS {
            let (first, second) = (1 + 2 * step, 2 + 2 * step);
            for nth in [first, second] {
                // A comparison finds no difference, one in the first operation, and one in the last.
                let mut content = if OPERATIONS[operation] == "compare" {
                    source.clone()
                } else {
                    noise(BYTES, &mut random)
                };
                if step > 0 && OPERATIONS[operation] == "compare" {
                    content[[1_000, 5_000, BYTES - 1][step - 1]] ^= 1;
                }
                if step + 1 == STEPS {
                    let at = if nth == first { 0 } else { 2 * 16_384 + usize::from(operation != 2) };
                    shared.copy_out(at, &content).unwrap();
                } else if nth == first {
                    job.add_memory(content.clone());
                } else {
                    job.add_memory(LentBytes::from(content.clone().leak()));
                }
                expected.push(content);
            }
        }
        let region = job.add_memory(shared.clone());
        for step in 0..STEPS {
            let places = if step + 1 == STEPS {
                [0, 2 * 16_384 + usize::from(operation != 2)].map(|at| MemoryPlace::new(region, at))
            } else {
                [1, 2].map(|nth| MemoryPlace::new(nth + 2 * step, 0))
            };
            let (described, result) = describe(operation, step, places, &source, &mut expected);
            job.add_step(described);
            results.push(result);
        }
        Self { job, shared, expected, results }
    }

    /// Returns the bytes of the memories of a job that has ended.
    fn found(&self, job: MoveJob) -> Vec<Vec<u8>> {
        let mut found: Vec<Vec<u8>> = job
            .into_memories()
            .into_iter()
            .filter_map(|memory| match memory {
                MoveMemory::Vec(bytes) => Some(bytes),
                MoveMemory::Bytes(bytes) => Some(bytes.to_vec()),
                MoveMemory::Lent(lent) => Some(lent.as_bytes().to_vec()),
                _ => None,
            })
            .collect();
        for at in [0, 2 * 16_384] {
            let mut bytes = vec![0; BYTES + 1];
            self.shared.copy_in(at, &mut bytes).unwrap();
            found.push(bytes);
        }
        found
    }
}

/// Returns a step, does it on the expected bytes, and returns its result.
fn describe(
    operation: usize,
    step: usize,
    to: [MemoryPlace; 2],
    source: &[u8],
    expected: &mut [Vec<u8>],
) -> (MoveStep, StepResult) {
    let from = MemoryPlace::new(0, 0).range(BYTES);
    let (first, second) = (1 + 2 * step, 2 + 2 * step);
    let seed = 0x1234_5678 ^ u32::try_from(step).unwrap();
    match OPERATIONS[operation] {
        "copy" => {
            expected[first].copy_from_slice(source);
            (MoveStep::Copy { from, to: to[0] }, StepResult::Done)
        }
        "copy and crc" => {
            expected[second].copy_from_slice(source);
            (MoveStep::CopyCrc32c { from, to: to[1], seed }, StepResult::Crc32c(crc_of(seed, source)))
        }
        "dualcast" => {
            expected[first].copy_from_slice(source);
            expected[second].copy_from_slice(source);
            (MoveStep::Dualcast { from, to }, StepResult::Done)
        }
        "fill" => {
            expected[first].fill(0xC3);
            (MoveStep::Fill { to: to[0].range(BYTES), value: 0xC3 }, StepResult::Done)
        }
        "compare" => {
            let at = source.iter().zip(&expected[first]).position(|(a, b)| a != b);
            let result = at.map_or(StepResult::Equal, StepResult::DiffersAt);
            (MoveStep::Compare { range: from, with: to[0] }, result)
        }
        "crc" => {
            let crc = crc_of(seed, &expected[first]);
            (MoveStep::Crc32c { of: to[0].range(BYTES), seed }, StepResult::Crc32c(crc))
        }
        _ => (MoveStep::Flush { of: to[0].range(BYTES) }, StepResult::Done),
    }
}

/// Runs a job of the matrix on a mover, and compares it with the byte loop.
pub(super) fn run_cell(mover: &mut Mover, operation: usize, cell: &str) -> MatrixJob {
    let mut matrix = MatrixJob::new(operation);
    let job = std::mem::take(&mut matrix.job);
    // A job that is started goes to the channel as a whole, and does not make it rest if it is slow.
    let ticket = mover.start(job).unwrap();
    let job = mover.wait(&ticket, LONG).unwrap();
    assert_eq!(job.results(), matrix.results, "{cell}");
    let found = matrix.found(job);
    for (nth, (found, expected)) in found.iter().zip(&matrix.expected).enumerate() {
        let skip = found.len() - expected.len();
        let is_shifted = skip > 0 && nth + 1 == matrix.expected.len() && operation != 2;
        let found = if is_shifted { &found[1..] } else { &found[..expected.len()] };
        assert!(found == expected, "{cell}: memory {nth}");
    }
    matrix
}

#[test]
fn every_operation_does_what_a_byte_loop_does_without_faults() {
    for form in [Form::Direct, Form::Batch] {
        let (mut mover, counters) = mover(kind(form), LONG, NoFaults);
        for (operation, name) in OPERATIONS.iter().enumerate() {
            run_cell(&mut mover, operation, &format!("{form:?} {}", name));
        }
        let counters = counters.read();
        assert!(counters.rounds >= OPERATIONS.len() as u64, "{counters:?}");
        assert_eq!((counters.abandoned, counters.repeated, counters.no_record), (0, 0, 0), "{counters:?}");
        assert_eq!(mover.channel_counters().refused, 0);
    }
}

#[test]
fn page_faults_are_finished_by_the_cpu_from_where_the_device_stopped() {
    for form in [Form::Direct, Form::Batch] {
        for (operation, name) in OPERATIONS.iter().enumerate() {
            let is_dualcast = *name == "dualcast";
            // The targets of the first dualcasts are not aligned alike: they are two copies. Descriptor 20 is a real one.
            for nth in if is_dualcast { [0, 1, 3, 20] } else { [0, 1, 3, 7] } {
                for done in [0, 1, 1_000, u32::MAX] {
                    let fault = PortalFault::PageFault { done, is_write: done == 1 };
                    let cell = format!("{form:?} {} {nth} {fault:?}", name);
                    let (mut mover, counters) = mover(kind(form), LONG, PlannedFault::At { nth, fault });
                    run_cell(&mut mover, operation, &cell);
                    let counters = counters.read();
                    let is_finished = counters.page_faults == 1 && counters.finished_bytes > 0;
                    let is_repeated = is_dualcast && nth < 20 && counters.repeated == 1;
                    // Descriptor 0 of a batch is the batch: a fault on its list leaves no record. A comparison can have ended.
                    // Targets that the allocator happened to align alike need fewer descriptors than 20.
                    let is_short = is_dualcast && nth == 20 && counters.page_faults == 0;
                    let is_other = form == Form::Batch && nth == 0 || *name == "compare" || is_short;
                    assert!(is_finished || is_repeated || is_other, "{cell}: {counters:?}");
                    assert_eq!(counters.stops, 0, "{cell}");
                }
            }
        }
    }
}

#[test]
fn every_error_status_is_repeated_by_the_cpu() {
    for form in [Form::Direct, Form::Batch] {
        for (operation, name) in OPERATIONS.iter().enumerate() {
            for code in (0x03..=0x22).chain([0x7F]) {
                let nth = u64::from(code % 3);
                let fault = PortalFault::Status(code);
                let cell = format!("{form:?} {} {nth} {fault:?}", name);
                let (mut mover, counters) = mover(kind(form), LONG, PlannedFault::At { nth, fault });
                run_cell(&mut mover, operation, &cell);
                let counters = counters.read();
                let noticed = counters.repeated + counters.page_faults + counters.abandoned;
                assert!(noticed > 0 || *name == "compare", "{cell}: {counters:?}");
                // The channel goes on, or is not used any more; both jobs are right.
                run_cell(&mut mover, operation, &cell);
                assert!(DsaStatus::of(code).is_some());
            }
        }
    }
}

#[test]
fn lost_late_and_reordered_descriptors_and_a_dead_device_leave_each_step_done_once() {
    for form in [Form::Direct, Form::Batch] {
        for (operation, name) in OPERATIONS.iter().enumerate() {
            for nth in [0, 1, 2, 5] {
                for fault in [PortalFault::Lost, PortalFault::Late, PortalFault::Reordered, PortalFault::Dies]
                {
                    let cell = format!("{form:?} {} {nth} {fault:?}", name);
                    let (mut mover, counters) = mover(kind(form), SHORT, PlannedFault::At { nth, fault });
                    run_cell(&mut mover, operation, &cell);
                    run_cell(&mut mover, operation, &cell);
                    let counters = counters.read();
                    if fault == PortalFault::Dies {
                        assert_eq!((counters.drains, counters.stops), (1, 1), "{cell}: {counters:?}");
                        assert!(mover.channel_counters().abandoned > 0, "{cell}");
                    }
                }
            }
        }
    }
}

/// A fault of one descriptor, behind which drains are lost, if they are.
struct LateThenNoDrain {
    planned: PlannedFault,
    loses_drains: bool,
}

impl FaultSource for LateThenNoDrain {
    fn fault(&mut self, nth: u64, opcode: Option<DsaOpcode>) -> PortalFault {
        if self.loses_drains && opcode == Some(DsaOpcode::Drain) {
            return PortalFault::Lost;
        }
        self.planned.fault(nth, opcode)
    }
}

#[test]
fn a_late_write_never_meets_memory_that_was_returned() {
    for (form, loses_drains) in
        [(Form::Direct, false), (Form::Batch, false), (Form::Direct, true), (Form::Batch, true)]
    {
        for (operation, name) in OPERATIONS.iter().enumerate().take(4) {
            for nth in [0, 1, 4] {
                for fault in [PortalFault::Late, PortalFault::Reordered, PortalFault::Lost] {
                    let planned = PlannedFault::At { nth, fault };
                    let (mut mover, _) = mover(kind(form), SHORT, LateThenNoDrain { planned, loses_drains });
                    let mut matrix = MatrixJob::new(operation);
                    let mut job = std::mem::take(&mut matrix.job);
                    mover.run(&mut job).unwrap();
                    let mut returned: Vec<Vec<u8>> =
                        job.into_memories().into_iter().filter_map(MoveMemory::into_vec).collect();
                    returned.iter_mut().for_each(|bytes| bytes.fill(0x77));
                    // Stops the device, which does what was late.
                    drop(mover);
                    let is_untouched = returned.iter().all(|bytes| bytes.iter().all(|byte| *byte == 0x77));
                    assert!(is_untouched, "{form:?} {name} {nth} {fault:?}, drains lost: {loses_drains}");
                }
            }
        }
    }
}

#[test]
fn a_full_queue_is_tried_again_and_then_refused() {
    for form in [Form::Direct, Form::Batch] {
        for (operation, name) in OPERATIONS.iter().enumerate() {
            for submissions in [1, 3, 4, 5, u64::MAX] {
                let cell = format!("{form:?} {} {submissions}", name);
                let (mut mover, counters) = mover(kind(form), LONG, PlannedFault::Full { submissions });
                run_cell(&mut mover, operation, &cell);
                let counters = counters.read();
                assert_eq!(counters.full_retries > 0, submissions > 0, "{cell}: {counters:?}");
                assert_eq!(mover.channel_counters().refused > 0, submissions > 3, "{cell}: {counters:?}");
            }
        }
    }
}

#[test]
fn corrupted_bytes_are_found_by_a_crc_where_one_is_asked_and_a_false_difference_is_not_used() {
    for form in [Form::Direct, Form::Batch] {
        for (operation, name) in OPERATIONS.iter().enumerate() {
            let fault = PortalFault::Corrupted;
            let nth = u64::from(form == Form::Batch);
            let (mut mover, _) = mover(kind(form), LONG, PlannedFault::At { nth, fault });
            let mut matrix = MatrixJob::new(operation);
            let mut job = std::mem::take(&mut matrix.job);
            mover.run(&mut job).unwrap();
            let results = job.results().to_vec();
            let found = matrix.found(job);
            match *name {
                "copy and crc" => {
                    let StepResult::Crc32c(crc) = results[0] else { panic!("a CRC") };
                    assert_ne!(results[0], matrix.results[0], "the fault is found: {form:?}");
                    assert_eq!(crc, crc_of(0x1234_5678, &found[2]), "it is the CRC of what arrived");
                }
                "crc" => assert_ne!(results[0], matrix.results[0], "the fault is found: {form:?}"),
                "compare" | "flush" => assert_eq!(results, matrix.results, "{form:?}"),
                // Without a CRC no result shows the fault.
                _ => assert_eq!(results, matrix.results, "{form:?}"),
            }
            if matches!(*name, "copy" | "fill" | "dualcast") {
                assert_ne!(found[1], matrix.expected[1], "the fault was injected: {form:?} {name}");
            }
        }
    }
}

/// Random faults.
struct MixedFaults {
    random: fastrand::Rng,
    /// One descriptor of so many has a fault.
    one_of: u64,
}

impl FaultSource for MixedFaults {
    fn refuses(&mut self, _nth: u64) -> bool {
        self.random.u64(..self.one_of) == 0
    }

    fn fault(&mut self, _nth: u64, _opcode: Option<DsaOpcode>) -> PortalFault {
        if self.random.u64(..self.one_of) != 0 {
            return PortalFault::None;
        }
        match self.random.usize(..8) {
            0..3 => PortalFault::PageFault { done: self.random.u32(..5_000), is_write: self.random.bool() },
            3 => PortalFault::Status(self.random.u8(0x03..=0x22)),
            4 => PortalFault::Lost,
            5 => PortalFault::Late,
            6 => PortalFault::Reordered,
            _ => PortalFault::Dies,
        }
    }
}

#[test]
fn seeded_jobs_over_mixed_faults_move_what_a_byte_loop_moves() {
    let mut totals = [0; 6];
    for seed in 0..400 {
        let mut random = fastrand::Rng::with_seed(seed ^ 0xD5A);
        let kind = PortalKind {
            mode: if random.bool() { WorkQueueMode::Dedicated } else { WorkQueueMode::Shared },
            size: random.usize(1..12),
            transfer_bytes_max: [64, 1_000, 4_096, 65_536][random.usize(..4)],
            batch_max: [1, 2, 7, 64][random.usize(..4)],
            opcodes: DsaOpcodeSet::ALL,
        };
        let faults = MixedFaults { one_of: random.u64(2..20), random: random.fork() };
        let (mut mover, counters) = mover(kind, SHORT, faults);
        check_job(&mut mover, seed);
        let found = counters.read();
        let counts = [
            found.page_faults,
            found.repeated,
            found.no_record,
            found.abandoned,
            found.drains,
            found.full_retries,
        ];
        totals.iter_mut().zip(counts).for_each(|(total, count)| *total += count);
    }
    assert!(totals.iter().all(|total| *total > 0), "each kind of fault was met: {totals:?}");
}

#[test]
fn dependent_steps_keep_their_order_and_independent_ones_share_a_batch() {
    for form in [Form::Direct, Form::Batch] {
        let (mut mover, counters) = mover(kind(form), LONG, NoFaults);
        let mut job = MoveJob::new();
        let first = job.add_memory(Bytes::from(vec![5; 1_000]));
        let second = job.add_memory(vec![1; 1_000]);
        let third = job.add_memory(vec![2; 1_000]);
        let growing = job.add_memory(Vec::with_capacity(3_000));
        let copy = |from: usize, to: usize, at: usize| MoveStep::Copy {
            from: MemoryPlace::new(from, 0).range(1_000),
            to: MemoryPlace::new(to, at),
        };
        // 0 to 1 to 2, then 1 is written again; the vector grows by each.
        job.add_step(copy(second, growing, 0));
        job.add_step(copy(first, second, 0));
        job.add_step(copy(second, third, 0));
        job.add_step(MoveStep::Fill { to: MemoryPlace::new(second, 0).range(1_000), value: 9 });
        job.add_step(copy(third, growing, 1_000));
        job.add_step(copy(second, growing, 2_000));
        mover.run(&mut job).unwrap();
        let memories: Vec<Vec<u8>> =
            job.into_memories().into_iter().filter_map(MoveMemory::into_vec).collect();
        assert_eq!(memories[0], [9; 1_000]);
        assert_eq!(memories[1], [5; 1_000]);
        assert_eq!(memories[2], [vec![1; 1_000], vec![5; 1_000], vec![9; 1_000]].concat());
        let rounds = counters.read().rounds;
        assert_eq!(rounds == 1, form == Form::Batch, "{form:?}: {rounds}");
    }
}

#[test]
fn a_started_job_returns_to_its_ticket_and_the_owner_sleeps_only_without_jobs() {
    let (mut mover, _) = mover(kind(Form::Batch), LONG, NoFaults);
    assert!(mover.prepare_sleep().is_some());
    let mut job = MoveJob::new().with_durability(MoveDurability::Persistent);
    let memory = job.add_memory(vec![0; 8_000]);
    job.add_step(MoveStep::Fill { to: MemoryPlace::new(memory, 0).range(8_000), value: 3 });
    let ticket = mover.start(job).unwrap();
    assert!(mover.prepare_sleep().is_none());
    let done = mover.wait(&ticket, LONG).unwrap();
    assert!(done.promise().is_some());
    assert_eq!(done.into_memories().remove(0).into_vec().unwrap(), [3; 8_000]);
    assert!(mover.prepare_sleep().is_some());
}
