//! Tests of the initiator against a controller that violates the protocol.

use crate::raw::{
    SharedBytes, TerminationFields, data, drain, initialize, open_host, pdu, termination, with_header_digest,
};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::completion::CompletionEntry;
use headwater_nvme::spec::status::Status;
use headwater_nvme::tcp::initiator::{CommandId, InitiatorSubmitError};
use headwater_nvme::tcp::send_queue::SendPiece;
use headwater_nvme::tcp::target::CloseReason;
use headwater_nvme::tcp::{
    CommandTransfer, InitiatorConnection, InitiatorParameters, InitiatorStep, LentBytes,
};
use std::ops::Range;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

const FIELD: u16 = 1;
const SEQUENCE: u16 = 2;
const RANGE: u16 = 4;

fn assert_refused(host: &mut InitiatorConnection<SharedBytes>, bytes: &[u8], status: u16, information: u32) {
    drain(host.outgoing_mut());
    let step = host.advance(&mut &bytes[..]);
    assert!(
        matches!(step, InitiatorStep::Closed(CloseReason::Fault(_))),
        "the connection did not close: {step:?}"
    );
    let TerminationFields { kind, status: fes, information: fei, .. } =
        termination(&drain(host.outgoing_mut()));
    assert_eq!((kind, fes, fei), (2, status, information));
    let outstanding = host.outstanding();
    assert_eq!(host.abandon().len(), outstanding, "every lent buffer is returned");
    assert_eq!(host.outstanding(), 0);
}

fn fresh() -> InitiatorConnection<SharedBytes> {
    InitiatorConnection::new(InitiatorParameters::default())
}

fn read(host: &mut InitiatorConnection<SharedBytes>, bytes: usize) -> CommandId {
    let entry = SubmissionEntry { opcode: 2, ..SubmissionEntry::default() };
    host.submit(entry, CommandTransfer::In(SharedBytes::of(vec![0; bytes]))).unwrap()
}

fn write(host: &mut InitiatorConnection<SharedBytes>, bytes: usize) -> CommandId {
    let entry = SubmissionEntry { opcode: 1, ..SubmissionEntry::default() };
    host.submit(entry, CommandTransfer::Out(SharedBytes::of(vec![7; bytes]))).unwrap()
}

fn response(command_id: u16, status: Status) -> Vec<u8> {
    let entry = CompletionEntry {
        command_id: U16::new(command_id),
        status_and_phase: U16::new(status.to_field()),
        result: U32::new(77),
        ..CompletionEntry::default()
    };
    pdu(5, 0, (24, 0, 24), entry.as_bytes())
}

#[test]
fn unknown_or_host_pdu_types_are_header_errors() {
    for kind in (0..=u8::MAX).filter(|kind| ![1, 3, 5, 7, 9].contains(kind)) {
        assert_refused(&mut open_host(0), &pdu(kind, 0, (24, 0, 24), &[0; 16]), FIELD, 0);
    }
}

#[test]
fn initialize_response_must_be_first_and_only_once() {
    assert_refused(&mut fresh(), &response(0, Status::SUCCESS), SEQUENCE, 0);
    assert_refused(&mut open_host(0), &initialize(1, 0, 0, 0, 4_096), SEQUENCE, 0);
}

#[test]
fn initialize_response_must_not_exceed_request() {
    assert_refused(&mut fresh(), &initialize(1, 0, 0, 1, 4_096), FIELD, 11);
    assert_refused(&mut fresh(), &initialize(1, 0, 0, 2, 4_096), FIELD, 11);
    assert_refused(&mut fresh(), &initialize(1, 0, 32, 0, 4_096), FIELD, 10);
    // MAXH2CDATA is at least 4,096 and a multiple of a dword.
    assert_refused(&mut fresh(), &initialize(1, 0, 0, 0, 4_095), FIELD, 12);
    assert_refused(&mut fresh(), &initialize(1, 0, 0, 0, 4_098), FIELD, 12);
}

#[test]
fn response_to_unknown_or_completed_command_ends_connection() {
    assert_refused(&mut open_host(0), &response(0, Status::SUCCESS), FIELD, 20);
    let mut host = open_host(0);
    let id = read(&mut host, 512);
    let bytes = response(id.0, Status::KEY_DOES_NOT_EXIST);
    let InitiatorStep::Completed(done) = host.advance(&mut &bytes[..]) else { panic!("not completed") };
    assert_eq!((done.id, done.entry.status(), done.received), (id, Status::KEY_DOES_NOT_EXIST, 0));
    assert_eq!(done.entry.result.get(), 77);
    let next = read(&mut host, 512);
    assert_eq!(next.slot(), id.slot());
    assert_refused(&mut host, &bytes, FIELD, 20);
}

#[test]
fn data_for_command_that_is_no_read_ends_connection() {
    let mut host = open_host(0);
    let id = write(&mut host, 10_000);
    assert_refused(&mut host, &data(7, 4, (id.0, 0), (0, 4), &[0; 4]), FIELD, 8);
    let mut host = open_host(0);
    assert_refused(&mut host, &data(7, 4, (1, 0), (0, 4), &[0; 4]), FIELD, 8);
}

#[test]
fn data_beyond_the_buffer_is_never_written() {
    for (offset, bytes) in [(508, 8_u32), (512, 4), (u32::MAX, 4), (0, 516)] {
        let mut host = open_host(0);
        let id = read(&mut host, 512);
        let payload = vec![1; usize::try_from(bytes).unwrap()];
        assert_refused(&mut host, &data(7, 4, (id.0, 0), (offset, bytes), &payload), RANGE, 0);
    }
}

#[test]
fn data_out_of_order_or_after_last_is_sequence_error() {
    let mut host = open_host(0);
    let id = read(&mut host, 512);
    assert_refused(&mut host, &data(7, 4, (id.0, 0), (256, 256), &[0; 256]), SEQUENCE, 0);
    let mut host = open_host(0);
    let id = read(&mut host, 512);
    assert!(matches!(
        host.advance(&mut &data(7, 4, (id.0, 0), (0, 256), &[1; 256])[..]),
        InitiatorStep::NeedInput
    ));
    assert_refused(&mut host, &data(7, 4, (id.0, 0), (256, 256), &[0; 256]), SEQUENCE, 0);
}

#[test]
fn success_flag_without_last_flag_is_header_error_at_offset_1() {
    let mut host = open_host(0);
    let id = read(&mut host, 512);
    assert_refused(&mut host, &data(7, 8, (id.0, 0), (0, 256), &[0; 256]), FIELD, 1);
}

#[test]
fn data_with_success_completes_without_a_response() {
    let mut host = open_host(0);
    let id = read(&mut host, 512);
    let bytes = data(7, 12, (id.0, 0), (0, 512), &[3; 512]);
    let InitiatorStep::Completed(done) = host.advance(&mut &bytes[..]) else { panic!("not completed") };
    assert_eq!((done.id, done.entry.status(), done.received), (id, Status::SUCCESS, 512));
    let CommandTransfer::In(buffer) = done.transfer else { panic!("the completion returned no buffer") };
    assert_eq!(buffer.to_vec(), [3; 512]);
}

#[test]
fn r2t_for_invalid_range_ends_connection() {
    let mut host = open_host(0);
    let id = read(&mut host, 512);
    assert_refused(&mut host, &data(9, 0, (id.0, 5), (0, 512), &[]), FIELD, 8);
    for (range, status, information) in
        [((0, 10_001), RANGE, 0), ((10_000, 1), RANGE, 0), ((4, 4), SEQUENCE, 0), ((0, 0), FIELD, 16)]
    {
        let mut host = open_host(0);
        let id = write(&mut host, 10_000);
        assert_refused(&mut host, &data(9, 0, (id.0, 5), range, &[]), status, information);
    }
    let mut host = open_host(0);
    let id = write(&mut host, 10_000);
    assert!(matches!(
        host.advance(&mut &data(9, 0, (id.0, 5), (0, 5_000), &[])[..]),
        InitiatorStep::NeedInput
    ));
    assert_refused(&mut host, &data(9, 0, (id.0, 5), (0, 5_000), &[]), SEQUENCE, 0);
}

#[test]
fn r2t_data_is_split_by_maxh2cdata_with_last_flag_at_end() {
    let mut host = open_host(0);
    let id = write(&mut host, 10_000);
    drain(host.outgoing_mut());
    assert!(matches!(
        host.advance(&mut &data(9, 0, (id.0, 5), (0, 10_000), &[])[..]),
        InitiatorStep::NeedInput
    ));
    let expected: Vec<Vec<u8>> = [(0, 0, 4_096_u32), (0, 4_096, 4_096), (4, 8_192, 1_808)]
        .into_iter()
        .map(|(flags, at, bytes)| {
            data(6, flags, (id.0, 5), (at, bytes), &vec![7; usize::try_from(bytes).unwrap()])
        })
        .collect();
    assert_eq!(crate::raw::pdus(&drain(host.outgoing_mut())), expected);
}

#[test]
fn corrupt_data_fails_read_and_keeps_connection_open() {
    let mut host = open_host(2);
    let id = read(&mut host, 512);
    let mut bytes = data(7, 12 | 2, (id.0, 0), (0, 512), &[3; 516]);
    bytes[16..20].copy_from_slice(&512_u32.to_le_bytes());
    let InitiatorStep::Completed(done) = host.advance(&mut &bytes[..]) else { panic!("not completed") };
    assert_eq!(done.entry.status(), Status::TRANSIENT_TRANSPORT_ERROR);
    assert!(host.is_open());
}

#[test]
fn corrupt_header_ends_connection() {
    let mut host = open_host(1);
    let id = read(&mut host, 512);
    let mut bytes = with_header_digest(response(id.0, Status::SUCCESS));
    bytes[9] ^= 1;
    let digest = u32::from_le_bytes(bytes[24..28].try_into().unwrap());
    assert_refused(&mut host, &bytes, 3, digest);
}

#[test]
fn termination_request_returns_every_lent_buffer() {
    let mut host = open_host(0);
    read(&mut host, 512);
    write(&mut host, 512);
    drain(host.outgoing_mut());
    let step =
        host.advance(&mut &pdu(3, 0, (24, 0, 24), &[1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])[..]);
    assert!(matches!(step, InitiatorStep::Closed(CloseReason::Peer { status: 1, information: 4 })));
    assert_eq!(host.outgoing().pending(), 0, "a termination request is never answered");
    assert_eq!(host.abandon().len(), 2);
    let entry = SubmissionEntry::default();
    assert!(host.submit(entry, CommandTransfer::None).is_err(), "a closed connection accepts no command");
}

#[test]
fn full_connection_returns_lent_buffer() {
    let mut host = open_host(0);
    for _ in 0..4 {
        read(&mut host, 64);
    }
    let refused = host.submit(SubmissionEntry::default(), CommandTransfer::In(SharedBytes::of(vec![0; 9])));
    assert!(
        matches!(refused, Err(InitiatorSubmitError::Full(CommandTransfer::In(buffer))) if buffer.to_vec().len() == 9)
    );
}

/// A buffer of a length, without memory.
#[derive(Clone, Copy, Debug)]
struct LengthOnly(usize);

impl LentBytes for LengthOnly {
    fn bytes(&self) -> usize {
        self.0
    }

    fn append_to(&self, range: Range<usize>, text: &mut Vec<u8>) {
        text.resize(text.len() + range.len(), 0);
    }

    fn crc32c(&self, seed: u32, _range: Range<usize>) -> u32 {
        seed
    }

    fn write_at(&mut self, _at: usize, _bytes: &[u8]) {}
}

/// Opens a connection to a controller that accepts up to 4 GiB in one PDU.
fn open_to_generous_controller() -> InitiatorConnection<LengthOnly> {
    let mut host = InitiatorConnection::new(InitiatorParameters {
        in_capsule_max: u32::MAX,
        ..InitiatorParameters::default()
    });
    drain(host.outgoing_mut());
    let step = host.advance(&mut &initialize(1, 0, 0, 0, u32::MAX - 3)[..]);
    assert!(matches!(step, InitiatorStep::Opened), "{step:?}");
    host
}

/// Checks for a former defect: the length saturated at 4 GiB less one byte: the command was sent, and named fewer bytes
/// than its buffer has.
#[test]
fn data_that_no_command_can_describe_is_returned_and_not_sent() {
    let mut host = open_to_generous_controller();
    for transfer in [CommandTransfer::In(LengthOnly(1 << 32)), CommandTransfer::Out(LengthOnly(1 << 32))] {
        let refused = host.submit(SubmissionEntry::default(), transfer);
        let returned = matches!(
            refused,
            Err(InitiatorSubmitError::TooLong(
                CommandTransfer::In(LengthOnly(bytes)) | CommandTransfer::Out(LengthOnly(bytes))
            )) if bytes == 1 << 32
        );
        assert!(returned, "{refused:?}");
    }
    assert_eq!((host.outstanding(), host.outgoing().pending()), (0, 0));
}

/// Checks for a former defect: the length of the PDU saturated: the controller would have taken the last bytes of the
/// data for the next PDU.
#[test]
fn longest_write_is_divided_into_pdus_whose_length_has_32_bits() {
    let mut host = open_to_generous_controller();
    let id = host.submit(SubmissionEntry::default(), CommandTransfer::Out(LengthOnly(u32::MAX as usize)));
    let id = id.unwrap();
    let step = host.advance(&mut &data(9, 0, (id.0, 5), (0, u32::MAX), &[])[..]);
    assert!(matches!(step, InitiatorStep::NeedInput), "{step:?}");
    let lent: Vec<usize> = host
        .outgoing()
        .pieces()
        .filter_map(|piece| match piece {
            SendPiece::Lent(_, range) => Some(range.len()),
            SendPiece::Copied(_) => None,
        })
        .collect();
    assert_eq!(lent, [1 << 30, 1 << 30, 1 << 30, (1 << 30) - 1]);
}
