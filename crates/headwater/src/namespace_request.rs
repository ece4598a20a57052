//! Namespace requests of applications and administrators, translated for the device.
//!
//! Input: a request of a person or a program. Output: the change for the device, or the reason why it is not possible;
//! in the other direction, the table of namespaces as text.

use headwater_host::clock::Nanos;
use headwater_host::width::narrow;
use headwater_io::ClientNamespace;
use headwater_io::namespace_request::{DurabilitySpec, NamespaceRequest, NamespaceSpec};
use headwater_ssd::command::NamespaceId;
use headwater_ssd::engine::{Durability, SsdDevice};
use headwater_ssd::limits::NAMESPACES;
use headwater_ssd::media::Media;
use headwater_ssd::namespace::{BlockFormat, Namespace, NamespaceChange, NamespaceKind, NamespaceLimits};

/// Translates a request into the change, and the namespace to submit it with.
///
/// # Errors
/// A message that says what is not possible.
pub fn namespace_change(
    id: u8,
    request: &NamespaceRequest,
) -> Result<(NamespaceId, NamespaceChange), String> {
    let is_create = matches!(request, NamespaceRequest::Create(_));
    if !is_create && !(1..=NAMESPACES).contains(&usize::from(id)) {
        return Err(format!("namespaces are numbered 1 to {NAMESPACES}, there is no {id}"));
    }
    let change = match request {
        NamespaceRequest::Create(text) => NamespaceChange::Create(Namespace {
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
        NamespaceRequest::Delete => NamespaceChange::Delete,
        NamespaceRequest::Resize(size) => NamespaceChange::Resize(*size),
        NamespaceRequest::Format(block_bytes) => NamespaceChange::Format(kind_of(*block_bytes)?),
        &NamespaceRequest::Limits { iops, bytes_per_second, burst } => {
            NamespaceChange::Limits(NamespaceLimits { iops, bytes_per_second, burst })
        }
        NamespaceRequest::Durability(durability) => {
            NamespaceChange::Durability(durability.map(durability_of))
        }
    };
    Ok((if is_create { NamespaceId::FIRST } else { NamespaceId(id) }, change))
}

/// Returns the namespaces that hosts see, in the form of requests.
#[must_use]
pub fn table<M: Media>(device: &SsdDevice<M>) -> Vec<(u8, NamespaceSpec)> {
    let all = (1..=NAMESPACES).filter_map(|number| u8::try_from(number).ok());
    all.filter_map(|id| Some((id, namespace_spec(&device.namespace(NamespaceId(id))?)))).collect()
}

/// Returns the facts that a client with access to the whole namespace receives.
#[must_use]
pub fn client_namespace(id: NamespaceId, namespace: &Namespace) -> ClientNamespace {
    let block_bytes = namespace_spec(namespace).block_bytes;
    ClientNamespace {
        id: id.0.into(),
        block_bytes,
        size: namespace.size,
        writable: true,
        blocks: None,
        retrieve_options: block_bytes == 0,
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

fn durability_of(text: DurabilitySpec) -> Durability {
    match text {
        DurabilitySpec::Always => Durability::Always,
        DurabilitySpec::IntervalMs(millis) => Durability::Interval(Nanos::from_millis(millis)),
        DurabilitySpec::OnFlush => Durability::OnFlush,
    }
}

/// Returns a durability mode in the form of requests.
#[must_use]
pub fn durability_spec(durability: Durability) -> DurabilitySpec {
    match durability {
        Durability::Always => DurabilitySpec::Always,
        Durability::Interval(span) => DurabilitySpec::IntervalMs(span.0 / 1_000_000),
        Durability::OnFlush => DurabilitySpec::OnFlush,
    }
}

fn namespace_spec(namespace: &Namespace) -> NamespaceSpec {
    NamespaceSpec {
        block_bytes: match namespace.kind {
            NamespaceKind::Kv => 0,
            NamespaceKind::Block(format) => narrow(format.bytes()),
        },
        size: namespace.size,
        durability: namespace.durability.map(durability_spec),
        iops: namespace.limits.iops,
        bytes_per_second: namespace.limits.bytes_per_second,
        burst: namespace.limits.burst,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_become_the_changes_they_name() {
        let text = NamespaceSpec {
            block_bytes: 4_096,
            size: 77,
            durability: Some(DurabilitySpec::IntervalMs(5)),
            iops: 1,
            bytes_per_second: 2,
            burst: 3,
        };
        let (_, change) = namespace_change(0, &NamespaceRequest::Create(text.clone())).unwrap();
        let NamespaceChange::Create(made) = change else { panic!("not a creation") };
        assert_eq!(namespace_spec(&made), text);
        let delete = namespace_change(3, &NamespaceRequest::Delete).unwrap();
        assert_eq!(delete, (NamespaceId(3), NamespaceChange::Delete));
        assert!(namespace_change(0, &NamespaceRequest::Delete).is_err());
        assert!(namespace_change(17, &NamespaceRequest::Resize(1)).is_err());
        assert!(namespace_change(1, &NamespaceRequest::Format(520)).is_err());
    }
}
