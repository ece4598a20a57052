//! Damage to the flash file of a node that serves real files: every answer stays right or becomes an error.
//!
//! Input: a device that holds one round of rewritten files. Output: the counts of right answers and errors. Invariant: no
//! key is answered with an older value, none is absent that exists, and none exists that was deleted.

use crate::node::check_status;
use crate::tree::{TreeFile, ValueGrowth};
use crate::{ROUNDS, SurvivalProof};

use headwater_node::kv::resp_client::{ClientError, DecodedReply, RespClient};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Places that are struck while the node answers reads, and while it also takes writes. A block with a damaged page is not
/// collected: a device of 160 blocks that is 85 % full can do without so many.
const READ_STRIKES: usize = 4;
const WRITE_STRIKES: usize = 2;
const SECTOR_BYTES: usize = 512;
/// The round of values that are written beside the strikes.
const LAST_ROUND: u8 = ROUNDS + 1;

/// The keys of the device and what they must hold.
pub(crate) struct ExpectedFiles<'a> {
    pub(crate) gone: &'a [Vec<u8>],
    /// Each with the round of its value.
    pub(crate) kept: Vec<(TreeFile, u8)>,
    pub(crate) growth: ValueGrowth,
}

/// The answers to reads of every key.
#[derive(Default)]
struct AnswerCounts {
    right: usize,
    /// Places in the list of kept files whose keys were answered with errors.
    failed: Vec<usize>,
}

impl SurvivalProof {
    /// Damages the file while the node answers, while it also takes writes, and then kills it. Every answer during it and
    /// after the restart must be right or an error, and writing a key ends its error.
    pub(crate) fn damage_while_it_serves(&mut self, mut files: ExpectedFiles<'_>) {
        let node = self.start();
        let mut client = node.client();
        let flash = open_flash(&self.folder);
        let kept = files.kept.len();
        let every = kept / READ_STRIKES;
        let mut during = AnswerCounts::default();
        for at in 0..kept {
            if at % every == 0 {
                self.strike(&flash);
            }
            files.ask(&mut client, at, &mut during);
        }
        self.say(&format!("struck {READ_STRIKES} times during {kept} reads: {}", during.text()));
        for at in 0..kept / 10 {
            if at % (kept / 10 / WRITE_STRIKES) == 0 {
                self.strike(&flash);
            }
            files.rewrite(&mut client, at);
        }
        let mut after = AnswerCounts::default();
        (0..kept).for_each(|at| files.ask(&mut client, at, &mut after));
        files.ask_for_deleted(&mut client);
        self.say(&format!("struck {WRITE_STRIKES} times during {} writes: {}", kept / 10, after.text()));
        if !after.failed.is_empty() {
            assert!(node.metrics()["headwater_damaged_pages_total"] > 0, "no metric counts the damage");
        }
        node.kill();
        let status = check_status(&self.folder);
        let wanted = if after.failed.is_empty() { [0, 1] } else { [1, 1] };
        assert!(wanted.contains(&status), "the check of a damaged file ended with {status}");
        let node = self.start();
        let mut client = node.client();
        let mut opened = AnswerCounts::default();
        (0..kept).for_each(|at| files.ask(&mut client, at, &mut opened));
        files.ask_for_deleted(&mut client);
        self.say(&format!("killed and opened again: {}; the check ended with {status}", opened.text()));
        assert!(
            !after.failed.is_empty() || !opened.failed.is_empty(),
            "no strike met a record: none was noticed"
        );
        for at in &opened.failed {
            files.rewrite(&mut client, *at);
        }
        let mut mended = AnswerCounts::default();
        (0..kept).for_each(|at| files.ask(&mut client, at, &mut mended));
        assert_eq!(mended.failed, [0; 0], "a key that was written again is answered with an error");
        self.say(&format!("{} keys written again: every key is right", opened.failed.len()));
        node.kill();
    }

    /// Flips a bit of a random sector that is in use.
    fn strike(&mut self, flash: &File) {
        let sector_bytes = u64::try_from(SECTOR_BYTES).unwrap();
        let sectors = flash.metadata().unwrap().len() / sector_bytes;
        loop {
            let sector = self.random.u64(..sectors) * sector_bytes;
            let mut bytes = [0; SECTOR_BYTES];
            flash.read_exact_at(&mut bytes, sector).unwrap();
            if bytes.iter().any(|byte| *byte != 0) {
                let at = self.random.usize(..bytes.len());
                let struck = bytes[at] ^ 1 << self.random.u8(..8);
                flash.write_all_at(&[struck], sector + u64::try_from(at).unwrap()).unwrap();
                flash.sync_data().unwrap();
                return;
            }
        }
    }
}

impl ExpectedFiles<'_> {
    /// Reads one key: its value must be right, or the answer an error.
    fn ask(&self, client: &mut RespClient, at: usize, counts: &mut AnswerCounts) {
        let (file, round) = &self.kept[at];
        match client.call(&[b"GET", &file.key]) {
            Ok(DecodedReply::Bulk(value)) => {
                assert!(value == file.rewritten(*round, self.growth), "{file:?} holds something else");
                counts.right += 1;
            }
            Err(ClientError::Refused(_)) => counts.failed.push(at),
            other => panic!("GET of {file:?} was answered with {other:?}"),
        }
    }

    /// Writes the value of the last round.
    fn rewrite(&mut self, client: &mut RespClient, at: usize) {
        let (file, round) = &mut self.kept[at];
        client.call(&[b"SET", &file.key, &file.rewritten(LAST_ROUND, self.growth)]).unwrap();
        *round = LAST_ROUND;
    }

    /// Reads every deleted key: it must be absent, or the answer an error.
    fn ask_for_deleted(&self, client: &mut RespClient) {
        for key in self.gone {
            let reply = client.call(&[b"GET", key]);
            let is_absent = matches!(reply, Ok(DecodedReply::Nil) | Err(ClientError::Refused(_)));
            assert!(is_absent, "the deleted key {key:?} is answered with {reply:?}");
        }
    }
}

impl AnswerCounts {
    fn text(&self) -> String {
        format!("{} right answers, {} errors", self.right, self.failed.len())
    }
}

fn open_flash(folder: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(folder.join("data").join("flash")).unwrap()
}
