//! Tokens in, bytes out, on real files: every backend, one and two I/O actors, both models, against the oracle.

mod common;

use common::{Kind, Oracle, V41_IMAGE, start, write_model};
use engram_keygen::Token;
use engram_sched_core::{AwaitError, BackendChoice, Begin, Closed, Layer, Limits, Scheduler, StartOptions, TokenError};
use std::time::{Duration, Instant};

/// A small deterministic generator: tests must be the same every time.
struct Lcg(u64);

impl Lcg {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

fn token(kind: Kind, lcg: &mut Lcg) -> (Token, bool) {
    match kind {
        // One in twelve is the end token, which resets the window.
        Kind::Qwen => (if lcg.below(12) == 0 { 500 } else { lcg.below(40) as Token }, true),
        Kind::V41 if lcg.below(10) == 0 => (V41_IMAGE, true),
        Kind::V41 if lcg.below(10) == 0 => (-77, false),
        Kind::V41 => (lcg.below(40) as Token, true),
    }
}

struct Walk {
    id: engram_sched_core::RequestId,
    tokens: Vec<(Token, bool)>,
    drained: usize,
}

/// Takes what was fed, layer by layer, and compares every byte.
fn drain(scheduler: &Scheduler, oracle: &Oracle, walk: &mut Walk, await_tokens_max: usize) -> usize {
    let expected_end = walk.tokens.len().min(walk.drained + await_tokens_max);
    let mut rows = 0;
    for (table, &layer) in scheduler.layers().to_vec().iter().enumerate() {
        let got = scheduler.await_layer_at(walk.id, layer).wait().expect("rows");
        assert_eq!(got.positions(), walk.drained as u64..expected_end as u64);
        assert_eq!(got.layer(), layer);
        let want = oracle.rows(table, &walk.tokens[..expected_end], walk.drained);
        assert!(got.bytes() == want, "layer {layer}, positions {:?}: wrong bytes", got.positions());
        rows += got.shape()[0] * got.shape()[1];
    }
    walk.drained = expected_end;
    rows
}

fn random_walk(kind: Kind, backend: BackendChoice, actors: u16, seed: u64) {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { requests_max: 8, ahead_tokens_max: 5, await_tokens_max: 16, ..Limits::default() };
    let options = StartOptions { limits, backend, io_actors: Some(actors), ..StartOptions::default() };
    let scheduler = start(write_model(dir.path(), kind, 3), &options);
    let oracle = Oracle::new(kind);
    let mut lcg = Lcg(seed);
    let mut walks: Vec<Walk> = Vec::new();
    let mut rows = 0;
    for _ in 0..1500 {
        let pick = lcg.below(walks.len().max(1) as u64) as usize;
        match lcg.below(12) {
            0 if walks.len() < 8 => {
                let id = scheduler.begin(Begin::default()).expect("a free slot");
                walks.push(Walk { id, tokens: Vec::new(), drained: 0 });
            }
            1 if !walks.is_empty() => {
                let walk = walks.swap_remove(pick);
                scheduler.abort(walk.id);
                scheduler.abort(walk.id);
                assert_eq!(scheduler.on_token(walk.id, 1), Err(TokenError::UnknownRequest(walk.id)));
            }
            2..=4 if !walks.is_empty() => {
                let walk = &mut walks[pick];
                let toks: Vec<_> = (0..lcg.below(24)).map(|_| token(kind, &mut lcg)).collect();
                let (ids, live): (Vec<_>, Vec<_>) = toks.iter().copied().unzip();
                scheduler.on_tokens(walk.id, walk.tokens.len() as u64, &ids, Some(&live)).expect("tokens taken");
                walk.tokens.extend(toks);
            }
            5..=7 if !walks.is_empty() => {
                let walk = &mut walks[pick];
                let (tok, live) = token(kind, &mut lcg);
                if live {
                    scheduler.on_token(walk.id, tok).expect("token taken");
                    walk.tokens.push((tok, true));
                }
            }
            8..=11 if !walks.is_empty() => rows += drain(&scheduler, &oracle, &mut walks[pick], 16),
            _ => {}
        }
    }
    assert!(rows > 10_000, "the walk compared {rows} rows");
    let stats = scheduler.shutdown(Duration::from_secs(10)).expect("nothing is left in the kernel");
    assert_eq!(stats.completions_unknown, 0);
    assert!(stats.group_joins > 0 && stats.reads > 0);
    println!(
        "{kind:?} {backend:?} x{actors}: {rows} rows compared, {} reads, path {:?}",
        stats.reads, stats.backends[0]
    );
}

#[test]
fn qwen_pread() {
    random_walk(Kind::Qwen, BackendChoice::Pread, 1, 1);
    random_walk(Kind::Qwen, BackendChoice::Pread, 2, 2);
}

#[test]
fn v41_pread() {
    random_walk(Kind::V41, BackendChoice::Pread, 1, 3);
    random_walk(Kind::V41, BackendChoice::Pread, 3, 4);
}

#[test]
fn both_auto() {
    random_walk(Kind::Qwen, BackendChoice::Auto, 1, 5);
    random_walk(Kind::V41, BackendChoice::Auto, 2, 6);
}

#[test]
fn both_mmap() {
    random_walk(Kind::Qwen, BackendChoice::Mmap, 1, 7);
    random_walk(Kind::V41, BackendChoice::Mmap, 1, 8);
}

fn small(kind: Kind) -> (tempfile::TempDir, Scheduler, Oracle) {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { requests_max: 4, await_tokens_max: 64, ..Limits::default() };
    let options = StartOptions { limits, backend: BackendChoice::Pread, ..StartOptions::default() };
    let scheduler = start(write_model(dir.path(), kind, 2), &options);
    (dir, scheduler, Oracle::new(kind))
}

#[test]
fn a_prompt_longer_than_the_window_is_delivered_in_ranges() {
    let (_dir, scheduler, oracle) = small(Kind::V41);
    let id = scheduler.begin(Begin::default()).unwrap();
    let mut lcg = Lcg(9);
    let toks: Vec<(Token, bool)> = (0..1000).map(|_| (lcg.below(1000) as Token, true)).collect();
    let ids: Vec<Token> = toks.iter().map(|t| t.0).collect();
    scheduler.on_tokens(id, 0, &ids, None).unwrap();
    let mut walk = Walk { id, tokens: toks, drained: 0 };
    while walk.drained < 1000 {
        drain(&scheduler, &oracle, &mut walk, 64);
    }
}

#[test]
fn history_gives_the_rows_of_the_whole_prompt() {
    for kind in [Kind::Qwen, Kind::V41] {
        let (_dir, scheduler, oracle) = small(kind);
        let mut lcg = Lcg(10);
        let all: Vec<(Token, bool)> = (0..40).map(|_| (lcg.below(400) as Token, true)).collect();
        let ids: Vec<Token> = all.iter().map(|t| t.0).collect();
        for start_pos in [0usize, 1, 2, 3, 17] {
            let begin = Begin { start_pos: start_pos as u64, history: &ids[..start_pos], ..Begin::default() };
            let id = scheduler.begin(begin).unwrap();
            scheduler.on_tokens(id, start_pos as u64, &ids[start_pos..], None).unwrap();
            let mut walk = Walk { id, tokens: all.clone(), drained: start_pos };
            drain(&scheduler, &oracle, &mut walk, 64);
            scheduler.finish(id);
        }
        let short = scheduler.begin(Begin { start_pos: 5, history: &[1], ..Begin::default() });
        assert!(matches!(short, Err(TokenError::HistoryTooShort { got: 1, .. })), "{short:?}");
    }
}

#[test]
fn bad_calls_consume_nothing() {
    let (_dir, scheduler, oracle) = small(Kind::Qwen);
    let id = scheduler.begin(Begin::default()).unwrap();
    let mut walk = Walk { id, tokens: vec![(7, true), (8, true)], drained: 0 };
    scheduler.on_tokens(id, 0, &[7, 8], None).unwrap();
    for tok in [-1, i32::MIN, 512, i32::MAX] {
        assert_eq!(scheduler.on_token(id, tok), Err(TokenError::BadToken { tok, pos: 2, vocab: 512 }));
    }
    assert_eq!(
        scheduler.on_tokens(id, 2, &[1, 2, -1], None),
        Err(TokenError::BadToken { tok: -1, pos: 4, vocab: 512 })
    );
    assert_eq!(scheduler.on_tokens(id, 3, &[1], None), Err(TokenError::Gap { end: 2, pos: 3 }));
    assert_eq!(scheduler.on_tokens(id, 2, &[1], Some(&[true, true])), Err(TokenError::MaskLength { live: 2, toks: 1 }));
    let unknown = scheduler.await_layer_at(id, Layer(9)).wait();
    assert!(matches!(unknown, Err(AwaitError::UnknownLayer(Layer(9)))));
    drain(&scheduler, &oracle, &mut walk, 64);
    // An empty range is complete at once and moves nothing.
    let empty = scheduler.await_layer(id).wait().unwrap();
    assert_eq!((empty.positions(), empty.bytes().len()), (2..2, 0));
}

#[test]
fn guards_keep_their_bytes_and_hold_the_next_range() {
    let (_dir, scheduler, oracle) = small(Kind::V41);
    let id = scheduler.begin(Begin::default()).unwrap();
    scheduler.on_tokens(id, 0, &[5, 6, 7], None).unwrap();
    let out_of_order = scheduler.await_layer_at(id, Layer(14)).wait();
    assert!(matches!(out_of_order, Err(AwaitError::OutOfOrder { next: Layer(1), asked: Layer(14) })));
    let first = scheduler.await_layer(id).wait().unwrap();
    let second = scheduler.await_layer(id).wait().unwrap();
    scheduler.on_token(id, 8).unwrap();
    assert!(matches!(scheduler.await_layer(id).wait(), Err(AwaitError::Busy)), "the range is still held");
    drop(first);
    assert!(matches!(scheduler.await_layer(id).wait(), Err(AwaitError::Busy)), "the range is still held");
    // The request ends while a guard is alive: the bytes stay, and it does not count as a live request.
    scheduler.abort(id);
    let others: Vec<_> = (0..4).map(|_| scheduler.begin(Begin::default()).unwrap()).collect();
    assert_eq!(scheduler.begin(Begin::default()), Err(TokenError::LimitReached("requests_max")));
    let tokens: Vec<_> = [5, 6, 7].map(|t| (t, true)).to_vec();
    assert!(second.bytes() == oracle.rows(1, &tokens, 0));
    drop(second);
    scheduler.finish(others[0]);
    scheduler.begin(Begin::default()).expect("a request has ended");
}

#[test]
fn a_dropped_await_keeps_the_range() {
    let (_dir, scheduler, oracle) = small(Kind::Qwen);
    let id = scheduler.begin(Begin::default()).unwrap();
    scheduler.on_token(id, 5).unwrap();
    let mut early = scheduler.await_layer(id);
    let taken = early.try_take().unwrap();
    let second = scheduler.await_layer(id).wait();
    assert!(taken.is_some() || matches!(second, Err(AwaitError::Busy)), "one waiter at a time");
    drop((taken, second, early));
    let mut walk = Walk { id, tokens: vec![(5, true)], drained: 0 };
    // Taken above or not, the next token is delivered behind it.
    scheduler.on_token(id, 6).unwrap();
    walk.tokens.push((6, true));
    let got = scheduler.await_layer(id).wait().unwrap();
    let start = got.positions().start as usize;
    let end = got.positions().end as usize;
    assert!(got.bytes() == oracle.rows(0, &walk.tokens[..end], start));
}

#[test]
fn shutdown_ends_waiters_and_later_calls() {
    let (_dir, scheduler, _) = small(Kind::Qwen);
    let id = scheduler.begin(Begin::default()).unwrap();
    let other = scheduler.clone();
    scheduler.on_tokens(id, 0, &[1; 64], None).unwrap();
    let waiter = std::thread::spawn(move || other.await_layer(id).wait().map(drop));
    scheduler.shutdown(Duration::from_secs(10)).unwrap();
    match waiter.join().unwrap() {
        Ok(()) | Err(AwaitError::Closed(Closed::Shutdown)) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(scheduler.on_token(id, 1), Err(TokenError::Closed(Closed::Shutdown)));
    assert!(matches!(scheduler.await_layer(id).wait(), Err(AwaitError::Closed(Closed::Shutdown))));
    scheduler.shutdown(Duration::from_secs(1)).unwrap();
}

#[test]
fn rows_by_id() {
    for kind in [Kind::Qwen, Kind::V41] {
        let (_dir, scheduler, oracle) = small(kind);
        for (table, &layer) in scheduler.layers().iter().enumerate() {
            let rows = oracle.keygen.table_rows(table);
            let ids: Vec<u64> = (0..rows).rev().collect();
            let mut out = vec![0; ids.len() * oracle.row_bytes()];
            scheduler.read_rows(layer, &ids, &mut out).unwrap();
            for (row, bytes) in ids.iter().zip(out.chunks(oracle.row_bytes())) {
                assert!(bytes.iter().enumerate().all(|(i, &b)| b == common::proof(layer.0, *row, i)), "row {row}");
            }
            let bad = scheduler.read_rows(layer, &[0, rows], &mut vec![0; 2 * oracle.row_bytes()]);
            assert!(bad.unwrap_err().to_string().contains("out of range"));
        }
    }
}

#[test]
fn many_threads_share_one_scheduler() {
    let (_dir, scheduler, oracle) = small(Kind::Qwen);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (scheduler, oracle) = (&scheduler, &oracle);
            scope.spawn(move || {
                let mut lcg = Lcg(100 + thread);
                while begun.elapsed() < Duration::from_millis(1500) {
                    let id = scheduler.begin(Begin::default()).expect("one request a thread");
                    let mut walk = Walk { id, tokens: Vec::new(), drained: 0 };
                    for _ in 0..lcg.below(20) {
                        let tok = lcg.below(30) as Token;
                        scheduler.on_token(id, tok).unwrap();
                        walk.tokens.push((tok, true));
                        if lcg.below(3) > 0 {
                            drain(scheduler, oracle, &mut walk, 64);
                        }
                    }
                    scheduler.finish(id);
                }
            });
        }
    });
}
