//! A decode loop in which the layer really consumes the rows: a small transformer-like model on the CPU.
//!
//! The model generates greedily, twice: with its rows from the scheduler, and with the whole table in memory. Both must give the same
//! tokens. Rows are FP8; they are decoded to bfloat16 and projected into the hidden state. `cargo run --release --example decode_loop`

use engram_sched::{Begin, History, Model, OpenOptions, Scheduler, Spec, Synthetic, Token, decode, synth};
use std::error::Error;
use std::ops::ControlFlow;

const HIDDEN: usize = 256;
const LAYERS: usize = 6;
/// The layer that consumes rows; those below it give the reads their time.
const TABLE_LAYER: u16 = 4;
const VOCAB: usize = 997;
const STEPS: usize = 48;

/// A reproducible weight in -1..1.
fn weight(seed: usize) -> f32 {
    let mut x = (seed as u64).wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((x >> 40) as f32 / (1u64 << 23) as f32) - 1.0
}

fn matrix(rows: usize, columns: usize, seed: usize) -> Vec<f32> {
    (0..rows * columns).map(|i| weight(seed * 1_000_003 + i) / (columns as f32).sqrt()).collect()
}

/// `out += matrix * x`
fn add_product(out: &mut [f32], matrix: &[f32], x: &[f32]) {
    for (out, row) in out.iter_mut().zip(matrix.chunks_exact(x.len())) {
        *out += row.iter().zip(x).map(|(m, x)| m * x).sum::<f32>();
    }
}

fn normalize(x: &mut [f32]) {
    let scale = (x.iter().map(|v| v * v).sum::<f32>() / x.len() as f32 + 1e-6).sqrt();
    x.iter_mut().for_each(|v| *v /= scale);
}

/// Mixes with its own past, then a gated projection: enough to let every row matter for every later token.
struct Net {
    embedding: Vec<f32>,
    head: Vec<f32>,
    layers: Vec<(Vec<f32>, Vec<f32>)>,
    /// Rows of a token, all heads, into the hidden state.
    ngram: Vec<f32>,
    states: Vec<Vec<f32>>,
}

impl Net {
    fn new(row_values: usize) -> Self {
        Self {
            embedding: matrix(VOCAB, HIDDEN, 1),
            head: matrix(VOCAB, HIDDEN, 2),
            layers: (0..LAYERS).map(|l| (matrix(HIDDEN, HIDDEN, 10 + l), matrix(HIDDEN, HIDDEN, 20 + l))).collect(),
            ngram: matrix(HIDDEN, row_values, 30),
            states: vec![vec![0.0; HIDDEN]; LAYERS],
        }
    }

    /// One token through all layers; `rows` is asked for the table's values when its layer is reached.
    fn forward(
        &mut self,
        token: Token,
        ngram_layer: usize,
        rows: &mut dyn FnMut() -> Result<Vec<f32>, Box<dyn Error>>,
    ) -> Result<Token, Box<dyn Error>> {
        let at = token as usize * HIDDEN;
        let mut hidden = self.embedding[at..at + HIDDEN].to_vec();
        for layer in 0..LAYERS {
            if layer == ngram_layer {
                add_product(&mut hidden, &self.ngram, &rows()?);
            }
            let state = &mut self.states[layer];
            state.iter_mut().zip(&hidden).for_each(|(s, h)| *s = 0.7 * *s + 0.3 * h);
            let (mix, gate) = &self.layers[layer];
            let mut gated = vec![0.0; HIDDEN];
            add_product(&mut gated, gate, &hidden);
            gated.iter_mut().zip(state.iter()).for_each(|(g, s)| *g = s / (1.0 + (-*g).exp()));
            add_product(&mut hidden, mix, &gated);
            normalize(&mut hidden);
        }
        let mut logits = vec![0.0; VOCAB];
        add_product(&mut logits, &self.head, &hidden);
        let best = (0..VOCAB).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap_or(0);
        Ok(best as Token)
    }
}

/// The rows of one token, decoded.
fn values(model: &Model, bytes: &[u8]) -> Result<Vec<f32>, Box<dyn Error>> {
    let format = model.row_format();
    let mut out = Vec::new();
    let mut row_values = vec![0; format.values() as usize];
    for row in bytes.chunks_exact(format.row_bytes() as usize) {
        decode::decode_bf16(format, decode::ScaleZero::default(), row, &mut row_values)?;
        // The table's own scale makes the values small; the toy needs them of the size of its hidden state.
        out.extend(row_values.iter().map(|&bits| f32::from_bits(u32::from(bits) << 16) * 30.0));
    }
    Ok(out)
}

/// Generates with rows from the scheduler.
fn with_scheduler(scheduler: &Scheduler, prompt: Token) -> Result<Vec<Token>, Box<dyn Error>> {
    let model = scheduler.model();
    let layer = scheduler.layers()[0];
    let mut net = Net::new(model.keygen().columns() * model.row_format().values() as usize);
    let request = scheduler.begin(Begin::default())?;
    let (mut token, mut output) = (prompt, Vec::new());
    for _ in 0..STEPS {
        scheduler.on_token(request, token)?; // known now, needed at the layer
        token = net.forward(token, layer.0.into(), &mut || {
            let rows = scheduler.await_layer_at(request, layer).wait()?;
            values(model, rows.bytes())
        })?;
        output.push(token);
    }
    scheduler.finish(request);
    Ok(output)
}

/// Generates with the whole table in memory.
fn with_memory(model: &Model, prompt: Token) -> Result<Vec<Token>, Box<dyn Error>> {
    let (keygen, table) = (model.keygen(), &model.tables()[0]);
    let row_bytes = table.row_bytes() as usize;
    let mut memory = vec![0; table.rows() as usize * row_bytes];
    let reader = model.plain_reader()?;
    for (row, bytes) in memory.chunks_exact_mut(row_bytes).enumerate() {
        reader.read_row(0, row as u64, bytes)?;
    }
    let mut net = Net::new(keygen.columns() * model.row_format().values() as usize);
    let mut history = History::new(keygen, 0);
    let mut ids = vec![0; keygen.columns()];
    let (mut token, mut output) = (prompt, Vec::new());
    for _ in 0..STEPS {
        let window = keygen.push(&mut history, token, true);
        token = net.forward(token, table.layer().into(), &mut || {
            keygen.token_rows(0, &window, &mut ids);
            let bytes: Vec<u8> =
                ids.iter().flat_map(|&row| &memory[row as usize * row_bytes..][..row_bytes]).copied().collect();
            values(model, &bytes)
        })?;
        output.push(token);
    }
    Ok(output)
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let table = dir.path().join("table");
    let spec = Spec { layer_ids: vec![TABLE_LAYER], ..Spec::qwen_ple() };
    synth(&Synthetic::new(spec, 4 << 20).plan(&table)?, &mut |_, _| ControlFlow::Continue(()))?;
    let scheduler = Scheduler::open(&table, &OpenOptions::default())?;

    let scheduled = with_scheduler(&scheduler, 42)?;
    let in_memory = with_memory(scheduler.model(), 42)?;
    assert_eq!(scheduled, in_memory, "the scheduler's rows gave other tokens than the table in memory");
    let distinct = scheduled.iter().collect::<std::collections::HashSet<_>>().len();
    assert!(distinct > STEPS / 4, "the model loops: {scheduled:?}");

    let stats = scheduler.stats();
    println!("{STEPS} tokens generated twice, the same both times: {:?} ...", &scheduled[..8]);
    println!("{} rows from {} reads; {} of {STEPS} layers did not wait", stats.rows, stats.reads, stats.layers_hidden);
    Ok(())
}
