//! Engine threads against each other: feeding, awaiting, aborting and dropping on shared requests, over a real disk and simulated
//! ones. Every byte delivered is compared with the oracle, every error must be one that the contract allows, and all slots come back.

mod fault_support;

use engram_sched_core::io::SimulatedFault as Fault;
use engram_sched_core::{
    AwaitError, BackendChoice, Begin, Limits, RequestClass, RequestId, Scheduler, StartOptions, TokenError,
};
use fault_support::common::{Kind, Oracle, start, write_model};
use fault_support::{HangGuard, Lcg, Plan, Rig, assert_slots_return};
use std::future::Future;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

const REQUESTS_MAX: usize = 12;
const AWAIT_TOKENS_MAX: usize = 16;

/// How long each storm lasts.
const STORM: Duration = Duration::from_millis(800);

fn limits() -> Limits {
    Limits {
        requests_max: REQUESTS_MAX as u32,
        ahead_tokens_max: 6,
        await_tokens_max: AWAIT_TOKENS_MAX as u32,
        ..Limits::default()
    }
}

/// Runs `storm` on a real disk, by threads and by the ring, and on simulated ones, then checks that nothing is lost.
fn everywhere(storm: impl Fn(&Scheduler, &Oracle)) {
    for kind in [Kind::Qwen, Kind::V41] {
        for backend in [BackendChoice::Pread, BackendChoice::Auto] {
            let dir = tempfile::tempdir().unwrap();
            let options = StartOptions { limits: limits(), backend, io_actors: Some(2), ..StartOptions::default() };
            let scheduler = start(write_model(dir.path(), kind, 3), &options);
            storm(&scheduler, &Oracle::new(kind));
            settle(&scheduler);
        }
        // The second way each of V4.1's files has an actor of its own: a plan's groups concern different actors.
        for (actors, shards) in [(1, 3), (4, 1), (3, 7)] {
            let rig = Plan { limits: limits(), shards, ..Plan::new(kind, actors) }.rig();
            rig.disk.set_latency_us(1..3000);
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| stumble(&rig, &over));
                storm(&rig.scheduler, &rig.oracle);
                over.store(true, Ordering::SeqCst);
            });
            rig.disk.clear_faults();
            rig.disk.release();
            settle(&rig.scheduler);
        }
    }
}

/// Stalls some reads for a moment, again and again: so that requests end with reads out.
fn stumble(rig: &Rig, over: &AtomicBool) {
    let mut lcg = Lcg(77);
    while !over.load(Ordering::SeqCst) {
        let file = engram_store::FileId(lcg.below(rig.files.len() as u64) as u32);
        rig.disk.add_fault(Fault::Stall { file, range: 0..u64::MAX, times: 1 + lcg.below(20) as u32 });
        std::thread::sleep(Duration::from_micros(lcg.below(1500)));
        rig.disk.clear_faults();
        rig.disk.release();
    }
}

fn settle(scheduler: &Scheduler) {
    assert_slots_return(scheduler, REQUESTS_MAX);
    let stats = scheduler.shutdown(Duration::from_secs(20)).expect("nothing is left in the kernel");
    assert_eq!((stats.completions_unknown, stats.reads_failed), (0, 0));
}

/// A request that several threads know. Its tokens are recorded under the lock that feeding takes, unless feeding races on purpose.
struct Shared {
    id: RequestId,
    tokens: Vec<(i32, bool)>,
}

fn begin(scheduler: &Scheduler, lcg: &mut Lcg) -> Result<RequestId, TokenError> {
    let class = if lcg.below(4) == 0 { RequestClass::Bulk } else { RequestClass::Interactive };
    scheduler.begin(Begin { class, ..Begin::default() })
}

/// What `got` holds must be the rows of `tokens`, at whatever positions it says.
fn compare(
    oracle: &Oracle,
    layers: &[engram_sched_core::Layer],
    got: &engram_sched_core::LayerRows<'_>,
    tokens: &[(i32, bool)],
) {
    let table = layers.iter().position(|&l| l == got.layer()).expect("a layer of the model");
    let (from, to) = (got.positions().start as usize, got.positions().end as usize);
    assert!(to <= tokens.len(), "positions {from}..{to} of {} tokens", tokens.len());
    assert!(got.bytes() == oracle.rows(table, &tokens[..to], from), "layer {}, {from}..{to}: wrong bytes", got.layer());
}

#[test]
fn begin_and_abort_at_once_lose_no_slot() {
    let _guard = HangGuard::new("begin and abort", 120);
    everywhere(|scheduler, _| {
        let begun = Instant::now();
        let lives = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let lives = &lives;
                scope.spawn(move || {
                    let mut lcg = Lcg(thread);
                    while begun.elapsed() < STORM {
                        let Ok(id) = begin(scheduler, &mut lcg) else { continue };
                        for _ in 0..lcg.below(3) {
                            scheduler.on_token(id, lcg.below(400) as i32).expect("token taken");
                        }
                        if lcg.below(3) == 0 {
                            let _ = scheduler.await_layer(id).try_take().expect("no error");
                        }
                        scheduler.abort(id);
                        lives.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        println!("{} lives", lives.load(Ordering::Relaxed));
    });
}

#[test]
fn requests_of_others_are_aborted_at_random() {
    let _guard = HangGuard::new("random aborts", 120);
    everywhere(|scheduler, oracle| {
        let board: Vec<Mutex<Option<RequestId>>> = (0..4).map(|_| Mutex::new(None)).collect();
        let begun = Instant::now();
        let (rows, cut) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (board, rows, cut) = (&board, &rows, &cut);
                scope.spawn(move || {
                    let mut lcg = Lcg(thread);
                    while begun.elapsed() < STORM {
                        let Ok(id) = begin(scheduler, &mut lcg) else { continue };
                        *board[thread as usize].lock().unwrap() = Some(id);
                        match live(scheduler, oracle, id, &mut lcg) {
                            Some(compared) => rows.fetch_add(compared as u64, Ordering::Relaxed),
                            None => cut.fetch_add(1, Ordering::Relaxed),
                        };
                        scheduler.finish(id);
                    }
                });
            }
            scope.spawn(|| {
                let mut lcg = Lcg(99);
                while begun.elapsed() < STORM {
                    let id = *board[lcg.below(4) as usize].lock().unwrap();
                    // Often an old id: its slot's next request must not feel it.
                    id.into_iter().for_each(|id| scheduler.abort(id));
                    std::thread::sleep(Duration::from_micros(lcg.below(2000)));
                }
            });
        });
        let (rows, cut) = (rows.into_inner(), cut.into_inner());
        println!("{:?}: {rows} rows compared, {cut} requests cut short", oracle.kind);
        assert!(rows > 1000 && cut > 10);
    });
}

/// A request's life; `None` if somebody ended it.
fn live(scheduler: &Scheduler, oracle: &Oracle, id: RequestId, lcg: &mut Lcg) -> Option<usize> {
    let layers = scheduler.layers().to_vec();
    let mut tokens: Vec<(i32, bool)> = Vec::new();
    let mut rows = 0;
    for _ in 0..1 + lcg.below(12) {
        let toks: Vec<i32> = (0..1 + lcg.below(9)).map(|_| lcg.below(60) as i32).collect();
        let fed = if toks.len() == 1 {
            scheduler.on_token(id, toks[0])
        } else {
            scheduler.on_tokens(id, tokens.len() as u64, &toks, None)
        };
        match fed {
            Ok(()) => tokens.extend(toks.iter().map(|&t| (t, true))),
            Err(TokenError::UnknownRequest(_)) => return None,
            Err(other) => panic!("{other}"),
        }
        if lcg.below(3) == 0 {
            continue;
        }
        for _ in 0..layers.len() {
            match take(scheduler, id, lcg) {
                Ok(got) => {
                    compare(oracle, &layers, &got, &tokens);
                    rows += got.shape()[0] * got.shape()[1];
                }
                Err(AwaitError::UnknownRequest(_)) => return None,
                Err(other) => panic!("{other}"),
            }
        }
    }
    Some(rows)
}

/// Takes the next layer in one of the ways there are: by waiting, with deadlines, by polling futures that are dropped on the way.
fn take<'s>(
    scheduler: &'s Scheduler,
    id: RequestId,
    lcg: &mut Lcg,
) -> Result<engram_sched_core::LayerRows<'s>, AwaitError> {
    for _ in 0..lcg.below(4) {
        let mut context = Context::from_waker(Waker::noop());
        let mut future = pin!(scheduler.await_layer(id));
        if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
            return result;
        }
    }
    match lcg.below(3) {
        0 => scheduler.await_layer(id).wait(),
        1 => loop {
            match scheduler.await_layer(id).wait_deadline(Instant::now()) {
                Err(AwaitError::DeadlineMissed { ready, total }) => assert!(ready <= total, "{ready} of {total}"),
                other => return other,
            }
        },
        _ => {
            let mut layer = scheduler.await_layer(id);
            loop {
                match layer.wait_deadline(Instant::now() + Duration::from_micros(lcg.below(300))) {
                    Err(AwaitError::DeadlineMissed { ready, total }) => assert!(ready <= total, "{ready} of {total}"),
                    other => return other,
                }
            }
        }
    }
}

#[test]
fn two_threads_on_one_request_never_mix_it_up() {
    let _guard = HangGuard::new("shared requests", 120);
    everywhere(|scheduler, oracle| {
        let layers = scheduler.layers().to_vec();
        let begun = Instant::now();
        let (rows, busy) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for pair in 0..2u64 {
                let current: &'static Mutex<Option<Shared>> = Box::leak(Box::new(Mutex::new(None)));
                for half in 0..2u64 {
                    let (rows, busy, layers) = (&rows, &busy, &layers);
                    scope.spawn(move || {
                        let mut lcg = Lcg(10 * pair + half);
                        while begun.elapsed() < STORM {
                            let id = {
                                let mut current = current.lock().unwrap();
                                if current.is_none() {
                                    let Ok(id) = begin(scheduler, &mut lcg) else { continue };
                                    *current = Some(Shared { id, tokens: Vec::new() });
                                }
                                current.as_ref().unwrap().id
                            };
                            match lcg.below(16) {
                                0 => {
                                    scheduler.finish(id);
                                    current.lock().unwrap().take_if(|shared| shared.id == id);
                                }
                                1..=8 => feed_shared(scheduler, current, id, &mut lcg),
                                _ => match take(scheduler, id, &mut lcg) {
                                    Ok(got) => {
                                        let shared = current.lock().unwrap();
                                        if let Some(shared) = shared.as_ref().filter(|s| s.id == id) {
                                            compare(oracle, layers, &got, &shared.tokens);
                                            rows.fetch_add((got.shape()[0] * got.shape()[1]) as u64, Ordering::Relaxed);
                                        }
                                    }
                                    Err(AwaitError::Busy) => {
                                        busy.fetch_add(1, Ordering::Relaxed);
                                    }
                                    Err(AwaitError::UnknownRequest(_)) => {}
                                    Err(other) => panic!("{other}"),
                                },
                            }
                        }
                        if let Some(shared) = current.lock().unwrap().take() {
                            scheduler.finish(shared.id);
                        }
                    });
                }
            }
        });
        println!("{:?}: {} rows compared, {} times Busy", oracle.kind, rows.into_inner(), busy.into_inner());
    });
}

/// Feeds a shared request. The record is written under the lock; the call itself races with the other thread's awaits and ends.
fn feed_shared(scheduler: &Scheduler, current: &Mutex<Option<Shared>>, id: RequestId, lcg: &mut Lcg) {
    let tok = lcg.below(60) as i32;
    let mut current = current.lock().unwrap();
    let Some(shared) = current.as_mut().filter(|s| s.id == id) else { return };
    match scheduler.on_token(id, tok) {
        Ok(()) => shared.tokens.push((tok, true)),
        Err(TokenError::UnknownRequest(_)) => {}
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn feeding_from_two_threads_is_busy_or_in_order() {
    let _guard = HangGuard::new("racing feeds", 120);
    everywhere(|scheduler, oracle| {
        let layers = scheduler.layers().to_vec();
        let begun = Instant::now();
        let mut rounds = 0;
        while begun.elapsed() < STORM {
            // Both threads feed the same token. Where a prompt comes late it says what stands there already, and is no news.
            let id = scheduler.begin(Begin::default()).expect("a slot");
            let (singles, most) = (AtomicU64::new(0), AtomicU64::new(0));
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        for i in 0..60 {
                            let fed = if i % 3 == 0 {
                                let known = singles.load(Ordering::SeqCst);
                                scheduler.on_tokens(id, known, &[7, 7, 7], None).map(|()| 3)
                            } else {
                                scheduler.on_token(id, 7).map(|()| singles.fetch_add(1, Ordering::SeqCst)).map(|_| 1)
                            };
                            match fed {
                                Ok(n) => drop(most.fetch_add(n, Ordering::SeqCst)),
                                Err(TokenError::Busy | TokenError::Gap { .. }) => {}
                                Err(other) => panic!("{other}"),
                            }
                        }
                    });
                }
            });
            let (singles, most) = (singles.into_inner() as usize, most.into_inner() as usize);
            let tokens = vec![(7, true); most];
            let mut drained = 0;
            loop {
                let before = drained;
                for _ in 0..layers.len() {
                    let got = scheduler.await_layer(id).wait().expect("rows");
                    compare(oracle, &layers, &got, &tokens);
                    drained = got.positions().end as usize;
                }
                if drained == before {
                    break; // an empty range: that was all
                }
            }
            assert!((singles..=most).contains(&drained), "{drained} tokens; {singles} to {most} were taken");
            scheduler.finish(id);
            rounds += 1;
        }
        println!("{:?}: {rounds} rounds", oracle.kind);
    });
}
