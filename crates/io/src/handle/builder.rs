//! Builds a handle from its namespace, its queues and its policies. Defaults are the simplest policies.

use super::attached_queue::QueueAttachment;
use super::request_table::RequestTable;
use super::{Handle, NamespaceGeometry};
use crate::backend::IoLimits;
use crate::client_namespace::ClientNamespace;
use crate::clock::IoClock;
use crate::completion::CompletionPolicy;
use crate::error::IoError;
use crate::error::RequestError;
use crate::scheduler::{InFlightWindow, MergePolicy, RequestMerger, SchedulingPolicy};
use crate::selector::QueueSelector;
use std::collections::{BTreeSet, VecDeque};

/// The default number of requests that may wait in a handle.
const WAITING_MAX: u32 = 256;

/// A builder of a [`Handle`].
#[derive(Debug)]
#[must_use = "build it"]
pub struct HandleBuilder {
    namespace: ClientNamespace,
    queues: Vec<QueueAttachment>,
    selector: QueueSelector,
    scheduling: SchedulingPolicy,
    merging: MergePolicy,
    completion: CompletionPolicy,
    in_flight_max: u32,
    waiting_max: u32,
    clock: IoClock,
}

impl Handle {
    /// Returns a builder of a handle on this namespace.
    pub fn builder(facts: &ClientNamespace) -> HandleBuilder {
        HandleBuilder {
            namespace: facts.clone(),
            queues: Vec::new(),
            selector: QueueSelector::First,
            scheduling: SchedulingPolicy::Fifo,
            merging: MergePolicy::Off,
            completion: CompletionPolicy::Inline,
            in_flight_max: u32::MAX,
            waiting_max: WAITING_MAX,
            clock: IoClock::machine(),
        }
    }
}

impl HandleBuilder {
    /// Adds a queue. Queues are named 0, 1 and so on, in this order.
    pub fn queue(mut self, queue: impl Into<QueueAttachment>) -> Self {
        self.queues.push(queue.into());
        self
    }

    /// Sets the policy that chooses a request's queue.
    pub fn selector(mut self, selector: QueueSelector) -> Self {
        self.selector = selector;
        self
    }

    /// Sets the policy that chooses the next request.
    pub fn scheduling(mut self, scheduling: SchedulingPolicy) -> Self {
        self.scheduling = scheduling;
        self
    }

    /// Sets the policy that merges adjacent requests.
    pub fn merging(mut self, merging: MergePolicy) -> Self {
        self.merging = merging;
        self
    }

    /// Sets the policy that finds completions.
    pub fn completion(mut self, completion: CompletionPolicy) -> Self {
        self.completion = completion;
        self
    }

    /// Sets the most commands in flight at the devices.
    pub fn in_flight_max(mut self, max: u32) -> Self {
        self.in_flight_max = max.max(1);
        self
    }

    /// Sets how many requests may wait beyond what the queues hold; the default is 256, and 0 allows none.
    pub fn waiting_max(mut self, max: u32) -> Self {
        self.waiting_max = max;
        self
    }

    /// Sets the source of the time.
    pub fn clock(mut self, time: IoClock) -> Self {
        self.clock = time;
        self
    }

    /// Builds the handle.
    ///
    /// # Errors
    /// [`IoError::Request`] without a queue; [`IoError::Namespace`] for a key space; [`IoError`] when the kernel has no
    /// thread or descriptor left.
    pub fn build(self) -> Result<Handle, IoError> {
        if self.queues.is_empty() {
            return Err(RequestError::NoQueue.into());
        }
        let (scheduler, period) = Handle::default_policies();
        let mut handle = Handle {
            geometry: NamespaceGeometry::of(&self.namespace)?,
            queues: Vec::new(),
            slots: RequestTable::new(0),
            limits: IoLimits { transfer_bytes_max: 0, segments_max: 1, memory_align: 1 },
            command_bytes_max: 0,
            fast_path: false,
            plain_in_flight: 0,
            slow_requests: 0,
            parts: 0,
            waiting_max: self.waiting_max,
            next_name: 0,
            selector: self.selector,
            scheduler,
            merging: self.merging,
            merger: RequestMerger::default(),
            window: InFlightWindow::new(1, None),
            in_flight_max: self.in_flight_max,
            completion: CompletionPolicy::Inline,
            period,
            outgoing: VecDeque::new(),
            completed: VecDeque::new(),
            awaited: None,
            deadlines: BTreeSet::new(),
            clock: self.clock,
        };
        for queue in self.queues {
            handle.attach(queue);
        }
        handle.set_scheduling(self.scheduling);
        handle.set_completion(self.completion)?;
        Ok(handle)
    }
}
