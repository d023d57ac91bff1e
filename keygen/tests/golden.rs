//! The published and the independently computed vectors, bit for bit; one test per file, which prints what it compared.
//!
//! The figures come from numpy and from the engines' own code (see `tests/golden/`), never from this crate. Each case
//! is computed in several ways that must agree: token by token, in chunks that start from a seeded history, after a
//! rollback, and by the signed reference function.
//!
//! Not here: `golden_dequant.json` and the `locate` / `e4m3fn` parts, which are about row bytes and files.

use engram_keygen::rng::{Pcg64, seed_sequence};
use engram_keygen::{Dialect, History, Keygen, RowId, Spec, Token, TokenMap};
use serde_json::Value;
use sha2::{Digest, Sha256};

const MAP_V41: &[u8] = include_bytes!("golden/token_map_v41_i32.bin");

/// What one file's test has compared.
#[derive(Default)]
struct Count {
    cases: usize,
    row_ids: usize,
    digests: usize,
}

impl Count {
    fn print(&self, file: &str) {
        let Self { cases, row_ids, digests } = self;
        println!("{file}: {cases} cases, {row_ids} row ids, {digests} digests, 0 mismatches");
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn list<T: std::str::FromStr>(value: &Value) -> Vec<T> {
    // Numbers and the decimal strings of 64-bit values alike.
    let one = |v: &Value| v.to_string().trim_matches('"').parse().ok().unwrap();
    value.as_array().unwrap().iter().map(one).collect()
}

fn lists<T: std::str::FromStr>(value: &Value) -> Vec<Vec<T>> {
    value.as_array().unwrap().iter().map(list).collect()
}

/// Per token and table, the row ids, order-major.
type Rows = Vec<Vec<Vec<RowId>>>;

fn rows_of(case: &Value) -> Rows {
    case["rowids"].as_array().unwrap().iter().map(lists).collect()
}

/// SHA-256 over the row ids as little-endian i64, C order.
fn digest(rows: &Rows) -> String {
    let mut sha = Sha256::new();
    rows.iter().flatten().flatten().for_each(|row| sha.update((*row as i64).to_le_bytes()));
    sha.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn v41_map() -> Vec<i32> {
    MAP_V41.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b)).collect()
}

/// SHA-256 of the map as little-endian i64.
fn map_digest(map: &TokenMap) -> String {
    let mut sha = Sha256::new();
    map.ids().iter().for_each(|id| sha.update(i64::from(*id).to_le_bytes()));
    sha.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn token_rows(keygen: &Keygen, history: &mut History, token: Token, live: bool) -> Vec<Vec<RowId>> {
    let window = keygen.push(history, token, live);
    let rows = |table| {
        let mut out = vec![0; keygen.columns()];
        keygen.token_rows(table, &window, &mut out);
        out
    };
    (0..keygen.tables()).map(rows).collect()
}

/// A sequence: ids before it (and which of them are DEAD), its ids (and which are DEAD).
struct Input {
    history: Vec<Token>,
    history_live: Vec<bool>,
    ids: Vec<Token>,
    live: Vec<bool>,
}

impl Input {
    fn new(case: &Value) -> Self {
        let ids: Vec<Token> = list(&case["raw_ids"]);
        let history: Vec<Token> = case.get("history_raw_oldest_first").map(list).unwrap_or_default();
        let live = |key: &str, len: usize| {
            let dead: Vec<bool> = case.get(key).map_or(vec![false; len], list);
            dead.iter().map(|dead| !dead).collect()
        };
        Self { live: live("dead", ids.len()), history_live: live("history_dead", history.len()), history, ids }
    }

    fn all(&self) -> (Vec<Token>, Vec<bool>) {
        ([&self.history[..], &self.ids].concat(), [&self.history_live[..], &self.live].concat())
    }

    fn start(&self, keygen: &Keygen) -> History {
        let mut history = History::new(keygen, History::TAIL_DEFAULT);
        let live = Some(&self.history_live[..]);
        history.seed(keygen, &self.history, live, self.history.len() as u64).unwrap();
        history
    }

    /// Token by token.
    fn whole(&self, keygen: &Keygen) -> Rows {
        let mut history = self.start(keygen);
        self.ids.iter().zip(&self.live).map(|(&id, &live)| token_rows(keygen, &mut history, id, live)).collect()
    }

    /// In chunks of `len`, each from a history of its own that knows the last n - 1 ids only.
    fn chunked(&self, keygen: &Keygen, len: usize) -> Rows {
        let (ids, live) = self.all();
        let mut rows = Rows::new();
        let mut pos = self.history.len();
        while pos < ids.len() {
            let end = ids.len().min(pos + len);
            let from = pos.saturating_sub(keygen.history_len());
            let mut history = History::new(keygen, 0);
            history.seed(keygen, &ids[from..pos], Some(&live[from..pos]), pos as u64).unwrap();
            rows.extend((pos..end).map(|i| token_rows(keygen, &mut history, ids[i], live[i])));
            pos = end;
        }
        rows
    }

    /// With wrong drafts before every token, taken back again.
    fn with_rejected_drafts(&self, keygen: &Keygen) -> Rows {
        let mut history = self.start(keygen);
        let mut rows = Rows::new();
        for (i, (&id, &live)) in self.ids.iter().zip(&self.live).enumerate() {
            for draft in 0..i % 5 {
                keygen.push(&mut history, draft as Token, draft % 2 == 0);
            }
            history.rollback(i as u64 % 5).unwrap();
            rows.push(token_rows(keygen, &mut history, id, live));
        }
        rows
    }

    /// By the signed reference function; positions that are DEAD by the mask alone cannot be told to it.
    fn signed(&self, keygen: &Keygen) -> Option<Rows> {
        let (ids, live) = self.all();
        let dead_by_id = |(id, live): (&Token, &bool)| *live || keygen.spec().dead_ids.contains(id);
        ids.iter().zip(&live).all(dead_by_id).then(|| {
            let rows = |pos: usize, table| {
                let mut out = vec![0; keygen.columns()];
                keygen.rows_signed_unchecked(table, &ids, pos, &mut out);
                out
            };
            let tables = |pos| (0..keygen.tables()).map(|table| rows(pos, table)).collect();
            (self.history.len()..ids.len()).map(tables).collect()
        })
    }

    /// The rows, after all ways to get them have agreed.
    fn rows(&self, keygen: &Keygen, name: &str) -> Rows {
        let whole = self.whole(keygen);
        for len in [1, 2, 3, 7] {
            assert!(self.chunked(keygen, len) == whole, "{name}: chunks of {len}");
        }
        assert!(self.with_rejected_drafts(keygen) == whole, "{name}: rejected drafts");
        if let Some(signed) = self.signed(keygen) {
            assert!(signed == whole, "{name}: signed reference");
        }
        whole
    }
}

/// The spec of a section's geometry, from its figures alone.
fn spec_of(geometry: &Value) -> Spec {
    Spec {
        layer_ids: list(&geometry["layer_ids"]),
        max_ngram: geometry["max_ngram"].as_u64().unwrap() as usize,
        heads: geometry["n_heads"].as_u64().unwrap() as usize,
        bases: list(&geometry["bases"]),
        compressed_vocab: Some(geometry["compressed_vocab"].as_u64().unwrap() as u32),
        pad_compressed: Some(geometry["pad_compressed"].as_u64().unwrap() as u32),
        seed: geometry["seed"].as_u64(),
        rows: Some(list(&geometry["rows_per_table"])),
        // Declared, so that they are compared with the derived ones.
        multipliers: Some(lists(&geometry["multipliers"])),
        primes: Some(lists(&geometry["primes"])),
        dead_ids: geometry["image_token_id"].as_i64().map(|id| id as Token).into_iter().collect(),
        ..Spec::empty(Dialect::Engram)
    }
}

fn check_constants(keygen: &Keygen, geometry: &Value) {
    let offsets: Vec<Vec<u64>> = lists(&geometry["offsets"]);
    let rows: Vec<u64> = list(&geometry["rows_per_table"]);
    assert_eq!(keygen.columns() as u64, geometry["n_cols"].as_u64().unwrap());
    for table in 0..keygen.tables() {
        assert_eq!(keygen.multipliers(table), &lists::<u64>(&geometry["multipliers"])[table]);
        assert_eq!(keygen.primes(table), &lists::<u64>(&geometry["primes"])[table]);
        assert_eq!(keygen.offsets(table), &offsets[table]);
        assert_eq!(keygen.table_rows(table), rows[table]);
    }
}

fn check_rng(section: &Value) {
    for rng in section["rng"].as_array().unwrap() {
        let seed = rng["seed"].as_u64().unwrap();
        assert_eq!(seed_sequence(seed).to_vec(), list::<u64>(&rng["seedseq_u64x4"]));
        let mut g = Pcg64::new(seed);
        let number = |key: &str| rng[key].to_string().trim_matches('"').parse::<u128>().unwrap();
        assert_eq!(g.state(), (number("pcg_state_after_seed"), number("pcg_inc")));
        for want in list::<u64>(&rng["first_u64"]) {
            assert_eq!(g.next_u64(), want);
        }
    }
}

/// Compares the compressed ids that a case states with what the history resolves them to.
fn check_compressed(keygen: &Keygen, input: &Input, case: &Value) {
    let mut history = input.start(keygen);
    for (i, want) in list::<i32>(&case["compressed"]).into_iter().enumerate() {
        let window = keygen.push(&mut history, input.ids[i], input.live[i]);
        assert_eq!(window.dead(), want == -1);
        assert_eq!(window.ids()[0], if want == -1 { keygen.filler() } else { want });
    }
}

/// Cases and bulk digests of one section, except those named in `skip`.
fn check_section(keygen: &Keygen, section: &Value, skip: &str, count: &mut Count) {
    check_constants(keygen, &section["geometry"]);
    for case in section["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        if name == skip {
            continue;
        }
        let input = Input::new(case);
        check_compressed(keygen, &input, case);
        let rows = input.rows(keygen, name);
        assert_eq!(rows, rows_of(case), "{name}");
        count.cases += 1;
        count.row_ids += rows.iter().flatten().flatten().count();
        for key in ["sha256_i64le", "published_sha256"] {
            if let Some(want) = case.get(key) {
                assert_eq!(want, digest(&rows).as_str(), "{name}: {key}");
                count.digests += 1;
            }
        }
    }
    for bulk in section.get("bulk").and_then(Value::as_array).into_iter().flatten() {
        let name = bulk["name"].as_str().unwrap();
        let rows = Input::new(bulk).rows(keygen, name);
        assert_eq!(rows.len() as u64, bulk["n"].as_u64().unwrap());
        assert_eq!(rows[0], lists::<u64>(&bulk["first_token_rows"]), "{name}");
        assert_eq!(rows[rows.len() - 1], lists::<u64>(&bulk["last_token_rows"]), "{name}");
        assert_eq!(bulk["rows_sha256_i64le"], digest(&rows).as_str(), "{name}");
        count.cases += 1;
        count.row_ids += rows.iter().flatten().flatten().count();
        count.digests += 1;
    }
}

/// A case with negative ids, which only the signed function hashes.
fn check_negative(keygen: &Keygen, case: &Value, count: &mut Count) {
    let ids: Vec<Token> = list(&case["raw_ids"]);
    assert!(ids.iter().filter(|id| **id < 0).all(|id| keygen.check(*id).is_err()), "the face refuses negative ids");
    let rows = |pos, table| {
        let mut out = vec![0; keygen.columns()];
        keygen.rows_signed_unchecked(table, &ids, pos, &mut out);
        out
    };
    let rows: Rows = (0..ids.len()).map(|pos| (0..keygen.tables()).map(|t| rows(pos, t)).collect()).collect();
    assert_eq!(rows, rows_of(case));
    assert_eq!(case["sha256_i64le"], digest(&rows).as_str());
    count.cases += 1;
    count.row_ids += rows.iter().flatten().flatten().count();
    count.digests += 1;
}

fn case<'a>(section: &'a Value, name: &str) -> &'a Value {
    section["cases"].as_array().unwrap().iter().find(|case| case["name"] == name).unwrap()
}

#[test]
fn golden_v41_real() {
    let file = json(include_str!("golden/golden_v41_real.json"));
    let map = TokenMap::new(v41_map()).unwrap();
    assert_eq!(file["token_map"]["sha256_i64le"], map_digest(&map).as_str());
    assert_eq!(file["token_map"]["entries"], map.len());
    assert_eq!(file["token_map"]["distinct"], map.compressed_vocab());
    let sha256 = Sha256::digest(MAP_V41).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let declared = Spec::deepseek_v41().token_map.unwrap();
    assert_eq!((declared.len, declared.sha256), (Some(map.len() as u32), Some(sha256)));
    check_rng(&file);

    let keygen = Keygen::new(&Spec::deepseek_v41(), Some(map.clone())).unwrap();
    let mut count = Count::default();
    check_section(&keygen, &file, "", &mut count);
    // The same from the figures of the file instead of the built-in ones.
    check_section(&Keygen::new(&spec_of(&file["geometry"]), Some(map)).unwrap(), &file, "", &mut Count::default());

    // Compressed ids of an independent engine's unit test, a sequence, some columns of it.
    let published = &file["published_compressed_vectors"];
    let spec = Spec { token_map: None, vocab: None, dead_ids: vec![], ..Spec::deepseek_v41() };
    let identity = Keygen::new(&spec, None).unwrap();
    let ids: Vec<Token> = list(&published["compressed_ids"]);
    let columns: Vec<usize> = list(&published["columns"]);
    let mut history = History::new(&identity, 0);
    for (pos, &id) in ids.iter().enumerate() {
        let rows = token_rows(&identity, &mut history, id, true);
        for (table, rows) in rows.iter().enumerate() {
            let some: Vec<RowId> = columns.iter().map(|&column| rows[column]).collect();
            assert_eq!(some, list::<u64>(&published["rows"][table][pos]), "published, position {pos}");
            count.row_ids += some.len();
        }
    }
    count.cases += 1;

    // The rows of a DEAD position are the constant all-pad rows of the specification, 1.7.
    let all_dead = rows_of(case(&file, "all_dead"));
    assert_eq!(all_dead[0][0][..4], [4299726, 29253038, 43157972, 58397134]);
    count.print("golden_v41_real.json");
}

#[test]
fn golden_v41_madeup_map() {
    let file = json(include_str!("golden/golden_v41_madeup_map.json"));
    let map = TokenMap::made_up(129_280, 99_092).unwrap();
    let mut count = Count::default();
    let spec = spec_of(&file["geometry"]);
    check_section(&Keygen::new(&spec, Some(map.clone())).unwrap(), &file, "", &mut count);
    // The built-in spec with the pad given raw, as the model's config has it.
    let spec = Spec { pad_compressed: None, pad_raw: Some(2), dead_ids: vec![], ..Spec::deepseek_v41() };
    check_section(&Keygen::new(&spec, Some(map)).unwrap(), &file, "", &mut Count::default());
    count.print("golden_v41_madeup_map.json");
}

#[test]
fn golden_demo() {
    let file = json(include_str!("golden/golden_demo.json"));
    check_rng(&file);
    // The whole V3 map is a prefix of V4.1's, which its digest proves.
    let map = TokenMap::new(v41_map()[..128_815].to_vec()).unwrap();
    assert_eq!(file["token_map"]["sha256_i64le"], map_digest(&map).as_str());
    assert_eq!(file["token_map"]["entries"], map.len());
    assert_eq!(file["token_map"]["distinct"], map.compressed_vocab());

    let mut count = Count::default();
    let keygen = Keygen::new(&Spec::demo(), Some(map.clone())).unwrap();
    check_section(&keygen, &file, "negative_id_passthrough", &mut count);
    check_negative(&keygen, case(&file, "negative_id_passthrough"), &mut count);
    let from_figures = Keygen::new(&spec_of(&file["geometry"]), Some(map)).unwrap();
    check_section(&from_figures, &file, "negative_id_passthrough", &mut Count::default());
    count.print("golden_demo.json");
}

#[test]
fn golden_toy() {
    let file = json(include_str!("golden/golden_toy.json"));
    let map = TokenMap::made_up(64, 23).unwrap();
    assert_eq!(map.ids(), list::<i32>(&file["token_map"]));
    let mut count = Count::default();
    for section in [&file["v41"], &file["demo"]] {
        check_rng(section);
        let keygen = Keygen::new(&spec_of(&section["geometry"]), Some(map.clone())).unwrap();
        check_section(&keygen, section, "neg", &mut count);
        if section["cases"].as_array().unwrap().iter().any(|case| case["name"] == "neg") {
            check_negative(&keygen, case(section, "neg"), &mut count);
        }
    }
    count.print("golden_toy.json");
}

#[test]
fn golden_qwen38_ple() {
    let file = json(include_str!("golden/golden_qwen38_ple.json"));
    let keygen = Keygen::new(&Spec::qwen_ple(), None).unwrap();
    let figures = &file["spec"];
    assert_eq!(keygen.multipliers(0), list::<u64>(&figures["multipliers"]));
    assert_eq!(keygen.primes(0), list::<u64>(&figures["moduli"]));
    assert_eq!(keygen.offsets(0), list::<u64>(&figures["offsets"]));
    assert_eq!(figures["total_rows"], keygen.table_rows(0));
    assert_eq!(figures["padded_rows"], keygen.table_rows_padded(0));
    assert_eq!(figures["rows_per_shard"], keygen.table_rows_padded(0).div_ceil(keygen.spec().parts.unwrap().into()));
    let threshold: Vec<u64> = keygen.multipliers(0).iter().map(|m| (1_u64 << 63).div_ceil(*m)).collect();
    assert_eq!(threshold, list::<u64>(&figures["overflow_threshold_token"]));

    let mut count = Count::default();
    for case in file["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let ids: Vec<Token> = list(&case["tokens"]);
        let history: Vec<Token> = if case["history"].is_null() { vec![] } else { list(&case["history"]) };
        let want: Vec<Vec<RowId>> = lists(&case["rowids"]);
        let legal = ids.iter().all(|id| keygen.check(*id).is_ok());
        let input = Input { history_live: vec![true; history.len()], live: vec![legal; ids.len()], history, ids };
        if legal {
            let rows = input.rows(&keygen, name);
            assert_eq!(rows.concat(), want, "{name}");
            // A masked position hashes the id that it carries.
            let masked = Input { live: vec![false; input.ids.len()], ..input };
            assert_eq!(masked.whole(&keygen), rows, "{name}: masked");
            if name == "random_256" {
                assert_eq!(file["sha256_random_256"], digest(&rows).as_str());
                count.digests += 1;
            }
        } else {
            // Ids beyond the vocabulary: signed in the reference function, unsigned in the hot path, and they differ.
            let (all, _) = input.all();
            for (pos, want) in want.iter().enumerate() {
                let mut out = vec![0; keygen.columns()];
                keygen.rows_signed_unchecked(0, &all, input.history.len() + pos, &mut out);
                assert_eq!(&out, want, "{name}: signed, position {pos}");
            }
            let unsigned: Vec<Vec<RowId>> = lists(&case["rowids_u64_semantics"]);
            assert_eq!(input.whole(&keygen).concat(), unsigned, "{name}: unsigned");
            assert_ne!(unsigned, want);
            count.row_ids += unsigned.concat().len();
        }
        count.cases += 1;
        count.row_ids += want.concat().len();
    }
    check_qwen_rollback(&keygen, &file["spec_rollback"], &mut count);
    check_qwen_second_layer(&file["second_layer_example"]);
    count.cases += 2;
    count.print("golden_qwen38_ple.json");
}

/// Drafts that were partly rejected, then the bonus token.
fn check_qwen_rollback(keygen: &Keygen, case: &Value, count: &mut Count) {
    let base: Vec<Token> = list(&case["base"]);
    let drafts: Vec<Token> = list(&case["drafts"]);
    let accepted = case["accepted"].as_u64().unwrap();
    let mut history = History::new(keygen, 16);
    base.iter().chain(&drafts).for_each(|&id| {
        keygen.push(&mut history, id, true);
    });
    history.rollback(drafts.len() as u64 - accepted).unwrap();
    let bonus = case["bonus"].as_i64().unwrap() as Token;
    let rows = token_rows(keygen, &mut history, bonus, true);
    assert_eq!(rows[0], list::<u64>(&case["rowids_bonus"]));
    count.row_ids += rows[0].len();
}

/// A second PLE layer takes the next primes and the next seed, wherever it stands in `layer_ids`.
fn check_qwen_second_layer(example: &Value) {
    let spec =
        |layer_ids, table_order| Spec { layer_ids, table_order, multipliers: None, rows: None, ..Spec::qwen_ple() };
    for (spec, second) in [(spec(vec![1, 5], None), 1), (spec(vec![5, 1], Some(vec![1, 5])), 0)] {
        let keygen = Keygen::new(&spec, None).unwrap();
        assert_eq!(keygen.layer(second), 5);
        assert_eq!(keygen.multipliers(second), list::<u64>(&example["multipliers"]));
        assert_eq!(keygen.primes(second), list::<u64>(&example["first_moduli"]));
        assert_eq!(keygen.table_rows(1 - second), 320_001_446);
    }
}
