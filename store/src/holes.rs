//! Ranges of a file that were never written.
//!
//! A hole reads as zeros and looks valid: a table with holes must not be timed, and a checkpoint with holes is half downloaded. The file
//! system is asked (`SEEK_HOLE`); one that cannot tell reports a file without holes, so an empty report is no proof of completeness.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::error::StoreError;

/// Holes of one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct HoleReport {
    /// Length of the file, bytes.
    pub len: u64,
    /// Bytes that the file takes on disk.
    pub allocated: u64,
    /// Bytes in holes.
    pub hole_bytes: u64,
    /// Number of holes.
    pub holes: u64,
    /// Offset and length of the first hole, bytes.
    pub first: Option<(u64, u64)>,
}

impl HoleReport {
    /// Whether any byte of the file lies in a hole.
    pub fn is_sparse(&self) -> bool {
        self.holes > 0
    }
}

/// Looks for holes in a file. Takes one system call for each border between data and hole.
///
/// # Errors
/// [`StoreError`] if the file cannot be opened or asked.
pub fn holes(path: &Path) -> Result<HoleReport, StoreError> {
    let io = |doing| move |e: std::io::Error| StoreError::io(path, doing, e);
    let file = File::open(path).map_err(io("open"))?;
    let meta = file.metadata().map_err(io("look at"))?;
    let len = meta.len();
    let mut report = HoleReport { len, allocated: meta.blocks() * 512, hole_bytes: 0, holes: 0, first: None };
    let mut at = 0;
    while at < len {
        let hole = match seek(&file, SeekFrom::Hole(at)) {
            Ok(hole) => hole,
            // The file system does not know SEEK_HOLE.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => break,
            Err(e) => return Err(io("look for holes in")(e.into())),
        };
        if hole >= len {
            break;
        }
        let data = match seek(&file, SeekFrom::Data(hole)) {
            Ok(data) => data.min(len),
            // No data behind the hole.
            Err(Errno::NXIO) => len,
            Err(e) => return Err(io("look for holes in")(e.into())),
        };
        report.first.get_or_insert((hole, data - hole));
        report.hole_bytes += data - hole;
        report.holes += 1;
        at = data;
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn holes_are_found_where_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let file = File::create(&path).unwrap();
        file.write_all_at(&[1; 4096], 0).unwrap();
        file.write_all_at(&[1; 4096], 1 << 20).unwrap();
        file.set_len(2 << 20).unwrap();
        file.sync_all().unwrap();
        let report = holes(&path).unwrap();
        assert_eq!(report.len, 2 << 20);
        assert!(report.is_sparse() && report.holes == 2, "{report:?}");
        assert!(report.first.unwrap().0 <= 65_536 && report.hole_bytes > 1 << 20);
        std::fs::write(&path, [7; 5000]).unwrap();
        assert!(!holes(&path).unwrap().is_sparse());
        assert!(matches!(holes(&dir.path().join("none")), Err(StoreError::PathMissing { .. })));
    }

    #[test]
    fn a_file_of_nothing_but_hole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let report = holes(&path).unwrap();
        assert_eq!((report.first, report.hole_bytes), (Some((0, 1 << 20)), 1 << 20));
    }
}
