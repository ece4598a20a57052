//! A toy device: small and correct, with selectable flaws.
//!
//! It runs one command at a time. Each write is one entry of whole pages at the end of a log that is never garbage
//! collected; recovery reads every page. It tests the world and its checker without the real device: the toy without a
//! flaw must pass, and every flaw must be reported.

use crate::log_entry::{ToyOp, bytes_of, encode};
use bytes::Bytes;
use headwater_dma::frame::MediaFrame;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_sim::media::SimMedia;
use headwater_sim::simulated_device::{BootTime, SimulatedDevice};
use headwater_ssd::command::{
    BatchWrite, ListPosition, ListedKey, NamespaceId, RecordExpiry, Sequence, SsdCommand, SsdCompletion,
    SubmitError, WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, Durability};
use headwater_ssd::media::{BlockId, Media, MediaOp, MediaToken, PAGES_PER_BLOCK, PageAddress};
use std::collections::{BTreeMap, VecDeque};
use xxhash_rust::xxh3::xxh3_64;

/// A flaw of the toy device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToyFlaw {
    None,
    AcksBeforeDurable,
    ForgetsFlush,
    ForgetsDeletes,
    CompletesTwice,
    SwallowsCompletions,
    SplitsBatches,
    IgnoresConditions,
    ServesExpired,
    SkipsGuardPages,
    SkipsChecksums,
    ProgramsWithoutErase,
    ListsTwice,
    ReusesSequences,
}

#[derive(Clone, Debug)]
struct ToyRecord {
    value: Bytes,
    sequence: u64,
    expiry: u64,
}

enum ToyWait {
    Media { left: usize, then_flush: bool, answer: SsdCompletion },
    Ready(SsdCompletion),
}

/// The toy device. `FLAW` is the number of a [`ToyFlaw`].
pub(crate) struct ToyDevice<const FLAW: usize> {
    pub(crate) media: SimMedia,
    config: DeviceConfig,
    map: BTreeMap<(u8, Bytes), ToyRecord>,
    pub(crate) next_sequence: u64,
    pub(crate) free: VecDeque<BlockId>,
    at: Option<PageAddress>,
    queue: VecDeque<(NamespaceId, u64, SsdCommand)>,
    waiting: Option<ToyWait>,
    out: VecDeque<SsdCompletion>,
    answered: u64,
    broken: bool,
}

const FLAWS: [ToyFlaw; 14] = [
    ToyFlaw::None,
    ToyFlaw::AcksBeforeDurable,
    ToyFlaw::ForgetsFlush,
    ToyFlaw::ForgetsDeletes,
    ToyFlaw::CompletesTwice,
    ToyFlaw::SwallowsCompletions,
    ToyFlaw::SplitsBatches,
    ToyFlaw::IgnoresConditions,
    ToyFlaw::ServesExpired,
    ToyFlaw::SkipsGuardPages,
    ToyFlaw::SkipsChecksums,
    ToyFlaw::ProgramsWithoutErase,
    ToyFlaw::ListsTwice,
    ToyFlaw::ReusesSequences,
];

fn answer(token: u64, status: Status) -> SsdCompletion {
    SsdCompletion {
        token,
        status,
        value_bytes: 0,
        sequence: Sequence(0),
        expiry_ms: 0,
        position: 0,
        sink: Vec::new(),
        keys: Vec::new(),
        next_position: None,
    }
}

pub(crate) const HEADER_BYTES: usize = 32;
pub(crate) const PART_BYTES: usize = 4_096 - HEADER_BYTES;

impl<const FLAW: usize> ToyDevice<FLAW> {
    pub(crate) fn has(flaw: ToyFlaw) -> bool {
        FLAWS[FLAW] == flaw
    }

    pub(crate) fn apply(&mut self, op: ToyOp, sequence: u64) {
        match op {
            ToyOp::Store(namespace, key, value, expiry) => {
                self.map.insert((namespace, key), ToyRecord { value, sequence, expiry });
            }
            ToyOp::Delete(namespace, key) => drop(self.map.remove(&(namespace, key))),
            ToyOp::Clear(namespace) => self.map.retain(|(other, _), _| *other != namespace),
        }
    }

    fn find(&self, namespace: NamespaceId, key: &Bytes, wall: UnixMillis) -> Option<&ToyRecord> {
        let record = self.map.get(&(namespace.0, key.clone()))?;
        let gone = record.expiry != 0 && record.expiry <= wall.0;
        (!gone || Self::has(ToyFlaw::ServesExpired)).then_some(record)
    }

    fn check_condition(
        &self,
        at: (NamespaceId, &Bytes),
        condition: WriteCondition,
        wall: UnixMillis,
    ) -> Result<(), Status> {
        if Self::has(ToyFlaw::IgnoresConditions) {
            return Ok(());
        }
        match (condition, self.find(at.0, at.1, wall)) {
            (WriteCondition::IfExists, None) => Err(Status::KEY_DOES_NOT_EXIST),
            (WriteCondition::IfAbsent, Some(_)) => Err(Status::KEY_EXISTS),
            (WriteCondition::IfSequence(wanted), found)
                if found.is_none_or(|found| found.sequence != wanted.0) =>
            {
                Err(Status::SEQUENCE_MISMATCH)
            }
            _ => Ok(()),
        }
    }

    fn expiry_of(&self, namespace: NamespaceId, key: &Bytes, expiry: RecordExpiry, wall: UnixMillis) -> u64 {
        match expiry {
            RecordExpiry::Never => 0,
            RecordExpiry::At(end) => end,
            RecordExpiry::Keep => self.find(namespace, key, wall).map_or(0, |record| record.expiry),
        }
    }

    fn pages_left(&self) -> usize {
        let open = self.at.map_or(0, |at| PAGES_PER_BLOCK - usize::from(at.page));
        open + self.free.len() * PAGES_PER_BLOCK
    }

    fn next_page(&mut self, now: Nanos) -> Option<PageAddress> {
        if self.at.is_none() {
            let block = self.free.pop_front()?;
            if !Self::has(ToyFlaw::ProgramsWithoutErase) {
                self.media.submit(MediaToken(0), MediaOp::Erase { block }, now).ok()?;
            }
            self.at = Some(PageAddress::new(block, 0));
        }
        let at = self.at?;
        let more = usize::from(at.page) + 1 < PAGES_PER_BLOCK;
        self.at = more.then(|| PageAddress::new(at.block, at.page + 1));
        Some(at)
    }

    /// Programs an entry. Returns its sequence, or `None` if it does not fit. The medium's queue must have room for it.
    fn log(&mut self, ops: &[ToyOp], now: Nanos) -> Option<u64> {
        let bytes = encode(ops);
        let parts: Vec<&[u8]> = bytes.chunks(PART_BYTES).collect();
        let guard = usize::from(self.media.traits().guard_pages);
        if parts.len() + guard + 2 > self.pages_left() {
            return None;
        }
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let total = u16::try_from(parts.len()).unwrap();
        for (part, bytes) in (0_u16..).zip(&parts) {
            let mut frame = MediaFrame::zeroed();
            frame[8..12].copy_from_slice(b"toy!");
            frame[16..24].copy_from_slice(&sequence.to_le_bytes());
            frame[24..26].copy_from_slice(&part.to_le_bytes());
            frame[26..28].copy_from_slice(&total.to_le_bytes());
            frame[28..30].copy_from_slice(&u16::try_from(bytes.len()).unwrap().to_le_bytes());
            frame[HEADER_BYTES..HEADER_BYTES + bytes.len()].copy_from_slice(bytes);
            let hash = xxh3_64(&frame[8..4_096]);
            frame[..8].copy_from_slice(&hash.to_le_bytes());
            self.program(frame, now);
        }
        let guard = if Self::has(ToyFlaw::SkipsGuardPages) { 0 } else { guard };
        for _ in 0..guard {
            self.program(MediaFrame::zeroed(), now);
        }
        Some(sequence)
    }

    fn program(&mut self, frame: MediaFrame, now: Nanos) {
        if let Some(page) = self.next_page(now) {
            let _ = self.media.submit(MediaToken(0), MediaOp::Program { page, frame }, now);
        }
    }

    fn write(&mut self, namespace: NamespaceId, token: u64, ops: Vec<ToyOp>, now: Nanos) -> ToyWait {
        let entries = if Self::has(ToyFlaw::SplitsBatches) {
            ops.iter().map(std::slice::from_ref).collect()
        } else {
            vec![&ops[..]]
        };
        let forgets = Self::has(ToyFlaw::ForgetsDeletes) && matches!(ops[..], [ToyOp::Delete(..)]);
        let mut sequence = self.next_sequence;
        for entry in entries {
            if forgets {
                self.next_sequence += 1;
                continue;
            }
            match self.log(entry, now) {
                Some(given) => sequence = given,
                None => return ToyWait::Ready(answer(token, Status::CAPACITY_EXCEEDED)),
            }
        }
        for op in ops {
            self.apply(op, sequence);
        }
        if Self::has(ToyFlaw::ReusesSequences) && sequence.is_multiple_of(16) {
            self.next_sequence -= 1;
        }
        let mut answer = answer(token, Status::SUCCESS);
        answer.sequence = Sequence(sequence);
        let mode = self.config.durability[namespace.index()];
        let left = self.media.in_flight();
        if left == 0 || Self::has(ToyFlaw::AcksBeforeDurable) {
            return ToyWait::Ready(answer);
        }
        let then_flush = self.media.traits().volatile_cache
            && mode != Durability::OnFlush
            && !Self::has(ToyFlaw::ForgetsFlush);
        ToyWait::Media { left, then_flush, answer }
    }

    fn start(
        &mut self,
        (namespace, token, command): (NamespaceId, u64, SsdCommand),
        now: Nanos,
        wall: UnixMillis,
    ) {
        let refuse = |status| ToyWait::Ready(answer(token, status));
        let waiting = match command {
            SsdCommand::Store { key, value, condition, expiry } => {
                match self.check_condition((namespace, &key), condition, wall) {
                    Err(status) => refuse(status),
                    Ok(()) => {
                        let until = self.expiry_of(namespace, &key, expiry, wall);
                        self.write(
                            namespace,
                            token,
                            vec![ToyOp::Store(namespace.0, key, bytes_of(value), until)],
                            now,
                        )
                    }
                }
            }
            SsdCommand::Delete { key, condition } => {
                match self.check_condition((namespace, &key), condition, wall) {
                    Err(status) => refuse(status),
                    Ok(()) if self.find(namespace, &key, wall).is_none() => {
                        refuse(Status::KEY_DOES_NOT_EXIST)
                    }
                    Ok(()) => self.write(namespace, token, vec![ToyOp::Delete(namespace.0, key)], now),
                }
            }
            SsdCommand::Batch { writes } => self.batch(namespace, token, writes, (now, wall)),
            SsdCommand::Clear => self.write(namespace, token, vec![ToyOp::Clear(namespace.0)], now),
            SsdCommand::Retrieve { key, offset, bytes_max, .. } => {
                ToyWait::Ready(self.read((namespace, &key), token, (offset, bytes_max), wall))
            }
            SsdCommand::Exist { key, .. } => {
                ToyWait::Ready(self.read((namespace, &key), token, (0, 0), wall))
            }
            SsdCommand::List { position, keys_max } => {
                ToyWait::Ready(self.list((namespace, position, keys_max), token, wall))
            }
            SsdCommand::Flush => {
                let _ = self.media.submit(MediaToken(0), MediaOp::Flush, now);
                let (left, then_flush) = (self.media.in_flight(), false);
                ToyWait::Media { left, then_flush, answer: answer(token, Status::SUCCESS) }
            }
            SsdCommand::Fence { .. } => ToyWait::Ready(answer(token, Status::SUCCESS)),
            other => panic!("the toy device does not support the command {other:?}"),
        };
        self.waiting = Some(waiting);
    }

    fn batch(
        &mut self,
        namespace: NamespaceId,
        token: u64,
        writes: Vec<BatchWrite>,
        at: (Nanos, UnixMillis),
    ) -> ToyWait {
        let mut ops = Vec::new();
        for (position, write) in (0..).zip(writes) {
            let (judged, op) = match write {
                BatchWrite::Store { key, value, condition, expiry } => {
                    let judged = self.check_condition((namespace, &key), condition, at.1);
                    let until = self.expiry_of(namespace, &key, expiry, at.1);
                    (judged, ToyOp::Store(namespace.0, key, value, until))
                }
                BatchWrite::Delete { key, condition } => (
                    self.check_condition((namespace, &key), condition, at.1),
                    ToyOp::Delete(namespace.0, key),
                ),
                BatchWrite::Check { .. } => unreachable!("worlds check no key without a write"),
            };
            if let Err(status) = judged {
                let mut refused = answer(token, status);
                refused.position = position;
                return ToyWait::Ready(refused);
            }
            ops.push(op);
        }
        self.write(namespace, token, ops, at.0)
    }

    fn read(
        &self,
        (namespace, key): (NamespaceId, &Bytes),
        token: u64,
        (offset, bytes_max): (u32, u32),
        wall: UnixMillis,
    ) -> SsdCompletion {
        let Some(record) = self.find(namespace, key, wall) else {
            return answer(token, Status::KEY_DOES_NOT_EXIST);
        };
        let mut read = answer(token, Status::SUCCESS);
        read.value_bytes = u32::try_from(record.value.len()).unwrap();
        read.sequence = Sequence(record.sequence);
        read.expiry_ms = record.expiry;
        read.sink.extend(record.value.iter().skip(offset as usize).take(bytes_max as usize));
        read
    }

    fn list(
        &self,
        (namespace, from, keys_max): (NamespaceId, ListPosition, u32),
        token: u64,
        wall: UnixMillis,
    ) -> SsdCompletion {
        let mut order: Vec<(u64, &Bytes)> = (self.map.keys())
            .filter(|(other, key)| *other == namespace.0 && self.find(namespace, key, wall).is_some())
            .map(|(_, key)| (xxh3_64(key), key))
            .filter(|(position, _)| *position >= from.0)
            .collect();
        order.sort();
        let mut listed = answer(token, Status::SUCCESS);
        for (position, key) in order {
            if listed.keys.len() >= keys_max as usize {
                listed.next_position = Some(ListPosition(position));
                break;
            }
            let (key, value_bytes, expiry_ms) = (key.clone(), 0, 0);
            listed.keys.push(ListedKey { key, value_bytes, expiry_ms });
        }
        if Self::has(ToyFlaw::ListsTwice) && listed.keys.len() > 3 {
            listed.keys.push(listed.keys[0].clone());
        }
        listed
    }
}

impl<const FLAW: usize> SimulatedDevice for ToyDevice<FLAW> {
    fn open(media: SimMedia, config: &DeviceConfig, at: BootTime) -> Result<Self, String> {
        let mut toy = Self {
            media,
            config: config.clone(),
            map: BTreeMap::new(),
            next_sequence: 1,
            free: VecDeque::new(),
            at: None,
            queue: VecDeque::new(),
            waiting: None,
            out: VecDeque::new(),
            answered: 0,
            broken: false,
        };
        toy.recover(at.now)?;
        Ok(toy)
    }

    fn submit(&mut self, namespace: NamespaceId, token: u64, command: SsdCommand) -> Result<(), SubmitError> {
        self.queue.push_back((namespace, token, command));
        Ok(())
    }

    fn poll(&mut self, now: Nanos, wall: UnixMillis) -> bool {
        let mut done = Vec::new();
        self.media.poll(now, &mut done);
        let mut moved = !done.is_empty();
        self.broken |= done.iter().any(|done| done.result.is_err());
        loop {
            match self.waiting.take() {
                None => match self.queue.pop_front() {
                    // The map may hold writes that are not on the medium and never will be.
                    Some((_, token, _)) if self.broken => {
                        self.waiting = Some(ToyWait::Ready(answer(token, Status::INTERNAL_ERROR)));
                    }
                    Some(next) => self.start(next, now, wall),
                    None => return moved,
                },
                Some(ToyWait::Ready(ready)) => {
                    self.answered += 1;
                    if Self::has(ToyFlaw::CompletesTwice) && self.answered == 20 {
                        self.out.push_back(answer(ready.token, ready.status));
                    }
                    if !(Self::has(ToyFlaw::SwallowsCompletions) && self.answered == 20) {
                        self.out.push_back(ready);
                    }
                }
                Some(ToyWait::Media { answer, .. }) if self.broken => {
                    let failed = self::answer(answer.token, Status::INTERNAL_ERROR);
                    self.waiting = Some(ToyWait::Ready(failed));
                }
                Some(ToyWait::Media { then_flush, answer, .. }) if self.media.in_flight() == 0 => {
                    let ready = ToyWait::Ready(answer);
                    if then_flush {
                        let _ = self.media.submit(MediaToken(0), MediaOp::Flush, now);
                    }
                    self.waiting = Some(match (then_flush, ready) {
                        (true, ToyWait::Ready(answer)) => {
                            ToyWait::Media { left: 1, then_flush: false, answer }
                        }
                        (_, ready) => ready,
                    });
                }
                Some(ToyWait::Media { left, then_flush, answer }) => {
                    self.waiting = Some(ToyWait::Media { left, then_flush, answer });
                    return moved;
                }
            }
            moved = true;
        }
    }

    fn next_completion(&mut self) -> Option<SsdCompletion> {
        self.out.pop_front()
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.media.next_event()
    }
}
