//! A minimal controller on one connection that stores values by number.
//!
//! Opcode 01h stores CDW10 bytes of data under the number in CDW11, 02h reads them, 00h does nothing. Responses are
//! held back and released in any order.

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
    held: Vec<(ExchangeSlot, TargetResponse)>,
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
            held: Vec::new(),
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
                TargetStep::Command { slot, entry } => {
                    self.entries.insert(slot.0, entry);
                    let need = match entry.opcode {
                        1 => TransferNeed::FromHost(entry.cdw10.get()),
                        2 => TransferNeed::ToHost(entry.cdw10.get()),
                        _ => TransferNeed::None,
                    };
                    if self.target.declare_need(slot, need) == NeedOutcome::Now {
                        self.execute(slot);
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

    fn execute(&mut self, slot: ExchangeSlot) {
        let entry = self.entries.remove(&slot.0).expect("the slot holds a command");
        let mut response = TargetResponse::status(Status::SUCCESS);
        match entry.opcode {
            1 => {
                let data = self.target.take_data(slot);
                assert_eq!(data.len(), usize::try_from(entry.cdw10.get()).unwrap());
                self.stored.insert(entry.cdw11.get(), data.to_vec());
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

    /// Sends one of the responses held back; returns false if there is none or the connection is closed.
    pub(crate) fn release(&mut self, choice: usize) -> bool {
        if self.held.is_empty() || matches!(self.target.advance(&mut &[][..]), TargetStep::Closed(_)) {
            return false;
        }
        let (slot, response) = self.held.swap_remove(choice % self.held.len());
        self.target.respond(slot, response);
        true
    }
}
