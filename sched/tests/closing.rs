//! Stalls and ends on simulated disks: deadlines, aborts with reads out, shutdown, drops, broken backends, panics. Every waiter gets an
//! answer, nothing hangs, nothing of an old life reaches a new one.

mod fault_support;
#[macro_use]
mod pass_on;

use engram_sched_core::io::{Backend, BackendReport, SimulatedFault as Fault, WakeBackend};
use engram_sched_core::{AwaitError, Closed, ReadRowsError, ShutdownError, TokenError};
use engram_store::FileId;
use fault_support::common::{Kind, write_model};
use fault_support::{HangGuard, Lcg, Plan, Rig, Walk, heal, stall_all};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const ALL: std::ops::Range<u64> = 0..u64::MAX;

#[test]
fn a_missed_deadline_says_how_far_it_is_and_keeps_the_range() {
    let _guard = HangGuard::new("a missed deadline", 60);
    for kind in [Kind::Qwen, Kind::V41] {
        let rig = Plan::new(kind, 1).rig();
        let prompt = [11, 22, 33, 44, 55, 66, 77, 88];
        let slow = rig.rows_of_last(0, &prompt[..3])[2].1[0];
        rig.disk.add_fault(Fault::Stall { file: slow.file, range: slow.offset..slow.offset + 1, times: u32::MAX });
        let mut walk = rig.prompt(&prompt);
        let mut layer = rig.scheduler.await_layer(walk.id);
        let begun = Instant::now();
        let mut progress = 0;
        for _ in 0..5 {
            let missed = layer.wait_deadline(Instant::now() + Duration::from_millis(20));
            let Err(AwaitError::DeadlineMissed { ready, total }) = missed else { panic!("{missed:?}") };
            assert!(total == 8 && ready < 8 && ready >= progress, "{ready} of {total}");
            progress = ready;
        }
        // V4.1's scales lie so close together that one stalled read may hold up every token.
        assert!(begun.elapsed() < Duration::from_secs(20) && (progress > 0 || kind == Kind::V41));
        let zero = layer.wait_deadline(Instant::now());
        assert!(matches!(zero, Err(AwaitError::DeadlineMissed { total: 8, .. })), "{zero:?}");
        assert!(matches!(layer.try_take(), Ok(None)));
        // Tokens that come later do not widen the range; another await is refused while this one is alive, and finds the range after it.
        rig.feed(&mut walk, 99);
        assert!(matches!(rig.scheduler.await_layer(walk.id).try_take(), Err(AwaitError::Busy)));
        drop(layer);
        let waiting = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let rows = rig.scheduler.await_layer(walk.id).wait().expect("rows");
                (rows.positions(), rows.bytes() == rig.oracle.rows(0, &walk.tokens[..8], 0))
            });
            std::thread::sleep(Duration::from_millis(20));
            heal(&rig);
            waiter.join().unwrap()
        });
        assert_eq!(waiting, (0..8, true));
        for table in 1..rig.tables.len() {
            let rows = rig.scheduler.await_layer(walk.id).wait().expect("rows");
            assert!(rows.positions() == (0..8) && rows.bytes() == rig.oracle.rows(table, &walk.tokens[..8], 0));
        }
        walk.drained = 8;
        rig.drain_all(&mut walk);
        assert!(rig.scheduler.stats().deadlines_missed >= 2);
    }
}

#[test]
fn a_stalled_layer_does_not_use_up_plans() {
    let _guard = HangGuard::new("plans", 120);
    // Files 0 and 1 hold the rows of layer 1, files 2 and 3 those of layer 14, each file with an actor of its own. Layer 14 stalls, so
    // that layer 1 goes on with all of the cells, and nearly every token brings a plan that two of the actors do not take.
    let mut plan = Plan { shards: 1, ..Plan::new(Kind::V41, 4) };
    plan.limits.requests_max = 128;
    plan.limits.ahead_tokens_max = 64;
    plan.limits.await_tokens_max = 128;
    let rig = plan.rig();
    for file in [2, 3] {
        rig.disk.add_fault(Fault::Stall { file: FileId(file), range: ALL, times: u32::MAX });
    }
    let mut lcg = Lcg(3);
    let mut walks: Vec<Walk> = (0..128).map(|_| rig.begin()).collect();
    // 120 tokens, not 128: each holds a cell of layer 14, and a token is planned when there are two to be had.
    for walk in &mut walks {
        for _ in 0..120 {
            rig.feed(walk, lcg.below(1000) as i32);
        }
    }
    for walk in &walks {
        let end = walk.tokens.len();
        let rows = rig.scheduler.await_layer(walk.id).wait().expect("the rows of layer 1");
        assert!(rows.bytes() == rig.oracle.rows(0, &walk.tokens[..end], 0));
    }
    heal(&rig);
    for walk in &walks {
        let rows = rig.scheduler.await_layer(walk.id).wait().expect("the rows of layer 14");
        assert!(rows.bytes() == rig.oracle.rows(1, &walk.tokens, 0), "wrong bytes");
    }
    rig.scheduler.shutdown(Duration::from_secs(10)).unwrap();
}

#[test]
fn shutdown_with_stalled_reads_is_bounded_and_can_be_repeated() {
    let _guard = HangGuard::new("shutdown", 60);
    for (kind, actors) in [(Kind::Qwen, 1), (Kind::V41, 2)] {
        let rig = Plan::new(kind, actors).rig();
        // Rows that are lent out stay whole to the end.
        let early = rig.prompt(&[1, 2, 3]);
        let lent = rig.scheduler.await_layer(early.id).wait().expect("rows");
        stall_all(&rig);
        let reads = rig.scheduler.stats().reads;
        let walks: Vec<Walk> = (0..6).map(|i| rig.prompt(&[10 + i, 20 + i, 30 + i])).collect();
        std::thread::scope(|scope| {
            let waiters: Vec<_> =
                walks.iter().map(|walk| scope.spawn(|| rig.scheduler.await_layer(walk.id).wait().map(drop))).collect();
            let rows = scope.spawn(|| read_three_rows(&rig));
            while rig.scheduler.stats().reads - reads < 32 {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(30));
            let begun = Instant::now();
            let busy = rig.scheduler.shutdown(Duration::from_millis(50));
            assert!(matches!(busy, Err(ShutdownError::Busy { threads, .. }) if threads >= 1), "{busy:?}");
            assert!(begun.elapsed() < Duration::from_secs(20));
            for waiter in waiters {
                assert_eq!(waiter.join().unwrap(), Err(AwaitError::Closed(Closed::Shutdown)));
            }
            let rows = rows.join().unwrap();
            assert!(matches!(rows, Err(ReadRowsError::Closed(Closed::Shutdown))), "{rows:?}");
        });
        assert!(rig.scheduler.shutdown(Duration::ZERO).is_err());
        assert!(lent.bytes() == rig.oracle.rows(0, &early.tokens, 0));
        heal(&rig);
        rig.scheduler.shutdown(Duration::from_secs(20)).expect("the reads have ended");
        rig.scheduler.shutdown(Duration::MAX).expect("for ever is a time, too");
        assert!(lent.bytes() == rig.oracle.rows(0, &early.tokens, 0));
        assert_eq!(rig.scheduler.on_token(walks[0].id, 1), Err(TokenError::Closed(Closed::Shutdown)));
    }
}

#[test]
fn handles_are_dropped_while_others_wait_and_while_reads_stall() {
    let _guard = HangGuard::new("drops", 90);
    let rig = Plan::new(Kind::V41, 2).rig();
    stall_all(&rig);
    let walks: Vec<Walk> = (0..3).map(|i| rig.prompt(&[i, i + 1])).collect();
    let Rig { disk, scheduler, oracle, .. } = rig;
    std::thread::scope(|scope| {
        for walk in &walks {
            let (scheduler, oracle) = (scheduler.clone(), &oracle);
            scope.spawn(move || {
                let rows = scheduler.await_layer(walk.id).wait().expect("rows");
                assert!(rows.bytes() == oracle.rows(0, &walk.tokens, 0));
                drop(rows);
                drop(scheduler); // perhaps the last handle
            });
        }
        std::thread::sleep(Duration::from_millis(20));
        drop(scheduler);
        disk.clear_faults();
        disk.release();
    });
    // The last handle goes with reads stalled: bounded, and what the device still holds stays where it is.
    let rig = Plan::new(Kind::Qwen, 1).rig();
    stall_all(&rig);
    let walk = rig.prompt(&[1, 2, 3]);
    assert!(matches!(rig.scheduler.await_layer(walk.id).try_take(), Ok(None)));
    let Rig { disk, scheduler, .. } = rig;
    let begun = Instant::now();
    drop(scheduler);
    assert!(begun.elapsed() < Duration::from_secs(30));
    disk.release();
    std::thread::sleep(Duration::from_millis(50));
}

/// Several requests wait; the actors die of `kill`; all waits and calls end with `Fatal`, and the notes say why.
fn everybody_hears_of_it(rig: &Rig, kill: impl FnOnce(), note: &str) -> Result<(), ShutdownError> {
    let begun = Instant::now();
    stall_all(rig);
    let walks: Vec<Walk> = (0..4).map(|i| rig.prompt(&[50 + i, 60 + i, 70 + i])).collect();
    std::thread::scope(|scope| {
        let waiters: Vec<_> =
            walks.iter().map(|walk| scope.spawn(|| rig.scheduler.await_layer(walk.id).wait().map(drop))).collect();
        let rows = scope.spawn(|| read_three_rows(rig));
        std::thread::sleep(Duration::from_millis(20));
        rig.disk.clear_faults();
        kill();
        rig.disk.release();
        let nudges: Vec<Walk> = (0..4).filter_map(|i| nudge(rig, 100 + i)).collect();
        for waiter in waiters {
            let got = waiter.join().unwrap();
            assert!(matches!(got, Ok(()) | Err(AwaitError::Closed(Closed::Fatal))), "{got:?}");
        }
        for walk in &nudges {
            let got = rig.scheduler.await_layer(walk.id).wait().map(drop);
            assert!(matches!(got, Ok(()) | Err(AwaitError::Closed(Closed::Fatal))), "{got:?}");
        }
        let _ = rows.join().unwrap();
    });
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut tok = 200;
    while !matches!(rig.scheduler.on_token(walks[0].id, 1), Err(TokenError::Closed(Closed::Fatal))) {
        assert!(Instant::now() < deadline, "the scheduler never failed");
        let _ = nudge(rig, tok);
        tok = 200 + (tok + 1) % 250;
        std::thread::sleep(Duration::from_millis(1));
    }
    for walk in &walks {
        assert!(matches!(rig.scheduler.await_layer(walk.id).wait(), Err(AwaitError::Closed(Closed::Fatal))));
        rig.scheduler.finish(walk.id);
    }
    let notes: Vec<String> = rig.scheduler.stats().backends.into_iter().flat_map(|b| b.notes).collect();
    assert!(notes.iter().any(|n| n.contains("stopped") && n.contains(note)), "{notes:?}");
    let ended = rig.scheduler.shutdown(Duration::from_secs(20)).map(drop);
    assert!(begun.elapsed() < Duration::from_secs(30));
    ended
}

fn read_three_rows(rig: &Rig) -> Result<(), ReadRowsError> {
    let mut out = vec![0; 3 * rig.oracle.row_bytes()];
    rig.scheduler.read_rows(rig.scheduler.layers()[0], &[3, 1, 2], &mut out)
}

fn nudge(rig: &Rig, tok: i32) -> Option<Walk> {
    let id = rig.scheduler.begin(engram_sched_core::Begin::default()).ok()?;
    let taken = rig.scheduler.on_token(id, tok).is_ok();
    taken.then(|| Walk { id, tokens: vec![(tok, true)], drained: 0 })
}

#[test]
fn a_broken_backend_ends_every_wait() {
    let _guard = HangGuard::new("a broken backend", 120);
    for (kind, actors) in [(Kind::Qwen, 1), (Kind::V41, 1), (Kind::V41, 4)] {
        for reads in [0, 1, 7] {
            let rig = Plan::new(kind, actors).rig();
            let kill = || rig.disk.add_fault(Fault::Break { errno: libc::ENODEV, reads });
            everybody_hears_of_it(&rig, kill, "No such device").expect("the disk holds nothing");
        }
    }
}

#[test]
fn a_panic_in_the_backend_ends_every_wait() {
    let _guard = HangGuard::new("a panic in the backend", 120);
    for (kind, actors) in [(Kind::Qwen, 1), (Kind::V41, 4)] {
        for reads in [0, 5] {
            let rig = Plan::new(kind, actors).rig();
            let kill = || rig.disk.add_fault(Fault::Panic { reads });
            everybody_hears_of_it(&rig, kill, "panicked: the simulated disk").expect("the disk holds nothing");
        }
    }
}

/// Something between an actor and its disk that goes wrong on command.
struct Saboteur {
    inner: Box<dyn Backend>,
    sabotage: Arc<AtomicU32>,
}

const LOSES_BYTES: u32 = 1;
const REPORT_PANICS: u32 = 2;
const DRAIN_PANICS: u32 = 4;
const WAKER_PANICS: u32 = 8;

impl Saboteur {
    fn is(&self, sabotage: u32) -> bool {
        self.sabotage.load(Ordering::SeqCst) & sabotage != 0
    }
}

impl Backend for Saboteur {
    pass_on!(alignment, slot_bytes, slots, queue, submit, reap);

    fn slot(&self, slot: u32) -> &[u8] {
        // The actor indexes what it gets: an empty slice makes the actor itself panic, in the middle of a deposit.
        if self.is(LOSES_BYTES) { &[] } else { self.inner.slot(slot) }
    }
    fn waker(&self) -> Arc<dyn WakeBackend> {
        assert!(!self.is(WAKER_PANICS), "sabotage of waker");
        self.inner.waker()
    }
    fn drain(&mut self, timeout: Duration) -> usize {
        assert!(!self.is(DRAIN_PANICS), "sabotage of drain");
        self.inner.drain(timeout)
    }
    fn report(&self) -> BackendReport {
        assert!(!self.is(REPORT_PANICS), "sabotage of report");
        self.inner.report()
    }
}

#[test]
fn a_panic_in_an_actor_ends_every_wait() {
    let _guard = HangGuard::new("a panic in an actor", 120);
    for (kind, actors) in [(Kind::Qwen, 1), (Kind::V41, 2)] {
        for more in [0, REPORT_PANICS, DRAIN_PANICS, REPORT_PANICS | DRAIN_PANICS] {
            let sabotage = Arc::new(AtomicU32::new(0));
            let rig = Plan::new(kind, actors)
                .rig_with(|_, inner| Box::new(Saboteur { inner, sabotage: Arc::clone(&sabotage) }));
            let kill = || sabotage.store(LOSES_BYTES | more, Ordering::SeqCst);
            match everybody_hears_of_it(&rig, kill, "panicked") {
                Ok(()) => assert_eq!(more & DRAIN_PANICS, 0, "nobody knows what the device still holds"),
                Err(ShutdownError::Abandoned { .. }) => assert_eq!(more & DRAIN_PANICS, DRAIN_PANICS),
                Err(other) => panic!("{other}"),
            }
        }
    }
}

#[test]
fn a_panic_while_starting_is_an_error_of_start() {
    let _guard = HangGuard::new("a panic while starting", 60);
    let dir = tempfile::tempdir().unwrap();
    let parts = write_model(dir.path(), Kind::Qwen, 2);
    let disk = engram_sched_core::io::SimulatedDisk::new(1, vec![vec![0; 4096]; parts.files.len()]);
    let sabotage = Arc::new(AtomicU32::new(WAKER_PANICS));
    let backends = (0..2)
        .map(|_| Saboteur { inner: Box::new(disk.backend(64, 16_384)), sabotage: Arc::clone(&sabotage) })
        .map(|backend| engram_sched_core::io::BackendFactory::ready(Box::new(backend)))
        .collect();
    let started = engram_sched_core::Scheduler::start_with(parts, &Default::default(), backends);
    assert!(started.is_err());
}
