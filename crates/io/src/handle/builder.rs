//! How a handle is made: its namespace, its queues, its policies. What is not said is the plainest.

use super::lane::Attachment;
use super::request::Geometry;
use super::slots::Slots;
use super::{Handle, RequestError};
use crate::backend::Limits;
use crate::completion::CompletionPolicy;
use crate::error::IoError;
use crate::facts::NamespaceFacts;
use crate::scheduler::{Merger, Merging, Scheduling, Window};
use crate::selector::Selector;
use crate::timepiece::Timepiece;
use std::collections::{BTreeSet, VecDeque};

/// Requests that may wait in a handle, unless it is said otherwise.
const WAITING_MAX: u32 = 256;

/// A handle to be.
#[derive(Debug)]
#[must_use = "build it"]
pub struct HandleBuilder {
    facts: NamespaceFacts,
    queues: Vec<Attachment>,
    selector: Selector,
    scheduling: Scheduling,
    merging: Merging,
    completion: CompletionPolicy,
    in_flight_max: u32,
    waiting_max: u32,
    time: Timepiece,
}

impl Handle {
    /// A handle on this namespace, over the queues that the builder is given.
    pub fn builder(facts: &NamespaceFacts) -> HandleBuilder {
        HandleBuilder {
            facts: facts.clone(),
            queues: Vec::new(),
            selector: Selector::First,
            scheduling: Scheduling::Fifo,
            merging: Merging::Off,
            completion: CompletionPolicy::Inline,
            in_flight_max: u32::MAX,
            waiting_max: WAITING_MAX,
            time: Timepiece::machine(),
        }
    }
}

impl HandleBuilder {
    /// One more queue. They are named 0, 1 and so on, in this order.
    pub fn queue(mut self, queue: impl Into<Attachment>) -> Self {
        self.queues.push(queue.into());
        self
    }

    /// Which queue a request goes to.
    pub fn selector(mut self, selector: Selector) -> Self {
        self.selector = selector;
        self
    }

    /// Which request goes next.
    pub fn scheduling(mut self, scheduling: Scheduling) -> Self {
        self.scheduling = scheduling;
        self
    }

    /// Whether neighbours go together.
    pub fn merging(mut self, merging: Merging) -> Self {
        self.merging = merging;
        self
    }

    /// How it learns of completions.
    pub fn completion(mut self, completion: CompletionPolicy) -> Self {
        self.completion = completion;
        self
    }

    /// Most commands at the devices.
    pub fn in_flight_max(mut self, most: u32) -> Self {
        self.in_flight_max = most.max(1);
        self
    }

    /// Requests that may wait beyond what the queues hold; 256 if nothing is said, 0 lets none.
    pub fn waiting_max(mut self, most: u32) -> Self {
        self.waiting_max = most;
        self
    }

    /// Where it has the time from.
    pub fn time(mut self, time: Timepiece) -> Self {
        self.time = time;
        self
    }

    /// The handle.
    ///
    /// # Errors
    /// [`IoError::Request`] without a queue; [`IoError::Namespace`] for a key space; [`IoError`] when the kernel gives no
    /// thread or descriptor.
    pub fn build(self) -> Result<Handle, IoError> {
        if self.queues.is_empty() {
            return Err(RequestError::Closed.into());
        }
        let (scheduler, period) = Handle::fresh_policies();
        let mut handle = Handle {
            geometry: Geometry::of(&self.facts)?,
            lanes: Vec::new(),
            slots: Slots::new(0),
            limits: Limits { transfer_bytes_max: 0, segments_max: 1, memory_align: 1 },
            plain_bytes_max: 0,
            plain: false,
            detours: 0,
            parts: 0,
            waiting_max: self.waiting_max,
            names: 0,
            selector: self.selector,
            scheduler,
            merging: self.merging,
            merger: Merger::default(),
            window: Window::new(1, None),
            window_max: self.in_flight_max,
            completion: CompletionPolicy::Inline,
            period,
            outgoing: VecDeque::new(),
            ready: VecDeque::new(),
            awaited: None,
            deadlines: BTreeSet::new(),
            time: self.time,
        };
        for queue in self.queues {
            handle.attach(queue);
        }
        handle.set_scheduling(self.scheduling);
        handle.set_completion(self.completion)?;
        Ok(handle)
    }
}
