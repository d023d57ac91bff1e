//! Limits reached and small windows, keygen workers, and rows shared by equal prompts: the same bytes under every limit, and refusals
//! that consume nothing.

mod fault_support;

use engram_sched_core::io::{BackendFactory, SimulatedDisk};
use engram_sched_core::{Begin, Limits, RequestClass, Scheduler, StartError, StartOptions, TokenError};
use fault_support::common::{Kind, write_model};
use fault_support::{HangGuard, Lcg, Plan, Rig, Walk, heal, stall_all, token};
use std::time::Duration;

fn long_prompt(kind: Kind, tokens: usize, seed: u64) -> Vec<(i32, bool)> {
    let mut lcg = Lcg(seed);
    (0..tokens).map(|_| token(kind, &mut lcg)).collect()
}

fn feed_all(rig: &Rig, walk: &mut Walk, toks: &[(i32, bool)]) {
    let (ids, live): (Vec<_>, Vec<_>) = toks.iter().copied().unzip();
    rig.scheduler.on_tokens(walk.id, walk.tokens.len() as u64, &ids, Some(&live)).expect("a prompt");
    walk.tokens.extend(toks);
}

#[test]
fn keygen_workers_give_the_same_rows() {
    let _guard = HangGuard::new("keygen workers", 120);
    for kind in [Kind::Qwen, Kind::V41] {
        for (workers, inline, ahead) in [(1, 1, 8), (1, 3, 64), (2, 1, 8), (2, 7, 64)] {
            let mut plan = Plan::new(kind, 2);
            plan.limits.workers_max = workers;
            plan.limits.inline_tokens_max = inline;
            plan.limits.ahead_tokens_max = ahead;
            let rig = plan.rig();
            std::thread::scope(|scope| {
                for thread in 0..4u64 {
                    let rig = &rig;
                    scope.spawn(move || {
                        let mut lcg = Lcg(thread);
                        for round in 0..6 {
                            let mut walk = rig.begin();
                            feed_all(rig, &mut walk, &long_prompt(kind, 150 + thread as usize, round));
                            // Half of them go on while a worker still hashes, some end under its hands.
                            if lcg.below(4) == 0 {
                                rig.scheduler.abort(walk.id);
                                continue;
                            }
                            for _ in 0..lcg.below(20) {
                                rig.feed(&mut walk, lcg.below(300) as i32);
                            }
                            rig.drain_all(&mut walk);
                            rig.scheduler.finish(walk.id);
                        }
                    });
                }
            });
            rig.assert_slots_return(8);
            rig.scheduler.shutdown(Duration::from_secs(10)).expect("the workers end");
        }
    }
}

#[test]
fn shutdown_with_claims_at_the_workers_hangs_nobody() {
    let _guard = HangGuard::new("shutdown with workers", 60);
    for round in 0..20 {
        let mut plan = Plan::new(Kind::V41, 1);
        plan.limits.workers_max = 1;
        plan.limits.inline_tokens_max = 1;
        plan.limits.ahead_tokens_max = 64;
        let rig = plan.rig();
        std::thread::scope(|scope| {
            for i in 0..4 {
                let (rig, mut walk) = (&rig, rig.begin());
                scope.spawn(move || {
                    let toks: Vec<_> = long_prompt(Kind::V41, 400, i);
                    let (ids, live): (Vec<_>, Vec<_>) = toks.iter().copied().unzip();
                    if rig.scheduler.on_tokens(walk.id, 0, &ids, Some(&live)).is_ok() {
                        walk.tokens = toks;
                        while walk.drained < walk.tokens.len() && rig.try_drain(&mut walk).is_ok() {}
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(round));
            rig.scheduler.shutdown(Duration::from_secs(20)).expect("nothing is stuck");
        });
    }
}

#[test]
fn the_smallest_windows_deliver_everything() {
    let _guard = HangGuard::new("small windows", 120);
    for kind in [Kind::Qwen, Kind::V41] {
        for (ahead, range, workers) in [(1, 512, 0), (1, 1, 0), (64, 1, 0), (3, 7, 1)] {
            let mut plan = Plan::new(kind, 2);
            plan.limits =
                Limits { requests_max: 2, ahead_tokens_max: ahead, await_tokens_max: range, ..Limits::default() };
            plan.limits.workers_max = workers;
            let rig = plan.rig();
            let tokens = if range == 1 { 600 } else { 5000 };
            let mut walk = rig.begin();
            feed_all(&rig, &mut walk, &long_prompt(kind, tokens, 7));
            let mut drained = 0;
            while walk.drained < tokens {
                // The oracle hashes from the start each time: compare bytes only now and then in so long a prompt.
                if drained % 8 == 0 || tokens < 1000 {
                    rig.drain(&mut walk);
                } else {
                    for _ in 0..rig.tables.len() {
                        let rows = rig.scheduler.await_layer(walk.id).wait().expect("rows");
                        assert_eq!(rows.positions().start, walk.drained as u64);
                    }
                    walk.drained = tokens.min(walk.drained + range as usize);
                }
                drained += 1;
            }
        }
    }
}

#[test]
fn a_full_house_and_a_full_mailbox_refuse_and_consume_nothing() {
    let _guard = HangGuard::new("limits reached", 60);
    let mut plan = Plan::new(Kind::V41, 1);
    plan.limits.requests_max = 3;
    plan.limits.request_tokens_max = 64;
    plan.limits.ahead_tokens_max = 4;
    let rig = plan.rig();
    stall_all(&rig);
    let mut walks: Vec<Walk> = (0..3).map(|_| rig.begin()).collect();
    let full = Err(TokenError::LimitReached("requests_max"));
    for class in [RequestClass::Interactive, RequestClass::Bulk] {
        assert_eq!(rig.scheduler.begin(Begin { class, ..Begin::default() }), full);
    }
    let walk = &mut walks[1];
    feed_all(&rig, walk, &long_prompt(Kind::V41, 40, 1));
    // 4 are planned, 36 recorded, 28 places left.
    let full = Err(TokenError::LimitReached("request_tokens_max"));
    for toks in [29usize, 64, 65, 4000] {
        assert_eq!(rig.scheduler.on_tokens(walk.id, 40, &vec![9; toks], None), full, "{toks} more");
    }
    rig.scheduler.on_tokens(walk.id, 40, &[], None).expect("nothing is always taken");
    rig.scheduler.on_tokens(walk.id, 40, &[], Some(&[])).expect("nothing is always taken");
    feed_all(&rig, walk, &long_prompt(Kind::V41, 28, 2));
    assert_eq!(rig.scheduler.on_token(walk.id, 1), full);
    assert_eq!(rig.scheduler.on_tokens(walk.id, 69, &[1], None), Err(TokenError::Gap { end: 68, pos: 69 }));
    heal(&rig);
    rig.drain_all(walk);
    rig.feed(walk, 5);
    rig.drain_all(walk);
    rig.scheduler.finish(walk.id);
    walks.iter().for_each(|walk| rig.scheduler.finish(walk.id));
    rig.assert_slots_return(3);
}

#[test]
fn prompts_with_empty_chunks_and_positions_at_the_end_of_the_world() {
    let _guard = HangGuard::new("odd positions", 60);
    let rig = Plan::new(Kind::Qwen, 1).rig();
    let mut walk = rig.begin();
    for chunk in [0usize, 3, 0, 0, 1, 9, 0] {
        feed_all(&rig, &mut walk, &long_prompt(Kind::Qwen, chunk, chunk as u64));
        if chunk % 2 == 0 {
            rig.drain(&mut walk);
        }
    }
    rig.drain_all(&mut walk);
    let most = 1 << 40; // positions fit a word together with a range
    let last = most - 3;
    let id = rig.scheduler.begin(Begin { start_pos: last, history: &[1, 2, 3], ..Begin::default() }).expect("begun");
    rig.scheduler.on_tokens(id, last, &[4, 5], None).expect("the last two positions");
    assert_eq!(rig.scheduler.on_token(id, 6), Err(TokenError::LimitReached("position")));
    let rows = rig.scheduler.await_layer(id).wait().expect("rows");
    let tokens: Vec<_> = [1, 2, 3, 4, 5].map(|t| (t, true)).to_vec();
    assert_eq!(rows.positions(), last..most - 1);
    assert!(rows.bytes() == rig.oracle.rows(0, &tokens, 3));
}

fn start_with_limits(kind: Kind, limits: Limits) -> Result<Scheduler, StartError> {
    let dir = tempfile::tempdir().unwrap();
    let parts = write_model(dir.path(), kind, 1);
    let disk = SimulatedDisk::new(1, parts.files.iter().map(|f| std::fs::read(&f.path).unwrap()).collect());
    let backend = BackendFactory::ready(Box::new(disk.backend(64, 16_384)));
    Scheduler::start_with(parts, &StartOptions { limits, ..StartOptions::default() }, vec![backend])
}

#[test]
fn limits_that_cannot_work_are_refused_by_name() {
    let _guard = HangGuard::new("bad limits", 60);
    let bad = |limits: Limits| match start_with_limits(Kind::Qwen, limits) {
        Err(StartError::Limit { limit, .. }) => limit,
        other => panic!("{other:?}"),
    };
    let d = Limits::default;
    // One token of each slot: 544 x 16 rows x 160 bytes.
    assert_eq!(bad(Limits { prefetch_bytes_max: 544 * 16 * 160 - 1, ..d() }), "prefetch_bytes_max");
    assert_eq!(bad(Limits { prefetch_bytes_max: 1, requests_max: 1, ..d() }), "prefetch_bytes_max");
    assert_eq!(bad(Limits { requests_max: (1 << 16) + 1, ..d() }), "requests_max");
    assert_eq!(bad(Limits { ahead_tokens_max: (1 << 12) + 1, ..d() }), "ahead_tokens_max");
    assert_eq!(bad(Limits { await_tokens_max: u32::MAX, ..d() }), "await_tokens_max");
    assert_eq!(bad(Limits { request_tokens_max: u32::MAX, ..d() }), "request_tokens_max");
    assert_eq!(bad(Limits { arena_bytes_max: 4096, ..d() }), "arena_bytes_max");
    assert_eq!(bad(Limits { read_bytes_max: (1 << 20) + 1, ..d() }), "read_bytes_max");
    // Just enough, and more than 32 bits of tokens (a multiple of 2^32 of them, too): both serve.
    for prefetch_bytes_max in [544 * 16 * 160, (544 * 16 * 160) << 32, u64::MAX] {
        let scheduler = start_with_limits(Kind::Qwen, Limits { prefetch_bytes_max, ..d() }).expect("started");
        let id = scheduler.begin(Begin::default()).expect("a slot");
        scheduler.on_tokens(id, 0, &[1, 2, 3], None).expect("tokens taken");
        assert_eq!(scheduler.await_layer(id).wait().expect("rows").positions(), 0..3);
    }
}

#[test]
fn equal_prompts_are_read_once() {
    let _guard = HangGuard::new("equal prompts", 60);
    for (kind, actors) in [(Kind::Qwen, 1), (Kind::V41, 2)] {
        let rows_of = |requests: usize| {
            let mut plan = Plan::new(kind, actors);
            plan.limits.requests_max = 64;
            plan.limits.ahead_tokens_max = 16;
            let rig = plan.rig();
            let prompt: Vec<i32> = (0..16).map(|i| 20 * i + 3).collect();
            let mut walks: Vec<Walk> = (0..requests).map(|_| rig.prompt(&prompt)).collect();
            for walk in &mut walks {
                rig.drain(walk);
            }
            rig.scheduler.stats()
        };
        let (one, many) = (rows_of(1), rows_of(64));
        assert_eq!(many.rows, 64 * one.rows);
        assert_eq!(many.extents + many.page_joins, one.extents + one.page_joins, "{many:?}");
        let groups = one.rows / 8;
        assert!(many.group_joins >= 63 * groups, "{} joins, {groups} groups a prompt", many.group_joins);
        println!(
            "{kind:?}: one prompt {} extents, 64 equal ones {}, {} joins",
            one.extents, many.extents, many.group_joins
        );
    }
}
