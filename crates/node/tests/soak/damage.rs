//! Damage to the flash file of a node that serves.

use crate::model::StrikeCount;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

const SECTOR_BYTES: usize = 512;

/// Flips a bit of a random sector that is in use.
pub(crate) fn strike(random: &mut fastrand::Rng, flash: &Path, strikes: &StrikeCount) {
    let file = OpenOptions::new().read(true).write(true).open(flash).unwrap();
    let sectors = file.metadata().unwrap().len() / SECTOR_BYTES as u64;
    // Counted first: from now on an answer may be an error.
    strikes.add();
    loop {
        let sector = random.u64(..sectors) * SECTOR_BYTES as u64;
        let mut bytes = [0; SECTOR_BYTES];
        file.read_exact_at(&mut bytes, sector).unwrap();
        if bytes.iter().any(|byte| *byte != 0) {
            let at = random.usize(..bytes.len());
            let struck = bytes[at] ^ 1 << random.u8(..8);
            file.write_all_at(&[struck], sector + at as u64).unwrap();
            file.sync_data().unwrap();
            return;
        }
    }
}
