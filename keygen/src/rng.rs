//! The two random streams that the table constants come from: numpy's `default_rng` and splitmix64.
//!
//! The multipliers are stored in no V4.1 checkpoint, so they are derived again, and must equal numpy's to the bit. What
//! is here is exactly the part of numpy that `default_rng(seed).integers(0, bound, dtype=int64)` runs: SeedSequence,
//! PCG64 (XSL-RR 128/64), and Lemire's bounded draw in its 64-bit form.
//!
//! Public on purpose, though [`crate::Keygen`] runs it for you: whoever checks a checkpoint's constants compares the stages, and
//! programs on top draw their own random numbers from the one [`splitmix64`].
//!
//! Invariants: integer arithmetic only, wrapping where numpy wraps; no state outside the values; nothing here runs
//! after start-up.

/// The increment of splitmix64, 2^64 / golden ratio. Qwen's derivation adds it once more outside [`splitmix64`].
pub const SPLITMIX_GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// One output of splitmix64 for the state `x`: adds [`SPLITMIX_GAMMA`], then mixes (Steele, Lea, Flood 2014).
///
/// ```
/// assert_eq!(engram_keygen::rng::splitmix64(0), 0xE220_A839_7B1D_CDAF);
/// ```
pub const fn splitmix64(x: u64) -> u64 {
    let x = x.wrapping_add(SPLITMIX_GAMMA);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Words in the entropy pool of numpy's SeedSequence.
const POOL_WORDS: usize = 4;

/// `numpy.random.SeedSequence(seed).generate_state(4, uint64)`.
///
/// Source of the constants: numpy `bit_generator.pyx` (after M. O'Neill's `seed_seq_fe`). A seed of 64 bits fills at
/// most two of the four pool words, so the part of the algorithm that folds in further words never runs and is absent.
pub fn seed_sequence(seed: u64) -> [u64; 4] {
    // numpy drops leading zero words but keeps at least one; missing words enter as zero, so both forms agree.
    let words = [seed as u32, (seed >> 32) as u32, 0, 0];
    let mut hash_const = 0x43B0_D7E5_u32;
    let mut hashmix = |v: u32| {
        let v = v ^ hash_const;
        hash_const = hash_const.wrapping_mul(0x931E_8875);
        let v = v.wrapping_mul(hash_const);
        v ^ (v >> 16)
    };
    let mix = |a: u32, b: u32| {
        let r = 0xCA01_F9DD_u32.wrapping_mul(a).wrapping_sub(0x4973_F715_u32.wrapping_mul(b));
        r ^ (r >> 16)
    };
    let mut pool = words.map(&mut hashmix);
    for src in 0..POOL_WORDS {
        for dst in 0..POOL_WORDS {
            if src != dst {
                pool[dst] = mix(pool[dst], hashmix(pool[src]));
            }
        }
    }
    let mut state_const = 0x8B51_F9DD_u32;
    let mut next32 = |i: usize| {
        let v = pool[i % POOL_WORDS] ^ state_const;
        state_const = state_const.wrapping_mul(0x58F3_8DED);
        let v = v.wrapping_mul(state_const);
        v ^ (v >> 16)
    };
    let mut out = [0; 4];
    for (i, word) in out.iter_mut().enumerate() {
        let low = u64::from(next32(2 * i));
        *word = low | u64::from(next32(2 * i + 1)) << 32;
    }
    out
}

/// numpy's PCG64 (XSL-RR 128/64), seeded as `numpy.random.default_rng(seed)` seeds it.
///
/// ```
/// use engram_keygen::rng::Pcg64;
/// let mut g = Pcg64::new(10007);
/// assert_eq!(g.next_u64(), 15187255322829266483);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pcg64 {
    state: u128,
    inc: u128,
}

impl Pcg64 {
    /// The multiplier of the 128-bit LCG (O'Neill, `PCG_DEFAULT_MULTIPLIER_128`).
    const MULTIPLIER: u128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645;

    /// The generator for `seed`.
    pub fn new(seed: u64) -> Self {
        let v = seed_sequence(seed).map(u128::from);
        let start = v[0] << 64 | v[1];
        let stream = v[2] << 64 | v[3];
        let mut g = Self { state: 0, inc: stream << 1 | 1 };
        g.step();
        g.state = g.state.wrapping_add(start);
        g.step();
        g
    }

    /// State and increment, to compare with `bit_generator.state` of numpy.
    pub fn state(&self) -> (u128, u128) {
        (self.state, self.inc)
    }

    fn step(&mut self) {
        self.state = self.state.wrapping_mul(Self::MULTIPLIER).wrapping_add(self.inc);
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.step();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }

    /// A value in `0..bound`, as `Generator.integers(0, bound, dtype=int64)` draws it.
    ///
    /// # Panics
    /// If `bound` is not above 2^32: numpy takes another path there, with half a word kept between draws, which no
    /// table geometry within [`crate::VOCAB_MAX`] reaches.
    pub fn bounded(&mut self, bound: u64) -> u64 {
        assert!(bound > 1 << 32, "numpy's 64-bit bounded draw needs a bound above 2^32, not {bound}");
        let mut m = u128::from(self.next_u64()) * u128::from(bound);
        if (m as u64) < bound {
            // 2^64 mod bound: draws whose low word is below it are the surplus that would bias the result.
            let threshold = bound.wrapping_neg() % bound;
            while (m as u64) < threshold {
                m = u128::from(self.next_u64()) * u128::from(bound);
            }
        }
        (m >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check values of the specification, section 1.3.
    #[test]
    fn pcg64_of_seed_10007_is_numpys() {
        let mut g = Pcg64::new(10007);
        let want = (78698009995358412790897477648799726887, 228559182809729053680923842009152786877);
        assert_eq!(g.state(), want);
        let first = [g.next_u64(), g.next_u64(), g.next_u64()];
        assert_eq!(first, [15187255322829266483, 959186003677246517, 7126631698937927467]);
    }

    #[test]
    fn bounded_stays_below_its_bound() {
        let mut g = Pcg64::new(1);
        // The largest bounds reject most often: 2^63 + 1 throws away nearly half of the draws.
        for bound in [(1 << 32) + 1, 46_539_438_283_891, (1 << 63) + 1, u64::MAX] {
            for _ in 0..1000 {
                assert!(g.bounded(bound) < bound);
            }
        }
    }

    #[test]
    #[should_panic(expected = "above 2^32")]
    fn bounded_refuses_the_32_bit_path() {
        Pcg64::new(1).bounded(1 << 32);
    }
}
