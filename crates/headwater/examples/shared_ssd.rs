//! A client of an SSD that a node shares: uses the blocks of its grant, and checks that blocks beside it are refused.
//!
//! Input: `shared_ssd URL ACTION FIRST BLOCKS`, the blocks of the client's grant. Output: what was checked, and an
//! error for the first wrong result. `write` and `verify` cover the blocks; `load` writes them again and again with a
//! deep queue until it is killed, across resets of the SSD too; `outside` tries every command on blocks beside the
//! grant, which must all be refused.
#![expect(clippy::print_stdout, reason = "the results are the output of this program")]

use headwater::{Command, Device, Queue, Status, WriteDurability};
use std::error::Error;
use std::process::ExitCode;

type ExampleResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Bytes of one call.
const PIECE: usize = 300 << 10;
/// Commands in flight of a load, and bytes of each.
const DEPTH: u32 = 64;
const LOAD_BYTES: usize = 4_096;

/// Returns the 64-bit word that belongs at an offset of the device.
fn word(at: u64) -> u64 {
    at.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) ^ at
}

fn pattern(at: u64, bytes: usize) -> Vec<u8> {
    (at..at + bytes as u64).step_by(8).flat_map(|at| word(at).to_le_bytes()).collect()
}

struct SsdClient {
    device: Device,
    block: u32,
    first: u64,
    blocks: u64,
}

impl SsdClient {
    fn at(&self, lba: u64) -> u64 {
        lba * u64::from(self.block)
    }

    /// Writes or verifies the blocks of the grant in calls of some blocks each.
    fn write_or_verify(&mut self, writes: bool) -> ExampleResult<()> {
        let max = (PIECE / self.block as usize) as u64;
        let end = self.first + self.blocks;
        let mut lba = self.first;
        while lba < end {
            let blocks = max.min(end - lba);
            let expected = pattern(self.at(lba), usize::try_from(self.at(blocks))?);
            if writes {
                self.device.write(lba, &expected, WriteDurability::NamespaceDefault)?;
            } else {
                let mut found = vec![0; expected.len()];
                self.device.read(lba, &mut found)?;
                if found != expected {
                    return Err(format!("blocks from {lba} on have wrong contents").into());
                }
            }
            lba += blocks;
        }
        self.device.flush()?;
        Ok(())
    }

    /// Writes the same bytes again and again, until this process is killed.
    fn load(&mut self) -> ExampleResult<()> {
        let id = self.device.namespace().id;
        let each = (LOAD_BYTES / self.block as usize) as u64;
        let buffer = self.device.buffer(DEPTH as usize * LOAD_BYTES)?;
        let mut queue = self.device.queue(DEPTH)?;
        println!("loading");
        for round in 0_u64.. {
            let token = if round < u64::from(DEPTH) {
                round
            } else {
                let done = queue.wait(None)?.ok_or("nothing in flight")?;
                // It may have been written or not; the contents are the same in both cases.
                if done.status != Status::ABORTED_BY_HOST {
                    done.into_result()?;
                }
                done.token
            };
            let lba = self.first + round * each % (self.blocks / each * each);
            let slice = buffer.slice(usize::try_from(token)? * LOAD_BYTES, LOAD_BYTES)?;
            slice.write(0, &pattern(self.at(lba), LOAD_BYTES))?;
            queue.submit(
                Command::write(id, lba, self.block, slice, WriteDurability::NamespaceDefault)?,
                token,
            )?;
            queue.ring()?;
        }
        Ok(())
    }

    /// Tries commands outside the grant, and checks that the node refuses each.
    fn outside(&mut self) -> ExampleResult<()> {
        let (id, block, end) = (self.device.namespace().id, self.block, self.first + self.blocks);
        let (data, list) = (self.device.buffer(2 * block as usize)?, self.device.buffer(4_096)?);
        data.write(0, &vec![0xEE; 2 * block as usize])?;
        let mut queue = self.device.queue(4)?;
        for lba in [self.first.wrapping_sub(1), end - 1, end, 0, self.device.namespace().size - 2] {
            let inside = self.first <= lba && lba + 2 <= end;
            if lba == u64::MAX || inside {
                continue;
            }
            for command in [
                Command::write(id, lba, block, data.clone(), WriteDurability::NamespaceDefault)?,
                Command::read(id, lba, block, data.clone())?,
                Command::compare(id, lba, block, data.clone())?,
                Command::write_zeroes(id, lba, 2, WriteDurability::NamespaceDefault)?,
                Command::discard(id, &[(self.first, 1), (lba, 2)], &list)?,
            ] {
                let opcode = command.entry.opcode;
                let status = run_one(&mut queue, command)?;
                if !status.same_code(Status::ACCESS_DENIED) {
                    return Err(format!("command {opcode:02x}h at {lba}: {status}").into());
                }
            }
        }
        Ok(())
    }
}

fn run_one(queue: &mut Queue, command: Command) -> ExampleResult<Status> {
    queue.submit(command, 1)?;
    Ok(queue.wait(None)?.ok_or("no answer")?.status)
}

fn run() -> ExampleResult<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, what, first, blocks] = &arguments[..] else {
        return Err("shared_ssd URL write|verify|load|outside FIRST BLOCKS".into());
    };
    let device = Device::open(url)?;
    println!("{:?}", device.namespace());
    let block = device.namespace().block_bytes;
    let mut client = SsdClient { device, block, first: first.parse()?, blocks: blocks.parse()? };
    match what.as_str() {
        "write" => client.write_or_verify(true)?,
        "verify" => client.write_or_verify(false)?,
        "load" => client.load()?,
        "outside" => client.outside()?,
        other => {
            return Err(format!("unknown action `{other}`: choose write, verify, load or outside").into());
        }
    }
    println!("{what}: passed");
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}
