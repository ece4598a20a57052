//! Tests of Identify (NVMe Base 2.0 section 5.17, KV 1.0d section 4.1.5).
use crate::host::{AdminHost, ENABLE_ALL_SETS, ENABLE_NVM, command, u32_at, u64_at};
use headwater_nvme::controller::ControllerConfig;
use headwater_nvme::spec::opcode::AdminOpcode;
use headwater_nvme::spec::status::Status;

const EVERYTHING: u32 = 0xFFFF_FFFF;

fn listed(page: &[u8]) -> Vec<u32> {
    page.chunks_exact(4).map(|word| u32_at(word, 0)).take_while(|&nsid| nsid != 0).collect()
}

#[test]
fn identify_controller_reports_identity_and_capabilities() {
    let mut host = AdminHost::new();
    let page = host.identify(0x01, 0, 0).unwrap();
    assert_eq!(page.len(), 4096);
    assert_eq!(&page[4..24], b"HW123456789012345678");
    assert_eq!(&page[64..72], b"1.2.3   ");
    assert_eq!(page[77], 8, "MDTS");
    assert_eq!(u16::from_le_bytes([page[78], page[79]]), 1, "CNTLID");
    assert_eq!(u32_at(&page, 80), 0x0002_0000, "VER is VS");
    assert_eq!(page[111], 1, "an I/O controller");
    assert_eq!(u16::from_le_bytes([page[256], page[257]]), 1 << 1 | 1 << 3 | 1 << 8, "OACS");
    assert_eq!(page[259], 3, "AERL is 0's based");
    assert_eq!((page[512], page[513]), (0x66, 0x44));
    assert_eq!((u32_at(&page, 516), u32_at(&page, 540)), (16, 16), "NN and MNAN");
    assert_eq!(page[525], 0b110, "no cache; Flush accepts one namespace or all");
    assert!(page[768..].starts_with(b"nqn.2014-08.org.nvmexpress:uuid:test\0"));
    host.subsystem.write_cache = true;
    assert_eq!(host.identify(0x01, 0, 0).unwrap()[525], 0b111);
}

#[test]
fn fabrics_controllers_report_what_the_linux_initiator_requires() {
    let mut host = AdminHost::with(ControllerConfig::fabrics(2), ENABLE_ALL_SETS);
    let page = host.identify(0x01, 0, 0).unwrap();
    assert_ne!(u16::from_le_bytes([page[320], page[321]]), 0, "KAS");
    assert_eq!(u32_at(&page, 536) & 0b11, 0b01, "SGLs");
    assert_eq!(u32_at(&page, 1792), (64 + 8_192) / 16, "IOCCSZ");
    assert_eq!(u32_at(&page, 1796), 1, "IORCSZ");
    assert_eq!(u16::from_le_bytes([page[1800], page[1801]]), 0, "ICDOFF");
    assert_ne!(u16::from_le_bytes([page[514], page[515]]), 0, "MAXCMD");
    assert_eq!(page[76] & 0b1010, 0b1010, "several controllers, asymmetric access");
    assert!(u32_at(&page, 540) <= u32_at(&page, 516), "MNAN is not above NN");
    assert_eq!(u16::from_le_bytes([page[256], page[257]]) & 1 << 8, 0, "no doorbells");
}

#[test]
fn block_namespace_reports_two_formats_and_zeroes_for_deallocated_blocks() {
    let mut host = AdminHost::new();
    let page = host.identify(0x00, 2, 0).unwrap();
    assert_eq!((u64_at(&page, 0), u64_at(&page, 8), u64_at(&page, 16)), (1 << 16, 1 << 16, 10));
    assert_eq!((page[25], page[26]), (1, 1), "NLBAF is 0's based; format 1 is in use");
    assert_eq!((u32_at(&page, 128) >> 16 & 0xFF, u32_at(&page, 132) >> 16 & 0xFF), (9, 12));
    assert_eq!(page[33] & 0b111, 0b001, "DLFEAT");
    assert_eq!(&page[104..120], [2; 16], "NGUID");
    assert_eq!(page[80], 127, "MSRC is 0's based");
}

#[test]
fn key_space_reports_one_format_with_keys_up_to_16_bytes() {
    let mut host = AdminHost::new();
    let page = host.identify(0x05, 1, 1).unwrap();
    assert_eq!((u64_at(&page, 0), u64_at(&page, 16)), (1 << 30, 10));
    assert_eq!((page[25], page[29]), (0, 0), "NKVF is 0's based, KVFC names format 0");
    assert_eq!(u16::from_le_bytes([page[72], page[73]]), 16, "KVF0 begins at byte 72");
    assert_eq!(u32_at(&page, 76), 1 << 20, "a value fits into one command");
    assert_eq!(u32_at(&page, 80), 0, "no limit on the number of keys");
    assert_eq!(&page[48..64], [1; 16], "NGUID");
    assert!(page[88..328].iter().all(|&byte| byte == 0), "no second format");
}

#[test]
fn controller_reports_revision_1_3_of_the_key_value_command_set() {
    let mut host = AdminHost::new();
    let page = host.identify(0x06, 0, 1).unwrap();
    assert_eq!((page.len(), u32_at(&page, 0)), (4_096, 0x0001_0300), "VER: 1.3.0");
    assert!(page[4..].iter().all(|&byte| byte == 0));
}

/// Reads what SPDK 23.01 and `nvme format` read first: if it is refused they give up the block namespaces too.
#[test]
fn key_space_reads_as_zeroes_for_a_host_that_knows_no_command_sets() {
    let mut host = AdminHost::new();
    for cns in [0x00, 0x11] {
        assert!(host.identify(cns, 1, 0).unwrap().iter().all(|&byte| byte == 0), "CNS {cns:x}");
        assert_ne!(u64_at(&host.identify(cns, 2, 0).unwrap(), 0), 0, "blocks, CNS {cns:x}");
    }
}

#[test]
fn identify_refuses_a_namespace_of_another_command_set() {
    let mut host = AdminHost::new();
    assert_eq!(host.identify(0x05, 2, 1), Err(Status::INVALID_COMMAND_SET));
    assert_eq!(host.identify(0x05, 1, 0), Err(Status::INVALID_COMMAND_SET));
    assert_eq!(host.identify(0x05, 1, 2), Err(Status::INVALID_COMMAND_SET));
    assert_eq!(host.identify(0x07, 0, 9), Err(Status::INVALID_COMMAND_SET));
}

#[test]
fn inactive_nsids_read_as_zeroes_and_invalid_ones_are_refused() {
    let mut host = AdminHost::new();
    for (cns, csi) in [(0x00, 0), (0x05, 1), (0x08, 0), (0x11, 0), (0x1B, 1)] {
        assert!(host.identify(cns, 9, csi).unwrap().iter().all(|&byte| byte == 0), "CNS {cns:x}");
        for nsid in [0, 17, 0xFFFF_FFFE] {
            assert_eq!(host.identify(cns, nsid, csi), Err(Status::INVALID_NAMESPACE), "CNS {cns:x}");
        }
    }
    assert_eq!(host.identify(0x03, 9, 0), Err(Status::INVALID_NAMESPACE));
    let common = host.identify(0x00, EVERYTHING, 0).unwrap();
    assert_eq!((u64_at(&common, 0), common[25]), (0, 1), "fields common to all block namespaces");
}

#[test]
fn formats_are_described_by_their_number() {
    let mut host = AdminHost::new();
    let mut format = |cns, csi: u32, index| {
        let entry = command(AdminOpcode::Identify, EVERYTHING, [cns, csi << 24 | index]);
        let answer = host.execute(&entry, &[]);
        if answer.status.is_success() { Ok(answer.data) } else { Err(answer.status) }
    };
    let granularity = |page: &[u8]| u16::from_le_bytes([page[64], page[65]]);
    let (small, large) = (format(0x09, 0, 0).unwrap(), format(0x09, 0, 1).unwrap());
    assert_eq!((u64_at(&small, 0), small[25], small[26], large[26]), (0, 1, 0, 0));
    assert_eq!(
        (granularity(&small), granularity(&large)),
        (7, 0),
        "NPWG of blocks of 512 and of 4,096 bytes"
    );
    assert!(format(0x0A, 0, 1).unwrap().iter().all(|&byte| byte == 0), "no protection information");
    let keys = format(0x0A, 1, 0).unwrap();
    assert_eq!(keys[72..74], [16, 0], "KVKML");
    for (cns, csi, index) in [(0x09, 0, 2), (0x09, 0, 0xFFFF), (0x0A, 0, 2), (0x0A, 1, 1)] {
        assert_eq!(format(cns, csi, index), Err(Status::INVALID_FIELD), "CNS {cns:x}, CSI {csi}, {index}");
    }
    assert_eq!(format(0x0A, 2, 0), Err(Status::INVALID_COMMAND_SET));
}

#[test]
fn lists_contain_attached_or_allocated_namespaces() {
    let mut host = AdminHost::new();
    host.subsystem.detached.insert((2, 1));
    assert_eq!(listed(&host.identify(0x02, 0, 0).unwrap()), [1, 3]);
    assert_eq!(listed(&host.identify(0x02, 1, 0).unwrap()), [3]);
    assert_eq!(listed(&host.identify(0x07, 0, 0).unwrap()), [3]);
    assert_eq!(listed(&host.identify(0x07, 0, 1).unwrap()), [1]);
    assert_eq!(listed(&host.identify(0x10, 0, 0).unwrap()), [1, 2, 3]);
    assert_eq!(listed(&host.identify(0x1A, 0, 0).unwrap()), [2, 3]);
    assert_eq!(u64_at(&host.identify(0x11, 2, 0).unwrap(), 0), 1 << 16, "allocated but not attached");
    assert!(host.identify(0x00, 2, 0).unwrap().iter().all(|&byte| byte == 0));
    for beyond in [0xFFFF_FFFE, EVERYTHING] {
        assert_eq!(host.identify(0x02, beyond, 0), Err(Status::INVALID_NAMESPACE));
    }
}

#[test]
fn host_with_only_the_nvm_command_set_sees_no_key_spaces() {
    let mut host = AdminHost::with(ControllerConfig::pcie(1), ENABLE_NVM);
    assert_eq!(listed(&host.identify(0x02, 0, 0).unwrap()), [2, 3]);
    assert!(host.identify(0x05, 1, 1).unwrap().iter().all(|&byte| byte == 0));
}

#[test]
fn descriptors_report_the_command_set_and_the_identifiers() {
    let mut host = AdminHost::new();
    let page = host.identify(0x03, 1, 0).unwrap();
    assert_eq!((page[0], page[1], &page[4..20]), (2, 16, &[1; 16][..]));
    assert_eq!((page[20], page[21], &page[24..40]), (3, 16, &[1; 16][..]));
    assert_eq!((page[40], page[41], page[44], page[45]), (4, 1, 1, 0));
    let ready = host.identify(0x08, 1, 0).unwrap();
    assert_eq!(ready[14], 1, "NSTAT: ready");
}

#[test]
fn controllers_and_command_sets_are_listed() {
    let mut host = AdminHost::new();
    host.subsystem.detached.insert((3, 1));
    assert_eq!(host.identify(0x13, 0, 0).unwrap()[..6], [2, 0, 1, 0, 2, 0]);
    assert_eq!(host.identify(0x12, 3, 0).unwrap()[..4], [1, 0, 2, 0]);
    assert_eq!(host.identify(0x13 | 2 << 16, 0, 0).unwrap()[..4], [1, 0, 2, 0]);
    let sets = host.identify(0x1C | 0xFFFF << 16, 0, 0).unwrap();
    assert_eq!((u64_at(&sets, 0), u64_at(&sets, 8)), (0b11, 0), "one combination: NVM and Key Value");
    assert_eq!(host.identify(0x1C | 77 << 16, 0, 0), Err(Status::INVALID_FIELD));
}

#[test]
fn unsupported_views_are_an_invalid_field() {
    let mut host = AdminHost::new();
    for cns in [0x04, 0x0B, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0xFF] {
        assert_eq!(host.identify(cns, 0, 0), Err(Status::INVALID_FIELD), "CNS {cns:x}");
    }
}

#[test]
fn discovery_controller_supports_only_identify_controller_and_its_logs() {
    let mut host = AdminHost::with(ControllerConfig::discovery(3), ENABLE_ALL_SETS);
    let page = host.identify(0x01, 0, 0).unwrap();
    assert_eq!((page[111], u32_at(&page, 516)), (2, 0));
    assert_eq!(host.identify(0x02, 0, 0), Err(Status::INVALID_FIELD));
    let format = command(AdminOpcode::FormatNvm, 1, [0, 0]);
    assert_eq!(host.status(&format, &[]), Status::INVALID_OPCODE);
    assert_eq!(host.set(0x07, 0, 0), Err(Status::INVALID_FIELD), "it has no I/O queues");
    assert!(host.log(0x70, 4).is_ok());
    assert_eq!(host.log(0x02, 512), Err(Status::INVALID_LOG_PAGE));
}

#[test]
fn fuse_and_sgl_flags_of_admin_commands_are_refused() {
    let mut host = AdminHost::new();
    for flags in [0b01, 0b10, 0b0100_0000, 0b1000_0000] {
        let mut entry = command(AdminOpcode::Identify, 0, [1, 0]);
        entry.flags = flags;
        assert_eq!(host.status(&entry, &[]), Status::INVALID_FIELD);
    }
}
