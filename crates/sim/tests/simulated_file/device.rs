//! A device over a simulated file, and one command after another on it.

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_sim::simulated_file::{SimFile, SimRing};
use headwater_ssd::command::{FrontEndId, NamespaceId, ReadRelease, SsdCommand, SsdCompletion};
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::media::file::{FileMedia, FileMediaError, OpenAccess, ZeroFillMode};
use std::path::PathBuf;

pub(crate) type FileDevice = SsdDevice<FileMedia<SimRing>>;

pub(crate) const START: StartTime = StartTime { now: Nanos::ZERO, wall: UnixMillis(1_000) };
pub(crate) const FRONT_END: FrontEndId = FrontEndId(1);

pub(crate) fn config() -> DeviceConfig {
    DeviceConfig { frames_max: 512, ..DeviceConfig::default() }
}

pub(crate) fn open_media(file: &SimFile, access: OpenAccess) -> Result<FileMedia<SimRing>, FileMediaError> {
    FileMedia::open_over(file, file.ring(), PathBuf::from("flash"), access, ZeroFillMode::Ahead)
}

pub(crate) fn open_device(file: &SimFile, access: OpenAccess) -> Result<FileDevice, String> {
    let media = open_media(file, access).map_err(|error| error.to_string())?;
    SsdDevice::open(media, config(), START, &mut |_| {}).map_err(|error| error.to_string())
}

/// Waits for the next completion.
pub(crate) fn complete(device: &mut FileDevice, now: &mut Nanos) -> SsdCompletion {
    for _ in 0..100_000 {
        let moved = device.poll(*now, START.wall);
        if let Some(completion) = device.next_completion(FRONT_END) {
            return completion;
        }
        if !moved {
            *now = device.next_deadline().expect("a command is in flight").max(now.after(Nanos(1)));
        }
    }
    panic!("a command never completes");
}

/// Runs one command.
pub(crate) fn run(
    device: &mut FileDevice,
    now: &mut Nanos,
    namespace: NamespaceId,
    command: SsdCommand,
) -> SsdCompletion {
    device.submit(FRONT_END, namespace, 0, command).unwrap();
    complete(device, now)
}

/// Reads the value of a key.
pub(crate) fn get(
    device: &mut FileDevice,
    now: &mut Nanos,
    namespace: NamespaceId,
    key: &[u8],
) -> SsdCompletion {
    let (key, sink) = (Bytes::copy_from_slice(key), Vec::new().into());
    run(device, now, namespace, SsdCommand::retrieve_whole(key, sink, ReadRelease::WhenDurable))
}

/// Returns a seed, which is printed, and its random numbers.
pub(crate) fn seeded() -> (u64, fastrand::Rng) {
    let seed = match std::env::var("HEADWATER_REPLAY_SEED") {
        Ok(text) => text.parse().expect("a seed is a number"),
        Err(_) => fastrand::u64(..),
    };
    println!("HEADWATER_REPLAY_SEED={seed}");
    (seed, fastrand::Rng::with_seed(seed))
}
