//! The failure of a command: one sentence on standard error and an exit code.
//!
//! Input: any error. Output: [`CommandFailure`]. Exit codes: 0 success, 1 failure, 2 usage error.

use std::process::ExitCode;

/// The message and exit code of a command that does not succeed.
#[derive(Debug)]
pub struct CommandFailure {
    message: Option<String>,
    code: u8,
}

impl CommandFailure {
    /// Returns a usage error: exit code 2.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { message: Some(message.into()), code: 2 }
    }

    /// Returns a failure: exit code 1.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { message: Some(message.into()), code: 1 }
    }

    /// Returns the failure of a command that has printed its negative result: exit code 1.
    #[must_use]
    pub fn negative_result() -> Self {
        Self { message: None, code: 1 }
    }

    /// Prints the message and returns the exit code.
    #[expect(clippy::print_stderr, reason = "the command line says why it failed")]
    pub fn report(self) -> ExitCode {
        if let Some(message) = self.message {
            eprintln!("headwater: {message}");
        }
        ExitCode::from(self.code)
    }
}

impl<E: std::error::Error> From<E> for CommandFailure {
    fn from(error: E) -> Self {
        Self::failed(error.to_string())
    }
}

/// Writes bytes to standard output. A closed pipe (`| head`) ends the command without a message.
///
/// # Errors
/// When the write fails.
pub fn write_output(bytes: &[u8]) -> Result<(), CommandFailure> {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            Err(CommandFailure::negative_result())
        }
        Err(error) => Err(CommandFailure::failed(format!("cannot write to standard output: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Writes one line of text to standard output.
///
/// # Errors
/// As [`write_output`].
pub fn write_line(text: &str) -> Result<(), CommandFailure> {
    write_output(format!("{text}\n").as_bytes())
}

/// Writes a value as JSON to standard output.
///
/// # Errors
/// As [`write_output`].
pub fn write_json(value: &impl serde::Serialize) -> Result<(), CommandFailure> {
    write_line(&serde_json::to_string_pretty(value)?)
}
