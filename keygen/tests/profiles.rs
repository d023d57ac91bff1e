//! Engines' profiles: what they hand over at image positions gives the rows of what the reference hashes there.
//!
//! The figures of `golden/profiles.json` come from an independent numpy implementation (the file says how), never from this crate.

use engram_keygen::{History, Keygen, Profile, RowId, Spec, Token, TokenMap};
use serde_json::Value;

const PROFILES: [Profile; 3] = [Profile::Reference, Profile::Sglang, Profile::LlamaCpp];
const SHIFTED: [Token; 4] = [1_000_000, 1_234_567, 1_074_741_823, Token::MAX];

fn figures() -> Value {
    serde_json::from_str(include_str!("golden/profiles.json")).unwrap()
}

fn v41_map() -> TokenMap {
    let bytes: &[u8] = include_bytes!("golden/token_map_v41_i32.bin");
    TokenMap::new(bytes.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b)).collect()).unwrap()
}

fn qwen(image: Option<Token>) -> Keygen {
    Keygen::new(&Spec { image_id: image, ..Spec::qwen_ple() }, None).unwrap()
}

fn v41() -> Keygen {
    Keygen::new(&Spec::deepseek_v41(), Some(v41_map())).unwrap()
}

fn rows_of(keygen: &Keygen, profile: Profile, fed: &[(Token, bool)]) -> Vec<Vec<Vec<RowId>>> {
    let mut history = History::new(keygen, History::TAIL_DEFAULT);
    let mut rows = Vec::new();
    for (pos, &(token, live)) in fed.iter().enumerate() {
        history.append(keygen.id_for(profile, token, live).unwrap());
        let window = keygen.window_at(&history, pos as u64).unwrap();
        let of_table = |table| {
            let mut out = vec![0; keygen.columns()];
            keygen.token_rows(table, &window, &mut out);
            out
        };
        rows.push((0..keygen.tables()).map(of_table).collect());
    }
    rows
}

/// Feeds every feed of a model and compares every row; returns how many feeds there were of each profile.
fn compare(model: &Value, keygen_of: impl Fn(&str) -> Keygen) -> [usize; 3] {
    let mut feeds = [0; 3];
    for feed in model["feeds"].as_array().unwrap() {
        let profile = match feed["profile"].as_str().unwrap() {
            "reference" => Profile::Reference,
            "sglang" => Profile::Sglang,
            "llama_cpp" => Profile::LlamaCpp,
            other => panic!("no profile {other}"),
        };
        let keygen = keygen_of(feed["spec"].as_str().unwrap());
        let fed: Vec<(Token, bool)> = serde_json::from_value(feed["fed"].clone()).unwrap();
        let sequence = &model["sequences"][feed["sequence"].as_str().unwrap()];
        let want: Vec<Vec<Vec<RowId>>> = serde_json::from_value(sequence["rows"].clone()).unwrap();
        assert_eq!(rows_of(&keygen, profile, &fed), want, "{feed}");
        // As the ids before a request's start they give the same next row.
        let (ids, live): (Vec<Token>, Vec<bool>) = fed.iter().copied().unzip();
        let mut seeded = History::new(&keygen, 0);
        seeded.seed_for(&keygen, profile, &ids, Some(&live), ids.len() as u64).unwrap();
        let mut streamed = History::new(&keygen, 0);
        fed.iter().for_each(|&(token, live)| streamed.append(keygen.id_for(profile, token, live).unwrap()));
        assert_eq!(keygen.push(&mut seeded, 11, true), keygen.push(&mut streamed, 11, true), "{feed}");
        feeds[profile as usize] += 1;
    }
    feeds
}

#[test]
fn qwen_hashes_the_placeholder_whatever_the_engine_puts_there() {
    let keygens = [qwen(Some(248_056)), qwen(None)];
    let feeds = compare(&figures()["qwen"], |spec| keygens[usize::from(spec == "no_image")].clone());
    assert_eq!(feeds, [8, 17, 12]);
}

#[test]
fn v41_marks_the_span_dead_whatever_the_engine_puts_there() {
    let keygen = v41();
    assert_eq!(compare(&figures()["v41"], |_| keygen.clone()), [6, 9, 6]);
    for live in [true, false] {
        for id in SHIFTED {
            let mut history = History::new(&keygen, 0);
            history.append(keygen.id_for(Profile::Sglang, id, live).unwrap());
            assert!(keygen.window_at(&history, 0).unwrap().dead(), "{id}, live {live}");
        }
    }
}

#[test]
fn live_ids_outside_the_vocabulary_are_refused_unless_they_are_placeholders() {
    for keygen in [qwen(Some(248_056)), qwen(None), v41()] {
        let vocab = keygen.vocab() as Token;
        for profile in PROFILES {
            for id in [-1, Token::MIN, vocab, 999_999] {
                assert_eq!(keygen.id_for(profile, id, true).unwrap_err().token, id, "{profile:?}");
            }
            for id in SHIFTED {
                let known = profile == Profile::Sglang && keygen.spec().image_id.is_some();
                assert_eq!(keygen.id_for(profile, id, true).is_ok(), known, "{profile:?}, {id}");
            }
            for id in [0, vocab - 1] {
                assert_eq!(keygen.id_for(profile, id, true), keygen.id(id, true), "{profile:?}: an ordinary id");
            }
            for id in [-1, Token::MIN, Token::MAX, vocab, 0] {
                assert!(keygen.id_for(profile, id, false).is_ok(), "masked ids are not validated");
            }
        }
    }
}

#[test]
fn models_without_images() {
    // A text-only V4.1 masks nothing: its image id is an ordinary one, and so is what stands for it.
    let text_only = Keygen::new(&Spec { dead_ids: vec![], ..Spec::deepseek_v41() }, Some(v41_map())).unwrap();
    let ordinary = text_only.id(129_264, true).unwrap();
    assert_eq!(text_only.id_for(Profile::Sglang, 1_234_567, true).unwrap(), ordinary);
    assert_ne!(Ok(ordinary), text_only.id(129_264, false));
    // An image id that is none of the vocabulary's stands for nothing.
    let foreign =
        Spec { image_id: Some(1008), vocab: Some(512), eos: Some(500), multipliers: None, ..Spec::qwen_ple() };
    let foreign = Keygen::new(&foreign.scaled_to_rows(4000), None).unwrap();
    assert!(foreign.id_for(Profile::Sglang, 1_234_567, true).is_err());
    assert_eq!(foreign.id_for(Profile::LlamaCpp, 7, false), foreign.id(500, true));
}
