//! Commands that write many blocks: they append in parts, between which other commands run, and a power cut keeps all of
//! one or nothing.

use super::host::{FRONT_END, NamespaceHost, WALL, blocks, pattern, range, write};
use super::parts::{DISK, MIB, host, short_reads_beside};
use headwater_dma::iova::{ClientMemory, ClientSegments, Iova};
use headwater_host::fault_guard::LostPages;
use headwater_host::shared_memory::SharedMemory;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{Fua, Lba, SsdCommand, ValueSource};
use headwater_ssd::engine::{DeviceConfig, Durability};
use headwater_ssd::limits::NAMESPACES;
use headwater_ssd::namespace::BlockFormat::B4096;
use headwater_testkit::unsealed_memory::unsealed_files;
use std::os::fd::AsFd as _;

fn deallocate(start: u64, blocks: u32) -> SsdCommand {
    SsdCommand::Deallocate { ranges: vec![range(start, blocks)], fua: Fua::No }
}

fn copy(start: u64, blocks: u32, destination: u64) -> SsdCommand {
    SsdCommand::Copy { sources: vec![range(start, blocks)], destination: Lba(destination), fua: Fua::No }
}

/// Returns client memory of 8 MiB with these bytes; of the kind that its owner can shrink, if asked for.
fn client_segments(data: &[u8], can_shrink: bool) -> ClientSegments {
    let region = if can_shrink {
        let (_, file) = unsealed_files(8 << 20).into_iter().next().unwrap();
        SharedMemory::map_client(file.as_fd(), 0, 8 * MIB, &LostPages::default()).unwrap()
    } else {
        SharedMemory::anonymous(8 * MIB).unwrap()
    };
    let mut memory = ClientMemory::new();
    memory.register(Iova(0), region).unwrap();
    let segments = memory.resolve(Iova(0), data.len() as u64).unwrap();
    assert_eq!(segments.copy_out(0, data), data.len());
    segments
}

#[test]
fn short_reads_complete_between_the_parts_of_commands_that_write_many_blocks() {
    let (mut host, data) = host();
    let changed: Vec<u8> = data.iter().map(|byte| byte ^ 0x55).collect();
    for can_shrink in [false, true] {
        for bytes in [&changed, &data] {
            let source = ValueSource::Client(client_segments(bytes, can_shrink));
            let (reads, _) = short_reads_beside(&mut host, DISK, write(0, source, Fua::No));
            assert!(reads >= 15, "{reads} short reads beside a write");
            assert!(host.read(DISK, 0, 2_048).unwrap() == *bytes);
        }
    }
    let (reads, _) = short_reads_beside(&mut host, DISK, write(1_024, changed.clone(), Fua::Yes));
    assert!(reads >= 15, "{reads} short reads beside a write");
    let (reads, _) = short_reads_beside(&mut host, DISK, copy(0, 1_024, 2_560));
    assert!(reads >= 15, "{reads} short reads beside a copy");
    let (reads, _) = short_reads_beside(&mut host, DISK, deallocate(0, 1_536));
    assert!(reads >= 3, "{reads} short reads beside a deallocation");
    let mut host = host.reopened();
    let mut wanted = vec![0; 16 * MIB];
    wanted[4 * MIB..12 * MIB].copy_from_slice(&changed);
    wanted[10 * MIB..14 * MIB].copy_from_slice(&data[..4 * MIB]);
    wanted[..6 * MIB].fill(0);
    for (number, part) in (0..).zip(wanted.chunks(MIB)) {
        assert!(host.read(DISK, number * 256, 256).unwrap() == part, "MiB {number}");
    }
}

/// Returns a command that a power cut interrupts, and the 40 blocks from 100 on as it leaves them.
fn interrupted(number: usize) -> (SsdCommand, Vec<u8>) {
    let new = pattern(B4096, 7, 40);
    match number {
        0 => (write(100, new.clone(), Fua::No), new),
        1 => (deallocate(100, 40), vec![0; new.len()]),
        _ => (copy(0, 40, 100), pattern(B4096, 50, 40)),
    }
}

#[test]
fn power_cut_leaves_all_of_a_command_on_blocks_or_nothing() {
    for number in 0..3 {
        let mut whole = 0;
        for polls in 0..60 {
            let durability = [Durability::Always; NAMESPACES];
            let config = DeviceConfig { batch_part_writes: 3, durability, ..DeviceConfig::default() };
            let mut host = NamespaceHost::new(64, config);
            let disk = host.create(blocks(B4096, 1_000));
            let old = pattern(B4096, 150, 40);
            assert_eq!(host.write(disk, 0, pattern(B4096, 50, 40)), Status::SUCCESS);
            assert_eq!(host.write(disk, 100, old.clone()), Status::SUCCESS);
            let (command, new) = interrupted(number);
            let token = host.submit(disk, command);
            let mut is_done = false;
            for poll in 0..polls {
                // Commands that want a commit.
                match poll % 3 {
                    0 => _ = host.submit(disk, write(900, pattern(B4096, 1, 1), Fua::Yes)),
                    1 => _ = host.submit(disk, SsdCommand::Flush),
                    _ => host.device.request_checkpoint(),
                }
                host.device.poll(host.now, WALL);
                while let Some(completion) = host.device.next_completion(FRONT_END) {
                    assert_eq!(completion.status, Status::SUCCESS);
                    is_done |= completion.token == token;
                }
            }
            let mut host = host.reopened();
            let found = host.read(disk, 100, 40).unwrap();
            let is_whole = found == new;
            assert!(is_whole || found == old, "command {number}: a part of it is there after {polls} polls");
            assert!(is_whole || !is_done, "command {number}: acknowledged and gone after {polls} polls");
            whole += usize::from(is_whole);
            let (command, _) = interrupted(number);
            assert_eq!(host.run(disk, command).status, Status::SUCCESS);
            assert!(host.reopened().read(disk, 100, 40).unwrap() == new);
        }
        assert!((5..55).contains(&whole), "command {number}: {whole} of 60 were whole");
    }
}
