//! Helpers that build PDUs field by field and split sent bytes into PDUs.

use headwater_host::copy::crc32c;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::tcp::capsule_data::CapsuleData;
use headwater_nvme::tcp::send_queue::SendPiece;
use headwater_nvme::tcp::{InitiatorConnection, LentBytes, SendQueue, TargetConnection};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

/// A buffer shared by a test and a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedBytes(Rc<RefCell<Vec<u8>>>);

impl SharedBytes {
    pub(crate) fn of(bytes: Vec<u8>) -> Self {
        Self(Rc::new(RefCell::new(bytes)))
    }

    pub(crate) fn to_vec(&self) -> Vec<u8> {
        self.0.borrow().clone()
    }
}

impl LentBytes for SharedBytes {
    fn bytes(&self) -> usize {
        self.0.borrow().len()
    }

    fn append_to(&self, range: Range<usize>, text: &mut Vec<u8>) {
        text.extend_from_slice(&self.0.borrow()[range]);
    }

    fn crc32c(&self, seed: u32, range: Range<usize>) -> u32 {
        crc32c(seed, &self.0.borrow()[range])
    }

    fn write_at(&mut self, at: usize, bytes: &[u8]) {
        self.0.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// Removes all bytes from the send queue and returns them.
pub(crate) fn drain<B: LentBytes>(outgoing: &mut SendQueue<B>) -> Vec<u8> {
    let mut all = Vec::new();
    while outgoing.pending() > 0 {
        let start = all.len();
        for piece in outgoing.pieces().take(7) {
            match piece {
                SendPiece::Copied(text) => all.extend_from_slice(text),
                SendPiece::Lent(owner, range) => owner.append_to(range, &mut all),
            }
        }
        let sent = all.len() - start;
        assert!(sent > 0, "bytes are pending but the send queue returns no piece");
        outgoing.sent(sent, drop);
    }
    all
}

/// Builds a PDU: type, flags, HLEN, PDO, PLEN, then the rest.
pub(crate) fn pdu(kind: u8, flags: u8, lengths: (u8, u8, u32), rest: &[u8]) -> Vec<u8> {
    let (header_bytes, data_offset, pdu_bytes) = lengths;
    let mut bytes = vec![kind, flags, header_bytes, data_offset];
    bytes.extend_from_slice(&pdu_bytes.to_le_bytes());
    bytes.extend_from_slice(rest);
    bytes
}

/// Builds an ICReq or ICResp.
pub(crate) fn initialize(kind: u8, version: u16, alignment: u8, digests: u8, limit: u32) -> Vec<u8> {
    let mut rest = version.to_le_bytes().to_vec();
    rest.extend_from_slice(&[alignment, digests]);
    rest.extend_from_slice(&limit.to_le_bytes());
    rest.resize(120, 0);
    pdu(kind, 0, (128, 0, 128), &rest)
}

/// Builds a command with the data pointer `data` and its length in CDW10.
pub(crate) fn entry(opcode: u8, command_id: u16, data: CapsuleData) -> SubmissionEntry {
    let mut entry = SubmissionEntry {
        opcode,
        command_id: U16::new(command_id),
        cdw10: U32::new(data.bytes()),
        ..SubmissionEntry::default()
    };
    data.write(&mut entry);
    entry
}

/// Builds a CapsuleCmd without digests.
pub(crate) fn capsule(entry: &SubmissionEntry, data: &[u8]) -> Vec<u8> {
    let bytes = 72 + u32::try_from(data.len()).unwrap();
    let offset = if data.is_empty() { 0 } else { 72 };
    let mut rest = entry.as_bytes().to_vec();
    rest.extend_from_slice(data);
    pdu(4, 0, (72, offset, bytes), &rest)
}

/// Builds a PDU with a header of 24 bytes with CCCID and TTAG (`ids`), DATAO and DATAL (`range`), and the data.
pub(crate) fn data(kind: u8, flags: u8, ids: (u16, u16), range: (u32, u32), data: &[u8]) -> Vec<u8> {
    let mut rest = ids.0.to_le_bytes().to_vec();
    rest.extend_from_slice(&ids.1.to_le_bytes());
    rest.extend_from_slice(&range.0.to_le_bytes());
    rest.extend_from_slice(&range.1.to_le_bytes());
    rest.extend_from_slice(&[0; 4]);
    rest.extend_from_slice(data);
    let offset = if data.is_empty() { 0 } else { 24 };
    pdu(kind, flags, (24, offset, 24 + u32::try_from(data.len()).unwrap()), &rest)
}

/// Inserts the header digest, sets its flag, and adjusts PDO and PLEN.
pub(crate) fn with_header_digest(mut pdu: Vec<u8>) -> Vec<u8> {
    let header = usize::from(pdu[2]);
    pdu[1] |= 1;
    if pdu[3] != 0 {
        pdu[3] += 4;
    }
    let bytes = u32::from_le_bytes(pdu[4..8].try_into().unwrap()) + 4;
    pdu[4..8].copy_from_slice(&bytes.to_le_bytes());
    let digest = crc32c(0, &pdu[..header]).to_le_bytes();
    pdu.splice(header..header, digest);
    pdu
}

/// A termination request: its type, FES, FEI, and the header in error.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TerminationFields {
    pub(crate) kind: u8,
    pub(crate) status: u16,
    pub(crate) information: u32,
    pub(crate) header: Vec<u8>,
}

/// Decodes `sent`, which is exactly one termination request.
pub(crate) fn termination(sent: &[u8]) -> TerminationFields {
    assert!(sent.len() >= 24, "no termination request was sent");
    let bytes = usize::try_from(u32::from_le_bytes(sent[4..8].try_into().unwrap())).unwrap();
    assert_eq!(bytes, sent.len(), "PLEN");
    assert_eq!(sent[2], 24, "HLEN");
    TerminationFields {
        kind: sent[0],
        status: u16::from_le_bytes([sent[8], sent[9]]),
        information: u32::from_le_bytes(sent[10..14].try_into().unwrap()),
        header: sent[24..].to_vec(),
    }
}

/// Splits sent bytes into PDUs.
pub(crate) fn pdus(mut sent: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    while !sent.is_empty() {
        let bytes = usize::try_from(u32::from_le_bytes(sent[4..8].try_into().unwrap())).unwrap();
        let (pdu, rest) = sent.split_at(bytes);
        found.push(pdu.to_vec());
        sent = rest;
    }
    found
}

/// Creates a target that received a plain ICReq, with a queue of eight entries.
pub(crate) fn open_target() -> TargetConnection {
    use headwater_nvme::tcp::target::{FlowControl, TargetParameters, TargetStep};
    let parameters =
        TargetParameters { host_data_max: 8_192, r2t_bytes: 16_384, ..TargetParameters::default() };
    let mut target = TargetConnection::new(parameters);
    assert!(matches!(target.advance(&mut &initialize(0, 0, 0, 0, 0)[..]), TargetStep::NeedInput));
    assert_eq!(drain(target.outgoing_mut()), initialize(1, 0, 0, 0, 8_192));
    target.set_queue(8, FlowControl::Enabled);
    target
}

/// Creates a host that received an ICResp with these digests.
pub(crate) fn open_host(digests: u8) -> InitiatorConnection<SharedBytes> {
    use headwater_nvme::tcp::{DigestMode, DigestSettings, InitiatorParameters, InitiatorStep};
    let on = |bit| if digests & bit == 0 { DigestMode::Off } else { DigestMode::On };
    let asked = DigestSettings { header: on(1), data: on(2) };
    let mut host = InitiatorConnection::new(InitiatorParameters {
        digests: asked,
        depth: 4,
        in_capsule_max: 4_096,
        ..InitiatorParameters::default()
    });
    assert_eq!(drain(host.outgoing_mut()), initialize(0, 0, 0, digests, 0));
    assert!(matches!(host.advance(&mut &initialize(1, 0, 0, digests, 4_096)[..]), InitiatorStep::Opened));
    host
}
