//! The script of a fuzz body, and a change that it makes to bytes.

/// The rest of an input: steps and their operands.
#[derive(Clone, Debug)]
pub(crate) struct FuzzScript<'a> {
    bytes: &'a [u8],
}

impl<'a> FuzzScript<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Takes a byte; `None` at the end.
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    /// Takes a byte, 0 behind the end.
    pub(crate) fn small(&mut self) -> u8 {
        self.byte().unwrap_or(0)
    }

    /// Takes two bytes.
    pub(crate) fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.small(), self.small()])
    }
}

/// Values at which arithmetic goes wrong.
const EXTREMES: [u64; 12] = [
    0,
    1,
    u64::MAX,
    u64::MAX - 1,
    u64::MAX >> 1,
    1 << 63,
    1 << 40,
    (1 << 40) - 1,
    u32::MAX as u64,
    1 << 32,
    1 << 26,
    64,
];

/// Changes some bytes: one byte or bit, or a whole number of 2, 4 or 8 bytes to an extreme or by a little.
pub(crate) fn patch(bytes: &mut [u8], script: &mut FuzzScript<'_>) {
    let (how, at) = (script.small(), usize::from(script.word()));
    if bytes.is_empty() {
        return;
    }
    let at = at % bytes.len();
    patch_at(bytes, at, how, script.small());
}

/// Changes a part of the bytes that are not zero, in which a structure says something.
pub(crate) fn patch_set_byte(bytes: &mut [u8], script: &mut FuzzScript<'_>) {
    let (how, which) = (script.small(), usize::from(script.word()));
    let set: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
    if let Some(&at) = set.get(which % set.len().max(1)) {
        patch_at(bytes, at, how, script.small());
    }
}

fn patch_at(bytes: &mut [u8], at: usize, how: u8, value: u8) {
    let width = [1, 2, 4, 8][usize::from(how >> 4) % 4];
    let at = at / width * width;
    let Some(number) = bytes.get_mut(at..at + width) else { return };
    let mut wide = [0; 8];
    wide[..width].copy_from_slice(number);
    let old = u64::from_le_bytes(wide);
    let new = match how % 4 {
        0 => u64::from(value),
        1 => old ^ 1 << (value % 64),
        2 => EXTREMES[usize::from(value) % EXTREMES.len()],
        _ => old.wrapping_add_signed(i64::from(value.cast_signed())),
    };
    number.copy_from_slice(&new.to_le_bytes()[..width]);
}
