//! Process: whether this is still the process that started a scheduler, or a child of `fork(2)`, noticed without a system call.
//!
//! A child has the handles, but neither the threads nor the ring nor the memory that the kernel reads to, and locks that a thread of the
//! parent held stay locked there for ever. Every call has to know, so asking is one relaxed load and a comparison.
//!
//! One word holds the number of the process. A fork makes it zero in the child: it lies in a page of its own that the kernel wipes there
//! (`MADV_WIPEONFORK`, Linux 4.14), or, where that is not to be had, a handler of `pthread_atfork` clears it. The handler is the second
//! choice because a child that is made by a bare `clone` system call runs none. A child that starts a scheduler of its own takes the next
//! number, so that the handles of its parent stay foreign to it.
//!
//! Invariants:
//! - The word is never freed and never moves.
//! - A number is given to one process of a line of descent only: the counter is copied by a fork, and only ever raised.
//!
//! # Memory ordering
//! Relaxed throughout. In the parent the word keeps its number from before the [`Process`] exists until the end. In a child the word is
//! cleared before its only thread runs, and all its other threads descend from that one.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The process that made it; see the module text.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    word: &'static AtomicU64,
    number: u64,
}

impl Process {
    /// This process.
    ///
    /// # Errors
    /// The OS error if there is no memory for a page or a handler.
    pub fn current() -> std::io::Result<Self> {
        static WORD: OnceLock<Result<&'static AtomicU64, i32>> = OnceLock::new();
        let word = *WORD.get_or_init(|| cleared_by_fork().map_err(|e| e.raw_os_error().unwrap_or_default()));
        Ok(Self::of(word.map_err(std::io::Error::from_raw_os_error)?))
    }

    fn of(word: &'static AtomicU64) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        // The word is 0 for the first one to ask in this process.
        let number = match word.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => next,
            Err(number) => number,
        };
        Self { word, number }
    }

    /// Whether this is another process than the one that made it: a child of `fork(2)`, or a child's child.
    #[inline]
    pub fn is_forked_child(&self) -> bool {
        self.word.load(Ordering::Relaxed) != self.number
    }
}

#[cfg(target_os = "linux")]
fn cleared_by_fork() -> std::io::Result<&'static AtomicU64> {
    wiped_by_the_kernel().or_else(|_| cleared_by_a_handler())
}

#[cfg(all(unix, not(target_os = "linux")))]
use cleared_by_a_handler as cleared_by_fork;

/// No fork there.
#[cfg(not(unix))]
fn cleared_by_fork() -> std::io::Result<&'static AtomicU64> {
    static WORD: AtomicU64 = AtomicU64::new(0);
    Ok(&WORD)
}

/// A word in a page that the kernel gives to a child as zeros.
#[cfg(target_os = "linux")]
fn wiped_by_the_kernel() -> std::io::Result<&'static AtomicU64> {
    const BYTES: usize = 4096; // or a page, if that is more
    // SAFETY: a new mapping at an address of the kernel's choice; nobody else has it.
    let page = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), BYTES, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    if page == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the mapping above, whole.
    if unsafe { libc::madvise(page, BYTES, libc::MADV_WIPEONFORK) } != 0 {
        let refused = std::io::Error::last_os_error();
        // SAFETY: the mapping above, to which nothing points.
        unsafe { libc::munmap(page, BYTES) };
        return Err(refused);
    }
    // SAFETY: aligned to a page, zeros are a valid value, and it is never unmapped.
    Ok(unsafe { &*page.cast::<AtomicU64>() })
}

/// A word that a handler of ours clears in a child.
#[cfg(unix)]
fn cleared_by_a_handler() -> std::io::Result<&'static AtomicU64> {
    static WORD: AtomicU64 = AtomicU64::new(0);
    extern "C" fn clear() {
        WORD.store(0, Ordering::Relaxed);
    }
    // SAFETY: the handler stores to a static and nothing else, which is allowed in a child of a process with threads.
    match unsafe { libc::pthread_atfork(None, None, Some(clear)) } {
        0 => Ok(&WORD),
        errno => Err(std::io::Error::from_raw_os_error(errno)),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// Runs `check` in a child, which exits with 0 if it held, and asserts that it did.
    fn in_child(check: impl FnOnce() -> bool) {
        // SAFETY: the child loads and stores words, may fork again, and exits without running anything of its parent's.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let status = if check() { 0 } else { 1 };
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(status) };
        }
        let mut status = -1;
        // SAFETY: writes one int to the address given.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the check held in the child");
    }

    /// Without panics: these would run in the child.
    fn forks(child: libc::pid_t) -> bool {
        let mut status = -1;
        // SAFETY: writes one int to the address given.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        waited == child && status == 0
    }

    fn tells_children_from_parents(word: &'static AtomicU64) {
        let parent = Process::of(word);
        assert!(!parent.is_forked_child() && !Process::of(word).is_forked_child());
        in_child(|| parent.is_forked_child());
        in_child(|| {
            // A child with a scheduler of its own: the parent's handles stay foreign, also to the child's child.
            let own = Process::of(word);
            if own.is_forked_child() || !parent.is_forked_child() {
                return false;
            }
            // SAFETY: as above.
            let grandchild = unsafe { libc::fork() };
            if grandchild == 0 {
                let before = parent.is_forked_child() && own.is_forked_child();
                let newest = Process::of(word);
                let foreign = before && parent.is_forked_child() && own.is_forked_child() && !newest.is_forked_child();
                // SAFETY: ends the process at once.
                unsafe { libc::_exit(if foreign { 0 } else { 1 }) };
            }
            forks(grandchild) && !own.is_forked_child()
        });
        assert!(!parent.is_forked_child());
    }

    #[test]
    fn a_handler_tells() {
        tells_children_from_parents(cleared_by_a_handler().unwrap());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_wiped_page_tells() {
        match wiped_by_the_kernel() {
            Ok(word) => tells_children_from_parents(word),
            Err(e) => println!("SKIP: MADV_WIPEONFORK: {e}"),
        }
    }

    #[test]
    fn the_word_in_use_tells() {
        let process = Process::current().unwrap();
        assert!(!process.is_forked_child());
        in_child(|| process.is_forked_child());
        assert!(!process.is_forked_child());
    }
}
