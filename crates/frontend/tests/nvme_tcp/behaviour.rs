//! The behaviour of every device, over NVMe/TCP, with and without digests; and what only a network has.

#[path = "../../../headwater/tests/behaviour/suite.rs"]
mod suite;

use crate::host::Node;
use headwater_frontend::nvme_tcp::{NvmeTcpConfig, NvmeTcpError, NvmeTcpFace};
use headwater_host::clock::Nanos;
use headwater_io::attach::admin::{NamespaceText, NamespaceWish};
use headwater_io::{Backend as _, Durable, IoError, NvmeTcp, NvmeTcpTarget};
use headwater_nvme::tcp::{Digest, Digests};
use headwater_ssd::command::FaceId;

const DIGESTS: Digests = Digests { header: Digest::On, data: Digest::On };

#[test]
fn keys_and_queues_behave_as_everywhere() {
    let node = Node::start();
    let mut client = node.client(Digests::default());
    suite::keys(&mut client);
    suite::queues(&mut client);
}

#[test]
fn blocks_behave_as_everywhere() {
    let node = Node::start();
    suite::blocks(&mut node.client(Digests::default()));
}

#[test]
fn keys_and_queues_behave_as_everywhere_with_digests() {
    let node = Node::start();
    let mut client = node.client(DIGESTS);
    suite::keys(&mut client);
    suite::queues(&mut client);
}

#[test]
fn blocks_are_made_written_and_read_over_the_network() {
    let node = Node::start();
    for digests in [Digests::default(), DIGESTS] {
        let mut backend = NvmeTcp::open(node.target(digests)).unwrap();
        let text = NamespaceText { block_bytes: 4_096, size: 1_024, ..NamespaceText::keys() };
        let id = u32::from(backend.change_namespace(0, NamespaceWish::Create(text)).unwrap());
        let facts = backend.namespaces().unwrap();
        let made = facts.iter().find(|facts| facts.id == id).unwrap();
        assert_eq!((made.block_bytes, made.size), (4_096, 1_024));
        let mut client = headwater_io::Device::over(Box::new(backend), id).unwrap();
        let pattern: Vec<u8> = (0..400 * 4_096_u32).map(|at| (at / 7).to_le_bytes()[0]).collect();
        client.write(3, &pattern, Durable::Now).unwrap();
        let mut back = vec![0; pattern.len()];
        client.read(3, &mut back).unwrap();
        assert!(back == pattern, "the blocks are not those that were written");
        client.flush().unwrap();
        assert!(client.read(1_024, &mut [0; 4_096]).is_err(), "beyond the end");
    }
}

#[test]
fn what_one_host_wrote_another_reads_and_a_restart_keeps_it() {
    let node = Node::start();
    let address = node.address;
    let name = node.subsystem();
    let once = NvmeTcpTarget { retry_for: Nanos::ZERO, ..node.target(Digests::default()) };
    let mut one = headwater_io::Device::over(Box::new(NvmeTcp::open(once).unwrap()), 1).unwrap();
    let mut other = node.client(DIGESTS);
    one.put(b"shared", b"value").unwrap();
    assert_eq!(other.get(b"shared").unwrap().unwrap(), b"value");
    let media = node.end();
    let lost = one.get(b"shared").unwrap_err();
    assert!(matches!(lost, IoError::Gone { .. }), "{lost}");
    let node = Node::over(media, address);
    assert_eq!(node.subsystem(), name, "a restart does not rename the subsystem");
    assert_eq!(node.client(DIGESTS).get(b"shared").unwrap().unwrap(), b"value");
}

#[test]
fn a_wrong_name_is_refused_with_the_status() {
    let node = Node::start();
    let mut target = node.target(Digests::default());
    target.subsystem_name = "nqn.2026-01.test:nobody".to_owned();
    let refused = NvmeTcp::open(target).unwrap_err().to_string();
    assert!(refused.contains("code 82h"), "{refused}");
}

#[cfg(not(feature = "tls"))]
#[test]
fn a_build_without_tls_takes_no_keys_and_says_so() {
    let key = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    let keys = headwater_nvme::tcp::psk::HostKey::parse_all(&format!("nqn.h {key}")).unwrap();
    let target = NvmeTcpTarget::new(([127, 0, 0, 1], 1).into(), "nqn.s").secured(keys[0].clone());
    for listen in ["127.0.0.1:0", "0.0.0.0:0"] {
        let config = NvmeTcpConfig { listen: listen.parse().unwrap(), face: FaceId(5), keys: keys.clone() };
        let error = NvmeTcpFace::bind(&config).unwrap_err().to_string();
        assert!(error.contains("--features tls"), "{error}");
    }
    let error = NvmeTcp::open(target).unwrap_err();
    assert!(matches!(&error, IoError::Refused { reason } if reason.contains("--features tls")), "{error}");
}

#[test]
fn only_the_loopback_is_listened_on_and_the_refusal_says_why() {
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let config = NvmeTcpConfig { listen: address.parse().unwrap(), face: FaceId(5), keys: Vec::new() };
        let error = NvmeTcpFace::bind(&config).unwrap_err();
        assert!(matches!(error, NvmeTcpError::NotLoopback { .. }));
        assert!(error.to_string().contains("--nvme-tcp-psk"), "it says how: {error}");
    }
}
