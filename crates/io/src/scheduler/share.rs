//! Weighted shares by start-time fair queueing: each request has a start tag, and the smallest is served next.
//!
//! Input: requests with class and bytes. Output: requests of the class with the fewest bytes for its weight. Invariant:
//! two classes that both have waiting requests differ in bytes over weight by at most one request of each. An idle
//! class accumulates no credit: its next tag starts at the virtual time, the start tag of the last request that was
//! served.

use super::{CLASSES, QueuedRequest, RequestClass};
use std::collections::VecDeque;

/// The virtual time of one byte at weight 1; larger than any weight, so that a byte counts at each.
const VIRTUAL_TIME_PER_BYTE: u128 = 1 << 20;

#[derive(Debug, Default)]
struct ShareFlow {
    /// The waiting requests with their start tags, which increase.
    waiting: VecDeque<(u128, QueuedRequest)>,
    /// The earliest next start tag.
    finish: u128,
}

#[derive(Debug)]
pub(super) struct FairShares {
    weights: [u16; CLASSES],
    flows: [ShareFlow; CLASSES],
    virtual_time: u128,
}

impl FairShares {
    pub(super) fn new(weights: [u16; CLASSES]) -> Self {
        Self { weights, flows: Default::default(), virtual_time: 0 }
    }

    pub(super) fn push(&mut self, queued: QueuedRequest) {
        let class = queued.waiting.class;
        let flow = &mut self.flows[class.index()];
        let start = flow.finish.max(self.virtual_time);
        flow.finish = start;
        flow.waiting.push_back((start, queued));
        self.charge(class, queued.waiting.bytes.max(1));
    }

    pub(super) fn charge(&mut self, class: RequestClass, bytes: u64) {
        let weight = u128::from(self.weights[class.index()].max(1));
        self.flows[class.index()].finish += u128::from(bytes) * VIRTUAL_TIME_PER_BYTE / weight;
    }

    pub(super) fn pop(&mut self) -> Option<u32> {
        let first = |flow: &ShareFlow| flow.waiting.front().map(|&(start, queued)| (start, queued.order));
        let (_, flow) = self
            .flows
            .iter_mut()
            .filter_map(|flow| first(flow).map(|key| (key, flow)))
            .min_by_key(|&(key, _)| key)?;
        let (start, queued) = flow.waiting.pop_front()?;
        self.virtual_time = self.virtual_time.max(start);
        Some(queued.waiting.slot)
    }

    pub(super) fn remove(&mut self, slot: u32) -> bool {
        self.flows.iter_mut().any(|flow| {
            let at = flow.waiting.iter().position(|(_, queued)| queued.waiting.slot == slot);
            at.and_then(|at| flow.waiting.remove(at)).is_some()
        })
    }

    pub(super) fn take_all(&mut self) -> Vec<QueuedRequest> {
        self.flows.iter_mut().flat_map(|flow| flow.waiting.drain(..)).map(|(_, queued)| queued).collect()
    }
}
