//! A subsystem that is what a test says it is.

use headwater_nvme::controller::Subsystem;
use headwater_nvme::controller::admin::{
    Capacity, CommandLimits, Health, Identity, NamespaceFacts, NamespaceFormat, SanitizeFacts,
};
use headwater_nvme::spec::log_page::MediaLog;
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::FromZeros;

#[derive(Clone, Debug)]
pub(crate) struct FakeSubsystem {
    pub(crate) identity: Identity,
    pub(crate) namespaces: BTreeMap<u32, NamespaceFacts>,
    pub(crate) detached: BTreeSet<(u32, u16)>,
    pub(crate) controllers: Vec<u16>,
    pub(crate) generation: u64,
    pub(crate) write_cache: bool,
    pub(crate) sanitize: SanitizeFacts,
    pub(crate) health: Health,
}

impl FakeSubsystem {
    /// Namespace 1 holds keys, 2 blocks of 4 KiB, 3 blocks of 512 bytes; controllers 1 and 2.
    pub(crate) fn new() -> Self {
        let facts = |format, size, number| NamespaceFacts {
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
            identity: Identity {
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
            sanitize: SanitizeFacts::default(),
            health: Health {
                available_spare: 100,
                host_bytes_written: 512_001,
                host_writes: 3,
                ..Health::default()
            },
        }
    }
}

impl Subsystem for FakeSubsystem {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn namespaces_max(&self) -> u32 {
        16
    }

    fn namespace(&self, nsid: u32) -> Option<NamespaceFacts> {
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

    fn capacity(&self) -> Capacity {
        Capacity { total_bytes: 1 << 40, unallocated_bytes: 1 << 39 }
    }

    fn health(&self) -> Health {
        self.health
    }

    fn has_write_cache(&self) -> bool {
        self.write_cache
    }

    fn sanitize(&self) -> SanitizeFacts {
        self.sanitize
    }

    fn media(&self) -> MediaLog {
        MediaLog::new_zeroed()
    }
}
