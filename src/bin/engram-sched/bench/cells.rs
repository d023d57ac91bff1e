//! Comparisons: one, or many of them on engines of different shapes (a grid, a curve). In each, arms run forwards and backwards in turn.

use super::args::Shape;
use super::arm::Arm;
use super::runs::Runner;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::Output;
use std::time::Duration;

/// Steps of the grid, and requests side by side.
const GRID_STEPS_MS: [u64; 3] = [10, 25, 50];
const GRID_REQUESTS: [u32; 4] = [1, 8, 32, 128];

/// Leads of the curve, as parts of the time that the device takes for a step.
const CURVE_LEADS: [f64; 8] = [0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0];

/// What the engine computes after its layers while the curve measures the device.
const CURVE_REST: Duration = Duration::from_millis(1);

/// The arms on an engine of one shape.
pub(crate) struct Cell {
    pub(crate) shape: Shape,
    pub(crate) arms: Vec<Arm>,
}

/// What was compared.
pub(crate) enum Findings {
    /// A single cell.
    One(Vec<Cell>),
    /// Steps of several lengths with several numbers of requests.
    Grid(Vec<Cell>),
    /// Leads of several lengths; the arms are at-token and at-layer, in this order.
    Curve(Vec<Cell>),
}

impl Findings {
    pub(crate) fn cells(&self) -> &[Cell] {
        match self {
            Self::One(cells) | Self::Grid(cells) | Self::Curve(cells) => cells,
        }
    }
}

impl Cell {
    /// What tells it apart from the other `cells`.
    pub(crate) fn name(&self, cells: &[Cell]) -> String {
        if cells.len() < 2 {
            return String::new();
        }
        format!("{}, ", self.shape.name())
    }
}

/// The shapes of the grid.
pub(crate) fn grid(shape: &Shape, host: Duration) -> Result<Vec<Shape>, Failure> {
    let steps = GRID_STEPS_MS.map(Duration::from_millis);
    steps.iter().flat_map(|&step| GRID_REQUESTS.map(|n| shape.with_requests(n).with_step(step, host))).collect()
}

/// Runs all arms on each of the shapes.
pub(crate) fn compare(
    runner: &Runner<'_>,
    shapes: Vec<Shape>,
    arms: &[Arm],
    out: &Output,
) -> Result<Vec<Cell>, Failure> {
    let rounds = runner.args.measure.rounds;
    let bar = out.progress(shapes.len() as u64 * u64::from(rounds) * arms.len() as u64, "running the arms", false);
    let mut cells = Vec::new();
    for shape in shapes {
        let mut arms: Vec<Arm> = arms.iter().map(Arm::afresh).collect();
        for round in 0..rounds {
            let forwards = round % 2 == 0;
            for at in 0..arms.len() {
                interrupt::check()?;
                let index = if forwards { at } else { arms.len() - 1 - at };
                bar.set_message(format!("{}, round {} of {rounds}, {}", shape.name(), round + 1, arms[index].name));
                runner.run(&shape, &mut arms[index], round)?;
                bar.inc(1);
            }
        }
        cells.push(Cell { shape, arms });
    }
    bar.finish_and_clear();
    Ok(cells)
}

/// Measures what the device takes for a step, then runs the arms at each lead of the curve.
pub(crate) fn curve(runner: &Runner<'_>, shape: &Shape, arms: &[Arm], out: &Output) -> Result<Vec<Cell>, Failure> {
    let [_, at_layer] = arms else { return Err(Failure::failed("a curve has two arms")) };
    let mut measuring = at_layer.afresh();
    runner.run(&shape.with_lead(Duration::ZERO, CURVE_REST), &mut measuring, 0)?;
    let device = Duration::from_secs_f64(measuring.sum.figures.exposed_us_per_token() / 1e6);
    if device.is_zero() {
        return Err(Failure::failed("no step was completed while the device was measured; raise --duration"));
    }
    // As much computation after the layers as the device takes, so that it is never busy with an earlier step.
    let shapes = CURVE_LEADS.map(|lead| shape.with_lead(device.mul_f64(lead), device));
    compare(runner, shapes.into(), arms, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use clap::Parser;

    #[test]
    fn the_grid_has_every_combination() {
        let Command::Bench(args) = Args::parse_from(["engram-sched", "bench", "--grid"]).command else {
            panic!("not bench");
        };
        let shape = Shape::new(&args.engine, vec![1], 48, 32).ok().unwrap();
        let cells = grid(&shape, args.engine.host_time).ok().unwrap();
        let shown: Vec<_> = cells.iter().map(|cell| (cell.step.as_millis(), cell.requests)).collect();
        assert_eq!(shown.len(), 12);
        assert_eq!((shown[0], shown[5], shown[11]), ((10, 1), (25, 8), (50, 128)));
        assert!(cells.iter().all(|cell| cell.step_tokens >= cell.requests + cell.chunk));
        assert!(grid(&shape, Duration::from_millis(10)).is_err(), "a host time as long as a step");
    }
}
