//! What a spec may say, what is refused and by which name; and the histories' refusals.

use engram_keygen::{
    BASE_MAX, Dialect, HEADS_MAX, History, HistoryUnavailable, ImportError, Keygen, ORDERS_MAX, RowId, RowSpec,
    SeedError, Spec, SpecError, TableSource, Token, TokenMap, TokenOutOfRange,
};
use sha2::{Digest, Sha256};

fn map() -> TokenMap {
    TokenMap::made_up(129_280, 99_092).unwrap()
}

fn v41(change: impl FnOnce(&mut Spec)) -> Result<Keygen, SpecError> {
    let mut spec = Spec::deepseek_v41();
    change(&mut spec);
    Keygen::new(&spec, Some(map()))
}

fn qwen(change: impl FnOnce(&mut Spec)) -> Result<Keygen, SpecError> {
    let mut spec = Spec::qwen_ple();
    change(&mut spec);
    Keygen::new(&spec, None)
}

/// The error, whose message must say more than its name.
fn refused(result: Result<Keygen, SpecError>) -> SpecError {
    let error = result.expect_err("must be refused");
    assert!(error.to_string().len() > 40, "cause and remedy: {error}");
    error
}

#[test]
fn a_keygen_can_be_shared() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Keygen>();
    shared::<History>();
    shared::<SpecError>();
}

#[test]
fn built_in_models() {
    let qwen = Keygen::new(&Spec::qwen_ple(), None).unwrap();
    assert_eq!((qwen.tables(), qwen.layer(0), qwen.columns(), qwen.history_len()), (1, 1, 16, 2));
    assert_eq!((qwen.vocab(), qwen.table_rows(0), qwen.table_rows_padded(0)), (248_320, 320_001_446, 320_001_536));
    assert_eq!((qwen.offsets(0)[15], qwen.offsets(0)[15] + qwen.primes(0)[15]), (300_001_275, 320_001_446));

    let v41 = v41(|_| ()).unwrap();
    assert_eq!((v41.tables(), v41.layer(1), v41.columns(), v41.history_len()), (2, 14, 24, 3));
    assert_eq!((v41.vocab(), v41.hashed_vocab()), (129_280, 99_092));
    assert_eq!(v41.multipliers(0), [76632096046245, 4839876093313, 35959672319349, 73987337458391]);
    assert_eq!(v41.spec().row.as_ref().unwrap().bytes(), 264);
    assert_eq!((v41.table_rows_padded(0), v41.spec().parts), (384_006_168, None));
    assert_eq!(v41.deadline_layer(1), 14);

    let demo = Keygen::new(&Spec::demo(), None).unwrap();
    assert_eq!((demo.layer(1), demo.columns(), demo.vocab()), (15, 16, 98_627));
    assert_eq!(demo.multipliers(1), [29055444938695, 56284491166079, 54183298291715]);
}

/// The geometries of the specification's table 5.1 that are only given as sums.
#[test]
fn published_row_sums() {
    for (base, rows) in [
        (2_262_400, [36_199_972, 36_204_260]),   // Engram-27B
        (7_239_680, [115_837_464, 115_841_428]), // Engram-40B
    ] {
        let spec = Spec { bases: vec![base], rows: Some(rows.to_vec()), ..Spec::demo() };
        Keygen::new(&spec, None).unwrap();
    }
    // "Any base in 15,999,990..16,000,057 gives the same primes."
    for base in [15_999_990, 16_000_057] {
        v41(|spec| spec.bases = vec![base]).unwrap();
    }
}

fn digest(keygen: &Keygen, ids: &[Token]) -> (Vec<Vec<RowId>>, String) {
    let mut history = History::new(keygen, 0);
    let mut sha = Sha256::new();
    let mut first = Vec::new();
    for (pos, &id) in ids.iter().enumerate() {
        let window = keygen.push(&mut history, id, true);
        for table in 0..keygen.tables() {
            let mut rows = vec![0; keygen.columns()];
            keygen.token_rows(table, &window, &mut rows);
            rows.iter().for_each(|row| sha.update(row.to_le_bytes()));
            if pos == 0 {
                first.push(rows);
            }
        }
    }
    (first, sha.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The tiny geometries of the fixture generators. The figures are from the numpy references (`engram_ref.Geometry`,
/// `ple_ref.PleSpec`) on 200 ids `(37 i + 5) mod vocab`, of which 4 and 6 mod 13 are the image or EOS.
#[test]
fn tiny_bases_hash_as_in_the_reference() {
    let ids = |vocab: i32, special: Token| -> Vec<Token> {
        (0..200).map(|i| if matches!(i % 13, 4 | 6) { special } else { (37 * i + 5) % vocab }).collect()
    };
    let v41 = Spec {
        bases: vec![64],
        vocab: Some(1024),
        compressed_vocab: Some(509),
        token_map: None,
        pad_compressed: None,
        pad_raw: Some(2),
        dead_ids: vec![1008],
        rows: Some(vec![2946, 6076]),
        ..Spec::deepseek_v41()
    };
    let keygen = Keygen::new(&v41, Some(TokenMap::made_up(1024, 509).unwrap())).unwrap();
    assert_eq!(keygen.filler(), 72);
    assert_eq!(keygen.primes(0)[..4], [67, 71, 73, 79]);
    assert_eq!(keygen.primes(1)[23], 317);
    assert_eq!(keygen.multipliers(0), [14918718391777275, 942225936814583, 7000620529408573, 14403837413412623]);
    let (first, sha256) = digest(&keygen, &ids(1024, 1008));
    assert_eq!(first[0][..8], [26, 105, 167, 218, 362, 437, 535, 630]);
    assert_eq!(sha256, "fbc8d6806c2729422cc8720724007afad561b5f99519954e43d4a9fce33047d1");

    let qwen = Spec {
        bases: vec![101],
        vocab: Some(512),
        eos: Some(500),
        multipliers: None,
        rows: Some(vec![2206]),
        row_divisor: Some(8),
        parts: Some(8),
        ..Spec::qwen_ple()
    };
    let keygen = Keygen::new(&qwen, None).unwrap();
    assert_eq!(keygen.multipliers(0), [4295158889763781, 17440218147737327, 1270917961434445]);
    assert_eq!((keygen.table_rows(0), keygen.table_rows_padded(0)), (2206, 2208));
    let (first, sha256) = digest(&keygen, &ids(512, 500));
    assert_eq!(first[0][..8], [38, 121, 267, 414, 460, 619, 711, 822]);
    assert_eq!(sha256, "da9113c2af2278a936272857776733fc758872794a5f3a091d277a80908de29b");
}

/// The file that the specification proposes in 5.3, word for word.
#[test]
fn toml_as_proposed() {
    let text = r#"
dialect = "engram"
layer_ids=[1,14]
table_order=[1,14]
max_ngram=4
heads=8
bases=[16000000,16000000,16000000]
compressed_vocab=99092
pad_compressed=2
seed=0
layer_seed_stride=10007
token_map={file="token_map_v41_i32.bin", sha256="c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481"}
dead_ids=[129264]
rows=[384006168,384016682]
row={value_bytes=256, scale_bytes=8, layout="split", value="e4m3fn", scale="ue8m0/32"}
tables=[
  {file="model-00047-of-00048.safetensors", weight="layers.1.engram.embed.weight", scale="layers.1.engram.embed.scale"},
  {file="model-00048-of-00048.safetensors", weight="layers.14.engram.embed.weight", scale="layers.14.engram.embed.scale"},
]
deadline_layers=[1,14]
num_layers=40
"#;
    let spec = Spec::from_toml(text).unwrap();
    let keygen = Keygen::new(&spec, Some(map())).unwrap();
    let built_in = v41(|_| ()).unwrap();
    assert_eq!(keygen.fingerprint(), built_in.fingerprint());
    assert_eq!(keygen.primes(1), built_in.primes(1));
    assert_eq!(Spec::from_json(&spec.to_json()).unwrap(), spec);
}

#[test]
fn json_round_trip() {
    let full = Spec {
        table_order: Some(vec![14, 1]),
        pad_raw: Some(2),
        video_id: Some(5),
        layer_seed_stride: Some(u64::MAX), // JSON keeps all 64 bits
        multipliers: Some(vec![vec![(1 << 53) + 1; 4]; 2]),
        primes: Some(vec![vec![3; 24]; 2]),
        trust_overrides: true,
        parts: Some(3),
        row_divisor: Some(4),
        deadline_layers: Some(vec![0, 1]),
        row: Some(RowSpec { value_bytes: 1, ..RowSpec::default() }),
        tables: vec![TableSource { file: "a".into(), ..TableSource::default() }],
        ..Spec::deepseek_v41()
    };
    for spec in [Spec::qwen_ple(), Spec::deepseek_v41(), Spec::demo(), full] {
        assert_eq!(Spec::from_json(&spec.to_json()).unwrap(), spec);
    }
}

#[test]
fn unreadable_files() {
    for (text, says) in [
        ("dialect = \"peft\"", "peft"),
        ("dialect = \"engram\"", "missing field"),
        ("dialect = ", "TOML"),
        ("dialect = \"engram\"\nlayer_ids=[1]\nmax_ngram=3\nheads=1\nbases=[5]\ndead_id=[3]", "dead_id"),
    ] {
        let error = Spec::from_toml(text).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
    assert!(matches!(Spec::from_json("{"), Err(SpecError::Parse { format: "JSON", .. })));
}

#[test]
fn sizes_out_of_bounds() {
    let field = |result| match refused(result) {
        SpecError::Limit { field, .. } => field,
        other => panic!("{other}"),
    };
    assert_eq!(field(qwen(|s| s.max_ngram = 1)), "max_ngram");
    assert_eq!(field(qwen(|s| s.max_ngram = ORDERS_MAX + 2)), "max_ngram");
    assert_eq!(field(qwen(|s| s.heads = 0)), "heads");
    assert_eq!(field(qwen(|s| s.heads = HEADS_MAX + 1)), "heads");
    assert_eq!(field(qwen(|s| s.bases = vec![1])), "bases");
    assert_eq!(field(qwen(|s| s.bases = vec![BASE_MAX + 1])), "bases");
    assert_eq!(field(qwen(|s| s.layer_ids = vec![])), "layer_ids (their number)");
    assert_eq!(field(qwen(|s| s.layer_ids = (0..65).collect())), "layer_ids (their number)");
    assert_eq!(field(qwen(|s| s.vocab = Some(0))), "vocab");
    assert_eq!(field(qwen(|s| s.parts = Some(0))), "parts");
    assert_eq!(field(qwen(|s| s.row_divisor = Some(0))), "row_divisor");
    assert_eq!(field(v41(|s| s.compressed_vocab = Some((1 << 29) + 1))), "compressed_vocab");
    // The limits themselves are legal.
    let most = Spec { max_ngram: ORDERS_MAX + 1, heads: HEADS_MAX, bases: vec![BASE_MAX], rows: None, ..Spec::demo() };
    let keygen = Keygen::new(&most, None).unwrap();
    assert!(keygen.table_rows(1) < 1 << 49);
    assert_eq!(keygen.columns(), ORDERS_MAX * HEADS_MAX);
}

#[test]
fn lists_that_do_not_fit() {
    let field = |result| match refused(result) {
        SpecError::Length { field, .. } => field,
        other => panic!("{other}"),
    };
    assert_eq!(field(v41(|s| s.bases = vec![16_000_000; 2])), "bases");
    assert_eq!(field(qwen(|s| s.bases = vec![20_000_000, 30_000_000])), "bases");
    assert_eq!(field(v41(|s| s.rows = Some(vec![384_006_168]))), "rows");
    assert_eq!(field(v41(|s| s.deadline_layers = Some(vec![1]))), "deadline_layers");
    assert_eq!(field(v41(|s| s.tables = vec![TableSource::default()])), "tables");
    assert_eq!(field(qwen(|s| s.multipliers = Some(vec![]))), "multipliers");
    assert_eq!(field(qwen(|s| s.multipliers = Some(vec![vec![1; 2]]))), "multipliers (of a table)");
    assert_eq!(field(qwen(|s| s.primes = Some(vec![vec![3; 15]]))), "primes (of a table)");
    assert_eq!(refused(v41(|s| s.layer_ids = vec![1, 1])), SpecError::DuplicateLayer { layer: 1 });
    assert!(matches!(refused(v41(|s| s.table_order = Some(vec![1, 2]))), SpecError::TableOrder { .. }));
    assert!(matches!(
        refused(v41(|s| s.layer_ids = vec![1, 40])),
        SpecError::LayerBeyondModel { field: "layer_ids", layer: 40, num_layers: 40 }
    ));
    assert!(matches!(refused(v41(|s| s.deadline_layers = Some(vec![1, 99]))), SpecError::LayerBeyondModel { .. }));
}

#[test]
fn fields_missing_or_of_the_other_dialect() {
    let missing = |result| match refused(result) {
        SpecError::Missing { field, .. } => field,
        other => panic!("{other}"),
    };
    assert_eq!(missing(qwen(|s| s.vocab = None)), "vocab");
    assert_eq!(missing(qwen(|s| s.eos = None)), "eos");
    assert_eq!(missing(v41(|s| s.compressed_vocab = None)), "compressed_vocab");
    assert_eq!(missing(v41(|s| s.pad_compressed = None)), "pad_compressed");
    let foreign = |result| match refused(result) {
        SpecError::NotOfDialect { field, .. } => field,
        other => panic!("{other}"),
    };
    assert_eq!(foreign(v41(|s| s.eos = Some(1))), "eos");
    assert_eq!(foreign(qwen(|s| s.dead_ids = vec![248_056])), "dead_ids");
    assert_eq!(foreign(qwen(|s| s.compressed_vocab = Some(5))), "compressed_vocab");
}

#[test]
fn constants_that_differ_from_the_derived_ones() {
    // A wrong seed, vocabulary or base is noticed by what the checkpoint declares.
    assert!(matches!(refused(qwen(|s| s.seed = Some(0))), SpecError::MultiplierMismatch { layer: 1, index: 0, .. }));
    assert!(matches!(refused(qwen(|s| s.vocab = Some(248_319))), SpecError::MultiplierMismatch { .. }));
    assert_eq!(
        refused(v41(|s| s.rows = Some(vec![384_006_168, 384_006_168]))),
        SpecError::RowsMismatch { layer: 14, declared: 384_006_168, derived: 384_016_682 }
    );
    assert!(matches!(refused(v41(|s| s.bases = vec![16_000_058])), SpecError::RowsMismatch { layer: 1, .. }));
    // Layer 14 first takes the first primes.
    assert!(matches!(refused(v41(|s| s.table_order = Some(vec![14, 1]))), SpecError::RowsMismatch { .. }));

    let good = qwen(|_| ()).unwrap();
    let primes = |change: fn(&mut Vec<u64>)| {
        let mut primes = good.primes(0).to_vec();
        change(&mut primes);
        Some(vec![primes])
    };
    qwen(|s| s.primes = primes(|_| ())).unwrap();
    let error = refused(qwen(|s| s.primes = primes(|p| p[3] = 20_000_213)));
    assert_eq!(error, SpecError::PrimeMismatch { layer: 1, column: 3, declared: 20_000_213, derived: 20_000_047 });
    let error = refused(qwen(|s| s.primes = primes(|p| p[3] = 20_000_001)));
    assert_eq!(error, SpecError::NotPrime { layer: 1, column: 3, value: 20_000_001 });
    let error = refused(qwen(|s| s.primes = primes(|p| p[3] = p[0])));
    assert_eq!(error, SpecError::PrimeRepeated { layer: 1, column: 3, value: 20_000_003 });

    let multipliers = |index: usize, value| {
        let mut m = vec![23_703_573_157_769, 20_109_073_645_365, 8_052_911_324_071];
        m[index] = value;
        Some(vec![m])
    };
    let error = refused(qwen(|s| s.multipliers = multipliers(1, 20_109_073_645_366)));
    assert_eq!(error, SpecError::MultiplierEven { layer: 1, index: 1, value: 20_109_073_645_366 });
    let error = refused(qwen(|s| s.multipliers = multipliers(2, 1 << 46 | 1)));
    assert!(matches!(error, SpecError::ProductOverflow { index: 2, .. }));
    // Trusted constants are used, yet never such that engines would differ.
    let trusted = qwen(|s| (s.multipliers, s.trust_overrides) = (multipliers(1, 12_345), true)).unwrap();
    assert_eq!(trusted.multipliers(0)[1], 12_345);
    let error = refused(qwen(|s| (s.multipliers, s.trust_overrides) = (multipliers(1, 1 << 46 | 1), true)));
    assert!(matches!(error, SpecError::ProductOverflow { index: 1, .. }));
}

/// CASES 2.13: a map made from another revision of the tokenizer.
#[test]
fn maps_that_do_not_fit() {
    let spec = Spec::deepseek_v41();
    assert_eq!(refused(Keygen::new(&spec, None)), SpecError::MapMissing);
    let undeclared = Spec { token_map: None, ..spec.clone() };
    assert_eq!(refused(Keygen::new(&undeclared, None)), SpecError::MapMissing);
    let short = TokenMap::made_up(129_024, 99_092).unwrap();
    let error = refused(Keygen::new(&spec, Some(short.clone())));
    assert_eq!(error, SpecError::MapLength { field: "token_map.len", got: 129_024, want: 129_280 });
    let error = refused(Keygen::new(&undeclared, Some(short)));
    assert_eq!(error, SpecError::MapLength { field: "vocab", got: 129_024, want: 129_280 });
    let larger = TokenMap::made_up(129_280, 99_093).unwrap();
    assert_eq!(refused(Keygen::new(&spec, Some(larger))), SpecError::MapVocab { got: 99_093, want: 99_092 });
    assert!(matches!(
        refused(Keygen::new(&Spec::qwen_ple(), Some(map()))),
        SpecError::MapUnexpected { len: 129_280, .. }
    ));
}

#[test]
fn ids_outside_the_vocabulary() {
    let field = |result| match refused(result) {
        SpecError::IdOutOfRange { field, id, .. } => (field, id),
        other => panic!("{other}"),
    };
    assert_eq!(field(qwen(|s| s.eos = Some(248_320))), ("eos", 248_320));
    assert_eq!(field(v41(|s| s.pad_compressed = Some(99_092))), ("pad_compressed", 99_092));
    assert_eq!(field(v41(|s| (s.pad_compressed, s.pad_raw) = (None, Some(129_280)))), ("pad_raw", 129_280));
    assert_eq!(field(v41(|s| s.dead_ids = vec![129_280])), ("dead_ids", 129_280));
    assert_eq!(field(v41(|s| s.dead_ids = vec![-1])), ("dead_ids", -1));
    let error = refused(v41(|s| s.pad_raw = Some(2)));
    assert_eq!(error, SpecError::PadMismatch { raw: 2, mapped: 15_851, declared: 2 });
}

#[test]
fn the_face_refuses_illegal_ids() {
    let keygen = qwen(|_| ()).unwrap();
    for token in [0, 248_319] {
        assert_eq!(keygen.check(token), Ok(()));
    }
    for token in [-1, Token::MIN, 248_320, Token::MAX] {
        assert_eq!(keygen.check(token), Err(TokenOutOfRange { token, vocab: 248_320 }));
    }
}

#[test]
fn masked_ids_may_be_anything() {
    for keygen in [qwen(|_| ()).unwrap(), v41(|_| ()).unwrap()] {
        let mut history = History::new(&keygen, 0);
        let mut rows = vec![0; keygen.columns()];
        for token in [-1, Token::MIN, Token::MAX, 1_000_000, 5] {
            let window = keygen.push(&mut history, token, false);
            assert_eq!(window.dead(), keygen.spec().dialect == Dialect::Engram);
            keygen.token_rows(0, &window, &mut rows);
            assert!(rows.iter().all(|&row| row < keygen.table_rows(0)));
        }
    }
}

#[test]
#[should_panic(expected = "must have passed")]
fn a_live_token_that_was_not_checked() {
    let keygen = v41(|_| ()).unwrap();
    keygen.push(&mut History::new(&keygen, 0), 129_280, true);
}

#[test]
#[should_panic(expected = "another keygen")]
fn a_history_of_another_keygen() {
    let mut history = History::new(&v41(|_| ()).unwrap(), 0);
    qwen(|_| ()).unwrap().push(&mut history, 5, true);
}

#[test]
fn fingerprints_tell_specs_and_maps_apart() {
    let base = v41(|_| ()).unwrap().fingerprint();
    assert_eq!(base, v41(|s| (s.name, s.rows, s.vocab) = (String::new(), None, None)).unwrap().fingerprint());
    let mut other_map = map().ids().to_vec();
    other_map.swap(0, 1);
    let mut others = [
        v41(|s| s.pad_compressed = Some(3)).unwrap(),
        v41(|s| s.dead_ids = vec![]).unwrap(),
        v41(|s| s.seed = Some(1)).unwrap(),
        Keygen::new(&Spec::deepseek_v41(), Some(TokenMap::new(other_map).unwrap())).unwrap(),
        qwen(|_| ()).unwrap(),
    ]
    .iter()
    .map(Keygen::fingerprint)
    .collect::<Vec<_>>();
    others.push(base);
    others.sort_unstable();
    others.dedup();
    assert_eq!(others.len(), 6);
}

#[test]
fn seeding() {
    let keygen = qwen(|_| ()).unwrap();
    let mut history = History::new(&keygen, 4);
    keygen.push(&mut history, 9, true);
    let before = history.clone();
    let short = |start_pos, need, got| Err(SeedError::TooShort { start_pos, need, got });
    assert_eq!(history.seed(&keygen, &[5], None, 100), short(100, 2, 1));
    assert_eq!(history.seed(&keygen, &[], None, 1), short(1, 1, 0));
    assert_eq!(history.seed(&keygen, &[1, 2], Some(&[true]), 2), Err(SeedError::Mask { live: 1, ids: 2 }));
    let illegal = TokenOutOfRange { token: -1, vocab: 248_320 };
    assert_eq!(history.seed(&keygen, &[5, -1, 6], None, 100), Err(SeedError::Token(illegal)));
    assert_eq!(history, before, "a refusal changes nothing");

    // Older ids are kept for rollback as far as the tail and their legality go, and matter in no other way.
    for (ids, start_pos, kept, rollback_max) in [
        (&[1, 2, 3, 4, 5, 6][..], 100, 4, 2),
        (&[1, -1, 3, 4, 5][..], 100, 3, 1),
        (&[-1, 4, 5][..], 100, 2, 0),
        (&[1, 2, 3, 4, 5][..], 3, 3, 3), // what would lie before position 0 is ignored
        (&[1, 2][..], 0, 0, 0),
        (&[1, 2][..], 2, 2, 2),
    ] {
        history.seed(&keygen, ids, None, start_pos).unwrap();
        assert_eq!((history.position(), history.kept()), (start_pos, kept), "{ids:?}");
        assert_eq!(history.rollback_max(), rollback_max, "{ids:?}");
    }
    // Masked ids are not validated.
    history.seed(&keygen, &[-1, 5], Some(&[false, true]), 100).unwrap();
    assert_eq!(keygen.push(&mut history, 7, true).ids(), [7, 5, -1]);
    history.clear();
    assert_eq!((history.position(), history.kept()), (0, 0));
}

#[test]
fn rollback_beyond_the_tail() {
    let keygen = qwen(|_| ()).unwrap();
    let mut history = History::new(&keygen, 8);
    for id in 0..20 {
        keygen.push(&mut history, id, true);
    }
    assert_eq!(history.rollback(7), Err(HistoryUnavailable { positions: 7, position: 20, rollback_max: 6 }));
    assert_eq!(history.rollback(6), Ok(()));
    assert_eq!(keygen.push(&mut history, 99, true).ids(), [99, 13, 12]);
    assert!(history.rollback(u64::MAX).is_err());
}

#[test]
fn importing() {
    let keygen = qwen(|_| ()).unwrap();
    let mut history = History::new(&keygen, 8);
    let bytes = history.export();
    let other = v41(|_| ()).unwrap();
    let error = History::new(&other, 8).import(&bytes).unwrap_err();
    assert_eq!(error, ImportError::OtherKeygen { found: keygen.fingerprint(), want: other.fingerprint() });
    let mut later = bytes.clone();
    later[4] = 2;
    assert_eq!(history.import(&later), Err(ImportError::Version { found: 2, known: 1 }));
    assert!(matches!(history.import(&[]), Err(ImportError::Malformed { len: 0, .. })));
    assert!(matches!(history.import(&[0; 64]), Err(ImportError::Malformed { .. })));
}

#[test]
fn scaling_has_ends() {
    let spec = Spec::qwen_ple();
    assert_eq!(spec.scaled_to_rows(u64::MAX), spec, "large enough already");
    let least = spec.scaled_to_rows(0);
    assert_eq!(least.rows, Some(vec![2 + 3 + 5 + 7 + 11 + 13 + 17 + 19 + 23 + 29 + 31 + 37 + 41 + 43 + 47 + 53]));
    Keygen::new(&least, None).unwrap();
    let invalid = Spec::empty(Dialect::Engram);
    assert_eq!(invalid.scaled_to_rows(5), invalid);
}
