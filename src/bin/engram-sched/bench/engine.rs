//! The emulated engine: a batch of requests that decode step by step and take rows at their layers.
//!
//! A step lasts `step`; layer `l` of `num_layers` is reached at `l / num_layers` of it, counted from the step's start on an absolute
//! clock. The last `host` of a step lies between sampling and the next forward pass. A wait at a layer moves everything after it, as it
//! does in a real engine: nothing is made up for. Each request has a prompt, then generates; when it ends, the next one takes its
//! place, which was queued (and its prompt known) for one step before.

use super::args::Shape;
use super::check::Checker;
use super::machine;
use super::sources::{Entry, Rows};
use super::stats::Waits;
use crate::args::{ComputeArg, IssueArg};
use crate::failure::Failure;
use crate::interrupt;
use engram_sched::Token;
use std::hint;
use std::thread;
use std::time::{Duration, Instant};

/// What one run of an arm gave.
pub(crate) struct RunFigures {
    /// Time from the first step to the end of the last.
    pub(crate) wall: Duration,
    /// Tokens generated (decoding), or tokens whose rows were delivered (throughput).
    pub(crate) tokens: u64,
    /// Tokens whose rows were delivered, prompts included.
    pub(crate) tokens_delivered: u64,
    /// Waits per table, counted once per generated token.
    pub(crate) waits: Vec<Waits>,
    /// Sum of the waits of all steps, each counted once.
    pub(crate) stalled: Duration,
    /// (Token, layer) pairs whose rows were there when the layer was reached.
    pub(crate) hidden: u64,
    /// All (token, layer) pairs.
    pub(crate) awaited: u64,
    /// Time in the calls that hand tokens over.
    pub(crate) issuing: Duration,
    /// CPU time of the emulation itself (spinning), to be left out of the scheduler's account.
    pub(crate) spinning: Duration,
}

impl RunFigures {
    fn new(tables: usize) -> Self {
        Self {
            wall: Duration::ZERO,
            tokens: 0,
            tokens_delivered: 0,
            waits: (0..tables).map(|_| Waits::new()).collect(),
            stalled: Duration::ZERO,
            hidden: 0,
            awaited: 0,
            issuing: Duration::ZERO,
            spinning: Duration::ZERO,
        }
    }
}

/// A stream read in order from a place, over and over.
pub(crate) struct Cursor<'a> {
    stream: &'a [Token],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(stream: &'a [Token], at: u64) -> Self {
        Self { stream, at: (at % stream.len() as u64) as usize }
    }

    fn take(&mut self, n: usize) -> Vec<Token> {
        let tokens = (self.at..self.at + n).map(|i| self.stream[i % self.stream.len()]).collect();
        self.at = (self.at + n) % self.stream.len();
        tokens
    }
}

/// A request of the emulated engine.
struct Live {
    slot: usize,
    /// Prompt, then what it will generate.
    tokens: Vec<Token>,
    /// Tokens known so far.
    known: usize,
    /// Tokens handed over.
    fed: usize,
    /// Tokens whose rows were taken.
    taken: usize,
    /// Tokens generated.
    generated: u32,
}

struct Engine<'a> {
    shape: &'a Shape,
    issue: IssueArg,
    rows: &'a mut dyn Rows,
    checker: &'a mut Checker,
    cursor: Cursor<'a>,
    free: Vec<usize>,
    figures: RunFigures,
}

/// Decodes until `until` has passed, counted from the second step: in the first one all prompts of the batch come at once, which is no
/// server's normal state. `measured` is called when the clock starts.
pub(crate) fn decode(
    shape: &Shape,
    issue: IssueArg,
    rows: &mut dyn Rows,
    checker: &mut Checker,
    cursor: Cursor<'_>,
    until: Duration,
    measured: &mut dyn FnMut(),
) -> Result<RunFigures, Failure> {
    let requests = shape.requests as usize;
    let mut engine = Engine {
        shape,
        issue,
        rows,
        checker,
        cursor,
        // A request and its successor overlap for one step.
        free: (0..2 * requests).rev().collect(),
        figures: RunFigures::new(shape.layers.len()),
    };
    engine.run(until, measured)?;
    Ok(engine.figures)
}

impl Engine<'_> {
    fn run(&mut self, until: Duration, measured: &mut dyn FnMut()) -> Result<(), Failure> {
        let mut batch = Vec::new();
        for i in 0..self.shape.requests {
            let mut live = self.admit()?;
            // Ends are spread over the steps, as in a server that has run for a while.
            live.generated = (u64::from(self.shape.output) * u64::from(i) / u64::from(self.shape.requests)) as u32;
            batch.push(live);
        }
        let mut queued: Vec<Option<Live>> = batch.iter().map(|_| None).collect();
        // The first prompts wait for their turn for one step, like those that come later.
        let first = Instant::now() + self.shape.step;
        self.queue_successors(&batch, &mut queued)?;
        let start = self.step(&mut batch, &mut queued, first)?;
        self.figures = RunFigures::new(self.shape.layers.len());
        self.checker.count_from_here();
        measured();
        let mut begin = start;
        while begin.duration_since(start) < until {
            interrupt::check()?;
            begin = self.step(&mut batch, &mut queued, begin)?;
        }
        self.figures.wall = begin.duration_since(start);
        for live in batch.iter().chain(queued.iter().flatten()) {
            self.rows.finish(live.slot);
        }
        Ok(())
    }

    /// One forward pass of the batch, and the sampling after it; returns when the next one begins.
    fn step(&mut self, batch: &mut [Live], queued: &mut [Option<Live>], begin: Instant) -> Result<Instant, Failure> {
        self.compute_until(begin);
        if self.issue == IssueArg::AtStep {
            self.feed(batch)?;
        }
        let entries: Vec<Entry> =
            batch.iter().map(|live| Entry { slot: live.slot, tokens: live.known - live.taken }).collect();
        let due: u64 = entries.iter().map(|entry| entry.tokens as u64).sum();
        let mut stall = Duration::ZERO;
        for table in 0..self.shape.layers.len() {
            self.compute_until(begin + self.shape.layer_time(table) + stall);
            let called = Instant::now();
            if table == 0 {
                if matches!(self.issue, IssueArg::AtLayer | IssueArg::Memory) {
                    self.feed(batch)?;
                }
                for live in batch.iter() {
                    self.checker.tokens(live.slot, &live.tokens[live.taken..live.known])?;
                }
            }
            let checker = &mut *self.checker;
            let taken = self.rows.take(table, &entries, called, &mut |slot, bytes| checker.rows(slot, table, bytes))?;
            stall += taken.wait;
            self.figures.waits[table].record(taken.wait, batch.len() as u64);
            self.figures.hidden += taken.hidden_tokens;
            self.figures.awaited += due;
        }
        self.figures.stalled += stall;
        self.figures.tokens += batch.len() as u64;
        self.figures.tokens_delivered += due;

        self.compute_until(begin + self.shape.step.saturating_sub(self.shape.host) + stall);
        for (live, next) in batch.iter_mut().zip(queued.iter_mut()) {
            live.taken = live.known;
            live.generated += 1;
            if live.generated < self.shape.output {
                live.known += 1;
            } else {
                self.rows.finish(live.slot);
                self.free.push(live.slot);
                *live = match next.take() {
                    Some(next) => next,
                    None => self.admit()?,
                };
            }
        }
        if self.issue == IssueArg::AtToken {
            self.feed(batch)?;
        }
        self.queue_successors(batch, queued)?;
        // Whoever is late stays late: computation cannot be made up for.
        Ok((begin + self.shape.step + stall).max(Instant::now()))
    }

    /// A new request; its prompt is handed over at once where the arm issues at the token.
    fn admit(&mut self) -> Result<Live, Failure> {
        let (prompt, output) = (self.shape.prompt as usize, self.shape.output as usize);
        // The last token generated is never computed.
        let tokens = self.cursor.take(prompt + output - 1);
        let slot = self.free.pop().ok_or_else(|| Failure::failed("the emulated engine has no slot left"))?;
        self.rows.begin(slot)?;
        self.checker.begin(slot);
        let mut live = Live { slot, tokens, known: prompt, fed: 0, taken: 0, generated: 0 };
        if self.issue == IssueArg::AtToken {
            self.feed(std::slice::from_mut(&mut live))?;
        }
        Ok(live)
    }

    /// Whoever computes its last step next has its successor waiting.
    fn queue_successors(&mut self, batch: &[Live], queued: &mut [Option<Live>]) -> Result<(), Failure> {
        for (live, next) in batch.iter().zip(queued) {
            if live.generated + 1 >= self.shape.output && next.is_none() {
                *next = Some(self.admit()?);
            }
        }
        Ok(())
    }

    /// Hands over every token that is known and was not handed over.
    fn feed(&mut self, batch: &mut [Live]) -> Result<(), Failure> {
        let called = Instant::now();
        for live in batch {
            if live.fed < live.known {
                self.rows.feed(live.slot, live.fed as u64, &live.tokens[live.fed..live.known])?;
                live.fed = live.known;
            }
        }
        self.figures.issuing += called.elapsed();
        Ok(())
    }

    fn compute_until(&mut self, until: Instant) {
        let now = Instant::now();
        let Some(left) = until.checked_duration_since(now).filter(|left| !left.is_zero()) else { return };
        match self.shape.compute {
            ComputeArg::Asleep => thread::sleep(left),
            ComputeArg::Busy => {
                let began = machine::thread_cpu();
                while Instant::now() < until {
                    hint::spin_loop();
                }
                // By the CPU clock: what the thread lost to others while it spun was not its own.
                self.figures.spinning += machine::thread_cpu().saturating_sub(began);
            }
        }
    }
}

/// Delivers chunks of `chunk` tokens of each request, one chunk ahead, until `until` has passed.
pub(crate) fn bulk(
    shape: &Shape,
    chunk: usize,
    rows: &mut dyn Rows,
    checker: &mut Checker,
    mut cursor: Cursor<'_>,
    until: Duration,
    measured: &mut dyn FnMut(),
) -> Result<RunFigures, Failure> {
    let mut figures = RunFigures::new(shape.layers.len());
    let mut ahead = Vec::new();
    for slot in 0..shape.requests as usize {
        rows.begin(slot)?;
        checker.begin(slot);
        ahead.push((0u64, Vec::new()));
    }
    measured();
    let start = Instant::now();
    let mut stopping = false;
    loop {
        for (slot, (fed, chunk_ahead)) in ahead.iter_mut().enumerate() {
            interrupt::check()?;
            let next = if stopping { Vec::new() } else { cursor.take(chunk) };
            if !next.is_empty() {
                let called = Instant::now();
                rows.feed(slot, *fed, &next)?;
                figures.issuing += called.elapsed();
                *fed += next.len() as u64;
            }
            let due = std::mem::replace(chunk_ahead, next);
            if due.is_empty() {
                continue;
            }
            checker.tokens(slot, &due)?;
            let entry = [Entry { slot, tokens: due.len() }];
            for table in 0..shape.layers.len() {
                let taken =
                    rows.take(table, &entry, Instant::now(), &mut |slot, bytes| checker.rows(slot, table, bytes))?;
                figures.waits[table].record(taken.wait, due.len() as u64);
                figures.hidden += taken.hidden_tokens;
                figures.awaited += due.len() as u64;
                figures.stalled += taken.wait;
            }
            figures.tokens += due.len() as u64;
            figures.tokens_delivered += due.len() as u64;
        }
        if stopping {
            break;
        }
        stopping = start.elapsed() >= until;
    }
    figures.wall = start.elapsed();
    for slot in 0..shape.requests as usize {
        rows.finish(slot);
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::sources::{Show, Taken};
    use engram_sched::{Model, ModelOptions, Spec, Synthetic, synth};
    use std::ops::ControlFlow;

    /// Remembers what it was told; its layers take `wait`.
    #[derive(Default)]
    struct Script {
        wait: Duration,
        begun: Vec<usize>,
        /// Per slot: tokens fed and taken of the request that lives there.
        fed: Vec<usize>,
        taken: Vec<usize>,
        /// Tokens that were fed and not taken, at each layer.
        ahead: Vec<usize>,
        /// When tokens were fed, and when the layer was reached.
        feeds: Vec<Instant>,
        layers: Vec<Instant>,
    }

    impl Rows for Script {
        fn begin(&mut self, slot: usize) -> Result<(), Failure> {
            self.begun.push(slot);
            self.fed.resize(8, 0);
            self.taken.resize(8, 0);
            (self.fed[slot], self.taken[slot]) = (0, 0);
            Ok(())
        }

        fn feed(&mut self, slot: usize, pos: u64, tokens: &[Token]) -> Result<(), Failure> {
            assert_eq!(self.fed[slot] as u64, pos, "tokens follow each other");
            self.fed[slot] += tokens.len();
            self.feeds.push(Instant::now());
            Ok(())
        }

        fn take(&mut self, _: usize, entries: &[Entry], _: Instant, _: Show<'_>) -> Result<Taken, Failure> {
            self.layers.push(Instant::now());
            for entry in entries {
                self.taken[entry.slot] += entry.tokens;
                assert!(entry.tokens > 0 && self.taken[entry.slot] <= self.fed[entry.slot], "taken before it was fed");
            }
            let (fed, taken): (usize, usize) = (self.fed.iter().sum(), self.taken.iter().sum());
            self.ahead.push(fed - taken);
            thread::sleep(self.wait);
            Ok(Taken { hidden_tokens: 0, wait: self.wait })
        }

        fn finish(&mut self, slot: usize) {
            // Whatever was fed and not computed is forgotten.
            (self.fed[slot], self.taken[slot]) = (0, 0);
        }
    }

    fn shape(step: Duration) -> Shape {
        Shape {
            requests: 3,
            prompt: 5,
            output: 4,
            step,
            host: step / 4,
            num_layers: 4,
            layers: vec![1],
            compute: ComputeArg::Asleep,
        }
    }

    fn decode_with(issue: IssueArg, shape: &Shape, script: &mut Script, until: Duration) -> RunFigures {
        let dir = tempfile::tempdir().unwrap();
        let plan = Synthetic::new(Spec::qwen_ple(), 1 << 20).plan(dir.path().join("t")).unwrap();
        synth(&plan, &mut |_, _| ControlFlow::Continue(())).unwrap();
        let model = Model::open(dir.path().join("t"), &ModelOptions::default()).unwrap();
        let mut checker = Checker::new(&model, 6, false);
        let stream: Vec<Token> = (0..1000).collect();
        let (mut measured, cursor) = (0, Cursor::new(&stream, 7));
        let figures = decode(shape, issue, script, &mut checker, cursor, until, &mut || measured += 1);
        assert_eq!(measured, 1);
        figures.unwrap_or_else(|failure| panic!("{}", failure.text()))
    }

    #[test]
    fn every_token_is_fed_once_before_it_is_taken_and_successors_are_queued_for_one_step() {
        for issue in [IssueArg::AtToken, IssueArg::AtStep, IssueArg::AtLayer] {
            let mut script = Script::default();
            let figures = decode_with(issue, &shape(Duration::from_millis(1)), &mut script, Duration::from_millis(40));
            let steps = script.layers.len() as u64 - 1;
            assert_eq!(figures.tokens, steps * 3, "one token a request and step");
            assert!(figures.tokens_delivered > figures.tokens, "prompts, too");
            assert!(script.begun.len() > 9, "requests come and go");
            let most = script.ahead.iter().max();
            // At the token, the prompt of a queued successor is ahead; else nothing is.
            assert_eq!(most == Some(&0), issue != IssueArg::AtToken, "{issue:?}: {most:?}");
        }
    }

    #[test]
    fn layers_are_reached_at_their_time_and_waits_move_everything_after_them() {
        let step = Duration::from_millis(20);
        let mut script = Script { wait: Duration::from_millis(10), ..Script::default() };
        let figures = decode_with(IssueArg::AtStep, &shape(step), &mut script, Duration::from_millis(200));
        let between: Vec<Duration> = script.layers.windows(2).map(|pair| pair[1] - pair[0]).collect();
        // Never early; late by what the machine is late.
        assert!(between.iter().all(|gap| *gap >= Duration::from_millis(29)), "{between:?}");
        assert!(figures.wall >= Duration::from_millis(200));
        assert_eq!(figures.stalled.as_millis() as u64 / 10 * 3, figures.tokens);
        // Fed at the step's beginning, a quarter of the step before the layer.
        let lead = script.layers[3] - script.feeds.iter().rfind(|at| **at < script.layers[3]).copied().unwrap();
        assert!(lead >= Duration::from_millis(4), "{lead:?}");
    }
}
