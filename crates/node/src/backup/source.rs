//! The connection to the node that holds a snapshot, and the flash file that it names.
//!
//! Input: a data directory. Output: the parts of a snapshot, and whether it is still held. Invariant: the snapshot ends
//! with the connection.

use super::BackupError;
use super::manifest::BlockLife;
use headwater_frontend::backup::message::{
    BackupRequest, BackupStatus, KnownBlock, SOCKET_NAME, SnapshotBlockEntry, SnapshotHeader, SnapshotRecord,
};
use headwater_ssd::media::file::FLASH_FILE_NAME;
use std::fs::File;
use std::io::{ErrorKind, Read, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use zerocopy::{FromBytes, IntoBytes};

/// The parts of a snapshot.
#[derive(Debug)]
pub struct SnapshotParts {
    /// Its header.
    pub header: SnapshotHeader,
    /// The commit records, with their offsets.
    pub records: Vec<(u64, Vec<u8>)>,
    /// The blocks with their pages.
    pub blocks: Vec<(BlockLife, u16)>,
}

/// A connection to a node, with at most one snapshot.
#[derive(Debug)]
pub struct SnapshotLink {
    data: PathBuf,
    stream: UnixStream,
    /// The bytes of copied blocks that are not sent yet.
    unsent: Vec<u8>,
    /// The status that the node sent after the list.
    lost: Option<BackupStatus>,
}

/// Copied blocks after which the node is told.
const COPIED_PER_MESSAGE: usize = 64;

impl SnapshotLink {
    /// Connects to the node of a data directory and requests a snapshot. The node need not keep the known blocks.
    ///
    /// # Errors
    /// No node serves from the directory, or it refuses.
    pub fn request(data: &Path, known: &[BlockLife]) -> Result<Self, BackupError> {
        let no_node = |source| BackupError::NoNode { data: data.to_owned(), source };
        let stream = UnixStream::connect(data.join(SOCKET_NAME)).map_err(no_node)?;
        let mut link = Self { data: data.to_owned(), stream, unsent: Vec::new(), lost: None };
        let count = u32::try_from(known.len()).unwrap_or(u32::MAX);
        let mut bytes = BackupRequest::new(count).as_bytes().to_vec();
        for &(offset, order) in known {
            bytes.extend(KnownBlock { offset: offset.into(), order: order.into() }.as_bytes());
        }
        // A node that refuses says so before it has read everything.
        let sent = link.stream.write_all(&bytes);
        match link.read_status()? {
            BackupStatus::Snapshot => {
                sent.map(|()| link).map_err(|source| BackupError::NodeGone { data: data.to_owned(), source })
            }
            status @ BackupStatus::LostNoSpace => {
                link.lost = Some(status);
                Ok(link)
            }
            status => Err(BackupError::Refused { data: data.to_owned(), status }),
        }
    }

    /// Reads the parts of the snapshot; `None` if it was lost before the node could name them.
    ///
    /// # Errors
    /// The connection ended.
    pub fn parts(&mut self) -> Result<Option<SnapshotParts>, BackupError> {
        if self.lost.is_some() {
            return Ok(None);
        }
        let header: SnapshotHeader = self.read()?;
        let records = (0..header.records.get()).map(|_| {
            let record: SnapshotRecord = self.read()?;
            Ok((record.offset.get(), record.bytes.to_vec()))
        });
        let records = records.collect::<Result<_, BackupError>>()?;
        let blocks = (0..header.blocks.get()).map(|_| {
            let block: SnapshotBlockEntry = self.read()?;
            let pages = u16::try_from(block.pages.get()).unwrap_or(u16::MAX);
            Ok(((block.offset.get(), block.order.get()), pages))
        });
        let blocks = blocks.collect::<Result<_, BackupError>>()?;
        Ok(Some(SnapshotParts { header, records, blocks }))
    }

    /// Tells the node that the block with this index is copied.
    pub fn note_copied(&mut self, index: usize) {
        self.unsent.extend(u32::try_from(index).unwrap_or(u32::MAX).to_le_bytes());
        if self.unsent.len() >= 4 * COPIED_PER_MESSAGE {
            // A node that is gone is noticed at the end.
            let _ = self.stream.write_all(&self.unsent);
            self.unsent.clear();
        }
    }

    /// Returns true if the snapshot was held until now.
    ///
    /// # Errors
    /// The node said why there will be none.
    pub fn is_held(&mut self) -> Result<bool, BackupError> {
        if self.lost.is_none() {
            let gone = |source| BackupError::NodeGone { data: self.data.clone(), source };
            self.stream.set_nonblocking(true).map_err(gone)?;
            let mut status = [0; 4];
            match self.stream.read(&mut status) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Ok(4) => self.lost = BackupStatus::decode(status),
                Ok(_) => return Err(gone(ErrorKind::UnexpectedEof.into())),
                Err(error) => return Err(gone(error)),
            }
        }
        match self.lost {
            Some(BackupStatus::LostNoSpace) => Ok(false),
            status => {
                let status = status.unwrap_or(BackupStatus::RefusedRequest);
                Err(BackupError::Refused { data: self.data.clone(), status })
            }
        }
    }

    fn read_status(&mut self) -> Result<BackupStatus, BackupError> {
        let bytes: [u8; 4] = self.read()?;
        let unknown = BackupError::Refused { data: self.data.clone(), status: BackupStatus::RefusedRequest };
        BackupStatus::decode(bytes).ok_or(unknown)
    }

    fn read<T: FromBytes + IntoBytes>(&mut self) -> Result<T, BackupError> {
        let mut value = T::new_zeroed();
        let read = self.stream.read_exact(value.as_mut_bytes());
        read.map_err(|source| BackupError::NodeGone { data: self.data.clone(), source })?;
        Ok(value)
    }
}

/// The flash file of a data directory, open for reading.
#[derive(Debug)]
pub struct SourceFile {
    /// The file.
    pub file: File,
    /// Its path.
    pub path: PathBuf,
    /// Its inode and the time of its creation in nanoseconds.
    pub identity: (u64, u64),
}

impl SourceFile {
    /// Opens the flash file of a data directory.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(data: &Path) -> Result<Self, BackupError> {
        use std::os::unix::fs::MetadataExt as _;
        let path = data.join(FLASH_FILE_NAME);
        let file = File::open(&path).map_err(BackupError::system(&path, "open the flash file"))?;
        let found = file.metadata().map_err(BackupError::system(&path, "look at the flash file"))?;
        // Without a time of creation the inode alone does not say that it is the file of an earlier backup.
        let born = found.created().ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
        let born =
            born.map_or_else(|| fastrand::u64(..), |at| u64::try_from(at.as_nanos()).unwrap_or(u64::MAX));
        Ok(Self { identity: (found.ino(), born), file, path })
    }
}
