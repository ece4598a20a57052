//! Tests of the target against a host that violates the protocol: each invalid field ends the connection with the fatal
//! error status and information that the specification requires.

use crate::raw::{
    TerminationFields, capsule, data, drain, entry, initialize, open_target, pdu, pdus, termination,
    with_header_digest,
};
use headwater_nvme::spec::completion::CompletionEntry;
use headwater_nvme::spec::status::Status;
use headwater_nvme::tcp::capsule_data::CapsuleData;
use headwater_nvme::tcp::target::{
    CloseReason, NeedOutcome, TargetParameters, TargetResponse, TargetStep, TransferNeed,
};
use headwater_nvme::tcp::{ExchangeSlot, TargetConnection};
use zerocopy::FromBytes;

/// FES.
const FIELD: u16 = 1;
const SEQUENCE: u16 = 2;
const HEADER_DIGEST: u16 = 3;
const RANGE: u16 = 4;
const LIMIT: u16 = 5;
const UNSUPPORTED: u16 = 6;

/// Passes bytes to a target, and asserts that it closes the connection with this status and information.
pub(crate) fn assert_refused(target: &mut TargetConnection, bytes: &[u8], status: u16, information: u32) {
    let before = drain(target.outgoing_mut());
    drop(before);
    let step = target.advance(&mut &bytes[..]);
    let TargetStep::Closed(CloseReason::Fault(fault)) = step else {
        panic!("the connection did not close: {step:?}");
    };
    assert_eq!(u16::from(fault.kind.number()), status, "{fault}");
    let TerminationFields { kind, status: fes, information: fei, header } =
        termination(&drain(target.outgoing_mut()));
    assert_eq!((kind, fes, fei), (3, status, information));
    assert!(bytes.starts_with(&header[..header.len().min(bytes.len())]), "the header is carried");
    assert!(!header.is_empty());
    // Further input is ignored.
    let more = initialize(0, 0, 0, 0, 0);
    assert!(matches!(target.advance(&mut &more[..]), TargetStep::Closed(_)));
    assert_eq!(target.outgoing().pending(), 0);
}

fn fresh() -> TargetConnection {
    TargetConnection::new(TargetParameters::default())
}

/// Passes the capsule of a command to a target; returns its slot.
pub(crate) fn command(target: &mut TargetConnection, bytes: &[u8]) -> ExchangeSlot {
    match target.advance(&mut &bytes[..]) {
        TargetStep::Command { slot, .. } => slot,
        other => panic!("expected a command, got {other:?}"),
    }
}

#[test]
fn unknown_or_controller_pdu_type_is_header_error_at_offset_0() {
    for kind in (0..=u8::MAX).filter(|kind| ![0, 2, 4, 6].contains(kind)) {
        assert_refused(&mut fresh(), &pdu(kind, 0, (24, 0, 24), &[0; 16]), FIELD, 0);
        assert_refused(&mut open_target(), &pdu(kind, 0, (24, 0, 24), &[0; 16]), FIELD, 0);
    }
}

#[test]
fn wrong_header_length_is_header_error_at_offset_2() {
    for (kind, right) in [(0, 128), (2, 24), (4, 72), (6, 24)] {
        for wrong in [0, 8, 16, 23, 25, 71, 73, 127, 129, 255_u8].into_iter().filter(|&wrong| wrong != right)
        {
            assert_refused(
                &mut open_target(),
                &pdu(kind, 0, (wrong, 0, u32::from(wrong)), &[0; 255]),
                FIELD,
                2,
            );
        }
    }
}

#[test]
fn wrong_pdu_length_is_header_error_at_offset_4() {
    assert_refused(&mut fresh(), &pdu(0, 0, (128, 0, 129), &[0; 120]), FIELD, 4);
    let entry = entry(0, 1, CapsuleData::None);
    let mut longer = capsule(&entry, &[]);
    for bytes in [0, 71, 72 + 8_193, u32::MAX] {
        longer[3] = 72;
        longer[4..8].copy_from_slice(&bytes.to_le_bytes());
        assert_refused(&mut open_target(), &longer, FIELD, 4);
    }
}

#[test]
fn unknown_format_version_is_unsupported_parameter() {
    assert_refused(&mut fresh(), &initialize(0, 1, 0, 0, 0), UNSUPPORTED, 8);
    assert_refused(&mut fresh(), &initialize(0, 0xFF00, 0, 0, 0), UNSUPPORTED, 8);
}

#[test]
fn alignment_above_31_is_header_error_at_offset_10() {
    assert_refused(&mut fresh(), &initialize(0, 0, 32, 0, 0), FIELD, 10);
    assert!(matches!(fresh().advance(&mut &initialize(0, 0, 31, 0, 0)[..]), TargetStep::NeedInput));
}

#[test]
fn initialize_request_must_be_first_and_only_once() {
    assert_refused(&mut fresh(), &capsule(&entry(0, 1, CapsuleData::None), &[]), SEQUENCE, 0);
    assert_refused(&mut fresh(), &data(6, 4, (1, 0), (0, 4), &[0; 4]), SEQUENCE, 0);
    assert_refused(&mut open_target(), &initialize(0, 0, 0, 0, 0), SEQUENCE, 0);
}

#[test]
fn digest_flag_not_negotiated_is_header_error_at_offset_1() {
    let plain = capsule(&entry(0, 1, CapsuleData::None), &[]);
    assert_refused(&mut open_target(), &with_header_digest(plain.clone()), FIELD, 1);
    let mut target = fresh();
    let _ = target.advance(&mut &initialize(0, 0, 0, 1, 0)[..]);
    let mut unflagged = with_header_digest(plain);
    unflagged[1] = 0;
    let digest = headwater_host::copy::crc32c(0, &unflagged[..72]).to_le_bytes();
    unflagged[72..76].copy_from_slice(&digest);
    assert_refused(&mut target, &unflagged, FIELD, 1);
}

#[test]
fn wrong_header_digest_ends_connection_and_is_reported() {
    for bit in 0..72 * 8_usize {
        // Type, flags and HLEN are validated before the digest is received.
        if bit < 24 {
            continue;
        }
        let mut target = fresh();
        let _ = target.advance(&mut &initialize(0, 0, 0, 1, 0)[..]);
        let mut bytes = with_header_digest(capsule(&entry(1, 1, CapsuleData::None), &[]));
        bytes[bit / 8] ^= 1 << (bit % 8);
        let digest = u32::from_le_bytes(bytes[72..76].try_into().unwrap());
        assert_refused(&mut target, &bytes, HEADER_DIGEST, digest);
    }
}

#[test]
fn misplaced_in_capsule_data_is_header_error_at_offset_3() {
    let entry = entry(1, 1, CapsuleData::InCapsule { offset: 0, bytes: 64 });
    for offset in [0, 8, 71, 73, 74, 75] {
        let mut bytes = capsule(&entry, &[0; 64]);
        bytes[3] = offset;
        assert_refused(&mut open_target(), &bytes, FIELD, 3);
    }
}

#[test]
fn more_commands_than_queue_entries_are_sequence_error() {
    let mut target = open_target();
    for command_id in 0..8 {
        let slot = command(&mut target, &capsule(&entry(0, command_id, CapsuleData::None), &[]));
        assert_eq!(target.declare_need(slot, TransferNeed::None), NeedOutcome::Now);
    }
    assert_refused(&mut target, &capsule(&entry(0, 8, CapsuleData::None), &[]), SEQUENCE, 0);
}

#[test]
fn only_one_command_is_allowed_before_connect() {
    let mut target = fresh();
    let _ = target.advance(&mut &initialize(0, 0, 0, 0, 0)[..]);
    let slot = command(&mut target, &capsule(&entry(0, 0, CapsuleData::None), &[]));
    assert_eq!(target.declare_need(slot, TransferNeed::None), NeedOutcome::Now);
    assert_refused(&mut target, &capsule(&entry(0, 1, CapsuleData::None), &[]), SEQUENCE, 0);
}

#[test]
fn command_id_in_use_is_conflict_and_keeps_first_command() {
    let mut target = open_target();
    let bytes = capsule(&entry(0, 5, CapsuleData::None), &[]);
    let slot = command(&mut target, &bytes);
    assert_eq!(target.declare_need(slot, TransferNeed::None), NeedOutcome::Now);
    assert!(matches!(target.advance(&mut &bytes[..]), TargetStep::NeedInput));
    assert_eq!(only_status(&mut target), (5, Status::COMMAND_ID_CONFLICT));
    target.respond(slot, TargetResponse::status(Status::SUCCESS));
    assert_eq!(only_status(&mut target), (5, Status::SUCCESS));
    command(&mut target, &bytes);
}

/// Checks for a former defect: SPDK reuses the identifier of an Asynchronous Event Request that it has given up to read CC when
/// it detaches. It got a conflict, and detached without a shutdown.
#[test]
fn command_id_of_held_command_can_be_used_again() {
    let mut target = open_target();
    let bytes = capsule(&entry(0, 5, CapsuleData::None), &[]);
    for _ in 0..20 {
        let held = command(&mut target, &bytes);
        assert_eq!(target.declare_need(held, TransferNeed::None), NeedOutcome::Now);
        target.hold(held);
    }
    let slot = command(&mut target, &bytes);
    assert_eq!(target.declare_need(slot, TransferNeed::None), NeedOutcome::Now);
    assert!(matches!(target.advance(&mut &bytes[..]), TargetStep::NeedInput));
    assert_eq!(only_status(&mut target), (5, Status::COMMAND_ID_CONFLICT), "it is not held");
    target.respond(slot, TargetResponse::status(Status::SUCCESS));
    assert_eq!(only_status(&mut target), (5, Status::SUCCESS), "one response");
}

/// Removes the only response from the send queue; returns its command identifier and status.
pub(crate) fn only_status(target: &mut TargetConnection) -> (u16, Status) {
    let sent = drain(target.outgoing_mut());
    assert_eq!(sent.len(), 24, "one response");
    let entry = CompletionEntry::read_from_bytes(&sent[8..]).unwrap();
    (entry.command_id.get(), entry.status())
}

#[test]
fn short_data_pointer_fails_command_and_keeps_connection_open() {
    let mut target = open_target();
    let inside = entry(1, 1, CapsuleData::InCapsule { offset: 0, bytes: 65 });
    assert!(matches!(target.advance(&mut &capsule(&inside, &[0; 64])[..]), TargetStep::NeedInput));
    assert_eq!(only_status(&mut target), (1, Status::DATA_SGL_LENGTH_INVALID));
    for need in [TransferNeed::FromHost(4_097), TransferNeed::ToHost(4_097)] {
        let opcode = if matches!(need, TransferNeed::ToHost(_)) { 2 } else { 1 };
        let bytes = capsule(&entry(opcode, 2, CapsuleData::Transport { bytes: 4_096 }), &[]);
        let slot = command(&mut target, &bytes);
        assert_eq!(target.declare_need(slot, need), NeedOutcome::Refused);
        assert_eq!(only_status(&mut target), (2, Status::DATA_SGL_LENGTH_INVALID));
    }
    assert_eq!(target.live_commands(), 0);
}

/// Creates a target that has requested 20,000 bytes for command 3; returns it with the transfer tag.
fn target_awaiting_data() -> (TargetConnection, u16) {
    let mut target = open_target();
    let slot = command(&mut target, &capsule(&entry(1, 3, CapsuleData::Transport { bytes: 20_000 }), &[]));
    assert_eq!(target.declare_need(slot, TransferNeed::FromHost(20_000)), NeedOutcome::Later);
    let sent = pdus(&drain(target.outgoing_mut()));
    assert_eq!(sent, [data(9, 0, (3, slot.0), (0, 16_384), &[])], "one R2T, the limit of MAXR2T");
    (target, slot.0)
}

#[test]
fn host_data_must_match_transfer_tag_and_command_id() {
    let (mut target, tag) = target_awaiting_data();
    assert_refused(&mut target, &data(6, 0, (3, tag + 1), (0, 8_192), &[0; 8_192]), FIELD, 10);
    let (mut target, _) = target_awaiting_data();
    assert_refused(&mut target, &data(6, 0, (3, u16::MAX), (0, 8_192), &[0; 8_192]), FIELD, 10);
    let (mut target, tag) = target_awaiting_data();
    assert_refused(&mut target, &data(6, 0, (4, tag), (0, 8_192), &[0; 8_192]), FIELD, 8);
}

#[test]
fn host_data_outside_r2t_is_out_of_range() {
    for (offset, bytes) in [(16_384, 4_u32), (16_380, 8), (u32::MAX, 1), (16_383, 8_192)] {
        let (mut target, tag) = target_awaiting_data();
        let payload = vec![0; usize::try_from(bytes).unwrap()];
        assert_refused(&mut target, &data(6, 4, (3, tag), (offset, bytes), &payload), RANGE, 0);
    }
}

#[test]
fn host_data_out_of_order_is_sequence_error() {
    let (mut target, tag) = target_awaiting_data();
    assert_refused(&mut target, &data(6, 0, (3, tag), (4, 8_192), &[0; 8_192]), SEQUENCE, 0);
}

#[test]
fn host_data_above_maxh2cdata_exceeds_the_limit() {
    let (mut target, tag) = target_awaiting_data();
    assert_refused(&mut target, &data(6, 0, (3, tag), (0, 8_193), &[0; 8_193]), LIMIT, 0);
}

#[test]
fn empty_host_data_is_header_error_at_offset_16() {
    let (mut target, tag) = target_awaiting_data();
    let mut bytes = data(6, 0, (3, tag), (0, 0), &[]);
    bytes[3] = 24;
    assert_refused(&mut target, &bytes, FIELD, 16);
}

#[test]
fn last_flag_is_required_exactly_at_end_of_r2t() {
    let (mut target, tag) = target_awaiting_data();
    assert_refused(&mut target, &data(6, 4, (3, tag), (0, 8_192), &[0; 8_192]), FIELD, 1);
    let (mut target, tag) = target_awaiting_data();
    assert!(matches!(
        target.advance(&mut &data(6, 0, (3, tag), (0, 8_192), &[0; 8_192])[..]),
        TargetStep::NeedInput
    ));
    assert_refused(&mut target, &data(6, 0, (3, tag), (8_192, 8_192), &[0; 8_192]), FIELD, 1);
}

#[test]
fn second_r2t_follows_when_first_is_complete() {
    let (mut target, tag) = target_awaiting_data();
    for (flags, offset) in [(0, 0), (4, 8_192)] {
        let bytes = data(6, flags, (3, tag), (offset, 8_192), &[9; 8_192]);
        assert!(matches!(target.advance(&mut &bytes[..]), TargetStep::NeedInput));
    }
    assert_eq!(pdus(&drain(target.outgoing_mut())), [data(9, 0, (3, tag), (16_384, 3_616), &[])]);
    let last = data(6, 4, (3, tag), (16_384, 3_616), &[8; 3_616]);
    assert!(matches!(target.advance(&mut &last[..]), TargetStep::Ready(slot) if slot.0 == tag));
    let data = target.take_data(ExchangeSlot(tag));
    assert_eq!((data.len(), data[0], data[19_999]), (20_000, 9, 8));
}

#[test]
fn data_for_answered_command_matches_no_transfer() {
    let (mut target, tag) = target_awaiting_data();
    let mut at = 0;
    for (flags, bytes) in [(0, 8_192_u32), (4, 8_192), (4, 3_616)] {
        let payload = vec![1; usize::try_from(bytes).unwrap()];
        let _ = target.advance(&mut &data(6, flags, (3, tag), (at, bytes), &payload)[..]);
        at += bytes;
    }
    target.respond(ExchangeSlot(tag), TargetResponse::status(Status::SUCCESS));
    assert_refused(&mut target, &data(6, 4, (3, tag), (0, 4), &[0; 4]), FIELD, 10);
}

#[test]
fn wrong_data_digest_fails_command_and_keeps_connection_open() {
    let mut target = fresh();
    let _ = target.advance(&mut &initialize(0, 0, 0, 2, 0)[..]);
    drain(target.outgoing_mut());
    let write = entry(1, 9, CapsuleData::InCapsule { offset: 0, bytes: 64 });
    let mut bytes = capsule(&write, &[0; 68]);
    bytes[1] = 2;
    let slot = {
        let mut input = &bytes[..];
        let TargetStep::Command { slot, .. } = target.advance(&mut input) else { panic!("no command") };
        assert_eq!(target.declare_need(slot, TransferNeed::FromHost(64)), NeedOutcome::Later);
        assert!(
            matches!(target.advance(&mut input), TargetStep::NeedInput),
            "the command never becomes ready"
        );
        slot
    };
    let sent = drain(target.outgoing_mut());
    assert_eq!(sent.len(), 24);
    let entry = CompletionEntry::read_from_bytes(&sent[8..]).unwrap();
    assert_eq!((entry.command_id.get(), entry.status()), (9, Status::TRANSIENT_TRANSPORT_ERROR));
    let again = command(&mut target, &capsule(&crate::raw::entry(0, 9, CapsuleData::None), &[]));
    assert_eq!(again, slot, "the slot is free again");
}

#[test]
fn termination_request_is_never_answered() {
    for bytes in [pdu(2, 0, (24, 0, 24), &[5; 16]), pdu(2, 0xFF, (24, 0, u32::MAX), &[5; 16])] {
        let mut target = open_target();
        assert!(matches!(
            target.advance(&mut &bytes[..]),
            TargetStep::Closed(CloseReason::Peer { status: 0x0505, information: 0x0505_0505 })
        ));
        assert_eq!(target.outgoing().pending(), 0);
    }
}

#[test]
fn writes_wait_for_limit_and_larger_write_is_requested_alone() {
    let parameters = TargetParameters { write_bytes_max: 10_000, ..TargetParameters::default() };
    let mut target = TargetConnection::new(parameters);
    let _ = target.advance(&mut &initialize(0, 0, 0, 0, 0)[..]);
    target.set_queue(8, headwater_nvme::tcp::target::FlowControl::Disabled);
    drain(target.outgoing_mut());
    for (command_id, bytes) in [(1, 6_000), (2, 6_000), (3, 50_000)] {
        let write = capsule(&entry(1, command_id, CapsuleData::Transport { bytes }), &[]);
        let slot = command(&mut target, &write);
        assert_eq!(target.declare_need(slot, TransferNeed::FromHost(bytes)), NeedOutcome::Later);
    }
    for (command_id, tag, bytes) in [(1, 0, 6_000_u32), (2, 1, 6_000), (3, 2, 50_000)] {
        let sent = pdus(&drain(target.outgoing_mut()));
        let r2ts: Vec<_> = sent.iter().filter(|pdu| pdu[0] == 9).collect();
        assert_eq!(r2ts, [&data(9, 0, (command_id, tag), (0, bytes), &[])], "one at a time");
        let payload = vec![0; usize::try_from(bytes).unwrap()];
        let step = target.advance(&mut &data(6, 4, (command_id, tag), (0, bytes), &payload)[..]);
        assert!(matches!(step, TargetStep::Ready(_)));
        target.respond(ExchangeSlot(tag), TargetResponse::status(Status::SUCCESS));
    }
}
