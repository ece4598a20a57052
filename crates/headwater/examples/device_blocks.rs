//! Blocks of any device, by its URL: written, verified, and every operation checked against known contents.
//!
//! Input: a URL and an action. Output: what was checked, and an error for the first wrong byte. Two I/O paths to the
//! same disk agree if one writes and the other verifies.
//!
//! `device_blocks URL write|verify|try` works on the first 16 MiB of the namespace; `try` leaves other bytes there.
#![expect(clippy::print_stdout, reason = "the results are the output of this program")]

use headwater::{Buffer, Command, Device, IoError, Queue, Status, WriteDurability};
use std::error::Error;
use std::process::ExitCode;
use std::thread;

type ExampleResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Bytes that the program works on.
const AREA: u64 = 16 << 20;
const DEPTH: u32 = 32;
const THREADS: u64 = 3;

/// Returns the 64-bit word that belongs at an offset.
fn word(at: u64) -> u64 {
    at.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23) ^ at
}

fn pattern(at: u64, bytes: usize) -> Vec<u8> {
    (at..at + bytes as u64).step_by(8).flat_map(|at| word(at).to_le_bytes()).collect()
}

fn check(at: u64, found: &[u8]) -> ExampleResult<()> {
    let expected = pattern(at, found.len());
    match expected.iter().zip(found).position(|(expected, found)| expected != found) {
        None => Ok(()),
        Some(wrong) => Err(format!("byte {} is wrong", at + wrong as u64).into()),
    }
}

fn ensure(holds: bool, what: &str) -> ExampleResult<()> {
    if holds { Ok(()) } else { Err(what.into()) }
}

/// Writes or verifies the area by blocking calls, from one block to more than any device transfers in one command.
fn write_or_verify(device: &mut Device, writes: bool) -> ExampleResult<()> {
    let block = u64::from(device.namespace().block_bytes);
    let lengths = [1, 2, 7, 64, 513, 1_027].map(|blocks| blocks * block).into_iter().chain([5 << 20]);
    let mut at = 0;
    for length in lengths.collect::<Vec<_>>().into_iter().cycle() {
        let bytes = usize::try_from(length.min(AREA - at))?;
        if writes {
            device.write(at / block, &pattern(at, bytes), WriteDurability::NamespaceDefault)?;
        } else {
            let mut found = vec![0; bytes];
            device.read(at / block, &mut found)?;
            check(at, &found)?;
        }
        at += bytes as u64;
        if at == AREA {
            break;
        }
    }
    device.flush()?;
    Ok(())
}

/// Runs a full queue on each of several threads, each thread with its own blocks.
fn several_queues(device: &mut Device) -> ExampleResult<()> {
    let block = device.namespace().block_bytes;
    let namespace = device.namespace().id;
    let mut threads = Vec::new();
    for number in 0..THREADS {
        let (queue, buffer) = (device.queue(DEPTH)?, device.buffer(DEPTH as usize * 8_192)?);
        threads.push(thread::spawn(move || one_queue(queue, &buffer, namespace, block, number)));
    }
    for thread in threads {
        thread.join().map_err(|_| "a thread panicked")??;
    }
    Ok(())
}

fn one_queue(
    mut queue: Queue,
    buffer: &Buffer,
    namespace: u32,
    block: u32,
    number: u64,
) -> ExampleResult<()> {
    for round in 0..8_u64 {
        for writes in [true, false] {
            let mut places = Vec::new();
            for token in 0..u64::from(DEPTH) {
                let at = ((round * THREADS + number) * u64::from(DEPTH) + token) * 8_192;
                let slice = buffer.slice(usize::try_from(token)? * 8_192, 8_192)?;
                let lba = at / u64::from(block);
                let command = if writes {
                    slice.write(0, &pattern(at, 8_192))?;
                    Command::write(namespace, lba, block, slice, WriteDurability::NamespaceDefault)?
                } else {
                    slice.write(0, &[0xEE; 8_192])?;
                    Command::read(namespace, lba, block, slice)?
                };
                queue.submit(command, token)?;
                places.push(at);
            }
            let mut answered = 0;
            while let Some(completion) = queue.wait(None)? {
                completion.into_result()?;
                answered += 1;
            }
            ensure(answered == DEPTH, "each command has one answer")?;
            for (token, at) in places.into_iter().enumerate() {
                let mut found = vec![0; 8_192];
                buffer.read(token * 8_192, &mut found)?;
                check(at, &found)?;
            }
        }
    }
    Ok(())
}

fn run_one(queue: &mut Queue, command: Command) -> Result<Status, IoError> {
    queue.submit(command, 1)?;
    Ok(queue.wait(None)?.map_or(Status::INTERNAL_ERROR, |completion| completion.status))
}

/// Checks the commands that the blocking calls do not have, and misuse.
fn every_command(device: &mut Device) -> ExampleResult<()> {
    let facts = device.namespace().clone();
    let (id, block) = (facts.id, facts.block_bytes);
    let bytes = block as usize * 8;
    let (buffer, list) = (device.buffer(bytes)?, device.buffer(4_096)?);
    device.write(0, &pattern(0, bytes), WriteDurability::Immediate)?;
    let mut queue = device.queue(4)?;
    buffer.write(0, &pattern(0, bytes))?;
    let same = run_one(&mut queue, Command::compare(id, 0, block, buffer.clone())?)?;
    buffer.write(bytes - 1, &[!0])?;
    let other = run_one(&mut queue, Command::compare(id, 0, block, buffer.clone())?)?;
    ensure(
        same.is_success() && other.same_code(Status::COMPARE_FAILURE),
        "compare distinguishes equal from different data",
    )?;
    let zeroes = run_one(&mut queue, Command::write_zeroes(id, 2, 4, WriteDurability::Immediate)?)?;
    let discarded = run_one(&mut queue, Command::discard(id, &[(6, 1), (7, 1)], &list)?)?;
    ensure(zeroes.is_success() && discarded.is_success(), "zeroes and discard")?;
    let read = run_one(&mut queue, Command::read(id, 0, block, buffer.clone())?)?;
    let mut found = vec![0; bytes];
    buffer.read(0, &mut found)?;
    let (front, zeroed) = (block as usize * 2, block as usize * 6);
    ensure(read.is_success(), "read")?;
    check(0, &found[..front])?;
    ensure(found[front..zeroed].iter().all(|&byte| byte == 0), "zeroes read back")?;
    for beyond in [facts.size, facts.size - 7, u64::MAX - 7] {
        let refused = run_one(&mut queue, Command::read(id, beyond, block, buffer.clone())?);
        ensure(
            matches!(refused, Err(IoError::BlocksOutOfRange { .. })),
            "blocks beyond the end are refused",
        )?;
    }
    let discard = Command::discard(id, &[(0, 1), (facts.size - 1, 2)], &list)?;
    let refused = run_one(&mut queue, discard);
    ensure(matches!(refused, Err(IoError::BlocksOutOfRange { .. })), "a discard beyond the end is refused")?;
    let parts = vec![buffer.slice(0, block as usize)?, buffer.slice(block as usize * 3, block as usize * 2)?];
    buffer.write(0, &pattern(0, bytes))?;
    let gathered = run_one(
        &mut queue,
        Command::write_gathered(id, 0, block, parts, WriteDurability::NamespaceDefault)?,
    )?;
    ensure(gathered.is_success(), "data in two pieces is one command")?;
    let mut found = vec![0; block as usize * 3];
    device.read(0, &mut found)?;
    check(0, &found[..block as usize])?;
    check(u64::from(block) * 3, &found[block as usize..])
}

fn run() -> ExampleResult<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, what] = &arguments[..] else { return Err("device_blocks URL write|verify|try".into()) };
    let mut device = Device::open(url)?;
    println!("{:?}", device.namespace());
    match what.as_str() {
        "write" => write_or_verify(&mut device, true)?,
        "verify" => write_or_verify(&mut device, false)?,
        _ => {
            several_queues(&mut device)?;
            every_command(&mut device)?;
            // A closed device can be opened again, by the same process too.
            drop(device);
            every_command(&mut Device::open(url)?)?;
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
