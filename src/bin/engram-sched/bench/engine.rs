//! The emulated engine: requests arrive, wait for a place, compute their prompts in chunks, and decode step by step, all in one batch.
//!
//! A step computes a token of each request that decodes, and chunks of prompts in order of arrival, as many as its budget holds. It
//! lasts `step`; each layer with a table is reached at its time, counted from the step's start on an absolute clock. The last `host` of
//! a step lies between sampling and the next forward pass. A wait at a layer moves everything after it, as it does in a real engine:
//! nothing is made up for. What happens between the layers (a request arrives) happens at its own time, and counts from the time that
//! was meant, also if the engine was waiting then.
//!
//! In a closed loop, the successor of a request arrives when the last step of that request is the next one, so that it waits a step.

use super::args::Shape;
use super::check::Checker;
use super::drive::{End, Entry, Kind, Rows};
use super::figures::RunFigures;
use super::machine;
use super::prefix::{self, PrefixCache};
use super::traffic::{Arrival, Traffic};
use crate::args::{ComputeArg, IssueArg};
use crate::failure::Failure;
use crate::interrupt;
use engram_sched::Token;
use std::collections::VecDeque;
use std::hint;
use std::thread;
use std::time::{Duration, Instant};

/// An idle engine looks for Ctrl-C this often.
const IDLE_MAX: Duration = Duration::from_millis(50);

/// A request of the emulated engine. Positions count from its first token, cached ones included.
struct Live {
    slot: usize,
    /// Prompt, then what it will generate.
    tokens: Vec<Token>,
    prompt: usize,
    output: u32,
    /// Tokens known so far.
    known: usize,
    /// Tokens handed over.
    fed: usize,
    /// Tokens whose rows were taken, or that the prefix cache had.
    taken: usize,
    /// Tokens that the step under way computes.
    due: usize,
    /// Tokens generated.
    generated: u32,
    /// When it was meant to arrive.
    arrived: Instant,
    abort_at: Option<usize>,
    /// Names of the prompt's whole blocks, with a prefix cache.
    blocks: Vec<u64>,
    /// Of those that a closed loop begins with: the clock starts once all of them generate.
    first: bool,
}

impl Live {
    fn kind(&self) -> Kind {
        if self.taken < self.prompt { Kind::Prefill } else { Kind::Decode }
    }

    /// Whether its next step is its last.
    fn leaves_next(&self, chunk: usize) -> bool {
        self.generated + 1 >= self.output && self.prompt.saturating_sub(self.taken) <= chunk
    }
}

/// What an engine is made of.
pub(crate) struct Parts<'a> {
    pub(crate) shape: &'a Shape,
    pub(crate) issue: IssueArg,
    pub(crate) rows: &'a mut dyn Rows,
    pub(crate) checker: &'a mut Checker,
    pub(crate) traffic: Traffic<'a>,
    /// Whether prompts skip what an earlier one computed.
    pub(crate) prefix_cache: bool,
    /// Most that the layers of a good step keep the engine waiting.
    pub(crate) wait_limit: Duration,
}

struct Engine<'a> {
    parts: Parts<'a>,
    prefix: Option<PrefixCache>,
    free: Vec<usize>,
    /// Admitted, prompts known, but not in the batch.
    waiting: VecDeque<Live>,
    running: Vec<Live>,
    entries: Vec<Entry>,
    /// What arrival times count from.
    began: Instant,
    /// Requests of the first batch that generate nothing yet.
    warming: usize,
    figures: RunFigures,
}

/// Slots of an engine of this shape: as many requests again as run may wait, or be queued to take a place.
pub(crate) fn slots(shape: &Shape) -> usize {
    2 * shape.requests as usize
}

/// Serves until `until` has passed, or the traffic has ended. `measured` is called when the clock starts: with the first arrival, or in a
/// closed loop once every request of the first batch generates; that all prompts come at once is no server's normal state.
pub(crate) fn serve(parts: Parts<'_>, until: Duration, measured: &mut dyn FnMut()) -> Result<RunFigures, Failure> {
    let figures = RunFigures::new(parts.shape.layers.len());
    let mut engine = Engine {
        prefix: parts.prefix_cache.then(PrefixCache::default),
        free: (0..slots(parts.shape)).rev().collect(),
        parts,
        waiting: VecDeque::new(),
        running: Vec::new(),
        entries: Vec::new(),
        began: Instant::now(),
        warming: 0,
        figures,
    };
    engine.run(until, measured)?;
    Ok(engine.figures)
}

impl Engine<'_> {
    fn run(&mut self, until: Duration, measured: &mut dyn FnMut()) -> Result<(), Failure> {
        let mut begin = self.began;
        if self.parts.traffic.is_closed() {
            // The first prompts wait for their turn for one step, like those that come later.
            begin += self.parts.shape.step;
            self.admit_first(begin)?;
            self.replenish()?;
            while self.warming > 0 {
                interrupt::check()?;
                begin = self.step(begin)?;
            }
            self.figures = RunFigures::new(self.parts.shape.layers.len());
            self.parts.checker.count_from_here();
        }
        measured();
        let (start, end) = (begin, begin + until);
        while begin < end {
            interrupt::check()?;
            self.take_seats();
            if !self.running.is_empty() {
                begin = self.step(begin)?;
                continue;
            }
            // Nothing to do until somebody comes; the engine then schedules it, and begins.
            let Some(due) = self.next_arrival() else { break };
            let idle_end = due.min(end).min(begin + IDLE_MAX);
            self.compute_until(idle_end)?;
            begin = if due <= idle_end { due.max(begin) + self.parts.shape.host } else { idle_end };
        }
        self.figures.wall = begin.max(start).duration_since(start);
        for live in self.waiting.drain(..).chain(self.running.drain(..)) {
            self.parts.rows.end(live.slot, End::Aborted);
        }
        Ok(())
    }

    /// The first batch of a closed loop. Ends are spread over the steps, as in a server that has run for a while.
    fn admit_first(&mut self, begin: Instant) -> Result<(), Failure> {
        let requests = self.parts.shape.requests;
        for i in 0..requests {
            if !self.admit(begin)? {
                break;
            }
            if let Some(live) = self.waiting.back_mut() {
                live.generated = (u64::from(live.output) * u64::from(i) / u64::from(requests)) as u32;
                live.first = true;
            }
        }
        self.warming = self.waiting.len();
        self.take_seats();
        Ok(())
    }

    /// One forward pass of the batch, and the sampling after it; returns when the next one begins.
    fn step(&mut self, begin: Instant) -> Result<Instant, Failure> {
        self.compute_until(begin)?;
        self.drop_aborted()?;
        self.compose();
        if self.entries.is_empty() {
            // All have gone away. Time goes on, also where their successors do the same.
            return Ok(begin.max(Instant::now()));
        }
        if self.parts.issue == IssueArg::AtStep {
            self.feed()?;
        }
        self.parts.rows.submit(&self.entries)?;
        let computed: u64 = self.entries.iter().map(|entry| entry.tokens as u64).sum();
        let tables = self.parts.shape.layers.len();
        let mut waits = Vec::with_capacity(tables);
        let mut stall = Duration::ZERO;
        for table in 0..tables {
            self.compute_until(begin + self.parts.shape.layer_at[table] + stall)?;
            let called = Instant::now();
            if table == 0 {
                if matches!(self.parts.issue, IssueArg::AtLayer | IssueArg::Memory) {
                    self.feed()?;
                }
                for live in self.running.iter().filter(|live| live.due > 0) {
                    self.parts.checker.tokens(live.slot, &live.tokens[live.taken..live.taken + live.due])?;
                }
            }
            let checker = &mut *self.parts.checker;
            let taken = self.parts.rows.take(table, called, &mut |slot, bytes| checker.rows(slot, table, bytes))?;
            stall += taken.wait;
            waits.push(taken.wait);
            self.figures.hidden += taken.hidden_tokens;
            self.figures.awaited += computed;
        }
        self.compute_until(begin + self.parts.shape.step.saturating_sub(self.parts.shape.host) + stall)?;
        self.account(&waits);
        self.sample();
        self.replenish()?;
        self.take_seats();
        if self.parts.issue == IssueArg::AtToken {
            self.feed()?;
        }
        // Whoever is late stays late: computation cannot be made up for.
        Ok((begin + self.parts.shape.step + stall).max(Instant::now()))
    }

    /// What the next step computes: the next token of all that decode, then chunks of prompts, none before an earlier one.
    fn compose(&mut self) {
        let mut left = self.parts.shape.step_tokens as usize;
        let chunk = self.parts.shape.chunk as usize;
        for kind in [Kind::Decode, Kind::Prefill] {
            for live in self.running.iter_mut().filter(|live| live.kind() == kind) {
                let part = match kind {
                    Kind::Decode => 1,
                    Kind::Prefill => chunk.min(live.prompt - live.taken),
                };
                // What does not fit leaves no room for a later one either.
                live.due = if part <= left { part } else { 0 };
                left = left.saturating_sub(part);
            }
        }
        self.entries.clear();
        let due = self.running.iter().filter(|live| live.due > 0);
        self.entries.extend(due.map(|live| Entry { slot: live.slot, tokens: live.due, kind: live.kind() }));
    }

    /// Books the waits of a step: for each token that it computed, and for each that it generated.
    fn account(&mut self, waits: &[Duration]) {
        let figures = &mut self.figures;
        let generated =
            self.running.iter().filter(|live| live.due > 0 && live.taken + live.due >= live.prompt).count() as u64;
        let mut computed = [0u64; 2];
        for entry in &self.entries {
            computed[usize::from(entry.kind == Kind::Prefill)] += entry.tokens as u64;
        }
        for (table, &wait) in waits.iter().enumerate() {
            figures.waits[table].record(wait, generated);
            for (kind, tokens) in [Kind::Decode, Kind::Prefill].into_iter().zip(computed) {
                figures.waits_of(kind)[table].record(wait, tokens);
            }
        }
        let good = waits.iter().sum::<Duration>() <= self.parts.wait_limit;
        figures.steps.all += 1;
        figures.steps.good += u64::from(good);
        figures.steps.good_tokens += if good { generated } else { 0 };
        figures.steps.mixed += u64::from(computed.iter().all(|&tokens| tokens > 0));
        figures.tokens += generated;
        figures.tokens_delivered += computed.iter().sum::<u64>();
    }

    /// The end of a step: every request that has computed all it knows samples its next token, or is complete.
    fn sample(&mut self) {
        let now = Instant::now();
        let mut at = 0;
        while at < self.running.len() {
            let live = &mut self.running[at];
            let kind = live.kind();
            live.taken += std::mem::take(&mut live.due);
            if let Some(prefix) = self.prefix.as_mut().filter(|_| kind == Kind::Prefill) {
                prefix.insert(&live.blocks, live.taken);
            }
            at += 1;
            if live.taken < live.known {
                continue;
            }
            live.generated += 1;
            if live.taken == live.prompt {
                self.figures.first_token.record(now.saturating_duration_since(live.arrived), 1);
                self.warming -= usize::from(std::mem::take(&mut live.first));
            }
            if live.generated < live.output {
                live.known += 1;
                continue;
            }
            at -= 1;
            let live = self.running.remove(at);
            self.retire(&live, End::Complete);
        }
    }

    /// Users that have gone away; the reads of their requests may be in flight.
    fn drop_aborted(&mut self) -> Result<(), Failure> {
        let gone = |live: &Live| live.abort_at.is_some_and(|at| live.taken >= at);
        let mut left = Vec::new();
        left.extend(self.running.extract_if(.., |live| gone(live)));
        while let Some(at) = self.waiting.iter().position(gone) {
            left.extend(self.waiting.remove(at));
        }
        for live in &left {
            self.warming -= usize::from(live.first);
            self.retire(live, End::Aborted);
        }
        // Who comes instead is seated after the step, so that whoever is gone by then is never computed.
        self.replenish()
    }

    fn retire(&mut self, live: &Live, end: End) {
        self.parts.rows.end(live.slot, end);
        self.free.push(live.slot);
        match end {
            End::Complete => self.figures.requests.complete += 1,
            End::Aborted => self.figures.requests.aborted += 1,
        }
    }

    /// A new request, meant to arrive at `at`; its prompt is handed over at once where the arm issues at the token. `false`: nobody comes
    /// any more.
    fn admit(&mut self, at: Instant) -> Result<bool, Failure> {
        let began = machine::thread_cpu();
        let arrival = self.parts.traffic.next();
        let Some(Arrival { tokens, prompt, output, abort_at }) = arrival else { return Ok(false) };
        let blocks = if self.prefix.is_some() { prefix::names(&tokens[..prompt]) } else { Vec::new() };
        self.figures.emulating += machine::thread_cpu().saturating_sub(began);
        let slot = self.free.pop().ok_or_else(|| Failure::failed("the emulated engine has no slot left"))?;
        let covered = self.prefix.as_ref().map_or(0, |prefix| prefix.covered(&blocks, prompt));
        self.parts.rows.begin(slot, &tokens[..covered])?;
        self.parts.checker.begin(slot, &tokens[..covered])?;
        let requests = &mut self.figures.requests;
        requests.arrived += 1;
        requests.prompt_tokens += prompt as u64;
        requests.prompt_tokens_cached += covered as u64;
        let mut live = Live {
            slot,
            tokens,
            prompt,
            output,
            known: prompt,
            fed: covered,
            taken: covered,
            due: 0,
            generated: 0,
            arrived: at,
            abort_at,
            blocks,
            first: false,
        };
        if self.parts.issue == IssueArg::AtToken {
            let called = Instant::now();
            self.parts.rows.feed(slot, covered as u64, &live.tokens[covered..prompt], Kind::Prefill)?;
            self.figures.issuing += called.elapsed();
            live.fed = prompt;
        }
        self.waiting.push_back(live);
        Ok(true)
    }

    /// A closed loop: all places are taken in the step after the next one.
    fn replenish(&mut self) -> Result<(), Failure> {
        if !self.parts.traffic.is_closed() {
            return Ok(());
        }
        let chunk = self.parts.shape.chunk as usize;
        let leaving = self.running.iter().filter(|live| live.leaves_next(chunk)).count();
        let wanted = self.parts.shape.requests as usize + leaving;
        while self.running.len() + self.waiting.len() < wanted && self.admit(Instant::now())? {}
        Ok(())
    }

    /// Those that wait take the places that are free.
    fn take_seats(&mut self) {
        while self.running.len() < self.parts.shape.requests as usize {
            let Some(live) = self.waiting.pop_front() else { break };
            self.running.push(live);
        }
    }

    /// Hands over every token that the next step may compute and that was not handed over: at the token all that are known, else the
    /// step's own.
    fn feed(&mut self) -> Result<(), Failure> {
        let called = Instant::now();
        for live in &mut self.running {
            let end = if self.parts.issue == IssueArg::AtToken { live.known } else { live.taken + live.due };
            if live.fed < end {
                self.parts.rows.feed(live.slot, live.fed as u64, &live.tokens[live.fed..end], live.kind())?;
                live.fed = end;
            }
        }
        self.figures.issuing += called.elapsed();
        Ok(())
    }

    /// When the next request arrives, if one does by itself.
    fn next_arrival(&self) -> Option<Instant> {
        self.parts.traffic.due().map(|due| self.began + due)
    }

    /// Computes, or idles, until `until`, and admits whoever arrives meanwhile, as long as there is room.
    fn compute_until(&mut self, until: Instant) -> Result<(), Failure> {
        while let Some(at) = self.next_arrival().filter(|&at| at <= until && !self.free.is_empty()) {
            self.rest_until(at);
            self.admit(at)?;
        }
        self.rest_until(until);
        Ok(())
    }

    fn rest_until(&mut self, until: Instant) {
        let now = Instant::now();
        let Some(left) = until.checked_duration_since(now).filter(|left| !left.is_zero()) else { return };
        match self.parts.shape.compute {
            ComputeArg::Asleep => thread::sleep(left),
            ComputeArg::Busy => {
                let began = machine::thread_cpu();
                while Instant::now() < until {
                    hint::spin_loop();
                }
                // By the CPU clock: what the thread lost to others while it spun was not its own.
                self.figures.emulating += machine::thread_cpu().saturating_sub(began);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use crate::bench::drive::{Show, Taken};
    use crate::bench::traffic::Workload;
    use clap::Parser;
    use engram_sched::{Model, ModelOptions, Spec, Synthetic, synth};
    use std::collections::HashSet;
    use std::ops::ControlFlow;

    /// Remembers what it was told; its layers take `wait`.
    #[derive(Default)]
    struct Script {
        wait: Duration,
        /// Slots, and the tokens that were computed before.
        begun: Vec<(usize, usize)>,
        ends: Vec<End>,
        /// Per slot: tokens fed and taken of the request that lives there.
        fed: Vec<usize>,
        taken: Vec<usize>,
        /// Steps: what each computed.
        steps: Vec<Vec<Entry>>,
        /// Tokens that were fed and not taken, at each layer.
        ahead: Vec<usize>,
        /// When tokens were fed, and when the layer was reached.
        feeds: Vec<Instant>,
        layers: Vec<Instant>,
    }

    impl Rows for Script {
        fn begin(&mut self, slot: usize, before: &[Token]) -> Result<(), Failure> {
            self.begun.push((slot, before.len()));
            self.fed.resize(64, 0);
            self.taken.resize(64, 0);
            (self.fed[slot], self.taken[slot]) = (before.len(), before.len());
            Ok(())
        }

        fn feed(&mut self, slot: usize, pos: u64, tokens: &[Token], kind: Kind) -> Result<(), Failure> {
            assert_eq!(self.fed[slot] as u64, pos, "tokens follow each other");
            assert!(kind == Kind::Prefill || tokens.len() == 1);
            self.fed[slot] += tokens.len();
            self.feeds.push(Instant::now());
            Ok(())
        }

        fn submit(&mut self, entries: &[Entry]) -> Result<(), Failure> {
            let slots: HashSet<usize> = entries.iter().map(|entry| entry.slot).collect();
            assert!(slots.len() == entries.len() && !entries.is_empty(), "one part a request");
            self.steps.push(entries.to_vec());
            Ok(())
        }

        fn take(&mut self, _: usize, _: Instant, _: Show<'_>) -> Result<Taken, Failure> {
            self.layers.push(Instant::now());
            for entry in self.steps.last().unwrap() {
                self.taken[entry.slot] += entry.tokens;
                assert!(entry.tokens > 0 && self.taken[entry.slot] <= self.fed[entry.slot], "taken before it was fed");
            }
            let (fed, taken): (usize, usize) = (self.fed.iter().sum(), self.taken.iter().sum());
            self.ahead.push(fed - taken);
            thread::sleep(self.wait);
            Ok(Taken { hidden_tokens: 0, wait: self.wait })
        }

        fn end(&mut self, slot: usize, end: End) {
            self.ends.push(end);
            // Whatever was fed and not computed is forgotten.
            (self.fed[slot], self.taken[slot]) = (0, 0);
        }
    }

    /// Runs `line` of the command line for `until`; one layer of four has a table.
    fn run(issue: IssueArg, line: &str, script: &mut Script, until: Duration) -> RunFigures {
        let Command::Bench(args) = Args::parse_from(format!("engram-sched bench {line}").split_whitespace()).command
        else {
            panic!("not bench");
        };
        let dir = tempfile::tempdir().unwrap();
        let plan = Synthetic::new(Spec::qwen_ple(), 1 << 20).plan(dir.path().join("t")).unwrap();
        synth(&plan, &mut |_, _| ControlFlow::Continue(())).unwrap();
        let model = Model::open(dir.path().join("t"), &ModelOptions::default()).unwrap();
        let mut workload = Workload::new(&args.traffic, None).ok().unwrap();
        workload.set_stream((0..3000).collect(), model.keygen()).ok().unwrap();
        let shape = Shape::new(&args.engine, vec![1], 4, workload.prompt_max()).ok().unwrap();
        let mut checker = Checker::new(&model, slots(&shape), false);
        let mut measured = 0;
        let parts = Parts {
            shape: &shape,
            issue,
            rows: script,
            checker: &mut checker,
            traffic: workload.round(0, 1),
            prefix_cache: args.engine.prefix_cache == crate::args::SwitchArg::On,
            wait_limit: Duration::from_millis(5),
        };
        let figures = serve(parts, until, &mut || measured += 1);
        assert_eq!(measured, 1);
        let figures = figures.unwrap_or_else(|failure| panic!("{}", failure.text()));
        assert_eq!(script.ends.len(), script.begun.len(), "every request is ended");
        figures
    }

    const SMALL: &str = "--requests 3 --prompt 5 --output 4 --step-time 1ms --host-time 250us";
    const SHORT: Duration = Duration::from_millis(40);

    #[test]
    fn every_token_is_fed_once_before_it_is_taken_and_successors_are_queued_for_one_step() {
        for issue in [IssueArg::AtToken, IssueArg::AtStep, IssueArg::AtLayer] {
            let mut script = Script::default();
            let figures = run(issue, SMALL, &mut script, SHORT);
            let steps = script.layers.len() as u64 - 1;
            assert_eq!((figures.tokens, figures.steps.all), (steps * 3, steps), "one token a request and step");
            assert!(figures.tokens_delivered > figures.tokens, "prompts, too");
            assert!(script.begun.len() > 9 && figures.requests.complete > 4, "requests come and go");
            let most = script.ahead.iter().max();
            // At the token, the prompt of a queued successor is ahead; else nothing is.
            assert_eq!(most == Some(&0), issue != IssueArg::AtToken, "{issue:?}: {most:?}");
        }
    }

    #[test]
    fn layers_are_reached_at_their_time_and_waits_move_everything_after_them() {
        let line = "--requests 3 --prompt 5 --output 4 --step-time 20ms --host-time 5ms";
        let mut script = Script { wait: Duration::from_millis(10), ..Script::default() };
        let called = Instant::now();
        let figures = run(IssueArg::AtStep, line, &mut script, Duration::from_millis(200));
        // The first step comes after one in the queue, and each layer after a quarter of its step. Never early.
        for (reached, step) in script.layers.iter().zip(0u64..) {
            assert!(*reached >= called + Duration::from_millis(20 + 5 + 30 * step), "{step}");
        }
        assert!(figures.wall >= Duration::from_millis(200));
        assert_eq!(figures.waits[0].percentiles().mean, 10_000.0);
        assert_eq!((figures.steps.good, figures.steps.good_tokens), (0, 0), "10 ms are above the limit");
        // Fed at the step's beginning, between the layers of two steps.
        for layers in script.layers.windows(2) {
            assert!(script.feeds.iter().any(|fed| (layers[0]..layers[1]).contains(fed)));
        }
    }

    #[test]
    fn long_prompts_are_computed_in_chunks_beside_tokens_within_the_budget() {
        let line = "--requests 3 --prompt 50 --output 4 --chunk 20 --step-tokens 41 --step-time 0";
        for issue in [IssueArg::AtToken, IssueArg::AtStep] {
            let mut script = Script::default();
            let figures = run(issue, line, &mut script, SHORT);
            for entries in &script.steps {
                assert!(entries.iter().map(|entry| entry.tokens).sum::<usize>() <= 41, "{entries:?}");
                let chunks = entries.iter().filter(|entry| entry.kind == Kind::Prefill);
                assert!(chunks.clone().all(|entry| [20, 10].contains(&entry.tokens)), "{entries:?}");
                let decodes = entries.iter().filter(|entry| entry.kind == Kind::Decode);
                assert!(decodes.clone().all(|entry| entry.tokens == 1));
            }
            assert!(figures.steps.mixed > 0 && figures.steps.mixed < figures.steps.all);
            assert_eq!(figures.steps.good, figures.steps.all);
            assert_eq!(figures.requests.prompt_tokens, figures.requests.arrived * 50);
        }
    }

    #[test]
    fn whoever_goes_away_is_aborted_and_replaced() {
        for (rate, line) in [(0.5, SMALL), (1.0, SMALL), (1.0, "--requests 3 --prompt 1 --output 1 --step-time 0")] {
            let mut script = Script::default();
            let figures = run(IssueArg::AtToken, &format!("{line} --abort-rate {rate}"), &mut script, SHORT);
            assert!(figures.requests.aborted > 3);
            // The first batch begins in the middle of its lives, and may miss the moment.
            assert_eq!(figures.requests.complete > 3, rate < 1.0, "{:?}", figures.requests);
            let aborted = script.ends.iter().filter(|end| **end == End::Aborted).count();
            assert!(aborted as u64 >= figures.requests.aborted);
        }
    }

    #[test]
    fn open_arrivals_come_at_their_times_and_wait_where_there_is_no_place() {
        let mut script = Script::default();
        let line = format!("{SMALL} --arrivals poisson --rate 300");
        let figures = run(IssueArg::AtToken, &line, &mut script, Duration::from_millis(300));
        assert!(figures.requests.complete > 0 && figures.requests.arrived >= figures.requests.complete);
        assert!(figures.first_token.percentiles().p50 >= 750.0, "a step at least");
        // Far more than can be served: everything is full, and who arrived long ago has waited long.
        let mut script = Script::default();
        let line = format!("{SMALL} --arrivals gamma --rate 100000");
        let figures = run(IssueArg::AtToken, &line, &mut script, Duration::from_millis(100));
        assert!(script.begun.iter().map(|begun| begun.0).collect::<HashSet<_>>().len() == 6, "all slots");
        assert!(figures.first_token.percentiles().max > 50_000.0, "{:?}", figures.first_token.percentiles());
    }

    #[test]
    fn a_trace_ends_and_its_shared_beginnings_are_computed_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.jsonl");
        let line = |at, blocks| {
            format!("{{\"timestamp\": {at}, \"input_length\": 1200, \"output_length\": 3, \"hash_ids\": {blocks}}}\n")
        };
        std::fs::write(&path, line(0, "[0, 1, 2]") + &line(150, "[0, 1, 3]") + &line(300, "[0, 5, 3]")).unwrap();
        let args = format!("--requests 3 --step-time 2ms --host-time 0 --trace mooncake {}", path.display());
        for (switch, covered) in [("off", [0, 0, 0]), ("on", [0, 1024, 512])] {
            let mut script = Script::default();
            let line = format!("{args} --prefix-cache {switch}");
            let figures = run(IssueArg::AtToken, &line, &mut script, Duration::from_secs(60));
            assert_eq!(script.begun.iter().map(|begun| begun.1).collect::<Vec<_>>(), covered);
            assert_eq!((figures.requests.arrived, figures.requests.complete, figures.tokens), (3, 3, 9));
            assert_eq!(figures.requests.prompt_tokens_cached, covered.iter().sum::<usize>() as u64);
            assert!(figures.wall >= Duration::from_millis(300));
            assert_eq!(figures.tokens_delivered, 3 * 1202 - figures.requests.prompt_tokens_cached);
        }
    }
}
