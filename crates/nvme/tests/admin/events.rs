//! Asynchronous events (NVMe Base 2.0 section 5.2) and Abort (5.1).

use crate::host::{AdminHost, ENABLE_ALL_SETS, command};
use headwater_nvme::controller::admin::{AsyncEvent, AsyncEventCompletion, SanitizeState};
use headwater_nvme::controller::{AdminStep, QueueId};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::opcode::AdminOpcode;
use headwater_nvme::spec::status::Status;
use zerocopy::little_endian::U16;

fn request(host: &mut AdminHost, command_id: u16) -> AdminStep {
    let entry = command(AdminOpcode::AsyncEventRequest, 0, [0, 0]);
    host.step(&SubmissionEntry { command_id: U16::new(command_id), ..entry }, &[])
}

#[test]
fn event_requests_are_limited_to_the_announced_number() {
    let mut host = AdminHost::new();
    let announced = u16::from(host.identify(0x01, 0, 0).unwrap()[259]) + 1;
    for command_id in 0..announced {
        assert_eq!(request(&mut host, command_id), AdminStep::Held);
    }
    let AdminStep::Done(answer) = request(&mut host, announced) else {
        panic!("a request above the limit was held");
    };
    assert_eq!(answer.status, Status::ASYNC_EVENT_LIMIT_EXCEEDED);
    assert_eq!(host.controller.take_async_event(), None, "no event occurred");
}

#[test]
fn request_that_its_host_gave_up_receives_no_event() {
    let mut host = AdminHost::new();
    assert_eq!(request(&mut host, 3), AdminStep::Held);
    assert_eq!(request(&mut host, 4), AdminStep::Held);
    host.controller.forget_event_request(3);
    host.controller.notify(AsyncEvent::InvalidDoorbellValue);
    assert_eq!(host.controller.take_async_event().map(|answer| answer.command_id), Some(4));
    assert_eq!(host.controller.take_async_event(), None);
}

#[test]
fn event_completes_a_request_in_either_order() {
    let mut host = AdminHost::new();
    host.controller.notify(AsyncEvent::InvalidDoorbellValue);
    assert_eq!(host.controller.take_async_event(), None);
    assert_eq!(request(&mut host, 9), AdminStep::Held);
    let answer = AsyncEventCompletion { command_id: 9, result: 0x0001_0100, status: Status::SUCCESS };
    assert_eq!(host.controller.take_async_event(), Some(answer));
    assert_eq!(host.controller.take_async_event(), None);
}

#[test]
fn reported_event_is_masked_until_its_page_is_read_without_rae() {
    let mut host = AdminHost::new();
    for command_id in 0..3 {
        assert_eq!(request(&mut host, command_id), AdminStep::Held);
    }
    host.controller.notify(AsyncEvent::InvalidDoorbell);
    assert!(host.controller.take_async_event().is_some());
    host.controller.notify(AsyncEvent::InvalidDoorbell);
    assert_eq!(host.controller.take_async_event(), None);
    let retaining = command(AdminOpcode::GetLogPage, 0, [0x000F_8001, 0]);
    assert_eq!(host.status(&retaining, &[]), Status::SUCCESS);
    assert_eq!(host.controller.take_async_event(), None);
    assert!(host.log(0x01, 64).is_ok());
    assert!(host.controller.take_async_event().is_some());
}

#[test]
fn notices_that_the_host_did_not_enable_are_not_reported() {
    let mut host = AdminHost::new();
    assert_eq!(request(&mut host, 1), AdminStep::Held);
    host.controller.notify(AsyncEvent::NamespaceAttribute);
    host.controller.notify(AsyncEvent::SpareLow);
    assert_eq!(host.controller.take_async_event(), None);
    assert_eq!(host.set(0x0B, 0, 0x101), Ok(0));
    host.controller.notify(AsyncEvent::SpareLow);
    assert_eq!(host.controller.take_async_event().unwrap().result, 0x0002_0201);
}

#[test]
fn changed_namespaces_are_listed_once() {
    let mut host = AdminHost::new();
    assert_eq!(host.set(0x0B, 0, 0x100), Ok(0));
    assert_eq!(request(&mut host, 1), AdminStep::Held);
    host.subsystem.namespaces.get_mut(&2).unwrap().utilization += 1;
    host.subsystem.generation += 1;
    let _ = host.controller.poll(&host.subsystem, host.now);
    assert_eq!(host.controller.take_async_event(), None, "utilization is not an attribute");
    host.subsystem.namespaces.get_mut(&3).unwrap().size += 1;
    host.subsystem.detached.insert((1, 1));
    host.subsystem.generation += 1;
    let _ = host.controller.poll(&host.subsystem, host.now);
    assert_eq!(host.controller.take_async_event().unwrap().result, 0x0004_0002);
    let page = host.log(0x04, 4096).unwrap();
    assert_eq!(page[..12], [1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    assert!(host.log(0x04, 4096).unwrap().iter().all(|&byte| byte == 0));
}

#[test]
fn sanitize_completion_is_reported_to_the_controller_that_started_it() {
    let mut host = AdminHost::new();
    assert_eq!(request(&mut host, 1), AdminStep::Held);
    let step = host.step(&command(AdminOpcode::Sanitize, 0, [2, 0]), &[]);
    assert!(matches!(step, AdminStep::Namespace(_)));
    host.subsystem.sanitize.started = 1;
    host.subsystem.sanitize.state = SanitizeState::Running(1);
    let _ = host.controller.poll(&host.subsystem, host.now);
    assert_eq!(host.controller.take_async_event(), None);
    host.subsystem.sanitize.state = SanitizeState::Completed;
    let _ = host.controller.poll(&host.subsystem, host.now);
    assert_eq!(host.controller.take_async_event().unwrap().result, 0x0081_0106);
}

/// Checks for a former defect: the end of the operation was reported while the subsystem had not started it.
#[test]
fn sanitize_that_waits_for_its_start_is_not_reported_as_completed() {
    let mut host = AdminHost::new();
    host.subsystem.sanitize.started = 4;
    host.subsystem.sanitize.state = SanitizeState::Completed;
    assert_eq!(request(&mut host, 1), AdminStep::Held);
    assert!(matches!(host.step(&command(AdminOpcode::Sanitize, 0, [2, 0]), &[]), AdminStep::Namespace(_)));
    let _ = host.controller.poll(&host.subsystem, host.now);
    assert_eq!(host.controller.take_async_event(), None, "the state is that of the operation before");
    // An operation that runs and ends between two polls is reported too.
    host.subsystem.sanitize.started = 5;
    let _ = host.controller.poll(&host.subsystem, host.now);
    assert_eq!(host.controller.take_async_event().unwrap().result, 0x0081_0106);
    let _ = host.controller.poll(&host.subsystem, host.now);
    assert_eq!(host.controller.take_async_event(), None, "reported once");
}

/// Checks for a former defect: a reset left the controller waiting for the end of an operation that it had requested
/// before.
#[test]
fn a_reset_controller_does_not_report_the_sanitize_it_requested_before() {
    let mut host = AdminHost::new();
    let step = host.step(&command(AdminOpcode::Sanitize, 0, [2, 0]), &[]);
    assert!(matches!(step, AdminStep::Namespace(_)));
    host.subsystem.sanitize.started = 1;
    host.subsystem.sanitize.state = SanitizeState::Running(1);
    host.reset();
    assert_eq!(request(&mut host, 1), AdminStep::Held);
    host.subsystem.sanitize.state = SanitizeState::Completed;
    let _ = host.controller.poll(&host.subsystem, host.now);
    assert_eq!(host.controller.take_async_event(), None);
}

#[test]
fn aborted_event_request_completes_and_any_other_abort_becomes_a_step() {
    let mut host = AdminHost::new();
    assert_eq!(request(&mut host, 33), AdminStep::Held);
    let abort = |queue: u32, id: u32| command(AdminOpcode::Abort, 0, [id << 16 | queue, 0]);
    assert_eq!(host.execute(&abort(0, 33), &[]).result, 0);
    let answer = AsyncEventCompletion { command_id: 33, result: 0, status: Status::ABORT_REQUESTED };
    assert_eq!(host.controller.take_async_event(), Some(answer));
    for (queue, id) in [(0, 33), (4, 1)] {
        let step = host.step(&abort(queue.into(), id.into()), &[]);
        assert_eq!(step, AdminStep::Abort { queue: QueueId(queue), command: id });
    }
}

#[test]
fn medium_warning_is_reported_once() {
    let mut host = AdminHost::new();
    assert_eq!(host.set(0x0B, 0, 0x09), Ok(0));
    for command_id in 0..3 {
        assert_eq!(request(&mut host, command_id), AdminStep::Held);
    }
    host.subsystem.health.is_read_only = true;
    let _ = host.controller.poll(&host.subsystem, host.now);
    assert_eq!(host.controller.take_async_event().unwrap().result, 0x0002_0001);
    assert_eq!(host.log(0x02, 512).unwrap()[0], 1 << 3, "critical warning: read only");
    let _ = host.controller.poll(&host.subsystem, host.now);
    assert_eq!(host.controller.take_async_event(), None);
    host.subsystem.health.spare_is_low = true;
    let _ = host.controller.poll(&host.subsystem, host.now);
    assert_eq!(host.controller.take_async_event().unwrap().result, 0x0002_0201);
}

#[test]
fn reset_discards_requests_and_events() {
    let mut host = AdminHost::new();
    assert_eq!(request(&mut host, 1), AdminStep::Held);
    let _ = host.controller.write_register(0x14, 4, 0, host.now);
    host.controller.notify(AsyncEvent::InvalidDoorbell);
    assert_eq!(host.controller.take_async_event(), None, "the queue of the request is gone");
    host.controller.complete_disable();
    let _ = host.controller.write_register(0x14, 4, ENABLE_ALL_SETS, host.now);
    host.controller.complete_enable();
    assert!(host.controller.is_ready());
}
