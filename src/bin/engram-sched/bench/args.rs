//! The shape of the emulated engine, from the command line and the model.

use crate::args::{ComputeArg, EngineArgs};
use crate::failure::Failure;
use std::time::Duration;

/// Tokens of a step, unless requests and a chunk need more: what engines take by default.
const STEP_TOKENS_DEFAULT: u32 = 2048;

/// What the emulated engine looks like.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// Requests side by side, at most.
    pub(crate) requests: u32,
    /// Most tokens of one prompt in a step.
    pub(crate) chunk: u32,
    /// Most tokens of a step.
    pub(crate) step_tokens: u32,
    /// Time of a step.
    pub(crate) step: Duration,
    /// Its last part, between sampling and the next forward pass.
    pub(crate) host: Duration,
    /// Decoder layers of the model.
    pub(crate) num_layers: u32,
    /// Zero-based decoder layers with a table, in the order of the tables.
    pub(crate) layers: Vec<u16>,
    /// From a step's start until each of them is reached, without waits.
    pub(crate) layer_at: Vec<Duration>,
    /// What a computing engine does.
    pub(crate) compute: ComputeArg,
}

impl Shape {
    /// Checks what the command line asks for; no prompt is longer than `prompt_max` tokens.
    pub(crate) fn new(args: &EngineArgs, layers: Vec<u16>, num_layers: u32, prompt_max: u32) -> Result<Self, Failure> {
        let num_layers = args.num_layers.unwrap_or(num_layers);
        if let Some(layer) = layers.iter().find(|&&layer| u32::from(layer) >= num_layers) {
            return Err(Failure::usage(format!(
                "layer {layer} has a table, but the model has {num_layers} layers; correct --num-layers"
            )));
        }
        let chunk = args.chunk.min(prompt_max).max(1);
        let need = args.requests + chunk;
        let step_tokens = args.step_tokens.unwrap_or(STEP_TOKENS_DEFAULT.max(need));
        if step_tokens < need {
            return Err(Failure::usage(format!(
                "--step-tokens {step_tokens} leaves no room for a chunk of {chunk} tokens beside {} requests that decode, so that prompts \
                 could wait for ever; raise it to {need} or more, or lower --chunk or --requests",
                args.requests
            )));
        }
        let shape = Self {
            requests: args.requests,
            chunk,
            step_tokens,
            step: Duration::ZERO,
            host: Duration::ZERO,
            num_layers,
            layers,
            layer_at: Vec::new(),
            compute: args.compute,
        };
        shape.with_step(args.step_time, args.host_time)
    }

    /// The same with steps of `step`, of which `host` lies between sampling and the next pass.
    pub(crate) fn with_step(&self, step: Duration, host: Duration) -> Result<Self, Failure> {
        if !step.is_zero() && host >= step {
            return Err(Failure::usage(format!(
                "--host-time {host:?} is the end of a step and must be shorter than its {step:?}; lower it or raise --step-time"
            )));
        }
        let layer_at = self.layers.iter().map(|&layer| step * u32::from(layer) / self.num_layers).collect();
        Ok(Self { step, host: host.min(step), layer_at, ..self.clone() })
    }

    /// The same with `requests` requests.
    pub(crate) fn with_requests(&self, requests: u32) -> Self {
        Self { requests, step_tokens: self.step_tokens.max(requests + self.chunk), ..self.clone() }
    }

    /// The same, with all layers `lead` after the token is known, and `rest` of computation after them.
    pub(crate) fn with_lead(&self, lead: Duration, rest: Duration) -> Self {
        let layer_at = vec![lead; self.layers.len()];
        Self { step: lead + rest, host: Duration::ZERO, layer_at, ..self.clone() }
    }

    /// What tells it apart from others in a grid or a curve.
    pub(crate) fn name(&self) -> String {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        format!("{} x {:.1} ms, lead {:.2} ms", self.requests, ms(self.step), ms(self.lead()))
    }

    /// From the moment a token is known until the first layer needs its rows.
    pub(crate) fn lead(&self) -> Duration {
        self.host + self.layer_at.first().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use clap::Parser;

    fn shape(line: &str) -> Result<Shape, Failure> {
        let Command::Bench(args) = Args::parse_from(format!("engram-sched bench {line}").split_whitespace()).command
        else {
            panic!("not bench");
        };
        Shape::new(&args.engine, vec![1, 14], 40, 1000)
    }

    #[test]
    fn layers_lie_at_their_part_of_a_step() {
        let shape = shape("--step-time 40ms --host-time 2ms --chunk 4096").ok().unwrap();
        assert_eq!(shape.layer_at, [Duration::from_millis(1), Duration::from_millis(14)]);
        assert_eq!((shape.lead(), shape.chunk, shape.step_tokens), (Duration::from_millis(3), 1000, 2048));
        let ahead = shape.with_lead(Duration::from_millis(7), Duration::from_millis(2));
        assert_eq!((ahead.lead(), ahead.step), (Duration::from_millis(7), Duration::from_millis(9)));
        assert_eq!(shape.with_requests(2000).step_tokens, 3000);
    }

    #[test]
    fn shapes_that_cannot_run_are_refused() {
        for (line, why) in [
            ("--num-layers 14", "--num-layers"),
            ("--step-tokens 519", "raise it to 520"),
            ("--step-time 1ms --host-time 1ms", "--host-time"),
        ] {
            let failure = shape(line).expect_err(line);
            assert_eq!(failure.exit_code(), 2);
            assert!(failure.text().contains(why), "{line}");
        }
    }
}
