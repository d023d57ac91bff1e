//! Asking about the page cache, and emptying it: what a benchmark needs to prove that a run was cold.
//!
//! Why whole files: a ranged `POSIX_FADV_DONTNEED` leaves nearly everything in place where the cache holds large folios, so that
//! [`evict`] is for the file as a whole, and its success is to be checked with [`residency`]. Mapped pages are never evicted.
//!
//! Invariant: what cannot be known is [`Residency::Unknown`] or `None`, never zero.

use std::fs::File;
use std::io;

/// How much of a file is in the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Residency {
    /// So many pages of so many.
    Pages {
        /// Pages of 4096 bytes (or the system's page size) in the cache.
        resident: u64,
        /// Pages of the file.
        total: u64,
    },
    /// This system does not tell, or not this user: the kernel tells a file's owner, or who may write it.
    Unknown,
}

/// Asks the kernel to drop the file's clean pages. Dirty ones are written first. A no-op outside Linux.
///
/// # Errors
/// As `fdatasync(2)` and `posix_fadvise(2)`.
pub fn evict(file: &File) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        file.sync_data()?;
        // SAFETY: a system call on an open descriptor that touches no memory of ours.
        let errno = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        if errno != 0 {
            return Err(io::Error::from_raw_os_error(errno));
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = file;
    Ok(())
}

/// How much of the file is cached: by `cachestat` (kernel 6.5), else by `mincore` over a map.
///
/// # Errors
/// As `fstat(2)` and `mmap(2)`.
pub fn residency(file: &File) -> io::Result<Residency> {
    #[cfg(target_os = "linux")]
    {
        match linux::cachestat(file) {
            Some(pages) => Ok(pages),
            // Of files that are another user's, `mincore` says that every page is there, whatever is.
            None if linux::may_ask(file) => linux::mincore(file),
            None => Ok(Residency::Unknown),
        }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = file;
        Ok(Residency::Unknown)
    }
}

/// Bytes that this process has caused to be read from storage, as `/proc/self/io` counts them; `None` where it does not.
pub fn process_read_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/io").ok()?;
    text.lines().find_map(|line| line.strip_prefix("read_bytes:")?.trim().parse().ok())
}

#[cfg(target_os = "linux")]
mod linux {
    use super::Residency;
    use std::fs::File;
    use std::io;
    use std::os::fd::AsRawFd;

    /// `cachestat(2)` has this number on every architecture.
    const SYS_CACHESTAT: libc::c_long = 451;

    fn page_bytes() -> u64 {
        // SAFETY: touches no memory of ours.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        u64::try_from(bytes).unwrap_or(4096)
    }

    pub(super) fn cachestat(file: &File) -> Option<Residency> {
        #[repr(C)]
        struct Range {
            offset: u64,
            len: u64,
        }
        #[repr(C)]
        #[derive(Default)]
        struct Counts {
            cached: u64,
            dirty: u64,
            writeback: u64,
            evicted: u64,
            recently_evicted: u64,
        }
        let total = file.metadata().ok()?.len().div_ceil(page_bytes());
        let whole = Range { offset: 0, len: 0 };
        let mut counts = Counts::default();
        // SAFETY: both structures have the kernel's layout and outlive the call.
        let done = unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const whole, &raw mut counts, 0) };
        (done == 0).then_some(Residency::Pages { resident: counts.cached, total })
    }

    /// Whether `mincore` tells the truth of this file: to its owner, and to whoever may write it.
    pub(super) fn may_ask(file: &File) -> bool {
        use std::os::unix::fs::MetadataExt;
        // SAFETY: touches no memory of ours.
        let user = unsafe { libc::geteuid() };
        let writable = || std::fs::OpenOptions::new().write(true).open(format!("/proc/self/fd/{}", file.as_raw_fd()));
        user == 0 || file.metadata().is_ok_and(|meta| meta.uid() == user) || writable().is_ok()
    }

    pub(super) fn mincore(file: &File) -> io::Result<Residency> {
        let page_bytes = page_bytes();
        let total = file.metadata()?.len().div_ceil(page_bytes);
        if total == 0 {
            return Ok(Residency::Pages { resident: 0, total });
        }
        // SAFETY: the map is never read, so that a file changed or truncated by others has no effect on us.
        let map = unsafe { memmap2::Mmap::map(file)? };
        // In steps, so that the vector stays small for tables of hundreds of gigabytes.
        let mut pages = vec![0_u8; 1 << 20];
        let mut resident = 0;
        for first in (0..total).step_by(pages.len()) {
            let count = (total - first).min(pages.len() as u64);
            let from = (first * page_bytes) as usize;
            let len = (count * page_bytes) as usize;
            // SAFETY: the range is inside the map (its last page counts whole), and the vector has a byte for each of its pages.
            let done = unsafe { libc::mincore(map.as_ptr().add(from).cast_mut().cast(), len, pages.as_mut_ptr()) };
            if done != 0 {
                return Err(io::Error::last_os_error());
            }
            resident += pages[..count as usize].iter().filter(|&&p| p & 1 == 1).count() as u64;
        }
        Ok(Residency::Pages { resident, total })
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};

    #[test]
    fn evicted_pages_are_gone_and_read_pages_are_back() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![7; 1 << 20]).unwrap();
        evict(file.as_file()).unwrap();
        let Residency::Pages { resident, total } = residency(file.as_file()).unwrap() else {
            return println!("SKIP: this system does not tell residency");
        };
        if resident == total {
            return println!("SKIP: the temporary folder is in memory (tmpfs), which cannot be evicted");
        }
        assert_eq!((resident, total), (0, 256));
        file.rewind().unwrap();
        file.read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(residency(file.as_file()).unwrap(), Residency::Pages { resident: 256, total: 256 });
        assert_eq!(linux::mincore(file.as_file()).unwrap(), Residency::Pages { resident: 256, total: 256 });
    }

    #[test]
    fn the_process_counts_its_reads() {
        assert!(process_read_bytes().is_some());
    }
}
