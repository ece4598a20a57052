//! A host that breaks the rules, against the target: each broken field has the fatal error status and information that the
//! specification names for it, and the connection is over.

use crate::raw::{
    Termination, capsule, data, drain, entry, initialize, open_target, pdu, pdus, termination,
    with_header_digest,
};
use headwater_nvme::spec::completion::CompletionEntry;
use headwater_nvme::spec::status::Status;
use headwater_nvme::tcp::capsule_data::CapsuleData;
use headwater_nvme::tcp::target::{Ended, Need, Response, TargetParameters, TargetStep, Wanted};
use headwater_nvme::tcp::{Slot, TargetConnection};
use zerocopy::FromBytes;

/// FES.
const FIELD: u16 = 1;
const SEQUENCE: u16 = 2;
const HEADER_DIGEST: u16 = 3;
const RANGE: u16 = 4;
const LIMIT: u16 = 5;
const UNSUPPORTED: u16 = 6;

fn refused(target: &mut TargetConnection, bytes: &[u8], status: u16, information: u32) {
    let before = drain(target.outgoing_mut());
    drop(before);
    let step = target.advance(&mut &bytes[..]);
    let TargetStep::Closed(Ended::Fault(fault)) = step else {
        panic!("the connection goes on: {step:?}");
    };
    assert_eq!(u16::from(fault.kind.number()), status, "{fault}");
    let Termination { kind, status: fes, information: fei, header } =
        termination(&drain(target.outgoing_mut()));
    assert_eq!((kind, fes, fei), (3, status, information));
    assert!(bytes.starts_with(&header[..header.len().min(bytes.len())]), "the header comes back");
    assert!(!header.is_empty());
    // Whatever follows is not read.
    let more = initialize(0, 0, 0, 0, 0);
    assert!(matches!(target.advance(&mut &more[..]), TargetStep::Closed(_)));
    assert_eq!(target.outgoing().pending(), 0);
}

fn fresh() -> TargetConnection {
    TargetConnection::new(TargetParameters::default())
}

fn command(target: &mut TargetConnection, bytes: &[u8]) -> Slot {
    match target.advance(&mut &bytes[..]) {
        TargetStep::Command { slot, .. } => slot,
        other => panic!("no command: {other:?}"),
    }
}

#[test]
fn a_type_that_is_none_or_goes_the_other_way_is_a_header_error_at_offset_0() {
    for kind in (0..=u8::MAX).filter(|kind| ![0, 2, 4, 6].contains(kind)) {
        refused(&mut fresh(), &pdu(kind, 0, (24, 0, 24), &[0; 16]), FIELD, 0);
        refused(&mut open_target(), &pdu(kind, 0, (24, 0, 24), &[0; 16]), FIELD, 0);
    }
}

#[test]
fn a_wrong_header_length_is_a_header_error_at_offset_2() {
    for (kind, right) in [(0, 128), (2, 24), (4, 72), (6, 24)] {
        for wrong in [0, 8, 16, 23, 25, 71, 73, 127, 129, 255_u8].into_iter().filter(|&wrong| wrong != right)
        {
            refused(&mut open_target(), &pdu(kind, 0, (wrong, 0, u32::from(wrong)), &[0; 255]), FIELD, 2);
        }
    }
}

#[test]
fn a_pdu_length_that_does_not_fit_is_a_header_error_at_offset_4() {
    refused(&mut fresh(), &pdu(0, 0, (128, 0, 129), &[0; 120]), FIELD, 4);
    let entry = entry(0, 1, CapsuleData::None);
    let mut longer = capsule(&entry, &[]);
    for bytes in [0, 71, 72 + 8_193, u32::MAX] {
        longer[3] = 72;
        longer[4..8].copy_from_slice(&bytes.to_le_bytes());
        refused(&mut open_target(), &longer, FIELD, 4);
    }
}

#[test]
fn an_initialize_request_of_another_format_is_an_unsupported_parameter() {
    refused(&mut fresh(), &initialize(0, 1, 0, 0, 0), UNSUPPORTED, 8);
    refused(&mut fresh(), &initialize(0, 0xFF00, 0, 0, 0), UNSUPPORTED, 8);
}

#[test]
fn an_alignment_above_31_is_a_header_error_at_offset_10() {
    refused(&mut fresh(), &initialize(0, 0, 32, 0, 0), FIELD, 10);
    assert!(matches!(fresh().advance(&mut &initialize(0, 0, 31, 0, 0)[..]), TargetStep::Starved));
}

#[test]
fn nothing_comes_before_the_initialize_request_and_it_comes_once() {
    refused(&mut fresh(), &capsule(&entry(0, 1, CapsuleData::None), &[]), SEQUENCE, 0);
    refused(&mut fresh(), &data(6, 4, (1, 0), (0, 4), &[0; 4]), SEQUENCE, 0);
    refused(&mut open_target(), &initialize(0, 0, 0, 0, 0), SEQUENCE, 0);
}

#[test]
fn a_digest_flag_that_was_not_agreed_is_a_header_error_at_offset_1() {
    let plain = capsule(&entry(0, 1, CapsuleData::None), &[]);
    refused(&mut open_target(), &with_header_digest(plain.clone()), FIELD, 1);
    let mut target = fresh();
    let _ = target.advance(&mut &initialize(0, 0, 0, 1, 0)[..]);
    let mut unflagged = with_header_digest(plain);
    unflagged[1] = 0;
    let digest = headwater_host::copy::crc32c(0, &unflagged[..72]).to_le_bytes();
    unflagged[72..76].copy_from_slice(&digest);
    refused(&mut target, &unflagged, FIELD, 1);
}

#[test]
fn a_wrong_header_digest_ends_the_connection_and_is_told_back() {
    for bit in 0..72 * 8_usize {
        // Type, flags and HLEN are judged before there is a digest to look at.
        if bit < 24 {
            continue;
        }
        let mut target = fresh();
        let _ = target.advance(&mut &initialize(0, 0, 0, 1, 0)[..]);
        let mut bytes = with_header_digest(capsule(&entry(1, 1, CapsuleData::None), &[]));
        bytes[bit / 8] ^= 1 << (bit % 8);
        let digest = u32::from_le_bytes(bytes[72..76].try_into().unwrap());
        refused(&mut target, &bytes, HEADER_DIGEST, digest);
    }
}

#[test]
fn in_capsule_data_that_begins_in_the_header_or_off_its_alignment_is_a_header_error_at_offset_3() {
    let entry = entry(1, 1, CapsuleData::InCapsule { offset: 0, bytes: 64 });
    for offset in [0, 8, 71, 73, 74, 75] {
        let mut bytes = capsule(&entry, &[0; 64]);
        bytes[3] = offset;
        refused(&mut open_target(), &bytes, FIELD, 3);
    }
}

#[test]
fn more_commands_than_the_queue_has_entries_are_a_sequence_error() {
    let mut target = open_target();
    for command_id in 0..8 {
        let slot = command(&mut target, &capsule(&entry(0, command_id, CapsuleData::None), &[]));
        assert_eq!(target.want(slot, Need::None), Wanted::Now);
    }
    refused(&mut target, &capsule(&entry(0, 8, CapsuleData::None), &[]), SEQUENCE, 0);
}

#[test]
fn before_connect_there_is_one_command() {
    let mut target = fresh();
    let _ = target.advance(&mut &initialize(0, 0, 0, 0, 0)[..]);
    let slot = command(&mut target, &capsule(&entry(0, 0, CapsuleData::None), &[]));
    assert_eq!(target.want(slot, Need::None), Wanted::Now);
    refused(&mut target, &capsule(&entry(0, 1, CapsuleData::None), &[]), SEQUENCE, 0);
}

#[test]
fn a_command_id_in_use_is_a_conflict_and_harms_nobody() {
    let mut target = open_target();
    let bytes = capsule(&entry(0, 5, CapsuleData::None), &[]);
    let slot = command(&mut target, &bytes);
    assert_eq!(target.want(slot, Need::None), Wanted::Now);
    assert!(matches!(target.advance(&mut &bytes[..]), TargetStep::Starved));
    assert_eq!(only_status(&mut target), (5, Status::COMMAND_ID_CONFLICT));
    target.respond(slot, Response::status(Status::SUCCESS));
    assert_eq!(only_status(&mut target), (5, Status::SUCCESS));
    command(&mut target, &bytes);
}

/// The one response capsule that is to be sent.
fn only_status(target: &mut TargetConnection) -> (u16, Status) {
    let sent = drain(target.outgoing_mut());
    assert_eq!(sent.len(), 24, "one response");
    let entry = CompletionEntry::read_from_bytes(&sent[8..]).unwrap();
    (entry.command_id.get(), entry.status())
}

#[test]
fn a_data_pointer_without_room_is_refused_with_its_status_and_the_connection_goes_on() {
    let mut target = open_target();
    let inside = entry(1, 1, CapsuleData::InCapsule { offset: 0, bytes: 65 });
    assert!(matches!(target.advance(&mut &capsule(&inside, &[0; 64])[..]), TargetStep::Starved));
    assert_eq!(only_status(&mut target), (1, Status::DATA_SGL_LENGTH_INVALID));
    for need in [Need::FromHost(4_097), Need::ToHost(4_097)] {
        let opcode = if matches!(need, Need::ToHost(_)) { 2 } else { 1 };
        let bytes = capsule(&entry(opcode, 2, CapsuleData::Transport { bytes: 4_096 }), &[]);
        let slot = command(&mut target, &bytes);
        assert_eq!(target.want(slot, need), Wanted::Refused);
        assert_eq!(only_status(&mut target), (2, Status::DATA_SGL_LENGTH_INVALID));
    }
    assert_eq!(target.live_commands(), 0);
}

/// A target that has asked for 20,000 bytes of command 3: its slot.
fn asking() -> (TargetConnection, u16) {
    let mut target = open_target();
    let slot = command(&mut target, &capsule(&entry(1, 3, CapsuleData::Transport { bytes: 20_000 }), &[]));
    assert_eq!(target.want(slot, Need::FromHost(20_000)), Wanted::Later);
    let sent = pdus(&drain(target.outgoing_mut()));
    assert_eq!(sent, [data(9, 0, (3, slot.0), (0, 16_384), &[])], "one R2T, as MAXR2T allows");
    (target, slot.0)
}

#[test]
fn host_data_must_name_a_transfer_and_its_command() {
    let (mut target, tag) = asking();
    refused(&mut target, &data(6, 0, (3, tag + 1), (0, 8_192), &[0; 8_192]), FIELD, 10);
    let (mut target, _) = asking();
    refused(&mut target, &data(6, 0, (3, u16::MAX), (0, 8_192), &[0; 8_192]), FIELD, 10);
    let (mut target, tag) = asking();
    refused(&mut target, &data(6, 0, (4, tag), (0, 8_192), &[0; 8_192]), FIELD, 8);
}

#[test]
fn host_data_must_lie_in_what_was_asked_for() {
    for (offset, bytes) in [(16_384, 4_u32), (16_380, 8), (u32::MAX, 1), (16_383, 8_192)] {
        let (mut target, tag) = asking();
        let payload = vec![0; usize::try_from(bytes).unwrap()];
        refused(&mut target, &data(6, 4, (3, tag), (offset, bytes), &payload), RANGE, 0);
    }
}

#[test]
fn host_data_out_of_order_is_a_sequence_error() {
    let (mut target, tag) = asking();
    refused(&mut target, &data(6, 0, (3, tag), (4, 8_192), &[0; 8_192]), SEQUENCE, 0);
}

#[test]
fn host_data_above_maxh2cdata_exceeds_the_limit() {
    let (mut target, tag) = asking();
    refused(&mut target, &data(6, 0, (3, tag), (0, 8_193), &[0; 8_193]), LIMIT, 0);
}

#[test]
fn host_data_of_no_bytes_is_a_header_error_at_offset_16() {
    let (mut target, tag) = asking();
    let mut bytes = data(6, 0, (3, tag), (0, 0), &[]);
    bytes[3] = 24;
    refused(&mut target, &bytes, FIELD, 16);
}

#[test]
fn the_last_flag_stands_at_the_end_of_a_transfer_and_nowhere_else() {
    let (mut target, tag) = asking();
    refused(&mut target, &data(6, 4, (3, tag), (0, 8_192), &[0; 8_192]), FIELD, 1);
    let (mut target, tag) = asking();
    assert!(matches!(
        target.advance(&mut &data(6, 0, (3, tag), (0, 8_192), &[0; 8_192])[..]),
        TargetStep::Starved
    ));
    refused(&mut target, &data(6, 0, (3, tag), (8_192, 8_192), &[0; 8_192]), FIELD, 1);
}

#[test]
fn a_second_r2t_follows_when_the_first_has_its_data() {
    let (mut target, tag) = asking();
    for (flags, offset) in [(0, 0), (4, 8_192)] {
        let bytes = data(6, flags, (3, tag), (offset, 8_192), &[9; 8_192]);
        assert!(matches!(target.advance(&mut &bytes[..]), TargetStep::Starved));
    }
    assert_eq!(pdus(&drain(target.outgoing_mut())), [data(9, 0, (3, tag), (16_384, 3_616), &[])]);
    let last = data(6, 4, (3, tag), (16_384, 3_616), &[8; 3_616]);
    assert!(matches!(target.advance(&mut &last[..]), TargetStep::Ready(slot) if slot.0 == tag));
    let data = target.take_data(Slot(tag));
    assert_eq!((data.len(), data[0], data[19_999]), (20_000, 9, 8));
}

#[test]
fn data_for_a_command_that_was_answered_names_no_transfer() {
    let (mut target, tag) = asking();
    let mut at = 0;
    for (flags, bytes) in [(0, 8_192_u32), (4, 8_192), (4, 3_616)] {
        let payload = vec![1; usize::try_from(bytes).unwrap()];
        let _ = target.advance(&mut &data(6, flags, (3, tag), (at, bytes), &payload)[..]);
        at += bytes;
    }
    target.respond(Slot(tag), Response::status(Status::SUCCESS));
    refused(&mut target, &data(6, 4, (3, tag), (0, 4), &[0; 4]), FIELD, 10);
}

#[test]
fn a_wrong_data_digest_fails_the_command_and_not_the_connection() {
    let mut target = fresh();
    let _ = target.advance(&mut &initialize(0, 0, 0, 2, 0)[..]);
    drain(target.outgoing_mut());
    let write = entry(1, 9, CapsuleData::InCapsule { offset: 0, bytes: 64 });
    let mut bytes = capsule(&write, &[0; 68]);
    bytes[1] = 2;
    let slot = {
        let mut input = &bytes[..];
        let TargetStep::Command { slot, .. } = target.advance(&mut input) else { panic!("no command") };
        assert_eq!(target.want(slot, Need::FromHost(64)), Wanted::Later);
        assert!(matches!(target.advance(&mut input), TargetStep::Starved), "it is never ready");
        slot
    };
    let sent = drain(target.outgoing_mut());
    assert_eq!(sent.len(), 24);
    let entry = CompletionEntry::read_from_bytes(&sent[8..]).unwrap();
    assert_eq!((entry.command_id.get(), entry.status()), (9, Status::TRANSIENT_TRANSPORT_ERROR));
    let again = command(&mut target, &capsule(&crate::raw::entry(0, 9, CapsuleData::None), &[]));
    assert_eq!(again, slot, "its place is free again");
}

#[test]
fn a_termination_request_is_never_answered() {
    for bytes in [pdu(2, 0, (24, 0, 24), &[5; 16]), pdu(2, 0xFF, (24, 0, u32::MAX), &[5; 16])] {
        let mut target = open_target();
        assert!(matches!(
            target.advance(&mut &bytes[..]),
            TargetStep::Closed(Ended::Peer { status: 0x0505, information: 0x0505_0505 })
        ));
        assert_eq!(target.outgoing().pending(), 0);
    }
}

#[test]
fn writes_wait_for_room_and_one_larger_than_all_room_goes_alone() {
    let parameters = TargetParameters { write_bytes_max: 10_000, ..TargetParameters::default() };
    let mut target = TargetConnection::new(parameters);
    let _ = target.advance(&mut &initialize(0, 0, 0, 0, 0)[..]);
    target.set_queue(8, headwater_nvme::tcp::target::FlowControl::Disabled);
    drain(target.outgoing_mut());
    for (command_id, bytes) in [(1, 6_000), (2, 6_000), (3, 50_000)] {
        let write = capsule(&entry(1, command_id, CapsuleData::Transport { bytes }), &[]);
        let slot = command(&mut target, &write);
        assert_eq!(target.want(slot, Need::FromHost(bytes)), Wanted::Later);
    }
    for (command_id, tag, bytes) in [(1, 0, 6_000_u32), (2, 1, 6_000), (3, 2, 50_000)] {
        let sent = pdus(&drain(target.outgoing_mut()));
        let asked: Vec<_> = sent.iter().filter(|pdu| pdu[0] == 9).collect();
        assert_eq!(asked, [&data(9, 0, (command_id, tag), (0, bytes), &[])], "one at a time");
        let payload = vec![0; usize::try_from(bytes).unwrap()];
        let step = target.advance(&mut &data(6, 4, (command_id, tag), (0, bytes), &payload)[..]);
        assert!(matches!(step, TargetStep::Ready(_)));
        target.respond(Slot(tag), Response::status(Status::SUCCESS));
    }
}
