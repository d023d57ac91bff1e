//! The header of a safetensors file, and nothing but the header.
//!
//! A file is 8 bytes of little-endian header length, a JSON object, then the data. The published parser reads files that are whole in
//! memory and folds most faults into one; tables are a hundred gigabytes and their operators need to know what is wrong, so this one
//! reads the header alone and tells every fault apart. Like the published parser it takes the format at its word: the tensors cover the
//! data area exactly, so **gaps, overlaps and trailing bytes are refused**, by all paths alike.
//!
//! Invariants of a parsed header: every tensor lies inside the file, no two overlap, and for every known type the size is that of the
//! shape. No allocation exceeds the header's length, which is at most [`HEADER_BYTES_MAX`] and ends inside the file.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::Deserialize;
use serde::de::Error as _;

use crate::error::StoreError;
use crate::json::{Keyed, Unique};

/// Longest header that is read, bytes; the limit of the published format.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;

/// What is wrong with a safetensors header.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderFault {
    /// Too short to hold the length of a header.
    #[error("{len} bytes are too few for a safetensors file; fetch it again")]
    TooShort {
        /// Length of the file, bytes.
        len: u64,
    },
    /// The header claims to be longer than the format allows.
    #[error(
        "the header claims {header} bytes, more than the {HEADER_BYTES_MAX} that the format allows; this is not a safetensors file, or it is damaged: fetch it again"
    )]
    TooLong {
        /// Claimed length of the header, bytes.
        header: u64,
    },
    /// The header reaches beyond the end of the file.
    #[error("the header claims {header} bytes, the file has {len}; it is truncated or damaged: fetch it again")]
    BeyondFile {
        /// Claimed length of the header, bytes.
        header: u64,
        /// Length of the file, bytes.
        len: u64,
    },
    /// The header is no JSON object of tensors.
    #[error("the header is not valid: {0}; the file is damaged or of another kind: fetch it again")]
    NotJson(serde_json::Error),
    /// A tensor ends before it begins.
    #[error("tensor {tensor} begins at {begin} and ends at {end}; the file is damaged: fetch it again")]
    Reversed {
        /// The tensor.
        tensor: String,
        /// First byte, from the start of the data area.
        begin: u64,
        /// One past its last byte.
        end: u64,
    },
    /// Two tensors share bytes.
    #[error("tensor {tensor} begins at {begin}, before {previous} ends at {end}; the file is damaged: fetch it again")]
    Overlap {
        /// The tensor.
        tensor: String,
        /// First byte, from the start of the data area.
        begin: u64,
        /// The tensor before it.
        previous: String,
        /// Where that one ends.
        end: u64,
    },
    /// Bytes between two tensors belong to none.
    #[error(
        "{bytes} bytes before tensor {tensor} belong to no tensor, which the format forbids; write the file again with a current safetensors"
    )]
    Gap {
        /// The tensor behind the gap.
        tensor: String,
        /// Bytes of the gap.
        bytes: u64,
    },
    /// A tensor has another number of bytes than its shape and type.
    #[error(
        "tensor {tensor} is {dtype} {shape:?} and should take {expected} bytes, but its offsets span {got}; the file is damaged: fetch it again"
    )]
    Size {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<u64>,
        /// Bytes by shape and type.
        expected: String,
        /// Bytes by offsets.
        got: u64,
    },
    /// The data end beyond the file.
    #[error("the file is truncated: its tensors end at byte {end}, it has {len}; fetch it again")]
    Truncated {
        /// Where the last tensor ends, from the start of the file.
        end: u64,
        /// Length of the file, bytes.
        len: u64,
    },
    /// Bytes behind the last tensor.
    #[error("{} bytes follow the last tensor (which ends at byte {end}, the file has {len}), which the format forbids; fetch it again", .len - .end)]
    Trailing {
        /// Where the last tensor ends, from the start of the file.
        end: u64,
        /// Length of the file, bytes.
        len: u64,
    },
}

/// The type of a tensor, by its name in the header.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(transparent)]
pub struct Dtype(String);

impl Dtype {
    /// Bits of an element; `None` if the format knows no such type.
    pub fn bits(&self) -> Option<u64> {
        Some(match self.0.as_str() {
            "F4" => 4,
            "F6_E2M3" | "F6_E3M2" => 6,
            "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => 8,
            "I16" | "U16" | "F16" | "BF16" => 16,
            "I32" | "U32" | "F32" => 32,
            "I64" | "U64" | "F64" | "C64" => 64,
            _ => return None,
        })
    }

    /// The name as written in the header.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A tensor of a checked header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Tensor {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<u64>,
    /// First byte, from the start of the **file**.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) len: u64,
}

impl Tensor {
    /// Type and shape, for messages.
    pub(crate) fn describe(&self) -> String {
        format!("{} {:?}", self.dtype, self.shape)
    }
}

/// A checked header: tensors by name.
pub(crate) type Header = BTreeMap<String, Tensor>;

/// Reads and checks the header of `file`, which is `len` bytes long.
pub(crate) fn read_header(file: &File, len: u64, path: &Path) -> Result<Header, StoreError> {
    let fault = |fault| StoreError::Header { path: path.into(), fault: Box::new(fault) };
    let io = |e| StoreError::file(path, "read the header of", e);
    let mut prefix = [0u8; 9];
    if len < prefix.len() as u64 {
        return Err(fault(HeaderFault::TooShort { len }));
    }
    file.read_exact_at(&mut prefix, 0).map_err(io)?;
    let [a, b, c, d, e, f, g, h, first] = prefix;
    let header = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    if header > HEADER_BYTES_MAX {
        return Err(fault(HeaderFault::TooLong { header }));
    }
    if header > len - 8 {
        return Err(fault(HeaderFault::BeyondFile { header, len }));
    }
    // Before up to 100 MB are read: the format demands this first byte.
    if first != b'{' {
        return Err(fault(HeaderFault::NotJson(serde_json::Error::custom("it does not begin with {"))));
    }
    let mut json = vec![0u8; header as usize];
    file.read_exact_at(&mut json, 8).map_err(io)?;
    parse_header(&json, 8 + header, len).map_err(fault)
}

/// Checks a header given as JSON; the data begin at byte `data` of a file of `len` bytes.
pub(crate) fn parse_header(json: &[u8], data: u64, len: u64) -> Result<Header, HeaderFault> {
    let Unique(entries) = serde_json::from_slice::<Unique<Entry>>(json).map_err(HeaderFault::NotJson)?;
    let tensor = |(name, entry)| match entry {
        Entry::Tensor(tensor) => Some((name, tensor)),
        Entry::Other => None,
    };
    let mut raw: Vec<_> = entries.into_iter().filter_map(tensor).collect();
    raw.sort_by_key(|(_, tensor)| tensor.data_offsets);
    let mut header = Header::new();
    let (mut end_before, mut previous) = (0u64, String::new());
    for (tensor, RawTensor { dtype, shape, data_offsets: (begin, end) }) in raw {
        if begin > end {
            return Err(HeaderFault::Reversed { tensor, begin, end });
        }
        if begin < end_before {
            return Err(HeaderFault::Overlap { tensor, begin, previous, end: end_before });
        }
        if begin > end_before {
            return Err(HeaderFault::Gap { tensor, bytes: begin - end_before });
        }
        if let Some(bits) = dtype.bits() {
            let all = shape.iter().try_fold(u128::from(bits), |n, &d| n.checked_mul(d.into()));
            if all.is_none_or(|all| all != u128::from(end - begin) * 8) {
                let expected = all.map_or("more than 2^125".into(), |all| {
                    format!("{}{}", all / 8, if all % 8 == 0 { "" } else { ".5" })
                });
                return Err(HeaderFault::Size { tensor, dtype, shape, expected, got: end - begin });
            }
        }
        let Some(offset) = data.checked_add(begin).filter(|o| o.checked_add(end - begin).is_some()) else {
            return Err(HeaderFault::Truncated { end: u64::MAX, len });
        };
        header.insert(tensor.clone(), Tensor { dtype, shape, offset, len: end - begin });
        (end_before, previous) = (end, tensor);
    }
    let end = data.saturating_add(end_before);
    match end.cmp(&len) {
        std::cmp::Ordering::Greater => Err(HeaderFault::Truncated { end, len }),
        std::cmp::Ordering::Less => Err(HeaderFault::Trailing { end, len }),
        std::cmp::Ordering::Equal => Ok(header),
    }
}

/// A value of the header's object: a tensor, or the metadata, which nobody needs.
enum Entry {
    Tensor(RawTensor),
    Other,
}

impl<'de> Keyed<'de> for Entry {
    fn value<A: serde::de::MapAccess<'de>>(key: &str, map: &mut A) -> Result<Self, A::Error> {
        if key == "__metadata__" {
            return map.next_value::<serde::de::IgnoredAny>().map(|_| Self::Other);
        }
        map.next_value().map(Self::Tensor)
    }
}

#[derive(Deserialize)]
struct RawTensor {
    dtype: Dtype,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    fn parse(json: &str, data_len: u64) -> Result<Header, HeaderFault> {
        parse_header(json.as_bytes(), 100, 100 + data_len)
    }

    fn file(bytes: &[u8]) -> Result<Header, HeaderFault> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        read_header(&file, bytes.len() as u64, Path::new("f")).map_err(|e| match e {
            StoreError::Header { fault, .. } => *fault,
            other => panic!("{other}"),
        })
    }

    #[test]
    fn offsets_become_absolute() {
        let header = parse(
            r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[1,13]},
                "a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"s":{"dtype":"F32","shape":[],"data_offsets":[13,17]},
                "z":{"dtype":"F8_E4M3","shape":[0,160],"data_offsets":[17,17]},
                "q":{"dtype":"F4","shape":[3,2],"data_offsets":[17,20]}}"#,
            20,
        )
        .unwrap();
        assert_eq!(header["b"].offset, 101);
        assert_eq!(header["b"].describe(), "BF16 [2, 3]");
        assert_eq!((header["s"].offset, header["s"].len), (113, 4));
    }

    #[test]
    fn every_fault_is_told_apart() {
        let one = |dtype: &str, shape: &str, a: u64, b: u64| {
            format!(r#"{{"x":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{a},{b}]}}}}"#)
        };
        assert!(matches!(parse(&one("U8", "[4]", 4, 0), 4), Err(HeaderFault::Reversed { begin: 4, end: 0, .. })));
        assert!(matches!(parse(&one("U8", "[4]", 2, 6), 6), Err(HeaderFault::Gap { bytes: 2, .. })));
        assert!(matches!(parse(&one("U8", "[5]", 0, 4), 4), Err(HeaderFault::Size { got: 4, .. })));
        assert!(matches!(parse(&one("F4", "[3]", 0, 2), 2), Err(HeaderFault::Size { .. })));
        let huge = one("F32", "[4294967296,4294967296]", 0, 4);
        assert!(matches!(parse(&huge, 4), Err(HeaderFault::Size { .. })));
        assert!(matches!(parse(&one("U8", "[4]", 0, 4), 3), Err(HeaderFault::Truncated { end: 104, len: 103 })));
        assert!(matches!(parse(&one("U8", "[4]", 0, 4), 9), Err(HeaderFault::Trailing { end: 104, len: 109 })));
        let end = format!("[{}]", u64::MAX);
        assert!(matches!(parse(&one("U8", &end, 0, u64::MAX), 9), Err(HeaderFault::Truncated { .. })));
        let two = r#"{"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"y":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}}"#;
        assert!(matches!(parse(two, 7), Err(HeaderFault::Overlap { begin: 3, end: 4, .. })));
        let twice = r#"{"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"x":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#;
        assert!(parse(twice, 8).unwrap_err().to_string().contains("named twice"));
        for bad in [one("U8", "[-1]", 0, 4), one("U8", "[1.5]", 0, 4), "[]".into(), "{\"x\":1}".into(), "{".into()] {
            assert!(matches!(parse(&bad, 4), Err(HeaderFault::NotJson(_))), "{bad}");
        }
        let deep = format!("{{\"x\":{}", "[".repeat(100_000));
        assert!(matches!(parse(&deep, 4), Err(HeaderFault::NotJson(_))));
    }

    #[test]
    fn unknown_types_are_kept_for_whoever_needs_the_tensor() {
        let header = parse(r#"{"x":{"dtype":"F3_NEW","shape":[9],"data_offsets":[0,4]}}"#, 4).unwrap();
        assert_eq!(header["x"].dtype.bits(), None);
    }

    #[test]
    fn lengths_are_checked_before_anything_is_allocated() {
        assert!(matches!(file(b"1234567"), Err(HeaderFault::TooShort { len: 7 })));
        let with = |n: u64, rest: &[u8]| file(&[&n.to_le_bytes()[..], rest].concat());
        assert!(matches!(with(u64::MAX, b"{}"), Err(HeaderFault::TooLong { .. })));
        assert!(matches!(with(HEADER_BYTES_MAX + 1, b"{}"), Err(HeaderFault::TooLong { .. })));
        assert!(matches!(with(3, b"{}"), Err(HeaderFault::BeyondFile { header: 3, len: 10 })));
        assert!(matches!(with(2, b"[]"), Err(HeaderFault::NotJson(_))));
        assert_eq!(with(2, b"{}").unwrap().len(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), n in 0u64..220, cut in any::<bool>()) {
            let mut bytes = bytes;
            if cut && bytes.len() >= 9 {
                bytes[..8].copy_from_slice(&n.to_le_bytes());
                bytes[8] = b'{';
            }
            let _ = file(&bytes);
        }

        #[test]
        fn random_headers_hold_their_invariants(
            tensors in proptest::collection::vec(
                ("[a-c]{1,2}", prop_oneof![Just("U8"), Just("BF16"), Just("F4"), Just("X")], 0u64..9, 0u64..40, 0u64..40), 0..5),
            data_len in 0u64..60,
        ) {
            let body: Vec<String> = tensors
                .iter()
                .map(|(n, d, s, a, b)| format!(r#""{n}":{{"dtype":"{d}","shape":[{s}],"data_offsets":[{a},{b}]}}"#))
                .collect();
            if let Ok(header) = parse(&format!("{{{}}}", body.join(",")), data_len) {
                let covered: u64 = header.values().map(|t| t.len).sum();
                prop_assert_eq!(covered, data_len);
                for tensor in header.values() {
                    prop_assert!(tensor.offset >= 100 && tensor.offset + tensor.len <= 100 + data_len);
                }
            }
        }
    }
}
