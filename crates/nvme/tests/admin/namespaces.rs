//! Namespace Management, Attachment, Format NVM and Sanitize (NVMe Base 2.0 sections 5.14, 5.22 to 5.24).

use crate::host::{AdminHost, command};
use headwater_nvme::controller::AdminStep;
use headwater_nvme::controller::admin::{NamespaceAction, NamespaceFormat, SanitizeState};
use headwater_nvme::spec::opcode::AdminOpcode;
use headwater_nvme::spec::status::Status;

fn identify_data(size: u64, capacity: u64, format: u8) -> Vec<u8> {
    let mut data = vec![0; 4096];
    data[..8].copy_from_slice(&size.to_le_bytes());
    data[8..16].copy_from_slice(&capacity.to_le_bytes());
    data[26] = format;
    data
}

fn controllers(ids: &[u16]) -> Vec<u8> {
    let count = u16::try_from(ids.len()).unwrap();
    let mut data: Vec<u8> =
        std::iter::once(count).chain(ids.iter().copied()).flat_map(u16::to_le_bytes).collect();
    data.resize(4096, 0);
    data
}

#[test]
fn create_is_validated_and_becomes_an_action() {
    let mut host = AdminHost::new();
    let create = |csi: u32| command(AdminOpcode::NamespaceManagement, 0, [0, csi << 24]);
    let create_step = |format, size| AdminStep::Namespace(NamespaceAction::Create { format, size });
    assert_eq!(
        host.step(&create(0), &identify_data(64, 64, 1)),
        create_step(NamespaceFormat::Block { index: 1 }, 64)
    );
    assert_eq!(
        host.step(&create(1), &identify_data(1 << 20, 0, 0)),
        create_step(NamespaceFormat::KeyValue, 1 << 20)
    );
    assert_eq!(host.status(&create(2), &identify_data(64, 64, 0)), Status::COMMAND_SET_NOT_SUPPORTED);
    assert_eq!(host.status(&create(0), &identify_data(64, 32, 0)), Status::THIN_PROVISIONING_NOT_SUPPORTED);
    assert_eq!(host.status(&create(0), &identify_data(0, 0, 0)), Status::INVALID_FIELD);
    for format in [2, 15, 1 << 4, 1 << 5] {
        assert_eq!(host.status(&create(0), &identify_data(64, 64, format)), Status::INVALID_FORMAT);
    }
    let mut protected = identify_data(64, 64, 0);
    protected[29] = 1;
    assert_eq!(host.status(&create(0), &protected), Status::INVALID_FORMAT);
    assert_eq!(host.status(&create(0), &[0; 16]), Status::DATA_TRANSFER_ERROR, "the data is missing");
    let named = command(AdminOpcode::NamespaceManagement, 2, [0, 0]);
    assert_eq!(host.status(&named, &identify_data(64, 64, 0)), Status::INVALID_FIELD);
}

#[test]
fn only_allocated_namespaces_can_be_deleted() {
    let mut host = AdminHost::new();
    let delete = |nsid| command(AdminOpcode::NamespaceManagement, nsid, [1, 0]);
    for nsid in [2, 0xFFFF_FFFF] {
        assert_eq!(host.step(&delete(nsid), &[]), AdminStep::Namespace(NamespaceAction::Delete { nsid }));
    }
    assert_eq!(host.status(&delete(9), &[]), Status::INVALID_FIELD);
    assert_eq!(host.status(&delete(0), &[]), Status::INVALID_NAMESPACE);
    assert_eq!(host.status(&delete(17), &[]), Status::INVALID_NAMESPACE);
    let reserved = command(AdminOpcode::NamespaceManagement, 2, [5, 0]);
    assert_eq!(host.status(&reserved, &[]), Status::INVALID_FIELD);
}

#[test]
fn controller_list_must_be_ordered_and_valid() {
    let mut host = AdminHost::new();
    host.subsystem.detached.extend([(2, 1), (2, 2)]);
    let attach = command(AdminOpcode::NamespaceAttachment, 2, [0, 0]);
    for ids in [&[][..], &[3], &[2, 1], &[1, 1], &[0]] {
        assert_eq!(host.status(&attach, &controllers(ids)), Status::CONTROLLER_LIST_INVALID, "{ids:?}");
    }
    let mut endless = controllers(&[1]);
    endless[..2].copy_from_slice(&[0xFF, 0xFF]);
    assert_eq!(host.status(&attach, &endless), Status::CONTROLLER_LIST_INVALID);
    let step = host.step(&attach, &controllers(&[1, 2]));
    let action = NamespaceAction::Attach { nsid: 2, controllers: vec![1, 2] };
    assert_eq!(step, AdminStep::Namespace(action));
    let detach = command(AdminOpcode::NamespaceAttachment, 2, [1, 0]);
    assert_eq!(host.status(&detach, &controllers(&[1])), Status::NAMESPACE_NOT_ATTACHED);
    host.subsystem.detached.clear();
    assert_eq!(host.status(&attach, &controllers(&[2])), Status::NAMESPACE_ALREADY_ATTACHED);
    let step = host.step(&detach, &controllers(&[2]));
    assert_eq!(step, AdminStep::Namespace(NamespaceAction::Detach { nsid: 2, controllers: vec![2] }));
}

#[test]
fn format_index_must_exist_for_the_namespace() {
    let mut host = AdminHost::new();
    let format = |nsid, dword| command(AdminOpcode::FormatNvm, nsid, [dword, 0]);
    let step = host.step(&format(3, 1 << 9 | 1), &[]);
    assert_eq!(step, AdminStep::Namespace(NamespaceAction::Format { nsid: 3, index: 1 }));
    let all = host.step(&format(0xFFFF_FFFF, 0), &[]);
    assert_eq!(all, AdminStep::Namespace(NamespaceAction::Format { nsid: 0xFFFF_FFFF, index: 0 }));
    assert_eq!(host.status(&format(3, 2), &[]), Status::INVALID_FORMAT);
    assert_eq!(host.status(&format(1, 1), &[]), Status::INVALID_FORMAT, "a key space has one format");
    assert_eq!(host.status(&format(0xFFFF_FFFF, 1), &[]), Status::INVALID_FORMAT, "keys have no format 1");
    for metadata_or_protection in [1 << 4, 1 << 5, 1 << 8] {
        assert_eq!(host.status(&format(3, metadata_or_protection), &[]), Status::INVALID_FORMAT);
    }
    assert_eq!(host.status(&format(3, 2 << 9), &[]), Status::INVALID_FIELD, "no cryptographic erase");
    assert_eq!(host.status(&format(9, 0), &[]), Status::INVALID_FIELD);
    assert_eq!(host.status(&format(0, 0), &[]), Status::INVALID_NAMESPACE);
}

#[test]
fn sanitize_supports_block_erase_only_and_excludes_namespace_changes() {
    let mut host = AdminHost::new();
    let sanitize = |dword| command(AdminOpcode::Sanitize, 0, [dword, 0]);
    for refused in [0, 3, 4, 5, 7, 2 | 1 << 9] {
        assert_eq!(host.status(&sanitize(refused), &[]), Status::INVALID_FIELD);
    }
    let step = host.step(&sanitize(2 | 1 << 3), &[]);
    assert_eq!(step, AdminStep::Namespace(NamespaceAction::Sanitize { command: 2 | 1 << 3 }));
    host.subsystem.sanitize.state = SanitizeState::Running(7);
    for entry in [
        sanitize(2),
        command(AdminOpcode::FormatNvm, 2, [0, 0]),
        command(AdminOpcode::NamespaceManagement, 2, [1, 0]),
    ] {
        assert_eq!(host.status(&entry, &[]), Status::SANITIZE_IN_PROGRESS);
    }
    assert!(host.identify(0x01, 0, 0).is_ok(), "Identify still works");
}

#[test]
fn sanitize_failure_can_be_left_only_if_the_command_allowed_it() {
    let mut host = AdminHost::new();
    let leave = command(AdminOpcode::Sanitize, 0, [1, 0]);
    assert_eq!(host.status(&leave, &[]), Status::SUCCESS, "there is no failure to leave");
    host.subsystem.sanitize.state = SanitizeState::Failed;
    host.subsystem.sanitize.command = 2;
    assert_eq!(host.status(&leave, &[]), Status::SANITIZE_FAILED);
    host.subsystem.sanitize.command = 2 | 1 << 3;
    assert_eq!(host.step(&leave, &[]), AdminStep::Namespace(NamespaceAction::LeaveSanitizeFailure));
}
