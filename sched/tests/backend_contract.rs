//! One contract for every backend, on real files and on the simulated disk.

mod backend_support;

use backend_support::{Driver, Random, image, write_files};
use engram_sched_core::io::{
    Backend, BackendChoice, BackendFactory, BackendOptions, DirectMode, OsThreads, ReadOp, SimulatedDisk, Wait,
};
use engram_sched_core::sync::{Arc, AtomicBool, Ordering, thread};
use engram_store::{DataFile, FileId};
use std::time::{Duration, Instant};

/// Lengths that end at no block: the last read of each file is short.
const LENS: [u64; 3] = [1_000_003, 4096 * 37 + 904, 300_000];

/// Makes a backend with (slots, bytes of a slot) on files of the lengths above.
type Make<'m> = &'m dyn Fn(u32, u32) -> Box<dyn Backend>;

fn contract(make: Make<'_>) {
    random_reads_are_right(make);
    ends_of_files_are_short(make);
    a_read_goes_where_it_was_told(make);
    one_slot_is_enough(make);
    wakes_are_sticky(make);
    a_sleeper_is_woken_from_another_thread(make);
    waiting_for_nothing_returns(make);
    draining_leaves_nothing_out(make);
    misuse_is_refused(make);
}

fn random_reads_are_right(make: Make<'_>) {
    for (slots, slot_bytes) in [(64, 16_384), (200, 4096), (3, 65_536)] {
        let mut backend = make(slots, slot_bytes);
        assert_eq!((backend.slots(), backend.slot_bytes()), (slots, slot_bytes));
        let mut driver = Driver::new(&mut *backend, &LENS);
        driver.storm(&mut Random(7), 2000);
        assert!(driver.out.is_empty());
        assert!(backend.report().enters > 0 || backend.report().backend == "mmap");
    }
}

fn ends_of_files_are_short(make: Make<'_>) {
    let mut backend = make(8, 8192);
    let mut driver = Driver::new(&mut *backend, &LENS);
    for (file, len) in LENS.into_iter().enumerate() {
        let last = len / 4096 * 4096;
        for (offset, expect) in
            [(last, len - last), (last - 4096, len - last + 4096), (last + 4096, 0), (last + (1 << 30), 0)]
        {
            driver.queue(file as u32, offset, 8192);
            let done = driver.finish();
            assert_eq!(done[0].1, Ok(expect as u32), "file {file} at {offset}");
        }
    }
}

fn a_read_goes_where_it_was_told(make: Make<'_>) {
    // Two reads into one slot, the second behind the first: what a resumed read does. The first bytes stay.
    let mut backend = make(2, 8192);
    let mut out = Vec::new();
    for part in 0..2_u32 {
        let tag = u64::from(part + 1) << 32 | 1;
        let at = part * 4096;
        backend.queue(ReadOp {
            tag,
            file: FileId(0),
            offset: 8192 + u64::from(at),
            len: 4096,
            slot: 1,
            slot_offset: at,
        });
        while out.len() <= part as usize {
            backend.reap(Wait::Completion, &mut out).unwrap();
        }
        assert_eq!((out[part as usize].tag, out[part as usize].result), (tag, Ok(4096)));
    }
    assert_eq!(backend.slot(1), &image(0, 16_384)[8192..]);
}

fn one_slot_is_enough(make: Make<'_>) {
    let mut backend = make(1, 4096);
    Driver::new(&mut *backend, &LENS).storm(&mut Random(99), 200);
}

fn wakes_are_sticky(make: Make<'_>) {
    let mut backend = make(4, 4096);
    let waker = backend.waker();
    let mut out = Vec::new();
    for _ in 0..50 {
        waker.wake();
        backend.reap(Wait::Wake, &mut out).unwrap();
        assert!(out.is_empty());
    }
    // Many wakes are one; reads in between neither lose a wake nor are lost to one.
    let mut driver = Driver::new(&mut *backend, &LENS);
    for round in 0..50 {
        waker.wake();
        waker.wake();
        driver.queue(0, 4096 * round, 4096);
        let mut done = driver.reap(Wait::Completion);
        done.extend(driver.finish());
        assert_eq!(done.len(), 1);
    }
}

fn a_sleeper_is_woken_from_another_thread(make: Make<'_>) {
    let mut backend = make(4, 4096);
    let mut out = Vec::new();
    // Whatever wakes are left over are taken first: a backend may end a sleep early, so the last one is what counts.
    for delay_ms in [0, 1, 20, 50] {
        let waker = backend.waker();
        let rung = Arc::new(AtomicBool::new(false));
        let told = rung.clone();
        let ringer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(delay_ms));
            told.store(true, Ordering::SeqCst);
            waker.wake();
        });
        let (start, mut sleeps) = (Instant::now(), 0);
        while !rung.load(Ordering::SeqCst) {
            backend.reap(Wait::Wake, &mut out).unwrap();
            sleeps += 1;
            assert!(sleeps < 10, "a sleep without a wake must last");
        }
        assert!(start.elapsed() < Duration::from_secs(5));
        ringer.join().unwrap();
    }
    assert!(out.is_empty());
}

fn waiting_for_nothing_returns(make: Make<'_>) {
    let mut backend = make(4, 4096);
    let mut out = Vec::new();
    for wait in [Wait::Poll, Wait::Completion] {
        backend.submit();
        backend.reap(wait, &mut out).unwrap();
    }
    assert!(out.is_empty());
}

fn draining_leaves_nothing_out(make: Make<'_>) {
    for reap_some in [false, true] {
        let mut backend = make(64, 4096);
        let mut driver = Driver::new(&mut *backend, &LENS);
        for i in 0..48 {
            driver.queue(0, i * 4096, 4096);
        }
        driver.backend.submit();
        if reap_some {
            driver.reap(Wait::Completion);
        }
        assert_eq!(backend.drain(Duration::from_secs(10)), 0);
        assert_eq!(backend.drain(Duration::ZERO), 0);
    }
    // Dropping with reads out and reads queued must neither hang nor free what is being written.
    let mut backend = make(64, 4096);
    let mut driver = Driver::new(&mut *backend, &LENS);
    for i in 0..64 {
        driver.queue(1, i % 30 * 4096, 4096);
        if i == 40 {
            driver.backend.submit();
        }
    }
}

fn misuse_is_refused(make: Make<'_>) {
    let op = ReadOp { tag: 1 << 32, file: FileId(0), offset: 0, len: 4096, slot: 0, slot_offset: 0 };
    let refused = |op: ReadOp| {
        let mut backend = make(2, 4096);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| backend.queue(op))).is_err()
    };
    assert!(!refused(op));
    assert!(refused(ReadOp { slot: 2, tag: 1 << 32 | 2, ..op }), "no such slot");
    assert!(refused(ReadOp { file: FileId(3), ..op }), "no such file");
    assert!(refused(ReadOp { len: 8192, ..op }), "longer than the slot");
    assert!(refused(ReadOp { slot_offset: 512, ..op }), "beyond the slot");
    let mut backend = make(2, 4096);
    backend.queue(op);
    let twice = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| backend.queue(op)));
    assert!(twice.is_err(), "a slot that is out");
    let early = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| backend.slot(0).len()));
    assert!(early.is_err(), "bytes of a read that is out");
}

fn on_files(choice: BackendChoice, direct: DirectMode) {
    let dir = tempfile::tempdir().unwrap();
    let files: Vec<DataFile> = write_files(dir.path(), &LENS);
    let make = |slots, slot_bytes| {
        let options = BackendOptions { choice, direct, slots, slot_bytes, pread_threads: 0 };
        let backend = BackendFactory::prepare(&options, &files, &OsThreads).unwrap().build().unwrap();
        for file in 0..files.len() as u32 {
            let alignment = backend.alignment(FileId(file));
            assert!(alignment.is_power_of_two() && alignment <= 4096);
        }
        backend
    };
    let report = make(8, 4096).report();
    println!("{report:?}");
    contract(&make);
}

#[cfg(target_os = "linux")]
fn uring(direct: DirectMode) {
    let options = BackendOptions { choice: BackendChoice::IoUring, ..BackendOptions::default() };
    match BackendFactory::prepare(&options, &[], &OsThreads) {
        Ok(_) => on_files(BackendChoice::IoUring, direct),
        Err(e) => println!("SKIP: {e}"),
    }
}

#[cfg(target_os = "linux")]
#[test]
fn uring_direct() {
    uring(DirectMode::Auto);
}

#[cfg(target_os = "linux")]
#[test]
fn uring_buffered() {
    uring(DirectMode::Off);
}

#[test]
fn pread_direct() {
    on_files(BackendChoice::Pread, DirectMode::Auto);
}

#[test]
fn pread_buffered() {
    on_files(BackendChoice::Pread, DirectMode::Off);
}

#[test]
fn mmap() {
    on_files(BackendChoice::Mmap, DirectMode::Auto);
}

#[test]
fn simulated() {
    let images: Vec<Vec<u8>> = LENS.iter().enumerate().map(|(i, &len)| image(i as u32, len)).collect();
    contract(&|slots, slot_bytes| {
        let disk = SimulatedDisk::new(5, images.clone());
        Box::new(disk.backend(slots, slot_bytes))
    });
}

#[test]
fn several_actors_share_a_simulated_disk() {
    let images: Vec<Vec<u8>> = LENS.iter().enumerate().map(|(i, &len)| image(i as u32, len)).collect();
    let disk = SimulatedDisk::new(5, images);
    thread::scope(|s| {
        for seed in 1..4 {
            let disk = disk.clone();
            s.spawn(move || Driver::new(&mut disk.backend(16, 8192), &LENS).storm(&mut Random(seed), 1000));
        }
    });
    let log = disk.take_log();
    assert_eq!(log.len(), 3000);
    assert!((0..3).all(|backend| log.iter().filter(|read| read.backend == backend).count() == 1000));
}
