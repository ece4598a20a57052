//! The gate that lets one transaction at a time run alone among the clients of a front end.
//!
//! A transaction whose keys changed between its reads and its batch is run again. The second time it enters this gate:
//! until it has submitted its batch, no connection starts a command, so that clients of this front end cannot keep it from
//! ending. Invariant: the gate is held for reads of the device only, never while data becomes durable, and for a limited time: a
//! transaction that leaves it early goes on without it, and may have to be run again.

use super::locks::ClientIndex;
use super::state::OperationRef;
use std::collections::{BTreeSet, VecDeque};

/// The gate of a front end.
#[derive(Debug, Default)]
pub(crate) struct TransactionGate {
    holder: Option<ClientIndex>,
    /// Transactions that wait for the gate, in order.
    waiting: VecDeque<OperationRef>,
    /// Connections whose next command waits for the gate to open.
    stopped: BTreeSet<ClientIndex>,
}

/// The work that becomes possible when a transaction leaves the gate.
#[derive(Debug)]
pub(crate) enum GateOpening {
    /// Nothing: it did not hold the gate.
    Nothing,
    /// This transaction may enter.
    Transaction(OperationRef),
    /// These connections may go on.
    Connections(BTreeSet<ClientIndex>),
}

impl TransactionGate {
    /// Returns true if a connection must not start a command now; the connection is run again when it may.
    #[inline]
    pub(crate) fn stops(&mut self, client: ClientIndex) -> bool {
        if self.holder.is_none() {
            return false;
        }
        self.stopped.insert(client);
        true
    }

    /// Returns true if a transaction is inside the gate now; otherwise it is queued before it.
    pub(crate) fn enter(&mut self, transaction: OperationRef) -> bool {
        match self.holder {
            Some(holder) if holder == transaction.client => true,
            None => {
                self.holder = Some(transaction.client);
                true
            }
            Some(_) => {
                if !self.waiting.iter().any(|waiting| waiting.client == transaction.client) {
                    self.waiting.push_back(transaction);
                }
                false
            }
        }
    }

    /// Removes a client from the gate and from the queue before it.
    pub(crate) fn leave(&mut self, client: ClientIndex) -> GateOpening {
        self.waiting.retain(|waiting| waiting.client != client);
        if self.holder != Some(client) {
            return GateOpening::Nothing;
        }
        match self.waiting.pop_front() {
            Some(next) => {
                self.holder = Some(next.client);
                GateOpening::Transaction(next)
            }
            None => {
                self.holder = None;
                GateOpening::Connections(std::mem::take(&mut self.stopped))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transaction(client: u16) -> OperationRef {
        OperationRef { client: ClientIndex(client), id: u64::from(client), slot: 0 }
    }

    #[test]
    fn transactions_pass_the_gate_in_order_and_connections_go_on_behind_the_last() {
        let mut gate = TransactionGate::default();
        assert!(!gate.stops(ClientIndex(9)), "an open gate stops a connection");
        assert!(gate.enter(transaction(1)) && gate.enter(transaction(1)));
        assert!(!gate.enter(transaction(2)) && !gate.enter(transaction(3)) && !gate.enter(transaction(2)));
        assert!(gate.stops(ClientIndex(9)));
        // A client that waits for the gate disconnects.
        assert!(matches!(gate.leave(ClientIndex(2)), GateOpening::Nothing));
        let GateOpening::Transaction(next) = gate.leave(ClientIndex(1)) else { panic!("the queue is lost") };
        assert_eq!(next.client, ClientIndex(3));
        assert!(gate.enter(transaction(3)) && gate.stops(ClientIndex(9)));
        let GateOpening::Connections(stopped) = gate.leave(ClientIndex(3)) else {
            panic!("the gate is shut")
        };
        assert_eq!(stopped.into_iter().collect::<Vec<_>>(), [ClientIndex(9)]);
        assert!(!gate.stops(ClientIndex(9)));
    }
}
