//! Figures 5, 6 and 7 in virtual time.
//!
//! Input: requests, the costs of pinning and copying on this machine, and a device with a fixed time and a time for
//! each byte.
//! Output: mean response times by method, length and run time.
//! Invariant: the pool is the real one; only its pinner and the device are models, so that the same costs always give
//! the same figures.

use super::protocol::{CLASSES, RequestMemory, TierMemory, UdmaClass, UdmaDirection, UdmaRequest, requests};
use super::{failed, improvement, improvement_claim};
use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, RunContext};
use crate::report::ReportRow;
use headwater_dma::pool::{Pool, PoolClock, PoolConfig, SimulatedCosts, SimulatedPinner, TierThresholds};
use headwater_host::calibration::memory::MemoryCosts;
use headwater_host::clock::Nanos;
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
    for host in hosts(costs) {
        for class in &CLASSES {
            for &bound in class.bounds {
                let list = requests(class, bound, class.requests, DEVICE_BYTES, context.seed());
                let each = each_request(&host, &list)?;
                let tiers = with_tiers(&host, class, TierThresholds::PAPER_5_2, &list)?;
                let other = with_tiers(&host, class, TierThresholds::PAPER_4_1, &list)?;
                findings.rows.push(figure_5_row(&host, class, bound, [&each, &tiers, &other]));
                let grown = by_run_time(&each, &tiers);
                let rows = figure_rows(&host, class, bound, &grown);
                figure_6.push(rows.0);
                figure_7.extend(rows.1);
                let step =
                    grown.last().copied().unwrap_or(f64::NAN) - grown.first().copied().unwrap_or(f64::NAN);
                growth = Some(growth.map_or(step, |min| min.min(step)));
                if host.name == "here" && Some(&bound) == class.bounds.last() {
                    let name = format!("p3.udma.model.{}", class.name);
                    let baseline = format!("mmap and mlock for each request: {:.1} us", mean(&each) / 1e3);
                    let percent = improvement(mean(&each), mean(&tiers));
                    findings.claims.push(improvement_claim(name, percent, EvidenceLabel::Model, baseline));
                }
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

/// Returns response times in nanoseconds of virtual time, with memory pinned for each request.
fn each_request(host: &HostCosts, list: &[UdmaRequest]) -> Result<Vec<u64>, LabError> {
    let device = Arc::new(SimulatedPinner::new(host.pin));
    let config = PoolConfig { pinner: device.clone(), clock: device.clone(), ..PoolConfig::default() };
    let pool = Pool::open(config).map_err(failed)?;
    let one = |request: &UdmaRequest| {
        let start = device.now();
        let memory = pool.pin_for_request(request.bytes).map_err(failed)?;
        device.advance(DEVICE.of(request));
        drop(memory);
        Ok(device.now().since(start).0)
    };
    list.iter().map(one).collect()
}

/// Returns response times in nanoseconds of virtual time, with the tiers.
fn with_tiers(
    host: &HostCosts,
    class: &UdmaClass,
    borders: TierThresholds,
    list: &[UdmaRequest],
) -> Result<Vec<u64>, LabError> {
    let device = Arc::new(SimulatedPinner::new(host.pin));
    let mut tiers = TierMemory::open(class, borders, device.clone(), device.clone())?;
    let one = |request: &UdmaRequest| {
        let start = device.now();
        let held = tiers.take(request.bytes)?;
        device.advance(match &held {
            RequestMemory::Slot(slot) => Nanos(host.copy.0 * slot.len() as u64 / PAGE_BYTES),
            RequestMemory::Buffer(_) => POOL_PAIR,
        });
        device.advance(DEVICE.of(request));
        Ok(device.now().since(start).0)
    };
    list.iter().map(one).collect()
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

fn figure_5_row(host: &HostCosts, class: &UdmaClass, bound: usize, methods: [&[u64]; 3]) -> ReportRow {
    let [each, tiers, other] = methods.map(mean);
    ReportRow::new()
        .with("figure", "5")
        .with("label", EvidenceLabel::Model.to_string())
        .with("pinning", host.name)
        .with("class", class.name)
        .with("up_to_bytes", bound as u64)
        .with("requests", class.requests as u64)
        .with("each_request_us", each / 1e3)
        .with("paper_5_2_us", tiers / 1e3)
        .with("paper_4_1_us", other / 1e3)
        .with("improvement_percent", improvement(each, tiers))
}

/// Returns the row of figure 6, and that of figure 7 for the two lengths that it shows.
fn figure_rows(
    host: &HostCosts,
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
    fn only_the_first_request_of_a_tier_pays_for_pinning() {
        let host = host(5_000, 300);
        for class in &CLASSES {
            let bound = class.bounds[class.bounds.len() - 1];
            let list = requests(class, bound, 400, DEVICE_BYTES, 1);
            let each = each_request(&host, &list).unwrap();
            let tiers = with_tiers(&host, class, TierThresholds::PAPER_5_2, &list).unwrap();
            for (span, request) in each.iter().zip(&list) {
                let pages = request.bytes.div_ceil(4_096) as u64;
                assert_eq!(*span, 5_000 + 300 * pages + DEVICE.of(request).0);
            }
            assert!(tiers[0] > tiers[1], "the first request pins the block");
            let rest = tiers[1..].iter().zip(&each[1..]);
            assert!(rest.clone().all(|(tiers, each)| tiers < each), "{}", class.name);
        }
    }

    #[test]
    fn the_same_costs_give_the_same_figures() {
        let list = requests(&CLASSES[1], 64 << 10, 300, DEVICE_BYTES, 5);
        let run = || with_tiers(&host(800_000, 0), &CLASSES[1], TierThresholds::PAPER_4_1, &list).unwrap();
        assert_eq!(run(), run());
    }

    #[test]
    fn machine_that_cannot_pin_uses_only_the_papers_costs() {
        let hosts = hosts(&MemoryCosts::default());
        assert_eq!(hosts.len(), 1);
        assert_eq!(hosts[0].pin.pin, PAPER_PIN);
    }
}
