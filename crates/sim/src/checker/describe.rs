//! Descriptions of commands for a verbose run: lengths and conditions, never bytes.

use super::keys::WriteEffect;
use super::{CheckedCommand, CheckedKind};

impl CheckedCommand {
    /// Describes the command without bytes of keys or values.
    #[must_use]
    pub fn describe(&self) -> String {
        match &self.kind {
            CheckedKind::Write { keys, .. } => {
                let writes = keys.iter().map(|one| match one.effect {
                    Some(WriteEffect::Store(value, lifetime)) => {
                        format!("store {} bytes {lifetime:?} {:?}", value.bytes, one.condition)
                    }
                    Some(WriteEffect::Delete) => format!("delete {:?}", one.condition),
                    None => format!("check {:?}", one.condition),
                });
                let writes: Vec<_> = writes.collect();
                if writes.len() > 8 { format!("{} writes", writes.len()) } else { writes.join(", ") }
            }
            CheckedKind::Read { release, .. } => format!("retrieve {release:?}"),
            CheckedKind::Exist { release, .. } => format!("exist {release:?}"),
            CheckedKind::List => "list".to_owned(),
            CheckedKind::Flush => "flush".to_owned(),
            CheckedKind::Fence(up_to) => format!("fence {}", up_to.0),
            CheckedKind::Blocks { start, .. } => format!("check blocks from {start}"),
        }
    }
}
