//! Constants of real engines, fitted to published figures, and those figures.
//!
//! Input: a length. Output: a time in microseconds, as the tables have it. Invariant: no constant was fitted to the held-out
//! log. Sources: `LightDSA` (`EuroSys` 2026, Sapphire Rapids) for DSA, the log in the README of Intel DTO as held-out
//! data, and the sixth version of the kernel patches "page migration with DMA" (2-socket Zen 3) for AMD PTDMA.

use super::machine::AffineTime;

/// DSA, one synchronous job: `min(0.80 + n/10500, 1.16 + n/29900)` us.
pub const DSA_SINGLE: [AffineTime; 2] = [
    AffineTime { fixed_ns: 800.0, bytes_per_ns: 10.5 },
    AffineTime { fixed_ns: 1_160.0, bytes_per_ns: 29.9 },
];
/// Rate of one core's cold copies, in bytes a nanosecond.
pub const DSA_HOST_CPU: f64 = 9.6;
/// Error that the constants of single jobs state.
pub const SINGLE_ERROR: f64 = 0.08;
/// Error that the constants of batches state.
pub const BATCH_ERROR: f64 = 0.12;
/// Error on the held-out log.
pub const HELD_OUT_ERROR: f64 = 0.27;

/// Published times of single jobs: bytes, us. 64-byte aligned.
pub const DSA_SINGLE_TABLE: [(f64, f64); 13] = [
    (64.0, 0.75),
    (256.0, 0.84),
    (1_024.0, 0.96),
    (2_048.0, 1.07),
    (4_096.0, 1.14),
    (8_192.0, 1.36),
    (16_384.0, 1.83),
    (32_768.0, 2.39),
    (65_536.0, 3.51),
    (131_072.0, 5.71),
    (262_144.0, 9.91),
    (524_288.0, 18.31),
    (1_048_576.0, 35.06),
];

/// Published times of a job in a batch of 32: bytes, us.
pub const DSA_BATCH_TABLE: [(f64, f64); 8] = [
    (64.0, 0.05),
    (1_024.0, 0.06),
    (2_048.0, 0.08),
    (4_096.0, 0.14),
    (16_384.0, 0.53),
    (65_536.0, 2.09),
    (262_144.0, 8.35),
    (1_048_576.0, 33.40),
];

/// The least time between two single jobs in flight, in nanoseconds: the floor of asynchronous singles to 2 KiB. The model
/// takes it as the CPU's time to submit one.
pub const DSA_SUBMIT_NS: f64 = 190.0;
/// The least time of an operation of a list, in nanoseconds.
pub const DSA_OPERATION_MIN_NS: f64 = 53.0;
/// Rate of the operations of a list, in bytes a nanosecond.
pub const DSA_LIST_RATE: f64 = 29.0;
/// Further time of a single job whose bytes begin 8 bytes off a cache line, in nanoseconds: fitted to [`DSA_UNALIGNED_TABLE`].
pub const DSA_UNALIGNED_NS: f64 = 200.0;
/// Time of such an operation in a list: fitted to [`DSA_UNALIGNED_BATCH_TABLE`].
pub const DSA_UNALIGNED_OPERATION: AffineTime = AffineTime { fixed_ns: 700.0, bytes_per_ns: 40.0 };
/// Error that the constants of unaligned jobs state.
pub const UNALIGNED_ERROR: f64 = 0.15;

/// Published rates of one core's copies in a cold set, one after another: bytes, bytes a nanosecond.
pub const DSA_HOST_RATES: [(f64, f64); 6] =
    [(64.0, 5.9), (1_024.0, 5.1), (4_096.0, 8.86), (16_384.0, 9.3), (65_536.0, 9.6), (1_048_576.0, 9.75)];
/// The same at random places. Longer copies than 4 KiB have the rates of [`DSA_HOST_RATES`].
pub const DSA_HOST_RANDOM_RATES: [(f64, f64); 6] =
    [(64.0, 1.8), (1_024.0, 2.5), (4_096.0, 7.8), (16_384.0, 9.3), (65_536.0, 9.6), (1_048_576.0, 9.75)];

/// Published times of single jobs 8 bytes off a cache line: bytes, us.
pub const DSA_UNALIGNED_TABLE: [(f64, f64); 5] =
    [(64.0, 1.15), (4_096.0, 1.23), (16_384.0, 2.11), (65_536.0, 3.83), (1_048_576.0, 35.29)];
/// Published times of a job in a batch of 32, 8 bytes off a cache line: bytes, us.
pub const DSA_UNALIGNED_BATCH_TABLE: [(f64, f64); 4] =
    [(64.0, 0.74), (4_096.0, 0.79), (16_384.0, 1.02), (65_536.0, 2.33)];
/// Held-out times of single jobs in flight: bytes, us.
pub const DSA_IN_FLIGHT_TABLE: [(f64, f64); 2] = [(4_096.0, 0.21), (8_192.0, 0.27)];
/// Held-out times of a job in a batch of 32 on four engines, from rates in MB/s: bytes, us.
pub const DSA_BATCH_RATES: [(f64, f64); 7] = [
    (64.0, 64.0 / 1_368.0),
    (256.0, 256.0 / 6_155.0),
    (512.0, 512.0 / 17_290.0),
    (1_024.0, 1_024.0 / 24_159.0),
    (4_096.0, 4_096.0 / 28_546.0),
    (16_384.0, 16_384.0 / 29_795.0),
    (1_048_576.0, 1_048_576.0 / 29_915.0),
];

/// Pages of the jobs of 32 KiB whose rates with page faults were published.
const FAULT_PAGES: f64 = 8.0;
/// Time of a channel for a missing page, in nanoseconds: jobs of 32 KiB, 0.925 GB/s in place of 29.4.
pub const DSA_PAGE_NS: f64 = (32_768.0 / 0.925 - 32_768.0 / 29.4) / FAULT_PAGES;
/// Time of the CPU for a missing page, in nanoseconds: 3.16 GB/s for such a job if the CPU touches its pages first.
pub const HOST_PAGE_NS: f64 = (32_768.0 / 3.16 - 32_768.0 / 29.4) / FAULT_PAGES;

/// PTDMA, the migration of a folio by one channel: the shorter of both. See [`amd_channels_us`].
pub const AMD_SINGLE: [AffineTime; 2] = [
    AffineTime { fixed_ns: 400.0, bytes_per_ns: 3.2 },
    AffineTime { fixed_ns: 35_000.0, bytes_per_ns: 13.5 },
];
/// Rates of the CPU for a folio: the first column of [`AMD_MIGRATION_TABLE`].
pub const AMD_HOST_RATES: [(f64, f64); 6] = {
    let (mut rates, mut at) = ([(0.0, 0.0); 6], 0);
    while at < rates.len() {
        rates[at] = (AMD_MIGRATION_TABLE[at].0, AMD_MIGRATION_TABLE[at].1[0]);
        at += 1;
    }
    rates
};

/// The held-out log of DTO: first and last KiB of a bucket, us. The channel did two thirds of each copy, nominally: the
/// fraction was being tuned.
pub const DTO_LOG: [(f64, f64, f64); 10] = [
    (8.0, 12.0, 1.19),
    (12.0, 16.0, 1.26),
    (16.0, 20.0, 1.37),
    (32.0, 36.0, 1.87),
    (53.0, 57.0, 2.45),
    (98.0, 102.0, 3.76),
    (106.0, 110.0, 4.19),
    (118.0, 122.0, 5.18),
    (131.0, 135.0, 5.92),
    (159.0, 163.0, 7.65),
];
/// The CPU's part of each copy of the log.
const DTO_CPU_SHARE: f64 = 0.33;

/// Published rates of page migration on Zen 3: bytes of a folio; GB/s of the CPU, and of one, two and four channels.
pub const AMD_MIGRATION_TABLE: [(f64, [f64; 4]); 6] = [
    (4_096.0, [3.55, 2.63, 3.20, 3.78]),
    (16_384.0, [5.66, 2.92, 4.68, 6.45]),
    (65_536.0, [6.16, 3.16, 5.16, 7.36]),
    (262_144.0, [7.12, 4.75, 7.42, 9.70]),
    (1_048_576.0, [6.93, 7.38, 8.05, 11.68]),
    (2_097_152.0, [10.88, 12.64, 14.40, 27.16]),
];

/// Returns the time of one synchronous DSA job, in us.
#[must_use]
pub fn dsa_single_us(bytes: f64) -> f64 {
    let [short, long] = DSA_SINGLE;
    short.of(bytes).min(long.of(bytes)) / 1_000.0
}

/// Returns the time of one job in a batch of 32, in us.
#[must_use]
pub fn dsa_batch_us(bytes: f64) -> f64 {
    (bytes / DSA_LIST_RATE).max(DSA_OPERATION_MIN_NS) / 1_000.0
}

/// Returns the time of a copy that DTO shares between the CPU and a DSA channel, in us.
#[must_use]
pub fn dto_copy_us(bytes: f64) -> f64 {
    dsa_single_us(bytes * (1.0 - DTO_CPU_SHARE)).max(bytes * DTO_CPU_SHARE / DSA_HOST_CPU / 1_000.0)
}

/// Returns the published time of the CPU for a folio of the migration table, in us; `None` for another length.
#[must_use]
pub fn amd_cpu_us(bytes: f64) -> Option<f64> {
    let found = AMD_MIGRATION_TABLE.iter().find(|(length, _)| length.total_cmp(&bytes).is_eq());
    found.map(|(length, rates)| length / rates[0] / 1_000.0)
}

/// Returns the time to migrate a folio by so many PTDMA channels, in us. Short folios share little of their work: 0.4 of a
/// further channel counts. Long ones share all but 20 us: the copy is a part of a migration. Fitted by hand to the table;
/// [`AMD_MIGRATION_TABLE`] has no row for more than four channels.
#[must_use]
pub fn amd_channels_us(bytes: f64, channels: f64) -> f64 {
    let short = 0.4 + bytes / (3_200.0 * (1.0 + 0.4 * (channels - 1.0)));
    let long = 20.0 + (15.0 + bytes / 13_500.0) / channels;
    short.min(long)
}

/// Returns the largest relative error of a model on a table.
#[must_use]
pub fn largest_error(table: &[(f64, f64)], model: impl Fn(f64) -> f64) -> f64 {
    table
        .iter()
        .fold(0.0, |largest: f64, (bytes, published)| largest.max((model(*bytes) / published - 1.0).abs()))
}

/// Returns the largest relative error on the held-out log, at the middle of each bucket.
#[must_use]
pub fn held_out_error() -> f64 {
    let middles = DTO_LOG.map(|(first, last, published)| ((first + last) / 2.0 * 1_024.0, published));
    largest_error(&middles, dto_copy_us)
}

#[cfg(test)]
mod tests {
    use super::super::machine::{BandwidthSharing, ChannelModel, MoveMachine};
    use super::*;
    use headwater_dma::mover::policy::CHANNELS_MAX;

    #[test]
    fn constants_reproduce_the_published_tables_within_their_stated_errors() {
        let single = largest_error(&DSA_SINGLE_TABLE, dsa_single_us);
        assert!(single <= SINGLE_ERROR, "{single}");
        let batch = largest_error(&DSA_BATCH_TABLE, dsa_batch_us);
        assert!(batch <= BATCH_ERROR, "{batch}");
    }

    #[test]
    fn constants_predict_the_held_out_log_within_the_stated_error() {
        let error = held_out_error();
        assert!(error <= HELD_OUT_ERROR + 0.005, "{error}");
    }

    #[test]
    fn simulated_channel_takes_the_time_of_the_constants() {
        let channel = ChannelModel { pieces: DSA_SINGLE, engines: 4, depth: 128 };
        let machine = MoveMachine {
            cpu: AffineTime { fixed_ns: 0.0, bytes_per_ns: DSA_HOST_CPU },
            submit_ns: 0.0,
            channels: vec![channel],
            ceiling_bytes_per_ns: 1e9,
            sharing: BandwidthSharing::Proportional,
        };
        for (bytes, _) in DSA_SINGLE_TABLE {
            let mut parts = [0.0; CHANNELS_MAX];
            parts[0] = bytes;
            let simulated = machine.times(0.0, &parts, &[]).end() / 1_000.0;
            assert!((simulated / dsa_single_us(bytes) - 1.0).abs() < 1e-6, "{bytes}: {simulated}");
        }
    }

    #[test]
    fn one_amd_channel_loses_to_the_cpu_up_to_256_kib_and_sixteen_win_at_2_mib() {
        for (bytes, rates) in AMD_MIGRATION_TABLE {
            let cpu = amd_cpu_us(bytes).unwrap();
            assert_eq!(cpu < amd_channels_us(bytes, 1.0), rates[0] > rates[1], "{bytes}");
        }
        let gain = amd_cpu_us(2_097_152.0).unwrap() / amd_channels_us(2_097_152.0, 16.0);
        assert!((5.4..6.6).contains(&gain), "{gain}");
    }
}
