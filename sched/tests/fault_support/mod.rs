//! What the fault tests share: a scheduler on simulated disks whose rows prove themselves, walks, and a guard against hangs.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

#[path = "../common/mod.rs"]
pub mod common;

use common::{Kind, Oracle, V41_IMAGE, write_model};
use engram_keygen::Token;
use engram_sched_core::io::{Backend, BackendFactory, SimulatedDisk, SimulatedFault as Fault};
use engram_sched_core::{AwaitError, Begin, Limits, RequestId, Scheduler, StartOptions, TokenError};
use engram_store::{Extent, FileId, Table};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A small deterministic generator: tests must be the same every time.
pub struct Lcg(pub u64);

impl Lcg {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Ends the process if it lives too long: a hang must be seen, and named.
pub struct HangGuard(Option<mpsc::Sender<()>>);

impl HangGuard {
    pub fn new(what: &'static str, seconds: u64) -> Self {
        let (sender, receiver) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            if receiver.recv_timeout(Duration::from_secs(seconds)) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("HANG: {what} did not end within {seconds} s");
                std::process::abort();
            }
        });
        Self(Some(sender))
    }
}

impl Drop for HangGuard {
    fn drop(&mut self) {
        self.0.take();
    }
}

/// A scheduler on a simulated disk.
pub struct Rig {
    pub disk: SimulatedDisk,
    pub scheduler: Scheduler,
    pub oracle: Oracle,
    pub tables: Vec<Table>,
    pub files: Vec<std::path::PathBuf>,
    pub kind: Kind,
    pub await_tokens_max: usize,
}

/// How a rig is made.
pub struct Plan {
    pub kind: Kind,
    pub actors: u32,
    pub shards: u64,
    pub seed: u64,
    pub alignment: u32,
    pub limits: Limits,
}

impl Plan {
    pub fn new(kind: Kind, actors: u32) -> Self {
        let limits = Limits { requests_max: 8, ahead_tokens_max: 8, await_tokens_max: 16, ..Limits::default() };
        Self { kind, actors, shards: 3, seed: 1, alignment: 1, limits }
    }

    pub fn rig(self) -> Rig {
        self.rig_with(|_, backend| backend)
    }

    /// `wrap` may put something between an actor and its disk.
    pub fn rig_with(self, mut wrap: impl FnMut(u32, Box<dyn Backend>) -> Box<dyn Backend>) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let parts = write_model(dir.path(), self.kind, self.shards);
        let images = parts.files.iter().map(|f| std::fs::read(&f.path).unwrap()).collect();
        let disk = SimulatedDisk::new(self.seed, images);
        disk.set_logging(false);
        disk.set_alignment(self.alignment);
        let tables = parts.tables.clone();
        let files = parts.files.iter().map(|f| f.path.clone()).collect();
        let backends =
            (0..self.actors).map(|i| BackendFactory::ready(wrap(i, Box::new(disk.backend(64, 16_384))))).collect();
        let await_tokens_max = match self.limits.await_tokens_max {
            0 => 512,
            n => n as usize,
        };
        let options = StartOptions { limits: self.limits, ..StartOptions::default() };
        let scheduler = Scheduler::start_with(parts, &options, backends).expect("a scheduler on simulated disks");
        Rig { disk, scheduler, oracle: Oracle::new(self.kind), tables, files, kind: self.kind, await_tokens_max }
    }
}

/// A request as the engine sees it.
pub struct Walk {
    pub id: RequestId,
    pub tokens: Vec<(Token, bool)>,
    pub drained: usize,
}

pub fn token(kind: Kind, lcg: &mut Lcg) -> (Token, bool) {
    match kind {
        // One in twelve is the end token, which resets the window.
        Kind::Qwen => (if lcg.below(12) == 0 { 500 } else { lcg.below(40) as Token }, true),
        Kind::V41 if lcg.below(10) == 0 => (V41_IMAGE, true),
        Kind::V41 if lcg.below(10) == 0 => (-77, false),
        Kind::V41 => (lcg.below(40) as Token, true),
    }
}

impl Rig {
    pub fn begin(&self) -> Walk {
        let id = self.scheduler.begin(Begin::default()).expect("a free slot");
        Walk { id, tokens: Vec::new(), drained: 0 }
    }

    /// A request that was fed these tokens as a prompt.
    pub fn prompt(&self, toks: &[Token]) -> Walk {
        let mut walk = self.begin();
        self.scheduler.on_tokens(walk.id, 0, toks, None).expect("a prompt");
        walk.tokens.extend(toks.iter().map(|&t| (t, true)));
        walk
    }

    pub fn feed(&self, walk: &mut Walk, tok: Token) {
        self.scheduler.on_token(walk.id, tok).expect("token taken");
        walk.tokens.push((tok, true));
    }

    /// Takes a range of what was fed, layer by layer, and compares every byte; returns the rows compared.
    pub fn drain(&self, walk: &mut Walk) -> usize {
        self.try_drain(walk).expect("rows")
    }

    pub fn try_drain(&self, walk: &mut Walk) -> Result<usize, AwaitError> {
        try_drain(&self.scheduler, &self.oracle, walk, self.await_tokens_max)
    }

    pub fn drain_all(&self, walk: &mut Walk) -> usize {
        let mut rows = 0;
        while walk.drained < walk.tokens.len() {
            rows += self.drain(walk);
        }
        rows
    }

    /// Where the rows of the last of `tokens` lie: (row, extents) in table `table`.
    pub fn rows_of_last(&self, table: usize, tokens: &[Token]) -> Vec<(u64, Vec<Extent>)> {
        let keygen = &self.oracle.keygen;
        let mut history = engram_keygen::History::new(keygen, 16);
        let windows: Vec<_> = tokens.iter().map(|&t| keygen.push(&mut history, t, true)).collect();
        let mut ids = vec![0; keygen.columns()];
        keygen.token_rows(table, windows.last().expect("a token"), &mut ids);
        let parts = self.tables[table].parts().len();
        ids.iter().map(|&row| (row, (0..parts).map(|p| self.tables[table].extent(p, row)).collect())).collect()
    }

    /// All slots come back: `requests_max` requests can begin at once, and one more cannot.
    pub fn assert_slots_return(&self, requests_max: usize) {
        assert_slots_return(&self.scheduler, requests_max);
    }
}

pub fn try_drain(
    scheduler: &Scheduler,
    oracle: &Oracle,
    walk: &mut Walk,
    await_tokens_max: usize,
) -> Result<usize, AwaitError> {
    let end = walk.tokens.len().min(walk.drained + await_tokens_max);
    let mut rows = 0;
    for (table, &layer) in scheduler.layers().to_vec().iter().enumerate() {
        let got = scheduler.await_layer_at(walk.id, layer).wait()?;
        assert_eq!(got.positions(), walk.drained as u64..end as u64);
        let want = oracle.rows(table, &walk.tokens[..end], walk.drained);
        assert!(got.bytes() == want, "layer {layer}, positions {:?}: wrong bytes", got.positions());
        rows += got.shape()[0] * got.shape()[1];
    }
    walk.drained = end;
    Ok(rows)
}

/// The end of a request may be seen to by another thread: slots come back soon, not at once.
pub fn assert_slots_return(scheduler: &Scheduler, requests_max: usize) {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut ids: Vec<RequestId> = Vec::new();
    while ids.len() < requests_max {
        match scheduler.begin(Begin::default()) {
            Ok(id) => ids.push(id),
            Err(TokenError::LimitReached("requests_max")) => {
                let lost = requests_max - ids.len();
                assert!(Instant::now() < deadline, "{lost} of {requests_max} slots never came back");
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(scheduler.begin(Begin::default()), Err(TokenError::LimitReached("requests_max")));
    ids.into_iter().for_each(|id| scheduler.finish(id));
}

/// No read completes before the disk is released.
pub fn stall_all(rig: &Rig) {
    for file in 0..rig.files.len() as u32 {
        rig.disk.add_fault(Fault::Stall { file: FileId(file), range: 0..u64::MAX, times: u32::MAX });
    }
}

/// The disk is as new: no faults, and what was stalled arrives.
pub fn heal(rig: &Rig) {
    rig.disk.clear_faults();
    rig.disk.release();
}
