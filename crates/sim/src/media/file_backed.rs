//! The real file medium over a simulated file, in the place of simulated flash.
//!
//! Input: a configuration, or the file of an earlier boot. Output: a medium that is opened when the device opens.
//! Invariant: the file is checked under the faults and the power cut of the boot, as in service.

use super::struck::FILE_UUID;
use super::{CrashImage, FlashMisuse, MediaRequest, SimMedia, SimMediaConfig};
use crate::flash::SimFlash;
use crate::simulated_file::{SimFile, SimRing};
use headwater_host::clock::Nanos;
use headwater_ssd::media::file::{FileMedia, OpenAccess, ZeroFillMode, write_new_file};
use headwater_ssd::media::{FlashGeometry, Media, MediaOp, MediaToken, NandRules, RefusalReason, RefusedOp};
use std::path::PathBuf;

/// A file medium that is opened at its first use.
#[derive(Debug)]
pub(super) struct FileBacked {
    file: SimFile,
    access: OpenAccess,
    opened: Option<Result<Box<FileMedia<SimRing>>, String>>,
}

impl FileBacked {
    /// Creates a file on which every block is erased.
    pub(super) fn new(config: &SimMediaConfig) -> Self {
        let file = SimFile::allocated(config.geometry, 0);
        let written = write_new_file(&file, config.geometry, FILE_UUID);
        assert!(written.is_ok(), "a file without faults takes every write");
        Self::over(file.snapshot(), OpenAccess::New)
    }

    pub(super) fn over(file: SimFile, access: OpenAccess) -> Self {
        Self { file, access, opened: None }
    }

    pub(super) fn file(&self) -> &SimFile {
        &self.file
    }

    /// Returns the medium, which the first call opens.
    ///
    /// # Errors
    /// The reason why the file cannot be opened.
    pub(super) fn media(&mut self) -> Result<&mut FileMedia<SimRing>, &str> {
        let Self { file, access, opened } = self;
        let opened = opened.get_or_insert_with(|| {
            FileMedia::open_over(file, file.ring(), PathBuf::from("flash"), *access, ZeroFillMode::Ahead)
                .map(Box::new)
                .map_err(|error| error.to_string())
        });
        opened.as_deref_mut().map_err(|why| why.as_str())
    }

    /// Returns the medium if it was opened.
    pub(super) fn opened(&self) -> Option<&FileMedia<SimRing>> {
        self.opened.as_ref()?.as_deref().ok()
    }

    /// Submits to the medium; a file that cannot be opened takes nothing. A refusal by a rule of NAND is recorded.
    pub(super) fn submit(
        &mut self,
        crash_image: &CrashImage,
        token: MediaToken,
        op: MediaOp,
        now: Nanos,
    ) -> Result<(), RefusedOp> {
        let page = MediaRequest::of(&op).page();
        let Ok(media) = self.media() else {
            return Err(RefusedOp { op, reason: RefusalReason::QueueFull });
        };
        media.submit(token, op, now).inspect_err(|refused| {
            if let RefusalReason::Rule(rule) = refused.reason {
                crash_image.lock().misuse.get_or_insert(FlashMisuse::Rule { rule, page });
            }
        })
    }
}

impl SimMedia {
    pub(super) fn with_file(config: SimMediaConfig, file: FileBacked) -> Self {
        let no_flash = SimFlash::blank(
            FlashGeometry { blocks: 0, ..config.geometry },
            config.cache(),
            config.addressing,
        );
        let mut media = Self::with_flash(config, no_flash, NandRules::unknown(config.geometry));
        media.crash_image.lock().file = Some(file.file().clone());
        media.file = Some(file);
        media
    }

    /// Opens the medium, if it has to be opened. A device calls it before everything else.
    ///
    /// # Errors
    /// The reason why the file is refused.
    pub fn start(&mut self) -> Result<(), String> {
        match &mut self.file {
            Some(file) => file.media().map(drop).map_err(str::to_owned),
            None => Ok(()),
        }
    }
}
