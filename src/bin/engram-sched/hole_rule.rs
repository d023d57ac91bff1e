//! Whether a table may be timed: no hole is read from a device, so that any hole makes a figure void. One rule for `inspect` and `bench`.

use crate::failure::Failure;
use crate::interrupt;
use crate::output::bytes_text;
use engram_sched::{DataFile, SelfProof, holes};
use std::fs::File;

/// Bytes of the files that were never written. What was just written is synced first: until the file system has found room for
/// it, it may look like a hole.
pub(crate) fn bytes(files: &[DataFile]) -> Result<u64, Failure> {
    let mut bytes = 0;
    for file in files {
        interrupt::check()?;
        let failed = |error| Failure::failed(format!("cannot look for holes in {}: {error}", file.path.display()));
        File::open(&file.path).and_then(|open| open.sync_data()).map_err(failed)?;
        bytes += holes(&file.path)?.hole_bytes;
    }
    Ok(bytes)
}

/// Why a table with so many bytes of holes cannot be timed; a table made sparse cannot, even where the file system hides its holes.
pub(crate) fn fault(hole_bytes: u64, proof: Option<&SelfProof>) -> Option<String> {
    let sparse = proof.is_some_and(|proof| proof.sparse_rows.is_some());
    match (hole_bytes, sparse) {
        (0, false) => None,
        (0, true) => Some("most rows of this table were never written, and no device reads them: time a table that is written in full".into()),
        _ => Some(format!(
            "{} of the table are holes, which no device reads: time a table that is written in full",
            bytes_text(hole_bytes)
        )),
    }
}
