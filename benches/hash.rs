//! What one token costs: the hash alone, and `on_token` with `await_layer` on a simulated disk, where no device hides the rest.
//!
//! `cargo bench --bench hash`. Each figure is the best and the median of 15 rounds. The simulated disk copies in memory and its actor has
//! a thread of its own: its figure includes that thread's wake-up, and bounds the overhead of the scheduler from above.

use engram_keygen::{History, Keygen, Spec, TokenMap};
use engram_sched_core::io::{BackendFactory, SimulatedDisk};
use engram_sched_core::{Begin, Parts, Scheduler, StartOptions};
use engram_store::{DataFile, FileId, Part, Shard, Table};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 15;

/// Runs `round` and prints what one of its `tokens` took.
fn measure(what: &str, tokens: usize, mut round: impl FnMut()) {
    round();
    let mut ns: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            round();
            start.elapsed().as_nanos() as f64 / tokens as f64
        })
        .collect();
    ns.sort_by(f64::total_cmp);
    println!("{what:<44} {:>10.1} ns/token best, {:>10.1} median", ns[0], ns[ROUNDS / 2]);
}

/// The models at their real sizes; V4.1 with a made-up token map of the real shape.
fn keygens() -> [(&'static str, Keygen); 2] {
    let v41 = Spec {
        token_map: None,
        vocab: None,
        compressed_vocab: Some(99_092),
        pad_raw: None,
        pad_compressed: Some(2),
        ..Spec::deepseek_v41()
    };
    let map = TokenMap::made_up(129_280, 99_092).expect("a valid map");
    [
        ("qwen-ple", Keygen::new(&Spec::qwen_ple(), None).expect("a valid spec")),
        ("deepseek-v41", Keygen::new(&v41, Some(map)).expect("a valid spec")),
    ]
}

fn hash(name: &str, keygen: &Keygen) {
    const TOKENS: usize = 20_000;
    let mut history = History::new(keygen, History::TAIL_DEFAULT);
    let mut rows = vec![0; keygen.columns()];
    measure(&format!("{name}: push and rows of all tables"), TOKENS, || {
        for i in 0..TOKENS {
            let window = keygen.push(&mut history, (i * 7919 % 100_000) as i32, true);
            for table in 0..keygen.tables() {
                keygen.token_rows(table, &window, &mut rows);
                black_box(&rows);
            }
        }
    });
}

fn scheduler(name: &str, keygen: Keygen, row_bytes: u32) {
    const TOKENS: usize = 200;
    let (mut files, mut tables) = (Vec::new(), Vec::new());
    for table in 0..keygen.tables() {
        let (file, rows) = (FileId(table as u32), keygen.table_rows(table));
        files.push(DataFile { path: format!("simulated-{table}").into(), len: rows * u64::from(row_bytes) });
        let shards = vec![Shard { file, offset: 0, rows }];
        let part = Part { bytes: row_bytes, stride: row_bytes.into(), rows_per_shard: rows, shards };
        tables.push(Table::new(keygen.layer(table), rows, vec![part], &files).expect("a valid layout"));
    }
    let lens = files.iter().map(|file| file.len).collect();
    let disk = SimulatedDisk::with_content(1, lens, |_, offset, to| to.fill(offset as u8));
    disk.set_logging(false);
    let backend = BackendFactory::ready(Box::new(disk.backend(256, 16_384)));
    let parts = Parts { keygen, tables, files };
    let scheduler = Scheduler::start_with(parts, &StartOptions::default(), vec![backend]).expect("a scheduler");
    let request = scheduler.begin(Begin::default()).expect("a free slot");
    let layers = scheduler.layers().len();
    let mut next = 0;
    measure(&format!("{name}: on_token to the last layer"), TOKENS, || {
        for _ in 0..TOKENS {
            next = (next + 7919) % 100_000;
            scheduler.on_token(request, next).expect("a legal token");
            for _ in 0..layers {
                black_box(scheduler.await_layer(request).wait().expect("rows").bytes());
            }
        }
    });
    scheduler.finish(request);
}

fn main() {
    for (name, keygen) in keygens() {
        hash(name, &keygen);
        scheduler(name, keygen, if name == "qwen-ple" { 160 } else { 264 });
    }
}
