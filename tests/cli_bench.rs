//! `bench` on tables of a few MiB: it ends, its bytes are right, and its JSON has the keys that others rely on. No figure counts.

mod cli;

use cli::{done, names, run};
use serde_json::Value;
use std::path::Path;

/// Runs the benchmark for a short time on a warm page cache, where nothing is claimed that a tiny table could not prove.
fn bench(cache: &Path, args: &[&str]) -> Value {
    let mut all = vec!["--json", "--quiet", "bench", "--duration", "300ms", "--rounds", "2", "--verify"];
    all.extend(["--cache", "warm"]);
    all.extend(args);
    let ran = run(cache, &all);
    assert_eq!(ran.status, Some(0), "{ran:?}");
    let report: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    for arm in report["arms"].as_array().unwrap() {
        assert!(arm["verify"]["rows_checked"].as_u64().unwrap() > 0, "{arm}");
        assert_eq!(arm["verify"]["rows_checked"], arm["workload"]["rows_requested"], "one span: {arm}");
        assert!(arm["throughput"]["cpu_us_per_row"].as_f64().unwrap() > 0.0, "{arm}");
        assert_eq!(arm["verify"]["mismatches"], 0, "{arm}");
    }
    report
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn the_report_has_the_keys_of_its_contract() {
    let cache = tempfile::tempdir().unwrap();
    let report = bench(
        cache.path(),
        &["--bytes", "4MiB", "--step-time", "4ms", "--host-time", "500us", "--prompt", "8", "--output", "9"],
    );
    assert!(["config", "environment", "arms"].iter().all(|key| keys(&report).contains(key)));
    for key in ["kernel", "cpus", "backend", "direct", "flags"] {
        assert!(keys(&report["environment"]).contains(&key), "environment.{key}");
    }
    for key in ["backend", "direct", "in_flight", "issue"] {
        assert!(keys(&report["config"]).contains(&key), "config.{key}");
    }
    let arms = report["arms"].as_array().unwrap();
    let issues: Vec<&str> = arms.iter().map(|arm| arm["issue"].as_str().unwrap()).collect();
    assert_eq!(issues, ["memory", "at-token", "at-step", "at-layer", "at-layer"]);
    assert_eq!(arms[4]["reads"]["backend"], "mmap");
    let contract: &[(&str, &[&str])] = &[
        ("workload", &["tokens", "rows_requested", "rows_unique"]),
        ("reads", &["issued", "bytes", "backend", "direct", "mean_depth", "per_enter"]),
        ("throughput", &["tokens_per_s", "rows_per_s", "cpu_us_per_row"]),
        ("verify", &["rows_checked", "mismatches"]),
        ("validity", &["cold", "proof", "ratio", "device_bytes"]),
    ];
    for arm in arms {
        for (group, names) in contract {
            for name in *names {
                assert!(keys(&arm[group]).contains(name), "{group}.{name}");
            }
        }
        let waits = &arm["wait_us"][0];
        for name in ["layer", "p50", "p90", "p99", "p999", "max"] {
            assert!(waits[name].is_number(), "wait_us.{name}");
        }
        assert_eq!(arm["hidden_share"].is_null(), arm["issue"] == "memory", "{arm}");
        assert_eq!(arm["reads"]["backend"] == "memory", arm["issue"] == "memory", "{arm}");
        assert!(arm["reads"]["flags"].is_array() && arm["reads"]["notes"].is_array(), "{arm}");
        let workload = &arm["workload"];
        let (tokens, rows) = (workload["tokens"].as_u64().unwrap(), workload["rows_requested"].as_u64().unwrap());
        assert_eq!(rows, tokens * 16, "{workload}");
        assert!((1..=rows).contains(&workload["rows_unique"].as_u64().unwrap()));
    }
    assert_eq!(arms[0]["validity"]["cold"], "not-claimed");

    // The table is kept, found again, and removed.
    let own = cache.path().join("engram-sched");
    assert_eq!(names(&own).len(), 1);
    assert!(names(&own)[0].starts_with("bench-qwen-ple-4194304-"), "{:?}", names(&own));
    bench(cache.path(), &["--bytes", "4MiB", "--step-time", "2ms", "--host-time", "0", "--issue", "at-token"]);
    done(cache.path(), &["bench", "--clean"]);
    assert!(names(&own).is_empty());
    done(cache.path(), &["bench", "--clean"]);
}

#[test]
fn every_arm_stream_and_backend_delivers_the_right_rows() {
    let cache = tempfile::tempdir().unwrap();
    let table = cache.path().join("v41");
    let table = table.to_str().unwrap();
    done(
        cache.path(),
        &["-q", "synth", "--model", "deepseek-v41", "--bytes", "8M", "--layout", "safetensors", "--out", table],
    );
    let step = ["--step-time", "3ms", "--host-time", "300us", "--requests", "3", "--prompt", "5", "--output", "7"];
    let cases: &[&[&str]] = &[
        &["--tokens", "docs", "--backend", "pread", "--direct", "off"],
        &["--tokens", "zipf", "--backend", "mmap"],
        &["--tokens", "uniform", "--compute", "busy"],
    ];
    for case in cases {
        let mut args = vec![table];
        args.extend(step);
        args.extend(*case);
        let report = bench(cache.path(), &args);
        let arms = report["arms"].as_array().unwrap();
        assert!(arms.iter().all(|arm| arm["wait_us"].as_array().unwrap().len() == 2), "two layers");
        assert_eq!(arms.len(), if case.contains(&"mmap") { 4 } else { 5 });
    }
}

#[test]
fn a_cold_direct_run_proves_itself() {
    // Not the folder for temporary files, which may be in memory.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let args = [
        "--json",
        "-q",
        "bench",
        "--bytes",
        "16MiB",
        "--direct",
        "require",
        "--issue",
        "at-token,at-step,at-layer,memory",
        "--step-time",
        "4ms",
        "--host-time",
        "500us",
        "--duration",
        "300ms",
        "--rounds",
        "2",
        "--in-flight",
        "300",
    ];
    let ran = run(dir.path(), &args);
    if ran.status == Some(1) && ran.stderr.contains("O_DIRECT") {
        return println!("SKIP: a_cold_direct_run_proves_itself: {}", ran.stderr);
    }
    assert_eq!(ran.status, Some(0), "{ran:?}");
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["config"]["in_flight"], 300);
    for arm in report["arms"].as_array().unwrap() {
        let memory = arm["issue"] == "memory";
        assert_eq!(arm["validity"]["cold"], if memory { "not-claimed" } else { "valid" }, "{arm}");
        assert!(memory || arm["validity"]["ratio"].as_f64().unwrap() >= 0.95, "{arm}");
    }
}

/// A ramfs, which has no direct reads; unmounted with it.
struct Ramfs(tempfile::TempDir);

impl Ramfs {
    fn mount() -> Option<Self> {
        let at = tempfile::tempdir().unwrap();
        match std::process::Command::new("mount").args(["-t", "ramfs", "none"]).arg(at.path()).output() {
            Ok(output) if output.status.success() => Some(Self(at)),
            other => {
                println!("SKIP: cannot mount ramfs: {other:?}");
                None
            }
        }
    }
}

impl Drop for Ramfs {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

#[test]
fn direct_reads_that_are_refused_are_an_error_or_said() {
    let Some(ramfs) = Ramfs::mount() else { return };
    let cache = tempfile::tempdir().unwrap();
    let cache = cache.path();
    // Written elsewhere: a ramfs says that it has no free space, and a table is refused where there is none.
    let table = cache.join("table");
    let table = table.to_str().unwrap();
    done(cache, &["-q", "synth", "--model", "qwen-ple", "--bytes", "4M", "--out", table]);
    let copied = std::process::Command::new("cp").args(["-r", table]).arg(ramfs.0.path()).status().unwrap();
    assert!(copied.success());
    let table = ramfs.0.path().join("table");
    let args = ["--json", "-q", "bench", table.to_str().unwrap(), "--duration", "100ms", "--rounds", "1"];
    let step = ["--step-time", "2ms", "--host-time", "0", "--issue", "at-token", "--cache", "warm"];
    let with = |direct: &[&str]| run(cache, &[&args[..], &step, direct].concat());
    let required = with(&["--direct", "require"]);
    assert_eq!((required.status, required.stdout.as_str()), (Some(1), ""), "{required:?}");
    assert!(required.stderr.contains("O_DIRECT"), "{required:?}");
    let auto = with(&["--direct", "auto"]);
    assert_eq!(auto.status, Some(0), "{auto:?}");
    let report: Value = serde_json::from_str(&auto.stdout).unwrap();
    let reads = &report["arms"][0]["reads"];
    assert_eq!(reads["direct"], false, "{reads}");
    let notes = reads["notes"].as_array().unwrap();
    assert!(notes.iter().any(|note| note.as_str().unwrap().contains("ramfs")), "{reads}");
}

#[test]
fn clean_removes_nothing_that_the_benchmark_did_not_make() {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("tables");
    let users = own.join("bench-mine");
    done(dir.path(), &["-q", "synth", "--model", "qwen-ple", "--bytes", "1M", "--out", users.to_str().unwrap()]);
    let own = own.to_str().unwrap();
    let spec = "dialect = \"qwen_ple\"\nlayer_ids = [3]\nmax_ngram = 2\nheads = 2\nbases = [5003]\nvocab = 512\neos = 500\n\
                num_layers = 8\n[row]\nvalue_bytes = 64\nvalue = \"u8\"\n";
    let path = dir.path().join("tiny.toml");
    // Two specs of one file name are two tables, and a model without documents takes the generator.
    for heads in ["heads = 2", "heads = 3"] {
        std::fs::write(&path, spec.replace("heads = 2", heads)).unwrap();
        let args = ["--json", "-q", "bench", "--dir", own, "--model", path.to_str().unwrap(), "--issue", "memory"];
        let ran = run(
            dir.path(),
            &[&args[..], &["--duration", "20ms", "--rounds", "1", "--step-time", "1ms", "--host-time", "0"]].concat(),
        );
        assert_eq!(ran.status, Some(0), "{ran:?}");
        let report: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(report["config"]["tokens"], "zipf", "{report}");
        assert_eq!(report["config"]["rows_per_token"].as_u64().unwrap().to_string(), heads[8..], "{report}");
    }
    assert_eq!(names(Path::new(own)).len(), 3);
    done(dir.path(), &["bench", "--clean", "--dir", own]);
    assert_eq!(names(Path::new(own)), ["bench-mine"]);
}

#[test]
fn throughput_without_computation() {
    let cache = tempfile::tempdir().unwrap();
    let args = ["--bytes", "4MiB", "--step-time", "0", "--batch-tokens", "64", "--requests", "2", "--tokens", "zipf"];
    let report = bench(cache.path(), &args);
    let arm = &report["arms"][0];
    assert!(arm["throughput"]["reads_per_s"].as_f64().unwrap() > 0.0);
    assert!(arm["reads"]["mean_depth"].as_f64().unwrap() > 1.0, "{arm}");
    assert!(arm["reads"]["per_enter"].as_f64().unwrap() > 0.0, "{arm}");
}

/// Runs at most 300 ms an arm on a table of 4 MiB with steps of 1 ms: `args`, and the arm at the token with the floor beside it.
fn traffic(cache: &Path, args: &[&str]) -> Value {
    let mut all = vec!["--bytes", "4MiB", "--step-time", "1ms", "--host-time", "100us", "--issue", "at-token,memory"];
    all.extend(args);
    let report = bench(cache, &all);
    for arm in report["arms"].as_array().unwrap() {
        let (requests, steps) = (&arm["workload"]["requests"], &arm["goodput"]);
        let count = |value: &Value| value.as_u64().unwrap();
        assert!(requests["arrived"].is_number() && requests["complete"].is_number(), "{arm}");
        assert!(count(&steps["steps_good"]) <= count(&steps["steps"]), "{arm}");
        assert!(steps["share"].as_f64().unwrap() <= 1.0 && steps["tokens_per_s"].is_number(), "{arm}");
        for class in ["decode", "prefill"] {
            assert!(arm["wait_us_by_class"][class][0]["p99"].is_number(), "{arm}");
        }
        assert!(arm["first_token_ms"]["p999"].is_number(), "{arm}");
    }
    report
}

/// The sum of a count over the arms.
fn sum(report: &Value, pointer: &str) -> u64 {
    report["arms"].as_array().unwrap().iter().map(|arm| arm.pointer(pointer).unwrap().as_u64().unwrap()).sum()
}

#[test]
fn requests_arrive_by_themselves_and_go_away() {
    let cache = tempfile::tempdir().unwrap();
    let small = ["--requests", "4", "--prompt", "6", "--output", "5"];
    for arrivals in [
        &["--arrivals", "poisson", "--rate", "200"][..],
        &["--arrivals", "gamma", "--rate", "200", "--cv", "3", "--wait-limit-us", "0"],
        &["--arrivals", "closed", "--abort-rate", "0.9", "--wait-limit-us", "4000000"],
    ] {
        let report = traffic(cache.path(), &[&small[..], arrivals].concat());
        assert_eq!(report["config"]["arrivals"], arrivals[1]);
        let closed = arrivals[1] == "closed";
        assert_eq!(report["config"]["rate"].as_f64(), (!closed).then_some(200.0));
        assert_eq!(sum(&report, "/workload/requests/aborted") > 0, closed, "{report}");
        assert!(closed || sum(&report, "/workload/requests/arrived") > 0, "{report}");
        let good = sum(&report, "/goodput/steps_good");
        match report["config"]["wait_limit_us"].as_u64().unwrap() {
            0 => assert_eq!(good, 0),
            4_000_000 => assert_eq!(good, sum(&report, "/goodput/steps")),
            _ => {}
        }
    }
}

#[test]
fn long_prompts_share_steps_with_requests_that_decode() {
    let cache = tempfile::tempdir().unwrap();
    let args = ["--requests", "3", "--prompt", "150", "--output", "6", "--chunk", "64", "--step-tokens", "70"];
    let report = traffic(cache.path(), &args);
    assert_eq!((&report["config"]["chunk"], &report["config"]["step_tokens"]), (&64.into(), &70.into()));
    assert!(sum(&report, "/goodput/steps_mixed") > 0, "{report}");
}

#[test]
fn traces_are_replayed_and_their_shared_beginnings_are_skipped() {
    let cache = tempfile::tempdir().unwrap();
    let azure = cache.path().join("a.csv");
    let rows =
        (0..60).map(|i| format!("2023-11-16 18:15:{:02}.{:03},{},{}\n", i / 10, i % 10 * 100, 20 + i, 1 + i % 5));
    let header = String::from("TIMESTAMP,ContextTokens,GeneratedTokens\n");
    std::fs::write(&azure, rows.fold(header, |text, row| text + &row)).unwrap();
    let report = traffic(cache.path(), &["--trace", "azure", azure.to_str().unwrap(), "--rate", "100"]);
    assert_eq!((&report["config"]["arrivals"], &report["config"]["rate"]), (&"trace".into(), &100.0.into()));
    assert_eq!(report["config"]["trace"]["requests"], 60);
    assert!(report["config"]["prompt"].is_null());

    let mooncake = cache.path().join("m.jsonl.gz");
    let mut text = flate2::write::GzEncoder::new(std::fs::File::create(&mooncake).unwrap(), Default::default());
    for i in 0..40 {
        let line = serde_json::json!({"timestamp": i * 20, "input_length": 700, "output_length": 3, "hash_ids": [i % 2, i + 9]});
        std::io::Write::write_all(&mut text, format!("{line}\n").as_bytes()).unwrap();
    }
    text.finish().unwrap();
    let trace = ["--trace", "mooncake", mooncake.to_str().unwrap(), "--arrivals", "closed", "--requests", "2"];
    for switch in ["off", "on"] {
        let report = traffic(cache.path(), &[&trace[..], &["--prefix-cache", switch]].concat());
        assert_eq!(report["config"]["prefix_cache"], switch);
        assert_eq!(sum(&report, "/workload/prompt_tokens_cached") > 0, switch == "on", "{report}");
    }
}

#[test]
fn a_grid_and_a_curve_have_their_cells() {
    let cache = tempfile::tempdir().unwrap();
    let base = ["--json", "-q", "bench", "--bytes", "4MiB", "--cache", "warm", "--verify", "--rounds", "1"];
    let small = ["--prompt", "3", "--output", "4"];
    let report = |args: &[&str]| -> Value {
        let ran = run(cache.path(), &[&base[..], &small, args].concat());
        assert_eq!(ran.status, Some(0), "{}", ran.stderr);
        serde_json::from_str(&ran.stdout).unwrap()
    };
    let grid = report(&["--grid", "--duration", "200ms", "--issue", "at-token"]);
    let cells = grid["grid"].as_array().unwrap();
    assert_eq!((cells.len(), grid["arms"].is_null(), grid["config"]["requests"].is_null()), (12, true, true));
    assert_eq!((&cells[7]["step_time_us"], &cells[7]["requests"]), (&25_000.into(), &128.into()));
    let curve = report(&["--curve", "--duration", "30ms"]);
    let points = curve["curve"].as_array().unwrap();
    assert_eq!(points.len(), 8);
    for point in points {
        let issues: Vec<&Value> = point["arms"].as_array().unwrap().iter().map(|arm| &arm["issue"]).collect();
        assert_eq!(issues, ["at-token", "at-layer"]);
        assert!(point["exposed_over_device"]["median"].is_number() && point["lead_over_device"].as_f64() > Some(0.0));
    }
    for point in cells.iter().chain(points) {
        for arm in point["arms"].as_array().unwrap() {
            assert!(arm["verify"]["rows_checked"].as_u64() > Some(0) && arm["verify"]["mismatches"] == 0, "{arm}");
        }
    }
    // The tables for people name every cell.
    for (args, lines) in [(&["--grid", "--issue", "memory"][..], 12), (&["--curve"], 8)] {
        let ran = done(cache.path(), &[&base[1..], &small, args, &["--duration", "20ms"]].concat());
        let of_cells = ran.stdout.lines().filter(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()));
        assert_eq!(of_cells.count(), lines, "{}", ran.stdout);
    }
}

#[test]
fn the_table_for_people_tells_of_the_traffic() {
    let cache = tempfile::tempdir().unwrap();
    let base = ["-q", "bench", "--bytes", "1MiB", "--cache", "warm", "--rounds", "1", "--issue", "at-token"];
    let more = ["--step-time", "1ms", "--host-time", "0", "--duration", "50ms", "--abort-rate", "0.2"];
    let ran = done(cache.path(), &[&base[..], &more].concat());
    for part in ["20.0 % go away", "first token ms", "prefill", "steps in"] {
        assert!(ran.stdout.contains(part), "{part}: {}", ran.stdout);
    }
}

#[test]
fn arguments_that_make_no_sense_are_refused_with_a_remedy() {
    let cache = tempfile::tempdir().unwrap();
    let missing = cache.path().join("missing").to_str().unwrap().to_owned();
    let cases: &[(&str, i32, &str)] = &[
        ("--arrivals poisson", 2, "give --rate"),
        ("--arrivals trace", 2, "give --trace azure FILE"),
        ("--arrivals sometimes", 2, "possible values: closed, poisson, gamma, trace"),
        ("--rate 5", 2, "--arrivals poisson or gamma"),
        ("--arrivals gamma --rate 5 --cv 1000", 2, "--cv must lie between"),
        ("--trace azure", 2, "2 values required"),
        ("--trace splitwise FILE", 2, "the formats are azure and mooncake"),
        ("--trace azure FILE --prompt 3", 2, "cannot be used with"),
        ("--trace azure MISSING", 1, "cannot read the trace"),
        ("--prefix-cache maybe", 2, "possible values: on, off"),
        ("--abort-rate 2", 2, "between 0 and 1"),
        ("--bytes 1MiB --chunk 8 --step-tokens 15", 2, "raise it to 16"),
        ("--grid --requests 3", 2, "cannot be used with"),
        ("--grid --curve", 2, "cannot be used with"),
        ("--curve --arrivals poisson --rate 3", 2, "leave --arrivals out"),
        ("--bytes 1MiB --grid --host-time 10ms", 2, "--host-time"),
        ("--batch-tokens 8 --abort-rate 0.1", 2, "cannot be used with"),
    ];
    for (line, status, remedy) in cases {
        let line = line.replace("MISSING", &missing);
        let args: Vec<&str> = ["-q", "bench"].into_iter().chain(line.split_whitespace()).collect();
        let ran = run(cache.path(), &args);
        assert_eq!(ran.status, Some(*status), "{line}: {ran:?}");
        assert!(ran.stderr.contains(remedy), "{line}: {}", ran.stderr);
    }
}

#[test]
fn a_table_with_holes_is_void() {
    let cache = tempfile::tempdir().unwrap();
    let table = cache.path().join("sparse");
    let table = table.to_str().unwrap();
    done(cache.path(), &["-q", "synth", "--model", "qwen-ple", "--sparse-full", "--out", table]);
    let args = ["--json", "-q", "bench", table, "--issue", "at-token", "--duration", "200ms", "--rounds", "1"];
    let ran = run(cache.path(), &args);
    assert_eq!(ran.status, Some(3), "{ran:?}");
    assert!(ran.stderr.contains("holes"), "{ran:?}");
}

#[test]
fn streams_of_another_vocabulary_are_refused() {
    let cache = tempfile::tempdir().unwrap();
    let stream = cache.path().join("s.u32");
    std::fs::write(&stream, 248_320u32.to_le_bytes()).unwrap();
    let ran = run(cache.path(), &["-q", "bench", "--bytes", "1MiB", "--tokens", stream.to_str().unwrap()]);
    assert_eq!(ran.status, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("legal ids are 0 to 248319"), "{ran:?}");
}

#[test]
fn ctrl_c_ends_a_run() {
    let cache = tempfile::tempdir().unwrap();
    done(
        cache.path(),
        &["-q", "bench", "--bytes", "1MiB", "--duration", "100ms", "--rounds", "1", "--issue", "memory"],
    );
    // Also while nobody comes.
    for idle in [&[][..], &["--arrivals", "poisson", "--rate", "0.0001"]] {
        let args = ["--json", "bench", "--bytes", "1MiB", "--duration", "60s"];
        let child = cli::command(cache.path(), &[&args[..], idle].concat()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(700));
        let ended = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(ended.success());
        let ran = cli::said(child.wait_with_output().unwrap());
        assert_eq!((ran.status, ran.stdout.as_str()), (Some(130), ""), "{}", ran.stderr);
    }
}
