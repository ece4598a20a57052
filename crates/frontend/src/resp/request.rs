//! A parsed command whose arguments are slices of the input.
//!
//! Input: a chunk of input and the spans of one command. Output: borrowed arguments, or counted references for
//! arguments that outlive the turn. No argument is copied, except by `lower` and `text`.

use super::errors::{self, ErrorReply};
use super::parser::{ArgumentSpan, integer};
use bytes::Bytes;

/// A command with its arguments; the name is argument 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RespRequest<'a> {
    chunk: &'a Bytes,
    spans: &'a [ArgumentSpan],
}

impl<'a> RespRequest<'a> {
    pub(crate) fn new(chunk: &'a Bytes, spans: &'a [ArgumentSpan]) -> Self {
        Self { chunk, spans }
    }

    /// Returns the command without its first `count` arguments.
    pub(crate) fn skip(&self, count: usize) -> Self {
        Self { chunk: self.chunk, spans: self.spans.get(count..).unwrap_or_default() }
    }

    /// Copies the places of the arguments, so that they outlive the turn.
    pub(crate) fn to_owned(self) -> OwnedArguments {
        OwnedArguments { chunk: self.chunk.clone(), spans: self.spans.to_vec(), first: 0 }
    }

    /// Returns the number of arguments, the name included.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    /// Returns the bytes of all arguments.
    pub(crate) fn argument_bytes(&self) -> usize {
        self.spans.iter().map(|span| span.range().len()).sum()
    }

    /// Returns an argument; empty if there are fewer.
    #[inline]
    pub(crate) fn arg(&self, at: usize) -> &'a [u8] {
        self.spans.get(at).map_or(&[], |span| &self.chunk[span.range()])
    }

    /// Returns an argument as a counted reference that keeps the chunk alive.
    #[inline]
    pub(crate) fn bytes(&self, at: usize) -> Bytes {
        self.spans.get(at).map_or_else(Bytes::new, |span| self.chunk.slice(span.range()))
    }

    /// Returns true if an argument is this word, in any case.
    #[inline]
    pub(crate) fn arg_is(&self, at: usize, word: &str) -> bool {
        self.arg(at).eq_ignore_ascii_case(word.as_bytes())
    }

    /// Returns an argument in lower case, for matching option words.
    pub(crate) fn lower(&self, at: usize) -> Vec<u8> {
        self.arg(at).to_ascii_lowercase()
    }

    /// Returns an argument as text; invalid UTF-8 is replaced.
    pub(crate) fn text(&self, at: usize) -> String {
        String::from_utf8_lossy(self.arg(at)).into_owned()
    }

    /// Parses an argument as an integer.
    #[inline]
    pub(crate) fn integer(&self, at: usize) -> Result<i64, ErrorReply> {
        integer(self.arg(at)).ok_or(errors::NOT_AN_INTEGER)
    }

    /// Parses an argument as the number of a database.
    pub(crate) fn database(&self, at: usize) -> Result<u8, ErrorReply> {
        let number = self.integer(at)?;
        u8::try_from(number)
            .ok()
            .filter(|&number| usize::from(number) < super::limits::DATABASES)
            .ok_or(errors::DATABASE)
    }
}
/// Arguments that an operation keeps until it has parsed them.
#[derive(Debug)]
pub(crate) struct OwnedArguments {
    chunk: Bytes,
    spans: Vec<ArgumentSpan>,
    /// The first one that is left.
    first: usize,
}

impl OwnedArguments {
    /// Returns the arguments that are left.
    pub(crate) fn as_request(&self) -> RespRequest<'_> {
        RespRequest { chunk: &self.chunk, spans: &self.spans[self.first..] }
    }

    /// Skips the first `count` of them. Returns true if there are more.
    pub(crate) fn skip(&mut self, count: usize) -> bool {
        self.first = self.spans.len().min(self.first + count);
        self.first < self.spans.len()
    }
}
