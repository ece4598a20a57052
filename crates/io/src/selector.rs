//! Chooses the queue of each request of a handle.
//!
//! Input: a request's properties and the queues' loads. Output: a queue's name. Invariant: the entry goes to the queue
//! named; a name that the handle does not have is an error, and the request is not submitted.

use crate::completion::TransferDirection;
use crate::scheduler::{CLASSES, RequestClass};
use std::fmt;

/// The name of a handle's queue, returned by [`attach`](crate::Handle::attach). A handle never reuses a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueName(pub u32);

/// The load of a queue, as a selector sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLoad {
    /// The queue's name.
    pub name: QueueName,
    /// The handle's commands in flight there.
    pub in_flight: u32,
    /// The most commands in flight.
    pub depth: u32,
}

/// A request, as a selector sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectionContext<'a> {
    /// The direction of its data transfer.
    pub direction: TransferDirection,
    /// Its class.
    pub class: RequestClass,
    /// The first byte on the device.
    pub offset: u64,
    /// The length in bytes.
    pub bytes: u64,
    /// The queues, in the order of attachment.
    pub queues: &'a [QueueLoad],
}

/// A selection function of the application.
pub type SelectorFunction = Box<dyn FnMut(&SelectionContext<'_>) -> QueueName + Send>;

/// The policy that chooses a queue.
#[derive(Default)]
pub enum QueueSelector {
    /// The queue that was attached first.
    #[default]
    First,
    /// The queue with the most room, or the first of several with equal room.
    MostRoom,
    /// Reads on one queue, all other requests on another.
    SeparateReads {
        /// The queue for reads.
        reads: QueueName,
        /// The queue for all other requests.
        rest: QueueName,
    },
    /// A queue for each class.
    ByClass([QueueName; CLASSES]),
    /// The queue that the application's function returns.
    Function(SelectorFunction),
}

impl QueueSelector {
    /// Returns the queue for a request, or `None` if the handle has none.
    pub fn choose(&mut self, choice: &SelectionContext<'_>) -> Option<QueueName> {
        let first = choice.queues.first()?;
        Some(match self {
            Self::First => first.name,
            Self::MostRoom => {
                let room = |load: &QueueLoad| load.depth.saturating_sub(load.in_flight);
                // Among equals max_by_key takes the last.
                choice.queues.iter().rev().max_by_key(|load| room(load))?.name
            }
            Self::SeparateReads { reads, rest } => match choice.direction {
                TransferDirection::Read => *reads,
                TransferDirection::Write | TransferDirection::Other => *rest,
            },
            Self::ByClass(names) => names[choice.class.index()],
            Self::Function(function) => function(choice),
        })
    }
}

impl fmt::Debug for QueueSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First => f.write_str("First"),
            Self::MostRoom => f.write_str("MostRoom"),
            Self::SeparateReads { reads, rest } => write!(f, "SeparateReads({}, {})", reads.0, rest.0),
            Self::ByClass(names) => write!(f, "ByClass({names:?})"),
            Self::Function(_) => f.write_str("Function"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_selector_names_its_queue() {
        let load = |name, in_flight| QueueLoad { name: QueueName(name), in_flight, depth: 8 };
        let queues = [load(3, 5), load(4, 2), load(9, 2)];
        let choice = |direction, class| SelectionContext {
            direction,
            class: RequestClass::new(class).unwrap(),
            offset: 0,
            bytes: 512,
            queues: &queues,
        };
        let read = choice(TransferDirection::Read, 2);
        assert_eq!(QueueSelector::First.choose(&read), Some(QueueName(3)));
        assert_eq!(QueueSelector::MostRoom.choose(&read), Some(QueueName(4)));
        let mut apart = QueueSelector::SeparateReads { reads: QueueName(9), rest: QueueName(4) };
        assert_eq!(apart.choose(&read), Some(QueueName(9)));
        assert_eq!(apart.choose(&choice(TransferDirection::Write, 0)), Some(QueueName(4)));
        let mut by_class =
            QueueSelector::ByClass(std::array::from_fn(|class| QueueName(u32::try_from(class).unwrap())));
        assert_eq!(by_class.choose(&read), Some(QueueName(2)));
        let mut last =
            QueueSelector::Function(Box::new(|choice| choice.queues[choice.queues.len() - 1].name));
        assert_eq!(last.choose(&read), Some(QueueName(9)));
        assert_eq!(last.choose(&SelectionContext { queues: &[], ..read }), None);
    }
}
