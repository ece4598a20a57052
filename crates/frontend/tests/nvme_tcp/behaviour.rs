//! The behaviour suite of all devices, over NVMe/TCP, with and without digests, and tests particular to a network.

use crate::host::TcpTestNode;
use headwater_frontend::nvme_tcp::{NvmeTcpConfig, NvmeTcpError, NvmeTcpFrontEnd};
use headwater_host::clock::Nanos;
use headwater_io::namespace_request::{NamespaceRequest, NamespaceSpec};
use headwater_io::{
    Buffer, Command, DeviceBackend as _, IoError, NvmeTcp, NvmeTcpTarget, PoolSettings, WriteDurability,
};
use headwater_nvme::tcp::{DigestMode, DigestSettings};
use headwater_ssd::command::FrontEndId;
use headwater_testkit::device_behaviour;

const DIGESTS: DigestSettings = DigestSettings { header: DigestMode::On, data: DigestMode::On };

#[test]
fn keys_and_queues_pass_the_behaviour_suite() {
    let node = TcpTestNode::start();
    let mut client = node.client(DigestSettings::default());
    assert!(client.namespace().retrieve_options, "Identify announces the options");
    device_behaviour::keys(&mut client);
    device_behaviour::queues(&mut client);
}

#[test]
fn blocks_pass_the_behaviour_suite() {
    let node = TcpTestNode::start();
    device_behaviour::blocks(&mut node.client(DigestSettings::default()));
}

#[test]
fn keys_and_queues_pass_the_behaviour_suite_with_digests() {
    let node = TcpTestNode::start();
    let mut client = node.client(DIGESTS);
    device_behaviour::keys(&mut client);
    device_behaviour::queues(&mut client);
}

#[test]
fn a_block_namespace_is_created_written_and_read_over_the_network() {
    let node = TcpTestNode::start();
    for digests in [DigestSettings::default(), DIGESTS] {
        let mut backend = NvmeTcp::open(node.target(digests)).unwrap();
        let text = NamespaceSpec { block_bytes: 4_096, size: 1_024, ..NamespaceSpec::keys() };
        let id = u32::from(backend.change_namespace(0, NamespaceRequest::Create(text)).unwrap());
        let facts = backend.namespaces().unwrap();
        let made = facts.iter().find(|facts| facts.id == id).unwrap();
        assert_eq!((made.block_bytes, made.size), (4_096, 1_024));
        let mut client = headwater_io::Device::over(Box::new(backend), id).unwrap();
        let pattern: Vec<u8> = (0..400 * 4_096_u32).map(|at| (at / 7).to_le_bytes()[0]).collect();
        client.write(3, &pattern, WriteDurability::Immediate).unwrap();
        let mut back = vec![0; pattern.len()];
        client.read(3, &mut back).unwrap();
        assert!(back == pattern, "the blocks differ from those written");
        client.flush().unwrap();
        assert!(client.read(1_024, &mut [0; 4_096]).is_err(), "beyond the end");
    }
}

#[test]
fn fragmented_pool_of_a_host_moves_blocks_as_one_command() {
    let node = TcpTestNode::start();
    let settings = PoolSettings {
        chunk_bytes: Some(1 << 20),
        cap_bytes: Some(8 << 20),
        static_bytes: Some(0),
        ..PoolSettings::default()
    };
    let settings = settings.with_tiers("0:16777216").unwrap();
    for digests in [DigestSettings::default(), DIGESTS] {
        let mut backend = NvmeTcp::open_with(node.target(digests), &settings).unwrap();
        let text = NamespaceSpec { block_bytes: 4_096, size: 1_024, ..NamespaceSpec::keys() };
        let id = u32::from(backend.change_namespace(0, NamespaceRequest::Create(text)).unwrap());
        let mut client = headwater_io::Device::over(Box::new(backend), id).unwrap();
        let mut held = Vec::new();
        while let Ok(buffer) = client.buffer(64 << 10) {
            held.push(buffer);
        }
        held.sort_by_key(Buffer::process_address);
        let held: Vec<Buffer> = held.into_iter().step_by(2).collect();
        assert!(client.buffer(1 << 20).is_err(), "no run is long enough");
        let pieces = client.buffers(1 << 20, 64).unwrap();
        assert_eq!(pieces.len(), 16);
        let into = client.buffers(1 << 20, 64).unwrap();
        for (piece, byte) in pieces.iter().zip(1..) {
            piece.write(0, &vec![byte; piece.bytes()]).unwrap();
        }
        let mut queue = client.queue(2).unwrap();
        let write = Command::write_gathered(id, 4, 4_096, pieces, WriteDurability::Immediate).unwrap();
        queue.submit(write, 1).unwrap();
        queue.wait(None).unwrap().unwrap().into_result().unwrap();
        let read = Command::read_scattered(id, 4, 4_096, into.clone()).unwrap();
        queue.submit(read, 2).unwrap();
        queue.wait(None).unwrap().unwrap().into_result().unwrap();
        for (piece, byte) in into.iter().zip(1..) {
            let mut bytes = vec![0; piece.bytes()];
            piece.read(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|&found| found == byte), "piece {byte}");
        }
        drop(into);
        // The blocking calls take pieces too.
        let pattern: Vec<u8> = (0..=250).cycle().take(1 << 20).collect();
        client.write(300, &pattern, WriteDurability::Immediate).unwrap();
        let mut back = vec![0; pattern.len()];
        client.read(300, &mut back).unwrap();
        assert!(back == pattern);
        assert!(client.pool().statistics().steps.scattered >= 4);
        drop(held);
    }
}

#[test]
fn a_host_reads_values_of_another_host_also_after_a_restart() {
    let node = TcpTestNode::start();
    let address = node.address;
    let name = node.subsystem();
    let once = NvmeTcpTarget { retry_for: Nanos::ZERO, ..node.target(DigestSettings::default()) };
    let mut one = headwater_io::Device::over(Box::new(NvmeTcp::open(once).unwrap()), 1).unwrap();
    let mut other = node.client(DIGESTS);
    one.put(b"shared", b"value").unwrap();
    assert_eq!(other.get(b"shared").unwrap().unwrap(), b"value");
    let media = node.end();
    let lost = one.get(b"shared").unwrap_err();
    assert!(matches!(lost, IoError::Gone { .. }), "{lost}");
    let node = TcpTestNode::over(media, address);
    assert_eq!(node.subsystem(), name, "a restart does not rename the subsystem");
    assert_eq!(node.client(DIGESTS).get(b"shared").unwrap().unwrap(), b"value");
}

#[test]
fn a_wrong_subsystem_name_is_refused_with_its_status() {
    let node = TcpTestNode::start();
    let mut target = node.target(DigestSettings::default());
    target.subsystem_name = "nqn.2026-01.test:absent".to_owned();
    let refused = NvmeTcp::open(target).unwrap_err().to_string();
    assert!(refused.contains("code 82h"), "{refused}");
}

#[cfg(not(feature = "tls"))]
#[test]
fn a_build_without_tls_refuses_keys_and_names_the_feature() {
    let key = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    let keys = headwater_nvme::tcp::psk::HostKey::parse_all(&format!("nqn.h {key}")).unwrap();
    let target = NvmeTcpTarget::new(([127, 0, 0, 1], 1).into(), "nqn.s").secured(keys[0].clone());
    for listen in ["127.0.0.1:0", "0.0.0.0:0"] {
        let config = NvmeTcpConfig {
            listen: listen.parse().unwrap(),
            front_end_id: FrontEndId(5),
            keys: keys.clone(),
        };
        let error = NvmeTcpFrontEnd::bind(&config).unwrap_err().to_string();
        assert!(error.contains("--features tls"), "{error}");
    }
    let error = NvmeTcp::open(target).unwrap_err();
    assert!(
        matches!(&error, IoError::Unsupported { reason } if reason.contains("--features tls")),
        "{error}"
    );
}

#[test]
fn only_loopback_addresses_are_accepted_without_keys_and_the_error_names_the_option() {
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let config =
            NvmeTcpConfig { listen: address.parse().unwrap(), front_end_id: FrontEndId(5), keys: Vec::new() };
        let error = NvmeTcpFrontEnd::bind(&config).unwrap_err();
        assert!(matches!(error, NvmeTcpError::NotLoopback { .. }));
        assert!(error.to_string().contains("--nvme-tcp-psk"), "{error}");
    }
}
