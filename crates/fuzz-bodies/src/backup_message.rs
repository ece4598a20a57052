//! Both ends of the backup socket: any bytes of a client end in a status or are waited for, and end no node; any bytes of a
//! node give the parts that its header announces, or an error.
//!
//! Input: one byte that chooses the end. For a node, steps follow, each an action, the number of its bytes, and the
//! bytes; for a client, what the node sends.

use headwater_frontend::backup::BackupFrontEnd;
use headwater_frontend::backup::message::{
    BackupRequest, BackupStatus, SOCKET_NAME, SnapshotBlockEntry, SnapshotHeader, SnapshotRecord,
};
use headwater_frontend::front_end::FrontEnd as _;
use headwater_host::clock::{Clock, UnixMillis};
use headwater_node::backup::source::SnapshotLink;
use headwater_ssd::command::{FrontEndId, NamespaceId, RecordExpiry, SsdCommand, WriteCondition};
use headwater_ssd::engine::snapshot::SnapshotStatus;
use headwater_ssd::engine::{DeviceConfig, Durability, SsdDevice, StartTime};
use headwater_ssd::limits::NAMESPACES;
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::file::{FileMedia, FileOptions};
use std::cell::RefCell;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use tempfile::TempDir;
use zerocopy::{FromBytes as _, IntoBytes as _};

const WALL: UnixMillis = UnixMillis(1);
const WRITER: FrontEndId = FrontEndId(9);
/// Turns after which everything that can happen has happened.
const TURNS_MAX: usize = 100_000;

/// A node with one device. It serves every input, because a flash file costs more than all of them.
struct BackupWorld {
    device: SsdDevice<FileMedia>,
    front_end: BackupFrontEnd,
    clock: Clock,
    token: u64,
    folder: TempDir,
}

thread_local! {
    static WORLD: RefCell<BackupWorld> = RefCell::new(BackupWorld::new());
}

/// Passes bytes to one end of the socket.
///
/// # Panics
/// If a reply is no status of the protocol, if a client that is gone keeps a snapshot, or if a client takes other parts
/// than the node announced.
pub fn body(bytes: &[u8]) {
    match bytes.split_first() {
        Some((end, rest)) if end.is_multiple_of(2) => WORLD.with_borrow_mut(|world| world.serve(rest)),
        Some((_, rest)) => receive(rest),
        None => {}
    }
}

impl BackupWorld {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let options = FileOptions::default();
        let media = FileMedia::create(folder.path(), FlashGeometry::with_blocks(32), [7; 16], options);
        let clock = Clock::start();
        let start = StartTime { now: clock.now(), wall: WALL };
        let durability = [Durability::OnFlush; NAMESPACES];
        let config = DeviceConfig { durability, ..DeviceConfig::default() };
        let device = SsdDevice::open(media.expect("a medium"), config, start, &mut |_| {}).expect("a device");
        let front_end = BackupFrontEnd::bind(folder.path()).expect("a socket");
        Self { device, front_end, clock, token: 0, folder }
    }

    fn serve(&mut self, bytes: &[u8]) {
        let mut client = FuzzClient::connect(&self.folder);
        let mut rest = bytes;
        while let Some((&[kind, length], behind)) = rest.split_first_chunk::<2>() {
            let (step, behind) = behind.split_at(usize::from(length).min(behind.len()));
            rest = behind;
            match kind % 5 {
                0 => client.send(step),
                1 => {
                    client.send(BackupRequest::new(u32::from(length)).as_bytes());
                    client.send(step);
                }
                2 => step.iter().for_each(|index| client.send(&u32::from(*index).to_le_bytes())),
                3 => self.store(step),
                _ => {
                    self.end(client);
                    client = FuzzClient::connect(&self.folder);
                }
            }
            self.turn(usize::from(kind));
            client.receive();
        }
        self.end(client);
    }

    fn turn(&mut self, turns: usize) {
        for _ in 0..=turns {
            let now = self.clock.now();
            self.front_end.poll(&mut self.device, now, WALL);
            self.device.poll(now, WALL);
        }
    }

    fn store(&mut self, value: &[u8]) {
        self.token += 1;
        let store = SsdCommand::Store {
            key: b"key"[..].into(),
            value: value.to_vec().into(),
            condition: WriteCondition::Always,
            expiry: RecordExpiry::Never,
        };
        self.device.submit(WRITER, NamespaceId::FIRST, self.token, store).expect("an idle device");
        for _ in 0..TURNS_MAX {
            self.turn(0);
            if let Some(stored) = self.device.next_completion(WRITER) {
                assert!(stored.status.is_success(), "a store beside a backup failed: {}", stored.status);
                return;
            }
            std::thread::yield_now();
        }
        panic!("a store beside a backup has no completion");
    }

    /// Disconnects a client, which must leave nothing behind.
    fn end(&mut self, client: FuzzClient) {
        client.check_replies();
        drop(client);
        for _ in 0..TURNS_MAX {
            self.turn(0);
            if self.front_end.is_drained() {
                let status = self.device.snapshot();
                assert!(matches!(status, SnapshotStatus::None), "a client that is gone keeps a snapshot");
                return;
            }
            std::thread::yield_now();
        }
        panic!("the client is gone, and the node still serves it");
    }
}

/// A client of the node.
struct FuzzClient {
    stream: UnixStream,
    replies: Vec<u8>,
}

impl FuzzClient {
    fn connect(folder: &TempDir) -> Self {
        let stream = UnixStream::connect(folder.path().join(SOCKET_NAME)).expect("a node");
        stream.set_nonblocking(true).expect("a socket");
        Self { stream, replies: Vec::new() }
    }

    fn send(&mut self, bytes: &[u8]) {
        // The node may have closed the connection, or not received what was sent before.
        let _ = self.stream.write(bytes);
    }

    fn receive(&mut self) {
        let mut piece = [0; 16 << 10];
        while let Ok(bytes @ 1..) = self.stream.read(&mut piece) {
            self.replies.extend(&piece[..bytes]);
        }
    }

    /// Checks that the replies are a status, or a snapshot and at most one status after it.
    fn check_replies(&self) {
        let Some((status, rest)) = self.replies.split_first_chunk::<4>() else {
            assert!(self.replies.is_empty(), "a part of a status");
            return;
        };
        let status = BackupStatus::decode(*status).expect("an unknown status");
        if status != BackupStatus::Snapshot {
            assert!(rest.is_empty(), "{} bytes behind the status {status:?}", rest.len());
            return;
        }
        let Ok((header, rest)) = SnapshotHeader::read_from_prefix(rest) else { return };
        let (records, blocks) = (header.records.get() as usize, header.blocks.get() as usize);
        let list = records * size_of::<SnapshotRecord>() + blocks * size_of::<SnapshotBlockEntry>();
        if let Some(last) = rest.get(list..).and_then(|last| last.first_chunk::<4>()) {
            BackupStatus::decode(*last).expect("an unknown status behind the list");
            assert!(rest.len() == list + 4, "{} bytes behind the list", rest.len() - list);
        }
    }
}

/// Receives bytes as the client of a node that sends them.
fn receive(sent: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    let listener = UnixListener::bind(folder.path().join(SOCKET_NAME)).expect("a socket");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().expect("a client");
            stream.read_exact(&mut [0; size_of::<BackupRequest>()]).expect("a request");
            // The client may be gone before everything is sent.
            let _ = stream.write_all(sent);
        });
        let parts = SnapshotLink::request(folder.path(), &[]).and_then(|mut link| {
            let parts = link.parts()?;
            link.is_held().map(|_| parts)
        });
        match parts {
            Ok(Some(parts)) => {
                let announced = (parts.header.records.get() as usize, parts.header.blocks.get() as usize);
                assert_eq!((parts.records.len(), parts.blocks.len()), announced);
            }
            Ok(None) => {}
            Err(error) => assert!(error.to_string().len() < 500, "a long refusal: {error}"),
        }
    });
}
