//! Natural numbers of any size, as far as the conversion of decimal numbers needs them.
//!
//! Input: digits. Output: comparisons, the highest bits of a quotient, digits. Numbers are as long as the text that a client
//! sent, at most a few thousand digits.

use headwater_host::width::{narrow, to_usize};
use std::cmp::Ordering;

/// The decimal digits that one division takes off.
const DIGITS: usize = 9;
const TEN_TO_DIGITS: u32 = 1_000_000_000;

/// A natural number: 32 bits in each part, lowest first, no zero part at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WideInteger(Vec<u32>);

impl WideInteger {
    /// Creates a number of one part.
    pub(crate) fn new(value: u32) -> Self {
        Self(if value == 0 { Vec::new() } else { vec![value] })
    }

    /// Returns true for zero.
    pub(crate) fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of bits, 0 for zero.
    pub(crate) fn bits(&self) -> u32 {
        let top = self.0.last().map_or(0, |part| u32::BITS - part.leading_zeros());
        narrow::<usize, u32>(self.0.len().saturating_sub(1)) * u32::BITS + top
    }

    /// Replaces the number by its product with a factor, plus a summand.
    pub(crate) fn multiply_add(&mut self, factor: u32, summand: u32) {
        let mut carry = u64::from(summand);
        for part in &mut self.0 {
            carry += u64::from(*part) * u64::from(factor);
            *part = narrow(carry & u64::from(u32::MAX));
            carry >>= u32::BITS;
        }
        if carry > 0 {
            self.0.push(narrow(carry));
        }
    }

    /// Shifts to the left.
    pub(crate) fn shifted(&self, bits: u32) -> Self {
        let (parts, rest) = (to_usize((bits / u32::BITS).into()), bits % u32::BITS);
        let mut shifted = vec![0; parts];
        shifted.extend_from_slice(&self.0);
        let mut shifted = Self(shifted);
        shifted.multiply_add(1 << rest, 0);
        if self.is_zero() { Self::default() } else { shifted }
    }

    /// Subtracts a number that is not larger.
    fn subtract(&mut self, other: &Self) {
        let mut borrow = 0;
        for (at, part) in self.0.iter_mut().enumerate() {
            let taken = u64::from(other.0.get(at).copied().unwrap_or(0)) + borrow;
            let left = u64::from(*part) + (1 << u32::BITS) - taken;
            *part = narrow(left & u64::from(u32::MAX));
            borrow = u64::from(left >> u32::BITS == 0);
        }
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    fn compare(&self, other: &Self) -> Ordering {
        let length = self.0.len().cmp(&other.0.len());
        length.then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }

    /// Divides by a number, with a quotient of at most 128 bits. Returns the quotient, and true if there is a rest.
    pub(crate) fn divide(mut self, divisor: &Self) -> (u128, bool) {
        let mut quotient = 0;
        for shift in (0..=self.bits().saturating_sub(divisor.bits())).rev() {
            let part = divisor.shifted(shift);
            if self.compare(&part) != Ordering::Less {
                self.subtract(&part);
                quotient |= 1 << shift;
            }
        }
        (quotient, !self.is_zero())
    }

    /// Returns the decimal digits.
    pub(crate) fn decimal(mut self) -> String {
        let mut groups = Vec::new();
        while !self.is_zero() {
            let mut rest = 0_u64;
            for part in self.0.iter_mut().rev() {
                rest = rest << u32::BITS | u64::from(*part);
                *part = narrow(rest / u64::from(TEN_TO_DIGITS));
                rest %= u64::from(TEN_TO_DIGITS);
            }
            while self.0.last() == Some(&0) {
                self.0.pop();
            }
            groups.push(rest);
        }
        let mut digits = groups.pop().unwrap_or(0).to_string();
        for group in groups.iter().rev() {
            digits.push_str(&format!("{group:0width$}", width = DIGITS));
        }
        digits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wide(value: u128) -> WideInteger {
        let mut wide = WideInteger::default();
        for shift in (0..4).rev() {
            let part = narrow((value >> (32 * shift)) & u128::from(u32::MAX));
            wide = wide.shifted(32);
            if wide.is_zero() {
                wide = WideInteger::new(part);
            } else {
                wide.multiply_add(1, part);
            }
        }
        wide
    }

    #[test]
    fn numbers_equal_those_of_the_machine() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..5_000 {
            let value = random.u128(..) >> random.u32(..128);
            let divisor = (random.u128(..) >> random.u32(..128)).max(1);
            assert_eq!(wide(value).bits(), u128::BITS - value.leading_zeros());
            assert_eq!(wide(value).decimal(), value.to_string());
            let expected = (value / divisor, !value.is_multiple_of(divisor));
            assert_eq!(wide(value).divide(&wide(divisor)), expected, "{value} / {divisor}");
            let shift = random.u32(..200);
            assert_eq!(
                wide(value).shifted(shift).bits(),
                if value == 0 { 0 } else { wide(value).bits() + shift }
            );
        }
        let mut factorial = WideInteger::new(1);
        for factor in 1..=30 {
            factorial.multiply_add(factor, 0);
        }
        assert_eq!(factorial.decimal(), "265252859812191058636308480000000");
    }
}
