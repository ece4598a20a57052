//! The report of a check as text.
//!
//! Input: a [`CheckReport`]. Output: a table of the namespaces, one line for each finding with its effect, and a summary.

use super::{CheckLocation, CheckPage, CheckReport, DamageEffect};
use std::fmt::{self, Display, Formatter};

impl Display for CheckLocation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { namespace, hash, block, page, offset } = self;
        write!(f, "namespace {namespace} hash {hash} at block {block} page {page} byte {offset}")
    }
}

impl Display for CheckPage {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { block, page, errno, needed_for } = self;
        write!(f, "block {block} page {page}, read for the {needed_for}")?;
        errno.map_or(Ok(()), |errno| write!(f, ", errno {errno}"))
    }
}

impl Display for CheckReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.write_namespaces(f)?;
        self.write_records(f)?;
        self.write_losses(f)?;
        self.write_copies(f)?;
        writeln!(
            f,
            "checkpoint {}, {} faults, {} records in doubt, {} differences between checkpoint and log, {} unreadable \
             blocks",
            self.checkpoint, self.faults, self.doubtful_records, self.disagreements, self.unreadable_blocks
        )?;
        write!(
            f,
            "{} damaged records, {} of incomplete batches, {} bytes live, {} blocks free: {}",
            self.damaged_records,
            self.discarded_records,
            self.live_bytes,
            self.free_blocks,
            match self.effect {
                DamageEffect::None => "whole",
                DamageEffect::FewerCopies => "NOT WHOLE, but every key is answered as if it were",
                DamageEffect::Errors => "NOT WHOLE: clients get errors, and no wrong answer",
                DamageEffect::Unproven => "NOT WHOLE: clients may get wrong answers",
            }
        )
    }
}

impl CheckReport {
    fn write_namespaces(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:>9} {:>12} {:>12} {:>10} {:>10} {:>10} {:>16}",
            "namespace", "counted", "whole", "damaged", "in doubt", "expired", "value bytes"
        )?;
        for found in &self.namespaces {
            writeln!(
                f,
                "{:>9} {:>12} {:>12} {:>10} {:>10} {:>10} {:>16}",
                found.namespace,
                found.counted,
                found.whole,
                found.damaged,
                found.in_doubt,
                found.expired,
                found.bytes
            )?;
        }
        Ok(())
    }

    /// Writes the faults of single records.
    fn write_records(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for found in &self.first_faults {
            let what = match found.fault {
                "damaged" => "a damaged record",
                "unreadable" => "a record that cannot be read",
                _ => "another key's record",
            };
            writeln!(f, "{what}: {}", found.location)?;
        }
        for found in &self.first_doubtful_records {
            writeln!(f, "a record in doubt: {found}")?;
        }
        let or_nowhere = |place: &Option<CheckLocation>| {
            place.as_ref().map_or_else(|| "nowhere".to_owned(), CheckLocation::to_string)
        };
        for found in &self.first_disagreements {
            let (by_checkpoint, by_log) = (or_nowhere(&found.by_checkpoint), or_nowhere(&found.by_log));
            writeln!(f, "locations differ: checkpoint {by_checkpoint}, log {by_log}")?;
        }
        Ok(())
    }

    /// Writes what is lost, with its effect.
    fn write_losses(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for page in &self.first_damaged_pages {
            writeln!(f, "a damaged page: block {} page {}", page.block, page.page)?;
        }
        for lost in &self.first_lost_runs {
            writeln!(
                f,
                "lost: {} pages of the log from number {:#x} on, which could hold records of the namespaces {} up to \
                 sequence {}",
                lost.pages,
                lost.first_tick,
                list(&lost.namespaces),
                lost.sequence_max
            )?;
        }
        for doubt in &self.namespaces_in_doubt {
            writeln!(
                f,
                "namespace {} is in doubt: {} keys with a sequence below {} are answered with errors, and all keys \
                 without a record, until they are written or deleted; it cannot be listed",
                doubt.namespace, doubt.keys, doubt.below
            )?;
        }
        if !self.unusable_namespaces.is_empty() {
            let numbers = list(&self.unusable_namespaces);
            writeln!(f, "the settings of the namespaces {numbers} are lost: each command of theirs fails")?;
        }
        if let Some(digest) = &self.doubt_digest {
            writeln!(
                f,
                "`headwater serve --accept-loss={digest}` ends the doubt: keys are answered without what is lost, \
                 with an older value or as absent"
            )?;
        }
        for found in &self.first_unreadable_pages {
            writeln!(f, "an unreadable page: {found}")?;
        }
        if let Some(digest) = &self.loss_digest {
            writeln!(
                f,
                "a start needs {} of {} unreadable pages and is refused; a later one may succeed, or give them up with \
                 `headwater serve --accept-loss={digest}`",
                self.opening_losses, self.unreadable_pages
            )?;
        }
        Ok(())
    }

    /// Writes the damaged copies, of which no client notices anything.
    fn write_copies(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for damaged in &self.damaged_superblocks {
            writeln!(f, "superblock {damaged}; harmless, the next start writes it again")?;
        }
        if self.damaged_cells + self.stale_cells > 0 {
            writeln!(
                f,
                "{} commit cells are damaged, {} hold an older record than was written; harmless, other cells hold the \
                 same, and they are written again in turn",
                self.damaged_cells, self.stale_cells
            )?;
        }
        let damaged = self.damaged_checkpoint_pages;
        if damaged.first_map + damaged.second_map > 0 {
            writeln!(
                f,
                "{} pages of the first copy of the checkpoint's map are damaged, {} of the second; harmless, each page \
                 is intact in one of them, and the next start replaces both",
                damaged.first_map, damaged.second_map
            )?;
        }
        if damaged.index > 0 {
            writeln!(
                f,
                "{} pages of the checkpoint's index are damaged: the next start is slower, because it builds the index \
                 from the log",
                damaged.index
            )?;
        }
        if self.last_commit_discarded {
            writeln!(f, "the last commit is not whole and does not count, as after a power cut")?;
        }
        Ok(())
    }
}

/// Returns numbers with commas between them.
fn list(numbers: &[u8]) -> String {
    numbers.iter().map(u8::to_string).collect::<Vec<_>>().join(", ")
}
