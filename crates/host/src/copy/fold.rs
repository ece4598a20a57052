//! Constants of CRC-32C arithmetic, computed by the compiler from the polynomial.
//!
//! Input: distances in bytes. Output: the pair of multipliers that moves a 128-bit lane that far towards the end of the
//! message. Numbers are bit-reflected: bit 31 of a remainder is the coefficient of x^0.

/// The Castagnoli polynomial, reflected.
pub(super) const POLYNOMIAL: u32 = 0x82F6_3B78;

/// Computes `state * x mod P`.
const fn times_x(state: u32) -> u32 {
    if state & 1 == 1 { (state >> 1) ^ POLYNOMIAL } else { state >> 1 }
}

/// Computes `x^exponent mod P`.
const fn power_of_x(exponent: usize) -> u32 {
    let mut value = 1 << 31;
    let mut step = 0;
    while step < exponent {
        value = times_x(value);
        step += 1;
    }
    value
}

/// Computes the multipliers for the first and the second eight bytes of a lane that moves `bytes` further. A carry-less
/// product of reflected numbers is one bit low, hence the shift.
pub(super) const fn multipliers(bytes: usize) -> [u64; 2] {
    [(power_of_x(bytes * 8 + 32) as u64) << 1, (power_of_x(bytes * 8 - 32) as u64) << 1]
}

/// Returns the product of two remainders.
#[inline]
pub(super) const fn product(left: u32, mut right: u32) -> u32 {
    let mut sum = 0;
    let mut bit = 1 << 31;
    while bit != 0 {
        if left & bit != 0 {
            sum ^= right;
        }
        right = times_x(right);
        bit >>= 1;
    }
    sum
}

/// Returns the factor by which so many bytes behind a run shift the CRC of the run.
pub(super) const fn power_of_bytes(mut bytes: usize) -> u32 {
    let mut factor = 1 << 31;
    let mut power = power_of_x(8);
    while bytes > 0 {
        if bytes & 1 == 1 {
            factor = product(power, factor);
        }
        power = product(power, power);
        bytes >>= 1;
    }
    factor
}

/// Digits of a length in [`SHIFTS`].
const DIGITS: usize = usize::BITS.div_ceil(6) as usize;

/// The factors of lengths, a digit of six bits at a time: `SHIFTS[k][d]` is that of `d << 6 * k` bytes.
pub(super) static SHIFTS: [[u32; 64]; DIGITS] = shifts();

const fn shifts() -> [[u32; 64]; DIGITS] {
    let mut shifts = [[1 << 31; 64]; DIGITS];
    let mut step = power_of_x(8);
    let mut digit = 0;
    while digit < DIGITS {
        let mut count = 1;
        while count < 64 {
            shifts[digit][count] = product(step, shifts[digit][count - 1]);
            count += 1;
        }
        step = product(step, shifts[digit][63]);
        digit += 1;
    }
    shifts
}

/// `x^-64 mod P`: the powers of x, and those of x^8, repeat after `2^31 - 1`.
pub(super) const X_TO_MINUS_64: u32 = power_of_bytes((1 << 31) - 1 - 8);

/// The slicing tables: `TABLES[k][b]` is byte `b` followed by `k` zero bytes.
pub(super) static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0_u32; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "the loop stops at 256")]
        let mut state = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            state = times_x(state);
            bit += 1;
        }
        tables[0][byte] = state;
        byte += 1;
    }
    let mut zeros = 1;
    while zeros < 8 {
        let mut byte = 0;
        while byte < 256 {
            let shorter = tables[zeros - 1][byte];
            tables[zeros][byte] = (shorter >> 8) ^ tables[0][(shorter & 0xFF) as usize];
            byte += 1;
        }
        zeros += 1;
    }
    tables
}
