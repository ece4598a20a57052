//! A simulated pinner with costs in virtual time and injected failures.
//!
//! Input: costs, and errors to inject. Output: tokens with simulated device addresses. Invariant: pinned ranges never
//! overlap, and only pinned ranges are unpinned; either violation is an error, as from a real driver.

use super::{MemoryPinner, PinError, PinToken, PoolClock};
use headwater_host::clock::Nanos;
use headwater_host::sync::{AtomicU64, Mutex, Ordering};
use std::collections::{BTreeMap, VecDeque};
use std::sync::PoisonError;

/// Costs of pinning, in virtual time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimulatedCosts {
    /// For each call that pins.
    pub pin: Nanos,
    /// For each page of 4 KiB that is pinned.
    pub pin_page: Nanos,
    /// For each call that unpins.
    pub unpin: Nanos,
    /// For each page of 4 KiB that is unpinned.
    pub unpin_page: Nanos,
}

/// First device address, chosen so that it differs from every address of the process.
const IOVA_BASE: u64 = 1 << 40;

const PAGE_BYTES: usize = headwater_host::reservation::PAGE_BYTES;

/// A simulated pinner, and the virtual clock that it advances.
#[derive(Debug, Default)]
pub struct SimulatedPinner {
    costs: SimulatedCosts,
    now: AtomicU64,
    state: Mutex<SimulatedPinnerState>,
}

#[derive(Debug, Default)]
struct SimulatedPinnerState {
    pinned: BTreeMap<usize, PinToken>,
    next_iova: u64,
    refusals: VecDeque<InjectedRefusal>,
    stuck: bool,
}

#[derive(Clone, Copy, Debug)]
struct InjectedRefusal {
    after: u32,
    errno: i32,
}

impl SimulatedPinner {
    /// Creates a pinner with these costs, at time zero.
    #[must_use]
    pub fn new(costs: SimulatedCosts) -> Self {
        Self { costs, ..Self::default() }
    }

    /// Advances the virtual time.
    pub fn advance(&self, span: Nanos) {
        self.now.fetch_add(span.0, Ordering::Relaxed);
    }

    /// Refuses one pin with the error number `errno`, after `after` successful ones. Several refusals are applied in
    /// turn.
    pub fn refuse(&self, errno: i32, after: u32) {
        self.locked(|state| state.refusals.push_back(InjectedRefusal { after, errno }));
    }

    /// Makes unpins fail from now on, as for a device that does not release memory; or succeed again.
    pub fn fail_unpins(&self, stuck: UnpinFailure) {
        self.locked(|state| state.stuck = stuck == UnpinFailure::Yes);
    }

    /// Returns the bytes pinned now.
    #[must_use]
    pub fn pinned_bytes(&self) -> usize {
        self.locked(|state| state.pinned.values().map(|token| token.bytes).sum())
    }

    fn locked<T>(&self, change: impl FnOnce(&mut SimulatedPinnerState) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn spend(&self, call: Nanos, page: Nanos, bytes: usize) {
        let pages = bytes.div_ceil(PAGE_BYTES) as u64;
        self.advance(Nanos(call.0.saturating_add(page.0.saturating_mul(pages))));
    }
}

/// Behaviour of the simulated device on unpin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnpinFailure {
    /// The device keeps the memory.
    Yes,
    /// The device releases the memory.
    No,
}

impl PoolClock for SimulatedPinner {
    fn now(&self) -> Nanos {
        Nanos(self.now.load(Ordering::Relaxed))
    }
}

impl MemoryPinner for SimulatedPinner {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn can_merge(&self) -> bool {
        false
    }

    fn pin(&self, address: usize, bytes: usize) -> Result<PinToken, PinError> {
        self.spend(self.costs.pin, self.costs.pin_page, bytes);
        self.locked(|state| {
            if let Some(refusal) = state.refusals.front_mut() {
                let Some(after) = refusal.after.checked_sub(1) else {
                    let errno = refusal.errno;
                    state.refusals.pop_front();
                    return Err(PinError::from_errno(bytes, errno));
                };
                refusal.after = after;
            }
            let end = address.saturating_add(bytes);
            let below = state.pinned.range(..end).next_back();
            if below.is_some_and(|(_, other)| other.address + other.bytes > address) {
                return Err(PinError::Exists { bytes });
            }
            let iova = IOVA_BASE + state.next_iova;
            state.next_iova += bytes as u64;
            let token = PinToken { address, bytes, iova: Some(iova), slot: None };
            state.pinned.insert(address, token);
            Ok(token)
        })
    }

    fn unpin(&self, token: PinToken) -> Result<(), PinError> {
        self.spend(self.costs.unpin, self.costs.unpin_page, token.bytes);
        self.locked(|state| {
            let known = state.pinned.get(&token.address) == Some(&token);
            if !known || state.stuck {
                return Err(PinError::Short { bytes: token.bytes, unpinned: 0 });
            }
            state.pinned.remove(&token.address);
            Ok(())
        })
    }
}
