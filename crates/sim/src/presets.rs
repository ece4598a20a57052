//! Timing of flash parts: the table from which every simulated duration comes.
//!
//! Input: a name. Output: a [`TimingPreset`].
//! A row's `source` cites the origin of its numbers. Numbers that the source does not give (a bus rate, a geometry) are
//! those of the default row, and `source` says so. Multi-level parts have one read and one program time for each page
//! of a word line; page `p` of a block takes entry `p mod len`.

use headwater_host::clock::Nanos;
use headwater_ssd::media::FlashGeometry;

/// The timing of a simulated part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimingPreset {
    /// The name by which a user selects it.
    pub name: &'static str,
    /// Sensing a page (tR), by page of the word line.
    pub read: &'static [Nanos],
    /// Programming a page (tPROG), by page of the word line.
    pub program: &'static [Nanos],
    /// Erasing a block (tBERS).
    pub erase: Nanos,
    /// Bytes that a channel moves in a microsecond (MB/s); 0 for a channel that takes no time.
    pub channel_megabytes_per_second: u32,
    /// Channel time of the command, address and status cycles of each transfer.
    pub command: Nanos,
    /// Time of a flush in addition to the work it waits for.
    pub flush: Nanos,
    /// `Some`: programs and erases complete this long after they reach the device's volatile cache, and only a flush
    /// makes them durable. `None`: they complete when they are on the flash.
    pub cached: Option<Nanos>,
    /// Channels that transfer independently.
    pub channels: u16,
    /// Dies behind each channel.
    pub dies_per_channel: u16,
    /// The origin of the numbers.
    pub source: &'static str,
}

const fn us(micros: u64) -> Nanos {
    Nanos::from_micros(micros)
}

const fn ms(millis: u64) -> Nanos {
    Nanos::from_millis(millis)
}

/// The embedded default: 8 channels of 4 dies, 40/200 us, 2 ms.
pub const FEMU: TimingPreset = TimingPreset {
    name: "femu",
    read: &[us(40)],
    program: &[us(200)],
    erase: ms(2),
    channel_megabytes_per_second: 800,
    command: Nanos::ZERO,
    flush: Nanos::ZERO,
    cached: None,
    channels: 8,
    dies_per_channel: 4,
    source: "FEMU nand-timing.md, flat default; bus 800 MB/s",
};

/// A part that takes no time: for tests of everything but timing.
pub const INSTANT: TimingPreset = TimingPreset {
    name: "instant",
    read: &[Nanos::ZERO],
    program: &[Nanos::ZERO],
    erase: Nanos::ZERO,
    channel_megabytes_per_second: 0,
    source: "none: every operation takes no time",
    ..FEMU
};

/// A file on a host with a volatile page or disk cache.
pub const FILE: TimingPreset = TimingPreset {
    name: "file",
    read: &[us(20)],
    program: &[Nanos::ZERO],
    erase: Nanos::ZERO,
    channel_megabytes_per_second: 2_000,
    flush: us(100),
    cached: Some(us(40)),
    channels: 1,
    dies_per_channel: 32,
    source: "our model of a file: write 40 us, flush 100 us; read 20 us and 2,000 MB/s assumed",
    ..FEMU
};

/// Every preset, by name.
pub const PRESETS: &[TimingPreset] = &[
    INSTANT,
    FEMU,
    TimingPreset {
        name: "slc",
        program: &[us(800)],
        channel_megabytes_per_second: 205,
        source: "FEMU nand.h SLC row; page transfer 20 us",
        ..FEMU
    },
    TimingPreset {
        name: "mlc-l95b",
        read: &[us(48), us(64)],
        program: &[us(850), us(2_300)],
        erase: ms(3),
        channel_megabytes_per_second: 313,
        source: "FEMU nand.h, Micron L95B measured; 52.4 us for a 16 KiB page",
        ..FEMU
    },
    TimingPreset {
        name: "tlc",
        read: &[Nanos(56_500), Nanos(77_500), us(106)],
        program: &[Nanos(820_500), us(2_225), us(5_734)],
        erase: ms(3),
        source: "FEMU nand.h TLC row, from SimpleSSD; bus of the default",
        ..FEMU
    },
    TimingPreset {
        name: "qlc",
        read: &[Nanos(47_900), Nanos(76_200), Nanos(134_600), Nanos(228_100)],
        program: &[us(862), us(2_448), us(6_881), us(9_174)],
        erase: ms(3),
        source: "FEMU nand.h QLC row, measured 16 KiB reads, programs scaled from TLC; bus of the default",
        ..FEMU
    },
    TimingPreset {
        name: "z-nand",
        read: &[us(3)],
        program: &[us(100)],
        source: "48-layer SLC 64 Gb, ISSCC 2018 by way of AnandTech 13951; erase and bus of the default",
        ..FEMU
    },
    TimingPreset {
        name: "samsung-64l-tlc",
        read: &[us(60)],
        program: &[us(700)],
        erase: ms(3),
        source: "ISSCC 2018 by way of AnandTech 13951, average over page types; erase of TLC, bus of the default",
        ..FEMU
    },
    TimingPreset {
        name: "970-pro",
        read: &[Nanos(29_800), Nanos(41_800)],
        program: &[us(185)],
        erase: Nanos::ZERO,
        flush: Nanos::ZERO,
        cached: Some(us(4)),
        channels: 8,
        dies_per_channel: 2,
        source: "nvmevirt ssd_config.h, Samsung 970 PRO model; write buffer 4 us; firmware and PCIe left out",
        ..FEMU
    },
    TimingPreset {
        name: "mqsim",
        read: &[us(75)],
        program: &[us(750)],
        erase: Nanos::from_micros(3_800),
        channel_megabytes_per_second: 333,
        channels: 8,
        dies_per_channel: 8,
        source: "MQSim ssdconfig.xml: 8 channels, 4 chips of 2 dies, 333 MT/s",
        ..FEMU
    },
    FILE,
];

impl TimingPreset {
    /// Returns the preset of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        PRESETS.iter().find(|preset| preset.name == name).copied()
    }

    /// Returns the geometry of a medium of `blocks` blocks on this preset's channels and dies.
    #[must_use]
    pub const fn geometry(&self, blocks: u32) -> FlashGeometry {
        FlashGeometry { channels: self.channels, dies_per_channel: self.dies_per_channel, blocks }
    }

    /// Returns the time for which a transfer of `bytes` occupies the channel.
    #[must_use]
    pub fn transfer(&self, bytes: u64) -> Nanos {
        let moving = match u64::from(self.channel_megabytes_per_second) {
            0 => 0,
            rate => (bytes * 1_000).div_ceil(rate),
        };
        self.command.after(Nanos(moving))
    }

    /// Returns the sensing time of a page of a block.
    #[must_use]
    pub fn read_time(&self, page: u8) -> Nanos {
        by_page(self.read, page)
    }

    /// Returns the programming time of a page of a block.
    #[must_use]
    pub fn program_time(&self, page: u8) -> Nanos {
        by_page(self.program, page)
    }
}

fn by_page(times: &[Nanos], page: u8) -> Nanos {
    times.get(usize::from(page) % times.len().max(1)).copied().unwrap_or(Nanos::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_has_a_unique_name_and_a_source() {
        for (index, preset) in PRESETS.iter().enumerate() {
            assert!(!preset.source.is_empty() && !preset.read.is_empty() && !preset.program.is_empty());
            assert!(preset.channels > 0 && preset.dies_per_channel > 0);
            let first = PRESETS.iter().position(|other| other.name == preset.name);
            assert_eq!(first, Some(index), "two presets are named {}", preset.name);
            assert_eq!(TimingPreset::named(preset.name), Some(*preset));
        }
        assert_eq!(TimingPreset::named("punch-card"), None);
    }

    #[test]
    fn page_times_follow_the_word_line() {
        let tlc = TimingPreset::named("tlc").unwrap();
        assert_eq!(tlc.read_time(0), Nanos(56_500));
        assert_eq!(tlc.read_time(5), us(106));
        assert_eq!(tlc.program_time(4), us(2_225));
    }

    #[test]
    fn transfer_time_is_bytes_over_rate() {
        assert_eq!(FEMU.transfer(4_096), Nanos(5_120));
        assert_eq!(INSTANT.transfer(4_096), Nanos::ZERO);
    }
}
