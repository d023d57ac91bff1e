//! Choosing and making a backend, in two steps.
//!
//! Why two: `auto` must fall back, and a forced backend must fail, at start and with a reason, before any actor runs; but an io_uring
//! with a single issuer belongs to the thread that enables it, and memory to the node of the thread that touches it first.
//!
//! Invariant: after a successful `prepare`, `build` fails only where the thread itself is refused (and says so).

use super::{Backend, FileSet, MmapBackend, PreadBackend, ReadAt};
use crate::StartError;
use crate::sync::{Arc, thread};
use engram_store::DataFile;
use std::io;

/// Which I/O path to use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BackendChoice {
    /// io_uring, or the pread pool where it is refused.
    #[default]
    Auto,
    /// io_uring or an error.
    IoUring,
    /// A pool of threads that call `pread`.
    Pread,
    /// A memory map: for comparison. A table truncated under it kills the process with SIGBUS.
    Mmap,
}

/// Whether to bypass the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DirectMode {
    /// `O_DIRECT` where the file system has it, buffered elsewhere, and the report says which.
    #[default]
    Auto,
    /// `O_DIRECT` or an error.
    Require,
    /// Through the page cache.
    Off,
}

/// What backend to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackendOptions {
    /// Which I/O path.
    pub choice: BackendChoice,
    /// Whether to bypass the page cache; the memory map never does.
    pub direct: DirectMode,
    /// Buffer slots, which is also the most reads in flight. At least 1.
    pub slots: u32,
    /// Bytes of a slot, a multiple of 4096.
    pub slot_bytes: u32,
    /// Threads of the pread pool; 0 stands for the default, the number of slots but at most 32.
    pub pread_threads: u32,
}

impl Default for BackendOptions {
    fn default() -> Self {
        Self { choice: BackendChoice::Auto, direct: DirectMode::Auto, slots: 64, slot_bytes: 16_384, pread_threads: 0 }
    }
}

/// Starts threads; a seam for those who name, count, pin or refuse them.
pub trait SpawnThread: Send + Sync {
    /// Starts a thread named `name` that runs `body`.
    ///
    /// # Errors
    /// The system's refusal, such as `EAGAIN` at the limit of processes.
    fn spawn(&self, name: String, body: Box<dyn FnOnce() + Send>) -> io::Result<thread::JoinHandle<()>>;
}

/// Plain threads of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsThreads;

impl SpawnThread for OsThreads {
    fn spawn(&self, name: String, body: Box<dyn FnOnce() + Send>) -> io::Result<thread::JoinHandle<()>> {
        thread::Builder::new().name(name).spawn(body)
    }
}

/// A backend that has been chosen, checked and provided for, to be finished on its actor's thread.
pub struct BackendFactory {
    stage: Stage,
    notes: Vec<String>,
}

enum Stage {
    #[cfg(target_os = "linux")]
    Uring(Box<super::UringPrepared>),
    Pread(PreadBackend),
    Mmap(MmapBackend),
    Ready(Box<dyn Backend>),
}

impl BackendFactory {
    /// Opens the files and makes ready one backend; may be called on any thread.
    ///
    /// # Errors
    /// [`StartError::Open`] and [`StartError::DirectRefused`] for a file, [`StartError::Memory`] for the buffers,
    /// [`StartError::Spawn`] for a thread of the pread pool (those started before it have been joined), and
    /// [`StartError::Backend`] if the chosen path is refused, unless the choice is [`BackendChoice::Auto`].
    pub fn prepare(
        options: &BackendOptions,
        files: &[DataFile],
        spawner: &dyn SpawnThread,
    ) -> Result<Self, StartError> {
        let direct = if options.choice == BackendChoice::Mmap { DirectMode::Off } else { options.direct };
        Self::prepare_with(options, Arc::new(FileSet::open(files, direct)?), spawner)
    }

    /// The same for files that are open already, so that several actors share their descriptors; `options.direct` is not looked at.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn prepare_with(
        options: &BackendOptions,
        files: Arc<FileSet>,
        spawner: &dyn SpawnThread,
    ) -> Result<Self, StartError> {
        let mut notes = files.notes().to_vec();
        let stage = match options.choice {
            BackendChoice::Mmap => Stage::Mmap(MmapBackend::new(files, options.slots, options.slot_bytes)?),
            BackendChoice::Pread => Stage::Pread(pread(options, files, spawner, Vec::new())?),
            BackendChoice::IoUring => uring(options, files)?,
            BackendChoice::Auto => match uring(options, files.clone()) {
                Ok(stage) => stage,
                Err(StartError::Backend { why, .. }) => {
                    let note = format!("io_uring is not used, a pread pool is: {why}");
                    notes.push(note.clone());
                    Stage::Pread(pread(options, files, spawner, vec![note])?)
                }
                Err(other) => return Err(other),
            },
        };
        #[cfg(target_os = "linux")]
        if let Stage::Uring(prepared) = &stage {
            notes.extend_from_slice(prepared.notes());
        }
        Ok(Self { stage, notes })
    }

    /// A backend that exists already, such as a simulated one.
    pub fn ready(backend: Box<dyn Backend>) -> Self {
        let notes = backend.report().notes;
        Self { stage: Stage::Ready(backend), notes }
    }

    /// What was asked for and not had, with cause and remedy.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Finishes the backend on the thread that will drive it.
    ///
    /// # Errors
    /// [`StartError::Backend`] if the kernel refuses this thread what it granted in [`prepare`](Self::prepare).
    pub fn build(self) -> Result<Box<dyn Backend>, StartError> {
        Ok(match self.stage {
            #[cfg(target_os = "linux")]
            Stage::Uring(prepared) => Box::new(prepared.build()?),
            Stage::Pread(mut backend) => {
                backend.touch();
                Box::new(backend)
            }
            Stage::Mmap(backend) => Box::new(backend),
            Stage::Ready(backend) => backend,
        })
    }
}

#[cfg(target_os = "linux")]
fn uring(options: &BackendOptions, files: Arc<FileSet>) -> Result<Stage, StartError> {
    Ok(Stage::Uring(Box::new(super::UringPrepared::new(options, files, None)?)))
}

#[cfg(not(target_os = "linux"))]
fn uring(_options: &BackendOptions, _files: Arc<FileSet>) -> Result<Stage, StartError> {
    Err(StartError::Backend { backend: "io-uring", why: "this system has none; only Linux does".into() })
}

fn pread(
    options: &BackendOptions,
    files: Arc<FileSet>,
    spawner: &dyn SpawnThread,
    notes: Vec<String>,
) -> Result<PreadBackend, StartError> {
    let reader: Arc<dyn ReadAt> = files.clone();
    PreadBackend::new(files, reader, options, spawner, notes)
}
