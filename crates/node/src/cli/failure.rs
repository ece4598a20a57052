//! How a command fails: one sentence on standard error and an exit code.
//!
//! In: any error. Out: [`Failure`]. Exit codes: 0 done, 1 failed, 2 asked for wrongly.

use std::process::ExitCode;

/// Why a command ends without success.
#[derive(Debug)]
pub struct Failure {
    message: Option<String>,
    code: u8,
}

impl Failure {
    /// The command was asked for wrongly: exit code 2.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { message: Some(message.into()), code: 2 }
    }

    /// The command failed: exit code 1.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { message: Some(message.into()), code: 1 }
    }

    /// The command's answer is no, and it has been printed: exit code 1.
    #[must_use]
    pub fn answered() -> Self {
        Self { message: None, code: 1 }
    }

    /// Says it and gives the exit code.
    #[expect(clippy::print_stderr, reason = "the command line says why it failed")]
    pub fn report(self) -> ExitCode {
        if let Some(message) = self.message {
            eprintln!("headwater: {message}");
        }
        ExitCode::from(self.code)
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::failed(error.to_string())
    }
}

/// Writes an answer to standard output. A reader that went away (`| head`) ends the command without a complaint.
///
/// # Errors
/// When standard output takes nothing more.
pub fn answer(bytes: &[u8]) -> Result<(), Failure> {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(Failure::answered()),
        Err(error) => Err(Failure::failed(format!("cannot write the answer: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Writes an answer as one line of text.
///
/// # Errors
/// As [`answer`].
pub fn answer_line(text: &str) -> Result<(), Failure> {
    answer(format!("{text}\n").as_bytes())
}

/// Writes an answer as JSON.
///
/// # Errors
/// As [`answer`].
pub fn answer_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    answer_line(&serde_json::to_string_pretty(value)?)
}
