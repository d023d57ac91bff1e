//! How a command ends badly: one line on standard error with cause and remedy, and the exit status.

use std::error::Error;

/// Why a command did not do what it was asked.
pub(crate) enum Failure {
    /// The arguments make no sense together.
    Usage(String),
    /// The command could not do its work.
    Failed(String),
    /// A measurement that does not prove what it claims.
    Void(String),
    /// Ctrl-C.
    Interrupted,
    /// The reader of standard output has gone: no error, nobody is there to read it.
    OutputClosed,
}

impl Failure {
    /// A failure with a message of its own.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::Failed(message.into())
    }

    /// A usage error.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Usage(message.into())
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Failed(_) => 1,
            Self::Void(_) => 3,
            Self::Interrupted => 130,
            Self::OutputClosed => 0,
        }
    }

    /// The message alone.
    pub(crate) fn text(self) -> String {
        match self {
            Self::Usage(message) | Self::Failed(message) | Self::Void(message) => message,
            Self::Interrupted => "interrupted".into(),
            Self::OutputClosed => String::new(),
        }
    }

    pub(crate) fn print(&self) {
        match self {
            Self::Usage(message) => eprintln!("error: {message}\n\nFor more information, try '--help'."),
            Self::Failed(message) => eprintln!("error: {message}"),
            Self::Void(message) => eprintln!(">>> VOID: {message}"),
            Self::Interrupted => eprintln!("interrupted"),
            Self::OutputClosed => {}
        }
    }
}

impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            source = cause.source();
        }
        Self::Failed(message)
    }
}
