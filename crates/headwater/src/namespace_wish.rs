//! The table of namespaces in the words that applications and administrators use.
//!
//! In: a wish, from a person or a program. Out: the change that the device is asked for, or why there can be none; and the
//! way back, for a table to be read.

use headwater_host::clock::Nanos;
use headwater_io::NamespaceFacts;
use headwater_io::attach::admin::{DurabilityText, NamespaceText, NamespaceWish};
use headwater_ssd::command::NamespaceId;
use headwater_ssd::engine::{Device, Durability};
use headwater_ssd::limits::NAMESPACES;
use headwater_ssd::media::Media;
use headwater_ssd::namespace::{BlockFormat, Namespace, NamespaceChange, NamespaceKind, NamespaceLimits};

/// The namespace that a wish is submitted with, and the change.
///
/// # Errors
/// Says what is impossible.
pub fn change_of(id: u8, wish: &NamespaceWish) -> Result<(NamespaceId, NamespaceChange), String> {
    let is_create = matches!(wish, NamespaceWish::Create(_));
    if !is_create && !(1..=NAMESPACES).contains(&usize::from(id)) {
        return Err(format!("namespaces are numbered 1 to {NAMESPACES}, and {id} was named"));
    }
    let change = match wish {
        NamespaceWish::Create(text) => NamespaceChange::Create(Namespace {
            kind: kind_of(text.block_bytes)?,
            size: text.size,
            durability: text.durability.map(durability_of),
            limits: NamespaceLimits {
                iops: text.iops,
                bytes_per_second: text.bytes_per_second,
                burst: text.burst,
            },
            uuid: fastrand::u128(..).to_le_bytes(),
            ..Namespace::IMPLICIT
        }),
        NamespaceWish::Delete => NamespaceChange::Delete,
        NamespaceWish::Resize(size) => NamespaceChange::Resize(*size),
        NamespaceWish::Format(block_bytes) => NamespaceChange::Format(kind_of(*block_bytes)?),
        &NamespaceWish::Limits { iops, bytes_per_second, burst } => {
            NamespaceChange::Limits(NamespaceLimits { iops, bytes_per_second, burst })
        }
        NamespaceWish::Durability(durability) => NamespaceChange::Durability(durability.map(durability_of)),
    };
    Ok((if is_create { NamespaceId::FIRST } else { NamespaceId(id) }, change))
}

/// The table of namespaces as a person reads it: those that hosts see.
#[must_use]
pub fn table<M: Media>(device: &Device<M>) -> Vec<(u8, NamespaceText)> {
    let all = (1..=NAMESPACES).filter_map(|number| u8::try_from(number).ok());
    all.filter_map(|id| Some((id, text_of(&device.namespace(NamespaceId(id))?)))).collect()
}

/// What a client is told of a namespace that it may use whole.
#[must_use]
pub fn facts_of(id: NamespaceId, namespace: &Namespace) -> NamespaceFacts {
    NamespaceFacts {
        id: id.0.into(),
        block_bytes: text_of(namespace).block_bytes,
        size: namespace.size,
        writable: true,
        blocks: None,
    }
}

fn kind_of(block_bytes: u32) -> Result<NamespaceKind, String> {
    let format = BlockFormat::ALL.into_iter().find(|format| u32::try_from(format.bytes()) == Ok(block_bytes));
    match (block_bytes, format) {
        (0, _) => Ok(NamespaceKind::Kv),
        (_, Some(format)) => Ok(NamespaceKind::Block(format)),
        _ => {
            Err(format!("blocks of {block_bytes} bytes are not supported; choose 512 or 4096, or 0 for keys"))
        }
    }
}

fn durability_of(text: DurabilityText) -> Durability {
    match text {
        DurabilityText::Always => Durability::Always,
        DurabilityText::IntervalMs(millis) => Durability::Interval(Nanos::from_millis(millis)),
        DurabilityText::OnFlush => Durability::OnFlush,
    }
}

/// A durability mode in the words of the wish.
#[must_use]
pub fn durability_text(durability: Durability) -> DurabilityText {
    match durability {
        Durability::Always => DurabilityText::Always,
        Durability::Interval(span) => DurabilityText::IntervalMs(span.0 / 1_000_000),
        Durability::OnFlush => DurabilityText::OnFlush,
    }
}

fn text_of(namespace: &Namespace) -> NamespaceText {
    NamespaceText {
        block_bytes: match namespace.kind {
            NamespaceKind::Kv => 0,
            NamespaceKind::Block(format) => u32::try_from(format.bytes()).unwrap_or(0),
        },
        size: namespace.size,
        durability: namespace.durability.map(durability_text),
        iops: namespace.limits.iops,
        bytes_per_second: namespace.limits.bytes_per_second,
        burst: namespace.limits.burst,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_become_the_changes_they_say() {
        let text = NamespaceText {
            block_bytes: 4_096,
            size: 77,
            durability: Some(DurabilityText::IntervalMs(5)),
            iops: 1,
            bytes_per_second: 2,
            burst: 3,
        };
        let (_, change) = change_of(0, &NamespaceWish::Create(text.clone())).unwrap();
        let NamespaceChange::Create(made) = change else { panic!("not a creation") };
        assert_eq!(text_of(&made), text);
        let delete = change_of(3, &NamespaceWish::Delete).unwrap();
        assert_eq!(delete, (NamespaceId(3), NamespaceChange::Delete));
        assert!(change_of(0, &NamespaceWish::Delete).is_err());
        assert!(change_of(17, &NamespaceWish::Resize(1)).is_err());
        assert!(change_of(1, &NamespaceWish::Format(520)).is_err());
    }
}
