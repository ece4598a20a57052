//! The device as the NVM subsystem of its controllers.
//!
//! Input: queries of a controller. Output: properties of the device and its namespaces, computed at each query.

use super::steps::{format_of, namespace_id};
use crate::command::NamespaceId;
use crate::config::Durability;
use crate::engine::SsdDevice;
use crate::engine::administration::namespace_uuid;
use crate::limits::{COPY_RANGES_MAX, NAMESPACES, TRANSFER_BYTES_MAX, copy_blocks_max};
use crate::media::Media;
use crate::namespace::MissingKey;
use crate::namespace::{BlockFormat, NamespaceKind};
use headwater_host::width::narrow;
use headwater_nvme::controller::NvmSubsystem;
use headwater_nvme::controller::admin::{
    CommandLimits, NamespaceProperties, SanitizeStatus, SubsystemCapacity, SubsystemHealth, SubsystemIdentity,
};
use headwater_nvme::spec::log_page::MediaLog;
use zerocopy::FromZeros;
use zerocopy::little_endian::{U32, U64};

const MEDIA_LOG_VERSION: u32 = 1;
const SECONDS_PER_HOUR: u64 = 3_600;
/// Percentage of available spare below which the warning is set.
const SPARE_WARNING_PERCENT: u8 = 10;

impl<M: Media> NvmSubsystem for SsdDevice<M> {
    fn identity(&self) -> &SubsystemIdentity {
        &self.administration().identity
    }

    fn namespaces_max(&self) -> u32 {
        narrow(NAMESPACES)
    }

    fn namespace(&self, nsid: u32) -> Option<NamespaceProperties> {
        let id = namespace_id(nsid)?;
        let namespace = SsdDevice::namespace(self, id)?;
        let size = match namespace.kind {
            // Without a quota a key space may use the whole medium. The space that collection needs is not subtracted:
            // it changes with the stored data, and a namespace size must not.
            NamespaceKind::Kv if namespace.size == 0 => self.ftl().geometry().data_bytes(),
            _ => namespace.size,
        };
        let uuid = match namespace.uuid {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] => {
                namespace_uuid(self.administration().identity.uuid, nsid, 0)
            }
            uuid => uuid,
        };
        Some(NamespaceProperties {
            format: format_of(namespace.kind),
            size,
            utilization: self.namespace_usage(id).min(size),
            uuid,
            missing_key_is_error: namespace.missing_key == MissingKey::Reported,
        })
    }

    fn is_attached(&self, nsid: u32, controller: u16) -> bool {
        namespace_id(nsid).is_some_and(|id| SsdDevice::is_attached(self, id, controller))
    }

    fn controllers(&self) -> Vec<u16> {
        self.administration().controllers.iter().copied().collect()
    }

    fn generation(&self) -> u64 {
        self.namespace_generation().wrapping_add(self.administration().changes())
    }

    fn limits(&self) -> CommandLimits {
        // One limit in blocks applies to all formats, so it is the one of the largest blocks.
        let copy_blocks_max = copy_blocks_max(BlockFormat::B4096);
        CommandLimits {
            // One command moves a whole value.
            value_bytes_max: TRANSFER_BYTES_MAX,
            copy_range_blocks_max: narrow(copy_blocks_max),
            copy_blocks_max,
            copy_ranges_max: COPY_RANGES_MAX,
        }
    }

    fn capacity(&self) -> SubsystemCapacity {
        SubsystemCapacity {
            total_bytes: self.ftl().geometry().data_bytes(),
            unallocated_bytes: self.unallocated_bytes(),
        }
    }

    fn health(&self) -> SubsystemHealth {
        let blocks = u64::from(self.ftl().geometry().blocks).max(1);
        let good = blocks.saturating_sub(self.ftl().stats().quarantined);
        let available_spare = u8::try_from(good * 100 / blocks).unwrap_or(100);
        let total = self.ftl().health(self.now());
        SubsystemHealth {
            spare_is_low: available_spare < SPARE_WARNING_PERCENT,
            is_read_only: self.failure().is_some(),
            available_spare,
            host_bytes_read: total.bytes_read,
            host_bytes_written: total.bytes_written,
            host_reads: total.reads,
            host_writes: total.writes,
            media_errors: total.media_errors,
            power_cycles: total.power_cycles,
            unsafe_shutdowns: total.unsafe_shutdowns,
            power_on_hours: total.power_on_seconds / SECONDS_PER_HOUR,
        }
    }

    fn has_write_cache(&self) -> bool {
        let numbers = (1..).take(NAMESPACES).map(NamespaceId);
        numbers
            .into_iter()
            .any(|id| SsdDevice::namespace(self, id).is_some() && self.durability(id) != Durability::Always)
    }

    fn sanitize(&self) -> SanitizeStatus {
        let written = self.ftl().client_bytes() != self.administration().client_bytes_at_sanitize;
        SanitizeStatus { written_since: written, ..self.administration().sanitize }
    }

    fn media(&self) -> MediaLog {
        let stats = self.stats();
        // The field has 32 bits: a larger write amplification is reported as its largest value.
        let thousandths = stats.programmed_bytes.saturating_mul(1_000).checked_div(stats.client_bytes);
        let mut page = MediaLog::new_zeroed();
        page.version = U32::new(MEDIA_LOG_VERSION);
        page.write_amplification_thousandths =
            U32::new(u32::try_from(thousandths.unwrap_or(0)).unwrap_or(u32::MAX));
        page.client_bytes_written = U64::new(stats.client_bytes);
        page.media_bytes_written = U64::new(stats.programmed_bytes);
        page.moved_bytes = U64::new(stats.moved_bytes);
        page.erases = U64::new(stats.erases);
        page.flushes = U64::new(stats.flushes);
        page.live_bytes = U64::new(stats.live_bytes);
        page.capacity_bytes = U64::new(stats.capacity_bytes);
        page
    }

    fn discovery_log(&self) -> Vec<u8> {
        self.administration().discovery_log.clone()
    }
}
