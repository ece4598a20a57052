//! Keys of any device, by its URL: single values by name, or every operation checked against its expected result.
//!
//! Input: a URL, an action, and a value on standard input. Output: a value on standard output as it is, keys one a
//! line, or what was checked; an error for the first wrong answer.
//!
//! `device_keys URL put KEY | get KEY | delete KEY | list`, `device_keys URL try`
#![expect(clippy::print_stdout, reason = "values and results are the output of this program")]

use headwater::{Command, Device, Status, StoreCondition};
use std::error::Error;
use std::io::{Read as _, Write as _};

type ExampleResult = Result<(), Box<dyn Error>>;

/// Lengths of values: zero, less than a page, some pages, and with pages of 4 KiB a PRP list that continues in a second
/// page.
const LENGTHS: [usize; 7] = [0, 1, 77, 4_096, 5_000, 100_000, 3_000_001];
/// Commands in flight.
const DEPTH: u32 = 16;
/// Number of keys that are stored at that depth, and bytes of the value of each.
const KEYS: u64 = 512;
const VALUE_BYTES: usize = 512;
/// The key of the values of every length.
const ONE: &[u8] = b"of every length";

fn put(device: &mut Device, key: &str) -> ExampleResult {
    let mut value = Vec::new();
    std::io::stdin().read_to_end(&mut value)?;
    Ok(device.put(key.as_bytes(), &value)?)
}

fn get(device: &mut Device, key: &str) -> ExampleResult {
    let value = device.get(key.as_bytes())?.ok_or("there is no such key")?;
    Ok(std::io::stdout().write_all(&value)?)
}

/// Collects every key. An answer begins with the requested key, which the answer before already contained.
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
    let max = device.queue(1)?.limits().transfer_bytes_max;
    for bytes in LENGTHS.into_iter().filter(|&bytes| bytes < max).chain([max]) {
        let mut value = vec![0; bytes];
        fastrand::fill(&mut value);
        device.put(ONE, &value)?;
        let found = device.get(ONE)?.ok_or("a stored key is missing")?;
        if found != value {
            return Err(
                format!("a value of {bytes} bytes reads back differently, {} bytes", found.len()).into()
            );
        }
    }
    Ok(max)
}

fn conditions(device: &mut Device) -> ExampleResult {
    let status = |put: Result<(), headwater::IoError>| put.err().and_then(|error| error.status());
    let taken = status(device.put_if(ONE, b"w", StoreCondition::IfAbsent));
    let absent = status(device.put_if(b"not there", b"w", StoreCondition::IfExists));
    let expected = [Status::KEY_EXISTS, Status::KEY_DOES_NOT_EXIST].map(|status| Some(status.text()));
    if [taken, absent].map(|found| found.map(Status::text)) != expected {
        return Err(
            format!("wrong status of stores whose condition does not hold: {taken:?}, {absent:?}").into()
        );
    }
    device.put_if(ONE, b"w", StoreCondition::IfExists)?;
    Ok(())
}

/// Stores keys with a full queue, reusing each buffer.
fn many(device: &mut Device) -> ExampleResult {
    let namespace = device.namespace().id;
    let buffer = device.buffer(64 * VALUE_BYTES)?;
    let mut queue = device.queue(DEPTH)?;
    for turn in 0..KEYS {
        let value = buffer.slice(usize::try_from(turn % 64)? * VALUE_BYTES, VALUE_BYTES)?;
        if queue.in_flight() == queue.depth() {
            queue.wait(None)?.ok_or("no answer")?.into_result()?;
        }
        queue.submit(Command::put(namespace, &turn.to_le_bytes(), value, StoreCondition::Always)?, turn)?;
    }
    while let Some(completion) = queue.wait(None)? {
        completion.into_result()?;
    }
    Ok(())
}

fn attempt(device: &mut Device) -> ExampleResult {
    let max = values(device)?;
    conditions(device)?;
    many(device)?;
    let listed = list(device)?;
    let missing = (0..KEYS).map(u64::to_le_bytes).find(|key| !listed.iter().any(|listed| listed == key));
    if missing.is_some() || !listed.iter().any(|key| key == ONE) || !device.exist(ONE)? {
        return Err(format!("a stored key is missing from the {} that are listed", listed.len()).into());
    }
    device.flush()?;
    device.delete(ONE)?;
    if device.exist(ONE)? || device.get(ONE)?.is_some() || !device.exist(&(KEYS - 1).to_le_bytes())? {
        return Err("a deleted key exists, or a stored one is missing".into());
    }
    println!("values of 0 to {max} bytes, and {KEYS} keys at depth {DEPTH}");
    Ok(())
}

fn main() -> ExampleResult {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, what @ ..] = &arguments[..] else { return Err("device_keys URL ACTION".into()) };
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
