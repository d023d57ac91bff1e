//! `fork(2)` of a process with a scheduler: in the child every call is a typed error and every drop does nothing; the parent goes on as if
//! nothing had happened, with reads in flight and with a step whose memory both of them see.
//!
//! Each scenario is played in a process of its own. That descriptors are closed by an exec is tested in `cases_io.rs`.
#![cfg(target_os = "linux")]

mod cases_support;
mod environment_support;
mod fault_support;

use cases_support::{World, choices, storm};
use engram_sched_core::{
    AwaitError, Begin, Closed, Dest, FenceStatus, Memory, MemoryKind, ReadRowsError, RequestId, RowIds, Scheduler,
    ShutdownError, StepEntry, StepError, StepSpec, TokenError,
};
use environment_support::in_child;
use fault_support::common::{Kind, Oracle};
use fault_support::{HangGuard, Plan, Walk, heal, stall_all, try_drain};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Not a test of its own: what [`in_child`] plays.
#[test]
fn a_scenario_in_a_child() {
    let Some((scenario, _)) = environment_support::scenario() else { return };
    let _guard = HangGuard::new("a scenario", 120);
    match scenario.as_str() {
        "storm" => forks_in_a_storm(),
        "held" => everything_held_over_a_fork(),
        "shared" => a_step_in_shared_memory(),
        "own" => a_scheduler_of_the_childs_own(),
        other => panic!("no scenario {other}"),
    }
    println!("PLAYED {scenario}");
}

#[test]
fn a_child_gets_errors_while_the_parent_serves() {
    in_child("storm", |_| ());
}

#[test]
fn a_child_drops_what_it_holds() {
    in_child("held", |_| ());
}

#[test]
fn a_child_leaves_shared_fences_and_destinations_alone() {
    in_child("shared", |_| ());
}

#[test]
fn a_child_may_start_a_scheduler_of_its_own() {
    in_child("own", |_| ());
}

/// Whether this is the child.
fn fork() -> Option<libc::pid_t> {
    // SAFETY: the child calls the scheduler, whose locks it must not need, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    (child > 0).then_some(child)
}

/// The child's life: ends it with 0, or with the number of the first check that failed, or 101 for a panic. A hang is ended by an alarm.
struct Child;

impl Child {
    fn begin() -> Self {
        // SAFETY: touches no memory.
        unsafe { libc::alarm(30) };
        Self
    }

    fn end(self, checks: &[bool]) -> ! {
        let status = checks.iter().position(|held| !held).map_or(0, |failed| failed as i32 + 1);
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(status) }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: ends the process at once: a panic must not go on to the test's harness.
        unsafe { libc::_exit(101) }
    }
}

fn wait_for(child: libc::pid_t) {
    let mut status = -1;
    // SAFETY: writes one int to the address given.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "the child was ended by signal {}", libc::WTERMSIG(status));
    assert_eq!(libc::WEXITSTATUS(status), 0, "the first check that failed in the child, from 1; 101: it panicked");
}

/// Every call that can fail, and those that cannot return; `req` is a live request of the parent.
fn every_call(scheduler: &Scheduler, req: RequestId) -> Vec<bool> {
    let token = |result: Result<(), TokenError>| result == Err(TokenError::Closed(Closed::ForkedChild));
    let step = |result: Result<(), StepError>| result == Err(StepError::Closed(Closed::ForkedChild));
    let awaited = |result: Result<(), AwaitError>| result == Err(AwaitError::Closed(Closed::ForkedChild));
    let layer = scheduler.layers()[0];
    let entry = [StepEntry { req, pos: 0, tokens: 1 }];
    let spec = StepSpec { entries: &entry, padded_tokens: 1, ..StepSpec::default() };
    let ids = RowIds { ids: &[0_i64; 64], tokens: 1, stride: 64, sentinel: None };
    let mut taken = [Ok(())];
    let memory = Memory { ptr: NonNull::dangling(), len: 0, kind: MemoryKind::Shared, node: None };
    let checks = vec![
        token(scheduler.begin(Begin::default()).map(drop)),
        token(scheduler.on_token(req, 1)),
        scheduler.on_token_batch(&[req], &[1], &mut taken) == 0 && token(taken[0]),
        token(scheduler.on_tokens(req, 0, &[1, 2], None)),
        token(scheduler.on_draft(req, 0, &[1])),
        token(scheduler.accept(req, 0, Some(1))),
        token(scheduler.rollback(req, 0)),
        token(scheduler.fork(req).map(drop)),
        token(scheduler.preempt(req)),
        token(scheduler.resume(req, Begin::default())),
        token(scheduler.export_state(req).map(drop)),
        token(scheduler.import_state(&[0; 64]).map(drop)),
        awaited(scheduler.await_layer(req).wait().map(drop)),
        awaited(scheduler.await_layer(req).try_take().map(drop)),
        awaited(scheduler.await_layer_at(req, layer).wait_deadline(std::time::Instant::now()).map(drop)),
        step(scheduler.submit_step(&spec).map(drop)),
        step(scheduler.submit_dummy(1, &[]).map(drop)),
        step(scheduler.submit_rows(layer, ids, Dest::Slot, None).map(drop)),
        scheduler.read_rows(layer, &[], &mut []) == Err(ReadRowsError::Closed(Closed::ForkedChild)),
        // SAFETY: refused before it is looked at.
        step(unsafe { scheduler.register(memory) }.map(drop)),
        // SAFETY: as above.
        step(unsafe { scheduler.supply_fences(memory) }),
        scheduler.shutdown(Duration::from_secs(60)).err() == Some(ShutdownError::ForkedChild),
        scheduler.stats().backends.is_empty(),
        scheduler.memory().total_bytes() > 0,
    ];
    scheduler.finish(req);
    scheduler.abort(req);
    checks
}

fn forks_in_a_storm() {
    for backend in choices() {
        let world = World::new(Kind::V41, backend);
        let over = AtomicBool::new(false);
        let held = world.scheduler.begin(Begin::default()).expect("a free slot");
        let mut walk = Walk { id: held, tokens: Vec::new(), drained: 0 };
        let oracle = Oracle::new(world.kind);
        std::thread::scope(|scope| {
            // Threads that hold locks, mailboxes and run gates at any moment of a fork.
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    assert!(storm(&world.scheduler, world.kind, 5, 20) > 0);
                }
            });
            scope.spawn(|| {
                let (layer, mut out) = (world.scheduler.layers()[0], vec![0; 64 * 264]);
                while !over.load(Ordering::Relaxed) {
                    world
                        .scheduler
                        .read_rows(layer, &std::array::from_fn::<_, 64, _>(|i| i as u64), &mut out)
                        .expect("rows");
                    assert!(!world.scheduler.stats().backends.is_empty());
                }
            });
            for round in 0..20 {
                world.scheduler.on_token(held, round).expect("token taken");
                walk.tokens.push((round, true));
                let Some(child) = fork() else {
                    Child::begin().end(&every_call(&world.scheduler, held));
                };
                world.scheduler.on_token(held, 100 + round).expect("token taken");
                walk.tokens.push((100 + round, true));
                let rows = try_drain(&world.scheduler, &oracle, &mut walk, 16).expect("rows, while the child lives");
                assert!(rows > 0);
                wait_for(child);
            }
            over.store(true, Ordering::Relaxed);
        });
        world.scheduler.finish(held);
        assert!(world.storm(7, 50) > 0);
        world.end();
    }
}

fn everything_held_over_a_fork() {
    for backend in choices() {
        let world = World::new(Kind::V41, backend);
        assert!(world.storm(1, 20) > 0);
        let (scheduler, oracle) = (&world.scheduler, Oracle::new(world.kind));
        let begin = |toks: &[i32]| {
            let id = scheduler.begin(Begin::default()).expect("a free slot");
            scheduler.on_tokens(id, 0, toks, None).expect("tokens taken");
            Walk { id, tokens: toks.iter().map(|&t| (t, true)).collect(), drained: 0 }
        };
        let (lent, claimed, stepped) = (begin(&[1, 2, 3]), begin(&[4, 5, 6]), begin(&[7, 8]));
        let rows = scheduler.await_layer(lent.id).wait().expect("rows");
        let mut pending = scheduler.await_layer(claimed.id);
        let early = pending.try_take().expect("no error");
        let entry = [StepEntry { req: stepped.id, pos: 0, tokens: 2 }];
        let step = scheduler
            .submit_step(&StepSpec { entries: &entry, padded_tokens: 4, ..StepSpec::default() })
            .expect("a step");
        let layer = scheduler.layers()[0];
        let Some(child) = fork() else {
            let life = Child::begin();
            let mut checks = vec![rows.bytes().is_empty() && rows.positions() == (0..3)];
            let again = early.is_some() || matches!(pending.try_take(), Err(AwaitError::Closed(Closed::ForkedChild)));
            let of_step = step.await_layer(layer).wait().map(drop);
            checks.extend([again, of_step == Err(AwaitError::Closed(Closed::ForkedChild))]);
            drop((rows, early, pending, step));
            checks.extend(every_call(scheduler, lent.id));
            drop(world.scheduler); // the last handle
            life.end(&checks);
        };
        wait_for(child);
        assert!(rows.bytes() == oracle.rows(0, &lent.tokens, 0), "the rows that are lent out");
        let got = early.unwrap_or_else(|| pending.wait().expect("rows"));
        assert!(got.bytes() == oracle.rows(0, &claimed.tokens, 0), "the await that was pending");
        for (table, &layer) in scheduler.layers().iter().enumerate() {
            let got = step.await_layer(layer).wait().expect("rows of the step");
            let want = oracle.rows(table, &stepped.tokens, 0);
            assert!(got.bytes()[..want.len()] == want, "the step, layer {layer}");
            assert!(step.status(layer) == FenceStatus::Ok && got.bytes()[want.len()..].iter().all(|&byte| byte == 0));
        }
        drop((rows, got, step));
        [lent.id, claimed.id, stepped.id].into_iter().for_each(|id| scheduler.finish(id));
        assert!(world.storm(2, 50) > 0);
        world.end();
    }
}

/// Memory that a child shares with its parent.
fn shared(bytes: usize) -> Memory {
    // SAFETY: a new mapping at an address of the kernel's choice; it is never unmapped.
    let base = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0)
    };
    assert!(base != libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    Memory { ptr: NonNull::new(base.cast()).expect("no null"), len: bytes, kind: MemoryKind::Shared, node: None }
}

fn a_step_in_shared_memory() {
    let rig = Plan::new(Kind::Qwen, 1).rig();
    let (fences, memory) = (shared(1 << 20), shared(1 << 16));
    // SAFETY: mapped until the process ends; only the scheduler writes there.
    unsafe { rig.scheduler.supply_fences(fences) }.expect("fences");
    // SAFETY: as above.
    let id = unsafe { rig.scheduler.register(memory) }.expect("a destination");
    stall_all(&rig);
    let walk = rig.prompt(&[11, 22, 33]);
    let layer = rig.scheduler.layers()[0];
    let entry = [StepEntry { req: walk.id, pos: 0, tokens: 3 }];
    let dests = [Dest::Registered { id, offset: 0 }];
    let spec = StepSpec { entries: &entry, padded_tokens: 3, dests: &dests, ..StepSpec::default() };
    let step = rig.scheduler.submit_step(&spec).expect("a step");
    let region = rig.scheduler.fences();
    let words = region.words(step.slot(), layer).expect("words of the step");
    assert_eq!(words.reached(), None);
    let Some(child) = fork() else {
        let life = Child::begin();
        drop(step);
        let unregistered = rig.scheduler.unregister(id) == Err(StepError::Closed(Closed::ForkedChild));
        drop(rig.scheduler); // the last handle
        life.end(&[unregistered]);
    };
    wait_for(child);
    assert_eq!(words.reached(), None, "the child raised a fence of its parent's");
    heal(&rig);
    step.await_layer(layer).wait().expect("rows");
    assert_eq!(words.reached(), Some(FenceStatus::Ok));
    let want = rig.oracle.rows(0, &walk.tokens, 0);
    // SAFETY: the layer is complete, so nobody writes there.
    assert!(unsafe { std::slice::from_raw_parts(memory.ptr.as_ptr(), want.len()) } == want, "wrong bytes");
}

fn a_scheduler_of_the_childs_own() {
    for backend in choices() {
        let world = World::new(Kind::Qwen, backend);
        assert!(world.storm(1, 20) > 0);
        let held = world.scheduler.begin(Begin::default()).expect("a free slot");
        let Some(child) = fork() else {
            let life = Child::begin();
            let own = World::new(Kind::V41, backend);
            let served = own.storm(3, 40) > 0;
            let foreign = world.scheduler.on_token(held, 1) == Err(TokenError::Closed(Closed::ForkedChild));
            own.end();
            life.end(&[served, foreign]);
        };
        assert!(world.storm(2, 40) > 0);
        wait_for(child);
        world.scheduler.finish(held);
        world.end();
    }
}
