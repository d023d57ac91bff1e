//! The token map: raw tokenizer id -> compressed id.
//!
//! Engram hashes a compressed vocabulary, in which ids whose text is equal after normalisation are one. The map is
//! data: it is loaded (and its digest checked) or built from a tokenizer elsewhere; here only its shape is checked.
//!
//! Invariants: the values are exactly 0..V, each at least once; V = largest value + 1; 1 <= V <= len <= `VOCAB_MAX`.

use crate::{TokenMapError, VOCAB_MAX};

/// Raw id -> compressed id, one entry per raw id. Shape checked, immutable.
///
/// ```
/// use engram_keygen::TokenMap;
/// let map = TokenMap::new(vec![0, 1, 2, 1]).unwrap();
/// assert_eq!((map.len(), map.compressed_vocab()), (4, 3));
/// assert!(TokenMap::new(vec![0, 2]).is_err()); // nothing maps to 1
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenMap {
    ids: Box<[i32]>,
    compressed_vocab: u32,
}

impl TokenMap {
    /// The map with `ids[raw] = compressed`.
    ///
    /// # Errors
    /// If it is empty or longer than [`VOCAB_MAX`], or its values are not 0..V without a gap.
    pub fn new(ids: Vec<i32>) -> Result<Self, TokenMapError> {
        let len = ids.len();
        if len == 0 {
            return Err(TokenMapError::Empty);
        }
        if len > VOCAB_MAX as usize {
            return Err(TokenMapError::TooLong { len, max: VOCAB_MAX });
        }
        let mut seen = vec![false; len];
        let mut max = 0;
        for (index, &value) in ids.iter().enumerate() {
            // V <= len follows from "no gap", so a larger value is damage and need not be searched for gaps.
            match usize::try_from(value) {
                Ok(v) if v < len => seen[v] = true,
                _ => return Err(TokenMapError::Value { index, value, len }),
            }
            max = max.max(value);
        }
        if let Some(missing) = seen[..max as usize].iter().position(|s| !s) {
            return Err(TokenMapError::Gap { missing: missing as i32, max });
        }
        Ok(Self { ids: ids.into(), compressed_vocab: max as u32 + 1 })
    }

    /// The map that leaves `len` ids as they are.
    ///
    /// # Errors
    /// If `len` is 0 or above [`VOCAB_MAX`].
    pub fn identity(len: u32) -> Result<Self, TokenMapError> {
        Self::affine(len, 1, 0, len)
    }

    /// A made-up map of `len` raw ids onto `compressed_vocab`, for synthetic tables: `(7919 * i + 13) %
    /// compressed_vocab`.
    ///
    /// The rule of the golden vectors that need no tokenizer.
    ///
    /// # Errors
    /// If the rule leaves a gap (`compressed_vocab` above `len` or a multiple of 7919), or a size is 0 or too large.
    pub fn made_up(len: u32, compressed_vocab: u32) -> Result<Self, TokenMapError> {
        Self::affine(len, 7919, 13, compressed_vocab)
    }

    fn affine(len: u32, factor: u64, add: u64, modulus: u32) -> Result<Self, TokenMapError> {
        if len > VOCAB_MAX || modulus > VOCAB_MAX {
            return Err(TokenMapError::TooLong { len: len.max(modulus) as usize, max: VOCAB_MAX });
        }
        if modulus == 0 {
            return Err(TokenMapError::Empty);
        }
        Self::new((0..u64::from(len)).map(|i| ((factor * i + add) % u64::from(modulus)) as i32).collect())
    }

    /// Number of raw ids.
    #[allow(clippy::len_without_is_empty)] // a map is never empty
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// V, the number of compressed ids: the largest value + 1.
    pub fn compressed_vocab(&self) -> u32 {
        self.compressed_vocab
    }

    /// The entries, indexed by raw id.
    pub fn ids(&self) -> &[i32] {
        &self.ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes() {
        assert_eq!(TokenMap::new(vec![]), Err(TokenMapError::Empty));
        assert_eq!(TokenMap::new(vec![0, -1]), Err(TokenMapError::Value { index: 1, value: -1, len: 2 }));
        assert_eq!(TokenMap::new(vec![0, 2]), Err(TokenMapError::Value { index: 1, value: 2, len: 2 }));
        assert_eq!(TokenMap::new(vec![1, 1]), Err(TokenMapError::Gap { missing: 0, max: 1 }));
        assert_eq!(TokenMap::new(vec![0, 3, 1, 3]), Err(TokenMapError::Gap { missing: 2, max: 3 }));
        assert_eq!(TokenMap::identity(3).unwrap().ids(), [0, 1, 2]);
        assert_eq!(TokenMap::made_up(64, 23).unwrap().ids()[..4], [13, 20, 4, 11]);
        assert!(TokenMap::made_up(10, 23).is_err());
        assert!(TokenMap::made_up(10, 0).is_err());
        assert!(TokenMap::identity(0).is_err());
    }
}
