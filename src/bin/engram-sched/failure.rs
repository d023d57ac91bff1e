//! How a command ends badly: one line on standard error with cause and remedy, and the exit status.

use crate::output::bytes_text;
use engram_sched::OpenError;
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

/// What the library says in terms of its fields, in terms of the command line.
fn translated(error: &OpenError) -> Option<Failure> {
    Some(match error {
        OpenError::NoSpec { path } => Failure::Failed(format!(
            "{} does not say which model it belongs to: it has no config.json and no spec; name the model (--model qwen-ple, \
             deepseek-v41, demo or a spec file)",
            path.display()
        )),
        OpenError::NoTokenMap { origin } => Failure::Failed(format!(
            "{origin} compresses its vocabulary and has no token map here: give one (--token-map FILE), or put the model's \
             tokenizer.json beside the checkpoint"
        )),
        OpenError::NoRowBytes { origin } => Failure::Usage(format!(
            "{} does not say how wide a row is: give its spec file a [row], or give synth --row-bytes",
            if origin.is_empty() { "the spec" } else { origin }
        )),
        OpenError::BeyondFullSize { origin, bytes, full_bytes } => Failure::Usage(format!(
            "--bytes {} is more than {} has at full size, which is {} ({full_bytes} bytes); ask for less, or make the full geometry \
             as sparse files (synth --sparse-full)",
            bytes_text(*bytes),
            if origin.is_empty() { "this model" } else { origin },
            bytes_text(*full_bytes)
        )),
        _ => return None,
    })
}

impl<E: Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        let any: &(dyn Error + 'static) = &error;
        if let Some(failure) = any.downcast_ref().and_then(translated) {
            return failure;
        }
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
