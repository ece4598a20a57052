//! The data directory of a node that ended, and the places of its flash file that a test damages.

use crate::host::{Answers, FileHost, Model};
use headwater_ssd::media::file::zones::{FileZones, ZoneOwner};
use headwater_ssd::media::{BlockId, CellNumber, FlashGeometry, PAGE_DATA_BYTES, PageAddress};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use tempfile::TempDir;

pub(crate) const BLOCKS: u32 = 40;

pub(crate) fn headwater(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
    command.args(args).env_remove("HEADWATER_RESP").stdin(Stdio::null()).output().expect("the binary starts")
}

/// The bytes of a flash file, and where its parts are.
pub(crate) struct FlashBytes {
    pub(crate) bytes: Vec<u8>,
    zones: FileZones,
}

impl FlashBytes {
    fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, zones: FileZones::new(FlashGeometry::with_blocks(BLOCKS)) }
    }

    /// Returns the last place of a text.
    pub(crate) fn text(&self, text: &str) -> usize {
        let found = self.bytes.windows(text.len()).rposition(|window| window == text.as_bytes());
        found.unwrap_or_else(|| panic!("the file does not hold {text:?}"))
    }

    /// Returns every place of a text.
    pub(crate) fn texts(&self, text: &str) -> Vec<usize> {
        let windows = self.bytes.windows(text.len()).enumerate();
        windows.filter(|(_, window)| *window == text.as_bytes()).map(|(at, _)| at).collect()
    }

    fn range(&self, owner: ZoneOwner) -> Range<usize> {
        let range = self.zones.range(owner);
        usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()
    }

    /// Returns the slot of the page that the byte at an offset belongs to.
    pub(crate) fn slot(&self, at: usize) -> Range<usize> {
        let owner = self.zones.owner_at(at as u64).expect("the byte belongs to something");
        assert!(matches!(owner, ZoneOwner::Slot(_)), "byte {at} belongs to {owner:?}");
        self.range(owner)
    }

    /// Returns the block and the page whose slot begins at an offset.
    pub(crate) fn page_at(&self, at: usize) -> PageAddress {
        match self.zones.owner_at(at as u64) {
            Some(ZoneOwner::Slot(page)) => page,
            owner => panic!("byte {at} belongs to {owner:?}"),
        }
    }

    /// Returns bytes of a block's data.
    pub(crate) fn block_data(&self, block: u32, range: Range<usize>) -> Vec<u8> {
        let byte = |at: usize| {
            let page = PageAddress::new(BlockId(block), u8::try_from(at / PAGE_DATA_BYTES).unwrap());
            self.bytes[self.range(ZoneOwner::Slot(page)).start + at % PAGE_DATA_BYTES]
        };
        range.map(byte).collect()
    }

    pub(crate) fn superblock(&self, copy: u8) -> Range<usize> {
        self.range(ZoneOwner::Superblock { copy })
    }

    pub(crate) fn cell(&self, cell: u16) -> Range<usize> {
        self.range(ZoneOwner::Cell(CellNumber(cell)))
    }

    /// Returns the slots of checkpoint pages with this number in their checkpoint.
    pub(crate) fn checkpoint_pages(&self, number: u32) -> Vec<Range<usize>> {
        let spares = self.texts("HWP2").into_iter();
        let is_wanted = |spare: &usize| {
            let spare = &self.bytes[*spare..];
            spare[5] == 2 && spare[80..84] == number.to_le_bytes()
        };
        spares.filter(is_wanted).map(|spare| self.slot(spare - PAGE_DATA_BYTES)).collect()
    }
}

/// A flash file as a process left it, and what it must answer.
struct Scenario {
    flash: Vec<u8>,
    /// The file after the checkpoint.
    earlier: Vec<u8>,
    model: Model,
}

/// A directory with a flash file of its own.
pub(crate) struct StoppedDirectory {
    folder: TempDir,
    scenario: &'static Scenario,
}

impl StoppedDirectory {
    /// Makes the directory of a node that was stopped.
    pub(crate) fn stopped() -> Self {
        static SCENARIO: OnceLock<Scenario> = OnceLock::new();
        Self::of(SCENARIO.get_or_init(|| {
            Scenario::new(|mut host, model| {
                host.write_behind_the_checkpoint(model);
                host.stop();
            })
        }))
    }

    /// Makes the directory of a node that was killed while it was idle.
    pub(crate) fn killed() -> Self {
        static SCENARIO: OnceLock<Scenario> = OnceLock::new();
        Self::of(SCENARIO.get_or_init(|| {
            Scenario::new(|mut host, model| {
                host.write_behind_the_checkpoint(model);
                host.idle();
            })
        }))
    }

    /// Makes the directory of a node that was stopped and has long values.
    pub(crate) fn with_long_values() -> Self {
        static SCENARIO: OnceLock<Scenario> = OnceLock::new();
        Self::of(SCENARIO.get_or_init(|| {
            Scenario::new(|mut host, model| {
                host.write_long_values(model);
                host.write_behind_the_checkpoint(model);
                host.stop();
            })
        }))
    }

    /// Makes the directory of a node that was killed after its last commit.
    pub(crate) fn killed_at_once() -> Self {
        static SCENARIO: OnceLock<Scenario> = OnceLock::new();
        let write = |mut host: FileHost, model: &mut Model| host.write_behind_the_checkpoint(model);
        Self::of(SCENARIO.get_or_init(|| Scenario::new(write)))
    }

    fn of(scenario: &'static Scenario) -> Self {
        let stopped = Self { folder: tempfile::tempdir().unwrap(), scenario };
        fs::create_dir(stopped.data()).unwrap();
        fs::write(stopped.data().join("flash"), &scenario.flash).unwrap();
        stopped
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub(crate) fn model(&self) -> &Model {
        &self.scenario.model
    }

    /// Returns the bytes of the flash file after the checkpoint, in front of all that was written later.
    pub(crate) fn earlier(&self) -> &[u8] {
        &self.scenario.earlier
    }

    /// Passes the bytes of the flash file to `change`, and writes them.
    pub(crate) fn change(&self, change: impl FnOnce(&mut FlashBytes)) {
        let path = self.data().join("flash");
        let mut file = FlashBytes::new(fs::read(&path).unwrap());
        change(&mut file);
        fs::write(path, file.bytes).unwrap();
    }

    /// Returns the bytes of every file of the directory.
    fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let entries = fs::read_dir(self.data()).unwrap().map(|entry| entry.unwrap().path());
        entries.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    }

    /// Runs the check, asserts that no file changed, and returns its output.
    pub(crate) fn run_check(&self) -> Output {
        let before = self.files();
        let output = headwater(&["device", "check", self.data().to_str().unwrap(), "--json"]);
        assert!(self.files() == before, "the check changed a file");
        output
    }

    /// Runs the check, and returns the exit code and the report.
    pub(crate) fn check(&self) -> (Option<i32>, Value) {
        let output = self.run_check();
        let complaint = String::from_utf8_lossy(&output.stderr);
        let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{complaint}"));
        (output.status.code(), report)
    }

    /// Opens the device, and returns what it answers; or why it is refused.
    pub(crate) fn answers(&self) -> Result<Answers, String> {
        Ok(FileHost::open(&self.data(), None)?.answers(self.model()))
    }

    /// Opens the device, accepts a loss, and returns what it answers.
    pub(crate) fn answers_after_accepting(&self, digest: &str) -> Answers {
        FileHost::open(&self.data(), Some(digest)).unwrap().answers(self.model())
    }
}

impl Scenario {
    fn new(end: impl FnOnce(FileHost, &mut Model)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut model = Model::default();
        let mut host = FileHost::create(folder.path(), BLOCKS);
        host.write_before_the_checkpoint(&mut model);
        let path = folder.path().join("flash");
        let earlier = fs::read(&path).unwrap();
        end(host, &mut model);
        Self { flash: fs::read(path).unwrap(), earlier, model }
    }
}
