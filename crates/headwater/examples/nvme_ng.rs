//! A disk that the kernel drives, used by this program at the same time: every block command against a model and
//! against the kernel's own block device, refusals beyond a partition, and traffic while the kernel has its own.
//!
//! Input: the URL of a device. Output: what was done, and an error for the first wrong byte or answer.
//!
//! `nvme_ng golden URL PATH`, `nvme_ng outside URL`, `nvme_ng traffic URL SECONDS`
#![expect(clippy::print_stdout, reason = "the results are the output of this program")]

use headwater::host::clock::{Clock, Nanos};
use headwater::{Buffer, Command, Device, IoError, Queue, Status, WriteDurability};
use std::error::Error;

type ExampleResult = Result<(), Box<dyn Error>>;

/// Maximum number of blocks that the golden test works on.
const BLOCKS: u64 = 1_024;
const ROUNDS: u32 = 400;
const DEPTH: u32 = 16;

/// One namespace, a queue to it, and a model of its first blocks.
struct GoldenTest {
    device: Device,
    queue: Queue,
    buffer: Buffer,
    namespace: u32,
    block_bytes: u32,
    model: Vec<u8>,
}

impl GoldenTest {
    fn open(url: &str) -> Result<Self, Box<dyn Error>> {
        let mut device = Device::open(url)?;
        let facts = device.namespace().clone();
        let queue = device.queue(4)?;
        let blocks = usize::try_from(facts.size.min(BLOCKS))?;
        let model = vec![0; blocks * facts.block_bytes as usize];
        let buffer = device.buffer(queue.limits().transfer_bytes_max.min(model.len()))?;
        let (namespace, block_bytes) = (facts.id, facts.block_bytes);
        Ok(Self { device, queue, buffer, namespace, block_bytes, model })
    }

    fn run(&mut self, command: Command) -> Result<u32, IoError> {
        self.queue.submit(command, 3)?;
        let gone = || IoError::Device { reason: "the queue has no answer".to_owned() };
        self.queue.wait(None)?.ok_or_else(gone)?.into_result()
    }

    /// Chooses a random run of blocks: the first, the count, and the range of its bytes in the model.
    fn some_blocks(&self, max: usize) -> (u64, usize, std::ops::Range<usize>) {
        let bytes = self.block_bytes as usize;
        let all = self.model.len() / bytes;
        let count = fastrand::usize(1..=max.min(self.buffer.bytes() / bytes).min(all));
        let first = fastrand::usize(0..=all - count);
        (first as u64, count, first * bytes..(first + count) * bytes)
    }

    fn write(&mut self, max: usize) -> ExampleResult {
        let (lba, _, range) = self.some_blocks(max);
        let durable =
            if fastrand::bool() { WriteDurability::Immediate } else { WriteDurability::NamespaceDefault };
        fastrand::fill(&mut self.model[range.clone()]);
        let from = self.buffer.slice(0, range.len())?;
        from.write(0, &self.model[range])?;
        let command = match self.in_pieces(&from)? {
            Some(pieces) => Command::write_gathered(self.namespace, lba, self.block_bytes, pieces, durable)?,
            None => Command::write(self.namespace, lba, self.block_bytes, from, durable)?,
        };
        self.run(command)?;
        Ok(())
    }

    fn read(&mut self, max: usize) -> ExampleResult {
        let (lba, _, range) = self.some_blocks(max);
        let into = self.buffer.slice(0, range.len())?;
        into.write(0, &vec![0xEE; range.len()])?;
        let command = match self.in_pieces(&into)? {
            Some(pieces) => Command::read_scattered(self.namespace, lba, self.block_bytes, pieces)?,
            None => Command::read(self.namespace, lba, self.block_bytes, into.clone())?,
        };
        self.run(command)?;
        check_same(&bytes_of(&into)?, &self.model[range], &format!("read from block {lba} on"))
    }

    /// Returns two halves of a buffer, for about half of the buffers of two pages or more.
    fn in_pieces(&self, buffer: &Buffer) -> Result<Option<Vec<Buffer>>, Box<dyn Error>> {
        let half = buffer.bytes() / 2 / 4_096 * 4_096;
        if half == 0 || self.queue.limits().segments_max < 2 || fastrand::bool() {
            return Ok(None);
        }
        Ok(Some(vec![buffer.slice(0, half)?, buffer.slice(half, buffer.bytes() - half)?]))
    }

    fn zeroes(&mut self) -> ExampleResult {
        let (lba, count, range) = self.some_blocks(64);
        self.run(Command::write_zeroes(
            self.namespace,
            lba,
            u32::try_from(count)?,
            WriteDurability::NamespaceDefault,
        )?)?;
        self.model[range].fill(0);
        Ok(())
    }

    /// Discards ranges and checks that each of their blocks is unchanged or zeroes, and the rest unchanged.
    fn discard(&mut self) -> ExampleResult {
        let runs: Vec<_> = (0..fastrand::usize(1..4)).map(|_| self.some_blocks(32)).collect();
        let ranges: Result<Vec<(u64, u32)>, _> =
            runs.iter().map(|(lba, count, _)| u32::try_from(*count).map(|count| (*lba, count))).collect();
        let list = self.buffer.slice(0, 4_096)?;
        let discard = Command::discard(self.namespace, &ranges?, &list)?;
        self.run(discard)?;
        let mut now = vec![0; self.model.len()];
        self.device.read(0, &mut now)?;
        let bytes = self.block_bytes as usize;
        for (_, _, range) in runs {
            for (block, model) in now[range.clone()].chunks(bytes).zip(self.model[range].chunks_mut(bytes)) {
                if block.iter().all(|&byte| byte == 0) {
                    model.fill(0);
                }
            }
        }
        check_same(&now, &self.model, "after a discard")
    }

    fn compare(&mut self) -> ExampleResult {
        let (lba, _, range) = self.some_blocks(32);
        let with = self.buffer.slice(0, range.len())?;
        let mut bytes = self.model[range].to_vec();
        with.write(0, &bytes)?;
        self.run(Command::compare(self.namespace, lba, self.block_bytes, with.clone())?)?;
        let at = fastrand::usize(0..bytes.len());
        bytes[at] ^= 1;
        with.write(0, &bytes)?;
        match self.run(Command::compare(self.namespace, lba, self.block_bytes, with)?) {
            Err(IoError::Status(status)) if status.text() == Status::COMPARE_FAILURE.text() => Ok(()),
            other => Err(format!("a compare with one byte changed: {other:?}").into()),
        }
    }

    fn round(&mut self) -> ExampleResult {
        match fastrand::u32(0..10) {
            0..=3 => self.write(64),
            4..=5 => self.read(64),
            6 => self.zeroes(),
            7 => self.discard(),
            8 => self.compare(),
            _ => Ok(self.run(Command::flush(self.namespace)).map(drop)?),
        }
    }
}

fn golden(url: &str, path: &str) -> ExampleResult {
    let mut ours = GoldenTest::open(url)?;
    // Plain direct reads of the kernel's own block device.
    let mut kernel = Device::open(&format!("io-uring:{path}?plain=1"))?;
    let size = |device: &Device| device.namespace().size * u64::from(device.namespace().block_bytes);
    if size(&ours.device) != size(&kernel) {
        return Err(format!(
            "{} bytes by the URL and {} by the block device",
            size(&ours.device),
            size(&kernel)
        )
        .into());
    }
    fastrand::seed(42);
    fastrand::fill(&mut ours.model);
    ours.device.write(0, &ours.model, WriteDurability::Immediate)?;
    let mut now = vec![0; ours.model.len()];
    for round in 0..ROUNDS {
        ours.round().map_err(|error| format!("round {round}: {error}"))?;
        if round % 40 == 39 {
            kernel.read(0, &mut now)?;
            check_same(&now, &ours.model, &format!("the kernel's block device after round {round}"))?;
        }
    }
    let max = ours.buffer.bytes();
    for _ in 0..4 {
        ours.write(max)?;
        ours.read(max)?;
    }
    // The other direction: the kernel writes and this program reads.
    fastrand::fill(&mut ours.model);
    kernel.write(0, &ours.model, WriteDurability::Immediate)?;
    ours.device.read(0, &mut now)?;
    check_same(&now, &ours.model, "what the kernel wrote")?;
    println!(
        "{ROUNDS} rounds on {} blocks of {} bytes, up to {max} bytes a command",
        now.len() / ours.block_bytes as usize,
        ours.block_bytes
    );
    Ok(())
}

/// Checks that every command that leaves the partition, at either end, is refused with its numbers.
fn outside(url: &str) -> ExampleResult {
    let mut ours = GoldenTest::open(url)?;
    let size = ours.device.namespace().size;
    let (id, block) = (ours.namespace, ours.block_bytes);
    let mut refused = 0;
    // The last three lie before the partition if its start is added without an overflow check.
    for first in [size, size - 1, size + 1, u64::MAX, u64::MAX - 7, u64::MAX / 2 + 1] {
        let two = ours.buffer.slice(0, 2 * block as usize)?;
        let list = ours.device.buffer(4_096)?;
        let commands = [
            Command::write(id, first, block, two.clone(), WriteDurability::Immediate)?,
            Command::write_gathered(id, first, block, vec![two.clone()], WriteDurability::Immediate)?,
            Command::read(id, first, block, two.clone())?,
            Command::compare(id, first, block, two)?,
            Command::write_zeroes(id, first, 2, WriteDurability::Immediate)?,
            Command::discard(id, &[(first, 2)], &list)?,
            Command::discard(id, &[(0, 1), (size / 2, 1), (first, 2)], &ours.device.buffer(4_096)?)?,
        ];
        for command in commands {
            let opcode = command.entry.opcode;
            match ours.run(command) {
                Err(IoError::BlocksOutOfRange { size: limit, .. }) if limit == size => refused += 1,
                other => return Err(format!("opcode {opcode:#x} at block {first}: {other:?}").into()),
            }
        }
    }
    println!("{refused} commands refused, each with its numbers");
    Ok(())
}

/// Writes and reads back, at depth, for a time; every block must read as last written.
fn traffic(url: &str, span: Nanos) -> ExampleResult {
    let mut device = Device::open(url)?;
    let facts = device.namespace().clone();
    let bytes = facts.block_bytes as usize;
    let run = 8;
    let slots = usize::try_from(DEPTH)?;
    let buffer = device.buffer(slots * run * bytes)?;
    let mut queue = device.queue(DEPTH)?;
    let clock = Clock::start();
    let runs = facts.size / run as u64 / u64::from(DEPTH);
    let (mut written, mut stamp) = (0_u64, 0_u64);
    while clock.now() < span {
        stamp += 1;
        let turns: Vec<u64> =
            (0..u64::from(DEPTH)).map(|slot| slot * runs + fastrand::u64(0..runs)).collect();
        for write in [true, false] {
            for (slot, &turn) in turns.iter().enumerate() {
                let part = buffer.slice(slot * run * bytes, run * bytes)?;
                let lba = turn * run as u64;
                part.write(
                    0,
                    &if write { stamped(stamp, turn, part.bytes()) } else { vec![0xEE; part.bytes()] },
                )?;
                let command = if write {
                    Command::write(facts.id, lba, facts.block_bytes, part, WriteDurability::NamespaceDefault)?
                } else {
                    Command::read(facts.id, lba, facts.block_bytes, part)?
                };
                queue.submit(command, slot as u64)?;
            }
            while let Some(completion) = queue.wait(None)? {
                completion.into_result()?;
            }
        }
        for (slot, &turn) in turns.iter().enumerate() {
            let part = buffer.slice(slot * run * bytes, run * bytes)?;
            check_same(&bytes_of(&part)?, &stamped(stamp, turn, part.bytes()), &format!("run {turn}"))?;
        }
        written += u64::from(DEPTH);
        if stamp.is_multiple_of(16) {
            device.flush()?;
        }
    }
    println!("{written} runs of {run} blocks written and read again");
    Ok(())
}

fn stamped(stamp: u64, turn: u64, bytes: usize) -> Vec<u8> {
    [stamp.to_le_bytes(), turn.to_le_bytes()].concat().into_iter().cycle().take(bytes).collect()
}

fn bytes_of(buffer: &Buffer) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut bytes = vec![0; buffer.bytes()];
    buffer.read(0, &mut bytes)?;
    Ok(bytes)
}

fn check_same(found: &[u8], wanted: &[u8], what: &str) -> ExampleResult {
    match found.iter().zip(wanted).position(|(found, wanted)| found != wanted) {
        None if found.len() == wanted.len() => Ok(()),
        at => Err(format!("{what}: byte {at:?} of {} differs", wanted.len()).into()),
    }
}

fn main() -> ExampleResult {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["golden", url, path] => golden(url, path),
        ["outside", url] => outside(url),
        ["traffic", url, seconds] => traffic(url, Nanos::from_millis(seconds.parse::<u64>()? * 1_000)),
        _ => Err("nvme_ng golden URL PATH | outside URL | traffic URL SECONDS".into()),
    }
}
