//! The order of reads, seen on a simulated disk: a read hangs with one in flight allowed, work of several classes queues behind it, and the
//! log tells what was read first once it comes back. And what need not be read, and what one bad place does to the rest.

mod fault_support;

use engram_sched_core::io::{LoggedRead, SimulatedFault as Fault};
use engram_sched_core::{AwaitError, Begin, Closed, Limits, RequestClass, TokenError};
use engram_store::{Extent, FileId};
use fault_support::common::Kind;
use fault_support::{HangGuard, Plan, Rig, Walk, heal, stall_all};
use std::time::{Duration, Instant};

const ALL: std::ops::Range<u64> = 0..u64::MAX;

/// One read at a time, and the first one hangs: whatever is wanted afterwards waits for `go`.
struct Held {
    rig: Rig,
    hung: Walk,
}

impl Held {
    fn new(kind: Kind) -> Self {
        let limits = Limits {
            requests_max: 8,
            ahead_tokens_max: 64,
            await_tokens_max: 64,
            in_flight_interactive_max: 1,
            in_flight_bulk_max: 1,
            ..Limits::default()
        };
        let rig = Plan { shards: 1, limits, ..Plan::new(kind, 1) }.rig();
        rig.disk.set_logging(true);
        stall_all(&rig);
        let mut hung = rig.begin();
        rig.feed(&mut hung, 499);
        wait_for_reads(&rig, 1);
        Self { rig, hung }
    }

    fn bulk(&self, toks: &[i32]) -> Walk {
        let begin = Begin { class: RequestClass::Bulk, ..Begin::default() };
        let id = self.rig.scheduler.begin(begin).expect("a slot");
        self.rig.scheduler.on_tokens(id, 0, toks, None).expect("tokens taken");
        Walk { id, tokens: toks.iter().map(|&t| (t, true)).collect(), drained: 0 }
    }

    /// Lets the disk go on, takes everything that `walks` are waiting for, and returns the reads in their order.
    fn go(&mut self, walks: &mut [&mut Walk]) -> Vec<LoggedRead> {
        heal(&self.rig);
        self.rig.drain_all(&mut self.hung);
        for walk in walks {
            self.rig.drain_all(walk);
        }
        self.rig.disk.take_log()
    }
}

/// Waits until so many reads have been started since the log was taken; then it is taken.
fn wait_for_reads(rig: &Rig, reads: usize) {
    let mut seen = 0;
    while seen < reads {
        seen += rig.disk.take_log().len();
        std::thread::yield_now();
    }
    assert_eq!(seen, reads, "more reads than may be in flight");
}

fn covers(read: &LoggedRead, extent: &Extent) -> bool {
    let end = read.op.offset + u64::from(read.op.len);
    read.op.file == extent.file && read.op.offset <= extent.offset && extent.offset + u64::from(extent.len) <= end
}

/// For each extent of the rows of the last of `tokens`: the first read that has it.
fn reads_of(rig: &Rig, log: &[LoggedRead], table: usize, tokens: &[i32]) -> Vec<usize> {
    let extents = rig.rows_of_last(table, tokens).into_iter().flat_map(|row| row.1);
    extents.filter_map(|extent| log.iter().position(|read| covers(read, &extent))).collect()
}

fn extents_of(rig: &Rig, table: usize, tokens: &[i32]) -> Vec<Extent> {
    rig.rows_of_last(table, tokens).into_iter().flat_map(|row| row.1).collect()
}

fn first_and_last(
    rig: &Rig,
    log: &[LoggedRead],
    table: usize,
    tokens: &[i32],
    of: std::ops::Range<usize>,
) -> (usize, usize) {
    let reads: Vec<usize> = of.flat_map(|n| reads_of(rig, log, table, &tokens[..=n])).collect();
    (*reads.iter().min().expect("reads"), *reads.iter().max().expect("reads"))
}

/// Reads of the token that hangs, the hung one not counted.
const REST: usize = 15;

#[test]
fn decode_goes_before_a_prompt_and_a_prompt_before_bulk() {
    let _guard = HangGuard::new("decode, prompt, bulk", 60);
    let mut held = Held::new(Kind::Qwen);
    let (bulk_toks, prompt_toks): (Vec<i32>, Vec<i32>) = ((100..160).collect(), vec![200, 201]);
    let mut bulk = held.bulk(&bulk_toks);
    let mut prompt = held.rig.prompt(&prompt_toks);
    let mut decode = held.rig.begin();
    held.rig.feed(&mut decode, 7);
    let log = held.go(&mut [&mut decode, &mut prompt, &mut bulk]);
    let decoded = first_and_last(&held.rig, &log, 0, &[7], 0..1).1;
    assert!(decoded < REST + 16, "read number {decoded}");
    let prompted = first_and_last(&held.rig, &log, 0, &prompt_toks, 0..2).1;
    let mut wanted = extents_of(&held.rig, 0, &[499]);
    wanted.extend(extents_of(&held.rig, 0, &[7]));
    wanted.extend((0..2).flat_map(|n| extents_of(&held.rig, 0, &prompt_toks[..=n])));
    let not_bulk = |read: &LoggedRead| wanted.iter().any(|extent| covers(read, extent));
    assert!(log[..=prompted].iter().all(not_bulk), "bulk was read before the prompt was through");
    assert!(!log[prompted + 1..].iter().all(not_bulk), "bulk was read in the end");
}

#[test]
fn of_a_prompts_plan_only_the_group_that_decode_wants_goes_first() {
    let _guard = HangGuard::new("a raised group", 60);
    let mut held = Held::new(Kind::Qwen);
    let toks: Vec<i32> = (200..232).collect();
    let mut prompt = held.rig.prompt(&toks);
    // Two prompts' worth of tokens in one plan; a decode token wants the rows of its last position.
    let (joins, id) = (held.rig.scheduler.stats().group_joins, {
        let begin = Begin { start_pos: 31, history: &toks[..31], ..Begin::default() };
        held.rig.scheduler.begin(begin).expect("a slot")
    });
    held.rig.scheduler.on_token(id, toks[31]).expect("token taken");
    let stats = held.rig.scheduler.stats();
    assert_eq!((stats.group_joins - joins, stats.plans_raised), (2, 1), "both of its groups are the prompt's");
    let log = held.go(&mut [&mut prompt]);
    let rows = held.rig.scheduler.await_layer(id).wait().expect("rows");
    assert!(rows.bytes() == held.rig.oracle.rows(0, &prompt.tokens, 31), "wrong bytes");
    let (_, last) = first_and_last(&held.rig, &log, 0, &toks, 31..32);
    assert!(last < REST + 16, "read number {last}");
    // The next ones are the rest of the prompt by place, from the start of the file again.
    let (end, mut offsets) = (REST + 16, Vec::new());
    log[end..].iter().for_each(|read| offsets.push(read.op.offset));
    assert!(offsets.len() > 10 && offsets.is_sorted(), "{} reads", offsets.len());
    let extents: u64 = held.rig.scheduler.stats().extents;
    assert_eq!(extents + held.rig.scheduler.stats().page_joins, 16 * (1 + 32), "no row was read for both");
}

#[test]
fn earlier_layers_come_first() {
    let _guard = HangGuard::new("layers", 60);
    let mut held = Held::new(Kind::V41);
    // One plan: 10 tokens of two tables and three orders.
    let toks: Vec<i32> = (200..210).collect();
    let mut prompt = held.rig.prompt(&toks);
    let log = held.go(&mut [&mut prompt]);
    let hung: Vec<Extent> = (0..2).flat_map(|table| extents_of(&held.rig, table, &[499])).collect();
    let own = |read: &&LoggedRead| !hung.iter().any(|extent| covers(read, extent));
    let first_file_of_later = held.rig.tables[1].extent(0, 0).file;
    let layers: Vec<bool> = log.iter().filter(own).map(|read| read.op.file >= first_file_of_later).collect();
    assert!(layers.is_sorted(), "layer 1 is through before layer 14 begins: {layers:?}");
    let later = layers.iter().filter(|&&later| later).count();
    assert!(later >= 2 && layers.len() - later >= 2, "{later} of {} reads are of layer 14", layers.len());
}

#[test]
fn bulk_keeps_to_its_share_while_an_interactive_request_lives() {
    let _guard = HangGuard::new("the share of bulk", 60);
    let limits = Limits {
        requests_max: 4,
        ahead_tokens_max: 64,
        in_flight_interactive_max: 8,
        in_flight_bulk_shared_max: 3,
        in_flight_bulk_max: 24,
        ..Limits::default()
    };
    let rig = Plan { limits, ..Plan::new(Kind::Qwen, 1) }.rig();
    rig.disk.set_logging(true);
    stall_all(&rig);
    let mut decode = rig.begin();
    let bulk = rig.scheduler.begin(Begin { class: RequestClass::Bulk, ..Begin::default() }).expect("a slot");
    rig.scheduler.on_tokens(bulk, 0, &(100..160).collect::<Vec<_>>(), None).expect("tokens taken");
    wait_for_reads(&rig, 3);
    rig.feed(&mut decode, 7);
    wait_for_reads(&rig, 5); // the rest of the eight
    std::thread::sleep(Duration::from_millis(20));
    assert!(rig.disk.take_log().is_empty(), "the limits hold");
    // Alone, bulk has the whole depth.
    rig.scheduler.abort(decode.id);
    rig.disk.release();
    wait_for_reads(&rig, 24);
    heal(&rig);
    rig.scheduler.finish(bulk);
    rig.assert_slots_return(4);
}

#[test]
fn what_nobody_needs_any_more_is_not_read() {
    let _guard = HangGuard::new("abandoned groups", 60);
    let mut held = Held::new(Kind::Qwen);
    let toks: Vec<i32> = (200..216).collect();
    let (gone, mut kept) = (held.rig.prompt(&toks), held.rig.prompt(&toks[..4]));
    held.rig.scheduler.abort(gone.id);
    let log = held.go(&mut [&mut kept]);
    // 16 tokens of two groups, of which the other request wants those of the first four.
    let stats = wait_until(&held.rig, |stats| stats.groups_abandoned == 2 * 12);
    assert_eq!((stats.groups_abandoned, stats.speculative_shed), (24, 0));
    assert!(log.len() + held.rig.disk.take_log().len() <= REST + 16 * 4, "{} reads", log.len());
    // They can be had all the same.
    let mut again = held.rig.prompt(&toks);
    held.rig.drain_all(&mut again);
}

fn wait_until(rig: &Rig, done: impl Fn(&engram_sched_core::Stats) -> bool) -> engram_sched_core::Stats {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let stats = rig.scheduler.stats();
        if done(&stats) || Instant::now() > deadline {
            return stats;
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_read_that_is_always_refused_holds_up_nobody() {
    let _guard = HangGuard::new("paused reads", 60);
    let limits = Limits { requests_max: 4, retries_max: u32::MAX, ..Limits::default() };
    let rig = Plan { limits, ..Plan::new(Kind::Qwen, 1) }.rig();
    let bad = rig.rows_of_last(0, &[7])[3].1[0];
    let busy = bad.offset / 4096 * 4096..bad.offset / 4096 * 4096 + 4096;
    rig.disk.add_fault(Fault::Fail { file: bad.file, range: busy.clone(), errno: libc::EAGAIN, times: u32::MAX });
    let mut waits = rig.prompt(&[7]);
    // Also not near it: a merged read is refused as a whole, for as long as it may be repeated.
    let near = busy.start.saturating_sub(16_384)..busy.end + 16_384;
    let touches = |e: &Extent| e.file == bad.file && near.contains(&e.offset);
    let needs = |tok: i32| rig.rows_of_last(0, &[tok]).iter().any(|row| row.1.iter().any(touches));
    let mut served = 0;
    for tok in (8..200).filter(|&tok| !needs(tok)) {
        let mut other = rig.prompt(&[tok]);
        rig.drain(&mut other);
        rig.scheduler.finish(other.id);
        served += 1;
    }
    assert!(served > 20, "{served} tokens do not need the page");
    let stats = wait_until(&rig, |stats| stats.read_pauses > 20);
    assert!(stats.read_pauses > 20 && stats.reads_failed == 0, "{stats:?}");
    rig.disk.clear_faults();
    rig.drain(&mut waits);
}

#[test]
fn a_hundred_refusals_of_one_place_fail_its_rows_only() {
    let _guard = HangGuard::new("a hundred times EAGAIN", 60);
    let rig = Plan::new(Kind::Qwen, 1).rig();
    let bad = rig.rows_of_last(0, &[7])[3].1[0];
    let range = bad.offset..bad.offset + u64::from(bad.len);
    rig.disk.add_fault(Fault::Fail { file: bad.file, range, errno: libc::EAGAIN, times: 100 });
    let mut failed = 0;
    for _ in 0..100 {
        let mut walk = rig.prompt(&[7]);
        match rig.try_drain(&mut walk) {
            Ok(_) => break,
            Err(AwaitError::Read(error)) => assert_eq!(error.errno, libc::EAGAIN),
            Err(other) => panic!("{other}"),
        }
        rig.scheduler.finish(walk.id);
        failed += 1;
    }
    assert!((1..=12).contains(&failed), "{failed} times, nine attempts each");
    assert!(rig.scheduler.stats().read_pauses > 80);
}

#[test]
fn a_disk_that_is_gone_ends_service_and_a_bad_sector_never_does() {
    let _guard = HangGuard::new("the fatal latch", 60);
    let limits = || Limits { requests_max: 4, read_failures_max: 8, ..Limits::default() };
    let rig = Plan { limits: limits(), ..Plan::new(Kind::Qwen, 1) }.rig();
    let bad = rig.rows_of_last(0, &[7])[3].1[0];
    let sector = bad.offset..bad.offset + 1;
    rig.disk.add_fault(Fault::Fail { file: bad.file, range: sector, errno: libc::EIO, times: u32::MAX });
    let layer = rig.scheduler.layers()[0];
    let bad_row = rig.rows_of_last(0, &[7])[3].0;
    for _ in 0..100 {
        let mut out = [0; 160];
        rig.scheduler.read_rows(layer, &[bad_row], &mut out).expect_err("a bad sector");
    }
    assert_eq!(rig.scheduler.stats().reads_failed, 100);
    let mut other = rig.prompt(&[300]);
    let _ = rig.try_drain(&mut other); // its rows may lie there, too; it is answered
    assert!(rig.scheduler.begin(Begin::default()).is_ok(), "it serves");

    let rig = Plan { limits: limits(), ..Plan::new(Kind::Qwen, 1) }.rig();
    for file in 0..rig.files.len() as u32 {
        rig.disk.add_fault(Fault::Fail { file: FileId(file), range: ALL, errno: libc::EIO, times: u32::MAX });
    }
    let ended = (0..400).find_map(|tok| {
        let walk = rig.scheduler.begin(Begin::default()).and_then(|id| {
            rig.scheduler.on_token(id, tok)?;
            Ok(Walk { id, tokens: vec![(tok, true)], drained: 0 })
        });
        match walk {
            Err(TokenError::Closed(why)) => return Some(why),
            Err(other) => panic!("{other}"),
            Ok(mut walk) => assert!(rig.try_drain(&mut walk).is_err()),
        }
        None
    });
    assert_eq!(ended, Some(Closed::Fatal));
    let notes = rig.scheduler.stats().backends[0].notes.join("\n");
    let named = rig.files.iter().any(|file| notes.contains(&file.display().to_string()));
    assert!(named && notes.contains("errno 5") && notes.contains("8 reads failed"), "{notes}");
}
