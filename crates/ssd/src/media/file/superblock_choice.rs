//! The choice among the four copies of the superblock.
//!
//! Input: a file. Output: the superblock that counts, and the copies that differ from it. Invariant: at least two intact
//! copies in their places agree on the superblock that is chosen, and no other superblock with two copies could have
//! been meant.

use super::backing::StartupFile;
use super::layout::{FlashLayout, PIECE_BYTES, SUPERBLOCK_COPIES};
use super::superblock::{BadSuperblock, Superblock, SuperblockFault};

/// The superblock that counts.
#[derive(Debug)]
pub(super) struct ChosenSuperblock {
    pub(super) superblock: Superblock,
    /// The copies that are not as it says.
    pub(super) bad: Vec<BadSuperblock>,
}

/// The copies of a superblock of which no two agree, or of which two pairs disagree.
#[derive(Debug)]
pub(super) struct UndecidedSuperblock {
    /// The fault of each copy that has one.
    pub(super) bad: Vec<BadSuperblock>,
    /// The shape of the file, if one copy is intact.
    pub(super) guess: Option<FlashLayout>,
}

/// A piece of a file, or the reason why it could not be read.
type FoundPiece = Result<Box<[u8; PIECE_BYTES]>, SuperblockFault>;

/// Reads pieces of a file, each of them once.
#[derive(Debug)]
pub(super) struct PieceReader<'f, F> {
    file: &'f F,
    file_bytes: u64,
    pieces: Vec<(u64, FoundPiece)>,
}

impl<'f, F: StartupFile> PieceReader<'f, F> {
    pub(super) fn new(file: &'f F, file_bytes: u64) -> Self {
        Self { file, file_bytes, pieces: Vec::new() }
    }

    /// Returns the piece at an offset.
    pub(super) fn piece(&mut self, offset: u64) -> FoundPiece {
        if let Some((_, known)) = self.pieces.iter().find(|(at, _)| *at == offset) {
            return known.clone();
        }
        let read = self.read(offset);
        self.pieces.push((offset, read.clone()));
        read
    }

    fn read(&self, offset: u64) -> FoundPiece {
        if offset.saturating_add(PIECE_BYTES as u64) > self.file_bytes {
            return Err(SuperblockFault::Missing);
        }
        let mut piece = Box::new([0; PIECE_BYTES]);
        match self.file.read_at(&mut *piece, offset) {
            Ok(()) => Ok(piece),
            Err(error) => Err(SuperblockFault::Unreadable { errno: error.raw_os_error() }),
        }
    }

    fn copy(&mut self, offset: u64, copy: u8) -> Result<Superblock, SuperblockFault> {
        Superblock::decode(&*self.piece(offset)?, copy)
    }

    /// Returns the copies that are not this superblock, each in the place where it says that they lie.
    fn differing(&mut self, superblock: &Superblock) -> Vec<BadSuperblock> {
        let copies = (0..SUPERBLOCK_COPIES).filter_map(|copy| {
            let fault = match self.copy(superblock.layout.superblock_offset(copy), copy) {
                Ok(found) if found == *superblock => return None,
                Ok(other) => SuperblockFault::Differs { revision: other.revision },
                Err(fault) => fault,
            };
            Some(BadSuperblock { copy, fault })
        });
        copies.collect()
    }

    /// Chooses the superblock of the highest revision that two copies agree on.
    pub(super) fn choose(&mut self) -> Result<ChosenSuperblock, UndecidedSuperblock> {
        // Of any two copies one lies in one of these places; the last copy, if the file has its full length.
        let places =
            [(0, 0), (1, PIECE_BYTES as u64), (3, self.file_bytes.saturating_sub(PIECE_BYTES as u64))];
        let intact: Vec<Superblock> =
            places.iter().filter_map(|&(copy, offset)| self.copy(offset, copy).ok()).collect();
        let mut chosen: Option<ChosenSuperblock> = None;
        let mut contradicted = false;
        for superblock in &intact {
            let bad = self.differing(superblock);
            if bad.len() + 2 > usize::from(SUPERBLOCK_COPIES) {
                continue;
            }
            let this = ChosenSuperblock { superblock: superblock.clone(), bad };
            match &chosen {
                Some(other) if other.superblock == *superblock => {}
                Some(ChosenSuperblock { superblock: other, .. }) => {
                    contradicted |=
                        other.revision == superblock.revision || other.layout.uuid != superblock.layout.uuid;
                    if superblock.revision > other.revision {
                        chosen = Some(this);
                    }
                }
                None => chosen = Some(this),
            }
        }
        match chosen.filter(|_| !contradicted) {
            Some(chosen) => Ok(chosen),
            None => Err(self.undecided(intact.first(), places)),
        }
    }

    fn undecided(&mut self, intact: Option<&Superblock>, places: [(u8, u64); 3]) -> UndecidedSuperblock {
        let Some(guess) = intact else {
            // Without an intact copy nothing tells where the third lies.
            let fault = |this: &mut Self, (copy, offset)| {
                let fault = this.copy(offset, copy).err()?;
                Some(BadSuperblock { copy, fault })
            };
            let mut bad: Vec<_> = places.into_iter().filter_map(|place| fault(self, place)).collect();
            bad.insert(2, BadSuperblock { copy: 2, fault: SuperblockFault::Missing });
            return UndecidedSuperblock { bad, guess: None };
        };
        UndecidedSuperblock { bad: self.differing(guess), guess: Some(guess.layout) }
    }
}
