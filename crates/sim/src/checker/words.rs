//! Descriptions of commands for a verbose run: lengths and conditions, never bytes.

use super::keys::Effect;
use super::{Asked, Kind};

impl Asked {
    /// Describes the command without bytes of keys or values.
    #[must_use]
    pub fn words(&self) -> String {
        match &self.kind {
            Kind::Write { keys, .. } => {
                let writes = keys.iter().map(|one| match one.effect {
                    Effect::Store(value, lifetime) => {
                        format!("store {} bytes {lifetime:?} {:?}", value.bytes, one.condition)
                    }
                    Effect::Delete => format!("delete {:?}", one.condition),
                });
                let writes: Vec<_> = writes.collect();
                if writes.len() > 8 { format!("{} writes", writes.len()) } else { writes.join(", ") }
            }
            Kind::Read { release, .. } => format!("retrieve {release:?}"),
            Kind::Exist { release, .. } => format!("exist {release:?}"),
            Kind::List => "list".to_owned(),
            Kind::Flush => "flush".to_owned(),
            Kind::Fence(up_to) => format!("fence {}", up_to.0),
            Kind::Blocks { start, .. } => format!("check blocks from {start}"),
        }
    }
}
