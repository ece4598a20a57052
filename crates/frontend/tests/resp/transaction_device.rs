//! Tests of transactions over several databases on the device itself: across power cuts, quotas, and block namespaces.

use crate::transactions::{bulk, error_of, ok};
use crate::wire::{RespTestClient, RespValue, encode};
use headwater_frontend::resp::{RespConfig, RespFrontEnd};
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{FrontEndId, NamespaceId, SsdCommand};
use headwater_ssd::engine::{DeviceConfig, Durability, SsdDevice, StartTime};
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::memory::MemoryMedia;
use headwater_ssd::namespace::{BlockFormat, Namespace, NamespaceChange, NamespaceKind};
use std::io::{Cursor, Read, Write};
use std::net::{SocketAddr, TcpStream};

const WALL: UnixMillis = UnixMillis(1_000_000);

/// A front end over a device, and one client, run by the test turn by turn.
pub(crate) struct DeviceBench {
    front_end: RespFrontEnd,
    pub(crate) device: SsdDevice<MemoryMedia>,
    config: DeviceConfig,
    stream: TcpStream,
    turn: u64,
}

impl DeviceBench {
    pub(crate) fn new(config: DeviceConfig) -> Self {
        Self::on(MemoryMedia::erased(FlashGeometry::with_blocks(64)).unwrap(), config)
    }

    fn on(media: MemoryMedia, config: DeviceConfig) -> Self {
        let start = StartTime { now: Nanos::ZERO, wall: WALL };
        let device = SsdDevice::open(media, config.clone(), start, &mut |_| {}).unwrap();
        let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
        let front_end = RespFrontEnd::bind(RespConfig { listen, ..RespConfig::default() }).unwrap();
        let stream = TcpStream::connect(front_end.local_addr().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        Self { front_end, device, config, stream, turn: 0 }
    }

    /// Cuts the power, and opens the device again.
    pub(crate) fn cut(self) -> Self {
        Self::on(self.device.into_media().after_power_cut(), self.config)
    }

    pub(crate) fn turn(&mut self) {
        self.turn += 3_000;
        self.front_end.poll(&mut self.device, Nanos(self.turn), WALL);
        self.device.poll(Nanos(self.turn), WALL);
    }

    pub(crate) fn send(&mut self, lines: &[&str]) {
        for line in lines {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            self.stream.write_all(&encode(&words)).unwrap();
        }
    }

    /// Sends commands, and returns the reply of the last one.
    pub(crate) fn last_of(&mut self, lines: &[&str]) -> RespValue {
        self.send(&[lines, &["ECHO behind-all"]].concat());
        let mut all = Vec::new();
        while !all.ends_with(b"behind-all\r\n") {
            self.turn();
            let mut bytes = [0; 4_096];
            if let Ok(count) = self.stream.read(&mut bytes) {
                all.extend_from_slice(&bytes[..count]);
            }
        }
        let mut client = RespTestClient::new(Cursor::new(all));
        let replies: Vec<RespValue> = lines.iter().map(|_| client.receive()).collect();
        replies.last().unwrap().clone()
    }

    /// Runs a change of the namespace table.
    pub(crate) fn change(&mut self, namespace: NamespaceId, change: NamespaceChange) -> NamespaceId {
        let other = FrontEndId(40);
        self.device.submit(other, namespace, 1, SsdCommand::Namespace(change)).unwrap();
        for _ in 0..1_000 {
            self.turn();
            if let Some(completion) = self.device.next_completion(other) {
                assert_eq!(completion.status, Status::SUCCESS);
                return NamespaceId(u8::try_from(completion.position).unwrap());
            }
        }
        panic!("the change has no completion");
    }
}

#[test]
fn power_cut_leaves_all_of_a_transaction_over_databases_or_nothing() {
    let (mut whole, mut nothing) = (0, 0);
    for seed in 0..120 {
        let mut random = fastrand::Rng::with_seed(seed);
        let batch_part_writes = [1, 2, 512][random.usize(..3)];
        let mut config = DeviceConfig { batch_part_writes, ..DeviceConfig::default() };
        for durability in &mut config.durability[..4] {
            *durability = [Durability::Always, Durability::OnFlush][random.usize(..2)];
        }
        let mut bench = DeviceBench::new(config);
        let before = ["SET a old", "SELECT 1", "SET a old", "SELECT 3", "SET gone old", "SELECT 0", "SAVE"];
        bench.last_of(&before);
        let long = "v".repeat(9_000);
        let set_long = format!("SET long {long}");
        bench.send(&[
            "MULTI",
            "APPEND a -new",
            "SELECT 1",
            &set_long,
            "COPY a b DB 2",
            "INCR n",
            "SELECT 3",
            "DEL gone",
            "SET a new",
            "EXEC",
        ]);
        for _ in 0..random.usize(1..40) {
            bench.turn();
        }
        let mut bench = bench.cut();
        let mut found = Vec::new();
        for (database, keys) in [(0, "a b"), (1, "a long n"), (2, "a b"), (3, "a gone")] {
            let (select, get) = (format!("SELECT {database}"), format!("MGET {keys}"));
            let RespValue::Array(values) = bench.last_of(&[&select, &get]) else { panic!("no array") };
            found.extend(values);
        }
        let (none, old) = (RespValue::Null, bulk("old"));
        let [a, b, c] = [none.clone(), none.clone(), none.clone()];
        if found == [old.clone(), a, old.clone(), b, c, none.clone(), none.clone(), none.clone(), old.clone()]
        {
            nothing += 1;
        } else {
            let [a, b, c] = [none.clone(), none.clone(), none];
            let after = [bulk("old-new"), a, old.clone(), bulk(&long), bulk("1"), b, old, bulk("new"), c];
            assert_eq!(found, after, "seed {seed}: a transaction happened in part");
            whole += 1;
        }
    }
    assert!(whole > 10 && nothing > 10, "{whole} transactions happened, and {nothing} did not");
}

#[test]
fn acknowledged_transaction_is_durable_if_one_of_its_databases_is() {
    let mut config = DeviceConfig::default();
    config.durability[0] = Durability::OnFlush;
    let mut bench = DeviceBench::new(config);
    let replies = bench.last_of(&["MULTI", "SET a 1", "SELECT 1", "SET a 2", "EXEC"]);
    assert_eq!(replies, RespValue::Array(vec![ok(), ok(), ok()]));
    let mut bench = bench.cut();
    assert_eq!(bench.last_of(&["GET a"]), bulk("1"));
    assert_eq!(bench.last_of(&["SELECT 1", "GET a"]), bulk("2"));
}

#[test]
fn quota_of_one_database_refuses_the_whole_transaction() {
    let mut bench = DeviceBench::new(DeviceConfig::default());
    let small = Namespace { size: 4_096, ..Namespace::IMPLICIT };
    let database = bench.change(NamespaceId::FIRST, NamespaceChange::Create(small)).0 - 1;
    assert_ne!(database, 0);
    let (select, set) = (format!("SELECT {database}"), format!("SET a {}", "v".repeat(5_000)));
    let text = error_of(bench.last_of(&["MULTI", "SET a 1", &select, &set, "EXEC"]));
    assert!(text.starts_with("EXECABORT"), "{text}");
    assert_eq!(bench.last_of(&["EXISTS a"]), RespValue::Integer(0));
    let replies = bench.last_of(&["MULTI", "SET a 1", &select, "SET a 1", "EXEC"]);
    assert_eq!(replies, RespValue::Array(vec![ok(), ok(), ok()]));
}

#[test]
fn block_namespace_refuses_the_whole_transaction() {
    let mut bench = DeviceBench::new(DeviceConfig::default());
    let kind = NamespaceKind::Block(BlockFormat::B4096);
    let blocks = Namespace { kind, size: 100, ..Namespace::IMPLICIT };
    let database = bench.change(NamespaceId::FIRST, NamespaceChange::Create(blocks)).0 - 1;
    let select = format!("SELECT {database}");
    // Whether its keys are only written, read, or watched.
    for command in ["SET a 2", "APPEND a 2"] {
        let text = error_of(bench.last_of(&["MULTI", "SET a 1", &select, command, "EXEC"]));
        assert!(text.starts_with("EXECABORT") && text.contains("block namespace"), "{text}");
        assert_eq!(bench.last_of(&["EXISTS a"]), RespValue::Integer(0));
    }
    let text = error_of(bench.last_of(&[&select, "WATCH a"]));
    assert!(text.contains("namespace"), "{text}");
}
