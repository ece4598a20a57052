//! The Rust half of `examples/c/pairs.c`: `pairs BYTES COUNT` allocates and frees BYTES bytes COUNT times.
//!
//! Input: two numbers. Output: only time spent. The difference of two runs is the cost of the pairs without the C
//! interface.

use headwater_dma::pool::{Pool, PoolConfig, PoolError};

fn main() -> Result<(), PoolError> {
    let mut numbers = std::env::args().skip(1).map(|argument| argument.parse().unwrap_or(0));
    let (bytes, count) = (numbers.next().unwrap_or(4_096), numbers.next().unwrap_or(1_000));
    let pool = Pool::open(PoolConfig::default())?;
    let _ticker = pool.ticker();
    for _ in 0..count {
        let mut buffer = pool.buffer(bytes)?;
        buffer[0] = std::hint::black_box(1);
        std::hint::black_box(&buffer);
    }
    Ok(())
}
