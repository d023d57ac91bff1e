//! A server that batches continuously: requests arrive and leave while others decode, and the layer is awaited as a future.
//!
//! Each request runs in a task of its own and joins the engine's steps; one step computes whoever is there. The emulated engine takes
//! 2 ms a step. `cargo run --release --example continuous_batching`

use engram_sched::{Begin, History, OpenOptions, Scheduler, Spec, Synthetic, Token, synth};
use std::error::Error;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Barrier, Mutex, mpsc};

const REQUESTS: usize = 32;
const STEP: Duration = Duration::from_millis(2);

/// What a request came to.
struct Outcome {
    tokens: usize,
    /// Time at the layer, all steps together.
    waited: Duration,
    wrong: usize,
}

/// Who takes part in steps; a step begins for those who have joined.
#[derive(Default)]
struct Batch {
    largest: Mutex<(usize, usize)>,
}

impl Batch {
    async fn join(&self) {
        let mut now = self.largest.lock().await;
        now.0 += 1;
        now.1 = now.1.max(now.0);
    }

    async fn leave(&self) {
        self.largest.lock().await.0 -= 1;
    }
}

/// One request: prompt, decode, end.
async fn serve(scheduler: Scheduler, number: usize, batch: Arc<Batch>) -> Result<Outcome, Box<dyn Error + Send + Sync>> {
    let (prompt_len, output_len) = (4 + number % 9, 8 + number % 17);
    let token = |at: usize| ((number * 7919 + at * 104_729) % 200_000) as Token;
    let prompt: Vec<Token> = (0..prompt_len).map(token).collect();

    let request = scheduler.begin(Begin::default())?;
    // The ids are known before the request gets its place in the batch: its reads start now.
    scheduler.on_tokens(request, 0, &prompt, None)?;
    batch.join().await;

    let model = scheduler.model().clone();
    let keygen = model.keygen();
    let mut history = History::new(keygen, 0);
    let mut ids = vec![0; keygen.columns()];
    let mut outcome = Outcome { tokens: 0, waited: Duration::ZERO, wrong: 0 };
    let mut due = prompt;
    for step in 0..output_len {
        let begin = Instant::now();
        for table in 0..scheduler.layers().len() {
            let layer = u32::from(scheduler.layers()[table].0);
            tokio::time::sleep_until((begin + STEP * layer / 48).into()).await;
            let reached = Instant::now();
            let rows = scheduler.await_layer(request).await?;
            outcome.waited += reached.elapsed();
            for (at, &token) in due.iter().enumerate() {
                let window = keygen.push(&mut history, token, true);
                keygen.token_rows(table, &window, &mut ids);
                let right = |(head, &row): (usize, &u64)| model.proves(table, row, rows.row(at, head)) == Some(true);
                outcome.wrong += ids.iter().enumerate().filter(|&pair| !right(pair)).count();
            }
            outcome.tokens += due.len();
        }
        tokio::time::sleep_until((begin + STEP).into()).await;
        if step + 1 < output_len {
            let sampled = token(prompt_len + step);
            scheduler.on_token(request, sampled)?; // at once: the next layer 1 is close
            due = vec![sampled];
        }
    }
    scheduler.finish(request);
    batch.leave().await;
    Ok(outcome)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let dir = tempfile::tempdir()?;
    let table = dir.path().join("table");
    synth(&Synthetic::new(Spec::qwen_ple(), 16 << 20).plan(&table)?, &mut |_, _| ControlFlow::Continue(()))?;
    let scheduler = Scheduler::open(&table, &OpenOptions::default())?;

    let batch = Arc::new(Batch::default());
    let (done, mut outcomes) = mpsc::channel(REQUESTS);
    let first = Arc::new(Barrier::new(8));
    for number in 0..REQUESTS {
        let (scheduler, batch, done, first) = (scheduler.clone(), batch.clone(), done.clone(), first.clone());
        tokio::spawn(async move {
            // Eight requests are there when the server starts, the others arrive one by one.
            if number < 8 {
                first.wait().await;
            } else {
                tokio::time::sleep(STEP * 2 * number as u32).await;
            }
            let outcome = serve(scheduler, number, batch).await;
            let _ = done.send(outcome).await;
        });
    }
    drop(done);

    let (mut requests, mut tokens, mut wrong, mut waited) = (0, 0, 0, Duration::ZERO);
    while let Some(outcome) = outcomes.recv().await {
        let outcome = outcome?;
        requests += 1;
        tokens += outcome.tokens;
        wrong += outcome.wrong;
        waited += outcome.waited;
    }
    assert_eq!((requests, wrong), (REQUESTS, 0));
    let largest = batch.largest.lock().await.1;
    println!("{requests} requests, up to {largest} at once, {tokens} tokens: every row right");
    println!("mean wait at the layer {:.0} us a token", waited.as_secs_f64() * 1e6 / tokens as f64);
    Ok(())
}
