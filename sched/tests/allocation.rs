//! The hot path allocates nothing: counted by the global allocator over the whole process, engine's thread and I/O actor's alike.
//! Alone in its process, for that reason.

mod fault_support;

use engram_sched_core::{BackendChoice, Begin, Limits, Scheduler, StartOptions};
use fault_support::common::{Kind, start, write_model};
use fault_support::{HangGuard, Lcg, Plan};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static OF_THIS_THREAD: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    OF_THIS_THREAD.with(|n| n.set(n.get() + 1));
}

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const TOKENS: u64 = 2000;

/// Decode steps of a request; returns (process, engine's thread) allocations.
fn decode(scheduler: &Scheduler, tokens: u64, seed: u64) -> (u64, u64) {
    let mut lcg = Lcg(seed);
    let id = scheduler.begin(Begin::default()).expect("a slot");
    let layers = scheduler.layers().len();
    let step = |lcg: &mut Lcg| {
        scheduler.on_token(id, lcg.below(400) as i32).expect("token taken");
        for _ in 0..layers {
            let rows = scheduler.await_layer(id).wait().expect("rows");
            assert_eq!(rows.positions().count(), 1);
        }
    };
    (0..64).for_each(|_| step(&mut lcg)); // this request's first steps may still warm something up
    let (all, ours) = (ALLOCATIONS.load(Ordering::Relaxed), OF_THIS_THREAD.get());
    (0..tokens).for_each(|_| step(&mut lcg));
    let (all, ours) = (ALLOCATIONS.load(Ordering::Relaxed) - all, OF_THIS_THREAD.get() - ours);
    scheduler.finish(id);
    (all, ours)
}

/// Prompts, many requests and ends of requests, so that every pool and table has been through its sizes.
fn warm_up(scheduler: &Scheduler) {
    let mut lcg = Lcg(9);
    for _ in 0..20 {
        let ids: Vec<_> = (0..4).map(|_| scheduler.begin(Begin::default()).expect("a slot")).collect();
        for &id in &ids {
            let toks: Vec<i32> = (0..200).map(|_| lcg.below(400) as i32).collect();
            scheduler.on_tokens(id, 0, &toks, None).expect("a prompt");
        }
        for &id in &ids {
            for _ in 0..scheduler.layers().len() {
                scheduler.await_layer(id).wait().expect("rows");
            }
            scheduler.finish(id);
        }
    }
    decode(scheduler, 500, 10);
}

fn measure(what: &str, scheduler: &Scheduler) {
    warm_up(scheduler);
    let (all, ours) = decode(scheduler, TOKENS, 11);
    println!("{what}: {TOKENS} tokens, {all} allocations in the process, {ours} on the engine's thread");
    println!("allocations per token: {}", all as f64 / TOKENS as f64);
    assert_eq!((all, ours), (0, 0));
    // Rows that are there already: on_token, then nothing to wait for.
    let id = scheduler.begin(Begin::default()).expect("a slot");
    let mut lcg = Lcg(12);
    let mut counted = 0;
    for i in 0..300 {
        let (extents, deadline) = (scheduler.layers().len(), Instant::now() + Duration::from_millis(2));
        let before = OF_THIS_THREAD.get();
        scheduler.on_token(id, lcg.below(400) as i32).expect("token taken");
        while Instant::now() < deadline && i % 10 == 0 {
            std::thread::yield_now();
        }
        for _ in 0..extents {
            drop(scheduler.await_layer(id).wait().expect("rows"));
        }
        counted += OF_THIS_THREAD.get() - before;
    }
    assert_eq!(counted, 0, "on_token and await_layer of rows that are there");
    scheduler.finish(id);
}

fn limits() -> Limits {
    Limits { requests_max: 8, ahead_tokens_max: 64, await_tokens_max: 256, ..Limits::default() }
}

#[test]
fn the_hot_path_allocates_nothing() {
    // The guard's thread allocates when it starts, hence before the count.
    let _guard = HangGuard::new("allocation", 120);
    for kind in [Kind::Qwen, Kind::V41] {
        for actors in [1, 2] {
            let rig = Plan { limits: limits(), ..Plan::new(kind, actors) }.rig();
            measure(&format!("{kind:?}, simulated x{actors}"), &rig.scheduler);
        }
        for backend in [BackendChoice::Pread, BackendChoice::Auto] {
            let dir = tempfile::tempdir().unwrap();
            let options = StartOptions { limits: limits(), backend, io_actors: Some(1), ..StartOptions::default() };
            let scheduler = start(write_model(dir.path(), kind, 3), &options);
            let name = scheduler.stats().backends[0].backend;
            measure(&format!("{kind:?}, {name}"), &scheduler);
        }
    }
}
