//! The `engram-sched` command: row ids, token maps, synthetic tables, inspection, verification and the benchmark.
//!
//! Exit status: 0 done, 1 failure, 2 usage, 3 a measurement that failed its proof (VOID), 130 interrupted. What a command found goes
//! to standard output, everything else to standard error. A command that is interrupted or fails removes what it had half written.

mod args;
mod bench;
mod failure;
mod hole_rule;
mod inspect;
mod interrupt;
mod output;
mod rows;
mod selection;
mod synth;
mod token_map;
mod tokens;
mod verify;

use args::{Args, Command};
use clap::Parser;
use failure::Failure;
use output::Output;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = Args::parse();
    let out = Output::new(args.json, args.quiet);
    interrupt::install();
    let done = match args.command {
        Command::Rows(args) => rows::run(&args, &out),
        Command::TokenMap(args) => token_map::run(&args, &out),
        Command::Synth(args) => synth::run(&args, &out),
        Command::Inspect(args) => inspect::run(&args, &out),
        Command::Verify(args) => verify::run(&args, &out),
        Command::Bench(args) => bench::run(&args, &out),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Whatever went wrong after Ctrl-C, such as a read that it cut off, is its consequence.
            let failure = if interrupt::asked() { Failure::Interrupted } else { failure };
            failure.print();
            ExitCode::from(failure.exit_code())
        }
    }
}
