//! NVMe/TCP, the controller's end: for any stream of a host, however it is cut, nothing panics, memory stays bounded,
//! and the cut changes nothing.
//!
//! Input: one byte that selects the cut and the digests, then the stream, optionally preceded by a plain ICReq. The
//! harness accepts every write that fits its entry, those with bit 0 of CDW11 in parts, and answers reads with as many bytes
//! as they request, up to 64 KiB.

use headwater_host::copy::crc32c;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::status::Status;
use headwater_nvme::tcp::target::{
    FlowControl, NeedOutcome, TargetParameters, TargetResponse, TargetStep, TransferNeed,
};
use headwater_nvme::tcp::{ExchangeSlot, TargetConnection};

/// Passes a stream of a host to a target, whole and cut.
///
/// # Panics
/// If the cut changes the result, or if more commands run than the queue has entries.
pub fn body(bytes: &[u8]) {
    let Some((&mode, stream)) = bytes.split_first() else {
        return;
    };
    let whole = run(mode, stream, stream.len().max(1));
    let cut = run(mode, stream, 1 + usize::from(mode & 0x0f));
    assert_eq!(whole, cut, "the cut changed the result");
}

/// Runs a stream and returns the number of commands, the bytes sent, and true if the connection closed.
fn run(mode: u8, stream: &[u8], piece: usize) -> (usize, Vec<u8>, bool) {
    let parameters =
        TargetParameters { r2t_bytes: 4_096, write_bytes_max: 1 << 18, ..TargetParameters::default() };
    let mut target = TargetConnection::new(parameters);
    let mut harness = TargetHarness::default();
    if mode & 0x10 != 0 {
        let mut request = [0; 128];
        request[2] = 128;
        request[4] = 128;
        request[11] = mode >> 6;
        harness.receive(&mut target, &request);
    }
    let flow = if mode & 0x20 == 0 { FlowControl::Enabled } else { FlowControl::Disabled };
    if target.is_open() {
        target.set_queue(8, flow);
    }
    for part in stream.chunks(piece) {
        harness.receive(&mut target, part);
    }
    assert!(target.live_commands() <= 8, "more commands than the queue has entries");
    let mut sent = Vec::new();
    while target.outgoing().pending() > 0 {
        let mut slices = [std::io::IoSlice::new(&[]); 3];
        let count = target.outgoing().gather(&mut slices);
        let before = sent.len();
        slices[..count].iter().for_each(|slice| sent.extend_from_slice(slice));
        let taken = sent.len() - before;
        target.outgoing_mut().sent(taken, drop);
    }
    (harness.commands, sent, harness.closed)
}

/// The executor of the commands that a target receives.
#[derive(Default)]
struct TargetHarness {
    commands: usize,
    closed: bool,
    entries: [SubmissionEntry; 8],
    /// Bytes taken in parts, and all bytes that are to be taken so.
    parts: [(usize, usize); 8],
}

/// Bytes of which whole multiples are taken in parts.
const PART_UNIT: u32 = 1_024;

impl TargetHarness {
    fn receive(&mut self, target: &mut TargetConnection, mut bytes: &[u8]) {
        loop {
            match target.advance(&mut bytes) {
                TargetStep::NeedInput => return,
                TargetStep::Closed(_) => {
                    self.closed = true;
                    return;
                }
                TargetStep::Ready(slot) => self.answer(target, slot),
                TargetStep::Part(slot) => {
                    if !self.take_part(target, slot, &mut bytes) {
                        return;
                    }
                }
                TargetStep::NextPart(slot) => target.request_next(slot),
                TargetStep::Failed(slot) => {
                    let (taken, all) = self.parts[usize::from(slot.0)];
                    assert!(taken <= all, "a failed command had more in parts than it needs");
                }
                TargetStep::Command { slot, entry } => {
                    self.commands += 1;
                    self.entries[usize::from(slot.0)] = entry;
                    let bytes = entry.cdw10.get() & 0xFFFF;
                    let direct = bytes / PART_UNIT * PART_UNIT;
                    self.parts[usize::from(slot.0)] = (0, usize::try_from(direct).unwrap_or(0));
                    let need = match entry.opcode & 0b11 {
                        1 if entry.cdw11.get() & 1 == 1 => TransferNeed::InParts { bytes, direct },
                        1 => TransferNeed::FromHost(bytes),
                        2 => TransferNeed::ToHost(bytes),
                        _ => TransferNeed::None,
                    };
                    match target.declare_need(slot, need) {
                        NeedOutcome::Now => self.answer(target, slot),
                        NeedOutcome::Later => target.request_next(slot),
                        NeedOutcome::Refused => {}
                    }
                }
            }
        }
    }

    /// Takes data of a part from the front of the input. Returns false if the input is empty.
    fn take_part(&mut self, target: &mut TargetConnection, slot: ExchangeSlot, bytes: &mut &[u8]) -> bool {
        let part = target.arriving_part().expect("a part is next");
        assert_eq!(part.slot, slot, "the part of another command arrives");
        let count = bytes.len().min(usize::try_from(part.bytes).unwrap_or(usize::MAX));
        let (taken, rest) = bytes.split_at(count);
        target.take_part(count, part.digest.map_or(0, |digest| crc32c(digest, taken)));
        *bytes = rest;
        let (before, all) = &mut self.parts[usize::from(slot.0)];
        *before += count;
        assert!(before <= all, "a command got more in parts than it needs");
        count > 0
    }

    fn answer(&mut self, target: &mut TargetConnection, slot: ExchangeSlot) {
        let entry = self.entries[usize::from(slot.0)];
        let mut response = TargetResponse::status(Status::SUCCESS);
        match entry.opcode & 0b11 {
            1 => {
                let data = target.take_data(slot);
                let all = usize::try_from(entry.cdw10.get() & 0xFFFF).unwrap_or(0);
                let (in_parts, direct) = self.parts[usize::from(slot.0)];
                assert!(data.len() + in_parts <= all, "a command got more than it needs");
                assert!(in_parts == 0 || in_parts == direct, "a command is ready without all of its parts");
            }
            2 => response.data = vec![7; usize::try_from(entry.cdw10.get() & 0xFFFF).unwrap_or(0)],
            _ => {}
        }
        target.respond(slot, response);
    }
}
