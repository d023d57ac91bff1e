//! Standard output for results, standard error for notes and progress.

use crate::failure::Failure;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{ErrorKind, IsTerminal, Write};

/// What the user wants to see.
#[derive(Clone, Copy)]
pub(crate) struct Output {
    /// Results as JSON.
    pub(crate) json: bool,
    quiet: bool,
}

impl Output {
    pub(crate) fn new(json: bool, quiet: bool) -> Self {
        Self { json, quiet }
    }

    /// A remark for people; nothing under `--quiet`.
    pub(crate) fn note(&self, text: impl AsRef<str>) {
        if !self.quiet {
            eprintln!("{}", text.as_ref());
        }
    }

    /// Writes a result to standard output.
    pub(crate) fn print(&self, text: impl AsRef<str>) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        written(writeln!(out, "{}", text.as_ref()).and_then(|()| out.flush()))
    }

    /// A bar of `len` units on a terminal, nothing elsewhere.
    pub(crate) fn progress(&self, len: u64, what: &str, bytes: bool) -> ProgressBar {
        let shown = !self.quiet && std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let amount = if bytes { "{binary_bytes}/{binary_total_bytes}" } else { "{human_pos}/{human_len}" };
        let style = ProgressStyle::with_template(&format!("{{msg}} [{{bar:30}}] {amount} {{eta}}"));
        let bar = ProgressBar::with_draw_target(Some(len), target);
        if let Ok(style) = style {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.with_message(what.to_owned())
    }
}

/// Maps a write to standard output: a closed pipe ends the command quietly.
pub(crate) fn written(result: std::io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Failure::OutputClosed),
        Err(error) => Err(Failure::failed(format!("cannot write to standard output: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// `1234567` as `1,234,567`.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes with a binary unit, such as `2.00 GiB`.
pub(crate) fn bytes_text(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{value:.2} {unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.2} TiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(bytes_text(1023), "1023 B");
        assert_eq!(bytes_text(2 << 30), "2.00 GiB");
        assert_eq!(bytes_text(3 << 40), "3.00 TiB");
    }
}
