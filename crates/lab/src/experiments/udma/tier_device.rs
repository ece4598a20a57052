//! A device on a file whose every buffer comes from its pool, by a method.
//!
//! Input: requests. Output: their data moved by commands of the device. Invariant: memory comes from `Device::buffer`, and
//! [`TierDevice::check`] fails unless the pool's own counters say that each request was served by the tier of its length.

use super::failed;
use super::protocol::{TierLedger, TierPreset, UdmaDirection, UdmaRequest, claimed_tier};
use crate::experiment::LabError;
use headwater_dma::pool::PinTier;
use headwater_io::uring::{UringDevice, UringOptions};
use headwater_io::{Buffer, Command, Device, IoError, PoolSettings, Queue, WriteDurability};
use std::path::Path;

/// The number of the only namespace of a file.
const NAMESPACE: u32 = 1;

/// The memory of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryMethod {
    /// One buffer for all requests, of at least this many bytes: the floor.
    Kept(usize),
    /// Memory that is allocated and pinned for each request: the dynamic tier, whatever the length.
    EachRequest,
    /// A buffer by the length of the request, with these limits.
    Tiers(TierPreset),
}

/// A device on a file, with its memory by one method.
#[derive(Debug)]
pub(super) struct TierDevice {
    method: MemoryMethod,
    kept: Option<Buffer>,
    ledger: TierLedger,
    queue: Queue,
    /// Memory of the program that small requests are copied from and to.
    program: Vec<u8>,
    block_bytes: u32,
    // Dropped last, because the queue belongs to it.
    device: Device,
}

impl TierDevice {
    /// Opens the device. Only the kept buffer is pinned before the first request.
    pub(super) fn open(path: &Path, method: MemoryMethod) -> Result<Self, LabError> {
        Self::try_open(path, method).map_err(failed)
    }

    fn try_open(path: &Path, method: MemoryMethod) -> Result<Self, IoError> {
        let settings = match method {
            MemoryMethod::Tiers(preset) => preset.settings(),
            MemoryMethod::Kept(_) | MemoryMethod::EachRequest => PoolSettings::default(),
        };
        let backend = UringDevice::open_with(path, UringOptions::default(), &settings)?;
        let mut device = Device::over(Box::new(backend), NAMESPACE)?;
        let mut ledger = TierLedger::default();
        let kept = match method {
            MemoryMethod::Kept(bytes) => {
                ledger.count(claimed_tier(device.pool().tier_choice().thresholds, bytes));
                Some(device.buffer(bytes)?)
            }
            MemoryMethod::EachRequest | MemoryMethod::Tiers(_) => None,
        };
        let block_bytes = device.namespace().block_bytes;
        let queue = device.queue(1)?;
        Ok(Self { method, kept, ledger, queue, program: Vec::new(), block_bytes, device })
    }

    /// Returns the unit of every request.
    pub(super) fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Runs a request from its memory to its completion. A small one is copied, because its memory stays in the tier.
    pub(super) fn run(&mut self, request: &UdmaRequest) -> Result<(), IoError> {
        let (buffer, tier) = self.take(request.bytes)?;
        let is_copied = tier == Some(PinTier::Static);
        if is_copied && self.program.len() < request.bytes {
            self.program.resize(request.bytes, 1);
        }
        if is_copied && request.direction == UdmaDirection::Write {
            buffer.write(0, &self.program[..request.bytes])?;
        }
        let lba = request.offset / u64::from(self.block_bytes);
        let data = buffer.slice(0, request.bytes)?;
        let command = match request.direction {
            UdmaDirection::Read => Command::read(NAMESPACE, lba, self.block_bytes, data)?,
            UdmaDirection::Write => {
                Command::write(NAMESPACE, lba, self.block_bytes, data, WriteDurability::NamespaceDefault)?
            }
        };
        self.queue.submit(command, 0)?;
        let gone = || IoError::Device { reason: "a command did not complete".to_owned() };
        self.queue.wait(None)?.ok_or_else(gone)?.into_result()?;
        if is_copied && request.direction == UdmaDirection::Read {
            buffer.read(0, &mut self.program[..request.bytes])?;
        }
        Ok(())
    }

    /// Takes the memory of a request, with its tier if the method has tiers.
    fn take(&mut self, bytes: usize) -> Result<(Buffer, Option<PinTier>), IoError> {
        match (self.method, &self.kept) {
            (MemoryMethod::Kept(_), Some(kept)) => Ok((kept.clone(), None)),
            (MemoryMethod::Kept(_) | MemoryMethod::EachRequest, _) => {
                self.ledger.count(PinTier::Dynamic);
                Ok((Buffer::from_pool(self.device.pool().pin_for_request(bytes)?), None))
            }
            (MemoryMethod::Tiers(_), _) => {
                let tier = claimed_tier(self.device.pool().tier_choice().thresholds, bytes);
                self.ledger.count(tier);
                Ok((self.device.buffer(bytes)?, Some(tier)))
            }
        }
    }

    /// Fails unless every request was served by the tier that is claimed for it, by the counters of the device's pool.
    ///
    /// # Errors
    /// The numbers.
    pub(super) fn check(&self) -> Result<(), LabError> {
        self.ledger.check(self.device.pool())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::udma::protocol::{CLASSES, requests};

    fn file(bytes: usize) -> (crate::experiment::RunContext, std::path::PathBuf) {
        let options = crate::experiment::RunOptions { quick: true, ..Default::default() };
        let context = crate::experiment::RunContext::open(options).unwrap();
        let path = context.scratch().join("disk");
        let pattern: Vec<u8> = (0..=250).cycle().take(bytes).collect();
        std::fs::write(&path, pattern).unwrap();
        (context, path)
    }

    #[test]
    fn small_read_is_copied_out_of_a_slot_that_holds_the_bytes_of_the_file() {
        let (_context, path) = file(1 << 20);
        let mut device = TierDevice::open(&path, MemoryMethod::Tiers(TierPreset::Paper52)).unwrap();
        let request = UdmaRequest { bytes: 4_096, direction: UdmaDirection::Read, offset: 8_192 };
        device.run(&request).unwrap();
        let expected: Vec<u8> = (0..=250).cycle().skip(8_192).take(4_096).collect();
        assert_eq!(device.program[..4_096], expected);
        device.check().unwrap();
        assert_eq!(device.device.pool().statistics().tiers.served, [1, 0, 0]);
    }

    #[test]
    fn every_method_is_served_by_the_tiers_that_it_claims() {
        let (_context, path) = file(4 << 20);
        let methods = [MemoryMethod::Kept(2 << 20), MemoryMethod::EachRequest];
        for method in methods.into_iter().chain(TierPreset::ALL.map(MemoryMethod::Tiers)) {
            let mut device = TierDevice::open(&path, method).unwrap();
            let unit = usize::try_from(device.block_bytes()).unwrap();
            for class in &CLASSES {
                for request in requests(class, class.bounds[2], 10, (4 << 20, unit), 1) {
                    device.run(&request).unwrap();
                }
            }
            device.check().unwrap();
            let served = device.device.pool().statistics().tiers.served;
            match method {
                MemoryMethod::Kept(_) => assert_eq!(served, [0, 1, 0]),
                MemoryMethod::EachRequest => assert_eq!(served, [0, 0, 30]),
                MemoryMethod::Tiers(TierPreset::Paper52) => assert_eq!(served, [10, 10, 10]),
                MemoryMethod::Tiers(TierPreset::Paper41) => assert_eq!(served, [10, 20, 0]),
                MemoryMethod::Tiers(TierPreset::Ours) => assert_eq!(served.iter().sum::<u64>(), 30),
            }
            // Memory taken elsewhere than the claims say is found.
            device.ledger.count(PinTier::Pool);
            assert!(device.check().is_err());
        }
    }
}
