//! A subsystem whose properties the test sets.

use headwater_nvme::controller::NvmSubsystem;
use headwater_nvme::controller::admin::{
    CommandLimits, NamespaceFormat, NamespaceProperties, SanitizeStatus, SubsystemCapacity, SubsystemHealth,
    SubsystemIdentity,
};
use headwater_nvme::spec::log_page::MediaLog;
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::FromZeros;

/// The subsystem: each field is what a query returns.
#[derive(Clone, Debug)]
pub struct FakeSubsystem {
    /// Identify Controller's identity.
    pub identity: SubsystemIdentity,
    /// Namespaces by their number.
    pub namespaces: BTreeMap<u32, NamespaceProperties>,
    /// Pairs of namespace and controller that are not attached.
    pub detached: BTreeSet<(u32, u16)>,
    /// Controllers of the subsystem.
    pub controllers: Vec<u16>,
    /// Counts changes that controllers compare.
    pub generation: u64,
    /// A volatile write cache is reported.
    pub write_cache: bool,
    /// State of the last sanitize operation.
    pub sanitize: SanitizeStatus,
    /// SMART counters.
    pub health: SubsystemHealth,
}

impl Default for FakeSubsystem {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeSubsystem {
    /// Creates namespace 1 of keys, 2 of 4 KiB blocks and 3 of 512-byte blocks, and controllers 1 and 2.
    #[must_use]
    pub fn new() -> Self {
        let facts = |format, size, number| NamespaceProperties {
            format,
            size,
            utilization: 10,
            uuid: [number; 16],
            missing_key_is_error: false,
        };
        let namespaces = BTreeMap::from([
            (1, facts(NamespaceFormat::KeyValue, 1 << 30, 1)),
            (2, facts(NamespaceFormat::Block { index: 1 }, 1 << 16, 2)),
            (3, facts(NamespaceFormat::Block { index: 0 }, 1 << 19, 3)),
        ]);
        Self {
            identity: SubsystemIdentity {
                serial: *b"HW123456789012345678",
                model: [b'm'; 40],
                firmware: *b"1.2.3   ",
                subsystem_name: "nqn.2014-08.org.nvmexpress:uuid:test".to_owned(),
                uuid: [9; 16],
            },
            namespaces,
            detached: BTreeSet::new(),
            controllers: vec![1, 2],
            generation: 1,
            write_cache: false,
            sanitize: SanitizeStatus::default(),
            health: SubsystemHealth {
                available_spare: 100,
                host_bytes_written: 512_001,
                host_writes: 3,
                ..SubsystemHealth::default()
            },
        }
    }
}

impl NvmSubsystem for FakeSubsystem {
    fn identity(&self) -> &SubsystemIdentity {
        &self.identity
    }

    fn namespaces_max(&self) -> u32 {
        16
    }

    fn namespace(&self, nsid: u32) -> Option<NamespaceProperties> {
        self.namespaces.get(&nsid).copied()
    }

    fn is_attached(&self, nsid: u32, controller: u16) -> bool {
        self.namespaces.contains_key(&nsid) && !self.detached.contains(&(nsid, controller))
    }

    fn controllers(&self) -> Vec<u16> {
        self.controllers.clone()
    }

    fn generation(&self) -> u64 {
        self.generation
    }

    fn limits(&self) -> CommandLimits {
        CommandLimits {
            value_bytes_max: 16 << 20,
            copy_range_blocks_max: 4_096,
            copy_blocks_max: 4_096,
            copy_ranges_max: 128,
        }
    }

    fn capacity(&self) -> SubsystemCapacity {
        SubsystemCapacity { total_bytes: 1 << 40, unallocated_bytes: 1 << 39 }
    }

    fn health(&self) -> SubsystemHealth {
        self.health
    }

    fn has_write_cache(&self) -> bool {
        self.write_cache
    }

    fn sanitize(&self) -> SanitizeStatus {
        self.sanitize
    }

    fn media(&self) -> MediaLog {
        MediaLog::new_zeroed()
    }
}
