//! A subsystem without namespaces.

use headwater_nvme::controller::NvmSubsystem;
use headwater_nvme::controller::admin::{
    CommandLimits, NamespaceProperties, SanitizeStatus, SubsystemCapacity, SubsystemHealth, SubsystemIdentity,
};
use headwater_nvme::spec::fabrics::{SecureChannel, discovery_page};
use headwater_nvme::spec::log_page::MediaLog;
use zerocopy::FromZeros;

pub(crate) struct EmptySubsystem(SubsystemIdentity);

impl EmptySubsystem {
    pub(crate) fn new(name: &str) -> Self {
        Self(SubsystemIdentity {
            serial: [b' '; 20],
            model: [b' '; 40],
            firmware: [b' '; 8],
            subsystem_name: name.to_owned(),
            uuid: [0; 16],
        })
    }
}

impl NvmSubsystem for EmptySubsystem {
    fn identity(&self) -> &SubsystemIdentity {
        &self.0
    }
    fn namespaces_max(&self) -> u32 {
        16
    }
    fn namespace(&self, _nsid: u32) -> Option<NamespaceProperties> {
        None
    }
    fn is_attached(&self, _nsid: u32, _controller: u16) -> bool {
        false
    }
    fn controllers(&self) -> Vec<u16> {
        Vec::new()
    }
    fn generation(&self) -> u64 {
        0
    }
    fn limits(&self) -> CommandLimits {
        CommandLimits {
            value_bytes_max: 4_096,
            copy_range_blocks_max: 1,
            copy_blocks_max: 1,
            copy_ranges_max: 1,
        }
    }
    fn capacity(&self) -> SubsystemCapacity {
        SubsystemCapacity::default()
    }
    fn health(&self) -> SubsystemHealth {
        SubsystemHealth::default()
    }
    fn has_write_cache(&self) -> bool {
        false
    }
    fn sanitize(&self) -> SanitizeStatus {
        SanitizeStatus::default()
    }
    fn media(&self) -> MediaLog {
        MediaLog::new_zeroed()
    }
    fn discovery_log(&self) -> Vec<u8> {
        discovery_page(1, &self.0.subsystem_name, ([127, 0, 0, 1], 4_420).into(), SecureChannel::None)
    }
}
