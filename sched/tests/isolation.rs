//! What one party does wrong, or slowly, stays with it: panics of an embedder's code, hung reads, bulk work, unusual geometries.

mod common;
#[macro_use]
mod pass_on;

use common::{Kind, keygen, write_model};
use engram_keygen::{History, Keygen, Spec, Token};
use engram_sched_core::io::{
    Backend, BackendFactory, ReadOp, SimulatedBackend, SimulatedDisk, SimulatedFault, WakeBackend,
};
use engram_sched_core::{AwaitError, Begin, Closed, Limits, Parts, RequestClass, Scheduler, StartOptions};
use engram_store::{DataFile, FileId, Part, Shard, Table};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A backend whose waker panics once when told to, after it has woken.
struct PanickyWaker {
    inner: SimulatedBackend,
    panics: Arc<AtomicBool>,
}

struct Waker {
    inner: Arc<dyn WakeBackend>,
    panics: Arc<AtomicBool>,
}

impl WakeBackend for Waker {
    fn wake(&self) {
        self.inner.wake();
        assert!(!self.panics.swap(false, Ordering::SeqCst), "the waker of an embedder's backend panics");
    }
}

impl Backend for PanickyWaker {
    pass_on!(alignment, slot_bytes, slots, queue, submit, reap, slot, drain, report);

    fn waker(&self) -> Arc<dyn WakeBackend> {
        Arc::new(Waker { inner: self.inner.waker(), panics: Arc::clone(&self.panics) })
    }
}

struct World {
    disk: SimulatedDisk,
    scheduler: Scheduler,
    tables: Vec<Table>,
    panics: Arc<AtomicBool>,
}

/// Long enough for an actor to have seen what there was, and to sleep.
const SETTLE: Duration = Duration::from_millis(300);

/// Everything of the one file, for faults.
const ALL: std::ops::Range<u64> = 0..u64::MAX;

fn world(limits: Limits) -> World {
    let dir = tempfile::tempdir().unwrap();
    let parts = write_model(dir.path(), Kind::Qwen, 1);
    let images = parts.files.iter().map(|f| std::fs::read(&f.path).unwrap()).collect();
    let disk = SimulatedDisk::new(1, images);
    let panics = Arc::new(AtomicBool::new(false));
    let tables = parts.tables.clone();
    let backend = PanickyWaker { inner: disk.backend(64, 16_384), panics: Arc::clone(&panics) };
    let options = StartOptions { limits, ..StartOptions::default() };
    let scheduler =
        Scheduler::start_with(parts, &options, vec![BackendFactory::ready(Box::new(backend))]).expect("a scheduler");
    std::thread::sleep(SETTLE); // so that the actor sleeps, and has to be woken
    World { disk, scheduler, tables, panics }
}

#[test]
fn a_row_read_that_unwinds_leaves_nobody_writing() {
    let w = world(Limits { requests_max: 1, ..Limits::default() });
    w.disk.add_fault(SimulatedFault::Stall { file: FileId(0), range: ALL, times: u32::MAX });
    w.panics.store(true, Ordering::SeqCst);
    let rows: Vec<u64> = (0..8 * 64).collect();
    let mut out = vec![0x11_u8; rows.len() * 160];
    let layer = w.scheduler.layers()[0];
    assert!(catch_unwind(AssertUnwindSafe(|| w.scheduler.read_rows(layer, &rows, &mut out))).is_err());
    out.fill(0x11);
    w.disk.clear_faults();
    for _ in 0..100 {
        w.disk.release();
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(std::hint::black_box(&out).iter().all(|&b| b == 0x11), "bytes written after the call had been left");
}

#[test]
fn a_panic_on_the_callers_thread_ends_the_waits() {
    let w = world(Limits { requests_max: 1, ..Limits::default() });
    let id = w.scheduler.begin(Begin::default()).unwrap();
    w.panics.store(true, Ordering::SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| w.scheduler.on_token(id, 5))).is_err());
    let got = w.scheduler.await_layer(id).wait_deadline(Instant::now() + Duration::from_secs(20)).map(drop);
    assert!(matches!(got, Ok(()) | Err(AwaitError::Closed(Closed::Fatal))), "{got:?}");
    let notes = &w.scheduler.stats().backends[0].notes;
    assert!(notes.iter().any(|n| n.contains("panicked")), "{notes:?}");
}

#[test]
fn one_hung_read_does_not_stop_the_others() {
    let w = world(Limits { requests_max: 4, ..Limits::default() });
    w.disk.add_fault(SimulatedFault::Stall { file: FileId(0), range: ALL, times: 1 });
    let hung = w.scheduler.begin(Begin::default()).unwrap();
    w.scheduler.on_token(hung, 499).unwrap();
    std::thread::sleep(SETTLE); // the actor waits for that read now
    let other = w.scheduler.begin(Begin::default()).unwrap();
    w.scheduler.on_token(other, 7).unwrap();
    let got = w.scheduler.await_layer(other).wait_deadline(Instant::now() + Duration::from_secs(20)).map(drop);
    assert_eq!(got, Ok(()), "no read of this token hangs, and there is room for them");
    w.disk.release();
    w.scheduler.await_layer(hung).wait().expect("rows, once the read comes back");
}

#[test]
fn decode_does_not_wait_with_the_bulk_that_it_shares_a_group_with() {
    let w = world(Limits { requests_max: 4, in_flight_interactive_max: 1, in_flight_bulk_max: 1, ..Limits::default() });
    w.disk.add_fault(SimulatedFault::Stall { file: FileId(0), range: ALL, times: 1 });
    let hung = w.scheduler.begin(Begin::default()).unwrap();
    w.scheduler.on_token(hung, 499).unwrap();
    std::thread::sleep(SETTLE);
    // A bulk prompt is queued behind the hung read; then a decode token that wants the rows of its last position.
    let toks: Vec<Token> = (100..140).collect();
    let bulk = w.scheduler.begin(Begin { class: RequestClass::Bulk, ..Begin::default() }).unwrap();
    w.scheduler.on_tokens(bulk, 0, &toks, None).unwrap();
    let decode = w.scheduler.begin(Begin { start_pos: 39, history: &toks[..39], ..Begin::default() }).unwrap();
    w.scheduler.on_token(decode, toks[39]).unwrap();
    w.disk.take_log();
    w.disk.release();
    drop(w.scheduler.await_layer(decode).wait().unwrap());
    let log = w.disk.take_log();

    let keygen = keygen(Kind::Qwen);
    let mut history = History::new(&keygen, 16);
    let mut ids = vec![0; keygen.columns()];
    for &tok in &toks {
        let window = keygen.push(&mut history, tok, true);
        keygen.token_rows(0, &window, &mut ids);
    }
    let first_read = |row: u64| {
        let extent = w.tables[0].extent(0, row);
        let covers = |op: &ReadOp| op.offset <= extent.offset && extent.offset < op.offset + u64::from(op.len);
        log.iter().position(|read| covers(&read.op)).expect("each row was read")
    };
    let last = ids.iter().map(|&row| first_read(row)).max().unwrap();
    assert!(last < 15 + 16, "read number {last}: 15 are left of the hung token, 16 are its own");
}

#[test]
fn a_token_of_many_tables_and_orders_fits_its_plans() {
    let spec = Spec {
        layer_ids: (0..33).collect(),
        vocab: Some(512),
        eos: Some(500),
        multipliers: None,
        image_id: None,
        video_id: None,
        rows: None,
        row: None,
        parts: None,
        row_divisor: None,
        ..Spec::qwen_ple()
    };
    let keygen = Keygen::new(&spec.scaled_to_rows(4000), None).expect("a valid spec");
    let len = |t: usize| keygen.table_rows(t) * 160;
    let files: Vec<_> = (0..33).map(|t| DataFile { path: format!("t{t}").into(), len: len(t) }).collect();
    let table = |t: usize| {
        let rows = keygen.table_rows(t);
        let shards = vec![Shard { file: FileId(t as u32), offset: 0, rows }];
        let part = Part { bytes: 160, stride: 160, rows_per_shard: rows, shards };
        Table::new(keygen.layer(t), rows, vec![part], &files).expect("a valid layout")
    };
    let tables = (0..33).map(table).collect();
    let disk = SimulatedDisk::with_content(1, files.iter().map(|f| f.len).collect(), |_, _, to| to.fill(7));
    let options = StartOptions { limits: Limits { requests_max: 1, ..Limits::default() }, ..StartOptions::default() };
    let backend = BackendFactory::ready(Box::new(disk.backend(64, 16_384)));
    let scheduler = Scheduler::start_with(Parts { keygen, tables, files }, &options, vec![backend]).unwrap();
    let id = scheduler.begin(Begin::default()).unwrap();
    scheduler.on_token(id, 5).unwrap();
    for _ in 0..33 {
        let rows = scheduler.await_layer(id).wait().expect("rows");
        assert_eq!((rows.bytes().len(), rows.bytes().iter().all(|&b| b == 7)), (2560, true));
    }
}

#[test]
fn a_backend_that_cannot_hold_a_row_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let parts = write_model(dir.path(), Kind::Qwen, 1);
    let disk = SimulatedDisk::new(1, parts.files.iter().map(|f| std::fs::read(&f.path).unwrap()).collect());
    let backend = BackendFactory::ready(Box::new(disk.backend(4, 4096)));
    let refused = Scheduler::start_with(parts, &StartOptions::default(), vec![backend]).unwrap_err();
    assert!(refused.to_string().contains("needs slots of 8192 bytes, it has 4096"), "{refused}");
}
