//! The prefix cache of the emulated engine: which blocks of 512 prompt tokens have been computed, each named by all tokens up to its end.
//!
//! As in an engine that keeps every block: a prompt skips the whole blocks at its beginning that are known, but computes at least its
//! last token. Nothing is ever forgotten.

use super::trace::BLOCK_TOKENS;
use engram_keygen::rng::splitmix64;
use engram_sched::Token;
use std::collections::HashSet;

/// The names of a prompt's whole blocks, in order.
pub(crate) fn names(prompt: &[Token]) -> Vec<u64> {
    let mut name = 0;
    let of_block = |block: &[Token]| {
        name = block.iter().fold(name, |name, &token| splitmix64(name ^ u64::from(token as u32)));
        name
    };
    prompt.as_chunks::<BLOCK_TOKENS>().0.iter().map(|block| &block[..]).map(of_block).collect()
}

/// The blocks computed so far.
#[derive(Default)]
pub(crate) struct PrefixCache {
    computed: HashSet<u64>,
}

impl PrefixCache {
    /// Tokens that a prompt of `tokens` tokens, whose whole blocks have these names, need not compute.
    pub(crate) fn covered(&self, names: &[u64], tokens: usize) -> usize {
        let known = names.iter().take_while(|name| self.computed.contains(name)).count();
        known.min((tokens - 1) / BLOCK_TOKENS) * BLOCK_TOKENS
    }

    /// The first `tokens` tokens of a prompt with these names are computed.
    pub(crate) fn insert(&mut self, names: &[u64], tokens: usize) {
        self.computed.extend(&names[..names.len().min(tokens / BLOCK_TOKENS)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_blocks_that_begin_alike_are_covered_but_never_the_last_token() {
        let first: Vec<Token> = (0..1200).collect();
        let mut second = first.clone();
        second[600] = 7;
        let (names_first, names_second) = (names(&first), names(&second));
        assert_eq!((names_first.len(), names(&first[..511]).len()), (2, 0));
        let mut cache = PrefixCache::default();
        assert_eq!(cache.covered(&names_first, 1200), 0);
        cache.insert(&names_first, 1023);
        assert_eq!(cache.covered(&names_first, 1200), 512, "the second block was not complete");
        cache.insert(&names_first, 1200);
        assert_eq!(cache.covered(&names_first, 1200), 1024);
        assert_eq!(cache.covered(&names_second, 1200), 512, "it differs in its second block");
        assert_eq!(cache.covered(&names_first, 1024), 512, "one token at least is computed");
        // The same block behind another beginning is another block.
        let shifted: Vec<Token> = first[512..].iter().chain(&first[..512]).copied().collect();
        assert_eq!(cache.covered(&names(&shifted), 1200), 0);
    }
}
