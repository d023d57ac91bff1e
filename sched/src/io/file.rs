//! Opening the data files: `O_DIRECT` where it really works, and what alignment it asks for.
//!
//! Why here: that a file system takes `O_DIRECT` at `open` says little (tmpfs takes it and caches, others refuse the first read), and
//! the alignment depends on disk and file system. Both are found out once, at start, by asking and then by one trial read.
//!
//! Invariants:
//! - `Auto` falls back to the page cache only on `EINVAL` / `ENOTSUP`, and says so once per file system; every other error stands.
//! - A file that is marked direct has answered a direct read at its alignment; an alignment is a power of two, at most 4096.
//! - Lengths are those that the tables were checked against; a file replaced or truncated since is an error.

use super::DirectMode;
use crate::StartError;
use engram_store::{DataFile, FileId};
use std::fs::{File, OpenOptions};
use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The data files of one or more backends, open for reading.
#[derive(Debug)]
pub struct FileSet {
    files: Box<[OpenFile]>,
    notes: Vec<String>,
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    path: PathBuf,
    alignment: u32,
    direct: bool,
    /// Device and inode.
    identity: (u64, u64),
}

impl FileSet {
    /// Opens every file for reading, close-on-exec.
    ///
    /// # Errors
    /// [`StartError::Open`] for a file that cannot be opened or whose length is no longer [`DataFile::len`];
    /// [`StartError::DirectRefused`] if `mode` requires `O_DIRECT` and a file cannot be read so.
    pub fn open(files: &[DataFile], mode: DirectMode) -> Result<Self, StartError> {
        let mut notes = Vec::new();
        let mut refusals: Vec<Refusal> = Vec::new();
        let mut opened = Vec::with_capacity(files.len());
        for data in files {
            opened.push(OpenFile::open(data, mode, &mut refusals)?);
        }
        for refusal in refusals {
            notes.push(format!(
                "{} of {} files are read through the page cache: {} on {} ({}); move the table to a file system with O_DIRECT, \
                 or ask for buffered reads",
                refusal.files,
                files.len(),
                refusal.why,
                refusal.file_system,
                refusal.first.display()
            ));
        }
        Ok(Self { files: opened.into(), notes })
    }

    /// Number of files.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The open file.
    ///
    /// # Panics
    /// If there is no such file; so do the other methods that take an id.
    pub fn file(&self, id: FileId) -> &File {
        &self.files[id.0 as usize].file
    }

    /// Where it was found.
    pub fn path(&self, id: FileId) -> &Path {
        &self.files[id.0 as usize].path
    }

    /// Offsets, lengths and addresses must be multiples of this: a power of two, 1 for buffered files.
    #[inline]
    pub fn alignment(&self, id: FileId) -> u32 {
        self.files[id.0 as usize].alignment
    }

    /// Whether it is read with `O_DIRECT`.
    pub fn is_direct(&self, id: FileId) -> bool {
        self.files[id.0 as usize].direct
    }

    /// Whether every file is read with `O_DIRECT`.
    pub fn all_direct(&self) -> bool {
        self.files.iter().all(|f| f.direct)
    }

    /// Device and inode number.
    pub fn identity(&self, id: FileId) -> (u64, u64) {
        self.files[id.0 as usize].identity
    }

    /// What was asked for and not had, with cause and remedy.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// Reads at an offset: the seam at which tests make reads slow, short or failing.
pub trait ReadAt: Send + Sync {
    /// Reads into `buf` from `offset`; returns how many bytes were read.
    ///
    /// # Errors
    /// As `pread(2)`.
    fn read_at(&self, file: FileId, buf: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl ReadAt for FileSet {
    fn read_at(&self, file: FileId, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file(file).read_at(buf, offset)
    }
}

/// `O_DIRECT` refused by one file system for one reason.
struct Refusal {
    file_system: String,
    why: String,
    first: PathBuf,
    files: usize,
}

impl Refusal {
    fn note(refusals: &mut Vec<Refusal>, file_system: String, why: String, path: &Path) {
        match refusals.iter_mut().find(|r| r.file_system == file_system && r.why == why) {
            Some(known) => known.files += 1,
            None => refusals.push(Refusal { file_system, why, first: path.into(), files: 1 }),
        }
    }
}

impl OpenFile {
    fn open(data: &DataFile, mode: DirectMode, refusals: &mut Vec<Refusal>) -> Result<Self, StartError> {
        let fail = |source| StartError::Open { path: data.path.clone(), source };
        let refused = match mode {
            DirectMode::Off => None,
            DirectMode::Auto | DirectMode::Require => match open_direct(&data.path).map_err(fail)? {
                Direct::Works { file, alignment } => return Self::check(file, data, alignment, true),
                Direct::Refused { why } => Some(why),
            },
        };
        if let (Some(why), DirectMode::Require) = (&refused, mode) {
            return Err(StartError::DirectRefused { path: data.path.clone(), why: why.clone() });
        }
        let file = open_buffered(&data.path).map_err(fail)?;
        if let Some(why) = refused {
            Refusal::note(refusals, file_system_name(&file), why, &data.path);
        }
        Self::check(file, data, 1, false)
    }

    fn check(file: File, data: &DataFile, alignment: u32, direct: bool) -> Result<Self, StartError> {
        let fail = |source| StartError::Open { path: data.path.clone(), source };
        let metadata = file.metadata().map_err(fail)?;
        if metadata.is_file() {
            if metadata.len() != data.len {
                return Err(fail(io::Error::other(format!(
                    "it is {} bytes long and was {} when the table was read: it was replaced or truncated; open the table again",
                    metadata.len(),
                    data.len
                ))));
            }
        } else if !metadata.file_type().is_block_device() {
            return Err(fail(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it is neither a regular file nor a block device",
            )));
        }
        let identity = (metadata.dev(), metadata.ino());
        Ok(Self { file, path: data.path.clone(), alignment, direct, identity })
    }
}

enum Direct {
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    Works {
        file: File,
        alignment: u32,
    },
    Refused {
        why: String,
    },
}

fn open_buffered(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).open(path)?;
    #[cfg(target_os = "linux")]
    // SAFETY: a system call on an open descriptor that touches no memory of ours. It is advice: its result is of no consequence.
    unsafe {
        libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM);
    }
    Ok(file)
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_path: &Path) -> io::Result<Direct> {
    Ok(Direct::Refused { why: "this system has no O_DIRECT".into() })
}

#[cfg(not(target_os = "linux"))]
fn file_system_name(_file: &File) -> String {
    "this system".into()
}

#[cfg(target_os = "linux")]
fn open_direct(path: &Path) -> io::Result<Direct> {
    use super::arena::{Arena, PAGE_BYTES};
    use std::os::unix::fs::OpenOptionsExt;

    let refusal = |e: &io::Error| matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP));
    let file = match OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path) {
        Ok(file) => file,
        Err(e) if refusal(&e) => return Ok(Direct::Refused { why: format!("O_DIRECT is refused at open: {e}") }),
        Err(e) => return Err(e),
    };
    let mut alignment = match dio_alignment(&file) {
        Some(0) => return Ok(Direct::Refused { why: "the file system says that it has no direct reads".into() }),
        Some(alignment) => alignment,
        None => logical_block_bytes(&file).unwrap_or(PAGE_BYTES),
    };
    if !alignment.is_power_of_two() || alignment > PAGE_BYTES {
        return Ok(Direct::Refused { why: format!("direct reads must be aligned to {alignment} bytes, above a page") });
    }
    let buffer = Arena::reserve(1, PAGE_BYTES).map_err(io::Error::other)?;
    loop {
        // SAFETY: the arena was made here and nothing else uses it.
        let trial = unsafe { buffer.slot_mut(0, 0, alignment) };
        match file.read_at(trial, 0) {
            Ok(_) => return Ok(Direct::Works { file, alignment }),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // What was said of the alignment may be wrong (a stacked file system); a page satisfies every device.
            Err(e) if refusal(&e) && alignment < PAGE_BYTES => alignment = PAGE_BYTES,
            Err(e) if refusal(&e) => {
                return Ok(Direct::Refused { why: format!("O_DIRECT is refused at the first read: {e}") });
            }
            Err(e) => return Err(e),
        }
    }
}

/// What `statx` says (kernel 6.1): the larger of the offset's and the memory's alignment, 0 if there are no direct reads, `None` if it
/// does not say.
#[cfg(target_os = "linux")]
fn dio_alignment(file: &File) -> Option<u32> {
    // SAFETY: `statx` is plain data for which zeros are valid.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor, an empty path with AT_EMPTY_PATH, and a buffer that outlives the call.
    let done = unsafe {
        libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, &raw mut stat)
    };
    if done != 0 || stat.stx_mask & libc::STATX_DIOALIGN == 0 {
        return None;
    }
    if stat.stx_dio_offset_align == 0 {
        return Some(0);
    }
    Some(stat.stx_dio_offset_align.max(stat.stx_dio_mem_align))
}

/// The logical block size of the device below the file.
#[cfg(target_os = "linux")]
fn logical_block_bytes(file: &File) -> Option<u32> {
    let metadata = file.metadata().ok()?;
    if metadata.file_type().is_block_device() {
        let mut bytes: libc::c_int = 0;
        // SAFETY: BLKSSZGET writes one int to the address given.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::BLKSSZGET, &raw mut bytes) };
        return (done == 0).then_some(u32::try_from(bytes).ok()?);
    }
    // BLKSSZGET needs the device's node, which the process may neither see nor open; sysfs tells the same number.
    let device = format!("/sys/dev/block/{}:{}", libc::major(metadata.dev()), libc::minor(metadata.dev()));
    ["queue", "../queue"]
        .iter()
        .find_map(|queue| std::fs::read_to_string(format!("{device}/{queue}/logical_block_size")).ok())
        .and_then(|text| text.trim().parse().ok())
}

#[cfg(target_os = "linux")]
fn file_system_name(file: &File) -> String {
    // SAFETY: `statfs` is plain data for which zeros are valid.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor and a buffer that outlives the call.
    if unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut stat) } != 0 {
        return "an unknown file system".into();
    }
    let magic = stat.f_type as u32;
    match magic {
        0xEF53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683E => "btrfs",
        0xF2F5_2010 => "f2fs",
        0x2FC1_2FC1 => "zfs",
        0xCA45_1A4E => "bcachefs",
        0x0102_1994 => "tmpfs",
        0x8584_58F6 => "ramfs",
        0x794C_7630 => "overlay",
        0x6573_5546 => "fuse",
        0x6969 => "nfs",
        0xFF53_4D42 | 0xFE53_4D42 => "smb",
        0x00C3_6400 => "ceph",
        0x7371_7368 => "squashfs",
        0xE0F5_E1E2 => "erofs",
        0x9FA0 => "proc",
        0x6265_6572 => "sysfs",
        0x9584_58F6 => "hugetlbfs",
        0x0102_1997 => "9p",
        _ => return format!("a file system of type {magic:#x}"),
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(path: &Path, len: u64) -> DataFile {
        DataFile { path: path.into(), len }
    }

    #[test]
    fn a_file_that_changed_length_is_refused_with_both_numbers() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(5000).unwrap();
        for mode in [DirectMode::Auto, DirectMode::Off] {
            let error = FileSet::open(&[data(file.path(), 6000)], mode).unwrap_err().to_string();
            assert!(error.contains("5000") && error.contains("6000"), "{error}");
            assert!(error.contains(file.path().to_str().unwrap()), "{error}");
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = FileSet::open(&[data(Path::new("/no/such/file"), 1)], DirectMode::Auto).unwrap_err();
        assert!(matches!(error, StartError::Open { .. }), "{error}");
    }

    #[test]
    fn a_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for mode in [DirectMode::Auto, DirectMode::Off] {
            assert!(matches!(FileSet::open(&[data(dir.path(), 0)], mode), Err(StartError::Open { .. })));
        }
    }

    #[test]
    fn buffered_files_need_no_alignment() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let set = FileSet::open(&[data(file.path(), 0)], DirectMode::Off).unwrap();
        assert_eq!((set.alignment(FileId(0)), set.is_direct(FileId(0)), set.all_direct()), (1, false, false));
        assert!(set.notes().is_empty(), "asked for, so not worth a note");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_of_proc_falls_back_and_is_noted_once() {
        // procfs refuses O_DIRECT at open; its files have length 0.
        let files = [data(Path::new("/proc/self/stat"), 0), data(Path::new("/proc/self/status"), 0)];
        let set = FileSet::open(&files, DirectMode::Auto).unwrap();
        assert!(!set.all_direct());
        assert_eq!(set.notes().len(), 1);
        assert!(set.notes()[0].contains("proc") && set.notes()[0].contains("2 of 2"), "{:?}", set.notes());
        assert!(matches!(FileSet::open(&files, DirectMode::Require), Err(StartError::DirectRefused { .. })));
    }
}
