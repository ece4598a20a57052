//! The text form of sizes: `8GiB`, `512M`, `4096`.
//!
//! Input: text. Output: [`ByteSize`]. K, M, G and T are powers of 1,024, with or without a final `iB` or `B`. Signs,
//! fractions, unknown units and overflows are refused.

use serde::Deserialize;
use std::fmt;
use std::str::FromStr;

/// A count of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "SizeText")]
pub struct ByteSize(pub u64);

/// The error of a text that is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a size: write a whole number and a unit, such as 8GiB, 512M or 4096")]
pub struct SizeError {
    text: String,
}

/// A size in a file: a bare number or a string.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a size: a whole number of bytes or a text such as \"8GiB\"")]
enum SizeText {
    Number(u64),
    Text(String),
}

impl TryFrom<SizeText> for ByteSize {
    type Error = SizeError;

    fn try_from(text: SizeText) -> Result<Self, SizeError> {
        match text {
            SizeText::Number(bytes) => Ok(Self(bytes)),
            SizeText::Text(text) => text.parse(),
        }
    }
}

impl FromStr for ByteSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let refuse = || SizeError { text: text.to_owned() };
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let number: u64 = number.parse().map_err(|_overflow_or_empty| refuse())?;
        let shift = match unit {
            "" | "B" => 0,
            "K" | "KB" | "KiB" => 10,
            "M" | "MB" | "MiB" => 20,
            "G" | "GB" | "GiB" => 30,
            "T" | "TB" | "TiB" => 40,
            _ => return Err(refuse()),
        };
        number.checked_mul(1 << shift).map(Self).ok_or_else(refuse)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
            let scale = 1u64 << shift;
            if self.0 >= scale {
                let whole = self.0 / scale;
                let tenth = (self.0 % scale) / (scale / 10);
                return if tenth == 0 {
                    write!(f, "{whole} {unit}")
                } else {
                    write!(f, "{whole}.{} {unit}", tenth.min(9))
                };
            }
        }
        write!(f, "{} B", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024_in_every_spelling() {
        for text in ["8G", "8GB", "8GiB", "8192MiB", "8589934592", "8589934592B"] {
            assert_eq!(text.parse(), Ok(ByteSize(8 << 30)), "{text}");
        }
    }

    #[test]
    fn error_names_a_text_that_is_not_a_size() {
        for text in ["", "G", "-1", "1.5G", "8 GiB", "8gib", "8X", "99999999T", "18446744073709551616", "1G1"]
        {
            let error = text.parse::<ByteSize>().unwrap_err();
            assert!(error.to_string().contains(&format!("`{text}`")), "{error}");
        }
    }

    #[test]
    fn sizes_print_with_the_largest_unit_that_fits() {
        assert_eq!(ByteSize(8 << 30).to_string(), "8 GiB");
        assert_eq!(ByteSize(1536).to_string(), "1.5 KiB");
        assert_eq!(ByteSize(17).to_string(), "17 B");
    }
}
