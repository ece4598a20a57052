//! The corpus of the fuzz target `vfio_user`, replayed: no nightly toolchain needed.

use crate::replay;
use headwater_fuzz_bodies::vfio_user as body;

#[test]
fn corpus_steps_never_stop_the_node() {
    replay::replay("vfio_user", body::body);
}

/// Generates steps that are valid more often than random bytes: messages, entries, doorbells and memory.
fn steps(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..random.usize(1..24) {
        let kind = random.u8(0..8);
        let mut step = vec![0; random.usize(0..72)];
        random.fill(&mut step);
        let small = |random: &mut fastrand::Rng| [random.u8(0..4), 0, 0, 0];
        match kind {
            0..=2 => {
                step.resize(16 + random.usize(0..48), 0);
                step[2..4].copy_from_slice(&[random.choice([2, 3, 5, 7, 8, 9, 10, 13]).unwrap_or(13), 0]);
                step[8..12].copy_from_slice(&[0; 4]);
                if step.len() >= 32 && random.bool() {
                    // Registers, doorbells and the start of the configuration space.
                    let region = random.choice([0, 7]).unwrap_or(0);
                    let offset = random.choice([0x14, 0x1000, 0x1008, 0x24, 0x28, 4, 0x68]).unwrap_or(0_u16);
                    step[16..24].copy_from_slice(&u64::from(offset).to_le_bytes());
                    step[24..28].copy_from_slice(&[region, 0, 0, 0]);
                    let data = u32::try_from(step.len() - 32).unwrap_or(0);
                    step[28..32].copy_from_slice(&data.to_le_bytes());
                }
            }
            5 => step = vec![random.u8(0..3), random.u8(..), random.u8(0..9), 0],
            6 | 7 => {
                step.resize(64, 0);
                let admin = [0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 0x15, 0x7C, 0x80, 0x84];
                let io = [0, 1, 2, 4, 5, 6, 8, 9, 0x0C, 0x10, 0x14, 0x19];
                let opcodes: &[u8] = if kind == 6 { &admin } else { &io };
                step[0] = opcodes[random.usize(0..opcodes.len())];
                step[1] = random.choice([0, 0, 0, 0x40]).unwrap_or(0);
                step[4..8].copy_from_slice(&small(random));
                let page = u64::from(random.u16(0..16)) * 0x1000;
                step[24..32].copy_from_slice(&page.to_le_bytes());
                if random.bool() {
                    step[40..64].fill(0);
                    step[40..44].copy_from_slice(&u32::from(random.u16(..)).to_le_bytes());
                    step[44..48].copy_from_slice(&small(random));
                }
            }
            _ => {}
        }
        bytes.push(kind);
        bytes.push(u8::try_from(step.len()).unwrap_or(u8::MAX));
        bytes.extend(step);
    }
    bytes
}

#[test]
fn random_steps_never_stop_the_node() {
    let first = fastrand::u64(..) >> 16;
    for seed in first..first + 300 {
        let bytes = steps(&mut fastrand::Rng::with_seed(seed));
        let run = std::panic::catch_unwind(|| body::body(&bytes));
        assert!(run.is_ok(), "seed {seed}");
    }
}
