//! Encodes the counters of the buffer pool for Prometheus.
//!
//! Input: [`PoolStatistics`] of one moment. Output: families whose names begin with `headwater_pool_`.

use super::{LabelledValue, counter, counters, gauge, gauges, ratio, seconds};
use headwater_dma::pool::{NodeStatistics, PoolStatistics};
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;

pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, pool: &PoolStatistics) -> fmt::Result {
    bytes(encoder, pool)?;
    requests(encoder, pool)?;
    nodes(encoder, &pool.nodes)?;
    ratio(
        encoder,
        "pool_fragmentation",
        "1 - longest free run / free bytes, of the worst node",
        (pool.fragmentation_per_mille(), 1_000),
    )
}

fn bytes(encoder: &mut DescriptorEncoder<'_>, pool: &PoolStatistics) -> fmt::Result {
    gauge(encoder, "pool_cap_bytes", "Bytes that may be pinned", pool.cap_bytes)?;
    gauge(encoder, "pool_chunk_bytes", "Bytes of the next chunk", pool.chunk_bytes)?;
    let tiers: Vec<LabelledValue<'_>> = ["static", "pool", "dynamic"]
        .into_iter()
        .zip(pool.tier_bytes)
        .map(|(tier, bytes)| (vec![("tier", tier.to_owned())], bytes))
        .collect();
    gauges(encoder, "pool_pinned_bytes", "Bytes pinned, by tier", &tiers)?;
    gauge(encoder, "pool_in_use_bytes", "Bytes that callers and devices hold", pool.in_use_bytes)?;
    gauge(encoder, "pool_cached_bytes", "Bytes in per-thread caches", pool.cached_bytes)?;
    gauge(
        encoder,
        "pool_quarantined_bytes",
        "Bytes lent to a device and never returned",
        pool.quarantined_bytes,
    )?;
    gauge(encoder, "pool_stuck_bytes", "Bytes that could not be unpinned", pool.stuck_bytes)
}

fn requests(encoder: &mut DescriptorEncoder<'_>, pool: &PoolStatistics) -> fmt::Result {
    let steps = [
        ("cache", pool.steps.cache),
        ("contiguous", pool.steps.contiguous),
        ("scattered", pool.steps.scattered),
        ("grown", pool.steps.grown),
        ("waited", pool.steps.waited),
    ];
    let steps: Vec<LabelledValue<'_>> =
        steps.into_iter().map(|(step, count)| (vec![("step", step.to_owned())], count)).collect();
    counters(encoder, "pool_requests", "Requests by the step that served them", &steps)?;
    counter(encoder, "pool_refused", "Requests refused", pool.refused)?;
    gauge(encoder, "pool_waiting", "Requests in the wait queue", pool.waiting)?;
    counter(encoder, "pool_gave_up", "Requests that ended their wait without memory", pool.cancelled)?;
    counter(encoder, "pool_pinned_chunks", "Chunks pinned since the start", pool.grown_chunks)?;
    counter(encoder, "pool_unpinned_chunks", "Chunks unpinned since the start", pool.retired_chunks)?;
    if pool.pinning.count() == 0 {
        return Ok(());
    }
    let time = |per_mille| seconds(pool.pinning.quantile_bound(per_mille).0);
    let quantiles: Vec<LabelledValue<'_, f64>> = [("0.5", 500), ("0.99", 990), ("1", 1_000)]
        .into_iter()
        .map(|(name, per_mille)| (vec![("quantile", name.to_owned())], time(per_mille)))
        .collect();
    gauges(encoder, "pool_pin_seconds", "Upper bound of the time to pin a chunk", &quantiles)
}

fn nodes(encoder: &mut DescriptorEncoder<'_>, nodes: &[NodeStatistics]) -> fmt::Result {
    let states = |node: &NodeStatistics| {
        [
            ("pinned", node.pinned_bytes),
            ("empty", node.empty_bytes),
            ("free", node.free_bytes),
            ("largest_free", node.largest_free_bytes),
        ]
    };
    let rows: Vec<LabelledValue<'_>> = nodes
        .iter()
        .flat_map(|node| {
            let label = node.node.to_string();
            states(node)
                .map(|(state, bytes)| (vec![("node", label.clone()), ("state", state.to_owned())], bytes))
        })
        .collect();
    gauges(encoder, "pool_node_bytes", "Bytes of chunks, by NUMA node and state", &rows)?;
    let pages = ["1GiB", "2MiB", "transparent", "4KiB"];
    let rows: Vec<LabelledValue<'_>> = nodes
        .iter()
        .flat_map(|node| {
            let label = node.node.to_string();
            pages.into_iter().zip(node.backing_bytes).map(move |(pages, bytes)| {
                (vec![("node", label.clone()), ("pages", pages.to_owned())], bytes)
            })
        })
        .collect();
    gauges(encoder, "pool_backing_bytes", "Bytes of chunks, by NUMA node and kind of page", &rows)
}

#[cfg(test)]
mod tests {
    use crate::daemon::metrics::MetricsBoard;
    use crate::daemon::metrics::text::encode;
    use headwater_dma::pool::{Pool, PoolConfig};

    #[test]
    fn counters_of_the_pool_are_current_in_every_snapshot() {
        let board = MetricsBoard::default();
        assert!(!encode(board.snapshot()).unwrap().contains("headwater_pool_"));
        let pool = Pool::open(PoolConfig { cap: 8 << 20, ..PoolConfig::default() }).unwrap();
        board.set_pool(pool.clone());
        let _buffer = pool.buffer(65_536).unwrap();
        let _large = pool.pin_for_request(1 << 20).unwrap();
        let text = encode(board.snapshot()).unwrap();
        for line in [
            "headwater_pool_cap_bytes 8388608",
            "headwater_pool_pinned_bytes{tier=\"static\"} 0",
            "headwater_pool_pinned_bytes{tier=\"dynamic\"} 1048576",
            "headwater_pool_in_use_bytes 1114112",
            "headwater_pool_requests_total{step=\"grown\"} 2",
            "headwater_pool_waiting 0",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} is missing in\n{text}");
        }
        assert!(text.contains("headwater_pool_pin_seconds{quantile=\"0.99\"}"), "{text}");
    }
}
