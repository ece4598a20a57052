//! Figures 5, 6 and 7 in virtual time.
//!
//! Input: requests, the costs of pinning and copying on this machine, and a device with a fixed time and a time for
//! each byte.
//! Output: mean response times by method, length and run time.
//! Invariant: memory comes from the pool by the length of a request, as for every buffer of a device; only its pinner
//! and the device are models, so that the same costs always give the same figures.

use super::protocol::{
    CLASSES, TierLedger, TierPreset, UdmaClass, UdmaDirection, UdmaRequest, claimed_tier, requests,
};
use super::{failed, improvement, improvement_claim, preset_claim};
use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, RunContext};
use crate::report::ReportRow;
use headwater_dma::pool::calibration::{PrepareMethod, TierChoice};
use headwater_dma::pool::{
    ChunkRule, PinTier, Pool, PoolClock, PoolConfig, SimulatedCosts, SimulatedPinner, TierSetting,
    TierThresholds,
};
use headwater_host::calibration::memory::MemoryCosts;
use headwater_host::clock::Nanos;
use headwater_io::PoolDefaults;
use std::sync::Arc;

/// The paper's device: 2.5 and 1.2 GB/s are from its section 1; 10 us is the usual latency of the class, assumed.
const DEVICE: DeviceLatency = DeviceLatency {
    access: Nanos::from_micros(10),
    read_megabytes_a_second: 2_500,
    write_megabytes_a_second: 1_200,
};
const DEVICE_BYTES: u64 = 280 << 30;
/// Cost of a buffer that does not come from the thread's cache: the bound that `p3.pool.shared` promises.
const POOL_PAIR: Nanos = Nanos(60);
/// The paper's cost of pinning, for each call, at any length up to its largest page (section 3.2).
const PAPER_PIN: Nanos = Nanos::from_micros(800);
const PAGE_BYTES: u64 = 4_096;
/// The logical block of the paper's device.
const SECTOR_BYTES: usize = 512;
/// Thousandths of a run at which figures 6 and 7 sample.
const RUN_TIME_MARKS: [usize; 6] = [2, 10, 50, 100, 500, 1_000];

struct DeviceLatency {
    access: Nanos,
    read_megabytes_a_second: u64,
    write_megabytes_a_second: u64,
}

impl DeviceLatency {
    fn of(&self, request: &UdmaRequest) -> Nanos {
        let rate = match request.direction {
            UdmaDirection::Read => self.read_megabytes_a_second,
            UdmaDirection::Write => self.write_megabytes_a_second,
        };
        Nanos(self.access.0 + request.bytes as u64 * 1_000 / rate)
    }
}

/// The costs of a host.
#[derive(Clone, Copy)]
struct HostCosts {
    name: &'static str,
    pin: SimulatedCosts,
    /// Time to copy 4 KiB.
    copy: Nanos,
}

/// Returns this host with its measured costs, unless pinning was refused, and the paper's host.
fn hosts(costs: &MemoryCosts) -> Vec<HostCosts> {
    let at = |bytes: u64| costs.rows.iter().find(|row| row.bytes == bytes);
    let copy = Nanos(at(PAGE_BYTES).and_then(|row| row.copy_cold_ns).unwrap_or(1_000));
    let pinned = |bytes| at(bytes).and_then(|row| row.map_and_lock_ns);
    let mut hosts = Vec::new();
    if let (Some(page), Some(mebibyte)) = (pinned(PAGE_BYTES), pinned(1 << 20)) {
        // A straight line through both. The measurement includes unpinning, so the model charges it with the pin.
        let pin_page = mebibyte.saturating_sub(page) / 255;
        let pin = Nanos(page.saturating_sub(pin_page));
        let pin = SimulatedCosts { pin, pin_page: Nanos(pin_page), ..SimulatedCosts::default() };
        hosts.push(HostCosts { name: "here", pin, copy });
    }
    let pin = SimulatedCosts { pin: PAPER_PIN, ..SimulatedCosts::default() };
    hosts.push(HostCosts { name: "the paper's pinning", pin, copy });
    hosts
}

pub(super) fn run(
    context: &RunContext,
    costs: &MemoryCosts,
    findings: &mut ExperimentFindings,
) -> Result<(), LabError> {
    let mut figure_6 = Vec::new();
    let mut figure_7 = Vec::new();
    let mut growth: Option<f64> = None;
    let limits = calibrated_limits(costs);
    for host in hosts(costs) {
        for class in &CLASSES {
            for &bound in class.bounds {
                let list =
                    requests(class, bound, class.requests, (DEVICE_BYTES, SECTOR_BYTES), context.seed());
                let each = each_request(&host, &list)?;
                let mut means = Vec::new();
                for preset in TierPreset::ALL {
                    let tiers = with_tiers(&host, &config_of(preset, limits), &list)?;
                    let grown = by_run_time(&each, &tiers);
                    let rows = figure_rows(&host, preset, class, bound, &grown);
                    figure_6.push(rows.0);
                    figure_7.extend(rows.1);
                    means.push(mean(&tiers));
                    if preset == TierPreset::Ours {
                        let step = grown.last().copied().unwrap_or(f64::NAN)
                            - grown.first().copied().unwrap_or(f64::NAN);
                        growth = Some(growth.map_or(step, |min| min.min(step)));
                    }
                    if host.name == "here" && Some(&bound) == class.bounds.last() {
                        findings.claims.extend(claim(class, preset, mean(&each), mean(&tiers)));
                    }
                }
                findings.rows.push(figure_5_row(&host, class, bound, mean(&each), &means));
            }
        }
    }
    findings.rows.extend(figure_6);
    findings.rows.extend(figure_7);
    findings.claims.push(LabClaim::found(
        "p3.udma.model.grows",
        ClaimGoal::AtLeast(0.0),
        (
            growth.unwrap_or(f64::NAN),
            "% points that the improvement gains from the first look to the last, least of all",
        ),
        EvidenceLabel::Model,
        "the paper's figures 6 and 7 say that it grows with the run time",
    ));
    Ok(())
}

/// Returns the limits that this machine's costs give to a device on a file.
fn calibrated_limits(costs: &MemoryCosts) -> TierThresholds {
    let chunk = PoolDefaults::PINNED.chunk_bytes;
    TierChoice::calibrated(costs, chunk, PrepareMethod::default_for(costs)).thresholds
}

/// Returns the configuration of a pool with a preset. `calibrated` are the measured limits.
fn config_of(preset: TierPreset, calibrated: TierThresholds) -> PoolConfig {
    let settings = preset.settings();
    let usual = PoolDefaults::PINNED;
    let tiers = match settings.tiers {
        Some(TierSetting::Limits(limits)) => limits,
        Some(TierSetting::Calibrated) | None => calibrated,
    };
    PoolConfig {
        tiers: Some(tiers.into()),
        chunk: settings.chunk_bytes.unwrap_or(usual.chunk_bytes),
        chunk_rule: if settings.chunk_bytes.is_some() { ChunkRule::Fixed } else { usual.chunk_rule },
        static_bytes: settings.static_bytes.unwrap_or(usual.static_bytes),
        ..PoolConfig::default()
    }
}

/// Returns response times in nanoseconds of virtual time, with memory pinned for each request.
fn each_request(host: &HostCosts, list: &[UdmaRequest]) -> Result<Vec<u64>, LabError> {
    let device = Arc::new(SimulatedPinner::new(host.pin));
    let config = PoolConfig { pinner: device.clone(), clock: device.clone(), ..PoolConfig::default() };
    let pool = Pool::open(config).map_err(failed)?;
    let mut ledger = TierLedger::default();
    let one = |request: &UdmaRequest| {
        let start = device.now();
        let memory = pool.pin_for_request(request.bytes).map_err(failed)?;
        ledger.count(PinTier::Dynamic);
        device.advance(DEVICE.of(request));
        drop(memory);
        Ok(device.now().since(start).0)
    };
    let spans = list.iter().map(one).collect::<Result<_, LabError>>()?;
    ledger.check(&pool)?;
    Ok(spans)
}

/// Returns response times in nanoseconds of virtual time, with memory of the tier of each length.
fn with_tiers(host: &HostCosts, config: &PoolConfig, list: &[UdmaRequest]) -> Result<Vec<u64>, LabError> {
    let device = Arc::new(SimulatedPinner::new(host.pin));
    let config = PoolConfig { pinner: device.clone(), clock: device.clone(), ..config.clone() };
    let pool = Pool::open(config).map_err(failed)?;
    let limits = pool.tier_choice().thresholds;
    let mut ledger = TierLedger::default();
    let one = |request: &UdmaRequest| {
        let start = device.now();
        let memory = pool.buffer(request.bytes).map_err(failed)?;
        let tier = claimed_tier(limits, request.bytes);
        ledger.count(tier);
        device.advance(match tier {
            PinTier::Static => Nanos(host.copy.0 * request.bytes as u64 / PAGE_BYTES),
            PinTier::Pool | PinTier::Dynamic => POOL_PAIR,
        });
        device.advance(DEVICE.of(request));
        drop(memory);
        Ok(device.now().since(start).0)
    };
    let spans = list.iter().map(one).collect::<Result<_, LabError>>()?;
    ledger.check(&pool)?;
    Ok(spans)
}

/// Evaluates the claim of a class: with our limits, and with those in which the paper measures.
fn claim(class: &UdmaClass, preset: TierPreset, each: f64, tiers: f64) -> Option<LabClaim> {
    let name = preset_claim("model", class, preset)?;
    let baseline = format!("mmap and mlock for each request: {:.1} us", each / 1e3);
    Some(improvement_claim(name, improvement(each, tiers), EvidenceLabel::Model, baseline))
}

#[expect(clippy::cast_precision_loss, reason = "hours of virtual time are far below 2^52 ns")]
fn mean(spans: &[u64]) -> f64 {
    spans.iter().sum::<u64>() as f64 / spans.len() as f64
}

/// Returns the improvement in per cent over the first part of a run, for each of [`RUN_TIME_MARKS`].
fn by_run_time(each: &[u64], tiers: &[u64]) -> Vec<f64> {
    let until = |mark: usize| (each.len() * mark / 1_000).max(1);
    let at = |mark| improvement(mean(&each[..until(mark)]), mean(&tiers[..until(mark)]));
    RUN_TIME_MARKS.map(at).to_vec()
}

/// Returns the row of figure 5; `means` are those of [`TierPreset::ALL`].
fn figure_5_row(host: &HostCosts, class: &UdmaClass, bound: usize, each: f64, means: &[f64]) -> ReportRow {
    const COLUMNS: [(&str, &str); TierPreset::ALL.len()] = [
        ("paper_5_2_us", "paper_5_2_improvement_percent"),
        ("paper_4_1_us", "paper_4_1_improvement_percent"),
        ("ours_us", "ours_improvement_percent"),
    ];
    let start = ReportRow::new()
        .with("figure", "5")
        .with("label", EvidenceLabel::Model.to_string())
        .with("pinning", host.name)
        .with("class", class.name)
        .with("up_to_bytes", bound as u64)
        .with("requests", class.requests as u64)
        .with("each_request_us", each / 1e3);
    COLUMNS.into_iter().zip(means).fold(start, |row, ((time, percent), mean)| {
        row.with(time, mean / 1e3).with(percent, improvement(each, *mean))
    })
}

/// Returns the row of figure 6, and that of figure 7 for the two lengths that it shows.
fn figure_rows(
    host: &HostCosts,
    preset: TierPreset,
    class: &UdmaClass,
    bound: usize,
    grown: &[f64],
) -> (ReportRow, Option<ReportRow>) {
    const COLUMNS: [&str; RUN_TIME_MARKS.len()] = [
        "after_0.2_percent_of_run",
        "after_1_percent_of_run",
        "after_5_percent_of_run",
        "after_10_percent_of_run",
        "after_50_percent_of_run",
        "after_all_of_run",
    ];
    let row = |figure: &str| {
        let start = ReportRow::new()
            .with("figure", figure)
            .with("label", EvidenceLabel::Model.to_string())
            .with("pinning", host.name)
            .with("limits", preset.name())
            .with("improvement_percent_up_to_bytes", bound as u64);
        COLUMNS.into_iter().zip(grown).fold(start, |row, (column, percent)| row.with(column, *percent))
    };
    let shown = class.name == "medium" && bound >= 64 << 10;
    (row("6"), shown.then(|| row("7")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(pin: u64, pin_page: u64) -> HostCosts {
        let pin = SimulatedCosts { pin: Nanos(pin), pin_page: Nanos(pin_page), ..SimulatedCosts::default() };
        HostCosts { name: "here", pin, copy: Nanos(400) }
    }

    #[test]
    fn few_requests_pay_for_pinning_below_the_limit_of_large_ones() {
        let host = host(5_000, 300);
        for class in &CLASSES {
            let bound = class.bounds[class.bounds.len() - 1];
            let list = requests(class, bound, 400, (DEVICE_BYTES, SECTOR_BYTES), 1);
            let each = each_request(&host, &list).unwrap();
            for (span, request) in each.iter().zip(&list) {
                let pages = request.bytes.div_ceil(4_096) as u64;
                assert_eq!(*span, 5_000 + 300 * pages + DEVICE.of(request).0);
            }
            let limits = TierThresholds::PAPER_4_1;
            let tiers = with_tiers(&host, &config_of(TierPreset::Ours, limits), &list).unwrap();
            assert!(tiers[0] > tiers[1], "the first request pins the block");
            // The pool grows by a few chunks of 2 MiB, while threads' caches fill.
            let pay = tiers.iter().zip(&each).filter(|(tiers, each)| tiers >= each).count();
            assert!(pay <= 10, "{}: {pay} of {} requests pay", class.name, list.len());
            // With the paper's limits a big request is pinned for itself, as without tiers.
            let paper = with_tiers(&host, &config_of(TierPreset::Paper52, limits), &list).unwrap();
            let pays = |(tiers, each): (&u64, &u64)| tiers >= each;
            assert_eq!(paper[1..].iter().zip(&each[1..]).all(pays), class.name == "big", "{}", class.name);
        }
    }

    #[test]
    fn the_same_costs_give_the_same_figures() {
        let list = requests(&CLASSES[1], 64 << 10, 300, (DEVICE_BYTES, SECTOR_BYTES), 5);
        let config = config_of(TierPreset::Paper41, TierThresholds::PAPER_4_1);
        let run = || with_tiers(&host(800_000, 0), &config, &list).unwrap();
        assert_eq!(run(), run());
    }

    #[test]
    fn machine_that_cannot_pin_uses_only_the_papers_costs() {
        let hosts = hosts(&MemoryCosts::default());
        assert_eq!(hosts.len(), 1);
        assert_eq!(hosts[0].pin.pin, PAPER_PIN);
    }
}
