//! Recovery of a medium of version 2: for any contents whose checksums match, the device opens or refuses with a reason,
//! answers every command, and opens again what it wrote itself.
//!
//! Input: a script that changes a medium which a real device wrote: fields of commit records, of spares and of records,
//! bytes of the checkpoint's map and index, whole pages and cells. Every checksum over a change is made to match again,
//! so that the change reaches the code behind it.

use crate::media_version2_image::{MediumImage, RewrittenPart};
use crate::patch::{FuzzScript, patch, patch_set_byte};
use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_ssd::command::{
    FrontEndId, Lba, LbaRange, ListPosition, NamespaceId, ReadRelease, RecordExpiry, SsdCommand,
    SsdCompletion, WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::media::memory::MemoryMedia;
use std::sync::LazyLock;

/// Polls after which a device without an answer counts as stuck.
const POLLS_MAX: u32 = 2_000;
const START: StartTime = StartTime { now: Nanos::ZERO, wall: UnixMillis(0) };
/// Steps of a script that are carried out.
const STEPS_MAX: usize = 64;

static IMAGES: LazyLock<[MediumImage; 3]> = LazyLock::new(MediumImage::of_devices);

/// Changes a medium and opens a device on it.
///
/// # Panics
/// If the device refuses without a reason, if a command is never completed, or if the device refuses what it wrote.
pub fn body(bytes: &[u8]) {
    let mut script = FuzzScript::new(bytes);
    let mut image = IMAGES[usize::from(script.small()) % IMAGES.len()].clone();
    for _ in 0..STEPS_MAX {
        let Some(step) = script.byte() else { break };
        change(&mut image, step, &mut script);
    }
    match SsdDevice::open(image.into_medium(), DeviceConfig::default(), START, &mut |_| {}) {
        Ok(device) => use_and_reopen(device),
        Err(error) => assert!(!error.to_string().is_empty(), "refused without a reason"),
    }
}

fn change(image: &mut MediumImage, step: u8, script: &mut FuzzScript<'_>) {
    let which = script.word();
    match step % 11 {
        0 => image.change_spare(which, |spare| patch(spare, script)),
        1 => image.change_record(which, |record| patch(record, script)),
        2 => image.change_commit_record(which, |record| patch(record, script)),
        3 => {
            let operands = script.clone();
            image.change_every_commit_record(|record| patch(record, &mut operands.clone()));
        }
        4 => image.change_part(RewrittenPart::Map, |map| patch(map, script)),
        5 => image.change_part(RewrittenPart::Index, |index| patch(index, script)),
        6 => image.change_part(RewrittenPart::Index, |index| patch_set_byte(index, script)),
        7 => image.clear_page(which),
        8 => image.clear_cell(which),
        9 => image.shorten_part(which),
        _ => image.change_data(which, |data| patch(data, script)),
    }
}

/// Lists and reads, writes, shuts the device down, and opens it again.
fn use_and_reopen(mut device: SsdDevice<MemoryMedia>) {
    let mut now = Nanos::ZERO;
    for namespace in (1..=4).map(NamespaceId) {
        let list = SsdCommand::List { position: ListPosition::START, keys_max: 100 };
        let keys = run(&mut device, &mut now, namespace, list).map(|answer| answer.keys).unwrap_or_default();
        for listed in keys {
            run(&mut device, &mut now, namespace, retrieve(listed.key));
        }
        for key in ["key 1", "key 40", "absent"] {
            run(&mut device, &mut now, namespace, retrieve(Bytes::from(key)));
        }
        let range = LbaRange { start: Lba(0), blocks: 8 };
        run(&mut device, &mut now, namespace, SsdCommand::Read { range, sink: Vec::new().into() });
    }
    let (key, value) = (Bytes::from("new"), Bytes::from_static(&[7; 5_000]).into());
    let (condition, expiry) = (WriteCondition::Always, RecordExpiry::Never);
    let stored =
        run(&mut device, &mut now, NamespaceId::FIRST, SsdCommand::Store { key, value, condition, expiry });
    let is_stored = stored.is_some_and(|answer| answer.status.is_success());
    let is_closed = device.shutdown(now, START.wall).is_ok();
    let medium = device.into_media().after_power_cut();
    let mut device = match SsdDevice::open(medium, DeviceConfig::default(), START, &mut |_| {}) {
        Ok(device) => device,
        Err(error) => {
            assert!(!is_closed, "a device refuses what it wrote: {error}");
            return;
        }
    };
    let answer = run(&mut device, &mut Nanos::ZERO.clone(), NamespaceId::FIRST, retrieve(Bytes::from("new")));
    if is_stored && is_closed {
        let answer = answer.expect("the namespace was there before");
        assert!(answer.status.is_success(), "an acknowledged write is gone: {:?}", answer.status);
    }
}

fn retrieve(key: Bytes) -> SsdCommand {
    SsdCommand::retrieve_whole(key, Vec::new().into(), ReadRelease::WhenDurable)
}

/// Runs a command; `None` if it is not accepted.
fn run(
    device: &mut SsdDevice<MemoryMedia>,
    now: &mut Nanos,
    namespace: NamespaceId,
    command: SsdCommand,
) -> Option<SsdCompletion> {
    device.submit(FrontEndId(0), namespace, 1, command).ok()?;
    for _ in 0..POLLS_MAX {
        let moved = device.poll(*now, START.wall);
        if let Some(completion) = device.next_completion(FrontEndId(0)) {
            return Some(completion);
        }
        if !moved {
            *now = device.next_deadline().map_or(*now, |at| at.max(*now)).after(Nanos(1));
        }
    }
    panic!("a command was accepted and never answered");
}
