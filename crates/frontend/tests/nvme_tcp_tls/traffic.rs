//! Data that passes through TLS stays unchanged.

use crate::secured::{SHORT, keys, node, over, target};
use headwater_host::clock::Nanos;
use headwater_io::namespace_request::NamespaceSpec;
use headwater_io::{Buffer, Command, Device, NvmeTcp, NvmeTcpTarget, WriteDurability};
use headwater_nvme::spec::status::Status;
use headwater_nvme::tcp::{DigestMode, DigestSettings};
use headwater_testkit::device_behaviour;
use std::io::Write as _;

const BLOCK_BYTES: u32 = 4_096;
const DEPTH: u32 = 24;
/// Maximum blocks of one command: 256 KiB, many records.
const BLOCKS_MAX: u64 = 64;
const COMMANDS: u64 = 3_000;

#[test]
fn keys_queues_and_blocks_pass_the_behaviour_suite_with_both_hashes() {
    let node = node();
    for host in keys() {
        let digests = DigestSettings { header: DigestMode::On, data: DigestMode::On };
        for digests in [DigestSettings::default(), digests] {
            let target = NvmeTcpTarget { digests, ..target(&node, host.clone()) };
            let mut client = Device::over(Box::new(NvmeTcp::open(target).unwrap()), 1).unwrap();
            device_behaviour::keys(&mut client);
            device_behaviour::queues(&mut client);
            device_behaviour::blocks(&mut client);
        }
    }
}

/// A command in flight and its blocks.
struct BlockTransfer {
    first: u64,
    blocks: u64,
    /// The data that a read must return; `None` for a write.
    expected: Option<Vec<u8>>,
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

/// Returns the bytes of `blocks` blocks.
fn block_bytes(blocks: u64) -> usize {
    index(blocks * u64::from(BLOCK_BYTES))
}

fn block_of(lba: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; block_bytes(1)];
    for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
        let value = (lba << 40 ^ version << 16 ^ at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        word.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// Runs random reads and writes of random lengths at depth, and compares each read with the last write.
fn run_mixed(client: &mut Device, seed: u64) {
    let blocks = 2_048_u64;
    let text = NamespaceSpec { block_bytes: BLOCK_BYTES, size: blocks, ..NamespaceSpec::keys() };
    let namespace = client.create_namespace(text).unwrap();
    client.select_namespace(namespace).unwrap();
    let room = block_bytes(BLOCKS_MAX);
    let depth = index(DEPTH.into());
    let buffer = client.buffer(depth * room).unwrap();
    let parts: Vec<Buffer> = (0..depth).map(|at| buffer.slice(at * room, room).unwrap()).collect();
    let mut queue = client.queue(DEPTH).unwrap();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut versions = vec![0_u64; index(blocks)];
    let mut flights: Vec<Option<BlockTransfer>> = (0..depth).map(|_| None).collect();
    let (mut sent, mut done) = (0, 0);
    while done < COMMANDS {
        for place in 0..depth {
            if flights[place].is_some() || sent == COMMANDS {
                continue;
            }
            let count = if random.bool() { 1 } else { random.u64(1..=BLOCKS_MAX) };
            let first = random.u64(0..=blocks - count);
            // Commands in flight access different blocks, so that the result of a read is determined.
            let overlaps =
                |flight: &BlockTransfer| first < flight.first + flight.blocks && flight.first < first + count;
            if flights.iter().flatten().any(overlaps) {
                continue;
            }
            let part = parts[place].slice(0, block_bytes(count)).unwrap();
            let range = first..first + count;
            let (command, expected) = if random.bool() {
                for lba in range {
                    versions[index(lba)] = sent + 1;
                    part.write(block_bytes(lba - first), &block_of(lba, sent + 1)).unwrap();
                }
                (Command::write(namespace, first, BLOCK_BYTES, part, WriteDurability::NamespaceDefault), None)
            } else {
                let expected = range.flat_map(|lba| match versions[index(lba)] {
                    0 => vec![0; block_bytes(1)],
                    version => block_of(lba, version),
                });
                (Command::read(namespace, first, BLOCK_BYTES, part), Some(expected.collect()))
            };
            queue.submit(command.unwrap(), place as u64).unwrap();
            flights[place] = Some(BlockTransfer { first, blocks: count, expected });
            sent += 1;
        }
        let answer = queue.wait(None).unwrap().unwrap();
        assert_eq!(answer.status, Status::SUCCESS, "seed {seed}");
        let place = index(answer.token);
        if let Some(expected) = flights[place].take().unwrap().expected {
            let mut found = vec![0; expected.len()];
            parts[place].read(0, &mut found).unwrap();
            assert!(found == expected, "a read returned other bytes than were written; seed {seed}");
        }
        done += 1;
    }
}

#[test]
fn mixed_reads_and_writes_at_depth_return_the_last_writes() {
    let node = node();
    for (seed, host) in (0x7153_u64..).zip(keys()) {
        let target = target(&node, host);
        run_mixed(&mut Device::over(Box::new(NvmeTcp::open(target).unwrap()), 1).unwrap(), seed);
    }
}

#[test]
fn long_values_that_the_device_receives_pass_tls_unchanged() {
    let node = node();
    for digests in
        [DigestSettings::default(), DigestSettings { header: DigestMode::On, data: DigestMode::On }]
    {
        let target = NvmeTcpTarget { digests, ..target(&node, keys().remove(0)) };
        let mut client = Device::over(Box::new(NvmeTcp::open(target).unwrap()), 1).unwrap();
        for (seed, bytes) in (0..).zip([262_144, 1 << 20, (3 << 20) + 70_001]) {
            let mut value = vec![0; bytes];
            fastrand::Rng::with_seed(seed).fill(&mut value);
            client.put(b"k", &value).unwrap();
            assert!(client.get(b"k").unwrap().unwrap() == value, "{bytes} bytes differ");
        }
    }
}

#[test]
fn a_host_reconnects_to_a_restarted_node() {
    let node = node();
    let address = node.address;
    let target = NvmeTcpTarget { retry_for: Nanos::from_millis(20_000), ..target(&node, keys().remove(1)) };
    let mut client = Device::over(Box::new(NvmeTcp::open(target).unwrap()), 1).unwrap();
    client.put(b"kept", b"across a restart").unwrap();
    let media = node.end();
    let node = over(media, address);
    assert_eq!(client.get(b"kept").unwrap().unwrap(), b"across a restart");
    drop(node);
}

#[test]
fn a_url_selects_the_key_file_and_the_host() {
    use std::os::unix::fs::PermissionsExt as _;
    let node = node();
    let subsystem = target(&node, keys().remove(0)).subsystem_name;
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for host in keys() {
        writeln!(file, "{} {}", host.host, *host.key.to_text()).unwrap();
    }
    std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o600)).unwrap();
    let url = format!("nvme-tcp://{}/{subsystem}?psk={}", node.address, file.path().display());
    let several = headwater::Device::open(&url).unwrap_err().to_string();
    assert!(several.contains("host=NQN"), "{several}");
    let mut device = headwater::Device::open(&format!("{url}&host={SHORT}")).unwrap();
    device.put(b"by url", b"inside TLS").unwrap();
    assert_eq!(device.get(b"by url").unwrap().unwrap(), b"inside TLS");
}
