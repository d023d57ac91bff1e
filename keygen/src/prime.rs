//! Primality of 64-bit numbers, decided exactly.
//!
//! The moduli of the hash are "the next primes from a base", so a probable prime that is none would shift every later
//! row. Miller-Rabin with the first twelve primes as bases is a proof below 3.3e24 (Sorenson, Webster 2015), hence for
//! all `u64`.
//!
//! Invariants: start-up only (it divides); no randomness.

/// Bases that make Miller-Rabin exact for every 64-bit number.
const WITNESSES: [u64; 12] = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37];

fn mul_mod(a: u64, b: u64, n: u64) -> u64 {
    (u128::from(a) * u128::from(b) % u128::from(n)) as u64
}

fn pow_mod(mut base: u64, mut exponent: u64, n: u64) -> u64 {
    let mut acc = 1;
    base %= n;
    while exponent > 0 {
        if exponent & 1 == 1 {
            acc = mul_mod(acc, base, n);
        }
        base = mul_mod(base, base, n);
        exponent >>= 1;
    }
    acc
}

/// Whether `n` is prime.
pub(crate) fn is_prime(n: u64) -> bool {
    if n < 2 {
        return false;
    }
    for p in WITNESSES {
        if n.is_multiple_of(p) {
            return n == p;
        }
    }
    let twos = (n - 1).trailing_zeros();
    let odd = (n - 1) >> twos;
    WITNESSES.iter().all(|&a| {
        let mut x = pow_mod(a, odd, n);
        if x == 1 || x == n - 1 {
            return true;
        }
        for _ in 1..twos {
            x = mul_mod(x, x, n);
            if x == n - 1 {
                return true;
            }
        }
        false
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_trial_division() {
        let slow = |n: u64| n >= 2 && (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d));
        for n in 0..20_000 {
            assert_eq!(is_prime(n), slow(n), "{n}");
        }
        for n in (16_000_000..16_000_400).chain(20_000_000..20_000_200) {
            assert_eq!(is_prime(n), slow(n), "{n}");
        }
    }

    #[test]
    fn strong_pseudoprimes_and_the_far_end() {
        // Composite, yet strong pseudoprimes to the bases 2..=7, 2..=23 and 2..=37 (OEIS A014233; the last is above
        // 2^64).
        for n in [3_215_031_751, 341_550_071_728_321, 3_825_123_056_546_413_051] {
            assert!(!is_prime(n), "{n}");
        }
        assert!(is_prime(16_000_057) && !is_prime(16_000_055)); // the first modulus above Engram's base, and one before
        assert!(is_prime(18_446_744_073_709_551_557)); // the largest prime below 2^64
        assert!(!is_prime(u64::MAX));
    }
}
