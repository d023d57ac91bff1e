//! Runs the binary of this package.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// What a command said and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The command, without a terminal and with a cache folder of its own.
pub(crate) fn command(cache: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_engram-sched"));
    command.args(args).env("XDG_CACHE_HOME", cache).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What the command said.
pub(crate) fn said(output: Output) -> Ran {
    Ran {
        status: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs it to its end.
pub(crate) fn run(cache: &Path, args: &[&str]) -> Ran {
    said(command(cache, args).output().unwrap())
}

/// Runs it to its end, which must be good.
#[allow(dead_code)] // not every test file needs it
pub(crate) fn done(cache: &Path, args: &[&str]) -> Ran {
    let ran = run(cache, args);
    assert_eq!(ran.status, Some(0), "{args:?}: {}{}", ran.stdout, ran.stderr);
    ran
}

/// Names in a folder, hidden ones too.
#[allow(dead_code)] // not every test file needs it
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
