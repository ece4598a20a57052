//! Prints the rates of the copy and CRC kernels on this machine, in GB/s, with the data in the cache and out of it.
#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]
#![expect(clippy::cast_precision_loss, reason = "printed figures need no exactness")]

use headwater_host::calibration::Calibration;
use headwater_host::clock::Clock;
use headwater_host::copy::{copy, copy_crc32c, copy_streaming, crc32c, kernel_name};
use headwater_host::shared_memory::SharedMemory;
use headwater_host::topology::Topology;
use std::hint::black_box;

const SIZES: [usize; 17] =
    [16, 32, 48, 64, 128, 192, 256, 384, 512, 1_024, 2_048, 4_096, 4_224, 16_384, 65_536, 262_144, 1 << 20];
const COLD_BYTES: usize = 512 << 20;
const PASS_BYTES: usize = 64 << 20;
/// Passes of one figure, of which the best counts: other programs of the machine only make a pass slower.
const PASSES: usize = 8;

fn rate(clock: &Clock, size: usize, span: usize, mut step: impl FnMut(usize)) -> (f64, f64) {
    // The stride is an odd number of lines, so that a cold pass touches every set and no prefetcher follows it.
    let stride = if span == size { 0 } else { (size.next_multiple_of(64)) * 7 + 64 };
    let steps = (PASS_BYTES / size).max(1);
    let mut best = f64::MAX;
    for _ in 0..PASSES {
        let mut at = 0;
        let before = clock.now();
        for _ in 0..steps {
            step(at);
            at += stride;
            if at + size > span {
                at %= 4_096;
            }
        }
        best = best.min(clock.now().since(before).0 as f64 / steps as f64);
    }
    (size as f64 / best, best)
}

fn main() {
    let clock = Clock::start();
    println!("kernel {}", kernel_name());
    let before = clock.now();
    println!("{:?}", Calibration::load_or_measure(&clock));
    println!("calibrated in {}", clock.now().since(before));
    println!("{:?}", Topology::read());
    let src = vec![0x5A_u8; COLD_BYTES + (16 << 20)];
    // Half a page off: otherwise the CPU's 4 KiB alias check takes every load for one that depends on the store before
    // it.
    let mut dst = vec![0_u8; COLD_BYTES + (16 << 20)];
    let dst = &mut dst[2_048..];
    let shared = SharedMemory::anonymous(COLD_BYTES + (16 << 20)).expect("memory for the figures");
    (0..shared.bytes()).step_by(4_096).for_each(|at| shared.copy_out(at, &[1]).expect("inside"));
    let inside = "a range inside the region";
    let names =
        ["crc", "copy", "stream", "copy+crc", "in", "in, crc", "in+crc", "out", "crc, out", "out+crc"];
    print!("{:>8} {:>5}", "bytes", "");
    names.iter().for_each(|name| print!(" {name:>16}"));
    println!();
    for size in SIZES {
        for (label, span) in [("warm", size), ("cold", COLD_BYTES)] {
            let mut row = Vec::new();
            row.push(rate(&clock, size, span, |at| {
                black_box(crc32c(0, black_box(&src[at..at + size])));
            }));
            row.push(rate(&clock, size, span, |at| {
                copy(black_box(&mut dst[at..at + size]), &src[at..at + size]);
            }));
            row.push(rate(&clock, size, span, |at| {
                copy_streaming(black_box(&mut dst[at..at + size]), &src[at..at + size]);
            }));
            row.push(rate(&clock, size, span, |at| {
                black_box(copy_crc32c(black_box(&mut dst[at..at + size]), &src[at..at + size], 0));
            }));
            row.push(rate(&clock, size, span, |at| {
                shared.copy_in(at, black_box(&mut dst[at..at + size])).expect(inside);
            }));
            row.push(rate(&clock, size, span, |at| {
                shared.copy_in(at, black_box(&mut dst[at..at + size])).expect(inside);
                black_box(crc32c(0, &dst[at..at + size]));
            }));
            row.push(rate(&clock, size, span, |at| {
                black_box(shared.copy_in_crc32c(at, black_box(&mut dst[at..at + size]), 0).expect(inside));
            }));
            row.push(rate(&clock, size, span, |at| {
                shared.copy_out(at, black_box(&src[at..at + size])).expect(inside);
            }));
            row.push(rate(&clock, size, span, |at| {
                black_box(crc32c(0, black_box(&src[at..at + size])));
                shared.copy_out(at, &src[at..at + size]).expect(inside);
            }));
            row.push(rate(&clock, size, span, |at| {
                black_box(shared.copy_out_crc32c(at, black_box(&src[at..at + size]), 0).expect(inside));
            }));
            print!("{size:>8} {label:>5}");
            for (gigabytes, nanos) in row {
                print!(" {gigabytes:>6.2} {nanos:>7.1}ns");
            }
            println!();
        }
    }
}
