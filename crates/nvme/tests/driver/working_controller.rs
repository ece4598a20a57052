//! Tests of the driver with a controller that works.

use crate::host_harness::{HostHarness, bytes, config, fill, run, small, spec, succeeded};
use headwater_nvme::controller::ControllerConfig;
use headwater_nvme::controller::admin::AsyncEvent;
use headwater_nvme::driver::{
    AdminRequestData, ArbitrationWeights, DeathCause, DriverConfig, DriverPhase, IoQueueState, NamespaceKind,
    QueueError, QueueSpec, RequestError, ResetCause, SglUse, SubmitFault,
};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::nvm::{self, BlockOptions, BlockRange};
use headwater_nvme::spec::opcode::AdminOpcode;
use headwater_nvme::spec::priority::QueuePriority;
use headwater_nvme::spec::status::Status;
use zerocopy::little_endian::U32;

#[test]
fn bring_up_finds_the_controller_and_namespaces_of_both_command_sets() {
    let host = HostHarness::ready();
    let facts = host.driver.info().unwrap();
    assert_eq!((facts.serial.as_str(), facts.firmware.as_str()), ("HW123456789012345678", "1.2.3"));
    assert_eq!((facts.version, facts.transfer_bytes_max), ((2, 0), Some(1 << 20)));
    assert_eq!((facts.io_queues, facts.has_sgl, facts.weighted_round_robin), (4, true, false));
    let kinds: Vec<_> = host.driver.namespaces().iter().map(|found| (found.id, found.kind.clone())).collect();
    let [(1, keys), (2, large), (3, small)] = &kinds[..] else { panic!("{kinds:?}") };
    let NamespaceKind::KeyValue { key_bytes_max: 16, value_bytes_max, .. } = keys else { panic!("{keys:?}") };
    assert_eq!(*value_bytes_max, 1 << 20, "the transfer limit of one command");
    assert_eq!(*large, NamespaceKind::Block { block_shift: 12, blocks: 1 << 16 });
    assert_eq!(*small, NamespaceKind::Block { block_shift: 9, blocks: 1 << 19 });
}

#[test]
fn written_data_is_read_back_for_all_lengths_and_data_pointers() {
    for sgl in [SglUse::Never, SglUse::Needed, SglUse::Lists] {
        let mut host = HostHarness::with(ControllerConfig::pcie(1), DriverConfig { sgl, ..config() });
        assert_eq!(host.start(), DriverPhase::Ready);
        let mut queue = host.queue(7);
        let (from, into) = (host.buffer(2 << 20), host.buffer(2 << 20));
        fill(&from, 1);
        for (round, length) in [512, 4_096, 8_192, 12_288, 65_536, 1 << 20].into_iter().enumerate() {
            let offset = round as u64 * 508;
            let start = round as u64 * 2_048;
            succeeded(host.execute(&mut queue, small(true, start, length), &[run(&from, offset, length)]));
            succeeded(host.execute(&mut queue, small(false, start, length), &[run(&into, offset, length)]));
            let here = usize::try_from(offset).unwrap()..usize::try_from(offset).unwrap() + length as usize;
            assert_eq!(bytes(&into)[here.clone()], bytes(&from)[here], "{length} bytes, {sgl:?}");
        }
    }
}

#[test]
fn data_in_many_runs_is_one_command() {
    let mut host = HostHarness::ready();
    let mut queue = host.queue(3);
    let (from, into) = (host.buffer(1 << 20), host.buffer(1 << 20));
    fill(&from, 2);
    // Pages in no order: PRPs. Parts of pages: an SGL.
    let pages = [run(&from, 512, 3_584), run(&from, 8 * 4_096, 8_192), run(&from, 4_096, 4_096)];
    succeeded(host.execute(&mut queue, small(true, 0, 15_872), &pages));
    let pieces = [run(&into, 4, 500), run(&into, 9_000, 5_000), run(&into, 40_000, 10_372)];
    succeeded(host.execute(&mut queue, small(false, 0, 15_872), &pieces));
    let (sent, got) = (bytes(&from), bytes(&into));
    let expected = [&sent[512..4_096], &sent[32_768..40_960], &sent[4_096..8_192]].concat();
    let found = [&got[4..504], &got[9_000..14_000], &got[40_000..50_372]].concat();
    assert_eq!(found, expected);
}

/// Covers NVMeDirect's defect B4: a queue with as many commands as slots overruns.
#[test]
fn b4_a_queue_accepts_exactly_its_depth_and_then_returns_full() {
    let mut host = HostHarness::ready();
    for depth in [1, 2, 31, 1_023] {
        let mut queue = host.queue(depth);
        let buffer = host.buffer(4_096);
        for round in 0..3 {
            for _ in 0..depth {
                queue.submit(small(false, 0, 512), &[run(&buffer, 0, 512)], ()).unwrap();
            }
            assert_eq!(
                queue.submit(small(false, 0, 512), &[run(&buffer, 0, 512)], ()),
                Err((SubmitFault::Full, ()))
            );
            queue.ring();
            let answers = host.drain_completions(&mut queue);
            assert_eq!(answers.len(), depth as usize, "round {round}");
            answers.into_iter().for_each(succeeded);
        }
        let id = queue.id();
        drop(queue);
        host.driver.delete_queue(id, host.now).unwrap();
        while host.driver.has_queue(id) {
            host.turn();
        }
    }
    let refused = host.try_queue(spec(1_024)).map(|_| ());
    assert_eq!(refused, Err(RequestError::Depth { depth: 1_024, max: 1_023 }));
    assert_eq!(host.try_queue(spec(0)).map(|_| ()), Err(RequestError::Depth { depth: 0, max: 1_023 }));
}

#[test]
fn all_granted_queues_can_be_created_and_their_ids_are_reused() {
    let mut host = HostHarness::ready();
    let mut queues: Vec<_> = (0..4).map(|_| host.queue(3)).collect();
    let refused = host.try_queue(spec(3)).map(|_| ());
    assert_eq!(refused, Err(RequestError::NoQueue { granted: 4 }));
    let gone = queues.remove(1).id();
    host.driver.delete_queue(gone, host.now).unwrap();
    host.turns(10);
    assert!(!host.driver.has_queue(gone));
    let mut again = host.queue(5);
    assert_eq!(again.id(), gone);
    let buffer = host.buffer(4_096);
    for queue in queues.iter_mut().chain([&mut again]) {
        succeeded(host.execute(queue, small(false, 0, 512), &[run(&buffer, 0, 512)]));
    }
}

#[test]
fn a_queue_that_the_controller_refuses_leaves_no_state() {
    let mut host = HostHarness::ready();
    for opcode in [AdminOpcode::CreateCompletionQueue, AdminOpcode::CreateSubmissionQueue] {
        let refusal = Status::INVALID_QUEUE_SIZE;
        host.machine.lock().faults.refused_opcodes.insert(opcode.number(), refusal);
        let outcome = host.try_queue(spec(3)).unwrap().map(|_| ());
        assert_eq!(outcome, Err(QueueError::Refused(refusal)));
        host.machine.lock().faults.refused_opcodes.clear();
        assert!(!host.driver.has_queue(1));
        assert_eq!(host.queue(3).id(), 1, "the id is free again");
        host.driver.delete_queue(1, host.now).unwrap();
        host.turns(10);
    }
    let no_vector = QueueSpec { vector: Some(999), ..spec(3) };
    let outcome = host.try_queue(no_vector).unwrap().map(|_| ());
    assert_eq!(outcome, Err(QueueError::Refused(Status::INVALID_INTERRUPT_VECTOR)));
}

#[test]
fn weighted_round_robin_is_used_if_the_controller_supports_it() {
    let weights = Some(ArbitrationWeights { high: 8, medium: 4, low: 1, burst_log2: 2 });
    let mut host = HostHarness::with(ControllerConfig::pcie(1), DriverConfig { weights, ..config() });
    assert_eq!(host.start(), DriverPhase::Ready);
    assert!(host.driver.info().unwrap().weighted_round_robin);
    let machine = host.machine.clone();
    assert_eq!(
        machine.lock().controller.arbitration(),
        headwater_nvme::controller::ArbitrationSettings::from_dword(0x0703_0002)
    );
    // Of two full queues, the high one gets eight commands per round, the low one a single command.
    let high = QueueSpec { priority: QueuePriority::High, ..spec(63) };
    let low = QueueSpec { priority: QueuePriority::Low, ..spec(63) };
    let mut queues = [high, low].map(|spec| host.try_queue(spec).unwrap().unwrap());
    machine.lock().faults.holds_commands = true;
    let buffer = host.buffer(4_096);
    for queue in &mut queues {
        for _ in 0..63 {
            queue.submit(small(false, 0, 512), &[run(&buffer, 0, 512)], ()).unwrap();
        }
        queue.ring();
    }
    let served: Vec<u16> = {
        let mut machine = machine.lock();
        let mut served = Vec::new();
        for _ in 0..27 {
            let fetched = machine.arbiter.fetch().unwrap();
            served.push(fetched.token.queue().0);
            machine.arbiter.complete(fetched.token, 0, Status::SUCCESS);
        }
        served
    };
    assert_eq!(served.iter().filter(|&&queue| queue == queues[0].id()).count(), 24, "{served:?}");
}

#[test]
fn invalid_data_is_refused_before_it_reaches_the_controller() {
    let mut host = HostHarness::ready();
    let mut queue = host.queue(3);
    let buffer = host.buffer(4 << 20);
    let max = 1 << 20;
    let long = queue.submit(small(false, 0, 512), &[run(&buffer, 0, max + 4)], ());
    assert_eq!(long, Err((SubmitFault::TooLong { bytes: u64::from(max) + 4, max: u64::from(max) }, ())));
    let unaligned = queue.submit(small(false, 0, 512), &[run(&buffer, 2, 512)], ());
    assert!(matches!(unaligned, Err((SubmitFault::Data(_), ()))));
    assert_eq!(queue.in_flight(), 0);
    succeeded(host.execute(&mut queue, small(false, 0, 512), &[run(&buffer, 0, 512)]));
}

/// Covers NVMeDirect's defect B2: the status of a completion was never checked.
#[test]
fn b2_the_completion_carries_the_controllers_status() {
    let mut host = HostHarness::ready();
    let mut queue = host.queue(3);
    let buffer = host.buffer(4_096);
    let beyond = nvm::read(3, BlockRange { start: 1 << 40, blocks: 1 }, 0, BlockOptions::NONE);
    let done = host.execute(&mut queue, beyond, &[run(&buffer, 0, 512)]);
    assert_eq!(done.status, Status::LBA_OUT_OF_RANGE);
    host.machine.lock().faults.failing_namespaces.insert(3);
    let done = host.execute(&mut queue, small(false, 0, 512), &[run(&buffer, 0, 512)]);
    assert_eq!(done.status, Status::UNRECOVERED_READ_ERROR);
}

#[test]
fn a_change_of_namespaces_is_reported_and_leads_to_a_rescan() {
    let mut host = HostHarness::ready();
    {
        let mut machine = host.machine.lock();
        machine.subsystem.namespaces.remove(&2);
        machine.subsystem.generation += 1;
    }
    host.turns(40);
    let notice = host.driver.take_notice().unwrap();
    assert!(notice.is_namespace_change());
    let ids: Vec<u32> = host.driver.namespaces().iter().map(|found| found.id).collect();
    assert_eq!(ids, [1, 3]);
    // The next event is reported too: the log page was read, and another event request is outstanding.
    host.machine.lock().controller.notify(AsyncEvent::SpareLow);
    host.turns(40);
    let notice = host.driver.take_notice().unwrap();
    assert_eq!((notice.kind, notice.log_page), (1, 2));
    assert_eq!(host.driver.take_notice(), None);
}

#[test]
fn admin_commands_of_the_owner_have_replies() {
    let mut host = HostHarness::ready();
    let identify = SubmissionEntry {
        opcode: AdminOpcode::Identify.number(),
        cdw10: U32::new(1),
        ..SubmissionEntry::default()
    };
    let ticket = host.driver.submit_admin(identify, AdminRequestData::ToHost, host.now).unwrap();
    assert_eq!(host.driver.take_reply(ticket), None);
    host.turn();
    host.turn();
    let reply = host.driver.take_reply(ticket).unwrap();
    assert_eq!((reply.status, &reply.data[4..10]), (Status::SUCCESS, &b"HW1234"[..]));
    assert_eq!(host.driver.take_reply(ticket), None, "once");
    let long = host.driver.submit_admin(identify, AdminRequestData::FromHost(&[0; 4_097]), host.now);
    assert_eq!(long, Err(RequestError::Data { bytes: 4_097, max: 4_096 }));
}

#[test]
fn a_closed_controller_is_shut_down_and_accesses_no_memory() {
    let mut host = HostHarness::ready();
    let mut queue = host.queue(3);
    host.driver.close(host.now);
    assert_eq!(host.settle(), DriverPhase::Dead);
    assert_eq!((host.driver.death_cause(), host.driver.is_dma_stopped()), (Some(DeathCause::Closed), true));
    assert!(!host.machine.lock().mastering);
    assert_eq!(queue.state(), IoQueueState::Dead);
    assert_eq!(queue.submit(small(false, 0, 512), &[], ()), Err((SubmitFault::NotLive, ())));
    assert_eq!(host.driver.request_queue(spec(1), host.now), Err(RequestError::NotReady));
}

#[test]
fn dropping_the_driver_stops_the_controller() {
    let host = HostHarness::ready();
    let machine = host.machine.clone();
    drop(host);
    assert!(!machine.lock().mastering);
}

#[test]
fn a_requested_reset_loses_only_the_commands_in_flight() {
    let mut host = HostHarness::ready();
    let mut queue = host.queue(7);
    let buffer = host.buffer(65_536);
    fill(&buffer, 3);
    succeeded(host.execute(&mut queue, small(true, 0, 65_536), &[run(&buffer, 0, 65_536)]));
    host.machine.lock().faults.holds_commands = true;
    for _ in 0..5 {
        queue.submit(small(false, 0, 4_096), &[run(&buffer, 0, 4_096)], ()).unwrap();
    }
    queue.ring();
    host.turn();
    host.driver.reset(host.now);
    host.machine.lock().faults.holds_commands = false;
    assert_eq!(host.settle(), DriverPhase::Ready);
    assert_eq!((host.driver.reset_cause(), host.driver.resets()), (Some(ResetCause::Requested), 1));
    assert_eq!((queue.state(), queue.reap()), (IoQueueState::Lost, None));
    assert_eq!(queue.abandon().unwrap().len(), 5);
    let mut queue = host.queue(7);
    let back = host.buffer(65_536);
    succeeded(host.execute(&mut queue, small(false, 0, 65_536), &[run(&back, 0, 65_536)]));
    assert_eq!(bytes(&back), bytes(&buffer));
    assert_eq!(host.machine.lock().function_resets, 0, "clearing CC.EN was enough");
}
