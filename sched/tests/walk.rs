//! Random walks over the whole API against an oracle: after any legal sequence of calls, what a step or an await gives equals, byte for
//! byte, hashing the request's tokens from their start. Over disks that delay, reorder and refuse, with 1, 2 and 4 I/O actors.
//!
//! `ENGRAM_WALK_SECONDS` sets how long (default 20). A walk that fails prints a line for `walk-seeds.txt`, whose walks are run first.

mod fault_support;

use engram_keygen::Token;
use engram_sched_core::io::SimulatedFault as Fault;
use engram_sched_core::{
    AwaitError, Begin, EntryFailure, Limits, RequestClass, RequestId, Step, StepEntry, StepError, StepSlot, StepSpec,
    TokenError,
};
use fault_support::common::{Kind, Oracle};
use fault_support::{HangGuard, Lcg, Plan, Rig, token};
use std::time::{Duration, Instant};

const REQUESTS: usize = 6;
const DRAFTS: usize = 6;
const STEPS: usize = 3;
const STEP_TOKENS: u32 = 96;

/// Waits longer than any of these tests' disks can take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A request as the engine knows it.
#[derive(Clone)]
struct Request {
    id: RequestId,
    /// Committed tokens from position 0 on.
    tokens: Vec<(Token, bool)>,
    drafts: Vec<Token>,
    /// Positions that are rewritable begin here, at the earliest.
    begun: usize,
    /// The next position that `await_layer` gives.
    cursor: usize,
    preempted: bool,
}

impl Request {
    /// Committed tokens, then drafts.
    fn all(&self) -> Vec<(Token, bool)> {
        self.tokens.iter().copied().chain(self.drafts.iter().map(|&t| (t, true))).collect()
    }

    fn end(&self) -> usize {
        self.tokens.len() + self.drafts.len()
    }
}

/// An entry of a running step.
struct Entry {
    req: RequestId,
    pos: usize,
    tokens: usize,
    /// Tokens up to the entry's last position, once they are all there; kept when they are cut.
    known: Option<Vec<(Token, bool)>>,
    /// It may fail: its request ended, was preempted, or was cut below rows that it had.
    cut: bool,
}

struct Running<'s> {
    step: Step<'s>,
    entries: Vec<Entry>,
    padded: usize,
}

struct Walk<'s> {
    rig: &'s Rig,
    lcg: Lcg,
    requests: Vec<Request>,
    running: Vec<Running<'s>>,
    gone: Vec<RequestId>,
    rows: u64,
    operations: u64,
}

impl<'s> Walk<'s> {
    fn new(rig: &'s Rig, seed: u64) -> Self {
        let (requests, running, gone) = (Vec::new(), Vec::new(), Vec::new());
        Self { rig, lcg: Lcg(seed), requests, running, gone, rows: 0, operations: 0 }
    }

    fn oracle(&self) -> &'s Oracle {
        &self.rig.oracle
    }

    fn tok(&mut self) -> (Token, bool) {
        token(self.rig.kind, &mut self.lcg)
    }

    fn live_tok(&mut self) -> Token {
        loop {
            if let (tok, true) = self.tok() {
                return tok;
            }
        }
    }

    fn pick(&mut self) -> Option<usize> {
        let n = self.requests.len() as u64;
        (n > 0).then(|| self.lcg.below(n) as usize)
    }

    /// A request that serves.
    fn serving(&mut self) -> Option<usize> {
        self.pick().filter(|&i| !self.requests[i].preempted)
    }

    /// What the model knows after a request got tokens, or lost them.
    fn settle(&mut self, i: usize) {
        let request = self.requests[i].clone();
        for entry in self.running.iter_mut().flat_map(|r| &mut r.entries).filter(|e| e.req == request.id && !e.cut) {
            let end = entry.pos + entry.tokens;
            let there = request.end().min(end);
            if there > entry.pos {
                self.requests[i].cursor = self.requests[i].cursor.max(there);
            }
            if there == end && entry.known.is_none() {
                entry.known = Some(request.all()[..end].to_vec());
            }
        }
    }

    /// Everything from `to` on is gone.
    fn cut(&mut self, i: usize, to: usize) {
        let request = &mut self.requests[i];
        let (id, end) = (request.id, request.end());
        request.cursor = request.cursor.min(to);
        for entry in self.running.iter_mut().flat_map(|r| &mut r.entries).filter(|e| e.req == id) {
            entry.cut |= to < end.min(entry.pos + entry.tokens) && end > entry.pos;
        }
    }

    fn end(&mut self, i: usize) -> Request {
        let request = self.requests.swap_remove(i);
        for entry in self.running.iter_mut().flat_map(|r| &mut r.entries).filter(|e| e.req == request.id) {
            entry.cut = true;
        }
        self.gone.push(request.id);
        request
    }

    fn begin(&mut self) {
        if self.requests.iter().filter(|r| !r.preempted).count() == REQUESTS {
            assert_eq!(self.rig.scheduler.begin(Begin::default()), Err(TokenError::LimitReached("requests_max")));
            return;
        }
        let start = if self.lcg.below(2) == 0 { 0 } else { self.lcg.below(9) as usize };
        let tokens: Vec<_> = (0..start).map(|_| self.tok()).collect();
        let (ids, live): (Vec<_>, Vec<_>) = tokens.iter().copied().unzip();
        let class = if self.lcg.below(4) == 0 { RequestClass::Bulk } else { RequestClass::Interactive };
        let begin = Begin { start_pos: start as u64, history: &ids, live: Some(&live), class, ..Begin::default() };
        let id = self.rig.scheduler.begin(begin).expect("a free slot");
        self.requests.push(Request { id, tokens, drafts: Vec::new(), begun: start, cursor: start, preempted: false });
    }

    fn feed(&mut self, i: usize) {
        let n = self.lcg.below(30) as usize;
        let toks: Vec<_> = (0..n).map(|_| self.tok()).collect();
        self.append(i, &toks, true);
    }

    /// Commits tokens at the end.
    fn append(&mut self, i: usize, toks: &[(Token, bool)], prompt: bool) {
        let (id, end) = (self.requests[i].id, self.requests[i].tokens.len());
        let (ids, live): (Vec<_>, Vec<_>) = toks.iter().copied().unzip();
        if prompt {
            self.rig.scheduler.on_tokens(id, end as u64, &ids, Some(&live)).expect("tokens taken");
        } else {
            self.rig.scheduler.on_token(id, ids[0]).expect("token taken");
        }
        self.replay(i, end, toks);
    }

    /// What on_tokens does to the model.
    fn replay(&mut self, i: usize, pos: usize, toks: &[(Token, bool)]) {
        let same =
            |kind: Kind, a: (Token, bool), b: (Token, bool)| resolved(self.rig.oracle.kind, a) == resolved(kind, b);
        let kind = self.rig.kind;
        let all = self.requests[i].all();
        let committed = self.requests[i].tokens.len();
        let right = toks.iter().zip(&all[pos..]).take_while(|&(&a, &b)| same(kind, a, b)).count();
        let first = pos + right;
        if right < toks.len() && first < all.len() {
            self.cut(i, first);
            self.requests[i].tokens.truncate(first.min(committed));
        }
        let request = &mut self.requests[i];
        let useful = first.saturating_sub(committed).min(request.drafts.len());
        let useful: Vec<_> = request.drafts.drain(..useful).collect();
        request.tokens.extend(useful.into_iter().map(|t| (t, true)));
        if right < toks.len() {
            request.drafts.clear();
            request.tokens.extend(&toks[right..]);
        }
        self.settle(i);
    }

    fn rewrite(&mut self, i: usize) {
        let request = &self.requests[i];
        let (id, begun, end) = (request.id, request.begun, request.tokens.len());
        if end == begun {
            return;
        }
        let pos = begun + self.lcg.below((end - begun) as u64) as usize;
        let n = 1 + self.lcg.below(6) as usize;
        let mut toks: Vec<_> = self.requests[i].tokens[pos..].iter().copied().take(n).collect();
        let change = self.lcg.below(n as u64 + 1) as usize;
        for at in change..n {
            let tok = self.tok();
            toks.get_mut(at).map(|t| *t = tok).unwrap_or_else(|| toks.push(tok));
        }
        let (ids, live): (Vec<_>, Vec<_>) = toks.iter().copied().unzip();
        self.rig.scheduler.on_tokens(id, pos as u64, &ids, Some(&live)).expect("rewritten");
        self.replay(i, pos, &toks);
    }

    fn draft(&mut self, i: usize) {
        let request = &self.requests[i];
        let (id, end) = (request.id, request.tokens.len());
        let before = self.lcg.below(self.requests[i].drafts.len() as u64 + 1) as usize;
        let n = self.lcg.below((DRAFTS - before) as u64 + 1) as usize;
        let mut toks: Vec<Token> = self.requests[i].drafts[before..].iter().copied().take(n).collect();
        let keep = self.lcg.below(n as u64 + 1) as usize;
        toks.truncate(keep);
        while toks.len() < n {
            toks.push(self.live_tok());
        }
        self.rig.scheduler.on_draft(id, (end + before) as u64, &toks).expect("drafts taken");
        let kind = self.rig.kind;
        let there = &self.requests[i].drafts[before..];
        let same = toks
            .iter()
            .zip(there)
            .take_while(|&(&a, &b)| resolved(kind, (a, true)) == resolved(kind, (b, true)))
            .count();
        if same < toks.len() {
            if same < there.len() {
                self.cut(i, end + before + same);
                self.requests[i].drafts.truncate(before + same);
            }
            self.requests[i].drafts.extend(&toks[same..]);
        }
        self.settle(i);
    }

    fn accept(&mut self, i: usize) {
        let drafts = self.requests[i].drafts.len();
        let n = self.lcg.below(drafts as u64 + 1) as usize;
        let bonus = (self.lcg.below(4) > 0).then(|| self.live_tok());
        let id = self.requests[i].id;
        let more = self.rig.scheduler.accept(id, drafts as u32 + 1, bonus);
        assert!(matches!(more, Err(TokenError::BadState(_))));
        self.rig.scheduler.accept(id, n as u32, bonus).expect("accepted");
        let end = self.requests[i].tokens.len() + n;
        if n < drafts {
            self.cut(i, end);
        }
        let request = &mut self.requests[i];
        let taken: Vec<_> = request.drafts.drain(..n).collect();
        request.tokens.extend(taken.into_iter().map(|t| (t, true)));
        request.drafts.clear();
        request.tokens.extend(bonus.map(|t| (t, true)));
        self.settle(i);
    }

    fn rollback(&mut self, i: usize) {
        let (id, begun, end) = (self.requests[i].id, self.requests[i].begun, self.requests[i].tokens.len());
        assert_eq!(
            self.rig.scheduler.rollback(id, end as u64 + 1),
            Err(TokenError::Gap { end: end as u64, pos: end as u64 + 1 })
        );
        let to = begun + self.lcg.below((end - begun) as u64 + 1) as usize;
        self.rig.scheduler.rollback(id, to as u64).expect("rolled back");
        self.cut(i, to);
        self.requests[i].tokens.truncate(to);
        self.requests[i].drafts.clear();
        self.settle(i);
    }

    fn fork(&mut self, i: usize) {
        if self.requests.iter().filter(|r| !r.preempted).count() == REQUESTS {
            return;
        }
        let parent = self.requests[i].clone();
        let id = self.rig.scheduler.fork(parent.id).expect("forked");
        let end = parent.tokens.len();
        self.requests.push(Request { id, drafts: Vec::new(), begun: end, cursor: end, ..parent });
    }

    fn import(&mut self, i: usize) {
        let state = self.rig.scheduler.export_state(self.requests[i].id).expect("exported");
        let old = self.end(i);
        self.rig.scheduler.finish(old.id);
        let id = self.rig.scheduler.import_state(&state).expect("imported");
        let end = old.tokens.len();
        self.requests.push(Request { id, drafts: Vec::new(), begun: end, cursor: end, preempted: false, ..old });
    }

    fn preempt(&mut self, i: usize) {
        if self.requests[i].preempted {
            if self.requests.iter().filter(|r| !r.preempted).count() == REQUESTS {
                return;
            }
            let keep = self.lcg.below(self.requests[i].tokens.len() as u64 + 1) as usize;
            let (ids, live): (Vec<_>, Vec<_>) = self.requests[i].tokens[..keep].iter().copied().unzip();
            let begin = Begin { start_pos: keep as u64, history: &ids, live: Some(&live), ..Begin::default() };
            self.rig.scheduler.resume(self.requests[i].id, begin).expect("resumed");
            let request = &mut self.requests[i];
            (request.preempted, request.begun, request.cursor) = (false, keep, keep);
            request.tokens.truncate(keep);
            return;
        }
        let id = self.requests[i].id;
        if self.requests.iter().filter(|r| r.preempted).count() == REQUESTS {
            assert!(matches!(self.rig.scheduler.preempt(id), Err(TokenError::LimitReached(_))));
            return;
        }
        self.rig.scheduler.preempt(id).expect("preempted");
        for entry in self.running.iter_mut().flat_map(|r| &mut r.entries).filter(|e| e.req == id) {
            entry.cut = true;
        }
        let request = &mut self.requests[i];
        request.preempted = true;
        request.drafts.clear();
        assert!(matches!(self.rig.scheduler.on_token(id, 1), Err(TokenError::BadState(_))));
        assert_eq!(self.rig.scheduler.await_layer(id).try_take().err(), Some(AwaitError::Cancelled));
    }

    fn submit(&mut self) {
        let mut entries = Vec::new();
        let mut rows = 0;
        for i in 0..self.requests.len() {
            let request = &self.requests[i];
            if request.preempted || self.lcg.below(3) == 0 {
                continue;
            }
            let (begun, end) = (request.begun, request.end());
            let pos = match self.lcg.below(4) {
                0 => begun + self.lcg.below((end - begun) as u64 + 1) as usize, // once more, or skipping
                1 => end,                                                       // late, all of it
                _ => request.cursor.min(end),
            };
            let n = 1 + self.lcg.below((end - pos) as u64 + 3) as usize;
            let n = n.min(STEP_TOKENS as usize - rows);
            if n > 0 {
                entries.push(Entry { req: request.id, pos, tokens: n, known: None, cut: false });
                rows += n;
            }
        }
        let padded = (rows + self.lcg.below(4) as usize).min(STEP_TOKENS as usize);
        let wanted: Vec<_> =
            entries.iter().map(|e| StepEntry { req: e.req, pos: e.pos as u64, tokens: e.tokens as u32 }).collect();
        let slot = (self.lcg.below(3) == 0).then(|| StepSlot(self.lcg.below(STEPS as u64) as u16));
        let spec = StepSpec { entries: &wanted, padded_tokens: padded as u32, slot, ..StepSpec::default() };
        match self.rig.scheduler.submit_step(&spec) {
            Ok(step) => {
                self.running.push(Running { step, entries, padded });
                (0..self.requests.len()).for_each(|i| self.settle(i));
            }
            Err(StepError::Busy) => assert!(slot.is_some()),
            // A step that was released a moment ago may still be copied to.
            Err(StepError::LimitReached("steps_in_flight_max")) => {}
            Err(other) => panic!("{other}"),
        }
    }

    /// Gives what a running step waits for, then compares all of it.
    fn check(&mut self, at: usize) {
        for number in 0..self.running[at].entries.len() {
            let entry = &self.running[at].entries[number];
            let (req, end) = (entry.req, entry.pos + entry.tokens);
            let Some(i) = self.requests.iter().position(|r| r.id == req && !r.preempted) else { continue };
            while self.requests[i].end() < end && !self.running[at].entries[number].cut {
                let tok = self.live_tok();
                if self.lcg.below(3) == 0 && self.requests[i].drafts.len() < DRAFTS {
                    let (id, pos) = (self.requests[i].id, self.requests[i].end() as u64);
                    self.rig.scheduler.on_draft(id, pos, &[tok]).expect("a draft");
                    self.requests[i].drafts.push(tok);
                    self.settle(i);
                } else {
                    self.append(i, &[(tok, true)], false);
                }
            }
        }
        let running = self.running.swap_remove(at);
        let mut tables: Vec<usize> = (0..self.rig.scheduler.layers().len()).collect();
        if self.lcg.below(2) == 0 {
            tables.reverse();
        }
        for table in tables {
            let layer = self.rig.scheduler.layers()[table];
            let got = match running.step.await_layer(layer).wait_deadline(Instant::now() + PATIENCE) {
                Ok(got) => got,
                Err(error) => {
                    let entries =
                        running.entries.iter().map(|e| (e.req.to_string(), e.pos, e.tokens, e.known.is_some(), e.cut));
                    let stats = self.rig.scheduler.stats();
                    panic!("layer {layer} of {:?}: {error}\n{stats:#?}", entries.collect::<Vec<_>>())
                }
            };
            assert_eq!(got.shape()[0], running.padded);
            let token_bytes = got.bytes().len() / running.padded.max(1);
            let mut bytes = got.bytes();
            let failed = running.step.failed(layer);
            for (number, entry) in running.entries.iter().enumerate() {
                let (rows, rest) = bytes.split_at(entry.tokens * token_bytes);
                bytes = rest;
                let fails = failed[number / 64] >> (number % 64) & 1 == 1;
                let failure = running.step.failure(layer, number);
                assert_eq!(fails, failure.is_some());
                if fails {
                    assert!(entry.cut, "entry {number} failed: {failure:?}");
                    assert_eq!(failure, Some(EntryFailure::Cancelled));
                    assert!(rows.iter().all(|&b| b == 0), "a failed entry is zeros");
                } else {
                    let known = entry.known.as_ref().expect("all there");
                    let right = self.oracle().rows(table, known, entry.pos);
                    assert!(rows == right, "layer {layer}, entry {number}, position {}: wrong bytes", entry.pos);
                    self.rows += entry.tokens as u64;
                }
            }
            assert!(bytes.iter().all(|&b| b == 0), "padding is zeros");
        }
    }

    /// Takes the next range by `await_layer`.
    fn drain(&mut self, i: usize) {
        let (id, cursor, end) = (self.requests[i].id, self.requests[i].cursor, self.requests[i].tokens.len());
        let start = cursor.min(end);
        let end = end.min(start + 16);
        for (table, &layer) in self.rig.scheduler.layers().iter().enumerate() {
            let mut wait = self.rig.scheduler.await_layer_at(id, layer);
            let got = match wait.wait_deadline(Instant::now() + PATIENCE) {
                Ok(got) => got,
                Err(error) => panic!("request {id}, layer {layer}, {start}..{end}: {error}"),
            };
            assert_eq!(got.positions(), start as u64..end as u64);
            let right = self.oracle().rows(table, &self.requests[i].tokens[..end], start);
            assert!(got.bytes() == right, "layer {layer}, positions {start}..{end}: wrong bytes");
            self.rows += (end - start) as u64;
            drop(got);
            if table == 0 && self.lcg.below(6) == 0 && end > self.requests[i].begun {
                // The pass is given up half-way, and rolled back.
                let to = self.requests[i].begun.max(start).min(end - 1);
                self.rig.scheduler.rollback(id, to as u64).expect("rolled back");
                self.cut(i, to);
                self.requests[i].tokens.truncate(to);
                self.requests[i].drafts.clear();
                self.settle(i);
                self.requests[i].cursor = to;
                return;
            }
        }
        self.requests[i].cursor = self.requests[i].cursor.max(end);
    }

    fn wrong(&mut self) {
        let Some(&id) = self.gone.last() else { return };
        let scheduler = &self.rig.scheduler;
        assert_eq!(scheduler.on_token(id, 1), Err(TokenError::UnknownRequest(id)));
        assert_eq!(scheduler.await_layer(id).try_take().err(), Some(AwaitError::UnknownRequest(id)));
        let spec =
            StepSpec { entries: &[StepEntry { req: id, pos: 0, tokens: 1 }], padded_tokens: 1, ..StepSpec::default() };
        assert_eq!(scheduler.submit_step(&spec).err(), Some(StepError::UnknownRequest(id)));
        scheduler.abort(id);
        if let Some(i) = self.serving() {
            let (id, end) = (self.requests[i].id, self.requests[i].tokens.len() as u64);
            assert!(matches!(scheduler.on_token(id, -1), Err(TokenError::BadToken { .. })));
            assert_eq!(scheduler.on_tokens(id, end + 1, &[1], None), Err(TokenError::Gap { end, pos: end + 1 }));
        }
    }

    fn operation(&mut self) {
        self.operations += 1;
        let which = self.lcg.below(40);
        if std::env::var_os("ENGRAM_WALK_LOG").is_some() {
            let requests: Vec<_> = self
                .requests
                .iter()
                .map(|r| (r.id.to_string(), r.begun, r.cursor, r.tokens.len(), r.drafts.len(), r.preempted))
                .collect();
            let running: Vec<_> = self
                .running
                .iter()
                .flat_map(|r| &r.entries)
                .map(|e| (e.req.to_string(), e.pos, e.tokens, e.known.is_some(), e.cut))
                .collect();
            eprintln!("{which}: {requests:?} {running:?}");
        }
        match which {
            0..=2 => self.begin(),
            3..=7 => self.serving().into_iter().for_each(|i| self.feed(i)),
            8..=12 => {
                let tok = self.live_tok();
                self.serving().into_iter().for_each(|i| self.append(i, &[(tok, true)], false));
            }
            13..=16 => self.serving().into_iter().for_each(|i| self.draft(i)),
            17..=19 => self.serving().into_iter().for_each(|i| self.accept(i)),
            20 | 21 => self.serving().into_iter().for_each(|i| self.rollback(i)),
            22 | 23 => self.serving().into_iter().for_each(|i| self.rewrite(i)),
            24 => self.serving().into_iter().for_each(|i| self.fork(i)),
            25 => self.serving().into_iter().for_each(|i| self.import(i)),
            26 => self.pick().into_iter().for_each(|i| self.preempt(i)),
            27 => {
                if let Some(i) = self.pick() {
                    let request = self.end(i);
                    self.rig.scheduler.abort(request.id);
                }
            }
            28..=31 => self.submit(),
            32..=34 if !self.running.is_empty() => {
                let at = self.lcg.below(self.running.len() as u64) as usize;
                self.check(at);
            }
            35 if !self.running.is_empty() => {
                let at = self.lcg.below(self.running.len() as u64) as usize;
                let cancelled = self.running.swap_remove(at);
                if self.lcg.below(2) == 0 { cancelled.step.cancel() } else { drop(cancelled) }
            }
            36 => self.wrong(),
            37 => {
                let times = 1 + self.lcg.below(3) as u32;
                let errno = if self.lcg.below(2) == 0 { libc::EAGAIN } else { libc::EINTR };
                self.rig.disk.add_fault(Fault::Burst { errno, times });
            }
            _ => {
                if let Some(i) = self.serving()
                    && !self.running.iter().flat_map(|r| &r.entries).any(|e| e.req == self.requests[i].id)
                {
                    self.drain(i);
                }
            }
        }
    }
}

/// What is hashed: masked positions of V4.1 are all alike.
fn resolved(kind: Kind, (tok, live): (Token, bool)) -> i64 {
    match kind {
        Kind::Qwen => tok.into(),
        Kind::V41 if !live || tok == fault_support::common::V41_IMAGE => -1,
        Kind::V41 => fault_support::common::keygen(kind).id(tok, live).expect("legal").to_word().into(),
    }
}

fn walk(kind: Kind, actors: u32, seed: u64, operations: u64) -> (u64, u64) {
    let limits = Limits {
        requests_max: REQUESTS as u32,
        ahead_tokens_max: 6,
        await_tokens_max: 16,
        steps_in_flight_max: STEPS as u16,
        step_tokens_max: STEP_TOKENS,
        draft_tokens_max: DRAFTS as u32,
        request_tokens_max: 4096,
        // Refusals add up until there are reads, and then one read may meet them all: it is to come through, or nothing is transient.
        retries_max: 1000,
        ..Limits::default()
    };
    let rig = Plan { limits, seed, ..Plan::new(kind, actors) }.rig();
    rig.disk.set_latency_us(1..2000);
    let mut walk = Walk::new(&rig, seed);
    for _ in 0..operations {
        walk.operation();
    }
    while !walk.running.is_empty() {
        walk.check(0);
    }
    let (operations, rows) = (walk.operations, walk.rows);
    drop(walk);
    let stats = rig.scheduler.shutdown(Duration::from_secs(20)).expect("nothing is left in the kernel");
    assert_eq!((stats.completions_unknown, stats.reads_failed), (0, 0));
    (operations, rows)
}

/// Runs a walk; a panic names its line for the file of seeds.
fn named(kind: Kind, actors: u32, seed: u64) -> (u64, u64) {
    let outcome = std::panic::catch_unwind(|| walk(kind, actors, seed, 400));
    outcome.unwrap_or_else(|panic| {
        eprintln!("walk failed; add to sched/tests/walk-seeds.txt: {kind:?} {actors} {seed}");
        std::panic::resume_unwind(panic)
    })
}

#[test]
fn walks_equal_the_oracle() {
    let seconds = std::env::var("ENGRAM_WALK_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(20);
    let _guard = HangGuard::new("walks", seconds + 180);
    for line in include_str!("walk-seeds.txt").lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let kind = if words.next() == Some("Qwen") { Kind::Qwen } else { Kind::V41 };
        let mut number = || words.next().and_then(|n| n.parse::<u64>().ok()).expect("kind, actors, seed");
        let actors = number() as u32;
        named(kind, actors, number());
    }
    let begun = Instant::now();
    let (mut walks, mut operations, mut rows) = (0, 0, 0);
    let first = std::env::var("ENGRAM_WALK_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    for seed in first.. {
        for (kind, actors) in
            [(Kind::Qwen, 1), (Kind::V41, 1), (Kind::V41, 2), (Kind::Qwen, 4), (Kind::V41, 4), (Kind::Qwen, 2)]
        {
            let done = named(kind, actors, seed);
            (walks, operations, rows) = (walks + 1, operations + done.0, rows + done.1);
        }
        if begun.elapsed().as_secs() >= seconds {
            break;
        }
    }
    println!("{walks} walks, {operations} operations, {rows} token rows compared, 0 mismatches");
    assert!(rows > 10_000, "the walks compared {rows} rows");
}
