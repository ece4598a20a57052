//! Values that arrive while other commands run: the device receives them in parts, and a store follows when one is whole.
//!
//! Input: the stores of a world's clients. Output: some of them in parts of random length over many turns, of which some end
//! when their client goes away; of those whose condition did not hold some are stored once more, from the receipt that the
//! device kept, and the rest drop it. Invariant: a store is a command of the world only when its value has arrived, so that the
//! checker knows nothing of values that are on their way; the random numbers come from a stream of their own.

use super::{FailureCause, SimWorld};
use crate::simulated_device::SimulatedDevice;
use bytes::Bytes;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    NamespaceId, ReceiptStep, SsdCommand, SsdCompletion, ValueReceipt, ValueSource, WriteCondition,
};
use std::collections::BTreeMap;
use std::io::Read;

/// Values that are on their way at a time.
const ARRIVING_MAX: usize = 4;

/// A value on its way.
#[derive(Debug)]
struct ArrivingValue {
    namespace: NamespaceId,
    /// The store, with all bytes of the value.
    command: SsdCommand,
    value: Bytes,
    receipt: ValueReceipt,
    done: usize,
}

/// The values on their way.
#[derive(Debug)]
pub(super) struct ReceivingClients {
    rng: fastrand::Rng,
    is_used: bool,
    arriving: Vec<ArrivingValue>,
    /// Values whose stores are in flight and have a condition, by their tokens.
    conditional: BTreeMap<u64, ArrivingValue>,
    /// Values whose condition did not hold, and which are stored once more.
    unmet: Vec<ArrivingValue>,
    /// Values that were stored so.
    pub(super) stored: u64,
    /// Stores among them of a value that an earlier store did not take.
    pub(super) stored_again: u64,
}

impl ReceivingClients {
    pub(super) fn new(seed: u64, is_used: bool) -> Self {
        let rng = fastrand::Rng::with_seed(seed ^ 0x7265_6365_6976);
        let (arriving, unmet) = (Vec::new(), Vec::new());
        Self { rng, is_used, arriving, conditional: BTreeMap::new(), unmet, stored: 0, stored_again: 0 }
    }

    /// Forgets the values of clients whose device is gone.
    pub(super) fn clear(&mut self) {
        self.arriving.clear();
        self.conditional.clear();
        self.unmet.clear();
    }

    /// Takes the completion of any command: half of the values whose condition did not hold are to be stored once more.
    pub(super) fn completed(&mut self, completion: &SsdCompletion) {
        let Some(mut one) = self.conditional.remove(&completion.token) else { return };
        let is_unmet = matches!(
            completion.status,
            Status::SEQUENCE_MISMATCH | Status::KEY_EXISTS | Status::KEY_DOES_NOT_EXIST
        );
        if is_unmet
            && self.rng.bool()
            && let SsdCommand::Store { condition, .. } = &mut one.command
        {
            let next = [WriteCondition::Always, WriteCondition::IfExists, WriteCondition::IfAbsent];
            *condition = next[self.rng.usize(..next.len())];
            self.unmet.push(one);
        }
    }
}

impl<E: SimulatedDevice> SimWorld<'_, E> {
    /// Submits a command of a client, or begins to receive its value. Returns `None` if the device is busy.
    pub(super) fn submit_or_receive(
        &mut self,
        engine: &mut E,
        namespace: NamespaceId,
        command: SsdCommand,
    ) -> Result<Option<()>, FailureCause> {
        let receiving = &mut self.receiving;
        if receiving.is_used
            && receiving.arriving.len() < ARRIVING_MAX
            && let SsdCommand::Store { value: ValueSource::Bytes(value), .. } = &command
            && receiving.rng.u8(..4) > 0
            && let Some(receipt) = engine.begin_receipt(namespace, value.len())
        {
            let value = value.clone();
            receiving.arriving.push(ArrivingValue { namespace, command, value, receipt, done: 0 });
            return Ok(Some(()));
        }
        self.submit(engine, namespace, command)
    }

    /// Gives the device a part of one of the values on their way, and submits the store of one that has arrived, or whose
    /// condition did not hold.
    pub(super) fn receive_part(&mut self, engine: &mut E) -> Result<(), FailureCause> {
        if let Some(one) = self.receiving.unmet.pop() {
            let is_accepted = self.store_received(engine, one)?;
            self.receiving.stored_again += u64::from(is_accepted);
        }
        let ReceivingClients { rng, arriving, .. } = &mut self.receiving;
        if arriving.is_empty() {
            return Ok(());
        }
        let at = rng.usize(..arriving.len());
        let one = &mut arriving[at];
        let most = [rng.usize(1..100), rng.usize(1..9_000), rng.usize(1..300_000)][rng.usize(..3)];
        let left = &one.value[one.done..one.receipt.bytes()];
        let mut part = &left[..left.len().min(most)];
        let step = engine.receive(&one.receipt, &mut |slices| part.read_vectored(slices));
        if let ReceiptStep::Received(bytes) = step.expect("a source of the simulator does not fail") {
            one.done += bytes;
        }
        if rng.u16(..400) == 0 {
            arriving.swap_remove(at);
        } else if one.done == one.receipt.bytes() {
            let one = arriving.swap_remove(at);
            self.store_received(engine, one)?;
        }
        Ok(())
    }

    /// Submits the store of a value that has arrived. Returns true if the device accepted it.
    fn store_received(&mut self, engine: &mut E, one: ArrivingValue) -> Result<bool, FailureCause> {
        let rest = one.value.slice(one.receipt.bytes()..);
        let SsdCommand::Store { key, condition, expiry, .. } = &one.command else {
            unreachable!("only stores are received");
        };
        let (key, condition, expiry) = (key.clone(), *condition, *expiry);
        let value = ValueSource::Received { receipt: one.receipt.clone(), rest };
        let received = SsdCommand::Store { key, value, condition, expiry };
        let asked = self.checker.prepare(one.namespace, &one.command, self.wall());
        // A value that could not be kept, or that finds no room in the queue, is a command that never was.
        let token = self.next_token;
        let is_accepted = self.submit_as(engine, one.namespace, (asked, received))?.is_some();
        self.receiving.stored += u64::from(is_accepted);
        if is_accepted && condition != WriteCondition::Always {
            self.receiving.conditional.insert(token, one);
        }
        Ok(is_accepted)
    }
}
