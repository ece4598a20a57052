//! NAND rules that every medium here enforces: a page is programmed once, in order, after an erase.
//!
//! Input: the operations on a medium. Output: `Ok`, or the [`NandRule`] that an operation breaks. The state is one
//! write pointer per block. Invariant: between erases the write pointer only grows.

use super::geometry::{BlockId, FlashGeometry, PAGES_PER_BLOCK, PageAddress};
use std::fmt;

/// A rule of NAND flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NandRule {
    /// The page was programmed since its block was last erased.
    ProgrammedTwice,
    /// The page is not the next one of its block.
    OutOfOrder,
    /// The page or block does not exist.
    OutsideGeometry,
    /// The block was not erased since the medium was opened, and its state is unknown.
    NotErased,
    /// The medium was opened read-only.
    ReadOnly,
}

impl fmt::Display for NandRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ProgrammedTwice => "page programmed twice without an erase",
            Self::OutOfOrder => "page programmed out of order",
            Self::OutsideGeometry => "address outside the medium",
            Self::NotErased => "block programmed without an erase",
            Self::ReadOnly => "medium opened read-only",
        })
    }
}

/// The write pointer of a block with unknown state, until it is erased.
const UNKNOWN: u8 = u8::MAX;

/// The operations that a medium permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NandAccess {
    ReadWrite,
    ReadOnly,
}

/// The write pointers of all blocks.
#[derive(Clone, Debug)]
pub struct NandRules {
    geometry: FlashGeometry,
    next_page: Vec<u8>,
    access: NandAccess,
}

impl NandRules {
    /// Makes the rules of a medium with all blocks erased.
    #[must_use]
    pub fn erased(geometry: FlashGeometry) -> Self {
        Self { geometry, next_page: vec![0; geometry.blocks as usize], access: NandAccess::ReadWrite }
    }

    /// Makes the rules of a used medium after it was opened: no block may be programmed before it is erased.
    #[must_use]
    pub fn unknown(geometry: FlashGeometry) -> Self {
        Self { next_page: vec![UNKNOWN; geometry.blocks as usize], ..Self::erased(geometry) }
    }

    /// Makes the rules of a read-only medium: no block may be programmed or erased.
    #[must_use]
    pub fn read_only(geometry: FlashGeometry) -> Self {
        Self { access: NandAccess::ReadOnly, ..Self::unknown(geometry) }
    }

    /// Checks a read.
    ///
    /// # Errors
    /// The page lies outside the medium.
    pub fn read(&self, page: PageAddress) -> Result<(), NandRule> {
        if self.geometry.contains(page) { Ok(()) } else { Err(NandRule::OutsideGeometry) }
    }

    /// Checks a program and moves the write pointer.
    ///
    /// # Errors
    /// The rule that the program breaks; the pointer does not move.
    pub fn program(&mut self, page: PageAddress) -> Result<(), NandRule> {
        self.check_change(page)?;
        let next = &mut self.next_page[page.block.index()];
        if *next == UNKNOWN {
            return Err(NandRule::NotErased);
        }
        if page.page < *next {
            return Err(NandRule::ProgrammedTwice);
        }
        if page.page > *next {
            return Err(NandRule::OutOfOrder);
        }
        *next += 1;
        Ok(())
    }

    /// Checks an erase and resets the write pointer.
    ///
    /// # Errors
    /// The block lies outside the medium, or the medium is read only.
    pub fn erase(&mut self, block: BlockId) -> Result<(), NandRule> {
        self.check_change(PageAddress::new(block, 0))?;
        self.next_page[block.index()] = 0;
        Ok(())
    }

    /// Checks the write of a commit cell.
    ///
    /// # Errors
    /// The medium is read only.
    pub fn write_cell(&self) -> Result<(), NandRule> {
        match self.access {
            NandAccess::ReadWrite => Ok(()),
            NandAccess::ReadOnly => Err(NandRule::ReadOnly),
        }
    }

    fn check_change(&self, page: PageAddress) -> Result<(), NandRule> {
        match self.access {
            NandAccess::ReadWrite => self.read(page),
            NandAccess::ReadOnly => Err(NandRule::ReadOnly),
        }
    }

    /// Returns the pages programmed in a block since its erase; 0 if the block's state is unknown.
    #[must_use]
    pub fn programmed(&self, block: BlockId) -> usize {
        match self.next_page.get(block.index()) {
            Some(&next) if next != UNKNOWN => usize::from(next).min(PAGES_PER_BLOCK),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(block: u32, page: u8) -> PageAddress {
        PageAddress::new(BlockId(block), page)
    }

    #[test]
    fn a_page_is_programmed_only_once() {
        let mut rules = NandRules::erased(FlashGeometry::with_blocks(2));
        rules.program(page(0, 0)).unwrap();
        assert_eq!(rules.program(page(0, 0)), Err(NandRule::ProgrammedTwice));
        rules.erase(BlockId(0)).unwrap();
        rules.program(page(0, 0)).unwrap();
    }

    #[test]
    fn pages_are_programmed_in_order() {
        let mut rules = NandRules::erased(FlashGeometry::with_blocks(2));
        assert_eq!(rules.program(page(1, 1)), Err(NandRule::OutOfOrder));
        rules.program(page(1, 0)).unwrap();
        rules.program(page(1, 1)).unwrap();
        assert_eq!(rules.programmed(BlockId(1)), 2);
    }

    #[test]
    fn addresses_outside_are_refused() {
        let mut rules = NandRules::erased(FlashGeometry::with_blocks(2));
        assert_eq!(rules.program(page(2, 0)), Err(NandRule::OutsideGeometry));
        assert_eq!(rules.program(page(0, 64)), Err(NandRule::OutsideGeometry));
        assert_eq!(rules.erase(BlockId(9)), Err(NandRule::OutsideGeometry));
        assert_eq!(rules.read(page(2, 0)), Err(NandRule::OutsideGeometry));
    }

    #[test]
    fn a_used_medium_must_be_erased_before_it_is_programmed() {
        let mut rules = NandRules::unknown(FlashGeometry::with_blocks(1));
        assert_eq!(rules.program(page(0, 0)), Err(NandRule::NotErased));
        rules.erase(BlockId(0)).unwrap();
        rules.program(page(0, 0)).unwrap();
    }
}
