//! `rows` and the usage of the command line: golden row ids, streams, refusals and exit statuses.

mod cli;

use cli::{Ran, run};
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};

fn cache() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("keygen/tests/golden").join(name)
}

/// The lines of a run that went well.
fn lines(ran: &Ran) -> Vec<Value> {
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn joined(ids: &[Value]) -> String {
    ids.iter().map(Value::to_string).collect::<Vec<_>>().join(",")
}

/// Runs every case of a golden file whose ids are legal; gives the number of tokens compared.
fn golden_cases(file: &str, model: &str, map: Option<&Path>, history_key: &str) -> usize {
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(golden(file)).unwrap()).unwrap();
    let mut compared = 0;
    for case in golden["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        // Ids that engines hash and this product refuses.
        if name == "oov_overflow" || case.get("history_dead").is_some() && case.get(history_key).is_none() {
            continue;
        }
        let tokens = case.get("tokens").or(case.get("raw_ids")).unwrap().as_array().unwrap();
        let history = case[history_key].as_array().map(|ids| joined(ids)).unwrap_or_default();
        let mut args = vec!["--quiet".to_owned(), "rows".into(), "--model".into(), model.into()];
        if let Some(map) = map {
            args.extend(["--token-map".into(), map.to_str().unwrap().into()]);
        }
        if !history.is_empty() {
            args.extend(["--history".into(), history]);
        }
        args.extend(tokens.iter().map(Value::to_string));
        let lines = lines(&run(cache(), &args.iter().map(String::as_str).collect::<Vec<_>>()));
        assert_eq!(lines.len(), tokens.len(), "{name}");
        for (pos, (line, want)) in lines.iter().zip(case["rowids"].as_array().unwrap()).enumerate() {
            assert_eq!((line["pos"].as_u64(), &line["token"]), (Some(pos as u64), &tokens[pos]), "{name}");
            let got: Vec<&Value> = line["layers"].as_array().unwrap().iter().map(|layer| &layer["rows"]).collect();
            // One layer: a list of rows; several: a list for each.
            let want: Vec<&Value> =
                if want[0].is_array() { want.as_array().unwrap().iter().collect() } else { vec![want] };
            assert_eq!(got, want, "{name}, token {pos}");
            compared += 1;
        }
    }
    compared
}

#[test]
fn golden_rows_of_qwen() {
    if !golden("").exists() {
        return println!("SKIP: golden_rows_of_qwen: keygen/tests/golden is not in this package");
    }
    let compared = golden_cases("golden_qwen38_ple.json", "qwen-ple", None, "history");
    assert!(compared > 60, "{compared}");
}

#[test]
fn golden_rows_of_deepseek() {
    if !golden("").exists() {
        return println!("SKIP: golden_rows_of_deepseek: keygen/tests/golden is not in this package");
    }
    let map = golden("token_map_v41_i32.bin");
    let compared = golden_cases("golden_v41_real.json", "deepseek-v41", Some(&map), "history_raw_oldest_first");
    assert!(compared >= 60, "{compared}");
}

#[test]
fn layers_are_decoder_indices_and_dead_positions_are_marked() {
    let map = golden("token_map_v41_i32.bin");
    if !map.exists() {
        return println!("SKIP: layers_are_decoder_indices: keygen/tests/golden is not in this package");
    }
    let args = ["-q", "rows", "--model", "deepseek-v41", "--token-map", map.to_str().unwrap(), "0", "129264"];
    let lines = lines(&run(cache(), &args));
    assert_eq!((lines[0]["layers"][0]["layer"].as_u64(), lines[0]["layers"][1]["layer"].as_u64()), (Some(1), Some(14)));
    assert_eq!(lines[0]["layers"][0]["rows"][0], 5_702_652);
    assert_eq!((lines[0].get("dead"), &lines[1]["dead"]), (None, &Value::Bool(true)));
}

#[test]
fn tokens_come_from_files_plain_or_gzip_and_from_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = [9707u32, 11, 1879].iter().flat_map(|id| id.to_le_bytes()).collect();
    let (plain, gz) = (dir.path().join("t.u32"), dir.path().join("t.u32.gz"));
    std::fs::write(&plain, &bytes).unwrap();
    let mut encoder = flate2::write::GzEncoder::new(std::fs::File::create(&gz).unwrap(), flate2::Compression::fast());
    encoder.write_all(&bytes).unwrap();
    encoder.finish().unwrap();
    let want = run(cache(), &["rows", "--model", "qwen-ple", "9707", "11", "1879"]).stdout;
    assert_eq!(want.lines().count(), 3);
    for path in [&plain, &gz] {
        assert_eq!(run(cache(), &["rows", "--model", "qwen-ple", "--tokens", path.to_str().unwrap()]).stdout, want);
    }
    let mut child = cli::command(cache(), &["rows", "--model", "qwen-ple", "--tokens", "-"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    assert_eq!(cli::said(child.wait_with_output().unwrap()).stdout, want);

    std::fs::write(&plain, &bytes[..10]).unwrap();
    let ran = run(cache(), &["rows", "--model", "qwen-ple", "--tokens", plain.to_str().unwrap()]);
    assert_eq!(ran.status, Some(1));
    assert!(ran.stderr.contains("whole number of u32") && ran.stdout.is_empty(), "{ran:?}");
}

#[test]
fn a_spec_file_is_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.toml");
    let spec =
        "dialect = \"qwen_ple\"\nlayer_ids = [3]\nmax_ngram = 2\nheads = 2\nbases = [11]\nvocab = 512\neos = 500\n";
    std::fs::write(&path, spec).unwrap();
    let lines = lines(&run(cache(), &["rows", "--model", path.to_str().unwrap(), "5"]));
    assert_eq!(lines[0]["layers"][0]["layer"], 3);
    assert_eq!(lines[0]["layers"][0]["rows"].as_array().unwrap().len(), 2);
    std::fs::write(&path, format!("{spec}dead_idds = [1]\n")).unwrap();
    let ran = run(cache(), &["rows", "--model", path.to_str().unwrap(), "5"]);
    assert_eq!(ran.status, Some(1));
    assert!(ran.stderr.contains("tiny.toml") && ran.stderr.contains("dead_idds"), "{ran:?}");
}

#[test]
fn wrong_usage_exits_2_and_prints_no_row() {
    let usage: &[&[&str]] = &[
        &[],
        &["rows"],
        &["rows", "--model", "qwen-ple"],
        &["rows", "--model", "no-such-model", "1"],
        &["rows", "--model", "qwen-ple", "-5"],
        &["rows", "--model", "qwen-ple", "1", "248320"],
        &["rows", "--model", "qwen-ple", "99999999999"],
        &["rows", "--model", "qwen-ple", "--history", "-1,4", "1"],
        &["rows", "--model", "qwen-ple", "x"],
        &["bench", "--step-time", "5 parsecs"],
        &["bench", "--requests", "0"],
        &["bench", "--duration", "0", "--rounds", "1"],
        &["bench", "--in-flight", "0"],
        &["bench", "--in-flight", "4097"],
        &["bench", "--bytes", "100GiB"],
        &["bench", "--backend", "mmap", "--direct", "require"],
        &["verify", "x", "--backend", "mmap", "--direct", "require"],
        &["verify", "x", "--sample", "1"],
        &["inspect", "x", "--row-bytes", "0", "--rows-per-shard", "1"],
        &["synth", "--model", "qwen-ple", "--bytes", "1M", "--seed", "1", "--out", "x"],
        &["synth", "--model", "qwen-ple", "--bytes", "100GiB", "--out", "x"],
        &["synth", "--model", "qwen-ple", "--bytes", "1Q", "--out", "x"],
        &["synth", "--model", "qwen-ple", "--bytes", "1M", "--layout", "tar", "--out", "x"],
        &["token-map", "--out", "x"],
        &["inspect"],
    ];
    for args in usage {
        let ran = run(cache(), args);
        assert_eq!(ran.status, Some(2), "{args:?}: {ran:?}");
        assert!(ran.stdout.is_empty() && !ran.stderr.is_empty(), "{args:?}: {ran:?}");
    }
}

#[test]
fn what_is_missing_is_named_with_a_remedy_and_exits_1() {
    let failures: &[(&[&str], &[&str])] = &[
        (&["rows", "--model", "deepseek-v41", "1"], &["token map", "--token-map"]),
        (&["rows", "--model", "missing.toml", "1"], &["missing.toml"]),
        (&["rows", "--model", "qwen-ple", "--tokens", "missing.u32"], &["missing.u32"]),
        (&["inspect", "missing-folder"], &["missing-folder"]),
        (&["verify", "missing-folder"], &["missing-folder"]),
        (&["bench", "missing-folder"], &["missing-folder"]),
        (&["token-map", "--tokenizer", "missing.json", "--out", "never"], &["missing.json"]),
    ];
    for (args, words) in failures {
        let ran = run(cache(), args);
        assert_eq!(ran.status, Some(1), "{args:?}: {ran:?}");
        for word in *words {
            assert!(ran.stderr.contains(word), "{args:?}: no {word:?} in {}", ran.stderr);
        }
    }
    assert!(!Path::new("never").exists());
}

#[test]
fn ctrl_c_ends_a_wait_for_tokens() {
    let mut child = cli::command(cache(), &["rows", "--model", "qwen-ple", "--tokens", "-"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let stdin = child.stdin.take();
    std::thread::sleep(std::time::Duration::from_millis(700));
    assert!(std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let ran = cli::said(child.wait_with_output().unwrap());
    drop(stdin);
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(130), ""), "{}", ran.stderr);
}

#[test]
fn texts_name_the_cause_in_the_words_of_the_command_line() {
    let ran = run(cache(), &["rows", "--model", "qwen-ple", "248320"]);
    assert!(ran.stderr.contains("legal ids are 0 to 248319"), "{ran:?}");
    let ran = run(cache(), &["rows", "--model", "qwen-ple", "--tokens", "-"]);
    assert!(ran.stderr.contains("standard input: no tokens"), "{ran:?}");
    let ran = run(cache(), &["synth", "--model", "qwen-ple", "--bytes", "100GiB", "--out", "x"]);
    assert!(ran.stderr.contains("47.68 GiB") && ran.stderr.contains("--sparse-full"), "{ran:?}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    use std::process::Stdio;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("many.u32");
    std::fs::write(&path, [1, 0, 0, 0].repeat(20_000)).unwrap();
    let args = ["rows", "--model", "qwen-ple", "--tokens", path.to_str().unwrap()];
    let mut child = cli::command(cache(), &args).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let ran = cli::said(child.wait_with_output().unwrap());
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(0), ""));
}
