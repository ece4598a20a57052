//! Get Log Page (NVMe Base 2.0 section 5.16).

use crate::host::{AdminHost, ENABLE_ALL_SETS, command, u32_at, u64_at};
use headwater_nvme::controller::admin::SanitizeState;
use headwater_nvme::controller::{ControllerConfig, QueueId};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::log_page::LogPage;
use headwater_nvme::spec::opcode::AdminOpcode;
use headwater_nvme::spec::status::Status;
use zerocopy::little_endian::U32;

fn get(page: u32, dwords: u32, offset: u32) -> SubmissionEntry {
    let entry = command(AdminOpcode::GetLogPage, 0, [(dwords - 1) << 16 | page, 0]);
    SubmissionEntry { cdw12: U32::new(offset), ..entry }
}

#[test]
fn supported_pages_are_exactly_the_readable_ones() {
    for config in [ControllerConfig::pcie(1), ControllerConfig::fabrics(1), ControllerConfig::discovery(1)] {
        let mut host = AdminHost::with(config, ENABLE_ALL_SETS);
        let supported = host.log(0x00, 1024).unwrap();
        for number in 0..=255 {
            let supported_bit = supported[4 * number] & 1 == 1;
            let read = host.log(u32::try_from(number).unwrap(), 16);
            // A discovery log is readable only on a discovery controller.
            assert_eq!(supported_bit, read.is_ok(), "page {number:x}: {read:?}");
            if !supported_bit {
                assert_eq!(read, Err(Status::INVALID_LOG_PAGE));
            }
        }
    }
}

#[test]
fn health_counts_written_data_in_units_of_1000_sectors() {
    let mut host = AdminHost::new();
    let page = host.log(0x02, 512).unwrap();
    assert_eq!(page[0], 0, "no warning");
    assert_eq!((page[3], page[4]), (100, 10));
    assert_eq!((u64_at(&page, 48), u64_at(&page, 80)), (2, 3), "512,001 bytes are two units");
    let of_namespace = command(AdminOpcode::GetLogPage, 2, [0x007F_0002, 0]);
    assert_eq!(host.status(&of_namespace, &[]), Status::INVALID_FIELD);
    let of_all = command(AdminOpcode::GetLogPage, 0xFFFF_FFFF, [0x007F_0002, 0]);
    assert_eq!(host.status(&of_all, &[]), Status::SUCCESS);
}

#[test]
fn page_can_be_read_in_parts_and_is_padded_with_zeroes() {
    let mut host = AdminHost::new();
    let whole = host.log(0x02, 512).unwrap();
    let part = host.execute(&get(0x02, 4, 36), &[]).data;
    assert_eq!(part, whole[36..52]);
    let beyond = host.execute(&get(0x02, 8, 504), &[]).data;
    assert_eq!((&beyond[..8], &beyond[8..]), (&whole[504..], &[0; 24][..]));
    assert_eq!(host.status(&get(0x02, 4, 516), &[]), Status::INVALID_FIELD, "after the end");
    assert_eq!(host.status(&get(0x02, 4, 2), &[]), Status::INVALID_FIELD, "not a dword");
    let mut by_index = get(0x02, 4, 0);
    by_index.cdw14 = U32::new(1 << 23);
    assert_eq!(host.status(&by_index, &[]), Status::INVALID_FIELD);
    let mut huge = get(0x02, 1, 0);
    huge.cdw10 = U32::new(0xFFFF_0002);
    huge.cdw11 = U32::new(0xFFFF);
    assert_eq!(host.status(&huge, &[]), Status::INVALID_FIELD, "more than the maximum transfer size");
}

#[test]
fn error_log_lists_the_newest_failure_first() {
    let mut host = AdminHost::new();
    assert_eq!(u64_at(&host.log(0x01, 64).unwrap(), 0), 0, "count 0 marks an unused entry");
    assert!(host.identify(0xFF, 0, 0).is_err());
    host.controller.record_error(QueueId(3), 0x55, 2, Status::LBA_OUT_OF_RANGE);
    let page = host.log(0x01, 4096).unwrap();
    assert_eq!((u64_at(&page, 0), page[8], page[10], u32_at(&page, 24)), (2, 3, 0x55, 2));
    let status = u16::from_le_bytes([page[12], page[13]]);
    assert_eq!(Status::from_field(status), Status::LBA_OUT_OF_RANGE);
    assert_eq!((u64_at(&page, 64), page[72], u64_at(&page, 128)), (1, 0, 0));
    for _ in 0..100 {
        host.controller.record_error(QueueId(1), 1, 1, Status::INTERNAL_ERROR);
    }
    assert_eq!(u64_at(&host.log(0x01, 4096).unwrap(), 63 * 64), 39, "64 entries are kept");
    assert_eq!(u64_at(&host.log(0x02, 512).unwrap(), 176), 102, "all errors are counted");
}

#[test]
fn effects_log_reports_the_changes_of_each_command() {
    let mut host = AdminHost::new();
    let mut entry = get(0x05, 1024, 0);
    let of_nvm = host.execute(&entry, &[]).data;
    entry.cdw14 = U32::new(1 << 24);
    let of_keys = host.execute(&entry, &[]).data;
    assert_eq!(of_nvm[..1024], of_keys[..1024], "admin commands are the same");
    assert_eq!(u32_at(&of_nvm, 4 * 0x0D) & 0b1001, 0b1001, "Namespace Management changes the inventory");
    assert_eq!(u32_at(&of_nvm, 1024 + 4) & 0b11, 0b11, "Write changes content");
    assert_eq!(u32_at(&of_nvm, 1024 + 4 * 0x0C) & 1, 1, "Verify");
    assert_eq!(u32_at(&of_keys, 1024 + 4 * 0x0C), 0);
    assert_eq!(u32_at(&of_keys, 1024 + 4 * 0x10) & 0b11, 0b11, "Delete changes content");
    assert_eq!(u32_at(&of_nvm, 4 * 0x14), 0, "there is no self-test");
}

#[test]
fn ana_log_has_one_optimized_group_of_attached_namespaces() {
    let mut host = AdminHost::with(ControllerConfig::fabrics(1), ENABLE_ALL_SETS);
    host.subsystem.detached.insert((2, 1));
    let page = host.log(0x0C, 64).unwrap();
    assert_eq!((u64_at(&page, 0), page[8]), (1, 1), "change count, one group");
    assert_eq!((u32_at(&page, 16), u32_at(&page, 20), page[32]), (1, 2, 1));
    assert_eq!((u32_at(&page, 48), u32_at(&page, 52), u32_at(&page, 56)), (1, 3, 0));
    let groups_only = command(AdminOpcode::GetLogPage, 0, [0x000F_010C, 0]);
    assert_eq!(u32_at(&host.execute(&groups_only, &[]).data, 20), 0);
    assert_eq!(AdminHost::new().log(0x0C, 64), Err(Status::INVALID_LOG_PAGE), "no ANA log without sharing");
}

#[test]
fn firmware_and_sanitize_logs_report_the_subsystem_state() {
    let mut host = AdminHost::new();
    let firmware = host.log(0x03, 512).unwrap();
    assert_eq!((firmware[0], &firmware[8..16]), (1, &b"1.2.3   "[..]));
    let page = host.log(0x81, 512).unwrap();
    assert_eq!((&page[..2], page[2], u32_at(&page, 12)), (&[0xFF, 0xFF][..], 0, u32::MAX));
    host.subsystem.sanitize.state = SanitizeState::Running(0x8000);
    host.subsystem.sanitize.command = 2;
    let page = host.log(0x81, 512).unwrap();
    assert_eq!((&page[..4], u32_at(&page, 4)), (&[0, 0x80, 2, 0][..], 2));
}

#[test]
fn log_page_numbers_are_unique() {
    for &page in LogPage::ALL {
        assert_eq!(LogPage::from_number(page.number()), Some(page));
    }
}
