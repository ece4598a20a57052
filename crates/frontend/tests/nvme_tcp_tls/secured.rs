//! Nodes that require keys, and the keys of their hosts.

use crate::host::Node;
use headwater_frontend::nvme_tcp::NvmeTcpConfig;
use headwater_host::clock::Nanos;
use headwater_io::{NvmeTcp, NvmeTcpTarget};
use headwater_nvme::tcp::psk::{ConfiguredKey, HostKey, KeyTransform};
use headwater_ssd::command::FrontEndId;
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::memory::MemoryMedia;

/// A host of the node with a key for SHA-256.
pub(crate) const SHORT: &str = "nqn.2026-01.test:short";
/// A host with a key for SHA-384.
pub(crate) const LONG: &str = "nqn.2026-01.test:long";
/// A host whose key is used without a transform.
pub(crate) const PLAIN: &str = "nqn.2026-01.test:plain";

/// Creates a host's key of one repeated byte.
pub(crate) fn key(host: &str, transform: KeyTransform, bytes: usize, seed: u8) -> HostKey {
    HostKey { host: host.to_owned(), key: ConfiguredKey::new(transform, &vec![seed; bytes]).unwrap() }
}

/// Returns the keys that the nodes of these tests accept.
pub(crate) fn keys() -> Vec<HostKey> {
    vec![
        key(SHORT, KeyTransform::FromHostName, 32, 1),
        key(LONG, KeyTransform::FromHostName, 48, 2),
        key(PLAIN, KeyTransform::None, 32, 3),
    ]
}

/// Starts a minimal node that accepts hosts with one of [`keys`].
pub(crate) fn node() -> Node {
    let media = MemoryMedia::erased(FlashGeometry::with_blocks(128)).unwrap();
    over(media, ([127, 0, 0, 1], 0).into())
}

/// Starts such a node over a medium and an address.
pub(crate) fn over(media: MemoryMedia, listen: std::net::SocketAddr) -> Node {
    Node::with(media, &NvmeTcpConfig { listen, front_end_id: FrontEndId(5), keys: keys() })
}

/// Returns the target of a node for one of its hosts.
pub(crate) fn target(node: &Node, host: HostKey) -> NvmeTcpTarget {
    let unnamed = NvmeTcpTarget { retry_for: Nanos::ZERO, ..NvmeTcpTarget::new(node.address, "") };
    let target = unnamed.secured(host);
    let names = NvmeTcp::discover_as(&target).unwrap();
    NvmeTcpTarget { subsystem_name: names[0].clone(), ..target }
}
