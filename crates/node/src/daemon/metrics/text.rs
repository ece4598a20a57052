//! The numbers as Prometheus reads them.
//!
//! In: a [`Snapshot`]. Out: OpenMetrics text. Every name begins with `headwater_`; units stand in the name; the list is in
//! `docs/operating/README.md`.

mod pool;

use super::Snapshot;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;

/// What `/metrics` answers.
///
/// # Errors
/// When the encoder fails, which it does only for names that this file does not use.
pub fn encode(snapshot: Snapshot) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Numbers(snapshot)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Numbers(Snapshot);

impl Collector for Numbers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.device(&mut encoder)?;
        self.wear(&mut encoder)?;
        self.faces(&mut encoder)?;
        self.stages(&mut encoder)?;
        self.0.pool.as_ref().map_or(Ok(()), |pool| pool::encode(&mut encoder, pool))
    }
}

type Labelled<'a> = (Vec<(&'static str, String)>, u64);

impl Numbers {
    fn device(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let device = &self.0.device;
        let keys: Vec<Labelled<'_>> = (1..)
            .zip(device.keys)
            .filter(|(number, keys)| *keys > 0 || *number == 1)
            .map(|(number, keys): (u32, u64)| (vec![("namespace", number.to_string())], keys))
            .collect();
        gauges(encoder, "keys", "Keys of each namespace", &keys)?;
        counter(encoder, "completed", "Commands the device completed", device.completed)?;
        counter(encoder, "expired", "Keys that expired", device.expired)?;
        gauge(encoder, "live_bytes", "Bytes of live records", device.live_bytes)?;
        gauge(
            encoder,
            "capacity_bytes",
            "Bytes of live records that the medium may hold",
            device.capacity_bytes,
        )?;
        gauge(encoder, "index_bytes", "DRAM of the index", device.index_bytes)?;
        counter(encoder, "cache_hits", "Page reads answered from device DRAM", device.cache_hits)?;
        counter(encoder, "cache_misses", "Page reads that went to the media", device.cache_misses)?;
        counter(encoder, "damaged_records", "Records whose checksum did not match", device.damaged)
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

    fn faces(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let faces = &self.0.faces;
        let commands: Vec<Labelled<'_>> = faces
            .commands
            .iter()
            .map(|((name, class), count)| {
                (vec![("command", (*name).to_owned()), ("status", class.label().to_owned())], *count)
            })
            .collect();
        counters(encoder, "commands", "Commands by name and status class", &commands)?;
        gauge(encoder, "connections", "Clients connected", faces.connections)?;
        counter(encoder, "connections_opened", "Clients that ever connected", faces.connections_total)?;
        counter(
            encoder,
            "connections_refused",
            "Clients refused because of the limit",
            faces.connections_refused,
        )?;
        counter(encoder, "received_bytes", "Bytes from clients", faces.bytes_in)?;
        counter(encoder, "sent_bytes", "Bytes to clients", faces.bytes_out)?;
        let queues: Vec<Labelled<'_>> = faces
            .in_flight
            .iter()
            .map(|(face, depth)| (vec![("face", (*face).to_owned())], *depth))
            .collect();
        gauges(encoder, "queue_depth", "Commands in the device, by face", &queues)
    }

    fn stages(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let stage = |name: &&'static str| vec![("stage", (*name).to_owned())];
        let stages = &self.0.stages;
        let nanos: Vec<Labelled<'_>> = stages.iter().map(|(name, time)| (stage(name), time.nanos)).collect();
        let samples: Vec<Labelled<'_>> =
            stages.iter().map(|(name, time)| (stage(name), time.samples)).collect();
        counters(encoder, "stage_nanoseconds", "Nanoseconds of sampled requests in each stage", &nanos)?;
        counters(encoder, "stage_samples", "Requests sampled in each stage", &samples)
    }
}

fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let counter = ConstCounter::new(value);
    counter.encode(encoder.encode_descriptor(&prefixed(name), help, NO_UNIT, counter.metric_type())?)
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let gauge = ConstGauge::new(value);
    gauge.encode(encoder.encode_descriptor(&prefixed(name), help, NO_UNIT, gauge.metric_type())?)
}

fn ratio(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    (over, under): (u64, u64),
) -> fmt::Result {
    if under == 0 {
        return Ok(());
    }
    #[expect(clippy::cast_precision_loss, reason = "a ratio of two counters needs no more than 53 bits")]
    let gauge = ConstGauge::new(over as f64 / under as f64);
    gauge.encode(encoder.encode_descriptor(&prefixed(name), help, NO_UNIT, gauge.metric_type())?)
}

fn counters(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    rows: &[Labelled<'_>],
) -> fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    let name = prefixed(name);
    let mut family = encoder.encode_descriptor(&name, help, NO_UNIT, MetricType::Counter)?;
    for (labels, value) in rows {
        ConstCounter::new(*value).encode(family.encode_family(labels)?)?;
    }
    Ok(())
}

fn gauges(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, rows: &[Labelled<'_>]) -> fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    let name = prefixed(name);
    let mut family = encoder.encode_descriptor(&name, help, NO_UNIT, MetricType::Gauge)?;
    for (labels, value) in rows {
        ConstGauge::new(*value).encode(family.encode_family(labels)?)?;
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
    use headwater_frontend::numbers::StatusClass;

    #[test]
    fn every_number_reaches_the_text() {
        let mut snapshot = Snapshot::default();
        snapshot.device.keys[2] = 7;
        snapshot.device.client_bytes = 100;
        snapshot.device.programmed_bytes = 150;
        snapshot.faces.commands.insert(("get", StatusClass::Failed), 3);
        snapshot.faces.in_flight.insert("resp", 5);
        snapshot.stages.insert("utl", StageTime { samples: 2, nanos: 900 });
        let text = encode(snapshot).unwrap();
        for line in [
            "headwater_keys{namespace=\"3\"} 7",
            "headwater_client_bytes_total 100",
            "headwater_write_amplification 1.5",
            "headwater_commands_total{command=\"get\",status=\"failed\"} 3",
            "headwater_queue_depth{face=\"resp\"} 5",
            "headwater_stage_nanoseconds_total{stage=\"utl\"} 900",
            "# EOF",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn a_ratio_of_nothing_is_left_out() {
        assert!(!encode(Snapshot::default()).unwrap().contains("write_amplification"));
    }
}
