//! Nodes that ask for keys, and hosts that have them.

use crate::host::Node;
use headwater_frontend::nvme_tcp::NvmeTcpConfig;
use headwater_host::clock::Nanos;
use headwater_io::{NvmeTcp, NvmeTcpTarget};
use headwater_nvme::tcp::psk::{ConfiguredKey, HostKey, Transform};
use headwater_ssd::command::FaceId;
use headwater_ssd::media::Geometry;
use headwater_ssd::media::memory::MemoryMedia;

/// A host of the node with a key for SHA-256.
pub(crate) const SHORT: &str = "nqn.2026-01.test:short";
/// One with a key for SHA-384.
pub(crate) const LONG: &str = "nqn.2026-01.test:long";
/// One whose key is used as it is.
pub(crate) const PLAIN: &str = "nqn.2026-01.test:plain";

/// A host's key, of one byte over and over.
pub(crate) fn key(host: &str, transform: Transform, bytes: usize, seed: u8) -> HostKey {
    HostKey { host: host.to_owned(), key: ConfiguredKey::new(transform, &vec![seed; bytes]).unwrap() }
}

/// The keys that the nodes of these tests know.
pub(crate) fn keys() -> Vec<HostKey> {
    vec![
        key(SHORT, Transform::ByHost, 32, 1),
        key(LONG, Transform::ByHost, 48, 2),
        key(PLAIN, Transform::None, 32, 3),
    ]
}

/// A node in small that lets in whoever has one of [`keys`].
pub(crate) fn node() -> Node {
    let media = MemoryMedia::erased(Geometry::with_blocks(128)).unwrap();
    over(media, ([127, 0, 0, 1], 0).into())
}

/// The same over a medium and an address.
pub(crate) fn over(media: MemoryMedia, listen: std::net::SocketAddr) -> Node {
    Node::with(media, &NvmeTcpConfig { listen, face: FaceId(5), keys: keys() })
}

/// The device of a node as one of its hosts sees it.
pub(crate) fn target(node: &Node, host: HostKey) -> NvmeTcpTarget {
    let nobody = NvmeTcpTarget { retry_for: Nanos::ZERO, ..NvmeTcpTarget::new(node.address, "") };
    let target = nobody.secured(host);
    let names = NvmeTcp::discover_as(&target).unwrap();
    NvmeTcpTarget { subsystem_name: names[0].clone(), ..target }
}
