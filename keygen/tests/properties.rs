//! The laws that hold for every sequence, checked on random ones against the definition written down naively.
//!
//! The oracle below walks back from each position over the whole sequence and divides; it shares nothing with the
//! streaming path but the constants. Small vocabularies make barriers (EOS, DEAD) and repeats frequent.

use engram_keygen::{Dialect, History, Keygen, RowId, Spec, Token, TokenMap, Window};
use proptest::prelude::*;

/// One id of a sequence; the mask of a position and its id go together.
type Item = (Token, bool);

/// Small geometries that take every branch: both dialects, 2 to 8 tokens, a single base or one per order.
fn keygens() -> Vec<Keygen> {
    let mut all = Vec::new();
    for (max_ngram, heads) in [(2, 1), (3, 8), (4, 3), (8, 2)] {
        let qwen = Spec {
            layer_ids: vec![1],
            max_ngram,
            heads,
            bases: vec![101],
            vocab: Some(12),
            eos: Some(7),
            ..Spec::empty(Dialect::QwenPle)
        };
        all.push(Keygen::new(&qwen, None).unwrap());
        let engram = Spec {
            layer_ids: vec![1, 14],
            max_ngram,
            heads,
            bases: (1..max_ngram as u64).map(|order| 50 * order).collect(),
            compressed_vocab: Some(5),
            pad_raw: Some(2),
            dead_ids: vec![3],
            ..Spec::empty(Dialect::Engram)
        };
        all.push(Keygen::new(&engram, Some(TokenMap::made_up(12, 5).unwrap())).unwrap());
    }
    all
}

/// The rows of position `pos`, from the definition.
fn oracle(keygen: &Keygen, map: &[i32], items: &[Item], pos: usize) -> Vec<Vec<RowId>> {
    let spec = keygen.spec();
    let engram = spec.dialect == Dialect::Engram;
    let dead = |(id, live): Item| engram && (!live || spec.dead_ids.contains(&id));
    let blocked = |age: usize| {
        (0..=age).any(|a| match pos.checked_sub(a) {
            None => true,
            Some(p) if engram => dead(items[p]),
            Some(p) => a > 0 && items[p].0 == spec.eos.unwrap() as Token,
        })
    };
    let id = |age: usize| {
        if blocked(age) {
            return keygen.filler() as u128;
        }
        let raw = items[pos - age].0;
        if engram { map[raw as usize] as u128 } else { raw as u128 }
    };
    let table = |table: usize| {
        let row = |column: usize| {
            let mix = (0..=column / keygen.heads() + 1)
                .map(|age| id(age) * u128::from(keygen.multipliers(table)[age]))
                .fold(0, |mix, product| mix ^ product);
            assert!(mix < 1 << 63, "legal ids keep the mix below 2^63");
            let before: u64 = keygen.primes(table)[..column].iter().sum();
            before + (mix % u128::from(keygen.primes(table)[column])) as u64
        };
        (0..keygen.columns()).map(row).collect()
    };
    (0..keygen.tables()).map(table).collect()
}

fn push(keygen: &Keygen, history: &mut History, (id, live): Item) -> Vec<Vec<RowId>> {
    let window = keygen.push(history, id, live);
    rows_of(keygen, &window)
}

fn rows_of(keygen: &Keygen, window: &Window) -> Vec<Vec<RowId>> {
    let rows = |table| {
        let mut out = vec![0; keygen.columns()];
        keygen.token_rows(table, window, &mut out);
        // The groups give the same as the whole token.
        let mut group = vec![0; keygen.heads()];
        let mixes = keygen.mixes(table, window);
        for order in 0..keygen.orders() {
            keygen.rows(table, order, mixes[order], &mut group);
            assert_eq!(group, out[order * keygen.heads()..][..keygen.heads()]);
        }
        assert!(mixes[keygen.orders()..].iter().all(|&mix| mix == 0));
        out
    };
    (0..keygen.tables()).map(rows).collect()
}

fn fresh(keygen: &Keygen, items: &[Item]) -> History {
    let mut history = History::new(keygen, 64);
    items.iter().for_each(|&item| drop(push(keygen, &mut history, item)));
    history
}

/// A prompt at the real geometries, in chunks of every usual size, and continued after prefix hits around block borders.
#[test]
fn long_prompts_split_anywhere() {
    let map = TokenMap::made_up(129_280, 99_092).unwrap();
    let qwen = Keygen::new(&Spec::qwen_ple(), None).unwrap();
    let v41 = Keygen::new(&Spec::deepseek_v41(), Some(map)).unwrap();
    for (keygen, special) in [(qwen, 248_044), (v41, 129_264)] {
        let ids: Vec<Token> = (0..4096).map(|i| if i % 101 < 2 { special } else { i * i % 120_000 }).collect();
        let mut history = History::new(&keygen, History::TAIL_DEFAULT);
        let whole: Vec<_> = ids.iter().map(|&id| push(&keygen, &mut history, (id, true))).collect();
        let resumed = |start: usize, end: usize| {
            let from = start.saturating_sub(keygen.history_len());
            let mut history = History::new(&keygen, 0);
            history.seed(&keygen, &ids[from..start], None, start as u64).unwrap();
            ids[start..end].iter().map(|&id| push(&keygen, &mut history, (id, true))).collect::<Vec<_>>()
        };
        for chunk in [1, 2, 3, 7, 512, 4096] {
            for start in (0..ids.len()).step_by(chunk) {
                let end = ids.len().min(start + chunk);
                assert_eq!(resumed(start, end), whole[start..end]);
            }
        }
        for start in [0, 1, 2, 3, 511, 512, 513, 1023, 1024, 1025, 4096] {
            assert_eq!(resumed(start, ids.len()), whole[start..]);
        }
    }
}

fn unzip(items: &[Item]) -> (Vec<Token>, Vec<bool>) {
    items.iter().copied().unzip()
}

fn sequence(most: usize) -> impl Strategy<Value = Vec<Item>> {
    prop::collection::vec((0_i32..12, prop::bool::weighted(0.85)), 0..most)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn streaming_equals_whole(items in sequence(40)) {
        let map = TokenMap::made_up(12, 5).unwrap();
        for keygen in keygens() {
            let mut history = History::new(&keygen, 0);
            for pos in 0..items.len() {
                prop_assert_eq!(push(&keygen, &mut history, items[pos]), oracle(&keygen, map.ids(), &items, pos));
                prop_assert_eq!(history.position(), pos as u64 + 1);
            }
        }
    }

    #[test]
    fn the_signed_function_agrees_on_legal_ids(items in sequence(24)) {
        let (ids, _) = unzip(&items);
        for keygen in keygens() {
            let mut history = History::new(&keygen, 0);
            for (pos, &id) in ids.iter().enumerate() {
                let rows = push(&keygen, &mut history, (id, true));
                for (table, rows) in rows.iter().enumerate() {
                    let mut signed = vec![0; keygen.columns()];
                    keygen.rows_signed_unchecked(table, &ids, pos, &mut signed);
                    prop_assert_eq!(&signed, rows);
                }
            }
        }
    }

    /// Any split, empty chunks among them, each chunk from a history seeded with any number of ids that suffices.
    #[test]
    fn any_chunking_gives_the_same_rows(
        items in sequence(40),
        cuts in prop::collection::vec((0_usize..40, 0_usize..12), 0..8),
    ) {
        let (ids, live) = unzip(&items);
        let mut cuts: Vec<_> = cuts.into_iter().map(|(at, extra)| (at.min(items.len()), extra)).collect();
        cuts.sort_unstable();
        for keygen in keygens() {
            let mut history = History::new(&keygen, 0);
            let whole: Vec<_> = items.iter().map(|&item| push(&keygen, &mut history, item)).collect();
            let ends = cuts.iter().map(|cut| cut.0).skip(1).chain([items.len()]);
            for (&(start, extra), end) in cuts.iter().zip(ends) {
                let from = start.saturating_sub(keygen.history_len() + extra);
                let mut history = History::new(&keygen, 16);
                history.seed(&keygen, &ids[from..start], Some(&live[from..start]), start as u64).unwrap();
                for pos in start..end {
                    prop_assert_eq!(&push(&keygen, &mut history, items[pos]), &whole[pos]);
                }
            }
        }
    }

    /// After rollback(k), a history is that of a request that never had those positions.
    /// Appending first and hashing later gives the same windows, for as far back as the history says, whatever it was copied from.
    #[test]
    fn windows_can_be_had_later(items in sequence(60), tail in 0_usize..80, small in 0_usize..40) {
        let map = TokenMap::made_up(12, 5).unwrap();
        for keygen in keygens() {
            let mut late = History::new(&keygen, tail);
            for &(id, live) in &items {
                late.append(keygen.id(id, live).unwrap());
            }
            let mut copy = History::new(&keygen, small);
            copy.copy_from(&late);
            for history in [&late, &copy] {
                prop_assert_eq!(history.position(), items.len() as u64);
                for pos in 0..=items.len() {
                    let window = keygen.window_at(history, pos as u64);
                    prop_assert_eq!(window.is_some(), pos < items.len() && pos as u64 >= history.oldest());
                    if let Some(window) = window {
                        prop_assert_eq!(rows_of(&keygen, &window), oracle(&keygen, map.ids(), &items, pos));
                        let id = history.id_at(pos as u64);
                        prop_assert_eq!(id, keygen.id(items[pos].0, items[pos].1).ok());
                    }
                }
            }
        }
    }

    #[test]
    fn rollback_law(base in sequence(60), drafts in sequence(30), next in sequence(10), tail in 0_usize..40) {
        for keygen in keygens() {
            let mut history = History::new(&keygen, tail);
            base.iter().chain(&drafts).for_each(|&item| drop(push(&keygen, &mut history, item)));
            let before = history.clone();
            let back = drafts.len() as u64;
            prop_assert_eq!(history.rollback(back).is_ok(), back <= before.rollback_max());
            if back > before.rollback_max() {
                prop_assert_eq!(&history, &before, "a refused rollback changes nothing");
                continue;
            }
            prop_assert_eq!(history.position(), base.len() as u64);
            let mut want = fresh(&keygen, &base);
            for &item in &next {
                prop_assert_eq!(push(&keygen, &mut history, item), push(&keygen, &mut want, item));
            }
        }
    }

    /// What the tail promises: all of it but the window below it, or everything if the start is in it.
    #[test]
    fn rollback_reaches_as_far_as_the_tail(len in 0_usize..50, tail in 0_usize..40) {
        for keygen in keygens() {
            let mut history = History::new(&keygen, tail);
            (0..len).for_each(|_| drop(push(&keygen, &mut history, (1, true))));
            let tail = tail.max(keygen.history_len());
            let want = if len <= tail { len } else { tail - keygen.history_len() };
            prop_assert_eq!(history.rollback_max(), want as u64);
            prop_assert_eq!(history.kept(), len.min(tail));
        }
    }

    #[test]
    fn forks_are_independent(base in sequence(30), left in sequence(20), right in sequence(20)) {
        for keygen in keygens() {
            let mut parent = fresh(&keygen, &base);
            let mut child = parent.clone();
            let (mut alone_left, mut alone_right) = (fresh(&keygen, &base), fresh(&keygen, &base));
            for i in 0..left.len().max(right.len()) {
                if let Some(&item) = left.get(i) {
                    prop_assert_eq!(push(&keygen, &mut parent, item), push(&keygen, &mut alone_left, item));
                }
                if let Some(&item) = right.get(i) {
                    prop_assert_eq!(push(&keygen, &mut child, item), push(&keygen, &mut alone_right, item));
                }
            }
        }
    }

    #[test]
    fn every_row_is_in_the_range_of_its_head(items in sequence(30), mix: u64) {
        for keygen in keygens() {
            let mut history = History::new(&keygen, 0);
            let check = |rows: &[RowId], table: usize, from: usize| {
                rows.iter().enumerate().all(|(i, row)| {
                    let (first, rows) = (keygen.offsets(table)[from + i], keygen.primes(table)[from + i]);
                    (first..first + rows).contains(row)
                })
            };
            for &item in &items {
                for (table, rows) in push(&keygen, &mut history, item).iter().enumerate() {
                    prop_assert!(check(rows, table, 0));
                    prop_assert!(rows.iter().all(|&row| row < keygen.table_rows(table)));
                }
            }
            // Any mix at all, not only those of legal ids.
            let mut out = vec![0; keygen.heads()];
            for table in 0..keygen.tables() {
                for order in 0..keygen.orders() {
                    keygen.rows(table, order, mix, &mut out);
                    prop_assert!(check(&out, table, order * keygen.heads()));
                }
            }
        }
    }

    #[test]
    fn export_and_import_are_inverse(
        items in sequence(60),
        next in sequence(10),
        tail in 0_usize..40,
        other_tail in 0_usize..40,
    ) {
        for keygen in keygens() {
            let mut history = History::new(&keygen, tail);
            items.iter().for_each(|&item| drop(push(&keygen, &mut history, item)));
            let bytes = history.export();
            let mut same = History::new(&keygen, tail);
            same.import(&bytes).unwrap();
            prop_assert_eq!(&same, &history);
            prop_assert_eq!(same.export(), bytes.clone());
            let mut other = History::new(&keygen, other_tail);
            other.import(&bytes).unwrap();
            prop_assert_eq!(other.position(), history.position());
            for &item in &next {
                let want = push(&keygen, &mut history, item);
                prop_assert_eq!(&push(&keygen, &mut same, item), &want);
                prop_assert_eq!(&push(&keygen, &mut other, item), &want);
            }
        }
    }

    /// Any change of the bytes is noticed and changes nothing.
    #[test]
    fn damaged_exports_are_refused(
        items in sequence(30),
        at: prop::sample::Index,
        flip in 1_u8..,
        cut: prop::sample::Index,
    ) {
        for keygen in keygens() {
            let bytes = fresh(&keygen, &items).export();
            let mut history = fresh(&keygen, &[(1, true)]);
            let before = history.clone();
            let mut damaged = bytes.clone();
            damaged[at.index(bytes.len())] ^= flip;
            prop_assert!(history.import(&damaged).is_err());
            prop_assert!(history.import(&bytes[..cut.index(bytes.len())]).is_err());
            prop_assert_eq!(&history, &before);
        }
    }

    /// `holds` says whether feeding the token again would give the same history.
    #[test]
    fn holds_recognises_what_was_fed(items in sequence(40), again in sequence(40)) {
        for keygen in keygens() {
            let history = fresh(&keygen, &items);
            for (pos, &(id, live)) in again.iter().enumerate() {
                let Some(&was) = items.get(pos) else {
                    prop_assert_eq!(history.holds(&keygen, pos as u64, id, live), None);
                    continue;
                };
                let (mut a, mut b) = (fresh(&keygen, &items[..pos]), fresh(&keygen, &items[..pos]));
                push(&keygen, &mut a, was);
                push(&keygen, &mut b, (id, live));
                prop_assert_eq!(history.holds(&keygen, pos as u64, id, live), Some(a == b));
            }
        }
    }

    #[test]
    fn scaled_specs_keep_to_their_budget(rows_max in 3_000_u64..50_000_000) {
        let map = TokenMap::made_up(129_280, 99_092).unwrap();
        for (spec, map) in [(Spec::qwen_ple(), None), (Spec::deepseek_v41(), Some(map)), (Spec::demo(), None)] {
            let scaled = spec.scaled_to_rows(rows_max);
            let keygen = Keygen::new(&scaled, map).unwrap();
            prop_assert_eq!((scaled.heads, scaled.max_ngram, &scaled.row), (spec.heads, spec.max_ngram, &spec.row));
            prop_assert_eq!(keygen.columns(), spec.columns());
            let largest = (0..keygen.tables()).map(|table| keygen.table_rows(table)).max().unwrap();
            prop_assert!(largest <= rows_max, "{} rows of at most {}", largest, rows_max);
            // Not needlessly small: at worst by the gap between primes, times the heads.
            let full = spec.rows.iter().flatten().copied().max().unwrap();
            prop_assert!(largest * 100 >= rows_max.min(full) * 93, "{} rows of {}", largest, rows_max);
        }
    }
}
