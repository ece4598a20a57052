//! The commands BITFIELD and BITFIELD_RO: integers of any width at any bit of a value.
//!
//! Input: operations on fields, and the old value. Output: the new value, and a number for each operation, or none if it
//! would overflow and must not. A field's first bit is its highest; bit 0 is the highest bit of the first byte.

use super::bits;
use super::errors::{self, ErrorReply};
use super::parser::integer;
use super::request::RespRequest;
use headwater_host::width::to_usize;
use headwater_ssd::limits::LOG_VALUE_BYTES_MAX;

/// The type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FieldType {
    signed: bool,
    /// Number of bits, 1 to 64, for unsigned ones 1 to 63.
    bits: u32,
}

impl FieldType {
    fn parse(word: &[u8]) -> Result<Self, ErrorReply> {
        let (signed, digits) = match word {
            [b'i', digits @ ..] => (true, digits),
            [b'u', digits @ ..] => (false, digits),
            _ => return Err(errors::BITFIELD_TYPE),
        };
        let bits = integer(digits).and_then(|bits| u32::try_from(bits).ok());
        let bits = bits.filter(|bits| (1..=if signed { 64 } else { 63 }).contains(bits));
        Ok(Self { signed, bits: bits.ok_or(errors::BITFIELD_TYPE)? })
    }

    fn min(self) -> i128 {
        if self.signed { -(1 << (self.bits - 1)) } else { 0 }
    }

    fn max(self) -> i128 {
        (1 << (self.bits - u32::from(self.signed))) - 1
    }

    /// Returns the number that the low bits of another one are.
    fn wrapped(self, number: i128) -> i128 {
        let low = number & ((1 << self.bits) - 1);
        if low > self.max() { low - (1 << self.bits) } else { low }
    }
}

/// The result of an operation on a field that has no room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldOverflow {
    /// The low bits of the number.
    Wrap,
    /// The nearest number.
    Saturate,
    /// No change, and no number in the reply.
    Fail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldAction {
    Get,
    Set(i64),
    Increment(i64),
}

/// An operation on a field.
#[derive(Clone, Copy, Debug)]
struct FieldOperation {
    kind: FieldType,
    /// Offset of the first bit.
    offset: u64,
    action: FieldAction,
    overflow: FieldOverflow,
}

/// The operations of one command.
#[derive(Debug)]
pub(crate) struct BitField {
    operations: Vec<FieldOperation>,
}

/// The new value, `None` if it is the old one, and the number for each operation.
pub(crate) type FieldResult = (Option<Vec<u8>>, Vec<Option<i64>>);

impl BitField {
    /// Parses the arguments of BITFIELD.
    pub(crate) fn parse(request: &RespRequest<'_>) -> Result<Self, ErrorReply> {
        let mut operations = Vec::new();
        let mut overflow = FieldOverflow::Wrap;
        let mut at = 2;
        while at < request.len() {
            let left = request.len() - at - 1;
            let word = request.lower(at);
            if word == b"overflow" && left >= 1 {
                overflow = match &request.lower(at + 1)[..] {
                    b"wrap" => FieldOverflow::Wrap,
                    b"sat" => FieldOverflow::Saturate,
                    b"fail" => FieldOverflow::Fail,
                    _ => return Err(errors::BITFIELD_OVERFLOW),
                };
                at += 2;
                continue;
            }
            let needed = match &word[..] {
                b"get" => 2,
                b"set" | b"incrby" => 3,
                _ => return Err(errors::SYNTAX),
            };
            if left < needed {
                return Err(errors::SYNTAX);
            }
            let kind = FieldType::parse(request.arg(at + 1))?;
            let offset = parse_offset(request.arg(at + 2), kind)?;
            let action = match &word[..] {
                b"get" => FieldAction::Get,
                b"set" => FieldAction::Set(request.integer(at + 3)?),
                _ => FieldAction::Increment(request.integer(at + 3)?),
            };
            operations.push(FieldOperation { kind, offset, action, overflow });
            at += 1 + needed;
        }
        Ok(Self { operations })
    }

    /// Parses the arguments of BITFIELD_RO.
    pub(crate) fn parse_read_only(request: &RespRequest<'_>) -> Result<Self, ErrorReply> {
        let field = Self::parse(request)?;
        if field.bytes_written() > 0 { Err(errors::BITFIELD_READ_ONLY) } else { Ok(field) }
    }

    /// Returns the length that the value must have at least for the writes, 0 without a write.
    pub(crate) fn bytes_written(&self) -> u64 {
        let writes = self.operations.iter().filter(|operation| operation.action != FieldAction::Get);
        writes.map(|one| (one.offset + u64::from(one.kind.bits)).div_ceil(8)).max().unwrap_or(0)
    }

    /// Carries out the operations.
    ///
    /// # Errors
    /// The value would become too long.
    pub(crate) fn apply(&self, old: &[u8]) -> Result<FieldResult, ErrorReply> {
        let needed = to_usize(self.bytes_written());
        if needed > LOG_VALUE_BYTES_MAX {
            return Err(errors::TOO_LONG);
        }
        if needed == 0 {
            let numbers = self.operations.iter().map(|one| narrowed(read_field(old, one)));
            return Ok((None, numbers.collect()));
        }
        let mut bytes = old.to_vec();
        bytes.resize(bytes.len().max(needed), 0);
        let numbers = self.operations.iter().map(|one| one.apply(&mut bytes)).collect();
        Ok(((bytes != old).then_some(bytes), numbers))
    }
}

impl FieldOperation {
    fn apply(&self, bytes: &mut [u8]) -> Option<i64> {
        let old = read_field(bytes, self);
        let wanted = match self.action {
            FieldAction::Get => return narrowed(old),
            // Redis takes the number for an unsigned one, so that a negative number is above every maximum.
            FieldAction::Set(number) if !self.kind.signed => i128::from(number.cast_unsigned()),
            FieldAction::Set(number) => i128::from(number),
            FieldAction::Increment(by) => old + i128::from(by),
        };
        let new = if (self.kind.min()..=self.kind.max()).contains(&wanted) {
            wanted
        } else {
            match self.overflow {
                FieldOverflow::Wrap => self.kind.wrapped(wanted),
                FieldOverflow::Saturate => wanted.clamp(self.kind.min(), self.kind.max()),
                FieldOverflow::Fail => return None,
            }
        };
        write_field(bytes, self, new);
        narrowed(if matches!(self.action, FieldAction::Set(_)) { old } else { new })
    }
}

/// Returns a number of a field, which has at most 64 bits.
fn narrowed(number: i128) -> Option<i64> {
    i64::try_from(number).ok()
}

fn parse_offset(word: &[u8], kind: FieldType) -> Result<u64, ErrorReply> {
    let (digits, factor) = match word {
        [b'#', digits @ ..] => (digits, u64::from(kind.bits)),
        digits => (digits, 1),
    };
    let offset = integer(digits).and_then(|offset| u64::try_from(offset).ok());
    let offset = offset.and_then(|offset| offset.checked_mul(factor));
    offset.filter(|&offset| bits::is_offset(offset)).ok_or(errors::BIT_OFFSET)
}

/// Returns the number in a field; behind the value there are zeroes.
fn read_field(bytes: &[u8], field: &FieldOperation) -> i128 {
    let first = to_usize(field.offset / 8);
    // 64 bits that begin inside a byte span nine bytes.
    let window = (first..first + 9)
        .fold(0_u128, |window, at| window << 8 | u128::from(bytes.get(at).copied().unwrap_or(0)));
    let behind = 72 - u32::try_from(field.offset % 8).unwrap_or(0) - field.kind.bits;
    let low = (window >> behind & ((1 << field.kind.bits) - 1)).cast_signed();
    field.kind.wrapped(low)
}

/// Writes a number into a field of a value that is long enough.
fn write_field(bytes: &mut [u8], field: &FieldOperation, number: i128) {
    for bit in 0..field.kind.bits {
        let set = number >> (field.kind.bits - 1 - bit) & 1 == 1;
        let offset = field.offset + u64::from(bit);
        let mask = 0x80_u8 >> (offset % 8);
        let byte = &mut bytes[to_usize(offset / 8)];
        if set {
            *byte |= mask;
        } else {
            *byte &= !mask;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Carries out an operation on single bits.
    fn model(bits: &mut [bool], one: &FieldOperation) -> Option<i64> {
        let first = to_usize(one.offset);
        let count = one.kind.bits as usize;
        let mut old = 0_i128;
        for at in 0..count {
            let bit = bits.get(first + at).copied().unwrap_or(false);
            let weight = 1_i128 << (count - 1 - at);
            let negative = at == 0 && one.kind.signed;
            old += if !bit {
                0
            } else if negative {
                -weight
            } else {
                weight
            };
        }
        let (low, high) = if one.kind.signed {
            (-(1_i128 << (count - 1)), (1_i128 << (count - 1)) - 1)
        } else {
            (0, (1_i128 << count) - 1)
        };
        let wanted = match one.action {
            FieldAction::Get => return i64::try_from(old).ok(),
            FieldAction::Set(number) if one.kind.signed => i128::from(number),
            FieldAction::Set(number) => i128::from(number) & i128::from(u64::MAX),
            FieldAction::Increment(by) => old + i128::from(by),
        };
        let new = match one.overflow {
            _ if low <= wanted && wanted <= high => wanted,
            FieldOverflow::Wrap => {
                let size = 1_i128 << count;
                (wanted - low).rem_euclid(size) + low
            }
            FieldOverflow::Saturate if wanted < low => low,
            FieldOverflow::Saturate => high,
            FieldOverflow::Fail => return None,
        };
        for at in 0..count {
            bits[first + at] = (new >> (count - 1 - at)) & 1 == 1;
        }
        let answer = if matches!(one.action, FieldAction::Set(_)) { old } else { new };
        i64::try_from(answer).ok()
    }

    fn number(random: &mut fastrand::Rng) -> i64 {
        match random.u8(..6) {
            0 => i64::MIN,
            1 => i64::MAX,
            2 => random.i64(..),
            3 => -1,
            _ => random.i64(-300..300),
        }
    }

    #[test]
    fn operations_equal_those_on_single_bits() {
        let mut random = fastrand::Rng::with_seed(12);
        for round in 0..5_000 {
            let old: Vec<u8> = (0..random.usize(..24)).map(|_| random.u8(..)).collect();
            let operations: Vec<FieldOperation> = (0..random.usize(1..6))
                .map(|_| {
                    let signed = random.bool();
                    let bits = random.u32(1..=if signed { 64 } else { 63 });
                    let action = match random.u8(..3) {
                        0 => FieldAction::Get,
                        1 => FieldAction::Set(number(&mut random)),
                        _ => FieldAction::Increment(number(&mut random)),
                    };
                    let overflow = [FieldOverflow::Wrap, FieldOverflow::Saturate, FieldOverflow::Fail];
                    FieldOperation {
                        kind: FieldType { signed, bits },
                        offset: random.u64(..200),
                        action,
                        overflow: overflow[random.usize(..3)],
                    }
                })
                .collect();
            let field = BitField { operations };
            let length = old.len().max(to_usize(field.bytes_written()));
            let mut bits: Vec<bool> =
                old.iter().flat_map(|byte| (0..8).map(move |bit| byte >> (7 - bit) & 1 == 1)).collect();
            bits.resize(length * 8, false);
            let expected: Vec<_> = field.operations.iter().map(|one| model(&mut bits, one)).collect();
            let (new, found) = field.apply(&old).unwrap();
            assert_eq!(found, expected, "round {round}: {field:?}");
            let bytes: Vec<u8> = bits
                .chunks(8)
                .map(|byte| byte.iter().fold(0, |byte, bit| byte << 1 | u8::from(*bit)))
                .collect();
            assert_eq!(new.unwrap_or(old), bytes, "round {round}: {field:?}");
        }
    }
}
