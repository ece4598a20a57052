//! The priority of a submission queue, QPRIO (NVMe Base 2.0 sections 3.4.4 and 5.5, Create I/O Submission Queue).
//!
//! Input: the two bits of the command, or a class.
//! Output: the class, or the two bits.

/// The class of a submission queue (QPRIO); unused with round robin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QueuePriority {
    /// Served before all other I/O queues.
    Urgent,
    /// High.
    High,
    /// Medium.
    Medium,
    /// Low.
    Low,
}

impl QueuePriority {
    /// Decodes the two bits of a Create I/O Submission Queue command.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        match bits & 0x3 {
            0 => Self::Urgent,
            1 => Self::High,
            2 => Self::Medium,
            _ => Self::Low,
        }
    }

    /// Returns the two bits of a Create I/O Submission Queue command.
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        match self {
            Self::Urgent => 0,
            Self::High => 1,
            Self::Medium => 2,
            Self::Low => 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_priorities_round_trip_through_their_two_bits() {
        let classes = [QueuePriority::Urgent, QueuePriority::High, QueuePriority::Medium, QueuePriority::Low];
        for (bits, class) in (0..).zip(classes) {
            assert_eq!(class.to_bits(), bits);
            assert_eq!(QueuePriority::from_bits(bits), class);
            assert_eq!(QueuePriority::from_bits(bits | 0xFFFF_FFFC), class, "other bits have no effect");
        }
    }
}
