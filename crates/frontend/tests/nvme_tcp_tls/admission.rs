//! Admission of hosts by their keys.

use crate::secured::{LONG, SHORT, key, keys, node, target};
use headwater_frontend::nvme_tcp::{NvmeTcpConfig, NvmeTcpFrontEnd};
use headwater_host::clock::Nanos;
use headwater_host::tls::TlsRole;
use headwater_io::{Device, IoError, NvmeTcp, NvmeTcpTarget};
use headwater_nvme::spec::fabrics::{CONTROLLER_DYNAMIC, ConnectData, ConnectFields};
use headwater_nvme::tcp::psk::KeyTransform;
use headwater_nvme::tcp::secure::{SecureStream, prepare_tls_keys};
use headwater_nvme::tcp::{CommandTransfer, InitiatorConnection, InitiatorParameters, InitiatorStep};
use headwater_ssd::command::FrontEndId;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use zerocopy::IntoBytes as _;

#[test]
fn wrong_keys_unknown_hosts_and_hosts_without_tls_are_refused() {
    let node = node();
    let right = target(&node, keys().remove(0));
    let mut client = Device::over(Box::new(NvmeTcp::open(right.clone()).unwrap()), 1).unwrap();
    for wrong in [
        key(SHORT, KeyTransform::FromHostName, 32, 9),
        key(SHORT, KeyTransform::FromHostName, 48, 1),
        key(SHORT, KeyTransform::None, 32, 1),
        key(LONG, KeyTransform::FromHostName, 32, 1),
        key("nqn.2026-01.test:unknown", KeyTransform::FromHostName, 32, 1),
    ] {
        let refused = NvmeTcp::open(right.clone().secured(wrong.clone())).unwrap_err();
        let text = refused.to_string();
        assert!(matches!(refused, IoError::Denied { .. } | IoError::Gone { .. }), "{text}");
        assert!(text.contains("TLS"), "{wrong:?}: {text}");
    }
    let bare = NvmeTcpTarget { key: None, ..right.clone() };
    assert!(NvmeTcp::open(bare).is_err(), "a host without TLS was admitted");
    client.put(b"still", b"served").unwrap();
    assert_eq!(client.get(b"still").unwrap().unwrap(), b"served");
    // An admin and an I/O queue.
    node.until("the end of the refused connections", |numbers| numbers.connections == 2);
}

#[test]
fn a_host_with_a_key_reports_a_node_without_tls() {
    let node = crate::host::Node::start();
    let target = NvmeTcpTarget { retry_for: Nanos::ZERO, ..NvmeTcpTarget::new(node.address, "nqn.s") };
    let refused = NvmeTcp::open(target.secured(keys().remove(0))).unwrap_err().to_string();
    assert!(refused.contains("TLS"), "{refused}");
}

#[test]
fn with_keys_any_address_is_accepted_for_listening() {
    let listen = "0.0.0.0:0".parse().unwrap();
    let front_end =
        NvmeTcpFrontEnd::bind(&NvmeTcpConfig { listen, front_end_id: FrontEndId(5), keys: keys() }).unwrap();
    assert!(!front_end.local_addr().ip().is_loopback());
    let open = NvmeTcpConfig { listen, front_end_id: FrontEndId(5), keys: Vec::new() };
    assert!(NvmeTcpFrontEnd::bind(&open).is_err(), "the address is accepted without keys");
}

/// Sends a Connect under `names` after a handshake with the first key for `subsystem`; returns the code of its status.
fn connect_as(address: std::net::SocketAddr, subsystem: &str, names: (&str, &str)) -> u8 {
    let psks = keys().remove(0).tls_psks(subsystem).unwrap();
    let mut stream = SecureStream::new(TlsRole::Client, &prepare_tls_keys(&psks).unwrap()).unwrap();
    let mut socket = TcpStream::connect(address).unwrap();
    let parameters = InitiatorParameters { in_capsule_max: 8_192, ..InitiatorParameters::default() };
    let mut connection = InitiatorConnection::<Vec<u8>>::new(parameters);
    let mut buffer = vec![0; 16 << 10];
    loop {
        stream.seal(connection.outgoing_mut()).unwrap();
        socket.write_all(stream.outgoing()).unwrap();
        stream.sent(stream.outgoing().len());
        let count = socket.read(&mut buffer).unwrap();
        assert!(count > 0, "the node closed the connection");
        stream.feed(&buffer[..count]);
        loop {
            let opened = stream.open(&mut buffer).unwrap();
            if opened == 0 {
                break;
            }
            let mut bytes = &buffer[..opened];
            loop {
                match connection.advance(&mut bytes) {
                    InitiatorStep::NeedInput => break,
                    InitiatorStep::Opened => {
                        let fields = ConnectFields {
                            queue: 0,
                            size: 31,
                            ..ConnectFields::from_entry(&Default::default())
                        };
                        let data = ConnectData::new((names.0, [1; 16]), names.1, CONTROLLER_DYNAMIC);
                        let data = CommandTransfer::Out(data.as_bytes().to_vec());
                        assert!(connection.submit(fields.to_entry(), data).is_ok());
                    }
                    InitiatorStep::Completed(done) => return done.entry.status().code,
                    InitiatorStep::Closed(ended) => panic!("{ended:?}"),
                }
            }
        }
    }
}

#[test]
fn a_host_connects_only_under_the_names_of_its_key() {
    let node = node();
    let subsystem = target(&node, keys().remove(0)).subsystem_name;
    let discovery = "nqn.2014-08.org.nvmexpress.discovery";
    assert_eq!(connect_as(node.address, &subsystem, (SHORT, &subsystem)), 0);
    assert_eq!(connect_as(node.address, &subsystem, (LONG, &subsystem)), 0x84, "as another host");
    assert_eq!(connect_as(node.address, discovery, (SHORT, &subsystem)), 0x84, "to another subsystem");
    assert_eq!(connect_as(node.address, discovery, (SHORT, discovery)), 0);
}
