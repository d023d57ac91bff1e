//! The shape of the emulated engine, from the command line and the model.

use crate::args::{BenchArgs, ComputeArg};
use crate::failure::Failure;
use std::time::Duration;

/// What the emulated engine looks like.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// Requests side by side.
    pub(crate) requests: u32,
    /// Tokens of a prompt.
    pub(crate) prompt: u32,
    /// Tokens that a request generates.
    pub(crate) output: u32,
    /// Time of a step.
    pub(crate) step: Duration,
    /// Its last part, between sampling and the next forward pass.
    pub(crate) host: Duration,
    /// Decoder layers of the model.
    pub(crate) num_layers: u32,
    /// Zero-based decoder layers with a table, in the order of the tables.
    pub(crate) layers: Vec<u16>,
    /// What a computing engine does.
    pub(crate) compute: ComputeArg,
}

impl Shape {
    /// Checks what the command line asks for.
    pub(crate) fn new(args: &BenchArgs, layers: Vec<u16>, num_layers: u32) -> Result<Self, Failure> {
        let num_layers = args.num_layers.unwrap_or(num_layers);
        if let Some(layer) = layers.iter().find(|&&layer| u32::from(layer) >= num_layers) {
            return Err(Failure::usage(format!(
                "layer {layer} has a table, but the model has {num_layers} layers; correct --num-layers"
            )));
        }
        if !args.step_time.is_zero() && args.host_time >= args.step_time {
            return Err(Failure::usage("--host-time is the end of a step and must be shorter than --step-time"));
        }
        Ok(Self {
            requests: args.requests,
            prompt: args.prompt,
            output: args.output,
            step: args.step_time,
            host: args.host_time.min(args.step_time),
            num_layers,
            layers,
            compute: args.compute,
        })
    }

    /// From a step's start until table `table`'s layer is reached, without waits.
    pub(crate) fn layer_time(&self, table: usize) -> Duration {
        self.step * u32::from(self.layers[table]) / self.num_layers
    }

    /// Most tokens that one await of a request hands out.
    pub(crate) fn await_tokens(&self, batch_tokens: Option<u32>) -> u32 {
        batch_tokens.unwrap_or(self.prompt).max(1)
    }
}
