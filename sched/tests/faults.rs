//! Faults of single reads on simulated disks: delays, reordering, short reads, EINTR, EAGAIN, EIO, truncation. Whatever is delivered
//! is compared with the oracle; whatever cannot be read fails for those who need it, and for nobody else.

mod fault_support;

use engram_sched_core::io::SimulatedFault as Fault;
use engram_sched_core::{AwaitError, ReadError, TokenError};
use engram_store::{Extent, FileId};
use fault_support::common::Kind;
use fault_support::{HangGuard, Lcg, Plan, Rig, Walk, token};
use std::time::Duration;

const ALL: std::ops::Range<u64> = 0..u64::MAX;

/// Faults that a reader gets over; few at a time, so that no read meets more of them than it may be repeated.
fn passing_fault(rig: &Rig, lcg: &mut Lcg) {
    rig.disk.clear_faults();
    let times = 1 + lcg.below(3) as u32;
    let file = FileId(lcg.below(rig.files.len() as u64) as u32);
    rig.disk.add_fault(match lcg.below(3) {
        0 => Fault::Burst { errno: libc::EINTR, times },
        1 => Fault::Burst { errno: libc::EAGAIN, times },
        _ => Fault::Short { file, range: ALL, bytes: 1 + lcg.below(4000) as u32, times },
    });
    match lcg.below(3) {
        0 => rig.disk.set_latency_us(1..2),
        1 => rig.disk.set_latency_us(1..5000),
        _ => rig.disk.set_latency_us(80..121),
    }
}

fn walk(plan: Plan) -> (usize, u64) {
    let (seed, kind, actors) = (plan.seed, plan.kind, plan.actors);
    let rig = plan.rig();
    let mut lcg = Lcg(seed);
    let mut walks: Vec<Walk> = Vec::new();
    let mut rows = 0;
    for _ in 0..300 {
        let pick = lcg.below(walks.len().max(1) as u64) as usize;
        match lcg.below(14) {
            0 if walks.len() < 8 => walks.push(rig.begin()),
            1 if !walks.is_empty() => {
                let walk = walks.swap_remove(pick);
                rig.scheduler.abort(walk.id);
                assert_eq!(rig.scheduler.on_token(walk.id, 1), Err(TokenError::UnknownRequest(walk.id)));
            }
            2..=4 if !walks.is_empty() => {
                let walk = &mut walks[pick];
                let toks: Vec<_> = (0..lcg.below(24)).map(|_| token(kind, &mut lcg)).collect();
                let (ids, live): (Vec<_>, Vec<_>) = toks.iter().copied().unzip();
                rig.scheduler.on_tokens(walk.id, walk.tokens.len() as u64, &ids, Some(&live)).expect("tokens taken");
                walk.tokens.extend(toks);
            }
            5..=7 if !walks.is_empty() => {
                if let (tok, true) = token(kind, &mut lcg) {
                    rig.feed(&mut walks[pick], tok);
                }
            }
            8..=11 if !walks.is_empty() => rows += rig.drain(&mut walks[pick]),
            12.. => passing_fault(&rig, &mut lcg),
            _ => {}
        }
    }
    let stats = rig.scheduler.shutdown(Duration::from_secs(10)).expect("nothing is left in the kernel");
    assert_eq!((stats.completions_unknown, stats.reads_failed), (0, 0), "{kind:?} x{actors} seed {seed}");
    (rows, stats.retries)
}

#[test]
fn random_walks_over_slow_disks_that_reorder_and_stumble() {
    // More for a long night: ENGRAM_FAULT_SEEDS=1000.
    let seeds = std::env::var("ENGRAM_FAULT_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(10);
    let _guard = HangGuard::new("random walks", 240 + 6 * seeds);
    for kind in [Kind::Qwen, Kind::V41] {
        for actors in [1, 2, 4] {
            let (mut rows, mut retries) = (0, 0);
            for seed in 1..=seeds {
                let alignment = [1, 512, 4096][seed as usize % 3];
                let (r, t) = walk(Plan { seed, alignment, ..Plan::new(kind, actors) });
                rows += r;
                retries += t;
            }
            assert!(rows > 10_000 && retries > 100, "{rows} rows compared, {retries} retries");
            println!("{kind:?} x{actors}: {seeds} seeds, {rows} rows compared, {retries} reads repeated or resumed");
        }
    }
}

/// One token of a fresh request with the disk as it is; its rows are compared, and the reads it took counted.
fn one_token(rig: &Rig, tok: i32) -> Result<usize, AwaitError> {
    let mut walk = rig.prompt(&[tok]);
    let result = rig.try_drain(&mut walk);
    rig.scheduler.finish(walk.id);
    result
}

#[test]
fn reads_that_come_in_pieces_are_put_together() {
    let _guard = HangGuard::new("short reads", 60);
    for (alignment, bytes) in [(1, 512), (1, 1000), (512, 512), (512, 2000)] {
        for kind in [Kind::Qwen, Kind::V41] {
            let rig = Plan { alignment, ..Plan::new(kind, 1) }.rig();
            for file in 0..rig.files.len() as u32 {
                rig.disk.add_fault(Fault::Short { file: FileId(file), range: ALL, bytes, times: u32::MAX });
            }
            for tok in 0..100 {
                one_token(&rig, tok).unwrap_or_else(|e| panic!("{bytes} of each read, alignment {alignment}: {e}"));
            }
            let mut walk = rig.prompt(&(0..300).collect::<Vec<_>>());
            rig.drain_all(&mut walk);
        }
    }
}

#[test]
fn a_short_read_of_the_very_last_operation_is_resumed() {
    let _guard = HangGuard::new("the last operation", 60);
    for kind in [Kind::Qwen, Kind::V41] {
        // One read at a time: each is the last of its batch, with nothing behind it that would submit the rest.
        let mut plan = Plan { alignment: 512, ..Plan::new(kind, 1) };
        plan.limits.in_flight_interactive_max = 1;
        let rig = plan.rig();
        for tok in 0..60 {
            let file = FileId(tok as u32 % rig.files.len() as u32);
            rig.disk.add_fault(Fault::Short { file, range: ALL, bytes: 700, times: 1 });
            one_token(&rig, tok).expect("rows");
        }
        assert!(rig.scheduler.stats().retries > 10);
    }
}

#[test]
fn a_read_without_progress_ends() {
    let _guard = HangGuard::new("no progress", 60);
    // 512 of 4096 again and again, where reads must begin at multiples of 4096: never any progress.
    let rig = Plan { alignment: 4096, ..Plan::new(Kind::Qwen, 1) }.rig();
    let (row, extents) = rig.rows_of_last(0, &[7]).swap_remove(3);
    rig.disk.add_fault(short_at(extents[0].file, extents[0].offset, u32::MAX));
    let within = extents[0].offset % 4096 + u64::from(extents[0].len) <= 512;
    assert!(!within, "the row lies beyond what is given");
    let before = rig.scheduler.stats().reads;
    match one_token(&rig, 7) {
        Err(AwaitError::Read(ReadError { file, .. })) => assert_eq!(file, rig.files[extents[0].file.0 as usize]),
        other => panic!("row {row}: {other:?}"),
    }
    assert!(rig.scheduler.stats().reads - before < 200, "bounded");
    rig.disk.clear_faults();
    // A few such reads are a passing weakness, not the end of the file.
    rig.disk.add_fault(short_at(extents[0].file, extents[0].offset, 5));
    one_token(&rig, 7).expect("rows");
}

fn short_at(file: FileId, offset: u64, times: u32) -> Fault {
    Fault::Short { file, range: offset..offset + 1, bytes: 512, times }
}

#[test]
fn what_a_repeated_read_did_not_bring_again_is_not_delivered() {
    let _guard = HangGuard::new("partial then failed", 60);
    // One read serves two requests. Its first part arrives, which holds the row of the one and not that of the other. It is resumed
    // from an aligned place before the end of that part, and fails or brings less: what had arrived was given to the device once more.
    let mut tried = 0;
    for second in [Err(libc::EIO), Ok(40u32)] {
        for first_tok in 0..40 {
            let mut plan = Plan { alignment: 4096, ..Plan::new(Kind::Qwen, 1) };
            plan.limits.in_flight_interactive_max = 1;
            let rig = plan.rig();
            // Two tokens that want rows of one page, one before byte 2500 of it, one behind.
            let in_page = |e: &Extent| (e.file, e.offset / 4096, e.offset % 4096);
            let rows = |tok| rig.rows_of_last(0, &[tok]).into_iter().map(|r| in_page(&r.1[0])).collect::<Vec<_>>();
            let pair = (first_tok + 1..400).find_map(|tok| {
                let others = rows(tok);
                rows(first_tok).into_iter().filter(|r| r.2 < 2300).find_map(|(file, page, _)| {
                    let other = others.iter().any(|o| (o.0, o.1) == (file, page) && (2500..3900).contains(&o.2));
                    other.then_some((tok, file, page * 4096))
                })
            });
            let Some((second_tok, file, page)) = pair else { continue };
            tried += 1;
            // The one read that may be in flight stalls, so that both requests' rows come together behind it.
            rig.disk.add_fault(Fault::Stall { file: FileId(0), range: ALL, times: 1 });
            rig.disk.add_fault(Fault::Stall { file: FileId(1), range: ALL, times: 1 });
            rig.disk.add_fault(Fault::Stall { file: FileId(2), range: ALL, times: 1 });
            let mut first = rig.prompt(&[499]);
            std::thread::sleep(Duration::from_millis(5));
            let mut walks = [rig.prompt(&[first_tok]), rig.prompt(&[second_tok])];
            rig.disk.clear_faults();
            let range = page..page + 4096;
            rig.disk.add_fault(Fault::Short { file, range: range.clone(), bytes: 2500, times: 1 });
            rig.disk.add_fault(match second {
                Err(errno) => Fault::Fail { file, range, errno, times: 1 },
                Ok(bytes) => Fault::Short { file, range, bytes, times: 1 },
            });
            rig.disk.release();
            let _ = rig.try_drain(&mut first); // its rows may lie on the page, too
            for walk in &mut walks {
                // An error of the page is fair; wrong bytes are not.
                let got = rig.try_drain(walk);
                let fair = matches!(&got, Err(AwaitError::Read(e)) if e.errno == libc::EIO) && second.is_err();
                assert!(got.is_ok() || fair, "{got:?}");
            }
        }
    }
    assert!(tried > 20, "{tried} pairs");
}

#[test]
fn bursts_of_eintr_and_eagain_are_got_over() {
    let _guard = HangGuard::new("bursts", 60);
    for errno in [libc::EINTR, libc::EAGAIN] {
        let rig = Plan::new(Kind::V41, 2).rig();
        for tok in 0..200 {
            rig.disk.add_fault(Fault::Burst { errno, times: tok as u32 % 9 });
            one_token(&rig, tok).expect("at most eight in a row: each read may be repeated eight times");
            rig.disk.clear_faults();
        }
        let stats = rig.scheduler.stats();
        assert!(stats.retries > 300 && stats.reads_failed == 0, "{stats:?}");
    }
}

/// Every request whose rows do not include `bad` gets its rows though reads that touch it fail; those that do get its error. Then the
/// disk heals, and everything is read.
fn only_those_who_need_it(kind: Kind, actors: u32, fault: impl Fn(FileId, u64) -> Fault, errno: i32, seed: u64) {
    let mut plan = Plan { seed, ..Plan::new(kind, actors) };
    plan.limits.requests_max = 32;
    let rig = plan.rig();
    let mut lcg = Lcg(seed);
    let prompts: Vec<Vec<i32>> = (0..32).map(|i| vec![i * 15 + lcg.below(15) as i32, 500 - i]).collect();
    let touches = |e: &Extent, bad: &Extent| {
        let page = bad.offset / 4096 * 4096;
        e.file == bad.file && e.offset < page + 4096 && e.offset + u64::from(e.len) > page
    };
    let needs = |prompt: &[i32], bad: &Extent| {
        let rows = |t, n: usize| rig.rows_of_last(t, &prompt[..n]);
        let places = (0..rig.tables.len()).flat_map(|t| (1..=prompt.len()).map(move |n| (t, n)));
        places.into_iter().any(|(t, n)| rows(t, n).iter().any(|r| r.1.iter().any(|e| touches(e, bad))))
    };
    // A row whose page not everybody needs, as these tables are small.
    let (table, row, bad) = loop {
        let table = lcg.below(rig.tables.len() as u64) as usize;
        let rows = rig.rows_of_last(table, &prompts[lcg.below(32) as usize]);
        let (row, extents) = &rows[lcg.below(rows.len() as u64) as usize];
        let bad = extents[lcg.below(extents.len() as u64) as usize];
        if prompts.iter().filter(|prompt| needs(prompt, &bad)).count() <= 16 {
            break (table, *row, bad);
        }
    };
    rig.disk.add_fault(fault(bad.file, bad.offset / 4096 * 4096));
    let mut walks: Vec<Walk> = prompts.iter().map(|p| rig.prompt(p)).collect();
    let (mut failed, mut whole) = (0, 0);
    for (walk, prompt) in walks.iter_mut().zip(&prompts) {
        match rig.try_drain(walk) {
            Ok(_) => {
                assert!(!needs(prompt, &bad), "a row of the bad page was delivered");
                whole += 1;
            }
            Err(AwaitError::Read(error)) => {
                assert!(needs(prompt, &bad), "{error}: seed {seed}, none of its rows is on the bad page");
                assert_eq!((&error.file, error.errno), (&rig.files[bad.file.0 as usize], errno));
                assert_eq!(error.layer, rig.scheduler.layers()[table]);
                let text = error.to_string();
                assert!(text.contains(&format!("layer {}, row {}", error.layer, error.row)), "{text}");
                // The range stays, and so does its failure.
                assert!(matches!(rig.scheduler.await_layer(walk.id).wait(), Err(AwaitError::Read(_))));
                rig.scheduler.abort(walk.id);
                failed += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(
        failed >= 1 && whole >= 16,
        "{kind:?} x{actors}, {bad:?}, seed {seed}, row {row}: {failed} failed, {whole} whole"
    );
    rig.disk.clear_faults();
    for (walk, prompt) in walks.iter().zip(&prompts) {
        rig.scheduler.finish(walk.id);
        let mut again = rig.prompt(prompt);
        rig.drain_all(&mut again);
        rig.scheduler.finish(again.id);
    }
    rig.assert_slots_return(32);
}

#[test]
fn a_bad_page_fails_those_who_need_it_and_nobody_else() {
    let _guard = HangGuard::new("a bad page", 120);
    for seed in 1..=8 {
        for (kind, actors) in [(Kind::Qwen, 1), (Kind::Qwen, 4), (Kind::V41, 1), (Kind::V41, 2)] {
            let eio =
                |file, page: u64| Fault::Fail { file, range: page..page + 4096, errno: libc::EIO, times: u32::MAX };
            only_those_who_need_it(kind, actors, eio, libc::EIO, seed);
        }
    }
}

#[test]
fn an_offset_that_is_always_busy_fails_those_who_need_it_and_nobody_else() {
    let _guard = HangGuard::new("always EAGAIN", 120);
    for seed in 1..=4 {
        let again = |file, page: u64| Fault::Fail { file, range: page..page + 4096, errno: libc::EAGAIN, times: 5000 };
        only_those_who_need_it(Kind::Qwen, 1, again, libc::EAGAIN, seed);
        only_those_who_need_it(Kind::V41, 2, again, libc::EAGAIN, seed);
    }
}

#[test]
fn a_truncated_file_is_named() {
    let _guard = HangGuard::new("truncation", 60);
    for alignment in [1, 512] {
        let rig = Plan { alignment, ..Plan::new(Kind::Qwen, 1) }.rig();
        let (row, extents) = rig.rows_of_last(0, &[9]).swap_remove(5);
        let file = extents[0].file;
        // In the middle of the row.
        rig.disk.set_len(file, extents[0].offset + 100);
        match one_token(&rig, 9) {
            Err(AwaitError::Read(error)) => {
                assert_eq!((&error.file, error.errno), (&rig.files[file.0 as usize], 0));
                let text = error.to_string();
                assert!(text.contains("truncated") && text.contains("restore it"), "{text}");
            }
            other => panic!("row {row}: {other:?}"),
        }
    }
}

#[test]
fn a_failed_row_read_is_told_and_the_next_one_is_right() {
    let _guard = HangGuard::new("row reads", 60);
    let rig = Plan::new(Kind::V41, 2).rig();
    let layer = rig.scheduler.layers()[1];
    let rows: Vec<u64> = (0..rig.tables[1].rows()).collect();
    let mut out = vec![0; rows.len() * 264];
    let bad = rig.tables[1].extent(0, 77);
    rig.disk.add_fault(Fault::Fail {
        file: bad.file,
        range: bad.offset..bad.offset + 1,
        errno: libc::EIO,
        times: 1000,
    });
    let error = rig.scheduler.read_rows(layer, &rows, &mut out).unwrap_err();
    assert!(error.to_string().contains("layer 14, row "), "{error}");
    rig.disk.clear_faults();
    rig.scheduler.read_rows(layer, &rows, &mut out).expect("rows");
    for (&row, bytes) in rows.iter().zip(out.chunks(264)) {
        let right = bytes.iter().enumerate().all(|(i, &b)| b == fault_support::common::proof(layer.0, row, i));
        assert!(right, "row {row}");
    }
}
