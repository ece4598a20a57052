//! A device on a flash file in the process of the test: it writes what is checked, and answers as a serving node does.

use bytes::Bytes;
use headwater_host::clock::{Clock, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    FrontEndId, NamespaceId, ReadRelease, RecordExpiry, SsdCommand, SsdCompletion, ValueSink, ValueSource,
    WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::media::file::{FileMedia, FileOptions};
use headwater_ssd::media::{FlashGeometry, PAGE_DATA_BYTES};
use std::collections::BTreeMap;
use std::path::Path;

const FRONT_END: FrontEndId = FrontEndId(1);
const WALL: UnixMillis = UnixMillis(1_000_000);
/// Milliseconds after which an idle device has written that its last commit is durable, with much to spare.
const IDLE_MS: u64 = 400;

/// The state of every key that was ever written; `None` is a removed one.
pub(crate) type Model = BTreeMap<String, Option<Vec<u8>>>;

/// The answers to a read of every key of a model, and of keys that never were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answers {
    /// Keys with an error.
    pub(crate) errors: u64,
    /// Keys that are neither answered as the model says nor with an error.
    pub(crate) wrong: u64,
    /// Keys that were asked for.
    pub(crate) asked: u64,
}

pub(crate) fn key(number: usize) -> String {
    format!("key-{number:04}")
}

/// Returns the value of a key, nearly a page long, in which no text of another one occurs.
fn value(number: usize, version: usize) -> Vec<u8> {
    format!("<key {number:04} version {version}>").repeat(170).into_bytes()
}

/// The keys of the long values.
pub(crate) const LONG_KEYS: [&str; 2] = ["long-one", "long-two"];
/// Bytes of a long value: two extents, and a rest in the record.
const LONG_BYTES: usize = 2 * 262_144 + 5_000;

/// Returns the text with which a page of a long value begins.
pub(crate) fn long_page(key: &str, number: usize) -> String {
    format!("<{key} page {number:03}>")
}

fn long_value(key: &str) -> Vec<u8> {
    let mut value = Vec::with_capacity(LONG_BYTES + PAGE_DATA_BYTES);
    for number in 0..LONG_BYTES.div_ceil(PAGE_DATA_BYTES) {
        value.extend_from_slice(long_page(key, number).as_bytes());
        value.resize((number + 1) * PAGE_DATA_BYTES, b'x');
    }
    value.truncate(LONG_BYTES);
    value
}

pub(crate) struct FileHost {
    device: SsdDevice<FileMedia>,
    clock: Clock,
}

impl FileHost {
    pub(crate) fn create(directory: &Path, blocks: u32) -> Self {
        let geometry = FlashGeometry::with_blocks(blocks);
        let media = FileMedia::create(directory, geometry, [7; 16], FileOptions::default()).unwrap();
        Self::on(media, DeviceConfig::default()).unwrap()
    }

    /// Opens a directory, as a start does; returns why it is refused.
    pub(crate) fn open(directory: &Path, accept_loss: Option<&str>) -> Result<Self, String> {
        let media = FileMedia::open(directory, FileOptions::default()).map_err(|error| error.to_string())?;
        let accept_loss = accept_loss.map(|digest| digest.parse().unwrap());
        Self::on(media, DeviceConfig { accept_loss, ..DeviceConfig::default() })
    }

    fn on(media: FileMedia, config: DeviceConfig) -> Result<Self, String> {
        let clock = Clock::start();
        let start = StartTime { now: clock.now(), wall: WALL };
        let device = SsdDevice::open(media, config, start, &mut |_| {});
        Ok(Self { device: device.map_err(|error| error.reason.to_string())?, clock })
    }

    fn run(&mut self, command: SsdCommand) -> SsdCompletion {
        self.device.submit(FRONT_END, NamespaceId::FIRST, 0, command).unwrap();
        loop {
            self.device.poll(self.clock.now(), WALL);
            if let Some(completion) = self.device.next_completion(FRONT_END) {
                return completion;
            }
            std::thread::yield_now();
        }
    }

    fn set(&mut self, model: &mut Model, number: usize, version: usize) {
        self.store(model, key(number), value(number, version));
    }

    fn store(&mut self, model: &mut Model, key: String, value: Vec<u8>) {
        let stored = self.run(SsdCommand::Store {
            key: Bytes::from(key.clone()),
            value: ValueSource::Bytes(value.clone().into()),
            condition: WriteCondition::Always,
            expiry: RecordExpiry::Never,
        });
        assert_eq!(stored.status, Status::SUCCESS);
        model.insert(key, Some(value));
    }

    /// Writes keys whose values lie in extents.
    pub(crate) fn write_long_values(&mut self, model: &mut Model) {
        for key in LONG_KEYS {
            self.store(model, key.to_owned(), long_value(key));
        }
    }

    fn remove(&mut self, model: &mut Model, number: usize) {
        let key_of = Bytes::from(key(number));
        let removed = self.run(SsdCommand::Delete { key: key_of, condition: WriteCondition::Always });
        assert_eq!(removed.status, Status::SUCCESS);
        model.insert(key(number), None);
    }

    /// Writes keys 0 to 129, removes 120 to 129, and writes a checkpoint.
    pub(crate) fn write_before_the_checkpoint(&mut self, model: &mut Model) {
        (0..130).for_each(|number| self.set(model, number, 1));
        (120..130).for_each(|number| self.remove(model, number));
        let checkpoints = self.device.stats().checkpoints;
        self.device.request_checkpoint();
        while self.device.stats().checkpoints == checkpoints {
            self.device.poll(self.clock.now(), WALL);
        }
        // The commit that names the checkpoint.
        self.set(model, 0, 1);
    }

    /// Fills the rest of the block in which the window begins, writes keys 0 to 19 again, removes 100 to 109, and writes
    /// some more.
    pub(crate) fn write_behind_the_checkpoint(&mut self, model: &mut Model) {
        (0..20).for_each(|number| self.set(model, number, 2));
        (100..110).for_each(|number| self.remove(model, number));
        (200..210).for_each(|number| self.set(model, number, 1));
    }

    /// Waits until the device has written that its last commit is durable.
    pub(crate) fn idle(&mut self) {
        let start = self.clock.now();
        while self.clock.now().since(start).0 < IDLE_MS * 1_000_000 {
            self.device.poll(self.clock.now(), WALL);
            std::thread::yield_now();
        }
    }

    pub(crate) fn stop(mut self) {
        self.device.shutdown(self.clock.now(), WALL).unwrap();
    }

    fn get(&mut self, key: &str) -> Result<Option<Vec<u8>>, Status> {
        let completion = self.run(SsdCommand::retrieve_whole(
            Bytes::copy_from_slice(key.as_bytes()),
            ValueSink::Bytes(Vec::new()),
            ReadRelease::WhenDurable,
        ));
        match completion.status {
            Status::SUCCESS => Ok(Some(completion.sink)),
            Status::KEY_DOES_NOT_EXIST => Ok(None),
            error => Err(error),
        }
    }

    /// Reads every key of a model, and some that never were.
    pub(crate) fn answers(mut self, model: &Model) -> Answers {
        let mut answers = Answers::default();
        let never = (0..5).map(|number| (format!("never-{number}"), None));
        let known = model.iter().map(|(key, value)| (key.clone(), value.clone()));
        for (key, value) in known.chain(never).collect::<Vec<_>>() {
            answers.asked += 1;
            match self.get(&key) {
                Ok(found) => answers.wrong += u64::from(found != value),
                Err(_) => answers.errors += 1,
            }
        }
        answers
    }
}
