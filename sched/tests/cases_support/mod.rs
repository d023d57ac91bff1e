//! What the tests of `docs/CASES.md` share: schedulers on real files, a storm of requests checked against the oracle, and backends that
//! are made, and interfered with, on their actor's thread.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

#[macro_use]
#[path = "../pass_on/mod.rs"]
mod pass_on;

use crate::fault_support::common::{Kind, Oracle, start, write_model};
use crate::fault_support::{Lcg, Walk, token, try_drain};
use engram_sched_core::io::{
    Backend, BackendFactory, BackendOptions, BackendReport, Completion, DirectMode, FileSet, OsThreads, ReadOp, Wait,
    WakeBackend,
};
use engram_sched_core::{AwaitError, BackendChoice, Begin, Limits, Scheduler, StartOptions};
use engram_store::{DataFile, FileId};
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Small windows, so that a short storm meets their ends often.
pub fn limits() -> Limits {
    Limits { requests_max: 8, ahead_tokens_max: 8, await_tokens_max: 16, ..Limits::default() }
}

pub fn options(backend: BackendChoice) -> StartOptions {
    StartOptions { limits: limits(), backend, io_actors: Some(1), ..StartOptions::default() }
}

/// The ways of reading that this machine has, with a line for the one that it may lack.
pub fn choices() -> Vec<BackendChoice> {
    let mut choices = vec![BackendChoice::Pread];
    let ring = BackendOptions { choice: BackendChoice::IoUring, slots: 4, ..BackendOptions::default() };
    match BackendFactory::prepare(&ring, &[], &OsThreads) {
        Ok(_) => choices.push(BackendChoice::IoUring),
        Err(e) => println!("SKIP: {e}"),
    }
    choices
}

/// Requests that begin, are fed, end and are taken at random, `turns` turns long; every byte is compared. Returns the rows compared.
pub fn storm(scheduler: &Scheduler, kind: Kind, seed: u64, turns: usize) -> usize {
    let oracle = Oracle::new(kind);
    let mut lcg = Lcg(seed);
    let mut walks: Vec<Walk> = Vec::new();
    let mut rows = 0;
    for _ in 0..turns {
        if walks.len() < 4 {
            let id = scheduler.begin(Begin::default()).expect("a free slot");
            walks.push(Walk { id, tokens: Vec::new(), drained: 0 });
        }
        let pick = lcg.below(walks.len() as u64) as usize;
        match lcg.below(8) {
            0 => scheduler.abort(walks.swap_remove(pick).id),
            1..=3 => {
                let walk = &mut walks[pick];
                let toks: Vec<_> = (0..lcg.below(24)).map(|_| token(kind, &mut lcg)).collect();
                let (ids, live): (Vec<_>, Vec<_>) = toks.iter().copied().unzip();
                scheduler.on_tokens(walk.id, walk.tokens.len() as u64, &ids, Some(&live)).expect("tokens taken");
                walk.tokens.extend(toks);
            }
            _ => rows += try_drain(scheduler, &oracle, &mut walks[pick], 16).expect("rows"),
        }
    }
    walks.iter().for_each(|walk| scheduler.finish(walk.id));
    rows
}

/// A scheduler on real files in a folder of its own, for a storm and a last look at what it counted.
pub struct World {
    pub dir: tempfile::TempDir,
    pub scheduler: Scheduler,
    pub kind: Kind,
}

impl World {
    pub fn new(kind: Kind, backend: BackendChoice) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let scheduler = start(write_model(dir.path(), kind, 3), &options(backend));
        Self { dir, scheduler, kind }
    }

    /// On one backend that `make` makes of the files, on its actor's thread.
    pub fn on(kind: Kind, make: impl FnOnce(Vec<DataFile>) -> Box<dyn Backend> + Send + 'static) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let parts = write_model(dir.path(), kind, 3);
        let files = parts.files.clone();
        let backend = BackendFactory::ready(Box::new(OnItsThread::new(move || make(files))));
        let scheduler = Scheduler::start_with(parts, &options(BackendChoice::Auto), vec![backend]).expect("started");
        Self { dir, scheduler, kind }
    }

    pub fn storm(&self, seed: u64, turns: usize) -> usize {
        storm(&self.scheduler, self.kind, seed, turns)
    }

    /// A request of one token, taken to its end.
    pub fn one(&self, tok: i32) -> Result<usize, AwaitError> {
        let id = self.scheduler.begin(Begin::default()).expect("a free slot");
        self.scheduler.on_token(id, tok).expect("token taken");
        let mut walk = Walk { id, tokens: vec![(tok, true)], drained: 0 };
        let result = try_drain(&self.scheduler, &Oracle::new(self.kind), &mut walk, 16);
        self.scheduler.finish(id);
        result
    }

    /// Nothing failed, nothing strange came back, and nothing is left.
    pub fn end(self) -> engram_sched_core::Stats {
        let stats = self.scheduler.shutdown(Duration::from_secs(20)).expect("nothing is left in the kernel");
        assert_eq!((stats.reads_failed, stats.completions_unknown), (0, 0), "{stats:?}");
        stats
    }
}

pub fn open(files: &[DataFile]) -> Arc<FileSet> {
    Arc::new(FileSet::open(files, DirectMode::Auto).expect("the files open"))
}

type Make = Box<dyn FnOnce() -> Box<dyn Backend> + Send>;

/// A backend that is made by the first call that needs it: on its actor's thread, to which a ring belongs.
pub struct OnItsThread {
    make: RefCell<Option<Make>>,
    made: OnceCell<Box<dyn Backend>>,
}

impl OnItsThread {
    pub fn new(make: impl FnOnce() -> Box<dyn Backend> + Send + 'static) -> Self {
        Self { make: RefCell::new(Some(Box::new(make))), made: OnceCell::new() }
    }

    fn get(&self) -> &dyn Backend {
        &**self.made.get_or_init(|| self.make.borrow_mut().take().expect("made once")())
    }

    fn get_mut(&mut self) -> &mut dyn Backend {
        self.get();
        &mut **self.made.get_mut().expect("made above")
    }
}

impl Backend for OnItsThread {
    fn alignment(&self, file: FileId) -> u32 {
        self.get().alignment(file)
    }
    fn slot_bytes(&self) -> u32 {
        self.get().slot_bytes()
    }
    fn slots(&self) -> u32 {
        self.get().slots()
    }
    fn queue(&mut self, op: ReadOp) {
        self.get_mut().queue(op);
    }
    fn submit(&mut self) {
        self.get_mut().submit();
    }
    fn reap(&mut self, wait: Wait, out: &mut Vec<Completion>) -> Result<(), i32> {
        self.get_mut().reap(wait, out)
    }
    fn slot(&self, slot: u32) -> &[u8] {
        self.get().slot(slot)
    }
    fn waker(&self) -> Arc<dyn WakeBackend> {
        self.get().waker()
    }
    fn drain(&mut self, timeout: Duration) -> usize {
        self.get_mut().drain(timeout)
    }
    fn report(&self) -> BackendReport {
        // Asked for before there is a thread, too.
        self.made.get().map(|made| made.report()).unwrap_or_default()
    }
}

/// Decides what becomes of a read that has completed.
pub type Strike = Box<dyn FnMut(&ReadOp, Result<u32, i32>) -> Result<u32, i32> + Send>;

/// Passes everything on, and lets `strike` change what reads end with.
pub struct Struck {
    pub inner: Box<dyn Backend>,
    pub out: HashMap<u64, ReadOp>,
    pub strike: Strike,
}

impl Struck {
    pub fn new(inner: Box<dyn Backend>, strike: Strike) -> Self {
        Self { inner, out: HashMap::new(), strike }
    }
}

impl Backend for Struck {
    pass_on!(alignment, slot_bytes, slots, submit, slot, waker, drain, report);

    fn queue(&mut self, op: ReadOp) {
        self.out.insert(op.tag, op);
        self.inner.queue(op);
    }
    fn reap(&mut self, wait: Wait, out: &mut Vec<Completion>) -> Result<(), i32> {
        let before = out.len();
        self.inner.reap(wait, out)?;
        for completion in &mut out[before..] {
            let op = self.out.remove(&completion.tag).expect("a completion for each read, once");
            completion.result = (self.strike)(&op, completion.result);
        }
        Ok(())
    }
}
