//! Get Features and Set Features (NVMe Base 2.0 sections 5.15, 5.27; KV 1.0d section 4.1.3).

use crate::host::{AdminHost, ENABLE_ALL_SETS, ENABLE_NVM, command, u64_at};
use headwater_host::clock::Nanos;
use headwater_nvme::controller::admin::{KeepAliveStatus, NamespaceAction};
use headwater_nvme::controller::{AdminStep, ControllerConfig, RegisterEffect};
use headwater_nvme::spec::feature::FeatureId;
use headwater_nvme::spec::opcode::AdminOpcode;
use headwater_nvme::spec::status::Status;

#[test]
fn set_values_are_read_back_and_a_reset_restores_defaults() {
    let mut host = AdminHost::new();
    for (feature, value) in [(0x01, 0x0403_0203), (0x05, 0x77), (0x08, 0x0A05), (0x0A, 1), (0x0B, 0x0900)] {
        let nsid = if feature == 0x05 { 2 } else { 0 };
        let default = host.get(feature, nsid, 0).unwrap();
        assert_eq!(host.set(feature, nsid, value), Ok(0), "{feature:x}");
        assert_eq!(host.get(feature, nsid, 0), Ok(value), "{feature:x}");
        assert_eq!(host.get(feature | 1 << 8, nsid, 0), Ok(default), "SEL default of {feature:x}");
        assert_eq!(host.get(feature | 2 << 8, nsid, 0), Ok(default), "no saved value of {feature:x}");
    }
    let effect = host.controller.write_register(0x14, 4, 0, host.now);
    assert_eq!(effect, RegisterEffect::Disable);
    host.controller.complete_disable();
    let _ = host.controller.write_register(0x14, 4, ENABLE_ALL_SETS, host.now);
    host.controller.complete_enable();
    assert_eq!(host.get(0x0B, 0, 0), Ok(0));
    assert_eq!(host.get(0x08, 0, 0), Ok(0));
}

#[test]
fn every_feature_reports_its_capabilities() {
    let mut host = AdminHost::new();
    host.subsystem.write_cache = true;
    for &feature in FeatureId::ALL {
        let number = u32::from(feature.number());
        let nsid = match feature {
            FeatureId::KeyValueConfiguration => 1,
            FeatureId::ErrorRecovery => 2,
            _ => 0,
        };
        let supported = host.get(number | 3 << 8, nsid, 0).unwrap();
        assert_eq!(supported & 1, 0, "no feature is saveable");
        assert_eq!(supported >> 2 & 1, u32::from(feature != FeatureId::WriteCache));
        let saving = command(AdminOpcode::SetFeatures, nsid, [number | 1 << 31, 0]);
        let data = vec![0; 512];
        assert_eq!(host.status(&saving, &data), Status::FEATURE_NOT_SAVEABLE);
    }
}

#[test]
fn unknown_features_are_an_invalid_field() {
    let mut host = AdminHost::new();
    for feature in [0x00, 0x03, 0x0C, 0x0D, 0x10, 0x11, 0x13, 0x17, 0x7F, 0x80, 0x82, 0xFF] {
        assert_eq!(host.get(feature, 0, 0), Err(Status::INVALID_FIELD), "{feature:x}");
        assert_eq!(host.set(feature, 0, 0), Err(Status::INVALID_FIELD), "{feature:x}");
    }
    for select in [4, 5, 6, 7] {
        assert_eq!(host.get(0x01 | select << 8, 0, 0), Err(Status::INVALID_FIELD));
    }
}

#[test]
fn controller_feature_cannot_be_set_for_a_namespace() {
    let mut host = AdminHost::new();
    assert_eq!(host.set(0x0B, 2, 0), Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC));
    assert_eq!(host.set(0x0B, 0xFFFF_FFFF, 0), Ok(0));
}

#[test]
fn write_cache_cannot_be_disabled() {
    let mut host = AdminHost::new();
    assert_eq!(host.get(0x06, 0, 0), Err(Status::INVALID_FIELD), "there is no write cache");
    host.subsystem.write_cache = true;
    assert_eq!(host.get(0x06, 0, 0), Ok(1));
    assert_eq!(host.set(0x06, 0, 1), Ok(0));
    assert_eq!(host.set(0x06, 0, 0), Err(Status::FEATURE_NOT_CHANGEABLE));
}

#[test]
fn invalid_values_are_refused() {
    let mut host = AdminHost::new();
    assert_eq!(host.set(0x02, 0, 1), Err(Status::INVALID_FIELD), "there is one power state");
    assert_eq!(host.set(0x05, 2, 1 << 16), Err(Status::INVALID_FIELD), "DULBE is not supported");
    assert_eq!(host.set(0x09, 0, 33), Err(Status::INVALID_FIELD), "no such vector");
    assert_eq!(host.set(0x04, 0, 1 << 16), Err(Status::INVALID_FIELD), "no such sensor");
    assert_eq!(host.set(0x19, 0, 1), Err(Status::COMMAND_SET_COMBINATION_REJECTED));
    assert_eq!(host.set(0x19, 0, 0), Ok(0));
    let mut nvm_only = AdminHost::with(ControllerConfig::pcie(1), ENABLE_NVM);
    assert_eq!(nvm_only.set(0x19, 0, 0), Err(Status::INVALID_FIELD));
}

#[test]
fn a_vector_can_be_excluded_from_coalescing() {
    let mut host = AdminHost::new();
    assert_eq!(host.set(0x09, 0, 1 << 16 | 5), Ok(0));
    assert_eq!(host.get(0x09, 0, 5), Ok(1 << 16 | 5));
    assert_eq!(host.get(0x09, 0, 6), Ok(6));
    assert_eq!(host.set(0x09, 0, 5), Ok(0));
    assert_eq!(host.get(0x09, 0, 5), Ok(5));
}

#[test]
fn timestamp_advances_from_the_value_that_the_host_set() {
    let mut host = AdminHost::new();
    let get = command(AdminOpcode::GetFeatures, 0, [0x0E, 0]);
    let fresh = host.execute(&get, &[]).data;
    assert_eq!((fresh.len(), fresh[6]), (8, 0), "origin: cleared by a reset");
    host.now = Nanos::from_millis(50);
    let set = command(AdminOpcode::SetFeatures, 0, [0x0E, 0]);
    let mut millis = 1_700_000_000_000_u64.to_le_bytes();
    millis[7] = 0xFF;
    assert_eq!(host.status(&set, &millis), Status::SUCCESS);
    host.now = Nanos::from_millis(1_550);
    let later = host.execute(&get, &[]).data;
    assert_eq!(u64_at(&later, 0) & 0xFFFF_FFFF_FFFF, 1_700_000_001_500);
    assert_eq!(later[6], 0b001 << 1, "origin: a host");
    assert_eq!(host.status(&set, &millis[..7]), Status::DATA_TRANSFER_ERROR);
}

#[test]
fn host_identifier_has_8_or_16_bytes_and_cannot_be_set_on_fabrics() {
    let mut host = AdminHost::new();
    let set = command(AdminOpcode::SetFeatures, 0, [0x81, 1]);
    assert_eq!(host.status(&set, &[6; 16]), Status::SUCCESS);
    let get = |exhid| command(AdminOpcode::GetFeatures, 0, [0x81, exhid]);
    assert_eq!(host.execute(&get(1), &[]).data, [6; 16]);
    assert_eq!(host.execute(&get(0), &[]).data, [6; 8]);
    let mut fabrics = AdminHost::with(ControllerConfig::fabrics(1), ENABLE_ALL_SETS);
    fabrics.controller.set_host_identifier([8; 16]);
    assert_eq!(fabrics.status(&set, &[6; 16]), Status::COMMAND_SEQUENCE_ERROR);
    assert_eq!(fabrics.execute(&get(1), &[]).data, [8; 16]);
}

#[test]
fn host_behavior_keeps_only_defined_bits() {
    let mut host = AdminHost::new();
    let mut data = vec![0xFF; 512];
    data[1] = 0;
    assert_eq!(host.status(&command(AdminOpcode::SetFeatures, 0, [0x16, 0]), &data), Status::SUCCESS);
    let stored = host.execute(&command(AdminOpcode::GetFeatures, 0, [0x16, 0]), &[]).data;
    assert_eq!((stored.len(), &stored[..4]), (512, &[1, 0, 1, 0][..]));
}

#[test]
fn missing_key_error_is_set_per_key_space() {
    let mut host = AdminHost::new();
    let set = command(AdminOpcode::SetFeatures, 1, [0x20, 1]);
    let action = NamespaceAction::SetMissingKeyError { nsid: 1, is_error: true };
    assert_eq!(host.step(&set, &[]), AdminStep::Namespace(action));
    assert_eq!(host.get(0x20, 1, 0), Ok(0), "the subsystem has not applied it yet");
    host.subsystem.namespaces.get_mut(&1).unwrap().missing_key_is_error = true;
    assert_eq!(host.get(0x20, 1, 0), Ok(1));
    assert_eq!(host.get(0x20, 2, 0), Err(Status::INVALID_NAMESPACE), "a block namespace has no keys");
    assert_eq!(host.get(0x20, 9, 0), Err(Status::INVALID_FIELD));
    assert_eq!(host.get(0x20, 0, 0), Err(Status::INVALID_NAMESPACE));
}

#[test]
fn keep_alive_timeout_fails_the_controller_of_a_silent_host_only() {
    let mut host = AdminHost::new();
    assert_eq!(host.set(0x0F, 0, 950), Ok(0));
    assert_eq!(host.get(0x0F, 0, 0), Ok(1_000), "in units of 100 ms");
    assert_eq!(host.controller.next_deadline(), Some(Nanos::from_millis(1_000)));
    host.now = Nanos::from_millis(900);
    assert_eq!(host.status(&command(AdminOpcode::KeepAlive, 0, [0, 0]), &[]), Status::SUCCESS);
    host.now = Nanos::from_millis(1_900);
    assert_eq!(host.controller.poll(&host.subsystem, host.now), KeepAliveStatus::Alive);
    host.now = Nanos::from_millis(1_901);
    assert_eq!(host.controller.poll(&host.subsystem, host.now), KeepAliveStatus::KeepAliveExpired);
    assert_eq!(host.controller.read_register(0x1C, 4) & 2, 2, "CSTS.CFS");
    assert_eq!(host.controller.poll(&host.subsystem, host.now), KeepAliveStatus::Alive, "reported once");
}
