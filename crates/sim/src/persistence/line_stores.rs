//! Stores to one line of persistent memory that no fence has made durable.
//!
//! Input: stores to the line, flushes, fences. Output: the durable bytes after a fence; the bytes that a power cut can
//! leave, all of them or one drawn from a seed. Invariant: after a fence nothing is pending that was flushed or streamed.

use headwater_host::persistent_memory::{LINE_BYTES, WORD_BYTES};

/// The bytes of a line.
pub(super) type LineImage = [u8; LINE_BYTES];

/// The order in which the words of one call become durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WordOrder {
    /// Any: the rule of [`headwater_host::persistent_memory`].
    #[default]
    Any,
    /// From the first to the last: a copy by ascending stores on x86-64. It finds less, and has fewer states.
    Ascending,
}

/// The way of a store to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreRoute {
    /// Through the cache: durable in the order of the calls.
    Cached,
    /// Past the cache: durable in any order.
    Streaming,
}

/// The smallest part of a store that is durable or not: a word, or a byte that fills none.
#[derive(Clone, Debug)]
struct StorePiece {
    /// The number of the operation that stored it.
    operation: usize,
    route: StoreRoute,
    is_flushed: bool,
    /// The first byte in the line.
    start: usize,
    bytes: Vec<u8>,
    /// False for each byte over which a later store is durable.
    live: [bool; WORD_BYTES],
}

impl StorePiece {
    fn is_fenced(&self) -> bool {
        self.is_flushed || self.route == StoreRoute::Streaming
    }

    fn apply(&self, image: &mut LineImage) {
        for (place, byte) in self.bytes.iter().enumerate().filter(|(place, _)| self.live[*place]) {
            image[self.start + place] = *byte;
        }
    }

    /// Marks the bytes that a later, durable piece stored.
    fn supersede(&mut self, later: &Self) {
        let stored = later.start..later.start + later.bytes.len();
        for place in 0..self.bytes.len() {
            self.live[place] &= !stored.contains(&(self.start + place));
        }
    }
}

/// The pending stores of a line, in the order of the program.
#[derive(Clone, Debug, Default)]
pub(super) struct LineStores {
    pieces: Vec<StorePiece>,
}

impl LineStores {
    /// Adds the part of a store that lies in the line, from byte `start` of the line on.
    pub(super) fn store(&mut self, operation: usize, route: StoreRoute, start: usize, mut bytes: &[u8]) {
        let mut start = start;
        while !bytes.is_empty() {
            let is_word = start.is_multiple_of(WORD_BYTES) && bytes.len() >= WORD_BYTES;
            let (piece, rest) = bytes.split_at(if is_word { WORD_BYTES } else { 1 });
            let (live, is_flushed, bytes_of) = ([true; WORD_BYTES], false, piece.to_vec());
            self.pieces.push(StorePiece { operation, route, is_flushed, start, bytes: bytes_of, live });
            (start, bytes) = (start + piece.len(), rest);
        }
    }

    /// Starts the write-back of the line. Returns false if no store waited for it.
    pub(super) fn flush(&mut self) -> bool {
        let mut is_needed = false;
        for piece in self.pieces.iter_mut().filter(|piece| !piece.is_fenced()) {
            (piece.is_flushed, is_needed) = (true, true);
        }
        is_needed
    }

    /// Makes durable what was flushed or streamed. Returns false if nothing was.
    pub(super) fn fence(&mut self, durable: &mut [u8]) -> bool {
        let before = self.pieces.len();
        let mut image = to_image(durable);
        let mut kept: Vec<StorePiece> = Vec::new();
        for piece in self.pieces.drain(..) {
            if piece.is_fenced() {
                piece.apply(&mut image);
                kept.iter_mut().for_each(|earlier| earlier.supersede(&piece));
            } else {
                kept.push(piece);
            }
        }
        durable.copy_from_slice(&image);
        self.pieces = kept;
        self.pieces.len() < before
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Returns the operation of the first pending store that no flush covers.
    pub(super) fn first_unflushed(&self) -> Option<usize> {
        self.pieces.iter().find(|piece| !piece.is_fenced()).map(|piece| piece.operation)
    }

    /// Returns the operation of the first pending store that waits for a fence only.
    pub(super) fn first_unfenced(&self) -> Option<usize> {
        self.pieces.iter().find(|piece| piece.is_fenced()).map(|piece| piece.operation)
    }

    /// Returns the line with all stores.
    pub(super) fn newest(&self, durable: &[u8]) -> LineImage {
        self.image(durable, |_| true)
    }

    /// Returns the line with the stores whose places in the list are chosen.
    fn image(&self, durable: &[u8], is_chosen: impl Fn(usize) -> bool) -> LineImage {
        let mut image = to_image(durable);
        for (_, piece) in self.pieces.iter().enumerate().filter(|(place, _)| is_chosen(*place)) {
            piece.apply(&mut image);
        }
        image
    }

    /// Returns the places of the pieces of this route, a group for each call.
    fn groups(&self, route: StoreRoute) -> Vec<Vec<usize>> {
        let mut groups: Vec<(usize, Vec<usize>)> = Vec::new();
        for (place, piece) in self.pieces.iter().enumerate().filter(|(_, piece)| piece.route == route) {
            match groups.last_mut() {
                Some((operation, group)) if *operation == piece.operation => group.push(place),
                _ => groups.push((piece.operation, vec![place])),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }

    /// Returns every distinct image that a power cut can leave; `None` if there can be more than `images_max`.
    pub(super) fn images(
        &self,
        durable: &[u8],
        order: WordOrder,
        images_max: usize,
    ) -> Option<Vec<LineImage>> {
        let streaming = self.groups(StoreRoute::Streaming).concat();
        let cached = cached_choices(&self.groups(StoreRoute::Cached), order, images_max)?;
        let subsets = 1_usize.checked_shl(u32::try_from(streaming.len()).ok()?)?;
        if subsets.checked_mul(cached.len())? > images_max {
            return None;
        }
        let mut found = Vec::new();
        for choice in &cached {
            for subset in 0..subsets {
                found.push(self.image(durable, |place| {
                    let streamed = streaming.iter().position(|of| *of == place);
                    streamed.map_or_else(|| choice.contains(&place), |bit| subset >> bit & 1 == 1)
                }));
            }
        }
        found.sort_unstable();
        found.dedup();
        Some(found)
    }

    /// Draws one of the images that a power cut can leave.
    pub(super) fn draw(&self, rng: &mut fastrand::Rng, durable: &[u8], order: WordOrder) -> LineImage {
        let groups = self.groups(StoreRoute::Cached);
        let whole = rng.usize(0..=groups.len());
        let mut chosen: Vec<usize> = groups[..whole].concat();
        if let Some(partial) = groups.get(whole) {
            let words = rng.usize(0..=partial.len());
            let is_kept = |(nth, _): &(usize, &usize)| match order {
                WordOrder::Ascending => *nth < words,
                WordOrder::Any => rng.bool(),
            };
            chosen.extend(partial.iter().enumerate().filter(is_kept).map(|(_, place)| *place));
        }
        // A part of the lines keeps all or nothing of what was streamed: halves alone would make both rare.
        let streaming = self.groups(StoreRoute::Streaming).concat();
        let percent = [0, 50, 90, 100][rng.usize(0..4)];
        chosen.extend(streaming.into_iter().filter(|_| rng.u8(0..100) < percent));
        self.image(durable, |place| chosen.contains(&place))
    }
}

/// Returns the sets of places that can be durable of stores through the cache: whole calls, and a part of the next.
/// `None` if there are more than `choices_max`.
fn cached_choices(groups: &[Vec<usize>], order: WordOrder, choices_max: usize) -> Option<Vec<Vec<usize>>> {
    let mut found = Vec::new();
    let mut whole: Vec<usize> = Vec::new();
    for group in groups {
        // The whole group is the empty part of the next.
        let parts = match order {
            WordOrder::Ascending => group.len(),
            WordOrder::Any => 1_usize.checked_shl(u32::try_from(group.len()).ok()?)? - 1,
        };
        if found.len().checked_add(parts)? > choices_max {
            return None;
        }
        for part in 0..parts {
            let is_kept = |nth: usize| match order {
                WordOrder::Ascending => nth < part,
                WordOrder::Any => part >> nth & 1 == 1,
            };
            let kept = group.iter().enumerate().filter(|(nth, _)| is_kept(*nth)).map(|(_, place)| *place);
            found.push(whole.iter().copied().chain(kept).collect());
        }
        whole.extend(group);
    }
    found.push(whole);
    Some(found)
}

/// Copies the bytes of a line.
pub(super) fn to_image(line: &[u8]) -> LineImage {
    let mut image = [0; LINE_BYTES];
    image.copy_from_slice(line);
    image
}
