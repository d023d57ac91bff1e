//! `synth`, `inspect`, `verify` and `token-map` on tiny tables: every layout and model, damage, Ctrl-C.

mod cli;

use cli::{done, names, run};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Makes a table and gives its path.
fn table(dir: &Path, model: &str, layout: &str, more: &[&str]) -> String {
    let out = dir.join(format!("{model}-{layout}")).to_str().unwrap().to_owned();
    let mut args = vec!["--json", "--quiet", "synth", "--model", model, "--layout", layout, "--out", &out];
    args.extend(more);
    let summary = json(&done(dir, &args).stdout);
    assert!(summary["rows_written"].as_u64().unwrap() > 0);
    out
}

#[test]
fn every_layout_of_every_model_verifies() {
    let dir = tempfile::tempdir().unwrap();
    let cases = [
        ("qwen-ple", "packed", 160, 1),
        ("qwen-ple", "shards", 160, 1),
        ("qwen-ple", "safetensors", 160, 1),
        ("deepseek-v41", "packed", 264, 1),
        ("deepseek-v41", "shards", 264, 1),
        ("deepseek-v41", "safetensors", 264, 2),
        ("demo", "packed", 256, 1),
        ("demo", "shards", 256, 1),
    ];
    for (model, layout, row_bytes, extents) in cases {
        let out = table(dir.path(), model, layout, &["--bytes", "2M"]);
        let inspected = json(&done(dir.path(), &["--json", "inspect", &out]).stdout);
        assert_eq!(inspected["synthetic"], true, "{inspected}");
        assert_eq!(inspected["refused"].as_array().unwrap().len(), 0, "{inspected}");
        assert_eq!(inspected["tables"][0]["row_bytes"], row_bytes, "{inspected}");
        assert_eq!(inspected["tables"][0]["extents_per_row"], extents, "{inspected}");
        assert!(inspected["memory"]["total_bytes"].as_u64().unwrap() > 0);

        let verified = json(&done(dir.path(), &["--json", "--quiet", "verify", &out, "--tokens", "256"]).stdout);
        assert_eq!(verified["ok"], true, "{verified}");
        for (table, inspected) in
            verified["tables"].as_array().unwrap().iter().zip(inspected["tables"].as_array().unwrap())
        {
            assert_eq!(table["checked"], inspected["rows"], "{model} {layout}: every row");
            assert_eq!((&table["self_proofs"], &table["mismatches"]), (&table["checked"], &Value::from(0)));
        }
        assert!(verified["tokens"]["checked"].as_u64().unwrap() >= 256 * 16);
    }
}

#[test]
fn backends_agree_and_a_sample_has_its_size() {
    let dir = tempfile::tempdir().unwrap();
    let out = table(dir.path(), "qwen-ple", "packed", &["--bytes", "2M"]);
    for backend in ["pread", "mmap", "auto"] {
        for direct in ["auto", "off"] {
            let args = ["--json", "-q", "verify", &out, "--sample", "500", "--backend", backend, "--direct", direct];
            let verified = json(&done(dir.path(), &args).stdout);
            let checked = verified["tables"][0]["checked"].as_u64().unwrap();
            assert!((480..=500).contains(&checked), "{verified}");
        }
    }
}

#[test]
fn qwen_in_bfloat16_has_rows_of_twice_the_size() {
    let dir = tempfile::tempdir().unwrap();
    let out = table(dir.path(), "qwen-ple", "safetensors", &["--bytes", "2M", "--row-bytes", "320"]);
    let inspected = json(&done(dir.path(), &["--json", "inspect", &out]).stdout);
    assert_eq!(inspected["tables"][0]["row_bytes"], 320);
    done(dir.path(), &["-q", "verify", &out, "--tokens", "64"]);
}

#[test]
fn the_full_geometry_is_sparse_and_its_written_rows_verify() {
    let dir = tempfile::tempdir().unwrap();
    for (model, layout) in [("qwen-ple", "safetensors"), ("deepseek-v41", "packed")] {
        let out = table(dir.path(), model, layout, &["--sparse-full"]);
        let inspected = json(&done(dir.path(), &["--json", "-q", "inspect", &out]).stdout);
        assert!(inspected["bytes"].as_u64().unwrap() > 50_000_000_000, "{inspected}");
        // It can be served, but not timed.
        assert_eq!(inspected["refused"].as_array().unwrap().len(), 1, "{inspected}");
        let verified = json(&done(dir.path(), &["--json", "-q", "verify", &out, "--tokens", "64"]).stdout);
        let proofs = verified["tables"][0]["self_proofs"].as_u64().unwrap();
        assert!(proofs >= 1900, "{verified}");
    }
}

#[test]
fn a_damaged_row_is_found_and_named() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let out = table(dir.path(), "qwen-ple", "packed", &["--bytes", "1M"]);
    let file = std::fs::OpenOptions::new().write(true).open(Path::new(&out).join("layer_1.bin")).unwrap();
    file.write_all_at(&[0xff, 0xff], 1234 * 160 + 40).unwrap();
    let ran = run(dir.path(), &["-q", "verify", &out, "--tokens", "64"]);
    assert_eq!(ran.status, Some(1));
    assert!(ran.stderr.contains("layer 1, row 1234"), "{}", ran.stderr);

    file.set_len(1000).unwrap();
    let ran = run(dir.path(), &["-q", "verify", &out]);
    assert_eq!(ran.status, Some(1));
    assert!(ran.stderr.contains("layer_1.bin"), "{}", ran.stderr);
}

#[test]
fn raw_shards_without_a_manifest_need_their_geometry() {
    let dir = tempfile::tempdir().unwrap();
    let out = table(dir.path(), "qwen-ple", "shards", &["--bytes", "2M"]);
    let spec = Path::new(&out).join("engram-sched.json");
    let manifest = json(&std::fs::read_to_string(&spec).unwrap());
    let scaled = dir.path().join("scaled.json");
    std::fs::write(&scaled, manifest["spec"].as_str().unwrap()).unwrap();
    let rows_per_shard =
        json(&std::fs::read_to_string(Path::new(&out).join("manifest.json")).unwrap())["layout"]["rows_per_shard"]
            .to_string();
    std::fs::remove_file(spec).unwrap();
    // EngramDB's manifest tells the geometry, but no model.
    let ran = run(dir.path(), &["-q", "verify", &out]);
    assert!(ran.status == Some(1) && ran.stderr.contains("--model"), "{ran:?}");
    let model = scaled.to_str().unwrap();
    done(dir.path(), &["-q", "verify", &out, "--model", model, "--tokens", "64"]);
    std::fs::remove_file(Path::new(&out).join("manifest.json")).unwrap();
    let ran = run(dir.path(), &["-q", "verify", &out, "--model", model]);
    assert_eq!(ran.status, Some(1), "{ran:?}");
    let geometry = ["--row-bytes", "160", "--rows-per-shard", &rows_per_shard];
    let mut args = vec!["-q", "verify", &out, "--model", model, "--tokens", "64"];
    args.extend(geometry);
    done(dir.path(), &args);
    // The real model's rows are not those of this table.
    let mut args = vec!["-q", "verify", &out, "--model", "qwen-ple"];
    args.extend(geometry);
    let ran = run(dir.path(), &args);
    assert!(ran.status == Some(1) && ran.stderr.contains("320001446"), "{ran:?}");
}

#[test]
fn synth_refuses_what_exists_and_what_does_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    let out = table(dir.path(), "qwen-ple", "packed", &["--bytes", "1M"]);
    let before = names(dir.path());
    let ran = run(dir.path(), &["synth", "--model", "qwen-ple", "--bytes", "1M", "--out", &out]);
    assert_eq!(ran.status, Some(1), "{ran:?}");
    let huge = dir.path().join("huge");
    let ran =
        run(dir.path(), &["synth", "--model", "deepseek-v41", "--bytes", "180GiB", "--out", huge.to_str().unwrap()]);
    if ran.status == Some(0) {
        return println!("more than 360 GiB are free here: nothing is too large");
    }
    assert_eq!(ran.status, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("free"), "{}", ran.stderr);
    assert_eq!(names(dir.path()), before);
}

#[test]
fn ctrl_c_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("big");
    let args = ["synth", "--model", "qwen-ple", "--bytes", "4GiB", "--out", out.to_str().unwrap()];
    let child = cli::command(dir.path(), &args).spawn().unwrap();
    let begun = Instant::now();
    while names(dir.path()).is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(20), "nothing was begun");
        std::thread::sleep(Duration::from_millis(5));
    }
    let interrupt = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupt.success());
    let ran = cli::said(child.wait_with_output().unwrap());
    assert_eq!(ran.status, Some(130), "{ran:?}");
    assert!(ran.stderr.contains("interrupted"), "{ran:?}");
    assert_eq!(names(dir.path()), Vec::<String>::new());
}

#[test]
fn the_token_map_of_the_real_tokenizer() {
    let Some(tokenizer) = std::env::var_os("ENGRAM_V41_TOKENIZER") else {
        return println!("SKIP: the_token_map_of_the_real_tokenizer: ENGRAM_V41_TOKENIZER is not set");
    };
    if !cfg!(feature = "tokenizer") {
        return println!("SKIP: the_token_map_of_the_real_tokenizer: built without feature tokenizer");
    }
    let dir = tempfile::tempdir().unwrap();
    let (tokenizer, out) = (tokenizer.to_str().unwrap(), dir.path().join("map.bin"));
    let sha256 = "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481";
    let args = ["--json", "token-map", "--tokenizer", tokenizer, "--out", out.to_str().unwrap()];
    let built = json(&done(dir.path(), &args).stdout);
    assert_eq!((&built["sha256"], &built["compressed_vocab"]), (&Value::from(sha256), &Value::from(99_092)));
    let args = ["token-map", "--tokenizer", tokenizer, "--out", out.to_str().unwrap(), "--expect-vocab", "5"];
    assert_eq!(run(dir.path(), &args).status, Some(1));

    // A checkpoint that brings its tokenizer: the map is built once, and cached.
    let table = table(dir.path(), "deepseek-v41", "safetensors", &["--bytes", "4M"]);
    std::fs::copy(tokenizer, Path::new(&table).join("tokenizer.json")).unwrap();
    let first = done(dir.path(), &["verify", &table, "--tokens", "64"]);
    assert!(first.stderr.contains("built now and cached"), "{}", first.stderr);
    let second = done(dir.path(), &["verify", &table, "--tokens", "64"]);
    assert!(second.stderr.contains("from the cache"), "{}", second.stderr);
    assert_eq!(names(&dir.path().join("engram-sched/token-maps")).len(), 1);
}
