//! Keys of any device, by its URL: single values by name, or every operation tried against what must come of it.
//!
//! In: a URL, what to do, and a value on standard input. Out: a value on standard output as it is, keys one a line, or what was
//! tried; an error for the first answer that is not as it should be.
//!
//! `device_keys URL put KEY | get KEY | delete KEY | list`, `device_keys URL try`
#![expect(clippy::print_stdout, reason = "values and what was seen are what this program is for")]

use headwater::{Command, Condition, Device, Status};
use std::error::Error;
use std::io::{Read as _, Write as _};

type Outcome = Result<(), Box<dyn Error>>;

/// Lengths of values: none, less than a page, some pages, and with pages of 4 KiB a PRP list that goes on in a second page.
const LENGTHS: [usize; 7] = [0, 1, 77, 4_096, 5_000, 100_000, 3_000_001];
/// Commands in flight.
const DEPTH: u32 = 16;
/// Keys that are stored with that many in flight, and bytes of the value of each.
const KEYS: u64 = 512;
const VALUE_BYTES: usize = 512;
/// The key that values of every length have.
const ONE: &[u8] = b"of every length";

fn put(device: &mut Device, key: &str) -> Outcome {
    let mut value = Vec::new();
    std::io::stdin().read_to_end(&mut value)?;
    Ok(device.put(key.as_bytes(), &value)?)
}

fn get(device: &mut Device, key: &str) -> Outcome {
    let value = device.get(key.as_bytes())?.ok_or("there is no such key")?;
    Ok(std::io::stdout().write_all(&value)?)
}

/// Every key: an answer begins with the key that it was asked for, which the one before has already told.
fn list(device: &mut Device) -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    loop {
        let more = device.list(keys.last().map(Vec::as_slice))?;
        let known = usize::from(keys.last().is_some_and(|last| more.first() == Some(last)));
        if more.len() == known {
            return Ok(keys);
        }
        keys.extend(more.into_iter().skip(known));
    }
}

fn values(device: &mut Device) -> Result<usize, Box<dyn Error>> {
    let most = device.queue(1)?.limits().transfer_bytes_max;
    for bytes in LENGTHS.into_iter().filter(|&bytes| bytes < most).chain([most]) {
        let mut value = vec![0; bytes];
        fastrand::fill(&mut value);
        device.put(ONE, &value)?;
        let found = device.get(ONE)?.ok_or("a key that was just put is not there")?;
        if found != value {
            return Err(format!("a value of {bytes} bytes came back as another of {}", found.len()).into());
        }
    }
    Ok(most)
}

fn conditions(device: &mut Device) -> Outcome {
    let status = |put: Result<(), headwater::IoError>| put.err().and_then(|error| error.status());
    let taken = status(device.put_if(ONE, b"w", Condition::IfAbsent));
    let absent = status(device.put_if(b"not there", b"w", Condition::IfExists));
    let expected = [Status::KEY_EXISTS, Status::KEY_DOES_NOT_EXIST].map(|status| Some(status.text()));
    if [taken, absent].map(|found| found.map(Status::text)) != expected {
        return Err(format!("stores on a condition that does not hold: {taken:?}, {absent:?}").into());
    }
    device.put_if(ONE, b"w", Condition::IfExists)?;
    Ok(())
}

/// A full queue of stores, each buffer used again and again.
fn many(device: &mut Device) -> Outcome {
    let namespace = device.namespace().id;
    let buffer = device.buffer(64 * VALUE_BYTES)?;
    let mut queue = device.queue(DEPTH)?;
    for turn in 0..KEYS {
        let value = buffer.slice(usize::try_from(turn % 64)? * VALUE_BYTES, VALUE_BYTES)?;
        if queue.in_flight() == queue.depth() {
            queue.wait(None)?.ok_or("no answer")?.ok()?;
        }
        queue.submit(Command::put(namespace, &turn.to_le_bytes(), value, Condition::Always)?, turn)?;
    }
    while let Some(completion) = queue.wait(None)? {
        completion.ok()?;
    }
    Ok(())
}

fn attempt(device: &mut Device) -> Outcome {
    let most = values(device)?;
    conditions(device)?;
    many(device)?;
    let listed = list(device)?;
    let missing = (0..KEYS).map(u64::to_le_bytes).find(|key| !listed.iter().any(|listed| listed == key));
    if missing.is_some() || !listed.iter().any(|key| key == ONE) || !device.exist(ONE)? {
        return Err(format!("a key that was stored is not among {} that are listed", listed.len()).into());
    }
    device.flush()?;
    device.delete(ONE)?;
    if device.exist(ONE)? || device.get(ONE)?.is_some() || !device.exist(&(KEYS - 1).to_le_bytes())? {
        return Err("delete or store did something else".into());
    }
    println!("values of 0 to {most} bytes, and {KEYS} keys at depth {DEPTH}");
    Ok(())
}

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, what @ ..] = &arguments[..] else { return Err("device_keys URL WHAT".into()) };
    let mut device = Device::open(url)?;
    match what.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["put", key] => put(&mut device, key),
        ["get", key] => get(&mut device, key),
        ["delete", key] => Ok(device.delete(key.as_bytes())?),
        ["list"] => {
            list(&mut device)?.iter().for_each(|key| println!("{}", key.escape_ascii()));
            Ok(())
        }
        ["try"] => attempt(&mut device),
        _ => Err("device_keys URL put KEY | get KEY | delete KEY | list | try".into()),
    }
}
