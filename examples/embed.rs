//! The scheduler embedded in a program: open, begin, feed, await, read a row.
//!
//! Makes a tiny synthetic table first, so that it runs anywhere: `cargo run --release --example embed`.

use engram_sched::{Begin, OpenOptions, Scheduler, Spec, Synthetic, synth};
use std::ops::ControlFlow;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let table = dir.path().join("table");
    synth(&Synthetic::new(Spec::qwen_ple(), 8 << 20).plan(&table)?, &mut |_, _| ControlFlow::Continue(()))?;

    // A checkpoint folder is opened in the same way.
    let scheduler = Scheduler::open(&table, &OpenOptions::default())?;
    let request = scheduler.begin(Begin::default())?;

    // The prompt is known: feed it at once. The call returns while the disk works.
    let prompt = [9707, 11, 1879, 374, 264];
    scheduler.on_tokens(request, 0, &prompt, None)?;

    // ... the engine computes the layers below ...

    for &layer in scheduler.layers() {
        let rows = scheduler.await_layer(request).wait()?;
        assert_eq!((rows.layer(), rows.positions()), (layer, 0..5));
        let [tokens, heads, row_bytes] = rows.shape();
        println!("layer {layer}: {tokens} tokens x {heads} heads x {row_bytes} B");
        println!("token 2, head 7 begins {:02x?}", &rows.row(2, 7)[..8]);

        // Rows of a synthetic table prove which row they are.
        let model = scheduler.model();
        let keygen = model.keygen();
        let mut history = engram_sched::History::new(keygen, 0);
        let mut ids = vec![0; heads];
        for (token, &id) in prompt.iter().enumerate() {
            let window = keygen.push(&mut history, id, true);
            keygen.token_rows(0, &window, &mut ids);
            for (head, &row) in ids.iter().enumerate() {
                assert_eq!(model.proves(0, row, rows.row(token, head)), Some(true));
            }
        }
    }
    scheduler.finish(request);

    let stats = scheduler.stats();
    println!("{} rows from {} reads of {} bytes; every row proved itself", stats.rows, stats.reads, stats.read_bytes);
    Ok(())
}
