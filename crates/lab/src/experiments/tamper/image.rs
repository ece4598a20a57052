//! The flash files that are damaged: of a node that was closed, and of one that was killed, each with its older states.
//!
//! Input: the program. Output: the bytes of each file, the older states of the same file, and what its keys hold.
//! Invariant: when an image is made, its node answers every key as the client's own table says.

use super::node::{NodeFolder, NodeStart};
use super::resp::{RespClient, RespReply};
use crate::experiment::{LabError, RunContext};
use crate::flash_zones::zones_of;
use headwater_host::clock::{Clock, Nanos};
use headwater_host::width::narrow;
use headwater_ssd::log::commit_record::CommitRecord;
use headwater_ssd::log::page::{PageKind, PageSpare};
use headwater_ssd::media::file::zones::{FileZones, ZoneOwner};
use headwater_ssd::media::geometry::BlockId;
use headwater_ssd::media::{PAGES_PER_BLOCK, PageAddress};
use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;

const CAPACITY: &str = "24MiB";
/// Databases of the Redis protocol: each is a namespace.
const DATABASES: u8 = 2;
const KEYS: u32 = 300;
/// Commands of one session: together they write the file about once, so that blocks are collected.
const COMMANDS: u32 = 2_500;
/// Sessions of the node: an even one is closed, an odd one killed.
const SESSIONS: u32 = 5;
/// Time after which an idle node has said that its last commit is durable, with room for a busy machine.
const IDLE: Nanos = Nanos::from_millis(500);

/// A key of a database.
pub(super) type DatabaseKey = (u8, u32);

/// A flash file.
pub(super) struct FlashImage {
    /// Its bytes.
    pub(super) bytes: Vec<u8>,
    /// The same file at earlier times.
    pub(super) older: Vec<Vec<u8>>,
    /// Value of each key that exists.
    pub(super) values: BTreeMap<DatabaseKey, Vec<u8>>,
    /// Offsets of the pages that were programmed, with their kinds.
    pub(super) pages: Vec<(usize, PageKind)>,
    /// The cells with records.
    pub(super) cells: Vec<Range<usize>>,
    /// The copies of the superblock.
    pub(super) superblocks: [Range<usize>; 4],
    /// The bytes of the blocks.
    pub(super) slots: Range<usize>,
}

/// The images of two nodes.
pub(super) struct FlashImages {
    /// Of a closed and of a killed node.
    pub(super) of_nodes: [FlashImage; 2],
}

impl FlashImages {
    /// Makes the images by running nodes.
    pub(super) fn make(context: &RunContext) -> Result<Self, LabError> {
        let folder = NodeFolder::new(context, "images")?;
        let mut random = fastrand::Rng::with_seed(context.seed());
        let mut values = BTreeMap::new();
        let mut older: Vec<Vec<u8>> = Vec::new();
        let mut images = Vec::new();
        for session in 0..SESSIONS {
            let (node, mut client) = match folder.start((session == 0).then_some(CAPACITY))? {
                NodeStart::Serves(node, client) => (node, client),
                NodeStart::Ended(_) | NodeStart::Hangs => return Err(failed(&folder.log())),
            };
            run_session(&mut client, &mut random, &mut values)?;
            let answers = ask(&mut client).map_err(|source| LabError::Io { what: "ask the node", source })?;
            if let Some(wrong) = answers.iter().find(|answer| !answer.is_right(&values)) {
                return Err(failed(&format!("before any damage the node answers {wrong}")));
            }
            Clock::sleep(IDLE);
            if session % 2 == 0 {
                node.stop()?;
            } else {
                drop(node);
            }
            let bytes = fs::read(folder.flash());
            let bytes = bytes.map_err(|source| LabError::Io { what: "read the flash file", source })?;
            if session + 2 >= SESSIONS {
                let zones = zones_of(&folder.flash())?;
                images.push(FlashImage::new(&zones, bytes.clone(), older.clone(), values.clone())?);
            }
            older.push(bytes);
        }
        let of_nodes =
            <[FlashImage; 2]>::try_from(images).unwrap_or_else(|_| unreachable!("two sessions are kept"));
        Ok(Self { of_nodes })
    }
}

impl FlashImage {
    fn new(
        zones: &FileZones,
        bytes: Vec<u8>,
        older: Vec<Vec<u8>>,
        values: BTreeMap<DatabaseKey, Vec<u8>>,
    ) -> Result<Self, LabError> {
        let seed = zones.checksum_seed();
        let slots = place(&zones.slots());
        let blocks = (0..zones.geometry().blocks).map(BlockId);
        let pages: Vec<_> = blocks
            .flat_map(|block| (0..narrow(PAGES_PER_BLOCK)).map(move |page| PageAddress::new(block, page)))
            .filter_map(|address| {
                let slot = place(&zones.range(ZoneOwner::Slot(address)));
                let spare = PageSpare::of_intact(&bytes[slot.clone()], address, seed)?;
                Some((slot.start, spare.kind))
            })
            .collect();
        let (mut cells, mut superblocks) = (Vec::new(), Vec::new());
        for owner in zones.metadata() {
            let found = place(&zones.range(owner));
            match owner {
                ZoneOwner::Superblock { .. } => superblocks.push(found),
                _ if CommitRecord::decode(&bytes[found.clone()], seed).is_some() => cells.push(found),
                _ => {}
            }
        }
        if pages.is_empty() || cells.is_empty() {
            return Err(failed("no page or no commit record of the image was found"));
        }
        let superblocks =
            superblocks.try_into().unwrap_or_else(|_| unreachable!("a file has four superblocks"));
        Ok(Self { bytes, older, values, pages, cells, superblocks, slots })
    }
}

/// Returns a part of the file as a part of its bytes in memory.
fn place(part: &Range<u64>) -> Range<usize> {
    narrow(part.start)..narrow(part.end)
}

/// An answer of a node.
pub(super) enum NodeAnswer {
    /// The value of a key.
    OfKey(DatabaseKey, RespReply),
    /// The list of all keys of a database.
    OfList(u8, RespReply),
}

impl NodeAnswer {
    /// Returns the error, if it is one.
    pub(super) fn error(&self) -> Option<&str> {
        match self {
            Self::OfKey(_, RespReply::Failed(error)) | Self::OfList(_, RespReply::Failed(error)) => {
                Some(error)
            }
            Self::OfKey(..) | Self::OfList(..) => None,
        }
    }

    /// Returns true if it says what the keys hold.
    pub(super) fn is_right(&self, values: &BTreeMap<DatabaseKey, Vec<u8>>) -> bool {
        match self {
            Self::OfKey(key, RespReply::Value(value)) => values.get(key) == Some(value),
            Self::OfKey(key, RespReply::Absent) => !values.contains_key(key),
            Self::OfList(database, RespReply::Array(found)) => {
                let mut found = found.clone();
                found.sort_unstable();
                let keys = values.range((*database, 0)..=(*database, u32::MAX));
                let mut keys: Vec<RespReply> =
                    keys.map(|((_, key), _)| RespReply::Value(name_of(*key))).collect();
                keys.sort_unstable();
                found == keys
            }
            Self::OfKey(..) | Self::OfList(..) => false,
        }
    }
}

impl std::fmt::Display for NodeAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let short = |reply: &RespReply| match reply {
            RespReply::Value(value) => format!("{} bytes", value.len()),
            RespReply::Array(found) => format!("{} keys", found.len()),
            other => format!("{other:?}"),
        };
        match self {
            Self::OfKey((database, key), reply) => {
                write!(f, "key {key} of database {database}: {}", short(reply))
            }
            Self::OfList(database, reply) => write!(f, "the keys of database {database}: {}", short(reply)),
        }
    }
}

/// Asks for every key and for the lists of keys.
pub(super) fn ask(client: &mut RespClient) -> std::io::Result<Vec<NodeAnswer>> {
    let mut answers = Vec::new();
    for database in 0..DATABASES {
        client.call(&[b"SELECT", database.to_string().as_bytes()])?;
        answers.push(NodeAnswer::OfList(database, client.call(&[b"KEYS", b"*"])?));
        for key in 0..KEYS {
            answers.push(NodeAnswer::OfKey((database, key), client.call(&[b"GET", &name_of(key)])?));
        }
    }
    Ok(answers)
}

/// Runs the commands of one session: values of many sizes, overwritten and removed.
fn run_session(
    client: &mut RespClient,
    random: &mut fastrand::Rng,
    values: &mut BTreeMap<DatabaseKey, Vec<u8>>,
) -> Result<(), LabError> {
    let mut call = |words: &[&[u8]]| match client.call(words) {
        Ok(RespReply::Failed(error)) => Err(failed(&error)),
        Ok(_) => Ok(()),
        Err(source) => Err(LabError::Io { what: "fill the node", source }),
    };
    for _ in 0..COMMANDS {
        let (database, key) = (random.u8(0..DATABASES), random.u32(0..KEYS));
        call(&[b"SELECT", database.to_string().as_bytes()])?;
        if random.u8(0..4) == 0 {
            call(&[b"DEL", &name_of(key)])?;
            values.remove(&(database, key));
            continue;
        }
        let bytes = match random.u8(0..10) {
            0..6 => random.usize(0..200),
            6..9 => random.usize(0..5_000),
            _ => random.usize(0..20_000),
        };
        let value: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(bytes).collect();
        call(&[b"SET", &name_of(key), &value])?;
        values.insert((database, key), value);
    }
    Ok(())
}

fn name_of(key: u32) -> Vec<u8> {
    format!("key {key}").into_bytes()
}

fn failed(reason: &str) -> LabError {
    LabError::Measure { program: "headwater serve".to_owned(), reason: reason.to_owned() }
}
