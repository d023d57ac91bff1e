//! The files of a set of tables, and small file access.
//!
//! Invariant: a [`FileSet`] holds one entry per inode, whatever number of links lead to it (Hugging Face caches are links to blobs), and
//! keeps the path that was asked for: links are not resolved.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::StoreError;
use crate::table::{DataFile, FileId};

/// Data files in the making, one per inode.
#[derive(Default, Debug)]
pub(crate) struct FileSet {
    files: Vec<DataFile>,
    by_inode: HashMap<(u64, u64), FileId>,
}

impl FileSet {
    /// The entry of a file; a second link to the same inode gives the first entry.
    pub(crate) fn add(&mut self, path: &Path) -> Result<FileId, StoreError> {
        let meta = fs::metadata(path).map_err(|e| StoreError::file(path, "look at", e))?;
        if !meta.is_file() {
            let saw = "a folder or device where a file should be".to_owned();
            return Err(StoreError::Unrecognized { path: path.into(), saw });
        }
        let next = FileId(self.files.len() as u32);
        let id = *self.by_inode.entry((meta.dev(), meta.ino())).or_insert(next);
        if id == next {
            self.files.push(DataFile { path: path.into(), len: meta.len() });
        }
        Ok(id)
    }

    /// Length of an entry, bytes.
    pub(crate) fn len(&self, id: FileId) -> u64 {
        self.files[id.0 as usize].len
    }

    pub(crate) fn into_files(self) -> Vec<DataFile> {
        self.files
    }

    pub(crate) fn as_slice(&self) -> &[DataFile] {
        &self.files
    }
}

/// Reads a small file whole; `None` if it does not exist.
pub(crate) fn read_small(path: &Path, what: &'static str, max: u64) -> Result<Option<Vec<u8>>, StoreError> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(e) => return Err(StoreError::io(path, "open", e)),
    };
    let len = file.metadata().map_err(|e| StoreError::io(path, "look at", e))?.len();
    let too_large = |len| StoreError::TooLarge { path: path.into(), what, len, max };
    if len > max {
        return Err(too_large(len));
    }
    let mut bytes = Vec::with_capacity(len as usize);
    // A file that grows while it is read must not exceed the limit either.
    file.by_ref().take(max + 1).read_to_end(&mut bytes).map_err(|e| StoreError::io(path, "read", e))?;
    if bytes.len() as u64 > max {
        return Err(too_large(bytes.len() as u64));
    }
    Ok(Some(bytes))
}

/// Reads and parses a small JSON file; `None` if it does not exist.
pub(crate) fn read_json_as<T: DeserializeOwned>(
    path: &Path,
    what: &'static str,
    max: u64,
) -> Result<Option<T>, StoreError> {
    let Some(bytes) = read_small(path, what, max)? else { return Ok(None) };
    let parsed = serde_json::from_slice(&bytes);
    parsed.map(Some).map_err(|source| StoreError::Json { path: path.into(), what, source })
}

/// [`read_json_as`] for a value of any shape.
pub(crate) fn read_json(path: &Path, what: &'static str, max: u64) -> Result<Option<Value>, StoreError> {
    read_json_as(path, what, max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn one_entry_per_inode() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        fs::write(&a, b"abc").unwrap();
        symlink(&a, &b).unwrap();
        fs::hard_link(&a, dir.path().join("c")).unwrap();
        fs::write(dir.path().join("d"), b"").unwrap();
        let mut set = FileSet::default();
        let id = set.add(&b).unwrap();
        assert_eq!(set.add(&a).unwrap(), id);
        assert_eq!(set.add(&dir.path().join("c")).unwrap(), id);
        assert_ne!(set.add(&dir.path().join("d")).unwrap(), id);
        assert_eq!(set.len(id), 3);
        assert_eq!(set.into_files()[0].path, b, "the path asked for is kept");
    }

    #[test]
    fn small_files_have_a_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        assert!(read_small(&path, "x", 4).unwrap().is_none());
        fs::write(&path, b"12345").unwrap();
        assert!(matches!(read_small(&path, "x", 4), Err(StoreError::TooLarge { len: 5, .. })));
        fs::write(&path, b"{").unwrap();
        let error = read_json(&path, "the index", 4).unwrap_err().to_string();
        assert!(error.contains("x.json") && error.contains("the index"), "{error}");
    }
}
