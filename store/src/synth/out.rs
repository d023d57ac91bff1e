//! The partial folder: everything or nothing.
//!
//! Written beside the target, so that the rename stays inside one file system. Dropping it without [`Partial::publish`] removes it, and
//! the parent folders that were made for it, whatever the reason (an error, the caller's wish, a panic).

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::error::StoreError;

/// Names that are tried for the partial folder.
const NAMES_MAX: u32 = 100;

pub(super) struct Partial {
    path: PathBuf,
    out: PathBuf,
    /// Folders that had to be made above the target, outermost first.
    parents: Vec<PathBuf>,
    published: bool,
}

impl Partial {
    pub(super) fn create(out: &Path) -> Result<Self, StoreError> {
        let name = out.file_name().unwrap_or_default().to_string_lossy();
        let path = out.with_file_name(format!(".{name}.partial-{}", std::process::id()));
        let mut partial = Self { path, out: out.into(), parents: Vec::new(), published: false };
        let missing = out.ancestors().skip(1).take_while(|p| !p.as_os_str().is_empty() && !p.exists());
        let mut missing: Vec<PathBuf> = missing.map(Path::to_path_buf).collect();
        missing.reverse();
        for parent in missing {
            fs::create_dir(&parent).map_err(|e| StoreError::io(&parent, "create", e))?;
            partial.parents.push(parent);
        }
        // A folder of this name is another call's, or was left behind by a killed process; which of them cannot be known.
        for again in 1.. {
            match fs::create_dir(&partial.path) {
                Ok(()) => break,
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && again < NAMES_MAX => {
                    let name = format!(".{name}.partial-{}-{again}", std::process::id());
                    partial.path = out.with_file_name(name);
                }
                Err(e) => {
                    // Not ours to remove.
                    let path = std::mem::take(&mut partial.path);
                    return Err(StoreError::io(&path, "create", e));
                }
            }
        }
        Ok(partial)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Renames the folder to its target and makes the rename durable.
    pub(super) fn publish(mut self) -> Result<(), StoreError> {
        sync_tree(&self.path)?;
        match fs::rename(&self.path, &self.out) {
            Ok(()) => self.published = true,
            Err(e) if matches!(e.kind(), std::io::ErrorKind::DirectoryNotEmpty | std::io::ErrorKind::AlreadyExists) => {
                return Err(StoreError::OutExists { path: self.out.clone() });
            }
            Err(e) => return Err(StoreError::io(&self.out, "rename the finished table to", e)),
        }
        match self.out.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => sync_dir(parent),
            _ => sync_dir(Path::new(".")),
        }
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if self.published {
            return;
        }
        // Nothing can be done about a failure here; the name tells what the rest is.
        if !self.path.as_os_str().is_empty() {
            let _ = fs::remove_dir_all(&self.path);
        }
        for parent in self.parents.iter().rev() {
            let _ = fs::remove_dir(parent);
        }
    }
}

/// Makes the names in a folder and in the folders below it durable.
fn sync_tree(path: &Path) -> Result<(), StoreError> {
    for entry in fs::read_dir(path).map_err(|e| StoreError::io(path, "list", e))? {
        let entry = entry.map_err(|e| StoreError::io(path, "list", e))?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            sync_tree(&entry.path())?;
        }
    }
    sync_dir(path)
}

fn sync_dir(path: &Path) -> Result<(), StoreError> {
    File::open(path).and_then(|dir| dir.sync_all()).map_err(|e| StoreError::io(path, "sync", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_work_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("a/b/table");
        let partial = Partial::create(&out).unwrap();
        fs::write(partial.path().join("x"), b"1").unwrap();
        drop(partial);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn published_work_appears_whole() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("a/table");
        let partial = Partial::create(&out).unwrap();
        fs::write(partial.path().join("x"), b"1").unwrap();
        partial.publish().unwrap();
        assert_eq!(fs::read(out.join("x")).unwrap(), b"1");
        assert_eq!(fs::read_dir(dir.path().join("a")).unwrap().count(), 1);
    }

    #[test]
    fn the_folder_of_another_call_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("table");
        let first = Partial::create(&out).unwrap();
        fs::write(first.path().join("x"), b"1").unwrap();
        drop(Partial::create(&out).unwrap());
        first.publish().unwrap();
        assert_eq!(fs::read(out.join("x")).unwrap(), b"1");
    }

    #[test]
    fn a_target_that_appeared_meanwhile_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("table");
        let partial = Partial::create(&out).unwrap();
        fs::create_dir(&out).unwrap();
        fs::write(out.join("theirs"), b"1").unwrap();
        assert!(matches!(partial.publish(), Err(StoreError::OutExists { .. })));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "our partial folder is gone, theirs stays");
    }
}
