//! Histograms and medians of an arm.

use hdrhistogram::Histogram;
use std::time::Duration;

/// Waits of one layer.
pub(crate) struct Waits {
    histogram: Histogram<u64>,
    sum_ns: u128,
}

/// The percentiles that are reported, microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Percentiles {
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
}

impl Waits {
    pub(crate) fn new() -> Self {
        // 1 ns to 10 min with three digits, some 200 KiB; the bounds are constants that the crate accepts.
        let histogram = Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("constant bounds");
        Self { histogram, sum_ns: 0 }
    }

    /// `tokens` tokens waited this long.
    pub(crate) fn record(&mut self, wait: Duration, tokens: u64) {
        if tokens == 0 {
            return;
        }
        let ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        self.histogram.saturating_record_n(ns.max(1), tokens);
        self.sum_ns += wait.as_nanos() * u128::from(tokens);
    }

    /// Adds the waits of another run.
    pub(crate) fn add(&mut self, other: &Self) {
        // Both have the same bounds, so nothing can be out of range.
        self.histogram.add(&other.histogram).expect("equal bounds");
        self.sum_ns += other.sum_ns;
    }

    pub(crate) fn percentiles(&self) -> Percentiles {
        if self.histogram.is_empty() {
            return Percentiles::default();
        }
        let at = |quantile| self.histogram.value_at_quantile(quantile) as f64 / 1e3;
        Percentiles {
            mean: self.sum_ns as f64 / self.histogram.len() as f64 / 1e3,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: self.histogram.max() as f64 / 1e3,
        }
    }
}

/// Median, least and greatest of the rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (values.first(), values.last()) else { return Self::default() };
        let middle = values.len() / 2;
        let median =
            if values.len().is_multiple_of(2) { (values[middle - 1] + values[middle]) / 2.0 } else { values[middle] };
        Self { median, min, max }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_weigh_tokens() {
        let mut waits = Waits::new();
        assert_eq!(waits.percentiles().p50, 0.0);
        waits.record(Duration::from_secs(9), 0);
        waits.record(Duration::from_micros(10), 98);
        waits.record(Duration::from_micros(1000), 2);
        let p = waits.percentiles();
        assert!((p.p50 - 10.0).abs() < 0.1 && (p.p99 - 1000.0).abs() < 2.0, "{p:?}");
        assert!((p.mean - 29.8).abs() < 0.01);
    }

    #[test]
    fn medians() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of([4.0, 1.0]).median, 2.5);
        assert_eq!(Spread::of([]), Spread::default());
    }
}
