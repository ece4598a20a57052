//! Tests of hardware queues over our driver and our controller model: the outcome of commands when the controller is
//! reset, slow or removed.
#![expect(clippy::unwrap_used, reason = "a broken promise ends the test")]

use headwater_dma::iova::Iova;
use headwater_host::clock::Nanos;
use headwater_host::wake::WakeDescriptor;
use headwater_io::backend::{ArmResult, QueueTransport};
use headwater_io::vfio::{LocalQueueOwner, NoVectors, NvmeQueue, SharedController, VectorSource};
use headwater_io::{Buffer, Command, IoError, Queue, SubmitError, WriteDurability};
use headwater_nvme::controller::{ControllerConfig, QueueId};
use headwater_nvme::driver::{ArbitrationWeights, DriverConfig, HostMemory, NvmeDriver, SglUse};
use headwater_nvme::spec::priority::QueuePriority;
use headwater_nvme::spec::status::Status;
use headwater_testkit::nvme_machine::{MEMORY_AT, NvmeMachine, SharedMachine};
use std::sync::Arc;

type SharedControl = Arc<SharedController<SharedMachine, SharedMachine>>;

#[derive(Debug)]
struct FakeVectors(SharedMachine);

impl VectorSource for FakeVectors {
    fn count(&self) -> u16 {
        2
    }

    fn connect(&self, vector: u16, wake: Option<&WakeDescriptor>) -> std::io::Result<()> {
        let mut machine = self.0.lock();
        match wake {
            Some(wake) => drop(machine.interrupt_receivers.insert(vector, wake.clone())),
            None => drop(machine.interrupt_receivers.remove(&vector)),
        }
        Ok(())
    }
}

fn open(vectors: fn(&SharedMachine) -> Box<dyn VectorSource>) -> (SharedControl, SharedMachine) {
    open_with(vectors, |_| ())
}

fn open_with(
    vectors: fn(&SharedMachine) -> Box<dyn VectorSource>,
    change: impl FnOnce(&mut DriverConfig),
) -> (SharedControl, SharedMachine) {
    let machine = NvmeMachine::with(ControllerConfig::pcie(1));
    machine.lock().is_awake = true;
    let mut config = DriverConfig {
        io_queues: 4,
        command_timeout: Nanos::from_millis(40),
        admin_timeout: Nanos::from_millis(2_000),
        ..DriverConfig::default()
    };
    change(&mut config);
    let driver = NvmeDriver::new(machine.clone(), machine.clone(), config);
    let control = SharedController::new("a machine", driver, vectors(&machine), None);
    control.start().unwrap();
    (Arc::new(control), machine)
}

fn polled() -> (SharedControl, SharedMachine) {
    open(|_| Box::new(NoVectors))
}

fn interrupted() -> (SharedControl, SharedMachine) {
    open(|machine| Box::new(FakeVectors(machine.clone())))
}

fn buffer(machine: &SharedMachine, bytes: usize) -> Buffer {
    let block = machine.clone().take(bytes, 4_096).unwrap();
    let memory = machine.lock().memory.clone();
    let offset = usize::try_from(block.address - MEMORY_AT).unwrap();
    Buffer::from_region(memory, Iova(MEMORY_AT)).slice(offset, bytes).unwrap()
}

fn read(token: u64, into: &Buffer) -> (Command, u64) {
    (Command::read(3, token, 512, into.slice(0, 512).unwrap()).unwrap(), token)
}

/// Returns every completion to come, sorted by token.
fn answers(queue: &mut Queue) -> Vec<(u64, Status)> {
    let mut answers = Vec::new();
    while let Some(completion) = queue.wait(None).unwrap() {
        answers.push((completion.token, completion.status));
    }
    answers.sort_unstable_by_key(|(token, _)| *token);
    answers
}

fn filled(control: &SharedControl, machine: &SharedMachine, count: u64) -> (Queue, Buffer) {
    let mut queue = Queue::over(Box::new(NvmeQueue::open(LocalQueueOwner::new(control), 8).unwrap()));
    let into = buffer(machine, 4_096);
    for token in 0..count {
        let (command, token) = read(token, &into);
        queue.submit(command, token).unwrap();
    }
    queue.ring().unwrap();
    (queue, into)
}

fn all(count: u64, status: Status) -> Vec<(u64, Status)> {
    (0..count).map(|token| (token, status)).collect()
}

#[test]
fn blocks_read_back_as_written_polled_and_by_interrupts() {
    for (control, machine) in [polled(), interrupted()] {
        let mut queue = Queue::over(Box::new(NvmeQueue::open(LocalQueueOwner::new(&control), 4).unwrap()));
        queue.set_spin(Nanos::ZERO);
        let (from, into) = (buffer(&machine, 1 << 20), buffer(&machine, 1 << 20));
        let bytes: Vec<u8> = (0..=250).cycle().take(1 << 20).collect();
        from.write(0, &bytes).unwrap();
        queue.submit(Command::write(2, 5, 4_096, from, WriteDurability::Immediate).unwrap(), 1).unwrap();
        assert_eq!(answers(&mut queue), [(1, Status::SUCCESS)]);
        queue.submit(Command::read(2, 5, 4_096, into.clone()).unwrap(), 2).unwrap();
        assert_eq!(answers(&mut queue), [(2, Status::SUCCESS)]);
        let mut back = vec![0; 1 << 20];
        into.read(0, &mut back).unwrap();
        assert!(back == bytes);
        let (limits, _) = (NvmeQueue::open(LocalQueueOwner::new(&control), 1).unwrap().limits(), queue);
        assert_eq!((limits.transfer_bytes_max, limits.memory_align), (1 << 20, 4));
    }
}

/// Returns pieces of memory with these lengths, each at this offset in a page of its own, none adjacent to another.
fn pieces(machine: &SharedMachine, offset: usize, lengths: &[usize]) -> Vec<Buffer> {
    let part = |&bytes: &usize| {
        let whole = buffer(machine, (offset + bytes).next_multiple_of(4_096) + 4_096);
        whole.slice(offset, bytes).unwrap()
    };
    lengths.iter().map(part).collect()
}

/// Writes pieces as one command, reads them back as one command into further ones, and returns the outcomes.
fn through_pieces(
    queue: &mut Queue,
    (namespace, block_bytes): (u32, u32),
    (from, into): (Vec<Buffer>, Vec<Buffer>),
) -> Result<(), SubmitError> {
    for (piece, byte) in from.iter().zip(1..) {
        piece.write(0, &vec![byte; piece.bytes()]).unwrap();
    }
    let expected: Vec<u8> =
        from.iter().zip(1..).flat_map(|(piece, byte)| vec![byte; piece.bytes()]).collect();
    let write = Command::write_gathered(namespace, 8, block_bytes, from, WriteDurability::Immediate).unwrap();
    queue.submit(write, 1).map_err(|refused| refused.reason)?;
    assert_eq!(answers(queue), [(1, Status::SUCCESS)]);
    let read = Command::read_scattered(namespace, 8, block_bytes, into.clone()).unwrap();
    queue.submit(read, 2).map_err(|refused| refused.reason)?;
    assert_eq!(answers(queue), [(2, Status::SUCCESS)]);
    let mut back = Vec::new();
    for piece in &into {
        let mut bytes = vec![0; piece.bytes()];
        piece.read(0, &mut bytes).unwrap();
        back.extend(bytes);
    }
    assert!(back == expected, "the bytes of {} pieces differ", into.len());
    Ok(())
}

#[test]
fn pieces_of_memory_are_one_command_by_prp_list_or_by_sgl() {
    let pages = vec![4_096; 200];
    let uneven = [1_536, 512, 4_096 + 512, 1_024];
    let other = [512, 512, 2_048, 4_096 + 512];
    for sgl in [SglUse::Never, SglUse::Needed] {
        let (control, machine) = open_with(|_| Box::new(NoVectors), |config| config.sgl = sgl);
        let mut queue = Queue::over(Box::new(NvmeQueue::open(LocalQueueOwner::new(&control), 4).unwrap()));
        assert!(queue.limits().segments_max >= 200);
        // Whole pages of a fragmented pool are a PRP list of two levels, with and without SGLs.
        let both = (pieces(&machine, 0, &pages), pieces(&machine, 0, &pages));
        through_pieces(&mut queue, (2, 4_096), both).unwrap();
        let both = (pieces(&machine, 400, &uneven), pieces(&machine, 36, &other));
        let outcome = through_pieces(&mut queue, (3, 512), both);
        match sgl {
            SglUse::Never => {
                let Err(SubmitError::Unsupported { what }) = outcome else { panic!("{outcome:?}") };
                assert!(what.contains("page boundaries"), "{what}");
            }
            _ => outcome.unwrap(),
        }
    }
}

#[test]
fn invalid_commands_never_reach_the_controller() {
    let (control, machine) = polled();
    let mut queue = Queue::over(Box::new(NvmeQueue::open(LocalQueueOwner::new(&control), 2).unwrap()));
    let into = buffer(&machine, 4 << 20);
    let beyond = Command::read(3, 1 << 19, 512, into.slice(0, 512).unwrap()).unwrap();
    let reason = queue.submit(beyond, 0).unwrap_err().reason;
    assert_eq!(reason, SubmitError::BlocksOutOfRange { first: 1 << 19, blocks: 1, size: 1 << 19 });
    let long = Command::read(3, 0, 512, into.slice(0, 2 << 20).unwrap()).unwrap();
    assert!(matches!(queue.submit(long, 0).unwrap_err().reason, SubmitError::Unsupported { .. }));
    let unaligned = Command::read(3, 0, 512, into.slice(2, 512).unwrap()).unwrap();
    assert!(matches!(queue.submit(unaligned, 0).unwrap_err().reason, SubmitError::Unsupported { .. }));
    for token in 0..2 {
        let (command, token) = read(token, &into);
        queue.submit(command, token).unwrap();
    }
    let (third, token) = read(2, &into);
    assert_eq!(queue.submit(third, token).unwrap_err().reason, SubmitError::Full);
    assert_eq!(answers(&mut queue), all(2, Status::SUCCESS));
}

#[test]
fn a_reset_completes_commands_in_flight_and_the_queue_continues() {
    for (control, machine) in [polled(), interrupted()] {
        machine.lock().faults.holds_commands = true;
        let (mut queue, into) = filled(&control, &machine, 8);
        control.reset().unwrap();
        machine.lock().faults.holds_commands = false;
        assert_eq!(answers(&mut queue), all(8, Status::ABORTED_BY_HOST));
        let (command, token) = read(3, &into);
        queue.submit(command, token).unwrap();
        assert_eq!(answers(&mut queue), [(3, Status::SUCCESS)]);
    }
}

#[test]
fn a_cancelled_command_has_exactly_one_completion() {
    let (control, machine) = interrupted();
    machine.lock().faults.holds_commands = true;
    let mut transport = NvmeQueue::open(LocalQueueOwner::new(&control), 4).unwrap();
    let into = buffer(&machine, 4_096);
    for token in 0..3 {
        let (command, token) = read(token, &into);
        transport.submit(command, token).unwrap();
    }
    transport.ring().unwrap();
    transport.cancel(1).unwrap();
    let mut queue = Queue::over(Box::new(transport));
    let first = queue.wait(None).unwrap().unwrap();
    assert_eq!((first.token, first.status), (1, Status::ABORT_REQUESTED));
    machine.lock().complete_held();
    let rest = answers(&mut queue);
    assert_eq!(rest, [(0, Status::SUCCESS), (2, Status::SUCCESS)]);
    let (command, token) = read(0, &into);
    queue.submit(command, token).unwrap();
    assert_eq!(answers(&mut queue), [(0, Status::SUCCESS)]);
    assert!(matches!(
        NvmeQueue::open(LocalQueueOwner::new(&control), 1).unwrap().cancel(7),
        Err(IoError::Unsupported { .. })
    ));
}

#[test]
fn an_overdue_command_is_aborted_by_the_waiting_thread() {
    let (control, machine) = interrupted();
    machine.lock().faults.holds_commands = true;
    let (mut queue, _) = filled(&control, &machine, 5);
    assert_eq!(answers(&mut queue), all(5, Status::ABORT_REQUESTED));
}

#[test]
fn lost_completions_lead_to_a_reset_driven_by_the_waiting_thread() {
    let (control, machine) = polled();
    machine.lock().faults.lost_completions = 2;
    machine.lock().faults.ignores_aborts = true;
    let (mut queue, _) = filled(&control, &machine, 6);
    let found = answers(&mut queue);
    let lost = found.iter().filter(|(_, status)| *status == Status::ABORTED_BY_HOST).count();
    assert_eq!((found.len(), lost), (6, 2));
}

#[test]
fn removal_completes_all_commands_and_later_submissions_fail_as_gone() {
    for (control, machine) in [polled(), interrupted()] {
        machine.lock().faults.holds_commands = true;
        let (mut queue, into) = filled(&control, &machine, 7);
        machine.lock().faults.removed = true;
        assert_eq!(answers(&mut queue), all(7, Status::HOST_PATHING_ERROR));
        let (command, token) = read(0, &into);
        assert_eq!(queue.submit(command, token).unwrap_err().reason, SubmitError::Gone);
        let reason = control.wait_until_ready().unwrap_err().to_string();
        assert!(reason.contains("removed"), "{reason}");
    }
}

#[test]
fn a_dropped_queue_is_deleted_at_the_controller_with_its_commands_in_flight() {
    let (control, machine) = interrupted();
    machine.lock().faults.holds_commands = true;
    let (queue, _) = filled(&control, &machine, 4);
    assert!(machine.lock().arbiter.queue(QueueId(1)).is_ok());
    drop(queue);
    assert!(machine.lock().arbiter.queue(QueueId(1)).is_err());
    assert_eq!(machine.lock().held.len(), 0);
    // Its number and its vector are free again every time.
    for _ in 0..9 {
        let queues: Vec<_> =
            (0..4).map(|_| NvmeQueue::open(LocalQueueOwner::new(&control), 2).unwrap()).collect();
        assert_eq!(queues.iter().filter(|queue| queue.descriptor().is_some()).count(), 2);
        let more = NvmeQueue::open(LocalQueueOwner::new(&control), 2).unwrap_err().to_string();
        assert!(more.contains("all 4 I/O queues"), "{more}");
    }
}

#[test]
fn arm_reports_ready_only_when_a_completion_is_present() {
    let (control, machine) = interrupted();
    let mut transport = NvmeQueue::open(LocalQueueOwner::new(&control), 4).unwrap();
    let into = buffer(&machine, 4_096);
    machine.lock().faults.holds_commands = true;
    assert_eq!(transport.arm().unwrap(), ArmResult::Armed);
    let (command, token) = read(0, &into);
    transport.submit(command, token).unwrap();
    assert_eq!(transport.arm().unwrap(), ArmResult::Armed);
    machine.lock().complete_held();
    machine.lock().work();
    assert_eq!(transport.arm().unwrap(), ArmResult::Ready);
    assert_eq!(transport.reap().unwrap().unwrap().completion.token, 0);
    assert_eq!(transport.arm().unwrap(), ArmResult::Armed);
    let (control, _machine) = polled();
    let mut transport = NvmeQueue::open(LocalQueueOwner::new(&control), 4).unwrap();
    assert!(transport.descriptor().is_none());
    assert!(matches!(transport.arm(), Err(IoError::Limit { .. })));
}

#[test]
fn dropping_the_last_of_device_and_queues_shuts_the_controller_down() {
    let (control, machine) = polled();
    let queue = NvmeQueue::open(LocalQueueOwner::new(&control), 2).unwrap();
    drop(control);
    assert!(machine.lock().mastering);
    drop(queue);
    assert!(!machine.lock().mastering);
}

#[test]
fn queues_of_two_classes_are_served_by_weight_before_and_after_a_reset() {
    let weights = ArbitrationWeights { high: 8, medium: 4, low: 1, burst_log2: 7 };
    let (control, machine) = open_with(|_| Box::new(NoVectors), |config| config.weights = Some(weights));
    let open = |priority| NvmeQueue::open(LocalQueueOwner::new(&control).of_class(priority), 63).unwrap();
    let mut queues =
        [QueuePriority::High, QueuePriority::Low].map(|priority| Queue::over(Box::new(open(priority))));
    let into = buffer(&machine, 4_096);
    for round in 0..2 {
        // After a reset the next command creates the queue again.
        for queue in &mut queues {
            let (command, token) = read(0, &into);
            queue.submit(command, token).unwrap();
            assert_eq!(answers(queue), [(0, Status::SUCCESS)]);
        }
        // The controller fetches nothing until both queues are full, and then posts no completions.
        (machine.lock().faults.unresponsive, machine.lock().faults.holds_commands) = (true, true);
        for queue in &mut queues {
            for block in 0..36 {
                let (command, token) = read(block, &into);
                queue.submit(command, token).unwrap();
            }
            queue.ring().unwrap();
        }
        machine.lock().faults.unresponsive = false;
        machine.lock().work();
        let order: Vec<u16> = machine.lock().held.iter().map(|held| held.token.queue().0).collect();
        // The queue of the high class was created first.
        let high = *order.iter().min().unwrap();
        let of_high = order[..36].iter().filter(|&&queue| queue == high).count();
        assert_eq!(of_high, 32, "round {round}: eight of nine: {order:?}");
        machine.lock().faults.holds_commands = false;
        control.reset().unwrap();
        for queue in &mut queues {
            assert_eq!(answers(queue).len(), 36);
        }
    }
}
