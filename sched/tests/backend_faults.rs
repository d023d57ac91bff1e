//! Failures by injection: each enter that fails, each flag and registration that is refused, threads that do not start or panic.
//!
//! The rule under test: rows whose reads the kernel did not take fail, once; every other row, then and later, is right.

mod backend_support;

use backend_support::{Driver, Random, image, write_files};
use engram_sched_core::StartError;
use engram_sched_core::io::{
    Backend, BackendOptions, DirectMode, FileSet, OsThreads, PreadBackend, ReadAt, SimulatedDisk, SimulatedFault,
    SpawnThread, Wait,
};
use engram_sched_core::sync::{Arc, AtomicU32, Mutex, Ordering, thread};
use engram_store::FileId;
use std::io;
use std::time::{Duration, Instant};

const LENS: [u64; 2] = [1_000_003, 4096 * 37 + 904];

fn files() -> (tempfile::TempDir, Arc<FileSet>) {
    let dir = tempfile::tempdir().unwrap();
    let data = write_files(dir.path(), &LENS);
    (dir, Arc::new(FileSet::open(&data, DirectMode::Auto).unwrap()))
}

fn options(slots: u32) -> BackendOptions {
    BackendOptions { slots, slot_bytes: 4096, pread_threads: 4, ..BackendOptions::default() }
}

#[cfg(target_os = "linux")]
mod uring {
    use super::*;
    use engram_sched_core::io::{SetupFlag, UringCall, UringFault, UringFaults, UringPrepared};
    use libc::{EAGAIN, EBUSY, EINTR, EINVAL, EIO, ENOMEM, EPERM};

    fn build(slots: u32, files: &Arc<FileSet>, faults: Option<UringFaults>) -> Result<Box<dyn Backend>, StartError> {
        Ok(Box::new(UringPrepared::new(&options(slots), files.clone(), faults)?.build()?))
    }

    /// Whether this machine has io_uring at all.
    fn here(files: &Arc<FileSet>) -> bool {
        match build(4, files, None) {
            Ok(_) => true,
            Err(e) => {
                println!("SKIP: {e}");
                false
            }
        }
    }

    /// Fails enters number `first..first + times`, counted from 1 once the ring is built.
    fn enters(first: u32, times: u32, fault: UringFault) -> UringFaults {
        let (mut built, mut count) = (false, 0);
        Box::new(move |call| match call {
            UringCall::RegisterRing => {
                built = true;
                UringFault::Pass
            }
            UringCall::Enter { .. } if built => {
                count += 1;
                if (first..first.saturating_add(times)).contains(&count) { fault } else { UringFault::Pass }
            }
            _ => UringFault::Pass,
        })
    }

    #[test]
    fn refusals_of_enter_are_waited_out_and_poison_nothing() {
        let (_dir, files) = files();
        if !here(&files) {
            return;
        }
        for errno in [EAGAIN, EBUSY, EINTR] {
            for first in 1..8 {
                for times in [1, 2, 7] {
                    let mut backend = build(16, &files, Some(enters(first, times, UringFault::Fail(errno)))).unwrap();
                    let mut driver = Driver::new(&mut *backend, &LENS);
                    for batch in 0..4 {
                        for i in 0..16 {
                            driver.queue(0, (batch * 16 + i) * 4096, 4096);
                        }
                        let done = driver.finish();
                        let right = done.iter().all(|(_, result)| *result == Ok(4096));
                        assert!(right, "errno {errno} at enter {first}, {times} times, batch {batch}: {done:?}");
                    }
                    driver.storm(&mut Random(u64::from(first)), 100);
                }
            }
        }
    }

    #[test]
    fn the_first_submit_is_refused_with_nothing_in_flight() {
        let (_dir, files) = files();
        if !here(&files) {
            return;
        }
        let mut backend = build(4, &files, Some(enters(1, 5, UringFault::Fail(EAGAIN)))).unwrap();
        let mut driver = Driver::new(&mut *backend, &LENS);
        driver.queue(0, 0, 4096);
        driver.backend.submit();
        assert_eq!(driver.finish()[0].1, Ok(4096));
    }

    #[test]
    fn refusals_without_end_fail_the_rows_and_the_next_are_right() {
        let (_dir, files) = files();
        if !here(&files) {
            return;
        }
        // Each refusal is two enters: the refused one, and a look at what has completed.
        for times in [41, 42, 60] {
            let mut backend = build(8, &files, Some(enters(1, times, UringFault::Fail(EAGAIN)))).unwrap();
            let mut driver = Driver::new(&mut *backend, &LENS);
            for i in 0..8 {
                driver.queue(0, i * 4096, 4096);
            }
            let done = driver.finish();
            let failed = done.iter().filter(|(_, result)| *result == Err(EAGAIN)).count();
            assert!(failed >= 4 && done.len() == 8, "{done:?}");
            driver.storm(&mut Random(3), 200);
        }
    }

    #[test]
    fn an_error_after_a_part_was_taken() {
        let (_dir, files) = files();
        if !here(&files) {
            return;
        }
        for taken in 0..=4 {
            // An enter carries four entries, and only what the kernel left of those fails: the others go to the next ring.
            let fault = UringFault::FailAfter { sqes: taken, errno: EIO };
            let mut backend = build(16, &files, Some(enters(1, 1, fault))).unwrap();
            let mut driver = Driver::new(&mut *backend, &LENS);
            for i in 0..8 {
                driver.queue(0, i * 4096, 4096);
            }
            driver.backend.submit();
            let done = driver.finish();
            let failed = done.iter().filter(|(_, result)| *result == Err(EIO)).count();
            assert_eq!((done.len(), failed), (8, 4_usize.saturating_sub(taken as usize)), "{taken}: {done:?}");
            driver.storm(&mut Random(5), 200);

            // The same with a read in flight, whose ring must be reaped before it is replaced.
            let mut backend = build(16, &files, Some(enters(2, 1, fault))).unwrap();
            let mut driver = Driver::new(&mut *backend, &LENS);
            driver.queue(1, 0, 4096);
            driver.backend.submit();
            for i in 0..8 {
                driver.queue(0, i * 4096, 4096);
            }
            driver.backend.submit();
            let done = driver.finish();
            let failed = done.iter().filter(|(_, result)| *result == Err(EIO)).count();
            assert_eq!((done.len(), failed), (9, 4_usize.saturating_sub(taken as usize)), "{taken}: {done:?}");
            assert!(backend.report().notes.iter().any(|note| note.contains("replaced")));
            let mut driver = Driver { generation: 100, ..Driver::new(&mut *backend, &LENS) };
            driver.storm(&mut Random(5), 200);
            // The doorbell of the new ring works too.
            backend.waker().wake();
            backend.reap(Wait::Wake, &mut Vec::new()).unwrap();
        }
    }

    #[test]
    fn an_error_while_sleeping_keeps_the_doorbell() {
        let (_dir, files) = files();
        if !here(&files) {
            return;
        }
        for errno in [EIO, EINTR, EAGAIN] {
            let mut backend = build(4, &files, Some(enters(1, 1, UringFault::Fail(errno)))).unwrap();
            let waker = backend.waker();
            waker.wake();
            let mut out = Vec::new();
            backend.reap(Wait::Wake, &mut out).unwrap();
            waker.wake();
            backend.reap(Wait::Wake, &mut out).unwrap();
            Driver::new(&mut *backend, &LENS).storm(&mut Random(5), 50);
        }
    }

    #[test]
    fn a_ring_that_always_fails_breaks_and_nothing_hangs() {
        let (_dir, files) = files();
        if !here(&files) {
            return;
        }
        for first in [1, 2, 5] {
            let mut backend = build(8, &files, Some(enters(first, u32::MAX, UringFault::Fail(EIO)))).unwrap();
            let mut driver = Driver::new(&mut *backend, &LENS);
            let (mut failed, mut error) = (0, None);
            for round in 0..20 {
                while let Some(&slot) = driver.free.last() {
                    driver.queue(0, u64::from(slot) * 4096, 4096);
                }
                let mut completions = Vec::new();
                match driver.backend.reap(Wait::Completion, &mut completions) {
                    Ok(()) => failed += completions.into_iter().filter(|&c| driver.check(c).1.is_err()).count(),
                    Err(errno) => {
                        error = Some((round, errno));
                        break;
                    }
                }
            }
            // Either every read is answered with a failure, round after round, or (with reads in the kernel that it no longer gives
            // back) `reap` says so.
            assert!(failed >= 8 || error.is_some(), "first {first}");
            let start = Instant::now();
            backend.drain(Duration::from_millis(200));
            drop(backend);
            assert!(start.elapsed() < Duration::from_secs(2));
        }
    }

    #[test]
    fn enters_that_fail_at_random() {
        let (_dir, files) = files();
        if !here(&files) {
            return;
        }
        for seed in 1..30 {
            let mut random = Random(seed);
            let faults: UringFaults = Box::new(move |call| match (call, random.below(12)) {
                (UringCall::Enter { .. }, 0) => UringFault::Fail(EAGAIN),
                (UringCall::Enter { .. }, 1) => UringFault::Fail(EINTR),
                (UringCall::Enter { .. }, 2) => UringFault::Fail(EBUSY),
                (UringCall::Enter { to_submit: 1.., .. }, 3) if random.below(4) == 0 => {
                    UringFault::FailAfter { sqes: random.below(9) as u32, errno: EIO }
                }
                _ => UringFault::Pass,
            });
            // Set-up enters too and may be struck: that is another test's business.
            let Ok(mut backend) = build(24, &files, Some(faults)) else { continue };
            let mut driver = Driver::new(&mut *backend, &LENS);
            let mut random = Random(seed + 1000);
            let (mut whole, mut failed) = (0, 0);
            for _ in 0..200 {
                for _ in 0..random.below(1 + driver.free.len() as u64) {
                    let offset = random.below(LENS[0] / 4096) * 4096;
                    driver.queue(0, offset, 4096);
                }
                if random.below(2) == 0 {
                    driver.backend.submit();
                }
                let mut completions = Vec::new();
                if driver.backend.reap(Wait::Completion, &mut completions).is_err() {
                    break; // Several failures in a row: broken for good, as it says.
                }
                for completion in completions {
                    match driver.check(completion).1 {
                        Ok(bytes) => {
                            assert_eq!(bytes, 4096);
                            whole += 1;
                        }
                        Err(errno) => {
                            assert!([EIO, EAGAIN, EBUSY].contains(&errno), "{errno}");
                            failed += 1;
                        }
                    }
                }
            }
            assert!(whole > 0, "seed {seed}: {whole} whole, {failed} failed");
        }
    }

    #[test]
    fn flags_are_dropped_one_by_one() {
        let (_dir, files) = files();
        if !here(&files) {
            return;
        }
        use SetupFlag::*;
        let cases: [(&[SetupFlag], &[&str]); 5] = [
            (&[DeferTaskrun], &["single-issuer", "coop-taskrun", "taskrun-flag"]),
            (&[DeferTaskrun, SingleIssuer], &["coop-taskrun", "taskrun-flag"]),
            (&[DeferTaskrun, SingleIssuer, CoopTaskrun, TaskrunFlag], &[]),
            (&[DeferTaskrun, SingleIssuer, CoopTaskrun, TaskrunFlag, Disabled], &[]),
            (&[], &["single-issuer", "defer-taskrun", "taskrun-flag"]),
        ];
        for (unknown, expect) in cases {
            let faults: UringFaults = Box::new(move |call| match call {
                UringCall::Setup { flags, .. } if flags.iter().any(|f| unknown.contains(f)) => UringFault::Fail(EINVAL),
                _ => UringFault::Pass,
            });
            let mut backend = build(16, &files, Some(faults)).unwrap();
            let flags = backend.report().flags;
            assert!(expect.iter().all(|name| flags.iter().any(|f| f == name)), "{flags:?}");
            assert_eq!(flags.iter().filter(|f| f.contains("taskrun") || f.contains("issuer")).count(), expect.len());
            Driver::new(&mut *backend, &LENS).storm(&mut Random(11), 300);
            backend.waker().wake();
            backend.reap(Wait::Wake, &mut Vec::new()).unwrap();
        }
    }

    #[test]
    fn registrations_that_are_refused_are_done_without() {
        let (_dir, files) = files();
        if !here(&files) {
            return;
        }
        for (call, errno, note) in [
            (UringCall::RegisterFiles, libc::EMFILE, "files are not registered"),
            (UringCall::RegisterBuffers, ENOMEM, "RLIMIT_MEMLOCK"),
            (UringCall::RegisterBuffers, EPERM, "RLIMIT_MEMLOCK"),
            (UringCall::RegisterRing, EINVAL, ""),
        ] {
            let faults: UringFaults =
                Box::new(move |c| if c == call { UringFault::Fail(errno) } else { UringFault::Pass });
            let mut backend = build(16, &files, Some(faults)).unwrap();
            let notes = backend.report().notes;
            assert!(note.is_empty() || notes.iter().any(|n| n.contains(note)), "{notes:?}");
            Driver::new(&mut *backend, &LENS).storm(&mut Random(11), 300);
        }
    }

    #[test]
    fn memory_short_at_set_up_halves_the_ring() {
        let (_dir, files) = files();
        if !here(&files) {
            return;
        }
        let faults: UringFaults = Box::new(|call| match call {
            UringCall::Setup { entries, .. } if entries > 16 => UringFault::Fail(ENOMEM),
            _ => UringFault::Pass,
        });
        let mut backend = build(100, &files, Some(faults)).unwrap();
        let notes = backend.report().notes;
        assert!(
            notes.iter().any(|n| n.contains("16 entries instead of 128") && n.contains("RLIMIT_MEMLOCK")),
            "{notes:?}"
        );
        // 100 slots over a ring with room for 30: what does not fit waits, and none is lost.
        Driver::new(&mut *backend, &LENS).storm(&mut Random(11), 1000);

        let faults: UringFaults = Box::new(|call| match call {
            UringCall::Setup { .. } => UringFault::Fail(ENOMEM),
            _ => UringFault::Pass,
        });
        let error = build(100, &files, Some(faults)).err().unwrap().to_string();
        assert!(error.contains("RLIMIT_MEMLOCK"), "{error}");
    }

    #[test]
    fn memory_short_for_a_moment_is_waited_out() {
        let (_dir, files) = files();
        if !here(&files) {
            return;
        }
        let mut times = 3;
        let faults: UringFaults = Box::new(move |call| match call {
            UringCall::Setup { .. } if times > 0 => {
                times -= 1;
                UringFault::Fail(ENOMEM)
            }
            _ => UringFault::Pass,
        });
        let backend = build(100, &files, Some(faults)).unwrap();
        assert!(backend.report().notes.is_empty(), "{:?}", backend.report().notes);
    }

    #[test]
    fn refusals_at_start_are_typed_and_say_what_to_do() {
        let (_dir, files) = files();
        if !here(&files) {
            return;
        }
        let setup = |c: UringCall| matches!(c, UringCall::Setup { .. });
        let enter = |c: UringCall| matches!(c, UringCall::Enter { .. });
        let probe = |c: UringCall| c == UringCall::Probe;
        let enable = |c: UringCall| c == UringCall::Enable;
        type Which = fn(UringCall) -> bool;
        let cases: [(Which, i32, &str); 7] = [
            (setup, EPERM, "seccomp"),
            (setup, libc::ENOSYS, "seccomp"),
            (setup, libc::EMFILE, "ulimit -n"),
            (enter, EPERM, "seccomp"),
            (probe, EINVAL, "5.6"),
            (probe, EPERM, "seccomp"),
            (enable, EIO, "io_uring_register"),
        ];
        for (which, errno, expect) in cases {
            let faults: UringFaults =
                Box::new(move |call| if which(call) { UringFault::Fail(errno) } else { UringFault::Pass });
            match build(8, &files, Some(faults)).err() {
                Some(StartError::Backend { backend: "io-uring", why }) => assert!(why.contains(expect), "{why}"),
                other => panic!("errno {errno}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_backend_dropped_on_another_thread_is_safe() {
        let (_dir, files) = files();
        if !here(&files) {
            return;
        }
        let mut backend = build(8, &files, None).unwrap();
        backend.waker().wake();
        backend.reap(Wait::Wake, &mut Vec::new()).unwrap();
        let mut driver = Driver::new(&mut *backend, &LENS);
        for i in 0..8 {
            driver.queue(0, i * 4096, 4096);
        }
        driver.backend.submit();
        // Its reads cannot be reaped there, so its memory is given up, not freed.
        thread::spawn(move || drop(backend)).join().unwrap();
    }
}

/// Starts threads, but not the one of this number.
struct Refusing {
    refuse: u32,
    started: AtomicU32,
    ended: Arc<AtomicU32>,
}

impl SpawnThread for Refusing {
    fn spawn(&self, name: String, body: Box<dyn FnOnce() + Send>) -> io::Result<thread::JoinHandle<()>> {
        if self.started.fetch_add(1, Ordering::SeqCst) + 1 == self.refuse {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let ended = self.ended.clone();
        OsThreads.spawn(
            name,
            Box::new(move || {
                body();
                ended.fetch_add(1, Ordering::SeqCst);
            }),
        )
    }
}

#[test]
fn a_thread_that_does_not_start_is_a_typed_error_and_the_others_are_joined() {
    let (_dir, files) = files();
    for refuse in [1, 3] {
        let spawner = Refusing { refuse, started: AtomicU32::new(0), ended: Arc::default() };
        match PreadBackend::new(files.clone(), files.clone(), &options(8), &spawner, Vec::new()).err() {
            Some(StartError::Spawn { name, .. }) => assert_eq!(name, format!("engram-pread-{}", refuse - 1)),
            other => panic!("{other:?}"),
        }
        assert_eq!(spawner.ended.load(Ordering::SeqCst), refuse - 1, "those that were started have ended");
    }
}

/// A reader that panics, errs or hangs where told.
struct Moody {
    files: Arc<FileSet>,
    hang: Mutex<bool>,
}

impl ReadAt for Moody {
    fn read_at(&self, file: FileId, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match offset / 4096 {
            5 => panic!("a reader that panics (this message is expected)"),
            6 => Err(io::Error::from_raw_os_error(libc::EINTR)),
            7 => Err(io::Error::other("no number")),
            8 => self.files.read_at(file, &mut buf[..512], offset),
            9 => {
                while *self.hang.lock().unwrap() {
                    thread::sleep(Duration::from_millis(1));
                }
                self.files.read_at(file, buf, offset)
            }
            _ => self.files.read_at(file, buf, offset),
        }
    }
}

#[test]
fn a_reader_that_panics_or_errs_fails_its_own_read_only() {
    let (_dir, files) = files();
    let moody = Arc::new(Moody { files: files.clone(), hang: Mutex::new(false) });
    let mut backend = PreadBackend::new(files, moody, &options(16), &OsThreads, Vec::new()).unwrap();
    let mut driver = Driver::new(&mut backend, &LENS);
    for round in 0..5 {
        for page in 0..12 {
            driver.queue(0, page * 4096, 4096);
        }
        for (op, result) in driver.finish() {
            let expect = match op.offset / 4096 {
                5 | 7 => Err(libc::EIO),
                6 => Err(libc::EINTR),
                8 => Ok(512),
                _ => Ok(4096),
            };
            assert_eq!(result, expect, "round {round}, {op:?}");
        }
    }
}

#[test]
fn a_wake_ends_the_wait_for_a_read_that_does_not_come() {
    let (_dir, files) = files();
    let moody = Arc::new(Moody { files: files.clone(), hang: Mutex::new(true) });
    let mut backend = PreadBackend::new(files, moody.clone(), &options(4), &OsThreads, Vec::new()).unwrap();
    let mut driver = Driver::new(&mut backend, &LENS);
    driver.queue(0, 9 * 4096, 4096);
    driver.backend.waker().wake();
    assert!(driver.reap(Wait::Completion).is_empty());
    *moody.hang.lock().unwrap() = false;
    assert_eq!(driver.finish()[0].1, Ok(4096));

    let disk = SimulatedDisk::new(1, vec![image(0, LENS[0])]);
    disk.add_fault(SimulatedFault::Stall { file: FileId(0), range: 0..1, times: 1 });
    let mut backend = disk.backend(4, 4096);
    let mut driver = Driver::new(&mut backend, &LENS);
    driver.queue(0, 0, 4096);
    driver.backend.waker().wake();
    assert!(driver.reap(Wait::Completion).is_empty());
    let later = disk.clone();
    let releaser = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        later.release();
    });
    assert_eq!(driver.finish()[0].1, Ok(4096));
    releaser.join().unwrap();
}

#[test]
fn a_read_that_never_ends_is_abandoned_within_the_bound_and_keeps_its_buffer() {
    let (_dir, files) = files();
    let moody = Arc::new(Moody { files: files.clone(), hang: Mutex::new(true) });
    let mut backend = PreadBackend::new(files, moody.clone(), &options(16), &OsThreads, Vec::new()).unwrap();
    let mut driver = Driver::new(&mut backend, &LENS);
    for page in [0, 9, 1, 9, 2] {
        driver.queue(0, page * 4096, 4096);
    }
    driver.backend.submit();
    thread::sleep(Duration::from_millis(100)); // The workers have begun.
    let start = Instant::now();
    let left = backend.drain(Duration::from_millis(100));
    assert!((1..=2).contains(&left), "{left}");
    drop(backend);
    assert!(start.elapsed() < Duration::from_secs(2));
    // The stuck readers now write into the arena that the backend no longer has: it must still be there.
    *moody.hang.lock().unwrap() = false;
    while Arc::strong_count(&moody) > 1 {
        thread::sleep(Duration::from_millis(1));
    }
}
