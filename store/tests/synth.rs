//! Synthetic tables: what is written opens again through the same doors as real tables, and every row proves itself.

mod common;

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;

use common::{LAYOUTS, MODELS, Model, plan, sparse};
use engram_store::{
    ModelConfig, Opened, PlainReader, RowFormat, SourceKind, StoreError, Summary, SynthLayout, SynthPlan, SynthTable,
    holes, open, self_proof, synth,
};

fn make(plan: &SynthPlan) -> Result<Summary, StoreError> {
    synth(plan, &mut |_, _| ControlFlow::Continue(()))
}

/// Rows checked and rows that are not what they claim.
fn verify(opened: &Opened) -> (u64, u64) {
    let proof = opened.self_proof.as_ref().unwrap();
    let reader = PlainReader::open(opened).unwrap();
    let (mut checked, mut wrong) = (0, 0);
    for (index, table) in opened.tables.iter().enumerate() {
        let mut bytes = vec![0; table.row_bytes() as usize];
        let all: Vec<u64> = match &proof.sparse_rows {
            Some(rows) => rows[index].clone(),
            None => (0..table.rows()).collect(),
        };
        for row in all {
            assert!(proof.covers(index, row));
            reader.read_row(index, row, &mut bytes).unwrap();
            checked += 1;
            wrong += u64::from(!self_proof::check_row(proof.tags[index], row, opened.row_format, &bytes));
        }
    }
    (checked, wrong)
}

fn files_below(path: &Path) -> Vec<std::path::PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { all.extend(files_below(&path)) } else { all.push(path) }
    }
    all
}

#[test]
fn every_layout_of_every_model_comes_back() {
    for model in MODELS {
        for layout in LAYOUTS {
            let dir = tempfile::tempdir().unwrap();
            let out = dir.path().join("t");
            let plan = plan(model, layout, &out);
            let summary = make(&plan).unwrap();
            assert_eq!(summary.bytes, plan.bytes_total().unwrap());
            assert_eq!(summary.bytes, files_below(&out).iter().map(|p| p.metadata().unwrap().len()).sum::<u64>());
            assert_eq!((summary.bytes_written, summary.files), (summary.bytes, files_below(&out).len() as u64));
            let opened = open(&out, None).unwrap();
            let kind = match layout {
                SynthLayout::Packed => SourceKind::Packed,
                SynthLayout::Shards => SourceKind::RawShards,
                _ => SourceKind::Safetensors,
            };
            assert_eq!(opened.source, kind);
            assert_eq!((opened.row_format, &opened.config), (plan.row_format, &plan.config));
            assert_eq!((opened.spec_json.as_ref(), &opened.constants), (plan.spec_json.as_ref(), &plan.constants));
            let rows: u64 = plan.tables.iter().map(|t| t.padded_rows).sum();
            assert_eq!(verify(&opened), (rows, 0), "{model:?} {layout:?}");
            assert_eq!(summary.rows_written, rows);
            let parts = if (model, layout) == (Model::V41, SynthLayout::Safetensors) { 2 } else { 1 };
            assert!(opened.tables.iter().all(|t| t.parts().len() == parts));
            assert!(opened.files.iter().all(|f| !holes(&f.path).unwrap().is_sparse()));
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no partial folder stays");
        }
    }
}

#[test]
fn checkpoints_are_valid_to_the_published_parser() {
    for model in MODELS {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("t");
        make(&plan(model, SynthLayout::Safetensors, &out)).unwrap();
        let mut odd = 0;
        for path in files_below(&out).iter().filter(|p| p.extension().is_some_and(|e| e == "safetensors")) {
            let bytes = fs::read(path).unwrap();
            let parsed = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            for (name, view) in parsed.iter().filter(|(n, _)| n.contains("shard_") || n.contains("embed.")) {
                let offset = view.data().as_ptr() as usize - bytes.as_ptr() as usize;
                odd += usize::from(!offset.is_multiple_of(8));
                assert!(!view.data().is_empty(), "{name}");
            }
        }
        assert!(model == Model::V41 || odd > 0, "data of the real files begin at odd offsets");
        // Without our card it is a checkpoint like any other.
        fs::remove_file(out.join("engram-sched.json")).unwrap();
        let opened = open(&out, None).unwrap();
        assert!(opened.self_proof.is_none() && opened.spec_json.is_none());
    }
}

#[test]
fn shards_are_what_engramdb_reads() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("t");
    make(&plan(Model::V41, SynthLayout::Shards, &out)).unwrap();
    let manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(out.join("layer_14/manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["layout"]["width"], 66);
    assert_eq!(manifest["layout"]["shards"], 7);
    // Without our card the folder of tables still opens, and so does each table.
    fs::remove_file(out.join("engram-sched.json")).unwrap();
    let opened = open(&out, None).unwrap();
    assert_eq!(opened.tables.iter().map(|t| (t.layer(), t.rows())).collect::<Vec<_>>(), [(1, 30), (14, 40)]);
    assert_eq!(open(&out.join("layer_14"), None).unwrap().tables[0].layer(), 14);
}

#[test]
fn sparse_tables_of_the_real_size_hold_their_rows_at_the_true_offsets() {
    let qwen = |row_format: RowFormat, layout, out: &Path| SynthPlan {
        tables: vec![SynthTable { layer: 1, rows: 320_001_446, padded_rows: 320_001_536, tag: 0 }],
        row_format,
        config: Some(ModelConfig::QwenPle(common::qwen_config(128, 160))),
        constants: Vec::new(),
        shards: 128,
        ..plan(Model::QwenFp8, layout, out)
    };
    let v41 = |_, layout, out: &Path| {
        let rows = [384_006_168, 384_016_682];
        let mut config = common::v41_config(&rows);
        config.engram_head_dim = 256;
        SynthPlan {
            tables: [1u16, 14]
                .iter()
                .zip(rows)
                .map(|(&layer, n)| SynthTable { layer, rows: n, padded_rows: n, tag: layer.into() })
                .collect(),
            row_format: RowFormat::v41(256),
            config: Some(ModelConfig::DeepseekV41(config)),
            ..plan(Model::V41, layout, out)
        }
    };
    let fp8 = RowFormat::qwen_fp8(160, common::SCALE_BITS);
    for (name, format, logical) in [
        ("fp8", fp8, 51_200_245_760u64),
        ("bf16", RowFormat::qwen_bf16(160), 102_400_491_520),
        ("v41", RowFormat::v41(256), 202_758_032_400),
    ] {
        for layout in LAYOUTS {
            let dir = tempfile::tempdir().unwrap();
            let out = dir.path().join("t");
            let base = if name == "v41" { v41(format, layout, &out) } else { qwen(format, layout, &out) };
            let extra = base.tables.iter().map(|t| vec![t.rows / 3, t.rows / 2, t.rows / 3]).collect();
            let plan = sparse(base, extra);
            let summary = make(&plan).unwrap();
            let opened = open(&out, None).unwrap();
            assert_eq!(opened.row_bytes_total(), logical, "{name} {layout:?}");
            assert!(summary.bytes >= logical && summary.bytes_written < 1 << 20);
            let written = plan.samples().unwrap().unwrap();
            for (table, rows) in opened.tables.iter().zip(&written) {
                let value_row = (1u64 << 32) / u64::from(opened.row_format.row_bytes());
                assert!(rows.contains(&0) && rows.contains(&(table.rows() - 1)) && rows.contains(&value_row));
            }
            let (checked, wrong) = verify(&opened);
            assert_eq!((checked, wrong), (summary.rows_written, 0), "{name} {layout:?}");
            assert!(opened.files.iter().any(|f| holes(&f.path).unwrap().is_sparse()));
            let disk: u64 = opened.files.iter().map(|f| holes(&f.path).unwrap().allocated).sum();
            assert!(disk <= plan.bytes_needed().unwrap() + (1 << 20), "{disk} bytes on disk");
        }
    }
}

#[test]
fn progress_counts_to_the_end() {
    for layout in LAYOUTS {
        let dir = tempfile::tempdir().unwrap();
        let plan = plan(Model::V41, layout, &dir.path().join("t"));
        let mut seen = Vec::new();
        synth(&plan, &mut |done, total| {
            seen.push((done, total));
            ControlFlow::Continue(())
        })
        .unwrap();
        let total = plan.bytes_total().unwrap();
        assert_eq!((seen[0], *seen.last().unwrap()), ((0, total), (total, total)));
        assert!(seen.windows(2).all(|w| w[0].0 <= w[1].0));
    }
}

#[test]
fn stopping_at_any_time_leaves_nothing() {
    for layout in LAYOUTS {
        for stop in 0..6 {
            let dir = tempfile::tempdir().unwrap();
            let out = dir.path().join("new/t");
            let mut calls = 0;
            let result = synth(&plan(Model::QwenFp8, layout, &out), &mut |_, _| {
                calls += 1;
                if calls > stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            match result {
                Err(StoreError::Cancelled { path }) => assert_eq!(path, out),
                Err(error) => panic!("{error}"),
                Ok(_) => continue,
            }
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{layout:?} after {stop} calls");
        }
    }
}

#[test]
fn a_panic_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let plan = plan(Model::QwenFp8, SynthLayout::Packed, &dir.path().join("t"));
    let result = std::panic::catch_unwind(|| {
        let _ = synth(&plan, &mut |done, _| if done > 0 { panic!("as planned") } else { ControlFlow::Continue(()) });
    });
    assert!(result.is_err());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Runs this test again as a child that stops in the middle of a table, and kills it.
#[test]
fn what_a_killed_process_left_is_removed_by_the_next() {
    const TARGET: &str = "ENGRAM_TEST_KILLED_TARGET";
    if let Some(out) = std::env::var_os(TARGET) {
        let _ = synth(&plan(Model::QwenFp8, SynthLayout::Packed, Path::new(&out)), &mut |_, _| {
            loop {
                std::thread::park();
            }
        });
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("t");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "what_a_killed_process_left_is_removed_by_the_next"])
        .env(TARGET, &out)
        .spawn()
        .unwrap();
    let partial = dir.path().join(format!(".t.partial-{}", child.id()));
    // The lock file is there before the first call of `progress`; give the child the time to lock it, too.
    for _ in 0..1000 {
        if partial.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    std::thread::sleep(std::time::Duration::from_millis(200));
    let plan = plan(Model::QwenFp8, SynthLayout::Packed, &out);
    let beside = make(&plan);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(beside.unwrap().leftovers_removed.is_empty() && partial.exists(), "a living process keeps its folder");
    fs::remove_dir_all(&out).unwrap();
    assert_eq!(make(&plan).unwrap().leftovers_removed, [partial.as_path()]);
    assert!(!partial.exists());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn what_is_there_is_never_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("t");
    fs::create_dir(&out).unwrap();
    make(&plan(Model::V41, SynthLayout::Packed, &out)).unwrap(); // an empty folder may be filled
    let error = make(&plan(Model::QwenFp8, SynthLayout::Packed, &out)).unwrap_err();
    assert!(matches!(error, StoreError::OutExists { .. }), "{error}");
    assert_eq!(verify(&open(&out, None).unwrap()), (70, 0));
    let file = dir.path().join("file");
    fs::write(&file, "precious").unwrap();
    assert!(matches!(make(&plan(Model::V41, SynthLayout::Packed, &file)), Err(StoreError::OutExists { .. })));
    assert_eq!(fs::read(&file).unwrap(), b"precious");
}

#[test]
fn a_table_of_more_than_half_the_free_space_is_refused_before_a_byte_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("new/t");
    let mut plan = plan(Model::QwenFp8, SynthLayout::Packed, &out);
    plan.tables[0].padded_rows = 1 << 48;
    let error = make(&plan).unwrap_err();
    let need = plan.bytes_needed().unwrap();
    assert!(matches!(error, StoreError::NoSpace { need: n, .. } if n == need), "{error}");
    let text = error.to_string();
    assert!(text.contains("new/t") && text.contains(&need.to_string()) && text.contains("make room"), "{text}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Needs root: a file system of 16 MiB, which somebody else fills while we write.
#[test]
fn a_disk_that_fills_up_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mount = |args: &[&str]| Command::new(args[0]).args(&args[1..]).arg(dir.path()).status();
    let mounted = mount(&["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs"]);
    if !mounted.is_ok_and(|s| s.success()) {
        println!("SKIP: a_disk_that_fills_up_leaves_nothing: root, to mount a small tmpfs");
        return;
    }
    let mut plan = plan(Model::QwenFp8, SynthLayout::Packed, &dir.path().join("t"));
    plan.tables[0].padded_rows = 600_000;
    let result = synth(&plan, &mut |done, _| {
        if done == 0 {
            let _ = fs::write(dir.path().join("theirs"), vec![1; 20 << 20]);
        }
        ControlFlow::Continue(())
    });
    let left = fs::read_dir(dir.path()).unwrap().count();
    let unmounted = mount(&["umount"]);
    let error = result.unwrap_err();
    assert!(matches!(&error, StoreError::Write { .. }), "{error}");
    assert!(error.to_string().contains("make room"), "{error}");
    assert_eq!(left, 1, "only the file that filled the disk is left");
    assert!(unmounted.is_ok_and(|s| s.success()));
}

#[test]
fn impossible_plans_are_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("t");
    let says = |layout, model, change: &dyn Fn(&mut SynthPlan), word: &str| {
        let mut plan = plan(model, layout, &out);
        change(&mut plan);
        let error = make(&plan).unwrap_err();
        assert!(matches!(error, StoreError::Plan { .. }), "{error}");
        assert!(error.to_string().contains(word), "no {word:?} in: {error}");
        assert!(plan.bytes_total().is_err() && plan.bytes_needed().is_err());
    };
    use Model::{QwenFp8, V41};
    use SynthLayout::{Packed, Safetensors, Shards};
    says(Packed, QwenFp8, &|p| p.tables.clear(), "no tables");
    says(Packed, QwenFp8, &|p| p.tables[0].rows = 81, "more rows than places");
    says(Packed, QwenFp8, &|p| p.tables[0].rows = 0, "no rows");
    says(Packed, QwenFp8, &|p| p.tables[0].padded_rows = u64::MAX, "2^63");
    says(Packed, QwenFp8, &|p| p.row_format = RowFormat::opaque(0), "no bytes");
    says(Packed, V41, &|p| p.tables[1].layer = 1, "layer 1 occurs twice");
    says(Packed, V41, &|p| p.constants = vec![Default::default()], "for every table");
    says(Shards, QwenFp8, &|p| p.shards = 0, "0 shards");
    says(Safetensors, QwenFp8, &|p| p.config = None, "configuration");
    says(Safetensors, QwenFp8, &|p| p.tables[0].layer = 3, "layers of the configuration");
    says(Safetensors, QwenFp8, &|p| p.row_format = RowFormat::v41(64), "one scale");
    says(Safetensors, QwenFp8, &|p| p.row_format = RowFormat::qwen_bf16(11), "rows of 11 values");
    says(Safetensors, QwenFp8, &|p| p.tables[0].padded_rows = 100, "do not fill 16 shards");
    says(Safetensors, V41, &|p| p.tables[1].padded_rows = 41, "engram_num_embeddings");
    says(Safetensors, V41, &|p| p.row_format = RowFormat::qwen_fp8(64, 1), "32 values");
    says(Packed, V41, &|p| *p = sparse(p.clone(), vec![vec![]]), "1 lists of sample rows for 2");
    says(Packed, V41, &|p| *p = sparse(p.clone(), vec![vec![30], vec![]]), "sample row 30 of layer 1");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn odd_widths_and_rows_across_every_border() {
    for width in [1, 157, 160, 257, 4097] {
        for layout in [SynthLayout::Packed, SynthLayout::Shards] {
            let dir = tempfile::tempdir().unwrap();
            let out = dir.path().join("t");
            let mut plan = plan(Model::QwenFp8, layout, &out);
            (plan.row_format, plan.config) = (RowFormat::qwen_fp8(width, common::SCALE_BITS), None);
            plan.tables[0] = SynthTable { layer: 1, rows: 1009, padded_rows: 1013, tag: 0 };
            make(&plan).unwrap();
            assert_eq!(verify(&open(&out, None).unwrap()), (1013, 0), "width {width} {layout:?}");
        }
    }
}

#[test]
fn checkpoints_of_few_and_of_many_shards() {
    for parts in [1u32, 2, 3, 4, 5, 8, 80] {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("t");
        let mut plan = plan(Model::QwenBf16, SynthLayout::Safetensors, &out);
        plan.config = Some(ModelConfig::QwenPle(common::qwen_config(parts, 10)));
        make(&plan).unwrap();
        let opened = open(&out, None).unwrap();
        assert_eq!(opened.tables[0].parts()[0].shards.len(), parts as usize);
        assert_eq!(verify(&opened), (80, 0), "{parts} parts");
    }
}
