//! Values that arrive while other commands run: the device receives them in parts, and a store follows when one is whole.
//!
//! Input: the stores of a world's clients. Output: some of them in parts of random length over many turns, of which some end
//! when their client goes away. Invariant: a store is a command of the world only when its value has arrived, so that the
//! checker knows nothing of values that are on their way; the random numbers come from a stream of their own.

use super::{FailureCause, SimWorld};
use crate::simulated_device::SimulatedDevice;
use bytes::Bytes;
use headwater_ssd::command::{NamespaceId, ReceiptStep, SsdCommand, ValueReceipt, ValueSource};
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
    /// Values that were stored so.
    pub(super) stored: u64,
}

impl ReceivingClients {
    pub(super) fn new(seed: u64, is_used: bool) -> Self {
        let rng = fastrand::Rng::with_seed(seed ^ 0x7265_6365_6976);
        Self { rng, is_used, arriving: Vec::new(), stored: 0 }
    }

    /// Forgets the values of clients whose device is gone.
    pub(super) fn clear(&mut self) {
        self.arriving.clear();
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

    /// Gives the device a part of one of the values on their way, and submits the store of one that has arrived.
    pub(super) fn receive_part(&mut self, engine: &mut E) -> Result<(), FailureCause> {
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

    fn store_received(&mut self, engine: &mut E, one: ArrivingValue) -> Result<(), FailureCause> {
        let rest = one.value.slice(one.receipt.bytes()..);
        let SsdCommand::Store { key, condition, expiry, .. } = &one.command else {
            unreachable!("only stores are received");
        };
        let (key, condition, expiry) = (key.clone(), *condition, *expiry);
        let value = ValueSource::Received { receipt: one.receipt, rest };
        let received = SsdCommand::Store { key, value, condition, expiry };
        let asked = self.checker.prepare(one.namespace, &one.command, self.wall());
        // A value that could not be kept, or that finds no room in the queue, is a command that never was.
        let accepted = self.submit_as(engine, one.namespace, (asked, received))?;
        self.receiving.stored += u64::from(accepted.is_some());
        Ok(())
    }
}
