//! Group 1 of `docs/CASES.md`, as far as it is about how a prompt comes in: cut anywhere, continued after a prefix hit, with ids that are
//! no tokens; and that chunks of every size take the same way.

mod fault_support;

use engram_sched_core::{Begin, Limits, TokenError};
use fault_support::common::Kind;
use fault_support::{HangGuard, Lcg, Plan, Rig, Walk, heal, stall_all, token};

fn rig(kind: Kind) -> Rig {
    let mut plan = Plan::new(kind, 2);
    plan.limits = Limits { requests_max: 8, ahead_tokens_max: 64, await_tokens_max: 8192, ..Limits::default() };
    plan.rig()
}

fn prompt(kind: Kind, tokens: usize, seed: u64) -> Vec<(i32, bool)> {
    let mut lcg = Lcg(seed);
    (0..tokens).map(|_| token(kind, &mut lcg)).collect()
}

/// The rows of `tokens`, layer after layer, from the oracle.
fn expected(rig: &Rig, tokens: &[(i32, bool)], start: usize) -> Vec<Vec<u8>> {
    (0..rig.tables.len()).map(|table| rig.oracle.rows(table, tokens, start)).collect()
}

/// Takes all layers of what was fed; they must be `expect`.
fn take(rig: &Rig, walk: &Walk, start: usize, expect: &[Vec<u8>], what: &str) {
    for (want, &layer) in expect.iter().zip(rig.scheduler.layers()) {
        let got = rig.scheduler.await_layer_at(walk.id, layer).wait().expect("rows");
        assert_eq!(got.positions(), start as u64..walk.tokens.len() as u64, "{what}");
        assert!(got.bytes() == *want, "{what}, layer {layer}: wrong bytes");
    }
}

fn feed(rig: &Rig, walk: &mut Walk, toks: &[(i32, bool)]) {
    let (ids, live): (Vec<_>, Vec<_>) = toks.iter().copied().unzip();
    rig.scheduler.on_tokens(walk.id, walk.tokens.len() as u64, &ids, Some(&live)).expect("tokens taken");
    walk.tokens.extend(toks);
}

#[test]
fn a_prompt_cut_anywhere_gives_the_same_rows() {
    let _guard = HangGuard::new("chunks", 120);
    for kind in [Kind::Qwen, Kind::V41] {
        let rig = rig(kind);
        let tokens = prompt(kind, 4096, 1);
        let expect = expected(&rig, &tokens, 0);
        for chunk in [1, 2, 3, 7, 512, 4096] {
            let mut walk = rig.begin();
            for part in tokens.chunks(chunk) {
                feed(&rig, &mut walk, &[]);
                feed(&rig, &mut walk, part);
            }
            feed(&rig, &mut walk, &[]);
            take(&rig, &walk, 0, &expect, &format!("{kind:?} in chunks of {chunk}"));
            rig.scheduler.finish(walk.id);
        }
    }
}

#[test]
fn a_prefix_hit_of_any_length_gives_the_rows_of_the_whole_prompt() {
    let _guard = HangGuard::new("prefix hits", 120);
    for kind in [Kind::Qwen, Kind::V41] {
        let rig = rig(kind);
        let tokens = prompt(kind, 1200, 2);
        let (ids, live): (Vec<_>, Vec<_>) = tokens.iter().copied().unzip();
        // Somebody else's tokens have been in every slot before.
        for _ in 0..12 {
            let mut walk = rig.begin();
            feed(&rig, &mut walk, &prompt(kind, 700, 3));
            take(&rig, &walk, 0, &expected(&rig, &walk.tokens, 0), "before");
            rig.scheduler.finish(walk.id);
        }
        let need = rig.oracle.keygen.history_len();
        for start in [511, 512, 513, 1023, 1024, 1025] {
            let short = Begin { start_pos: start as u64, history: &ids[start - need + 1..start], ..Begin::default() };
            let refused = rig.scheduler.begin(short);
            assert!(matches!(refused, Err(TokenError::HistoryTooShort { .. })), "{refused:?}");
            for more in [0, 1, 2, 100] {
                for known in [need, start] {
                    let from = start - known;
                    let begin = Begin {
                        start_pos: start as u64,
                        history: &ids[from..start],
                        live: Some(&live[from..start]),
                        ..Begin::default()
                    };
                    let id = rig.scheduler.begin(begin).expect("a free slot");
                    let mut walk = Walk { id, tokens: tokens[..start].to_vec(), drained: start };
                    feed(&rig, &mut walk, &tokens[start..start + more]);
                    let expect = expected(&rig, &walk.tokens, start);
                    take(
                        &rig,
                        &walk,
                        start,
                        &expect,
                        &format!("{kind:?}, {more} tokens behind {start}, {known} known"),
                    );
                    // And on, token by token, as decode does.
                    if more > 0 {
                        walk.tokens.push((7, true));
                        rig.scheduler.on_token(id, 7).expect("token taken");
                        let expect = expected(&rig, &walk.tokens, start + more);
                        take(&rig, &walk, start + more, &expect, &format!("{kind:?}, decode behind {start} + {more}"));
                    }
                    rig.scheduler.finish(id);
                }
            }
        }
    }
}

#[test]
fn a_placeholder_is_refused_wherever_it_comes() {
    let _guard = HangGuard::new("placeholders", 60);
    for kind in [Kind::Qwen, Kind::V41] {
        let rig = rig(kind);
        // Reads stall while requests end, so that slots are begun again at once.
        for life in 0..40 {
            stall_all(&rig);
            let gone = rig.prompt(&[life, life + 1, life + 2]);
            rig.scheduler.abort(gone.id);
            let mut walk = rig.begin();
            let refuse = |walk: &Walk| {
                for bad in [-1, u32::MAX as i32, i32::MIN] {
                    let pos = walk.tokens.len() as u64;
                    let refused = |result| matches!(result, Err(TokenError::BadToken { tok, .. }) if tok == bad);
                    assert!(refused(rig.scheduler.on_token(walk.id, bad)));
                    assert!(refused(rig.scheduler.on_tokens(walk.id, pos, &[5, bad], None)));
                }
            };
            refuse(&walk); // as first token
            feed(&rig, &mut walk, &prompt(kind, 20, life as u64));
            refuse(&walk);
            rig.scheduler.on_token(walk.id, 9).expect("token taken");
            walk.tokens.push((9, true));
            refuse(&walk);
            heal(&rig);
            take(&rig, &walk, 0, &expected(&rig, &walk.tokens, 0), &format!("{kind:?}, life {life}"));
            rig.scheduler.finish(walk.id);
        }
    }
}

#[test]
fn chunks_of_every_size_take_the_same_way_ahead_of_the_engine() {
    let _guard = HangGuard::new("size classes", 60);
    for (kind, rows_of_token) in [(Kind::Qwen, 16), (Kind::V41, 48)] {
        for tokens in [1, 2, 8, 64, 512, 4096] {
            let rig = rig(kind);
            let toks: Vec<(i32, bool)> =
                prompt(kind, tokens, 5).into_iter().map(|(tok, _)| (tok.max(0), true)).collect();
            // Nothing completes: whatever is counted now was planned and read ahead, and on_tokens has not waited for a read.
            stall_all(&rig);
            let mut walk = rig.begin();
            feed(&rig, &mut walk, &toks);
            let ahead = tokens.min(64);
            let stats = rig.scheduler.stats();
            assert!(stats.plans > 0 && stats.rows == dead_free(&rig, &toks[..ahead]) * rows_of_token, "{stats:?}");
            heal(&rig);
            take(&rig, &walk, 0, &expected(&rig, &toks, 0), &format!("{kind:?}, {tokens} tokens"));
            let stats = rig.scheduler.stats();
            assert_eq!(stats.rows, dead_free(&rig, &toks) * rows_of_token, "every row went through the plans");
            println!("{kind:?}, {tokens} tokens: {} rows, {} plans, {} reads", stats.rows, stats.plans, stats.reads);
        }
    }
}

/// Tokens that have rows.
fn dead_free(rig: &Rig, tokens: &[(i32, bool)]) -> u64 {
    let mut history = engram_keygen::History::new(&rig.oracle.keygen, 16);
    tokens.iter().filter(|&&(tok, live)| !rig.oracle.keygen.push(&mut history, tok, live).dead()).count() as u64
}

#[test]
fn a_prompt_that_repeats_itself_reads_each_row_once() {
    let _guard = HangGuard::new("repeats", 60);
    let rig = rig(Kind::Qwen);
    let reads_of = |tokens: usize| {
        let before = rig.scheduler.stats();
        // Stalled until all is planned, so that nothing is done before its repetition comes.
        stall_all(&rig);
        let mut walk = rig.begin();
        feed(&rig, &mut walk, &vec![(7, true); tokens]);
        heal(&rig);
        take(&rig, &walk, 0, &expected(&rig, &walk.tokens, 0), "repeats");
        rig.scheduler.finish(walk.id);
        let stats = rig.scheduler.stats();
        assert_eq!(stats.rows - before.rows, 16 * tokens as u64);
        stats.extents + stats.page_joins - before.extents - before.page_joins
    };
    // Three tokens hold every n-gram that there is in sixty-four.
    assert_eq!(reads_of(64), reads_of(3), "rows of the device, for twenty times the tokens");
}
