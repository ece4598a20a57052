//! A minimal controller on one connection that stores values by number.
//!
//! Opcode 01h stores CDW10 bytes of data under the number in CDW11, 02h reads them, 00h does nothing. Responses are
//! held back and released in any order, and so are requests of data in parts.

use headwater_host::copy::crc32c;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::status::Status;
use headwater_nvme::tcp::target::{
    CloseReason, FlowControl, NeedOutcome, TargetParameters, TargetResponse, TargetStep, TransferNeed,
};
use headwater_nvme::tcp::{ExchangeSlot, TargetConnection};
use std::collections::BTreeMap;

pub(crate) struct TestTarget {
    pub(crate) target: TargetConnection,
    pub(crate) stored: BTreeMap<u32, Vec<u8>>,
    entries: BTreeMap<u16, SubmissionEntry>,
    /// If it is not 0, a store takes the whole multiples of so many bytes in parts.
    pub(crate) part_unit: u32,
    parts: BTreeMap<u16, Vec<u8>>,
    held: Vec<(ExchangeSlot, TargetResponse)>,
    held_requests: Vec<ExchangeSlot>,
    flow: FlowControl,
    depth: u16,
    opened: bool,
}

impl TestTarget {
    pub(crate) fn new(parameters: TargetParameters, depth: u16, flow: FlowControl) -> Self {
        Self {
            target: TargetConnection::new(parameters),
            stored: BTreeMap::new(),
            entries: BTreeMap::new(),
            part_unit: 0,
            parts: BTreeMap::new(),
            held: Vec::new(),
            held_requests: Vec::new(),
            flow,
            depth,
            opened: false,
        }
    }

    pub(crate) fn receive(&mut self, mut bytes: &[u8]) -> Option<CloseReason> {
        loop {
            match self.target.advance(&mut bytes) {
                TargetStep::NeedInput => break,
                TargetStep::Closed(ended) => return Some(ended),
                TargetStep::Ready(slot) => self.execute(slot),
                TargetStep::Part(slot) => {
                    if !self.take_part(slot, &mut bytes) {
                        break;
                    }
                }
                TargetStep::NextPart(slot) => self.hold_request(slot),
                TargetStep::Failed(slot) => self.forget_parts(slot),
                TargetStep::Command { slot, entry } => {
                    self.entries.insert(slot.0, entry);
                    self.forget_parts(slot);
                    let need = self.need(&entry);
                    match self.target.declare_need(slot, need) {
                        NeedOutcome::Now => self.execute(slot),
                        NeedOutcome::Later => self.hold_request(slot),
                        NeedOutcome::Refused => {}
                    }
                }
            }
        }
        if self.target.is_open() && !self.opened {
            self.opened = true;
            self.target.set_queue(self.depth, self.flow);
        }
        None
    }

    fn need(&self, entry: &SubmissionEntry) -> TransferNeed {
        let bytes = entry.cdw10.get();
        match entry.opcode {
            1 if self.part_unit > 0 => {
                TransferNeed::InParts { bytes, direct: bytes / self.part_unit * self.part_unit }
            }
            1 => TransferNeed::FromHost(bytes),
            2 => TransferNeed::ToHost(bytes),
            _ => TransferNeed::None,
        }
    }

    /// Takes data of a part from the front of the input. Returns false if the input is empty.
    fn take_part(&mut self, slot: ExchangeSlot, bytes: &mut &[u8]) -> bool {
        let part = self.target.arriving_part().expect("a part is next");
        assert_eq!(part.slot, slot);
        let (taken, rest) = bytes.split_at(bytes.len().min(usize::try_from(part.bytes).unwrap()));
        self.parts.entry(slot.0).or_default().extend_from_slice(taken);
        self.target.take_part(taken.len(), part.digest.map_or(0, |digest| crc32c(digest, taken)));
        *bytes = rest;
        !taken.is_empty()
    }

    fn hold_request(&mut self, slot: ExchangeSlot) {
        if !self.held_requests.contains(&slot) {
            self.held_requests.push(slot);
        }
    }

    fn forget_parts(&mut self, slot: ExchangeSlot) {
        self.parts.remove(&slot.0);
        self.held_requests.retain(|held| *held != slot);
    }

    fn execute(&mut self, slot: ExchangeSlot) {
        let entry = self.entries.remove(&slot.0).expect("the slot holds a command");
        let mut response = TargetResponse::status(Status::SUCCESS);
        match entry.opcode {
            1 => {
                let mut data = self.parts.remove(&slot.0).unwrap_or_default();
                data.extend_from_slice(&self.target.take_data(slot));
                assert_eq!(data.len(), usize::try_from(entry.cdw10.get()).unwrap());
                self.stored.insert(entry.cdw11.get(), data);
            }
            2 => match self.stored.get(&entry.cdw11.get()) {
                Some(kept) => {
                    response.data.clone_from(kept);
                    response.result = u64::from(entry.cdw12.get());
                }
                None => response.status = Status::KEY_DOES_NOT_EXIST,
            },
            _ => {}
        }
        self.held.push((slot, response));
    }

    /// Sends one of the requests or responses held back; returns false if there is none or the connection is closed.
    pub(crate) fn release(&mut self, choice: usize) -> bool {
        let has_held = !self.held.is_empty() || !self.held_requests.is_empty();
        if !has_held || matches!(self.target.advance(&mut &[][..]), TargetStep::Closed(_)) {
            return false;
        }
        if let Some(slot) = self.held_requests.pop() {
            self.target.request_next(slot);
            return true;
        }
        let (slot, response) = self.held.swap_remove(choice % self.held.len());
        self.target.respond(slot, response);
        true
    }
}
