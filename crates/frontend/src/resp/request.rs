//! One command as its handlers see it: arguments that are slices of what was read.
//!
//! In: a chunk of input and the spans of one command. Out: borrowed arguments, or counted references to them for what
//! outlives the turn. Nothing is copied.

use super::errors::{self, Failure};
use super::parser::{Span, integer};
use bytes::Bytes;

/// A command with its arguments; the name is argument 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    chunk: &'a Bytes,
    spans: &'a [Span],
}

impl<'a> Request<'a> {
    pub(crate) fn new(chunk: &'a Bytes, spans: &'a [Span]) -> Self {
        Self { chunk, spans }
    }

    /// The same command without its first arguments.
    pub(crate) fn skip(&self, count: usize) -> Self {
        Self { chunk: self.chunk, spans: self.spans.get(count..).unwrap_or_default() }
    }

    /// How many arguments, the name included.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    /// An argument; empty when there are not so many.
    #[inline]
    pub(crate) fn arg(&self, at: usize) -> &'a [u8] {
        self.spans.get(at).map_or(&[], |span| &self.chunk[span.range()])
    }

    /// An argument that keeps the chunk alive.
    #[inline]
    pub(crate) fn bytes(&self, at: usize) -> Bytes {
        self.spans.get(at).map_or_else(Bytes::new, |span| self.chunk.slice(span.range()))
    }

    /// Whether an argument is this word, in any case.
    #[inline]
    pub(crate) fn is(&self, at: usize, word: &str) -> bool {
        self.arg(at).eq_ignore_ascii_case(word.as_bytes())
    }

    /// An argument in lower case, for matching words.
    pub(crate) fn lower(&self, at: usize) -> Vec<u8> {
        self.arg(at).to_ascii_lowercase()
    }

    /// An argument as text; what is not UTF-8 is replaced.
    pub(crate) fn text(&self, at: usize) -> String {
        String::from_utf8_lossy(self.arg(at)).into_owned()
    }

    /// An argument as a number.
    #[inline]
    pub(crate) fn integer(&self, at: usize) -> Result<i64, Failure> {
        integer(self.arg(at)).ok_or(errors::NOT_AN_INTEGER)
    }

    /// An argument as the number of a database.
    pub(crate) fn database(&self, at: usize) -> Result<u8, Failure> {
        let number = self.integer(at)?;
        u8::try_from(number)
            .ok()
            .filter(|&number| usize::from(number) < super::limits::DATABASES)
            .ok_or(errors::DATABASE)
    }
}
