//! What opening a model refuses: parts that are each well-formed and do not belong together.

use engram_sched::{
    Dialect, Model, ModelOptions, OpenError, OpenOptions, Scheduler, Spec, SpecError, SynthLayout, Synthetic,
    TokenMapFileError, synth,
};
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Makes a tiny table in `dir`.
fn table(dir: &Path, spec: Spec, layout: SynthLayout) -> PathBuf {
    let out = dir.join("table");
    let plan = Synthetic::new(spec, 1 << 20).layout(layout).plan(&out).unwrap();
    synth(&plan, &mut |_, _| ControlFlow::Continue(())).unwrap();
    out
}

/// The error's message, which must name the table's folder or file.
fn refusal(path: &Path, options: &ModelOptions) -> OpenError {
    let error = Model::open(path, options).unwrap_err();
    assert!(error.to_string().len() > 20, "{error}");
    error
}

/// Replaces the only place of `old` in any file of the folder.
fn replace(folder: &Path, suffix: &str, old: &[u8], new: &[u8]) {
    let mut places = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if !path.to_str().unwrap().ends_with(suffix) {
            continue;
        }
        let mut bytes = fs::read(&path).unwrap();
        while let Some(at) = bytes.windows(old.len()).position(|window| window == old) {
            bytes.splice(at..at + old.len(), new.iter().copied());
            places += 1;
        }
        fs::write(&path, bytes).unwrap();
    }
    assert_eq!(places, 1, "one place of {old:?} in *{suffix}");
}

#[test]
fn a_multiplier_of_the_checkpoint_that_differs_from_the_derived_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = table(dir.path(), Spec::qwen_ple(), SynthLayout::Safetensors);
    let (right, wrong) = (23_703_573_157_769u64, 23_703_573_157_771u64);
    replace(&path, ".safetensors", &right.to_le_bytes(), &wrong.to_le_bytes());
    let error = refusal(&path, &ModelOptions::default());
    let text = error.to_string();
    assert!(text.contains("23703573157769") && text.contains("23703573157771"), "{text}");
    // With a spec given by the user the checkpoint's constants are compared all the same.
    let keygen_of_table = {
        let plan = Synthetic::new(Spec::qwen_ple(), 1 << 20).plan("unused").unwrap();
        Spec::from_json(plan.spec_json.as_deref().unwrap()).unwrap()
    };
    let options = ModelOptions { spec: Some(keygen_of_table), ..ModelOptions::default() };
    let error = refusal(&path, &options);
    assert!(matches!(error, OpenError::Constant { what: "multiplier", index: 0, .. }), "{error}");
}

#[test]
fn rows_that_the_spec_does_not_address() {
    let dir = tempfile::tempdir().unwrap();
    let path = table(dir.path(), Spec::qwen_ple(), SynthLayout::Packed);
    let options = ModelOptions { spec: Some(Spec::qwen_ple()), ..ModelOptions::default() };
    let error = refusal(&path, &options);
    assert!(matches!(error, OpenError::Rows { layer: 1, padded: 320_001_536, .. }), "{error}");
    let error = Scheduler::open(&path, &OpenOptions { model: options, ..OpenOptions::default() }).unwrap_err();
    assert!(matches!(error, OpenError::Rows { .. }), "{error}");
}

#[test]
fn a_layer_without_a_table() {
    let dir = tempfile::tempdir().unwrap();
    let path = table(dir.path(), Spec::qwen_ple(), SynthLayout::Packed);
    let options = ModelOptions {
        spec: Some(Spec { layer_ids: vec![2], ..Spec::qwen_ple().scaled_to_rows(6000) }),
        ..ModelOptions::default()
    };
    let error = refusal(&path, &options);
    assert!(matches!(&error, OpenError::LayerMissing { layer: 2, found, .. } if found == &[1]), "{error}");
}

#[test]
fn a_configuration_whose_rows_are_not_the_sum_of_its_primes() {
    let dir = tempfile::tempdir().unwrap();
    let path = table(dir.path(), Spec::deepseek_v41(), SynthLayout::Safetensors);
    let config = fs::read_to_string(path.join("config.json")).unwrap();
    let rows = config.split("\"engram_vocab_size\"").nth(1).unwrap();
    let base: u64 = rows.trim_start_matches(": ").split([',', '\n']).next().unwrap().trim().parse().unwrap();
    // The base of the primes moves, the declared rows stay.
    let moved =
        config.replace(&format!("\"engram_vocab_size\": {base}"), &format!("\"engram_vocab_size\": {}", base + 50));
    assert_ne!(moved, config);
    fs::write(path.join("config.json"), moved).unwrap();
    let error = refusal(&path, &ModelOptions::default());
    assert!(matches!(&error, OpenError::Spec { source: SpecError::RowsMismatch { .. }, .. }), "{error}");
}

#[test]
fn token_maps_that_are_missing_or_another_models() {
    let dir = tempfile::tempdir().unwrap();
    let path = table(dir.path(), Spec::deepseek_v41(), SynthLayout::Safetensors);
    // A synthetic table does with a stand-in, and says so; a checkpoint of a real model does not.
    let model = Model::open(&path, &ModelOptions::default()).unwrap();
    assert!(model.notes().iter().any(|note| note.contains("made-up")), "{:?}", model.notes());
    fs::remove_file(path.join("engram-sched.json")).unwrap();
    let error = refusal(&path, &ModelOptions::default());
    assert!(matches!(error, OpenError::NoTokenMap { .. }), "{error}");

    let map = dir.path().join("map.bin");
    let options = ModelOptions { token_map: Some(map.clone()), ..ModelOptions::default() };
    let write = |ids: &[i32]| fs::write(&map, ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    write(&[0, 1, 2]);
    let error = refusal(&path, &options);
    assert!(matches!(error, OpenError::TokenMap(TokenMapFileError::Length { got: 3, want: 129_280, .. })), "{error}");
    // Right sizes, other content: the digest of the released vocabulary is known.
    write(&(0..129_280).map(|i| (7919 * i + 13) % 99_092).collect::<Vec<i32>>());
    let error = refusal(&path, &options);
    assert!(matches!(error, OpenError::TokenMap(TokenMapFileError::Sha256 { .. })), "{error}");
}

#[test]
fn a_table_without_a_spec() {
    let dir = tempfile::tempdir().unwrap();
    let path = table(dir.path(), Spec::qwen_ple(), SynthLayout::Shards);
    fs::remove_file(path.join("engram-sched.json")).unwrap();
    let error = refusal(&path, &ModelOptions::default());
    assert!(matches!(error, OpenError::NoSpec { .. }), "{error}");
    let options = ModelOptions { spec: Some(Spec::empty(Dialect::QwenPle)), ..ModelOptions::default() };
    assert!(matches!(refusal(&path, &options), OpenError::Spec { .. }));
}

#[test]
fn one_model_serves_several_schedulers_and_clones_are_handles() {
    let dir = tempfile::tempdir().unwrap();
    let path = table(dir.path(), Spec::deepseek_v41(), SynthLayout::Packed);
    let model = Model::open(&path, &ModelOptions::default()).unwrap();
    let first = Scheduler::start(&model, &Default::default()).unwrap();
    let second = Scheduler::open(&path, &OpenOptions::default()).unwrap();
    let handle = first.clone();
    let request = first.begin(Default::default()).unwrap();
    handle.on_tokens(request, 0, &[5, 6, 7], None).unwrap();
    for layer in [1, 14] {
        let rows = handle.await_layer(request).wait().unwrap();
        assert_eq!((rows.layer().0, rows.shape()), (layer, [3, 24, 264]));
    }
    assert!(second.on_token(second.begin(Default::default()).unwrap(), 129_280).is_err());
    assert!(format!("{first:?}").contains("deepseek"));
}
