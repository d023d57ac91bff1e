//! What hosts do to I/O: seccomp, locked-memory limits, file systems without O_DIRECT, 4Kn disks, signals, `fork(2)`, truncation.
//!
//! A test that cannot run here prints a line that starts with `SKIP:` and says why. Those that change the process run in a child: this
//! same binary, told by an environment variable which scenario to play.
#![cfg(target_os = "linux")]

mod backend_support;
mod environment_support;

use backend_support::{Driver, Random, write_files};
use engram_sched_core::StartError;
use engram_sched_core::io::{
    Backend, BackendChoice, BackendFactory, BackendOptions, DirectMode, FileSet, OsThreads, Residency, Wait, evict,
    residency,
};
use engram_sched_core::sync::{Arc, AtomicBool, AtomicU64, Ordering, thread};
use engram_store::{DataFile, FileId};
use environment_support::{disk_of_4096, drop_privileges, install_filter, is_root, open_descriptors, ramfs, threads};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const LENS: [u64; 2] = [1_000_003, 4096 * 37 + 904];

fn prepare(choice: BackendChoice, slots: u32, files: &[DataFile]) -> Result<BackendFactory, StartError> {
    let options = BackendOptions { choice, slots, slot_bytes: 4096, ..BackendOptions::default() };
    BackendFactory::prepare(&options, files, &OsThreads)
}

fn build(choice: BackendChoice, slots: u32, files: &[DataFile]) -> Box<dyn Backend> {
    prepare(choice, slots, files).unwrap().build().unwrap()
}

fn uring_here() -> bool {
    match prepare(BackendChoice::IoUring, 4, &[]) {
        Ok(_) => true,
        Err(e) => {
            println!("SKIP: {e}");
            false
        }
    }
}

/// Plays a scenario in a child, on files of the lengths above.
fn in_child(scenario: &str) {
    environment_support::in_child(scenario, |dir| drop(write_files(dir, &LENS)));
}

/// Not a test of its own: the other side of [`in_child`].
#[test]
fn a_scenario_in_a_child() {
    let Some((scenario, folder)) = environment_support::scenario() else { return };
    let files: Vec<DataFile> = LENS
        .iter()
        .enumerate()
        .map(|(i, &len)| DataFile { path: folder.join(format!("table_{i}.bin")), len })
        .collect();
    match scenario.as_str() {
        "seccomp-eperm" => under_seccomp(&files, 425..=427, libc::EPERM),
        "seccomp-enosys" => under_seccomp(&files, 425..=427, libc::ENOSYS),
        "seccomp-enter" => under_seccomp(&files, 426..=426, libc::EPERM),
        "seccomp-register" => under_seccomp(&files, 427..=427, libc::EPERM),
        "memlock" => under_memlock(&files),
        "reopen" => reopened_many_times(&files),
        "fork" => forked(&files),
        "slow-device" => on_a_slow_device(&files),
        other => panic!("no scenario {other}"),
    }
    println!("PLAYED {scenario}");
}

#[test]
fn a_seccomp_filter_over_io_uring() {
    if !uring_here() {
        return;
    }
    for scenario in ["seccomp-eperm", "seccomp-enosys", "seccomp-enter", "seccomp-register"] {
        in_child(scenario);
    }
}

fn under_seccomp(files: &[DataFile], calls: std::ops::RangeInclusive<u32>, errno: i32) {
    if let Err(e) = install_filter(calls, errno) {
        return println!("SKIP: no seccomp filter can be installed: {e}");
    }
    match prepare(BackendChoice::IoUring, 16, files).err() {
        Some(error @ StartError::Backend { backend: "io-uring", .. }) => {
            let text = error.to_string();
            assert!(text.contains("seccomp") && text.contains("--backend auto"), "{text}");
        }
        other => panic!("forced: {other:?}"),
    }
    let factory = prepare(BackendChoice::Auto, 16, files).unwrap();
    assert!(factory.notes().iter().any(|note| note.contains("seccomp")), "{:?}", factory.notes());
    let mut backend = factory.build().unwrap();
    let report = backend.report();
    assert_eq!(report.backend, "pread");
    assert_eq!(report.notes.iter().filter(|note| note.contains("seccomp")).count(), 1, "{:?}", report.notes);
    Driver::new(&mut *backend, &LENS).storm(&mut Random(1), 500);
}

#[test]
fn an_unprivileged_user_with_little_locked_memory() {
    if !is_root() {
        return println!("SKIP: dropping privileges needs root");
    }
    if uring_here() {
        in_child("memlock");
        in_child("reopen");
    }
}

/// Becomes nobody with 64 KiB of locked memory.
fn become_nobody() {
    drop_privileges(65534, 64 << 10);
}

fn under_memlock(files: &[DataFile]) {
    become_nobody();
    // Large rings: the kernel has memory for a smaller one at best, and none for the arena.
    let mut all: Vec<_> = (0..4).map(|_| build(BackendChoice::Auto, 4096, files)).collect();
    for backend in &mut all {
        let report = backend.report();
        println!("{report:?}");
        assert!(report.notes.iter().any(|n| n.contains("RLIMIT_MEMLOCK") && n.contains("64 KiB")), "{report:?}");
        Driver::new(&mut **backend, &LENS).storm(&mut Random(2), 500);
    }
}

fn reopened_many_times(files: &[DataFile]) {
    become_nobody();
    let before = (open_descriptors(), threads());
    for round in 0..200 {
        let mut backend = build(BackendChoice::Auto, 32, files);
        assert_eq!(backend.report().backend, "io-uring", "round {round}: {:?}", backend.report().notes);
        Driver::new(&mut *backend, &LENS).storm(&mut Random(round + 1), 40);
        if round % 3 == 0 {
            backend.waker().wake();
            backend.reap(Wait::Wake, &mut Vec::new()).unwrap();
        }
    }
    assert_eq!((open_descriptors(), threads()), before);
}

#[test]
fn a_forked_child_leaves_the_parents_backend_alone() {
    in_child("fork");
}

fn forked(files: &[DataFile]) {
    for choice in [BackendChoice::Auto, BackendChoice::Pread] {
        let mut backend = build(choice, 32, files);
        let mut driver = Driver::new(&mut *backend, &LENS);
        for i in 0..32 {
            driver.queue(0, i * 4096, 4096);
        }
        driver.backend.submit();
        // SAFETY: the child only drops the backend and exits, without running anything of its parent's.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(backend);
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(0) };
        }
        let mut status = -1;
        // SAFETY: writes one int to the address given.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child dropped the backend and ended");
        assert_eq!(driver.finish().len(), 32);
        driver.storm(&mut Random(3), 300);
    }
}

#[test]
fn reads_stuck_in_a_device_are_abandoned_not_freed() {
    if !is_root() {
        return println!("SKIP: throttling a device needs root");
    }
    in_child("slow-device");
}

/// A throttled group of processes, removed when the last of them has left.
struct Throttle(PathBuf);

impl Throttle {
    /// Lets this process read `reads_per_s` times a second from the device of `file`.
    fn new(file: &Path, reads_per_s: u32) -> io::Result<Self> {
        use std::os::unix::fs::MetadataExt;
        let device = std::fs::metadata(file)?.dev();
        let group = Path::new("/sys/fs/cgroup/blkio").join(format!("engram-test-{}", std::process::id()));
        std::fs::create_dir(&group)?;
        let group = Self(group);
        let rule = format!("{}:{} {reads_per_s}", libc::major(device), libc::minor(device));
        std::fs::write(group.0.join("blkio.throttle.read_iops_device"), rule)?;
        std::fs::write(group.0.join("cgroup.procs"), std::process::id().to_string())?;
        Ok(group)
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        let _ = std::fs::write("/sys/fs/cgroup/blkio/cgroup.procs", std::process::id().to_string());
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn on_a_slow_device(files: &[DataFile]) {
    for choice in [BackendChoice::Auto, BackendChoice::Pread] {
        let mut backend = build(choice, 16, files);
        if !backend.report().direct {
            return println!("SKIP: the temporary folder has no direct reads");
        }
        let throttle = match Throttle::new(&files[0].path, 8) {
            Ok(throttle) => throttle,
            Err(e) => return println!("SKIP: no blkio throttle for the temporary folder's device: {e}"),
        };
        let mut driver = Driver::new(&mut *backend, &LENS);
        for i in 0..16 {
            driver.queue(0, i * 4096, 4096);
        }
        driver.backend.submit();
        // A wake ends the wait for a read that does not come.
        let start = Instant::now();
        let waker = driver.backend.waker();
        let ringer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            waker.wake();
        });
        for _ in 0..4 {
            // The first reads pass the throttle at once.
            driver.reap(Wait::Completion);
            if start.elapsed() >= Duration::from_millis(20) {
                break;
            }
        }
        assert!(start.elapsed() < Duration::from_millis(1500), "the wake did not end the wait: {:?}", start.elapsed());
        ringer.join().unwrap();
        let start = Instant::now();
        let left = backend.drain(Duration::from_millis(100));
        drop(backend);
        let took = start.elapsed();
        println!("{choice:?}: {left} reads abandoned after {took:?}");
        assert!(left > 0, "the device was not slow");
        assert!(took < Duration::from_secs(1), "{took:?}");
        drop(throttle);
        // The kernel goes on with the abandoned reads: into memory that must still be ours.
        let noise: Vec<Vec<u8>> = (0..64).map(|i| vec![i; 64 << 10]).collect();
        thread::sleep(Duration::from_millis(2200));
        assert!(noise.iter().enumerate().all(|(i, block)| block.iter().all(|&b| b == i as u8)));
    }
}

#[test]
fn a_file_system_without_direct_reads() {
    let Some(mounted) = ramfs() else { return };
    let files = write_files(mounted.path(), &LENS);
    for choice in [BackendChoice::Auto, BackendChoice::Pread] {
        let factory = prepare(choice, 16, &files).unwrap();
        let notes: Vec<_> = factory.notes().iter().filter(|note| note.contains("ramfs")).cloned().collect();
        assert_eq!(notes.len(), 1, "said once: {:?}", factory.notes());
        assert!(notes[0].contains("2 of 2 files"), "{notes:?}");
        let mut backend = factory.build().unwrap();
        assert!(!backend.report().direct);
        Driver::new(&mut *backend, &LENS).storm(&mut Random(4), 500);
    }
    let options = BackendOptions { direct: DirectMode::Require, ..BackendOptions::default() };
    let error = BackendFactory::prepare(&options, &files, &OsThreads).err();
    assert!(matches!(error, Some(StartError::DirectRefused { .. })), "{error:?}");
}

#[test]
fn a_disk_with_sectors_of_4096_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mounted) = disk_of_4096(dir.path()) else { return };
    let files = write_files(mounted.path(), &LENS);
    let set = FileSet::open(&files, DirectMode::Require).unwrap();
    assert_eq!(set.alignment(FileId(0)), 4096, "512 would be refused by every read");
    drop(set);
    for choice in [BackendChoice::Auto, BackendChoice::Pread] {
        let mut backend = build(choice, 16, &files);
        assert!(backend.report().direct);
        Driver::new(&mut *backend, &LENS).storm(&mut Random(4), 500);
    }
}

#[test]
fn a_table_truncated_while_it_is_open() {
    for (choice, direct) in [
        (BackendChoice::Auto, DirectMode::Auto),
        (BackendChoice::Auto, DirectMode::Off),
        (BackendChoice::Pread, DirectMode::Auto),
        (BackendChoice::Mmap, DirectMode::Off),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let files = write_files(dir.path(), &LENS);
        let options = BackendOptions { choice, direct, slots: 16, slot_bytes: 4096, pread_threads: 0 };
        let mut backend = BackendFactory::prepare(&options, &files, &OsThreads).unwrap().build().unwrap();
        std::fs::OpenOptions::new().write(true).open(&files[0].path).unwrap().set_len(8192 + 100).unwrap();
        let mut driver = Driver::new(&mut *backend, &LENS);
        for page in [0, 1, 2, 3, 100] {
            driver.queue(0, page * 4096, 4096);
        }
        for (op, result) in driver.finish() {
            let expect = [4096, 4096, 100].get(op.offset as usize / 4096).copied().unwrap_or(0);
            assert_eq!(result, Ok(expect), "{choice:?} {op:?}");
        }
    }
}

static SIGNALS: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_signal(_signal: libc::c_int) {
    // Relaxed: a count, read after the storm.
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn a_storm_of_signals() {
    // SAFETY: `sigaction` is plain data for which zeros are valid; the handler only counts, and has no SA_RESTART.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGPROF, &raw const action, std::ptr::null_mut()), 0);
    }
    for choice in [BackendChoice::Auto, BackendChoice::Pread] {
        let dir = tempfile::tempdir().unwrap();
        let files = write_files(dir.path(), &LENS);
        let mut backend = build(choice, 32, &files);
        let over = Arc::new(AtomicBool::new(false));
        // SAFETY: touches no memory.
        let target = unsafe { libc::pthread_self() } as usize;
        let told = over.clone();
        let sender = thread::spawn(move || {
            while !told.load(Ordering::SeqCst) {
                // SAFETY: the target thread joins this one before it ends.
                unsafe { libc::pthread_kill(target as libc::pthread_t, libc::SIGPROF) };
                thread::sleep(Duration::from_micros(200));
            }
        });
        let before = SIGNALS.load(Ordering::Relaxed);
        let start = Instant::now();
        let mut driver = Driver::new(&mut *backend, &LENS);
        let mut random = Random(9);
        while start.elapsed() < Duration::from_millis(1500) {
            driver.storm(&mut random, 100);
        }
        // Asleep: signals do not end a sleep, and the wake after them does.
        let waker = backend.waker();
        let ringer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(200));
            waker.wake();
        });
        let asleep = Instant::now();
        backend.reap(Wait::Wake, &mut Vec::new()).unwrap();
        assert!(asleep.elapsed() > Duration::from_millis(100), "a signal is not a wake");
        ringer.join().unwrap();
        over.store(true, Ordering::SeqCst);
        sender.join().unwrap();
        let signals = SIGNALS.load(Ordering::Relaxed) - before;
        assert!(signals > 500, "only {signals} signals arrived");
        println!("{} under {signals} signals", backend.report().backend);
    }
}

#[test]
fn direct_reads_leave_the_page_cache_empty() {
    let dir = tempfile::tempdir().unwrap();
    let files = write_files(dir.path(), &LENS);
    let resident = |path: &Path| match residency(&std::fs::File::open(path).unwrap()).unwrap() {
        Residency::Pages { resident, .. } => Some(resident),
        Residency::Unknown => None,
    };
    evict(&std::fs::File::open(&files[0].path).unwrap()).unwrap();
    match resident(&files[0].path) {
        Some(0) => {}
        other => return println!("SKIP: the temporary folder cannot be evicted: {other:?} pages stay"),
    }
    for choice in [BackendChoice::Auto, BackendChoice::Pread] {
        let mut backend = build(choice, 16, &files);
        if !backend.report().direct {
            return println!("SKIP: no direct reads in the temporary folder");
        }
        Driver::new(&mut *backend, &LENS).storm(&mut Random(6), 300);
        assert_eq!(resident(&files[0].path), Some(0), "{choice:?}");
    }
}
