//! The configuration of a pool, as C writes it.
//!
//! Input: a struct that [`hw_pool_config_init`] filled and C changed. Output: a `PoolConfig`. Invariant: the first
//! field is the length of the struct in the caller's header, so that later versions can append fields.

use crate::call_error::CallError;
use crate::code::ResultCode;
use crate::ffi::{self, run_call};
use crate::pool_settings::HW_NODE_ANY;
use headwater_dma::pool::{
    ChunkRule, MemoryPinner, MlockPinner, NoPinning, NodeId, PoolConfig, TierSetting, default_placement,
    placement_on,
};
use headwater_host::clock::Nanos;
use std::ffi::{CStr, c_char};
use std::mem::offset_of;
use std::sync::Arc;

/// The configuration of a pool. Fill it with hw_pool_config_init, then change fields.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HwPoolConfig {
    /// Bytes of this struct. hw_pool_config_init sets it.
    pub struct_bytes: usize,
    /// m: bytes of a chunk, a power of two from 64 KiB to 1 GiB.
    pub chunk_bytes: u64,
    /// M, the cap: maximum bytes that the pool holds from the system at a time.
    pub cap_bytes: u64,
    /// Maximum to which hw_pool_set_cap can raise the cap, in bytes; 0 for four times the cap.
    pub cap_max_bytes: u64,
    /// t: nanoseconds after which an empty chunk is returned to the system.
    pub idle_ns: u64,
    /// Bytes of empty chunks that are kept however long they are empty.
    pub min_idle_bytes: u64,
    /// The limits between small, medium and large requests, as in HEADWATER_TIERS: "calibrated", "paper-4.1",
    /// "paper-5.2", or "SMALL:LARGE" in bytes. Null takes those of that variable, or without it those measured on this
    /// machine. The string stays the caller's; it is read only by hw_pool_open.
    pub preset: *const c_char,
    /// 1: m adapts to the load, between 2 MiB and 64 MiB. 0: m is fixed.
    pub chunk_adapts: u32,
    /// Thousandths of the cap that the caches of all threads may hold together: 0 to 50.
    pub cache_per_mille: u32,
    /// 1: a thread of the pool returns idle chunks. 0: the program calls hw_pool_tick regularly.
    pub ticker: u32,
    /// One of the HW_PINNING_ constants.
    pub pinning: u32,
    /// Bytes of the static tier: blocks that stay pinned, for small requests; a multiple of 4,096, at most half of the
    /// cap. 0 for none: small requests are served as medium ones.
    pub static_bytes: u64,
    /// The memory node, by the kernel's number, or HW_NODE_ANY.
    pub node: u32,
    /// 0.
    pub reserved: u32,
}

/// No pinning: memory is resident when it is allocated; the kernel may still swap and move it.
pub const HW_PINNING_NONE: u32 = 0;
/// Chunks are locked by mlock(2) and never swapped. Opening fails with HW_CODE_PIN if the cap exceeds the lock limit.
pub const HW_PINNING_LOCKED: u32 = 1;

/// Chunks are registered with an io_uring. Opening fails with HW_CODE_UNAVAILABLE: only a Rust program can pass the
/// ring.
pub const HW_PINNING_IO_URING: u32 = 2;
/// Chunks are mapped for a device behind an IOMMU. Opening fails with HW_CODE_UNAVAILABLE: only a Rust program can pass
/// the VFIO container, which opens the device.
pub const HW_PINNING_VFIO: u32 = 3;

const _: () = assert!(size_of::<HwPoolConfig>() == 88);
/// Bytes of the struct in headers without `static_bytes` and what follows it.
const OLDEST_BYTES: usize = offset_of!(HwPoolConfig, static_bytes);

/// Maximum bytes of the name of a preset, its terminator included.
const PRESET_MAX: usize = 48;

impl HwPoolConfig {
    fn from_pool_config(config: &PoolConfig) -> Self {
        Self {
            struct_bytes: size_of::<Self>(),
            chunk_bytes: config.chunk as u64,
            cap_bytes: config.cap as u64,
            cap_max_bytes: config.cap_max as u64,
            idle_ns: config.idle.0,
            min_idle_bytes: config.min_idle as u64,
            preset: std::ptr::null(),
            chunk_adapts: u32::from(config.chunk_rule != ChunkRule::Fixed),
            cache_per_mille: config.cache_per_mille,
            ticker: 1,
            pinning: HW_PINNING_NONE,
            static_bytes: config.static_bytes as u64,
            node: HW_NODE_ANY,
            reserved: 0,
        }
    }

    /// Checks the length of the struct in the caller's header.
    fn check_length(got: usize) -> Result<(), CallError> {
        let want = size_of::<Self>();
        if got == want || got == OLDEST_BYTES { Ok(()) } else { Err(CallError::StructLength { got, want }) }
    }

    /// Reads the configuration that C passed; null selects the values that [`hw_pool_config_init`] writes.
    ///
    /// # Safety
    /// A pointer that is neither null nor misaligned points to a `usize`; if its value is the length of a [`HwPoolConfig`]
    /// of this or an earlier header, the pointer points to one, whose preset is null or points to a string.
    pub(crate) unsafe fn read(config: *const Self) -> Result<(PoolConfig, TickerMode), CallError> {
        if config.is_null() {
            return Ok((PoolConfig::default(), TickerMode::Yes));
        }
        ffi::check_pointer(config, "config")?;
        // SAFETY: the caller promises a `usize` at this address, which is not null and aligned.
        let got = unsafe { config.cast::<usize>().read() };
        Self::check_length(got)?;
        let mut passed = Self::from_pool_config(&PoolConfig::default());
        // SAFETY: both are aligned and valid for `got` bytes: the caller promises those of `config`, and `passed` has at
        // least as many; every byte pattern is a value of the fields, and a local variable does not overlap C's memory.
        unsafe { config.cast::<u8>().copy_to_nonoverlapping((&raw mut passed).cast::<u8>(), got) };
        // SAFETY: the caller's promise about the preset.
        let tiers = unsafe { parse_preset(passed.preset) }?;
        passed.validate(tiers)
    }

    fn validate(&self, tiers: Option<TierSetting>) -> Result<(PoolConfig, TickerMode), CallError> {
        let either = |field, value: u32| match value {
            0 | 1 => Ok(value == 1),
            _ => Err(CallError::InvalidValue { field, value: value.into(), choice: "0 or 1" }),
        };
        let chunk_rule =
            if either("chunk_adapts", self.chunk_adapts)? { ChunkRule::DEFAULT } else { ChunkRule::Fixed };
        let ticking = if either("ticker", self.ticker)? { TickerMode::Yes } else { TickerMode::No };
        let pinner = pinner(self.pinning)?;
        if self.reserved != 0 {
            let value = self.reserved.into();
            return Err(CallError::InvalidValue { field: "reserved", value, choice: "0" });
        }
        let placement = match self.node {
            HW_NODE_ANY => default_placement(),
            node => placement_on(NodeId(node)).map_err(CallError::Node)?,
        };
        let config = PoolConfig {
            static_bytes: bytes("static_bytes", self.static_bytes)?,
            placement,
            chunk: bytes("chunk_bytes", self.chunk_bytes)?,
            chunk_rule,
            cap: bytes("cap_bytes", self.cap_bytes)?,
            cap_max: bytes("cap_max_bytes", self.cap_max_bytes)?,
            idle: Nanos(self.idle_ns),
            min_idle: bytes("min_idle_bytes", self.min_idle_bytes)?,
            tiers,
            pinner,
            cache_per_mille: self.cache_per_mille,
            ..PoolConfig::default()
        };
        Ok((config, ticking))
    }
}

fn pinner(pinning: u32) -> Result<Arc<dyn MemoryPinner>, CallError> {
    match pinning {
        HW_PINNING_NONE => Ok(Arc::new(NoPinning)),
        HW_PINNING_LOCKED => Ok(Arc::new(MlockPinner)),
        HW_PINNING_IO_URING => Err(CallError::Unavailable("for an io_uring needs the ring")),
        HW_PINNING_VFIO => Err(CallError::Unavailable("for a device needs its VFIO container")),
        value => {
            let choice = "one of the HW_PINNING_ constants";
            Err(CallError::InvalidValue { field: "pinning", value: value.into(), choice })
        }
    }
}

/// The choice of a ticker thread for a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TickerMode {
    Yes,
    No,
}

pub(crate) fn bytes(field: &'static str, value: u64) -> Result<usize, CallError> {
    usize::try_from(value).map_err(|_| CallError::InvalidValue {
        field,
        value,
        choice: "a value that fits an address",
    })
}

/// Returns the tier limits that a preset names; `None` for null.
///
/// # Safety
/// A pointer that is not null points to a terminated string, or to at least `PRESET_MAX` bytes.
pub(crate) unsafe fn parse_preset(preset: *const c_char) -> Result<Option<TierSetting>, CallError> {
    if preset.is_null() {
        return Ok(None);
    }
    let mut name = [0_u8; PRESET_MAX];
    for (index, to) in name.iter_mut().enumerate() {
        // SAFETY: no byte before this one terminated the string, so this one belongs to it.
        let byte = unsafe { preset.cast::<u8>().wrapping_add(index).read() };
        *to = byte;
        if byte == 0 {
            break;
        }
    }
    let name = CStr::from_bytes_until_nul(&name).ok().and_then(|name| name.to_str().ok());
    name.and_then(|name| TierSetting::parse(name).ok()).map(Some).ok_or(CallError::Preset)
}

/// Writes the defaults: chunks of 4 MiB that adapt, a cap of 256 MiB, an idle time of 10 s, a ticker thread.
/// `config_bytes` is sizeof(hw_pool_config).
///
/// # Safety
/// A `config` that is neither null nor misaligned is valid for writes of `config_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pool_config_init(config: *mut HwPoolConfig, config_bytes: usize) -> ResultCode {
    run_call(|| {
        HwPoolConfig::check_length(config_bytes)?;
        ffi::check_pointer(config, "config")?;
        let mut defaults = HwPoolConfig::from_pool_config(&PoolConfig::default());
        defaults.struct_bytes = config_bytes;
        // SAFETY: both are valid for `config_bytes` bytes: the caller promises those of `config`, and `defaults` has at
        // least as many; a local variable does not overlap C's memory.
        unsafe {
            (&raw const defaults).cast::<u8>().copy_to_nonoverlapping(config.cast::<u8>(), config_bytes);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_dma::pool::TierThresholds;

    fn defaults() -> HwPoolConfig {
        HwPoolConfig::from_pool_config(&PoolConfig::default())
    }

    fn read(config: &HwPoolConfig) -> Result<(PoolConfig, TickerMode), CallError> {
        // SAFETY: a whole struct, whose preset is null or a terminated string.
        unsafe { HwPoolConfig::read(config) }
    }

    #[test]
    fn written_defaults_read_back_as_the_defaults() {
        let (config, ticking) = read(&defaults()).unwrap();
        let default = PoolConfig::default();
        assert_eq!((config.chunk, config.cap, config.cap_max), (default.chunk, default.cap, default.cap_max));
        assert_eq!(
            (config.idle, config.min_idle, config.tiers),
            (default.idle, default.min_idle, default.tiers)
        );
        assert_eq!(
            (config.chunk_rule, config.cache_per_mille),
            (default.chunk_rule, default.cache_per_mille)
        );
        assert_eq!(ticking, TickerMode::Yes);
    }

    #[test]
    fn static_tier_and_node_are_settable_and_unknown_to_older_headers() {
        let named = HwPoolConfig { static_bytes: 64 << 10, node: 0, ..defaults() };
        let (config, _) = read(&named).unwrap();
        assert_eq!((config.static_bytes, config.placement.nodes()), (64 << 10, vec![NodeId(0)]));
        let older = HwPoolConfig { struct_bytes: OLDEST_BYTES, cap_bytes: 32 << 20, ..named };
        let (config, _) = read(&older).unwrap();
        assert_eq!((config.static_bytes, config.cap), (0, 32 << 20), "an older struct ends before them");
        let refused = read(&HwPoolConfig { node: 4_000, ..defaults() }).unwrap_err();
        assert_eq!(refused.code(), ResultCode::NoSuchNode, "{refused}");
        let mut filled = HwPoolConfig { static_bytes: 77, ..defaults() };
        // SAFETY: a whole struct, of which the first bytes are written.
        assert_eq!(unsafe { hw_pool_config_init(&raw mut filled, OLDEST_BYTES) }, ResultCode::Ok);
        assert_eq!((filled.struct_bytes, filled.static_bytes), (OLDEST_BYTES, 77));
    }

    #[test]
    fn known_presets_are_accepted_and_unknown_ones_refused() {
        let numbers = TierThresholds { small_max: 512, large_min: 1 << 20 };
        for (name, borders) in [
            (c"paper-4.1", TierThresholds::PAPER_4_1.into()),
            (c"paper-5.2", TierThresholds::PAPER_5_2.into()),
            (c"512:1048576", numbers.into()),
            (c"calibrated", TierSetting::Calibrated),
        ] {
            let config = HwPoolConfig { preset: name.as_ptr(), ..defaults() };
            assert_eq!(read(&config).unwrap().0.tiers, Some(borders));
        }
        for name in [c"", c"paper", c"a name that is longer than any preset", c"\xff"] {
            let config = HwPoolConfig { preset: name.as_ptr(), ..defaults() };
            assert!(matches!(read(&config), Err(CallError::Preset)), "{name:?}");
        }
    }

    #[test]
    fn pinners_that_need_a_rust_object_are_unavailable() {
        for pinning in [HW_PINNING_IO_URING, HW_PINNING_VFIO] {
            let refused = read(&HwPoolConfig { pinning, ..defaults() }).unwrap_err();
            assert!(refused.to_string().contains("HW_PINNING_LOCKED"), "{refused}");
            assert_eq!(refused.code(), ResultCode::Unavailable);
        }
    }

    #[test]
    fn fields_out_of_range_are_refused() {
        let wrong = [
            HwPoolConfig { struct_bytes: 8, ..defaults() },
            HwPoolConfig { chunk_adapts: 2, ..defaults() },
            HwPoolConfig { ticker: u32::MAX, ..defaults() },
            HwPoolConfig { pinning: 4, ..defaults() },
            HwPoolConfig { reserved: 1, ..defaults() },
        ];
        for config in wrong {
            assert!(
                matches!(read(&config), Err(CallError::StructLength { .. } | CallError::InvalidValue { .. })),
                "{config:?}"
            );
        }
    }
}
