//! Group 3 of `docs/CASES.md` through the whole scheduler, on real files: what hosts, disks and the ring do to reads, and that every byte
//! which is delivered all the same is the right one.
//!
//! A test that cannot run here prints a line that starts with `SKIP:` and says why.
#![cfg(target_os = "linux")]

mod cases_support;
mod environment_support;
mod fault_support;

use cases_support::{Strike, Struck, World, choices, open, options, storm};
use engram_sched_core::io::{
    Backend, BackendFactory, BackendOptions, OsThreads, UringCall, UringFault, UringFaults, UringPrepared,
};
use engram_sched_core::{
    AwaitError, BackendChoice, Begin, Closed, DirectMode, Limits, Parts, Scheduler, StartError, StartOptions,
    TokenError,
};
use engram_store::{DataFile, Extent, FileId};
use environment_support::{in_child, is_root, open_descriptors, private_user, threads};
use fault_support::common::{Kind, Oracle, start, write_model};
use fault_support::{HangGuard, Walk, try_drain};
use libc::{EAGAIN, EBUSY, EINTR, EINVAL, ENOMEM, ENOSYS, EPERM};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Not a test of its own: what [`in_child`] plays.
#[test]
fn a_scenario_in_a_child() {
    let Some((scenario, folder)) = environment_support::scenario() else { return };
    let _guard = HangGuard::new("a scenario", 120);
    match scenario.as_str() {
        "eperm" => under_seccomp(&folder, 425..=427, EPERM, "seccomp"),
        "enosys" => under_seccomp(&folder, 425..=427, ENOSYS, "seccomp"),
        // A kernel before 5.6: a ring can be made, and cannot be asked what it knows.
        "no-probe" => under_seccomp(&folder, 427..=427, EINVAL, "5.6"),
        "memlock-64k" => under_memlock(&folder, 64 << 10),
        "memlock-8m" => under_memlock(&folder, 8 << 20),
        "reopen" => reopened_many_times(&folder),
        "signals" => under_a_storm_of_signals(),
        "descriptors" => descriptors_of_a_scheduler(),
        other => panic!("no scenario {other}"),
    }
    println!("PLAYED {scenario}");
}

// ---- what hosts refuse -------------------------------------------------------------------------------------------------------------

#[test]
fn a_scheduler_under_seccomp_reads_with_threads() {
    if choices().contains(&BackendChoice::IoUring) {
        ["eperm", "enosys", "no-probe"].into_iter().for_each(|scenario| in_child(scenario, |_| ()));
    }
}

fn under_seccomp(folder: &Path, calls: std::ops::RangeInclusive<u32>, errno: i32, said: &str) {
    if let Err(e) = environment_support::install_filter(calls, errno) {
        return println!("SKIP: no seccomp filter can be installed: {e}");
    }
    for kind in [Kind::Qwen, Kind::V41] {
        match Scheduler::start(write_model(folder, kind, 3), &options(BackendChoice::IoUring)) {
            Err(error @ StartError::Backend { backend: "io-uring", .. }) => {
                let text = error.to_string();
                assert!(text.contains(said) && text.contains("--backend auto"), "{text}");
            }
            other => panic!("forced: {other:?}"),
        }
        let scheduler = start(write_model(folder, kind, 3), &options(BackendChoice::Auto));
        let rows = storm(&scheduler, kind, 1, 300);
        let stats = scheduler.shutdown(Duration::from_secs(20)).expect("nothing is left");
        let report = &stats.backends[0];
        assert_eq!(report.backend, "pread");
        assert_eq!(report.notes.iter().filter(|note| note.contains(said)).count(), 1, "{:?}", report.notes);
        assert!(rows > 1000 && stats.reads_failed == 0, "{rows} rows");
    }
}

#[test]
fn a_scheduler_of_an_unprivileged_user() {
    if !is_root() {
        return println!("SKIP: dropping privileges needs root");
    }
    if choices().contains(&BackendChoice::IoUring) {
        let prepare = |dir: &Path| {
            drop(write_model(dir, Kind::Qwen, 3));
            std::fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        };
        ["memlock-64k", "memlock-8m", "reopen"].into_iter().for_each(|scenario| in_child(scenario, prepare));
    }
}

/// The parts of a model whose files are there already, and cannot be written by who runs this.
fn parts_in(folder: &Path) -> Parts {
    let elsewhere = tempfile::tempdir().unwrap();
    let mut parts = write_model(elsewhere.path(), Kind::Qwen, 3);
    for file in &mut parts.files {
        file.path = folder.join(file.path.file_name().unwrap());
    }
    parts
}

fn under_memlock(folder: &Path, locked_bytes_max: u64) {
    environment_support::drop_privileges(private_user(), locked_bytes_max);
    // Four actors whose rings have 1024 entries each.
    let limits = Limits {
        in_flight_bulk_max: 1024,
        in_flight_interactive_max: 1024,
        arena_bytes_max: 16 << 20,
        ..cases_support::limits()
    };
    let options = StartOptions { limits, io_actors: Some(4), ..options(BackendChoice::Auto) };
    let scheduler = start(parts_in(folder), &options);
    let rows = storm(&scheduler, Kind::Qwen, 2, 300);
    let stats = scheduler.shutdown(Duration::from_secs(20)).expect("nothing is left");
    for report in &stats.backends {
        println!("{} KiB of locked memory: {report:?}", locked_bytes_max >> 10);
        // 64 MiB of buffers cannot be locked under either limit: that is said, with the limit that is in force.
        let now = format!("{} KiB", locked_bytes_max >> 10);
        let said = |n: &String| n.contains("RLIMIT_MEMLOCK") && n.contains(&now);
        assert!(report.notes.iter().any(said), "{report:?}");
        let halved =
            report.notes.iter().any(|n| n.contains("entries instead of") || n.contains("io_uring is not used"));
        assert_eq!(halved, locked_bytes_max < 1 << 20, "{report:?}");
    }
    assert!(rows > 500 && stats.reads_failed == 0, "{rows} rows");
}

/// What is closed is gone soon: a thread that was joined may still be listed for a moment.
fn assert_back_to(before: (usize, usize), what: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while (open_descriptors(), threads()) != before {
        assert!(Instant::now() < deadline, "{what}: {:?}, not {before:?}", (open_descriptors(), threads()));
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn reopened_many_times(folder: &Path) {
    environment_support::drop_privileges(private_user(), 64 << 10);
    let before = (open_descriptors(), threads());
    for round in 0..200 {
        let backend = if round % 4 == 3 { BackendChoice::Pread } else { BackendChoice::IoUring };
        let scheduler = start(parts_in(folder), &options(backend));
        storm(&scheduler, Kind::Qwen, round, 12);
        if round % 2 == 0 {
            scheduler.shutdown(Duration::from_secs(20)).expect("nothing is left");
        }
        drop(scheduler);
        assert_back_to(before, &format!("round {round}"));
    }
}

// ---- file systems and files --------------------------------------------------------------------------------------------------------

#[test]
fn a_scheduler_where_direct_reads_are_refused() {
    let _guard = HangGuard::new("ramfs", 60);
    let Some(mounted) = environment_support::ramfs() else { return };
    for backend in choices() {
        for kind in [Kind::Qwen, Kind::V41] {
            let required = StartOptions { direct: DirectMode::Require, ..options(backend) };
            let refused = Scheduler::start(write_model(mounted.path(), kind, 3), &required);
            assert!(matches!(refused, Err(StartError::DirectRefused { .. })), "{refused:?}");
            let scheduler = start(write_model(mounted.path(), kind, 3), &options(backend));
            assert!(storm(&scheduler, kind, 3, 200) > 500);
            let report = &scheduler.stats().backends[0];
            assert!(!report.direct, "what is claimed is what is done: {report:?}");
            assert_eq!(report.notes.iter().filter(|note| note.contains("ramfs")).count(), 1, "{report:?}");
        }
    }
}

#[test]
fn a_scheduler_on_a_disk_with_sectors_of_4096_bytes() {
    let _guard = HangGuard::new("4Kn", 60);
    let dir = tempfile::tempdir().unwrap();
    let Some(mounted) = environment_support::disk_of_4096(dir.path()) else { return };
    for backend in choices() {
        for kind in [Kind::Qwen, Kind::V41] {
            let parts = write_model(mounted.path(), kind, 3);
            assert!(parts.files.iter().all(|file| file.len % 512 != 0), "files that end in the middle of a sector");
            let options = StartOptions { direct: DirectMode::Require, ..options(backend) };
            let scheduler = start(parts, &options);
            assert!(storm(&scheduler, kind, 3, 200) > 500);
            // The last row of each file, whose page the file does not fill.
            let oracle = Oracle::new(kind);
            let last = oracle.keygen.table_rows(0) - 1;
            let mut row = vec![0; oracle.row_bytes()];
            let layer = scheduler.layers()[0];
            scheduler.read_rows(layer, &[last], &mut row).expect("the last row");
            assert!((0..row.len()).all(|i| row[i] == fault_support::common::proof(layer.0, last, i)));
            let stats = scheduler.shutdown(Duration::from_secs(20)).expect("nothing is left");
            assert!(stats.backends[0].direct && stats.reads_failed == 0, "{stats:?}");
        }
    }
}

/// Where the rows of a request of one token lie.
fn extents(parts: &Parts, tok: i32) -> impl Iterator<Item = Extent> {
    let mut history = engram_keygen::History::new(&parts.keygen, 16);
    let window = parts.keygen.push(&mut history, tok, true);
    (0..parts.tables.len()).flat_map(move |table| {
        let mut ids = vec![0; parts.keygen.columns()];
        parts.keygen.token_rows(table, &window, &mut ids);
        let table = &parts.tables[table];
        ids.into_iter().flat_map(move |row| (0..table.parts().len()).map(move |part| table.extent(part, row)))
    })
}

#[test]
fn a_table_truncated_under_a_scheduler() {
    let _guard = HangGuard::new("truncation", 60);
    for backend in choices() {
        for direct in [DirectMode::Auto, DirectMode::Off] {
            for kind in [Kind::Qwen, Kind::V41] {
                let dir = tempfile::tempdir().unwrap();
                let parts = write_model(dir.path(), kind, 3);
                let shape = write_model(dir.path(), kind, 3);
                let (file, oracle) = (FileId(1), Oracle::new(kind));
                let path = parts.files[1].path.clone();
                let whole = std::fs::read(&path).unwrap();
                let scheduler = start(parts, &StartOptions { direct, ..options(backend) });
                let one = |tok: i32| {
                    let id = scheduler.begin(Begin::default()).expect("a free slot");
                    scheduler.on_token(id, tok).expect("token taken");
                    let mut walk = Walk { id, tokens: vec![(tok, true)], drained: 0 };
                    let result = try_drain(&scheduler, &oracle, &mut walk, 16);
                    scheduler.finish(id);
                    result
                };
                one(3).expect("rows");
                // In the middle of a row, and of a page.
                let end = whole.len() as u64 * 7 / 8 / 4096 * 4096 + 1234;
                let file_now = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
                file_now.set_len(end).unwrap();
                let (mut failed, mut right) = (0, 0);
                for tok in 0..400 {
                    if failed == 4 && right >= 10 {
                        break;
                    }
                    let concerned = extents(&shape, tok).any(|e| e.file == file && e.offset + u64::from(e.len) > end);
                    if concerned && failed == 4 {
                        continue;
                    }
                    match one(tok) {
                        Ok(rows) => {
                            assert!(!concerned && rows > 0, "rows that are gone were delivered for token {tok}");
                            right += 1;
                        }
                        Err(AwaitError::Read(error)) => {
                            assert!(concerned, "{error}: the rows of token {tok} are all there");
                            assert_eq!((&error.file, error.errno), (&path, 0), "{error}");
                            failed += 1;
                        }
                        Err(other) => panic!("{other}"),
                    }
                }
                assert!(failed == 4 && right >= 10, "{backend:?} {kind:?}: {failed} failed, {right} right");
                std::fs::write(&path, &whole).unwrap();
                (0..50).for_each(|tok| assert!(one(tok).is_ok(), "the file is whole again"));
                let name = scheduler.stats().backends[0].backend;
                println!("{name}, {direct:?}, {kind:?}: {failed} requests failed, {right} right beside them");
            }
        }
    }
}

// ---- signals -----------------------------------------------------------------------------------------------------------------------

static SIGNALS: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_signal(_signal: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn a_scheduler_under_a_storm_of_signals() {
    in_child("signals", |_| ());
}

/// Every thread of the process gets SIGPROF about a thousand times a second, without SA_RESTART, until thousands have arrived.
fn under_a_storm_of_signals() {
    // SAFETY: `sigaction` is plain data for which zeros are valid; the handler only counts.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGPROF, &raw const action, std::ptr::null_mut()), 0);
    }
    for backend in choices() {
        for kind in [Kind::Qwen, Kind::V41] {
            let world = World::new(kind, backend);
            let before = SIGNALS.load(Ordering::Relaxed);
            let over = AtomicBool::new(false);
            let (mut rows, mut rounds) = (0, 0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        for task in std::fs::read_dir("/proc/self/task").unwrap() {
                            let task: i32 = task.unwrap().file_name().to_str().unwrap().parse().unwrap();
                            // SAFETY: touches no memory; a thread that has ended meanwhile is an error that does not matter.
                            unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), task, libc::SIGPROF) };
                        }
                        std::thread::sleep(Duration::from_millis(1));
                    }
                });
                while SIGNALS.load(Ordering::Relaxed) - before < 2000 {
                    rows += world.storm(rounds, 40);
                    rounds += 1;
                }
                over.store(true, Ordering::Relaxed);
            });
            let signals = SIGNALS.load(Ordering::Relaxed) - before;
            let stats = world.end(); // no read has failed
            assert!(rows > 1000, "{rows} rows");
            println!(
                "{backend:?}, {kind:?}: {rows} rows right under {signals} signals, {} reads repeated",
                stats.retries
            );
        }
    }
}

// ---- processes ---------------------------------------------------------------------------------------------------------------------

#[test]
fn no_descriptor_survives_an_exec() {
    in_child("descriptors", |_| ());
}

fn descriptors_of_a_scheduler() {
    let open = || -> Vec<i32> {
        let names = std::fs::read_dir("/proc/self/fd").unwrap().map(|fd| fd.unwrap().file_name());
        let all: Vec<i32> = names.map(|name| name.to_str().unwrap().parse().unwrap()).collect();
        // SAFETY: touches no memory. The listing's own descriptor is closed by now, and its number free.
        all.into_iter().filter(|&fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0).collect()
    };
    for backend in choices() {
        let before = open();
        let world = World::new(Kind::V41, backend);
        assert!(world.storm(1, 20) > 0);
        let mut of_ours = 0;
        for fd in open().into_iter().filter(|fd| !before.contains(fd)) {
            // SAFETY: touches no memory.
            let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
            assert!(flags & libc::FD_CLOEXEC != 0, "{fd} -> {:?}", std::fs::read_link(format!("/proc/self/fd/{fd}")));
            of_ours += 1;
        }
        assert!(of_ours >= 12, "{of_ours} descriptors: at least the files of the tables");
        world.end();
    }
}

// ---- the ring ----------------------------------------------------------------------------------------------------------------------

fn ring(files: &[DataFile], slots: u32, faults: UringFaults) -> Box<dyn Backend> {
    let options = BackendOptions { slots, ..BackendOptions::default() };
    let prepared = UringPrepared::new(&options, open(files), Some(faults)).expect("a ring");
    Box::new(prepared.build().expect("a ring for this thread"))
}

/// Fails enters number `first..first + times`, counted from 1 once the ring is built.
fn enters(first: u32, times: u32, errno: i32, struck: Arc<AtomicU32>) -> UringFaults {
    let (mut built, mut count) = (false, 0);
    Box::new(move |call| {
        match call {
            UringCall::RegisterRing => built = true,
            UringCall::Enter { .. } if built => {
                count += 1;
                if (first..first.saturating_add(times)).contains(&count) {
                    struck.fetch_add(1, Ordering::SeqCst);
                    return UringFault::Fail(errno);
                }
            }
            _ => {}
        }
        UringFault::Pass
    })
}

#[test]
fn refused_enters_at_every_point_of_a_batch_mix_up_no_row() {
    let _guard = HangGuard::new("refused enters", 120);
    if !choices().contains(&BackendChoice::IoUring) {
        return;
    }
    for (errno, kind) in [(EAGAIN, Kind::V41), (EBUSY, Kind::Qwen), (EINTR, Kind::V41)] {
        for first in 1..=16 {
            for times in [1, 2, 7] {
                let struck = Arc::new(AtomicU32::new(0));
                let faults = enters(first, times, errno, Arc::clone(&struck));
                let world = World::on(kind, move |files| ring(&files, 32, faults));
                let mut rows = world.storm(u64::from(first), 24);
                while struck.load(Ordering::SeqCst) < times {
                    rows += world.storm(u64::from(times), 24);
                }
                rows += world.storm(99, 8);
                assert!(rows > 0, "{errno} at {first}, {times} times");
                world.end();
            }
        }
    }
}

#[test]
fn enters_refused_for_long_are_got_over_or_told_and_nothing_hangs() {
    let _guard = HangGuard::new("refused for long", 120);
    if !choices().contains(&BackendChoice::IoUring) {
        return;
    }
    // A ring that was refused for too long is replaced; its reads fail with EAGAIN, and are repeated on the next.
    let mut retries = 0;
    for (first, times) in [(1, 45), (3, 60), (2, 120), (7, 45)] {
        let struck = Arc::new(AtomicU32::new(0));
        let faults = enters(first, times, EAGAIN, Arc::clone(&struck));
        let world = World::on(Kind::V41, move |files| ring(&files, 16, faults));
        while struck.load(Ordering::SeqCst) < times {
            world.storm(u64::from(times), 60);
        }
        assert!(world.storm(1, 60) > 0);
        let stats = world.end();
        assert!(stats.backends[0].notes.iter().any(|note| note.contains("replaced")), "{stats:?}");
        retries += stats.retries;
    }
    assert!(retries > 0, "reads were among what the rings did not take");
    // One that is refused for ever is given up: whoever waits is told, then and later.
    let faults = enters(5, u32::MAX, EAGAIN, Arc::default());
    let world = World::on(Kind::Qwen, move |files| ring(&files, 16, faults));
    let mut toks = (0..400).cycle();
    let told = loop {
        match world.one(toks.next().expect("endless")) {
            Ok(_) => {}
            Err(AwaitError::Read(error)) => assert_eq!(error.errno, EAGAIN, "{error}"),
            Err(other) => break other,
        }
    };
    assert_eq!(told, AwaitError::Closed(Closed::Fatal));
    let late = world.scheduler.begin(Begin::default());
    assert_eq!(late, Err(TokenError::Closed(Closed::Fatal)));
}

#[test]
fn reads_go_through_a_queue_smaller_than_the_batch() {
    let _guard = HangGuard::new("a small queue", 60);
    if !choices().contains(&BackendChoice::IoUring) {
        return;
    }
    // No memory for more than 8 entries: 48 reads of one token of V4.1, and more, go through them, while other requests are aborted.
    let most = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&most);
    let faults: UringFaults = Box::new(move |call| match call {
        UringCall::Setup { entries, .. } if entries > 8 => UringFault::Fail(ENOMEM),
        UringCall::Enter { to_submit, .. } => {
            seen.fetch_max(to_submit, Ordering::SeqCst);
            UringFault::Pass
        }
        _ => UringFault::Pass,
    });
    let world = World::on(Kind::V41, move |files| ring(&files, 64, faults));
    let aborted: Vec<_> = (0..3).map(|_| world.scheduler.begin(Begin::default()).unwrap()).collect();
    for &id in &aborted {
        world.scheduler.on_tokens(id, 0, &[5, 6, 7], None).unwrap();
        world.scheduler.abort(id);
    }
    for tok in 0..100 {
        assert_eq!(world.one(tok).expect("rows"), 48);
    }
    assert!(world.storm(1, 200) > 500);
    let stats = world.end();
    let report = &stats.backends[0];
    assert!(report.notes.iter().any(|n| n.contains("8 entries instead of 64")), "{report:?}");
    assert!((1..=8).contains(&most.load(Ordering::SeqCst)), "{} entries at once", most.load(Ordering::SeqCst));
    assert!(report.enters * 8 >= stats.reads, "{} enters for {} reads", report.enters, stats.reads);
}

// ---- completions -------------------------------------------------------------------------------------------------------------------

/// The backends that there are, made of files on their actor's thread.
fn made(backend: BackendChoice, files: &[DataFile]) -> Box<dyn Backend> {
    let options = BackendOptions { choice: backend, ..BackendOptions::default() };
    BackendFactory::prepare(&options, files, &OsThreads).expect("a backend").build().expect("for this thread")
}

#[test]
fn one_completion_in_fifty_is_eagain() {
    let _guard = HangGuard::new("EAGAIN now and then", 60);
    for backend in choices() {
        for kind in [Kind::Qwen, Kind::V41] {
            let (mut count, struck) = (0, Arc::new(AtomicU32::new(0)));
            let told = Arc::clone(&struck);
            let world = World::on(kind, move |files| {
                let strike: Strike = Box::new(move |_, result| {
                    count += 1;
                    if count % 50 != 0 {
                        return result;
                    }
                    told.fetch_add(1, Ordering::SeqCst);
                    Err(EAGAIN)
                });
                Box::new(Struck::new(made(backend, &files), strike))
            });
            let rows = world.storm(7, 600);
            let stats = world.end(); // no read has failed for good
            let struck = u64::from(struck.load(Ordering::SeqCst));
            assert!(rows > 2000 && struck > 20 && stats.retries >= struck, "{rows} rows, {struck} struck, {stats:?}");
        }
    }
}

#[test]
fn eagain_a_hundred_times_at_one_place() {
    let _guard = HangGuard::new("EAGAIN at one place", 60);
    for backend in choices() {
        let shape_dir = tempfile::tempdir().unwrap();
        let shape = write_model(shape_dir.path(), Kind::Qwen, 3);
        // The first page of a row that token 7 needs.
        let mut history = engram_keygen::History::new(&shape.keygen, 16);
        let window = shape.keygen.push(&mut history, 7, true);
        let mut ids = vec![0; shape.keygen.columns()];
        shape.keygen.token_rows(0, &window, &mut ids);
        let place = shape.tables[0].extent(0, ids[3]);
        let page = place.offset / 4096 * 4096;
        let left = Arc::new(AtomicU32::new(100));
        let strikes = Arc::clone(&left);
        let world = World::on(Kind::Qwen, move |files| {
            let strike: Strike = Box::new(move |op, result| {
                let touches = op.file == place.file && op.offset < page + 4096 && op.offset + u64::from(op.len) > page;
                let strikes_now = touches && strikes.load(Ordering::SeqCst) > 0;
                if !strikes_now {
                    return result;
                }
                strikes.fetch_sub(1, Ordering::SeqCst);
                Err(EAGAIN)
            });
            Box::new(Struck::new(made(backend, &files), strike))
        });
        let (mut failed, mut beside) = (0, 0);
        while left.load(Ordering::SeqCst) > 0 {
            match world.one(7) {
                Ok(_) => {}
                Err(AwaitError::Read(error)) => {
                    assert_eq!(
                        (error.errno, error.file.file_name()),
                        (EAGAIN, shape.files[place.file.0 as usize].path.file_name())
                    );
                    failed += 1;
                }
                Err(other) => panic!("{other}"),
            }
            assert!(failed <= 100, "each failure takes strikes");
            // Those that need no row of the page are served meanwhile.
            let before = left.load(Ordering::SeqCst);
            let tok = (8..400).find(|&tok| !touched(&shape, tok, place.file, page)).expect("a token beside");
            assert_eq!(world.one(tok).expect("rows"), 16);
            assert_eq!(left.load(Ordering::SeqCst), before, "its rows are not there");
            beside += 1;
        }
        assert!(failed >= 1 && beside >= 1, "bounded: {failed} failed, {beside} beside");
        world.one(7).expect("the place can be read again");
        println!("{backend:?}: 100 strikes, {failed} requests failed, {beside} served beside them");
    }
}

/// Whether a row of the one token `tok` lies on the page.
fn touched(parts: &Parts, tok: i32, file: FileId, page: u64) -> bool {
    extents(parts, tok).any(|e| e.file == file && e.offset < page + 4096 && e.offset + u64::from(e.len) > page)
}
