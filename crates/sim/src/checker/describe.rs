//! Descriptions of commands for a verbose run: the starts of keys, lengths and conditions, never values.

use super::keys::WriteEffect;
use super::{CheckedCommand, CheckedKind};

/// Returns the start of a key, which tells keys of the workload apart.
fn short(key: &[u8]) -> impl std::fmt::Display + '_ {
    key[..key.len().min(8)].escape_ascii()
}

impl CheckedCommand {
    /// Describes the command without bytes of values.
    #[must_use]
    pub fn describe(&self) -> String {
        match &self.kind {
            CheckedKind::Write { keys, .. } => {
                let writes = keys.iter().map(|one| match one.effect {
                    Some(WriteEffect::Store(value, lifetime)) => {
                        format!(
                            "store {} {} bytes {lifetime:?} {:?}",
                            short(&one.key),
                            value.bytes,
                            one.condition
                        )
                    }
                    Some(WriteEffect::Delete) => format!("delete {} {:?}", short(&one.key), one.condition),
                    None => format!("check {} {:?}", short(&one.key), one.condition),
                });
                let writes = writes.zip(keys).map(|(write, one)| match one.namespace {
                    namespace if namespace == self.namespace => write,
                    namespace => format!("{write} of {namespace}"),
                });
                let writes: Vec<_> = writes.collect();
                if writes.len() > 8 { format!("{} writes", writes.len()) } else { writes.join(", ") }
            }
            CheckedKind::Read { key, release, .. } => format!("retrieve {} {release:?}", short(key)),
            CheckedKind::Exist { key, release } => format!("exist {} {release:?}", short(key)),
            CheckedKind::List => "list".to_owned(),
            CheckedKind::Flush => "flush".to_owned(),
            CheckedKind::Fence(up_to) => format!("fence {}", up_to.0),
            CheckedKind::Blocks { start, .. } => format!("check blocks from {start}"),
        }
    }
}
