//! A server that batches continuously: requests arrive and leave while others decode, and layers are awaited as futures.
//!
//! A client feeds its prompt when it arrives, before the engine has a place for it; the engine's loop takes whoever has arrived into its
//! next step. The emulated engine computes 8 ms a step. `cargo run --release --example continuous_batching`

use engram_sched::{Begin, History, OpenOptions, RequestId, Scheduler, Spec, Synthetic, Token, synth};
use std::error::Error;
use std::ops::ControlFlow;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

type Failure = Box<dyn Error + Send + Sync>;

const REQUESTS: usize = 32;
const STEP: Duration = Duration::from_millis(8);
const MODEL_LAYERS: u32 = 48;

/// A request that waits for its place, and then decodes.
struct Live {
    id: RequestId,
    /// Tokens whose rows the next step takes: the prompt, then one at a time.
    due: Vec<Token>,
    history: History,
    left: usize,
    output: Vec<Token>,
    reply: oneshot::Sender<Vec<Token>>,
}

/// What the engine has to tell at the end.
#[derive(Default)]
struct Report {
    steps: u32,
    largest: usize,
    tokens: usize,
    waited: Duration,
    wrong: usize,
}

/// A client: arrives, feeds its prompt, waits for its answer.
async fn client(number: usize, scheduler: Scheduler, server: mpsc::Sender<Live>) -> Result<usize, Failure> {
    // Eight clients are there when the server starts, the others arrive one by one.
    tokio::time::sleep(STEP * number.saturating_sub(8) as u32).await;
    let prompt: Vec<Token> =
        (0..4 + number % 9).map(|at| ((number * 7919 + at * 104_729) % 200_000) as Token).collect();
    let id = scheduler.begin(Begin::default())?;
    scheduler.on_tokens(id, 0, &prompt, None)?; // the ids are known: the reads start now
    let (reply, answer) = oneshot::channel();
    let history = History::new(scheduler.model().keygen(), 0);
    let left = 8 + number % 17;
    server.send(Live { id, due: prompt, history, left, output: Vec::new(), reply }).await?;
    Ok(answer.await?.len())
}

/// The engine's loop, until no client is left.
async fn engine(scheduler: &Scheduler, mut arrivals: mpsc::Receiver<Live>) -> Result<Report, Failure> {
    let mut report = Report::default();
    let mut batch: Vec<Live> = Vec::new();
    loop {
        while let Ok(live) = arrivals.try_recv() {
            batch.push(live);
        }
        if batch.is_empty() {
            match arrivals.recv().await {
                Some(live) => batch.push(live),
                None => return Ok(report),
            }
        }
        report.steps += 1;
        report.largest = report.largest.max(batch.len());
        let begin = Instant::now();
        for (table, &layer) in scheduler.layers().iter().enumerate() {
            tokio::time::sleep_until(begin + STEP * u32::from(layer.0) / MODEL_LAYERS).await;
            let reached = Instant::now();
            for live in &mut batch {
                let rows = scheduler.await_layer_at(live.id, layer).await?;
                report.wrong += check(scheduler, table, live, rows.bytes());
                report.tokens += live.due.len();
            }
            report.waited += reached.elapsed();
        }
        tokio::time::sleep_until(begin + STEP).await;
        for live in &mut batch {
            // Any sampler will do; the next step's rows are read while the loop goes on.
            let sampled = (live.due.iter().sum::<Token>() * 31 + 17) % 200_000;
            live.output.push(sampled);
            live.left -= 1;
            live.due = vec![sampled];
            if live.left > 0 {
                scheduler.on_token(live.id, sampled)?;
            }
        }
        for done in batch.extract_if(.., |live| live.left == 0) {
            scheduler.finish(done.id);
            // A client that has gone needs no answer.
            let _ = done.reply.send(done.output);
        }
    }
}

/// Rows of a synthetic table prove which row they are; gives the number that are wrong.
fn check(scheduler: &Scheduler, table: usize, live: &mut Live, bytes: &[u8]) -> usize {
    let model = scheduler.model();
    let keygen = model.keygen();
    let row_bytes = model.tables()[table].row_bytes() as usize;
    let mut ids = vec![0; keygen.columns()];
    let mut rows = bytes.chunks_exact(row_bytes);
    let mut wrong = 0;
    for &token in &live.due {
        let window = keygen.push(&mut live.history, token, true);
        keygen.token_rows(table, &window, &mut ids);
        wrong +=
            ids.iter().zip(&mut rows).filter(|(row, bytes)| model.proves(table, **row, bytes) != Some(true)).count();
    }
    wrong + rows.count()
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let dir = tempfile::tempdir()?;
    let table = dir.path().join("table");
    synth(&Synthetic::new(Spec::qwen_ple(), 16 << 20).plan(&table)?, &mut |_, _| ControlFlow::Continue(()))?;
    let scheduler = Scheduler::open(&table, &OpenOptions::default())?;

    let (server, arrivals) = mpsc::channel(REQUESTS);
    let clients: Vec<_> =
        (0..REQUESTS).map(|number| tokio::spawn(client(number, scheduler.clone(), server.clone()))).collect();
    drop(server);
    let report = engine(&scheduler, arrivals).await?;

    for (number, client) in clients.into_iter().enumerate() {
        assert_eq!(client.await??, 8 + number % 17, "client {number} got another number of tokens");
    }
    assert_eq!(report.wrong, 0, "rows that are not what their ids say");
    println!(
        "{REQUESTS} requests in {} steps, up to {} at once, {} tokens: every row right",
        report.steps, report.largest, report.tokens
    );
    println!(
        "wait at the layer: {:.0} us a step of {} ms",
        report.waited.as_secs_f64() * 1e6 / f64::from(report.steps),
        STEP.as_millis()
    );
    Ok(())
}
