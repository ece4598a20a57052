//! Flipped bits are noticed: a damaged value is never handed out as a good one.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use bytes::Bytes;
use headwater_converged::command::{Command, Completion, Condition, Expiry, NamespaceId, Release};
use headwater_converged::device::{Device, DeviceConfig};
use headwater_converged::media::{BlockId, PageAddress};
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_sim::engine::{BootTime, Engine};
use headwater_sim::faults::DamagePlan;
use headwater_sim::media::{SimMedia, SimMediaConfig};
use headwater_sim::presets::FEMU;

const START: BootTime = BootTime { now: Nanos::ZERO, wall: UnixMillis(1_000) };
const KEYS: u64 = 60;

fn ask(device: &mut Device<SimMedia>, command: Command) -> Completion {
    Engine::submit(device, NamespaceId::FIRST, 0, command).unwrap();
    let mut now = Nanos::ZERO;
    loop {
        let moved = Engine::poll(device, now, START.wall);
        if let Some(completion) = Engine::next_completion(device) {
            return completion;
        }
        if !moved {
            now = Engine::next_deadline(device).expect("a command is in flight").max(now);
        }
    }
}

fn value_of(key: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(key);
    let mut value = vec![0; rng.usize(0..9_000)];
    rng.fill(&mut value);
    value
}

fn store(key: u64) -> Command {
    Command::Store {
        key: Bytes::from(key.to_string()),
        value: value_of(key).into(),
        condition: Condition::Always,
        expiry: Expiry::Never,
    }
}

fn get(key: u64) -> Command {
    Command::Retrieve {
        key: Bytes::from(key.to_string()),
        sink: Vec::new().into(),
        bytes_max: u32::MAX,
        release: Release::WhenDurable,
    }
}

#[test]
fn a_flipped_bit_never_reaches_a_client() {
    let mut noticed = 0;
    for seed in 0..150 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let media = SimMedia::new(SimMediaConfig::new(FEMU, 20));
        let mut wreck = media.wreck();
        let config = DeviceConfig::default();
        let mut device = <Device<SimMedia> as Engine>::open(media, &config, START).unwrap();
        for key in 0..KEYS {
            assert_eq!(ask(&mut device, store(key)).status, Status::SUCCESS, "seed {seed}");
        }
        drop(device);
        let mut media = wreck.next_boot(&mut rng, &DamagePlan::CLEAN).unwrap();
        let written: Vec<PageAddress> = (0..20)
            .flat_map(|block| (0..64).map(move |page| PageAddress::new(BlockId(block), page)))
            .filter(|&page| media.flash().unwrap().page(page).is_some())
            .collect();
        // Up to three flips in a page: what CRC-32C is sure to see in records of any length.
        for _ in 0..rng.u32(1..4) {
            let (page, flips) = (written[rng.usize(0..written.len())], rng.usize(1..=3));
            media.flip_bits(&mut rng, page, flips);
        }
        wreck = media.wreck();
        let mut device = match <Device<SimMedia> as Engine>::open(media, &config, START) {
            Ok(device) => device,
            Err(why) => panic!("seed {seed}: flipped bits kept the device from opening: {why}"),
        };
        for key in 0..KEYS {
            let answer = ask(&mut device, get(key));
            match answer.status {
                Status::SUCCESS => assert_eq!(answer.sink, value_of(key), "seed {seed} key {key}"),
                Status::KEY_DOES_NOT_EXIST | Status::UNRECOVERED_ERROR => noticed += 1,
                other => panic!("seed {seed} key {key}: {other:?}"),
            }
        }
        assert_eq!(wreck.misuse(), None, "seed {seed}");
    }
    assert!(noticed > 50, "only {noticed} damaged values were noticed");
}
