//! The settings of a device's pool of memory: the paper's m, M and t, the limits of the tiers, and the memory node.
//!
//! Input: the numbers that a program names where it opens a device. Output: the configuration of a pool. Invariant: a
//! number that was not named stays as the backend chose it.

use crate::error::IoError;
use headwater_dma::pool::{
    ChunkRule, NodeId, PROCESS_POOL_CAP, PoolConfig, PoolError, STATIC_BYTES_DEFAULT, TierSetting,
    placement_on,
};
use headwater_host::clock::Nanos;
use headwater_host::reservation::PAGE_BYTES;

/// The settings of the pools of a kind of devices, where a program names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolDefaults {
    /// The schemes of the URLs of these devices.
    pub schemes: &'static str,
    /// m: bytes of the first chunk.
    pub chunk_bytes: usize,
    /// The rule by which m adapts to the load.
    pub chunk_rule: ChunkRule,
    /// M: the most bytes pinned, over all tiers.
    pub cap_bytes: usize,
    /// Bytes of the static tier.
    pub static_bytes: usize,
}

impl PoolDefaults {
    /// Devices with which memory is registered by messages: small first chunks, for a client with a low limit.
    pub const REGISTERED: Self = Self {
        schemes: "attach:, file:, mem:",
        chunk_bytes: 256 << 10,
        chunk_rule: ChunkRule::Adaptive { min: 256 << 10, max: 64 << 20 },
        cap_bytes: PROCESS_POOL_CAP,
        static_bytes: 256 << 10,
    };

    /// Devices for which the kernel pins memory: small first chunks, for users with a low limit on locked memory.
    pub const PINNED: Self = Self {
        schemes: "io-uring:, nvme-ng:, vfio:",
        chunk_bytes: 2 << 20,
        chunk_rule: ChunkRule::DEFAULT,
        cap_bytes: 4 << 30,
        static_bytes: STATIC_BYTES_DEFAULT,
    };

    /// Devices that access memory only through this process. Without named settings they share the process's pool.
    pub const UNREGISTERED: Self = Self {
        schemes: "nvme-tcp:, null:, model:",
        chunk_bytes: 4 << 20,
        chunk_rule: ChunkRule::DEFAULT,
        cap_bytes: PROCESS_POOL_CAP,
        static_bytes: STATIC_BYTES_DEFAULT,
    };

    /// All kinds.
    pub const ALL: [Self; 3] = [Self::REGISTERED, Self::PINNED, Self::UNREGISTERED];

    /// Returns the configuration of such a device's pool, without a pinner.
    pub(crate) fn config(&self) -> PoolConfig {
        PoolConfig {
            chunk: self.chunk_bytes,
            chunk_rule: self.chunk_rule,
            cap: self.cap_bytes,
            cap_max: self.cap_bytes,
            static_bytes: self.static_bytes,
            ..PoolConfig::default()
        }
    }
}

/// The settings of a device's pool. The default names none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolSettings {
    /// m: bytes of a chunk, which then does not adapt to the load.
    pub chunk_bytes: Option<usize>,
    /// M: the most bytes pinned, over all tiers.
    pub cap_bytes: Option<usize>,
    /// t: the time after which an empty chunk is unpinned.
    pub idle: Option<Nanos>,
    /// The limits of the tiers. If not named: those of `HEADWATER_TIERS`, else the measured ones of this machine.
    pub tiers: Option<TierSetting>,
    /// Bytes of the static tier; 0 for none. If not named: 3 MiB, or less where the cap or the device is small.
    pub static_bytes: Option<usize>,
    /// The memory node, by the kernel's number. If not named: that of the allocating thread.
    pub node: Option<u32>,
}

impl PoolSettings {
    /// Returns true if no setting is named.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns these settings, with those of `other` where they are not named.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            chunk_bytes: self.chunk_bytes.or(other.chunk_bytes),
            cap_bytes: self.cap_bytes.or(other.cap_bytes),
            idle: self.idle.or(other.idle),
            tiers: self.tiers.or(other.tiers),
            static_bytes: self.static_bytes.or(other.static_bytes),
            node: self.node.or(other.node),
        }
    }

    /// Applies the named settings to a backend's configuration. A static tier that is not named has at most a quarter of
    /// the cap.
    ///
    /// # Errors
    /// [`IoError::Limit`] for a memory node that the machine does not have. Other values are checked where the pool is
    /// opened.
    pub(crate) fn apply(&self, mut config: PoolConfig) -> Result<PoolConfig, IoError> {
        if let Some(chunk) = self.chunk_bytes {
            (config.chunk, config.chunk_rule) = (chunk, ChunkRule::Fixed);
        }
        if let Some(cap) = self.cap_bytes {
            (config.cap, config.cap_max) = (cap, cap);
        }
        config.idle = self.idle.unwrap_or(config.idle);
        config.tiers = self.tiers.or(config.tiers);
        let usual = config.static_bytes.min(config.cap / 4 / PAGE_BYTES * PAGE_BYTES);
        config.static_bytes = self.static_bytes.unwrap_or(usual);
        if let Some(node) = self.node {
            config.placement =
                placement_on(NodeId(node)).map_err(|error| IoError::Limit { reason: error.to_string() })?;
        }
        Ok(config)
    }

    /// Returns the configuration of the pool of a device that needs no registration, with these settings.
    pub(crate) fn unregistered(&self) -> Result<PoolConfig, IoError> {
        self.apply(PoolDefaults::UNREGISTERED.config())
    }

    /// Parses the limits of the tiers: `calibrated`, `paper-4.1`, `paper-5.2`, or `SMALL:LARGE` in bytes.
    ///
    /// # Errors
    /// [`IoError::Pool`] for any other text.
    pub fn with_tiers(self, text: &str) -> Result<Self, IoError> {
        let parsed = TierSetting::parse(text);
        let tiers = parsed.map_err(|_| PoolError::Config(headwater_dma::pool::ConfigError::TiersText))?;
        Ok(Self { tiers: Some(tiers), ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_dma::pool::{Pool, TierThresholds};
    use std::sync::Arc;

    fn base() -> PoolConfig {
        PoolConfig { cap: 64 << 20, static_bytes: STATIC_BYTES_DEFAULT, ..PoolConfig::default() }
    }

    #[test]
    fn named_settings_replace_those_of_the_backend() {
        let kept = PoolSettings::default().apply(base()).unwrap();
        assert_eq!((kept.chunk, kept.cap, kept.idle), (base().chunk, base().cap, base().idle));
        assert_eq!((kept.chunk_rule, kept.static_bytes), (base().chunk_rule, STATIC_BYTES_DEFAULT));
        let named = PoolSettings {
            chunk_bytes: Some(1 << 20),
            cap_bytes: Some(8 << 20),
            idle: Some(Nanos(5)),
            tiers: Some(TierThresholds::PAPER_4_1.into()),
            ..PoolSettings::default()
        };
        let config = named.apply(base()).unwrap();
        assert_eq!((config.chunk, config.chunk_rule), (1 << 20, ChunkRule::Fixed));
        assert_eq!((config.cap, config.cap_limit(), config.idle), (8 << 20, 8 << 20, Nanos(5)));
        assert_eq!((config.tiers, config.static_bytes), (named.tiers, 2 << 20), "a quarter of the cap");
        let over = PoolSettings { cap_bytes: Some(1), ..PoolSettings::default() };
        assert_eq!(over.or(named), PoolSettings { cap_bytes: Some(1), ..named });
    }

    #[test]
    fn pool_of_the_process_has_the_defaults_of_devices_without_registration() {
        let process = Pool::of_process().unwrap();
        let (have, named) = (process.config(), PoolDefaults::UNREGISTERED.config());
        assert_eq!((have.chunk, have.chunk_rule, have.cap), (named.chunk, named.chunk_rule, named.cap));
        assert_eq!((have.static_bytes, have.idle), (named.static_bytes, named.idle));
        assert!(PoolDefaults::ALL.iter().all(|kind| kind.config().check().is_ok()));
    }

    #[test]
    fn impossible_settings_are_refused_with_what_is_possible() {
        let refused = |settings: PoolSettings| {
            let opened = settings.apply(base()).and_then(|config| Ok(Pool::open(config)?));
            opened.map(drop).unwrap_err().to_string()
        };
        let chunk = refused(PoolSettings { chunk_bytes: Some(5_000), ..PoolSettings::default() });
        assert!(chunk.contains("5000 bytes") && chunk.contains("power of two"), "{chunk}");
        let cap = refused(PoolSettings { cap_bytes: Some(10), ..PoolSettings::default() });
        assert!(cap.contains("a cap of 10 bytes"), "{cap}");
        let statics = refused(PoolSettings { static_bytes: Some(60 << 20), ..PoolSettings::default() });
        assert!(statics.contains("choose a multiple of 4,096 up to 33554432"), "{statics}");
        let node = refused(PoolSettings { node: Some(4_000), ..PoolSettings::default() });
        assert!(node.contains("no memory node 4000"), "{node}");
        let tiers = PoolSettings::default().with_tiers("paper").unwrap_err().to_string();
        assert!(tiers.contains("paper-5.2"), "{tiers}");
        let given = base();
        let default = Arc::clone(&given.placement);
        let placed = PoolSettings { node: Some(0), ..PoolSettings::default() }.apply(given).unwrap();
        assert_eq!(placed.placement.nodes(), vec![NodeId(0)]);
        assert!(!Arc::ptr_eq(&placed.placement, &default), "the pool is placed by the node that was set");
    }
}
