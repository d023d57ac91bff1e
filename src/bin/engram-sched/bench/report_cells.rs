//! The parts of the report that are about many engines: the grid and the curve.

use super::arm::Arm;
use super::cells::Cell;
use super::report::{Report, rounded, spread_json};
use super::stats::Spread;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Exposed over device time, per round, of a cell of the curve.
fn exposed_over_device(arms: &[Arm]) -> Vec<f64> {
    let [at_token, at_layer] = arms else { return Vec::new() };
    let rounds = at_token.sum.exposed_us.iter().zip(&at_layer.sum.exposed_us);
    rounds.map(|(exposed, device)| exposed / device.max(1e-3)).collect()
}

/// What the device takes for a step, microseconds: the wait of an arm that asks when the layers have been reached.
fn device_us(arms: &[Arm]) -> f64 {
    arms.last().map_or(0.0, |at_layer| Spread::of(at_layer.sum.exposed_us.iter().copied()).median)
}

impl Report<'_> {
    pub(super) fn grid_json(&self, cells: &[Cell]) -> Value {
        let cell = |cell: &Cell| {
            json!({
                "step_time_us": cell.shape.step.as_micros() as u64, "requests": cell.shape.requests,
                "lead_us": rounded(cell.shape.lead().as_secs_f64() * 1e6), "arms": self.arms_json(&cell.arms),
            })
        };
        cells.iter().map(cell).collect()
    }

    pub(super) fn curve_json(&self, cells: &[Cell]) -> Value {
        let cell = |cell: &Cell| {
            let (lead_us, device_us) = (cell.shape.lead().as_secs_f64() * 1e6, device_us(&cell.arms));
            json!({
                "lead_us": rounded(lead_us), "device_us": rounded(device_us),
                "lead_over_device": rounded(lead_us / device_us.max(1e-3)),
                "exposed_over_device": spread_json(&exposed_over_device(&cell.arms)),
                "arms": self.arms_json(&cell.arms),
            })
        };
        cells.iter().map(cell).collect()
    }

    /// Mean and 99th percentile of what a token waits, all layers together or at the slowest layer, for each arm.
    pub(super) fn grid_table(&self, text: &mut String, cells: &[Cell]) {
        let Some(first) = cells.first() else { return };
        let _ = write!(
            text,
            "Exposed wait of a token, mean us / p99 us at a layer; steps within {} us\n\n{:>7} {:>8}",
            self.args.measure.wait_limit_us, "step", "requests"
        );
        for arm in &first.arms {
            let _ = write!(text, "  {:>26}", arm.name);
        }
        text.push('\n');
        for cell in cells {
            let _ = write!(text, "{:>4} ms {:>8}", cell.shape.step.as_millis(), cell.shape.requests);
            for arm in &cell.arms {
                let figures = &arm.sum.figures;
                let p99 = figures.waits.iter().map(|waits| waits.percentiles().p99).fold(0.0, f64::max);
                let _ = write!(
                    text,
                    "  {:>8.0} / {p99:>7.0} {:>5.1} %",
                    figures.exposed_us_per_token(),
                    arm.sum.good_share() * 100.0
                );
            }
            text.push('\n');
        }
        self.proofs(text, cells);
    }

    pub(super) fn curve_table(&self, text: &mut String, cells: &[Cell]) {
        let _ = writeln!(
            text,
            "What stays exposed of the time that the device takes for a step, by the lead that asking at the token wins\n\n\
             {:>11} {:>9} {:>10} {:>14} {:>19} {:>12}",
            "lead/device", "lead ms", "device ms", "exposed/device", "(min - max)", "1 - the lead"
        );
        for cell in cells {
            let (lead_us, device_us) = (cell.shape.lead().as_secs_f64() * 1e6, device_us(&cell.arms));
            let lead = lead_us / device_us.max(1e-3);
            let exposed = Spread::of(exposed_over_device(&cell.arms));
            let _ = writeln!(
                text,
                "{lead:>11.2} {:>9.2} {:>10.2} {:>14.3} {:>19} {:>12.3}",
                lead_us / 1e3,
                device_us / 1e3,
                exposed.median,
                format!("({:.3} - {:.3})", exposed.min, exposed.max),
                (1.0 - lead).max(0.0)
            );
        }
        self.proofs(text, cells);
    }

    /// Whether the runs of all cells were what they claim.
    fn proofs(&self, text: &mut String, cells: &[Cell]) {
        let arms: Vec<&Arm> = cells.iter().flat_map(|cell| &cell.arms).collect();
        let verdict = |which: &str| arms.iter().filter(|arm| arm.sum.validity.verdict() == which).count();
        let _ = write!(
            text,
            "\ncold: {} arms valid, {} void, {} not claimed",
            verdict("valid"),
            verdict("void"),
            verdict("not-claimed")
        );
        if self.args.measure.verify {
            let sum = |of: fn(&Arm) -> u64| arms.iter().map(|arm| of(arm)).sum::<u64>();
            let _ = write!(
                text,
                "; {} rows compared, {} wrong",
                sum(|arm| arm.sum.rows_checked),
                sum(|arm| arm.sum.mismatches)
            );
        }
        text.push('\n');
    }
}
