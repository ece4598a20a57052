//! Tests of data that a target's caller takes in parts: requests, order, limits, digests, and ends in the middle.

use crate::hostile_host::{assert_refused, command, only_status};
use crate::raw::{capsule, data, drain, entry, initialize, open_target, pdu, pdus};
use headwater_host::copy::crc32c;
use headwater_nvme::spec::status::Status;
use headwater_nvme::tcp::capsule_data::CapsuleData;
use headwater_nvme::tcp::target::{
    CloseReason, FlowControl, NeedOutcome, TargetParameters, TargetResponse, TargetStep, TransferNeed,
};
use headwater_nvme::tcp::{ExchangeSlot, TargetConnection};

/// The command that the tests send.
const ID: u16 = 3;
/// Its bytes, and those of them that are taken in parts: one R2T of 16,384 bytes and one of 3,616.
const BYTES: u32 = 20_500;
const DIRECT: u32 = 20_000;

/// Sends a command whose data is taken in parts; returns its slot.
fn begin(target: &mut TargetConnection, bytes: u32, direct: u32) -> ExchangeSlot {
    let slot = command(target, &capsule(&entry(1, ID, CapsuleData::Transport { bytes }), &[]));
    assert_eq!(target.declare_need(slot, TransferNeed::InParts { bytes, direct }), NeedOutcome::Later);
    assert_eq!(target.outgoing().pending(), 0, "nothing is requested before there is room");
    slot
}

/// Creates a target that has requested the first part of a command; returns it with the command's slot.
fn awaiting_part() -> (TargetConnection, ExchangeSlot) {
    let mut target = open_target();
    let slot = begin(&mut target, BYTES, DIRECT);
    assert_requests(&mut target, slot, &[(0, 16_384)]);
    (target, slot)
}

/// Requests what may be requested of a command, and asserts which R2Ts are sent.
fn assert_requests(target: &mut TargetConnection, slot: ExchangeSlot, expected: &[(u32, u32)]) {
    target.request_next(slot);
    let expected: Vec<_> = expected.iter().map(|range| data(9, 0, (ID, slot.0), *range, &[])).collect();
    assert_eq!(pdus(&drain(target.outgoing_mut())), expected);
}

fn pattern(range: (u32, u32)) -> Vec<u8> {
    (range.0..range.0 + range.1).map(|at| (at / 3).to_le_bytes()[0]).collect()
}

/// Builds an H2CData of the command with the pattern of its range.
fn part(slot: ExchangeSlot, flags: u8, range: (u32, u32)) -> Vec<u8> {
    data(6, flags, (ID, slot.0), range, &pattern(range))
}

/// Appends the data digest of a PDU, wrong by `error`.
fn with_data_digest(mut pdu: Vec<u8>, error: u32) -> Vec<u8> {
    pdu[1] |= 2;
    let bytes = u32::try_from(pdu.len()).unwrap() + 4;
    pdu[4..8].copy_from_slice(&bytes.to_le_bytes());
    let digest = crc32c(0, &pdu[24..]) ^ error;
    pdu.extend_from_slice(&digest.to_le_bytes());
    pdu
}

/// Passes bytes to a target, and takes at most `most` bytes of a part at a time. Returns these bytes and the step behind them.
fn receive(target: &mut TargetConnection, bytes: &[u8], most: usize) -> (Vec<u8>, TargetStep) {
    let (mut input, mut all) = (bytes, Vec::new());
    loop {
        match target.advance(&mut input) {
            TargetStep::Part(slot) if !input.is_empty() => {
                let arriving = target.arriving_part().expect("a part is next");
                assert_eq!(arriving.slot, slot);
                let count = most.min(input.len()).min(usize::try_from(arriving.bytes).unwrap());
                let (taken, rest) = input.split_at(count);
                target.take_part(count, arriving.digest.map_or(0, |digest| crc32c(digest, taken)));
                all.extend_from_slice(taken);
                input = rest;
            }
            step => {
                assert!(input.is_empty(), "{} bytes are left: {step:?}", input.len());
                return (all, step);
            }
        }
    }
}

#[test]
fn parts_are_requested_when_there_is_room_and_the_rest_is_gathered() {
    for most in [1, 700, 8_192] {
        let (mut target, slot) = awaiting_part();
        let (first, step) = receive(&mut target, &part(slot, 0, (0, 8_192)), most);
        assert!(matches!(step, TargetStep::NeedInput), "the host sends the rest of the part: {step:?}");
        assert_requests(&mut target, slot, &[]);
        let (second, step) = receive(&mut target, &part(slot, 4, (8_192, 8_192)), most);
        assert!(matches!(step, TargetStep::NextPart(next) if next == slot), "{step:?}");
        assert_eq!(target.outgoing().pending(), 0, "the next part is requested by the caller");
        assert_requests(&mut target, slot, &[(16_384, 3_616)]);
        let (third, step) = receive(&mut target, &part(slot, 4, (16_384, 3_616)), most);
        assert!(matches!(step, TargetStep::NeedInput), "{step:?}");
        assert_eq!([first, second, third].concat(), pattern((0, DIRECT)));
        let rest = (DIRECT, BYTES - DIRECT);
        assert_eq!(pdus(&drain(target.outgoing_mut())), [data(9, 0, (ID, slot.0), rest, &[])]);
        let (direct, step) = receive(&mut target, &part(slot, 4, rest), most);
        assert!(matches!(step, TargetStep::Ready(ready) if ready == slot), "{step:?}");
        assert!(direct.is_empty());
        assert_eq!(target.take_data(slot)[..], pattern(rest));
        assert!(target.is_unanswered(slot));
        target.respond(slot, TargetResponse::status(Status::SUCCESS));
        assert_eq!(only_status(&mut target), (ID, Status::SUCCESS));
        assert!(!target.is_unanswered(slot));
    }
}

#[test]
fn command_without_a_rest_is_ready_behind_its_last_part() {
    let mut target = open_target();
    let slot = begin(&mut target, 8_192, 8_192);
    assert_requests(&mut target, slot, &[(0, 8_192)]);
    let (taken, step) = receive(&mut target, &part(slot, 4, (0, 8_192)), 5_000);
    assert!(matches!(step, TargetStep::Ready(ready) if ready == slot), "{step:?}");
    assert_eq!(taken, pattern((0, 8_192)));
    assert!(target.take_data(slot).is_empty());
}

#[test]
fn part_that_is_not_taken_stays_next_in_the_stream() {
    let (mut target, slot) = awaiting_part();
    let bytes = part(slot, 0, (0, 8_192));
    let mut input = &bytes[..1_024];
    for _ in 0..3 {
        assert!(matches!(target.advance(&mut input), TargetStep::Part(next) if next == slot));
        assert_eq!(input.len(), 1_000, "data is not consumed");
        let arriving = target.arriving_part().unwrap();
        assert_eq!((arriving.slot, arriving.bytes, arriving.digest), (slot, 8_192, None));
    }
    // Received into its destination: no input.
    target.take_part(8_000, 0);
    assert!(matches!(target.advance(&mut &[][..]), TargetStep::Part(_)));
    assert_eq!(target.arriving_part().unwrap().bytes, 192);
    target.take_part(192, 0);
    assert!(matches!(target.advance(&mut &[][..]), TargetStep::NeedInput));
    assert_eq!(target.arriving_part(), None);
}

#[test]
#[should_panic(expected = "8193 bytes of data recorded, 8192 left")]
fn caller_that_takes_more_than_a_part_panics() {
    let (mut target, slot) = awaiting_part();
    let _ = target.advance(&mut &part(slot, 0, (0, 8_192))[..]);
    target.take_part(8_193, 0);
}

#[test]
fn data_in_the_capsule_comes_as_a_whole() {
    let mut target = open_target();
    let inside = entry(1, ID, CapsuleData::InCapsule { offset: 0, bytes: 600 });
    let bytes = capsule(&inside, &pattern((0, 600)));
    let mut input = &bytes[..];
    let TargetStep::Command { slot, .. } = target.advance(&mut input) else { panic!("no command") };
    let need = TransferNeed::InParts { bytes: 600, direct: 512 };
    assert_eq!(target.declare_need(slot, need), NeedOutcome::Later);
    assert!(matches!(target.advance(&mut input), TargetStep::Ready(ready) if ready == slot));
    assert_eq!(target.take_data(slot)[..], pattern((0, 600)));
}

#[test]
fn data_outside_of_a_requested_part_ends_the_connection() {
    // Behind the R2T, in front of the position, behind the position, and longer than the R2T.
    for (flags, range, status) in [
        (0, (16_384, 4), 4),
        (0, (4, 8_192), 2),
        (4, (16_380, 4), 2),
        (4, (16_380, 8), 4),
        (0, (u32::MAX, 1), 4),
    ] {
        let (mut target, slot) = awaiting_part();
        let bytes = vec![0; usize::try_from(range.1).unwrap()];
        assert_refused(&mut target, &data(6, flags, (ID, slot.0), range, &bytes), status, 0);
        assert_eq!(target.arriving_part(), None);
    }
    let mut target = open_target();
    let slot = begin(&mut target, BYTES, DIRECT);
    assert_refused(&mut target, &part(slot, 4, (0, 4)), 4, 0);
    // A PDU does not go on behind the last part.
    let (mut target, slot) = awaiting_part();
    for (flags, offset) in [(0, 0), (4, 8_192)] {
        let _ = receive(&mut target, &part(slot, flags, (offset, 8_192)), usize::MAX);
    }
    assert_requests(&mut target, slot, &[(16_384, 3_616)]);
    assert_refused(&mut target, &part(slot, 4, (16_384, 3_616 + 500)), 4, 0);
}

#[test]
fn last_flag_of_a_part_is_required_exactly_at_its_end() {
    let (mut target, slot) = awaiting_part();
    assert_refused(&mut target, &part(slot, 4, (0, 8_192)), 1, 1);
    let (mut target, slot) = awaiting_part();
    let _ = receive(&mut target, &part(slot, 0, (0, 8_192)), usize::MAX);
    assert_refused(&mut target, &part(slot, 0, (8_192, 8_192)), 1, 1);
}

/// Creates a target with data digests that requests parts of 4,096 bytes, `r2ts` at a time.
fn digest_target(r2ts: u32) -> TargetConnection {
    let parameters = TargetParameters { r2t_bytes: 4_096, ..TargetParameters::default() };
    let mut target = TargetConnection::new(parameters);
    let _ = target.advance(&mut &initialize(0, 0, 0, 2, r2ts - 1)[..]);
    target.set_queue(8, FlowControl::Enabled);
    drain(target.outgoing_mut());
    target
}

#[test]
fn right_digests_of_parts_are_accepted_however_they_are_cut() {
    for most in [1, 1_000, 4_096] {
        let mut target = digest_target(1);
        let slot = begin(&mut target, 8_192, 8_192);
        for offset in [0, 4_096] {
            assert_requests(&mut target, slot, &[(offset, 4_096)]);
            let bytes = with_data_digest(part(slot, 4, (offset, 4_096)), 0);
            let (taken, step) = receive(&mut target, &bytes, most);
            assert_eq!(taken, pattern((offset, 4_096)));
            match offset {
                0 => assert!(matches!(step, TargetStep::NextPart(_)), "{step:?}"),
                _ => assert!(matches!(step, TargetStep::Ready(_)), "{step:?}"),
            }
        }
    }
}

#[test]
fn wrong_digest_of_a_part_fails_its_command_behind_what_was_requested() {
    let mut target = digest_target(2);
    let slot = begin(&mut target, 12_288, 12_288);
    assert_requests(&mut target, slot, &[(0, 4_096), (4_096, 4_096)]);
    let wrong = with_data_digest(part(slot, 4, (0, 4_096)), 1);
    assert!(matches!(receive(&mut target, &wrong, 1_000).1, TargetStep::NeedInput));
    let right = with_data_digest(part(slot, 4, (4_096, 4_096)), 0);
    let step = receive(&mut target, &right, 1_000).1;
    assert!(matches!(step, TargetStep::Failed(failed) if failed == slot), "{step:?}");
    assert_eq!(only_status(&mut target), (ID, Status::TRANSIENT_TRANSPORT_ERROR));
    assert_eq!(target.live_commands(), 0);
    assert_eq!(begin(&mut target, 4_096, 4_096), slot, "the connection serves on");
}

#[test]
fn wrong_digest_of_the_rest_fails_a_command_with_parts() {
    let mut target = digest_target(1);
    let slot = begin(&mut target, 4_196, 4_096);
    assert_requests(&mut target, slot, &[(0, 4_096)]);
    let right = with_data_digest(part(slot, 4, (0, 4_096)), 0);
    assert!(matches!(receive(&mut target, &right, 4_096).1, TargetStep::NeedInput));
    drain(target.outgoing_mut());
    let wrong = with_data_digest(part(slot, 4, (4_096, 100)), 1);
    let step = receive(&mut target, &wrong, 4_096).1;
    assert!(matches!(step, TargetStep::Failed(failed) if failed == slot), "{step:?}");
    assert_eq!(only_status(&mut target), (ID, Status::TRANSIENT_TRANSPORT_ERROR));
}

#[test]
fn padding_in_front_of_a_part_is_no_data_of_it() {
    for cut in [1, 25, 31, 32, 33, 4_000] {
        let mut target = open_target();
        let slot = begin(&mut target, 4_096, 4_096);
        assert_requests(&mut target, slot, &[(0, 4_096)]);
        let header = data(6, 4, (ID, slot.0), (0, 4_096), &[]);
        let rest = [&header[8..], &[0xEE; 8], &pattern((0, 4_096))[..]].concat();
        let bytes = pdu(6, 4, (24, 32, 32 + 4_096), &rest);
        let (mut all, mut last) = (Vec::new(), None);
        for piece in bytes.chunks(cut) {
            let (taken, step) = receive(&mut target, piece, usize::MAX);
            all.extend(taken);
            last = Some(step);
        }
        assert!(matches!(last, Some(TargetStep::Ready(_))), "{last:?}");
        assert_eq!(all, pattern((0, 4_096)), "in pieces of {cut}");
    }
}

#[test]
fn command_answered_between_parts_frees_its_slot() {
    let (mut target, slot) = awaiting_part();
    for (flags, offset) in [(0, 0), (4, 8_192)] {
        let _ = receive(&mut target, &part(slot, flags, (offset, 8_192)), usize::MAX);
    }
    target.respond(slot, TargetResponse::status(Status::ABORT_REQUESTED));
    assert_eq!(only_status(&mut target), (ID, Status::ABORT_REQUESTED));
    assert_requests(&mut target, slot, &[]);
    assert_eq!(begin(&mut target, BYTES, DIRECT), slot);
    assert_requests(&mut target, slot, &[(0, 16_384)]);
    target.respond(slot, TargetResponse::status(Status::ABORT_REQUESTED));
    drain(target.outgoing_mut());
    assert_refused(&mut target, &part(slot, 0, (0, 8_192)), 1, 10);
}

#[test]
fn command_answered_within_a_part_loses_the_rest_of_the_pdu_only() {
    let (mut target, slot) = awaiting_part();
    let bytes = part(slot, 0, (0, 8_192));
    let (taken, step) = receive(&mut target, &bytes[..1_024], usize::MAX);
    assert!(matches!(step, TargetStep::Part(_)), "{step:?}");
    assert_eq!(taken.len(), 1_000);
    target.respond(slot, TargetResponse::status(Status::ABORT_REQUESTED));
    assert_eq!(target.arriving_part(), None);
    assert!(matches!(target.advance(&mut &bytes[1_024..]), TargetStep::NeedInput));
    assert_eq!(only_status(&mut target), (ID, Status::ABORT_REQUESTED));
    assert_eq!(begin(&mut target, BYTES, DIRECT), slot);
}

#[test]
fn connection_closed_between_parts_requests_and_takes_nothing_more() {
    let (mut target, slot) = awaiting_part();
    for (flags, offset) in [(0, 0), (4, 8_192)] {
        let _ = receive(&mut target, &part(slot, flags, (offset, 8_192)), usize::MAX);
    }
    let termination = pdu(2, 0, (24, 0, 24), &[5; 16]);
    let step = target.advance(&mut &termination[..]);
    assert!(matches!(step, TargetStep::Closed(CloseReason::Peer { .. })), "{step:?}");
    let step = target.advance(&mut &part(slot, 0, (16_384, 3_616))[..]);
    assert!(matches!(step, TargetStep::Closed(_)), "{step:?}");
    assert_eq!(target.arriving_part(), None);
}

#[test]
fn parts_do_not_wait_for_the_limit_of_buffered_writes() {
    let parameters = TargetParameters { write_bytes_max: 10_000, ..TargetParameters::default() };
    let mut target = TargetConnection::new(parameters);
    let _ = target.advance(&mut &initialize(0, 0, 0, 0, 0)[..]);
    target.set_queue(8, FlowControl::Disabled);
    drain(target.outgoing_mut());
    let write = capsule(&entry(1, 9, CapsuleData::Transport { bytes: 9_000 }), &[]);
    let other = command(&mut target, &write);
    assert_eq!(target.declare_need(other, TransferNeed::FromHost(9_000)), NeedOutcome::Later);
    drain(target.outgoing_mut());
    let slot = begin(&mut target, 40_000, 38_000);
    assert_requests(&mut target, slot, &[(0, 38_000)]);
    assert!(matches!(receive(&mut target, &part(slot, 4, (0, 38_000)), 9_999).1, TargetStep::NeedInput));
    assert_eq!(target.outgoing().pending(), 0, "the rest waits for a buffer");
    let step = target.advance(&mut &data(6, 4, (9, other.0), (0, 9_000), &[0; 9_000])[..]);
    assert!(matches!(step, TargetStep::Ready(ready) if ready == other), "{step:?}");
    target.respond(other, TargetResponse::status(Status::SUCCESS));
    let sent = pdus(&drain(target.outgoing_mut()));
    assert!(sent.contains(&data(9, 0, (ID, slot.0), (38_000, 2_000), &[])), "{sent:?}");
    let step = receive(&mut target, &part(slot, 4, (38_000, 2_000)), 9_999).1;
    assert!(matches!(step, TargetStep::Ready(ready) if ready == slot), "{step:?}");
}
