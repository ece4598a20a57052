//! Which of a handle's queues a request goes to.
//!
//! In: what a request is, and how busy the queues are. Out: the name of a queue. Invariant: the answer is the queue that
//! gets the entry; an answer that names none of the handle's queues is an error, and the request goes nowhere.

use crate::completion::Direction;
use crate::scheduler::{CLASSES, Class};
use std::fmt;

/// Names a queue of a handle, as [`attach`](crate::Handle::attach) gave it. Never given twice by one handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueName(pub u32);

/// A queue, as a selector sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLoad {
    /// Its name.
    pub name: QueueName,
    /// Commands of this handle there.
    pub in_flight: u32,
    /// Most that it takes.
    pub depth: u32,
}

/// A request, as a selector sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice<'a> {
    /// Which way its bytes go.
    pub direction: Direction,
    /// Its class.
    pub class: Class,
    /// First byte on the device.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
    /// The queues, in the order in which they were attached.
    pub queues: &'a [QueueLoad],
}

/// A rule of the application's.
pub type SelectorFunction = Box<dyn FnMut(&Choice<'_>) -> QueueName + Send>;

/// The rule.
#[derive(Default)]
pub enum Selector {
    /// The queue that was attached first.
    #[default]
    First,
    /// The queue with most room, of equals the first.
    MostRoom,
    /// Reads have a queue of their own.
    ReadsApart {
        /// For reads.
        reads: QueueName,
        /// For everything else.
        others: QueueName,
    },
    /// By class.
    ByClass([QueueName; CLASSES]),
    /// As the application says.
    Function(SelectorFunction),
}

impl Selector {
    /// The queue for a request; `None` if there is none at all.
    pub fn choose(&mut self, choice: &Choice<'_>) -> Option<QueueName> {
        let first = choice.queues.first()?;
        Some(match self {
            Self::First => first.name,
            Self::MostRoom => {
                let room = |load: &QueueLoad| load.depth.saturating_sub(load.in_flight);
                // Of equals max_by_key takes the last.
                choice.queues.iter().rev().max_by_key(|load| room(load))?.name
            }
            Self::ReadsApart { reads, others } => match choice.direction {
                Direction::Read => *reads,
                Direction::Write | Direction::Other => *others,
            },
            Self::ByClass(names) => names[choice.class.place()],
            Self::Function(function) => function(choice),
        })
    }
}

impl fmt::Debug for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First => f.write_str("First"),
            Self::MostRoom => f.write_str("MostRoom"),
            Self::ReadsApart { reads, others } => write!(f, "ReadsApart({}, {})", reads.0, others.0),
            Self::ByClass(names) => write!(f, "ByClass({names:?})"),
            Self::Function(_) => f.write_str("Function"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_names_its_queue() {
        let load = |name, in_flight| QueueLoad { name: QueueName(name), in_flight, depth: 8 };
        let queues = [load(3, 5), load(4, 2), load(9, 2)];
        let choice = |direction, class| Choice {
            direction,
            class: Class::new(class).unwrap(),
            offset: 0,
            bytes: 512,
            queues: &queues,
        };
        let read = choice(Direction::Read, 2);
        assert_eq!(Selector::First.choose(&read), Some(QueueName(3)));
        assert_eq!(Selector::MostRoom.choose(&read), Some(QueueName(4)));
        let mut apart = Selector::ReadsApart { reads: QueueName(9), others: QueueName(4) };
        assert_eq!(apart.choose(&read), Some(QueueName(9)));
        assert_eq!(apart.choose(&choice(Direction::Write, 0)), Some(QueueName(4)));
        let mut by_class =
            Selector::ByClass(std::array::from_fn(|class| QueueName(u32::try_from(class).unwrap())));
        assert_eq!(by_class.choose(&read), Some(QueueName(2)));
        let mut last = Selector::Function(Box::new(|choice| choice.queues[choice.queues.len() - 1].name));
        assert_eq!(last.choose(&read), Some(QueueName(9)));
        assert_eq!(last.choose(&Choice { queues: &[], ..read }), None);
    }
}
