//! Encodes the counters as OpenMetrics text for Prometheus.
//!
//! Input: a [`MetricsSnapshot`]. Output: OpenMetrics text. Every name begins with `headwater_` and contains its unit; times
//! are in seconds. The list is in `docs/operating/README.md`.

mod pool;

use super::MetricsSnapshot;
use headwater_dma::mover::policy::DecisionReason;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;

/// Returns the body of `/metrics`.
///
/// # Errors
/// When the encoder fails, which happens only for names that this file does not use.
pub fn encode(snapshot: MetricsSnapshot) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(SnapshotCollector(snapshot)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct SnapshotCollector(MetricsSnapshot);

impl Collector for SnapshotCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.device(&mut encoder)?;
        self.registered_memory(&mut encoder)?;
        self.wear(&mut encoder)?;
        self.front_ends(&mut encoder)?;
        self.stages(&mut encoder)?;
        self.0.pool.as_ref().map_or(Ok(()), |pool| pool::encode(&mut encoder, pool))
    }
}

type MetricLabels = Vec<(&'static str, String)>;
type LabelledValue<'a, N = u64> = (MetricLabels, N);

impl SnapshotCollector {
    fn device(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let device = &self.0.device;
        let keys: Vec<LabelledValue<'_>> = (1..)
            .zip(device.keys)
            .filter(|(number, keys)| *keys > 0 || *number == 1)
            .map(|(number, keys): (u32, u64)| (vec![("namespace", number.to_string())], keys))
            .collect();
        gauges(encoder, "keys", "Keys of each namespace", &keys)?;
        let blocks: Vec<LabelledValue<'_>> = (1..)
            .zip(device.blocks)
            .filter(|(_, blocks)| *blocks > 0)
            .map(|(number, blocks): (u32, u64)| (vec![("namespace", number.to_string())], blocks))
            .collect();
        gauges(encoder, "blocks", "Written blocks of each namespace with blocks", &blocks)?;
        counter(encoder, "completed", "Commands that the device completed", device.completed)?;
        counter(encoder, "expired", "Keys that expired", device.expired)?;
        gauge(encoder, "live_bytes", "Bytes of live records", device.live_bytes)?;
        gauge(
            encoder,
            "capacity_bytes",
            "Bytes of live records that the medium may hold",
            device.capacity_bytes,
        )?;
        gauge(encoder, "index_bytes", "DRAM of the index", device.index_bytes)?;
        counter(
            encoder,
            "received_into_blocks_bytes",
            "Bytes of long values that were received into the blocks that keep them",
            device.received_bytes,
        )?;
        counter(
            encoder,
            "moved_in_large_jobs_bytes",
            "Bytes of values that the mover moved in jobs of at least 16 KiB",
            device.moved_in_large_jobs,
        )?;
        counter(
            encoder,
            "moved_in_small_jobs_bytes",
            "Bytes of values that the mover moved in smaller jobs",
            device.moved_in_small_jobs,
        )?;
        self.mover(encoder)?;
        counter(encoder, "cache_hits", "Page reads answered from device DRAM", device.cache_hits)?;
        counter(encoder, "cache_misses", "Page reads that went to the media", device.cache_misses)?;
        counter(encoder, "damaged_records", "Records whose checksum did not match", device.damaged)?;
        counter(
            encoder,
            "read_errors",
            "Reads of the flash that failed, also those that succeeded when repeated",
            device.read_errors,
        )?;
        self.losses(encoder)?;
        gauge(
            encoder,
            "writes_failed",
            "1 after a write or a flush of the flash failed: the node refuses every write until it is restarted",
            u64::from(device.failed_write.is_some()),
        )?;
        gauge(
            encoder,
            "lack_of_space",
            "1 while the file system beneath the flash file has no space for a write, which is repeated",
            u64::from(device.lack_of_space.is_some()),
        )?;
        gauge(
            encoder,
            "unreadable_pages",
            "Unreadable pages whose loss was accepted at the start",
            device.unreadable_pages,
        )
    }

    /// Encodes what the channels of the mover did.
    fn mover(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let channels = self.0.device.move_channels;
        counter(
            encoder,
            "moved_on_channels_bytes",
            "Bytes of values that threads and work queues of the mover were given",
            channels.channel_bytes,
        )?;
        counter(
            encoder,
            "moves_waited",
            "Jobs of the mover that had not ended when they were started: their commands waited for them",
            self.0.device.moves_waited,
        )?;
        counter(
            encoder,
            "moved_behind_page_faults_bytes",
            "Bytes of values that work queues left at missing pages, and the core moved",
            channels.finished_bytes,
        )?;
        counter(
            encoder,
            "move_steps_merged",
            "Steps that threads and work queues of the mover got as one with the steps before them, which they continue",
            channels.merged_steps,
        )?;
        let undone = [
            ("taken_back", channels.taken_back),
            ("abandoned", channels.abandoned),
            ("late", channels.late),
            ("refused", channels.refused),
            ("unreachable", channels.unreachable),
            ("not_split", channels.not_split),
            ("not_permitted", channels.not_permitted),
        ];
        let rows: Vec<LabelledValue<'_>> =
            undone.into_iter().map(|(reason, jobs)| (vec![("reason", reason.to_owned())], jobs)).collect();
        counters(
            encoder,
            "moves_without_gain",
            "Jobs of channels that the core did, or waited for too long",
            &rows,
        )?;
        let decisions = self.0.device.move_decisions;
        let rows: Vec<LabelledValue<'_>> = DecisionReason::ALL
            .into_iter()
            .filter(|reason| decisions.of(*reason) > 0)
            .map(|reason| (vec![("reason", reason.name().to_owned())], decisions.of(reason)))
            .collect();
        counters(encoder, "move_decisions", "Decisions about who moves the bytes of a job", &rows)
    }

    /// Encodes the memory of frames that is registered with the ring of the flash file.
    fn registered_memory(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let registered = self.0.device.registered_memory;
        gauge(
            encoder,
            "registered_bytes",
            "Bytes of frames that are registered with the ring of the flash file",
            registered.bytes,
        )?;
        counter(
            encoder,
            "registered_transfers",
            "Transfers of the flash file from and to registered frames",
            registered.transfers,
        )?;
        counter(
            encoder,
            "registered_transfers_repeated",
            "Transfers that the kernel refused on registered frames, and that were repeated without",
            registered.repeated,
        )?;
        counter(
            encoder,
            "registrations_refused",
            "Slabs of frames that were refused a registration, for lack of locked memory or by the kernel",
            registered.refused,
        )
    }

    /// Encodes the damage of the medium.
    fn losses(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let device = &self.0.device;
        counter(
            encoder,
            "damaged_pages",
            "Reads of pages that hold other bytes than were written to them, also when read again",
            device.damaged_pages,
        )?;
        gauge(
            encoder,
            "lost_pages",
            "Pages of the log that were durable and that the start found lost",
            device.lost_pages,
        )?;
        gauge(
            encoder,
            "namespaces_in_doubt",
            "Namespaces of which records may be lost: some of their keys are answered with errors",
            device.namespaces_in_doubt,
        )?;
        gauge(
            encoder,
            "damaged_copies",
            "Commit cells, checkpoint pages and superblocks that the start found damaged and of which another copy holds \
             the same",
            device.damaged_copies,
        )
    }

    fn wear(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let device = &self.0.device;
        counter(
            encoder,
            "client_bytes",
            "Bytes of records that clients wrote, headers included",
            device.client_bytes,
        )?;
        counter(encoder, "programmed_bytes", "Bytes of pages programmed", device.programmed_bytes)?;
        counter(encoder, "gc_moved_bytes", "Bytes of records that collection moved", device.moved_bytes)?;
        counter(encoder, "erases", "Blocks erased", device.erases)?;
        gauge(encoder, "free_blocks", "Blocks free", u64::from(device.free_blocks))?;
        gauge(
            encoder,
            "quarantined_blocks",
            "Blocks set aside because a live record in them cannot be read",
            device.quarantined,
        )?;
        gauge(
            encoder,
            "collection_stuck",
            "1 while collection cannot free a block for a write that failed",
            u64::from(device.collection_stuck),
        )?;
        counter(
            encoder,
            "no_room",
            "Commands refused because collection found nothing to free",
            device.no_room,
        )?;
        counter(encoder, "checkpoint_pages", "Pages of checkpoints programmed", device.checkpoint_pages)?;
        counter(encoder, "flushes", "Flushes sent to the media", device.flushes)?;
        ratio(
            encoder,
            "write_amplification",
            "Bytes programmed for each byte that clients wrote, since the start",
            (device.programmed_bytes, device.client_bytes),
        )?;
        ratio(
            encoder,
            "commands_per_flush",
            "Commands completed for each flush, since the start",
            (device.completed, device.flushes),
        )
    }

    fn front_ends(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let front_ends = &self.0.front_ends;
        let commands: Vec<LabelledValue<'_>> = front_ends
            .commands
            .iter()
            .map(|((name, class), count)| {
                (vec![("command", (*name).to_owned()), ("status", class.label().to_owned())], *count)
            })
            .collect();
        counters(encoder, "commands", "Commands by name and status class", &commands)?;
        gauge(encoder, "connections", "Clients connected", front_ends.connections)?;
        counter(encoder, "connections_opened", "Clients that ever connected", front_ends.connections_total)?;
        counter(
            encoder,
            "connections_refused",
            "Clients refused because of the limit",
            front_ends.connections_refused,
        )?;
        counter(
            encoder,
            "accept_pauses",
            "Pauses of a listener because no descriptor was left for a new client",
            front_ends.accept_pauses,
        )?;
        counter(encoder, "received_bytes", "Bytes from clients", front_ends.bytes_in)?;
        counter(encoder, "sent_bytes", "Bytes to clients", front_ends.bytes_out)?;
        let queues: Vec<LabelledValue<'_>> = front_ends
            .in_flight
            .iter()
            .map(|(front_end, depth)| (vec![("face", (*front_end).to_owned())], *depth))
            .collect();
        gauges(encoder, "in_flight", "Commands in flight in the device, by front end", &queues)
    }

    fn stages(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let stage = |name: &&'static str| vec![("stage", (*name).to_owned())];
        let stages = &self.0.stages;
        let times: Vec<LabelledValue<'_, f64>> =
            stages.iter().map(|(name, time)| (stage(name), seconds(time.nanos))).collect();
        let samples: Vec<LabelledValue<'_>> =
            stages.iter().map(|(name, time)| (stage(name), time.samples)).collect();
        counters(encoder, "stage_seconds", "Seconds of sampled requests in each stage", &times)?;
        counters(encoder, "stage_samples", "Requests sampled in each stage", &samples)
    }
}

fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    single(encoder, name, help, &ConstCounter::new(value))
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    single(encoder, name, help, &ConstGauge::new(value))
}

fn ratio(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    (numerator, denominator): (u64, u64),
) -> fmt::Result {
    if denominator == 0 {
        return Ok(());
    }
    #[expect(clippy::cast_precision_loss, reason = "a ratio of two counters needs no more than 53 bits")]
    let gauge = ConstGauge::new(numerator as f64 / denominator as f64);
    single(encoder, name, help, &gauge)
}

/// Encodes a metric without labels.
fn single(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> fmt::Result {
    metric.encode(encoder.encode_descriptor(&prefixed(name), help, NO_UNIT, metric.metric_type())?)
}

/// Converts nanoseconds to seconds, the base unit of Prometheus.
#[expect(
    clippy::cast_precision_loss,
    reason = "53 bits of nanoseconds are 104 days, and a sum needs no more digits"
)]
fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

fn counters<N: EncodeCounterValue + Copy>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    rows: &[LabelledValue<'_, N>],
) -> fmt::Result {
    family(encoder, name, help, rows.iter().map(|(labels, value)| (labels, ConstCounter::new(*value))))
}

fn gauges<N: EncodeGaugeValue + Copy>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    rows: &[LabelledValue<'_, N>],
) -> fmt::Result {
    family(encoder, name, help, rows.iter().map(|(labels, value)| (labels, ConstGauge::new(*value))))
}

/// Encodes metrics that differ in their labels; nothing if there is none.
fn family<'a, M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    rows: impl Iterator<Item = (&'a MetricLabels, M)>,
) -> fmt::Result {
    let mut rows = rows.peekable();
    let Some((_, first)) = rows.peek() else { return Ok(()) };
    let name = prefixed(name);
    let mut family = encoder.encode_descriptor(&name, help, NO_UNIT, first.metric_type())?;
    for (labels, metric) in rows {
        metric.encode(family.encode_family(labels)?)?;
    }
    Ok(())
}

const NO_UNIT: Option<&Unit> = None;

fn prefixed(name: &str) -> String {
    format!("headwater_{name}")
}

#[cfg(test)]
mod tests {
    use super::super::StageTime;
    use super::*;
    use headwater_frontend::counters::StatusClass;
    use headwater_host::uring::RegisteredCounters;

    #[test]
    fn every_counter_is_in_the_text() {
        let mut snapshot = MetricsSnapshot::default();
        snapshot.device.keys[2] = 7;
        snapshot.device.blocks[1] = 4;
        snapshot.device.client_bytes = 100;
        snapshot.device.programmed_bytes = 150;
        snapshot.front_ends.commands.insert(("get", StatusClass::Failed), 3);
        snapshot.device.registered_memory =
            RegisteredCounters { bytes: 1 << 20, transfers: 9, refused: 2, repeated: 6 };
        snapshot.front_ends.in_flight.insert("resp", 5);
        snapshot.stages.insert("executed", StageTime { samples: 2, nanos: 1_500_000_000 });
        let text = encode(snapshot).unwrap();
        for line in [
            "headwater_keys{namespace=\"3\"} 7",
            "headwater_blocks{namespace=\"2\"} 4",
            "headwater_client_bytes_total 100",
            "headwater_write_amplification 1.5",
            "headwater_registered_bytes 1048576",
            "headwater_registered_transfers_total 9",
            "headwater_registered_transfers_repeated_total 6",
            "headwater_registrations_refused_total 2",
            "headwater_commands_total{command=\"get\",status=\"failed\"} 3",
            "headwater_in_flight{face=\"resp\"} 5",
            "headwater_stage_seconds_total{stage=\"executed\"} 1.5",
            "# EOF",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn ratio_with_denominator_zero_is_omitted() {
        assert!(!encode(MetricsSnapshot::default()).unwrap().contains("write_amplification"));
    }
}
