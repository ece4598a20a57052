//! Lists that Identify returns: namespace identifiers, controllers, and namespace identification descriptors
//! (NVMe Base 2.0 sections 4.4.1, 4.4.2 and figure 278).
//!
//! Input: identifiers in ascending order. Output: one 4,096-byte page, padded with zeroes after the last entry.

use super::IDENTIFY_LENGTH;
use headwater_host::width::narrow;

/// Maximum identifiers of a Namespace List.
pub const NSID_LIST_MAX: usize = IDENTIFY_LENGTH / 4;

/// Builds a Namespace List: the identifiers above `after`, as many as fit.
#[must_use]
pub fn namespace_list(after: u32, namespaces: impl Iterator<Item = u32>) -> Vec<u8> {
    let listed = namespaces.filter(|&nsid| nsid > after).take(NSID_LIST_MAX);
    page(listed.flat_map(u32::to_le_bytes))
}

/// Builds a Controller List: the count, then the identifiers from `from` on.
#[must_use]
pub fn controller_list(from: u16, controllers: impl Iterator<Item = u16>) -> Vec<u8> {
    let listed: Vec<u16> = controllers.filter(|&id| id >= from).take(IDENTIFY_LENGTH / 2 - 1).collect();
    let count = narrow(listed.len());
    page(std::iter::once(count).chain(listed).flat_map(u16::to_le_bytes))
}

fn page(bytes: impl Iterator<Item = u8>) -> Vec<u8> {
    let mut page = Vec::with_capacity(IDENTIFY_LENGTH);
    page.extend(bytes);
    page.resize(IDENTIFY_LENGTH, 0);
    page
}

/// NIDT (figure 278).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorKind {
    /// 2h: NGUID, 16 bytes.
    Nguid,
    /// 3h: UUID, 16 bytes.
    Uuid,
    /// 4h: CSI, 1 byte.
    CommandSet,
}

/// A builder of the identification descriptors of one namespace (CNS 03h).
#[derive(Clone, Debug, Default)]
pub struct DescriptorWriter(Vec<u8>);

impl DescriptorWriter {
    /// Appends a descriptor.
    ///
    /// # Panics
    /// The identifier is longer than 255 bytes, which the format cannot describe.
    #[must_use]
    pub fn with(mut self, kind: DescriptorKind, identifier: &[u8]) -> Self {
        let number = match kind {
            DescriptorKind::Nguid => 2,
            DescriptorKind::Uuid => 3,
            DescriptorKind::CommandSet => 4,
        };
        self.0.extend([number, narrow(identifier.len()), 0, 0]);
        self.0.extend(identifier);
        self
    }

    /// Returns the page.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        page(self.0.into_iter().take(IDENTIFY_LENGTH))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_start_at_requested_identifier_and_end_in_zeroes() {
        let list = namespace_list(2, [1, 2, 3, 7].into_iter());
        assert_eq!(list.len(), 4096);
        assert_eq!(list[..12], [3, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(namespace_list(0, 1..5_000).len(), 4096);
        let list = controller_list(2, [1_u16, 2, 300].into_iter());
        assert_eq!(list[..8], [2, 0, 2, 0, 44, 1, 0, 0]);
        assert_eq!(controller_list(0, 0..=u16::MAX).len(), 4096);
    }

    #[test]
    fn descriptors_have_the_specified_layout() {
        let page = DescriptorWriter::default()
            .with(DescriptorKind::Uuid, &[9; 16])
            .with(DescriptorKind::CommandSet, &[1])
            .finish();
        assert_eq!(page[..4], [3, 16, 0, 0]);
        assert_eq!(page[20..26], [4, 1, 0, 0, 1, 0]);
        assert_eq!(page.len(), 4096);
    }
}
