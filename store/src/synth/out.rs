//! The partial folder: everything or nothing.
//!
//! Written beside the target, so that the rename stays inside one file system. Dropping it without [`Partial::publish`] removes it, and
//! the parent folders that were made for it, whatever the reason (an error, the caller's wish, a panic).
//!
//! A process that is killed cannot do that. So a partial folder holds a file with an advisory lock, which the system lets go of with the
//! process, and the next call for the same target removes folders whose lock is free ([`remove_leftovers`]).
//!
//! Invariants: whoever fills a partial folder, or removes that of another, holds its lock; a folder without a lock file is nobody's to
//! remove (its maker may be about to lock it; it is empty then). Where the file system has no locks, nothing of others is removed.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::StoreError;

/// Names that are tried for the partial folder.
const NAMES_MAX: u32 = 100;

/// The locked file in a partial folder.
const LOCK: &str = ".engram-sched.lock";

pub(super) struct Partial {
    path: PathBuf,
    out: PathBuf,
    /// Folders that had to be made above the target, outermost first.
    parents: Vec<PathBuf>,
    published: bool,
    /// Held until the folder is in its place or gone.
    lock: Option<File>,
}

impl Partial {
    pub(super) fn create(out: &Path) -> Result<Self, StoreError> {
        let name = out.file_name().unwrap_or_default().to_string_lossy();
        let path = out.with_file_name(format!(".{name}.partial-{}", std::process::id()));
        let mut partial = Self { path, out: out.into(), parents: Vec::new(), published: false, lock: None };
        let missing = out.ancestors().skip(1).take_while(|p| !p.as_os_str().is_empty() && !p.exists());
        let mut missing: Vec<PathBuf> = missing.map(Path::to_path_buf).collect();
        missing.reverse();
        for parent in missing {
            fs::create_dir(&parent).map_err(|e| StoreError::io(&parent, "create", e))?;
            partial.parents.push(parent);
        }
        // A folder of this name is another call's, of this process or of one with its number in another namespace.
        for again in 1.. {
            match create_locked(&partial.path) {
                Ok(lock) => {
                    partial.lock = Some(lock);
                    break;
                }
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
            Ok(()) => {
                self.published = true;
                // Not before: a kill in between would leave a whole table that nobody may remove. In the table it does no harm.
                let _ = fs::remove_file(self.out.join(LOCK));
            }
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

/// Makes a folder with a locked file in it. `AlreadyExists`: the name is taken, or somebody took the new folder for a leftover between
/// its making and its lock (and removes it).
fn create_locked(path: &Path) -> std::io::Result<File> {
    let taken = || std::io::Error::from(std::io::ErrorKind::AlreadyExists);
    fs::create_dir(path)?;
    let lock = File::create_new(path.join(LOCK)).inspect_err(|_| drop(fs::remove_dir(path)))?;
    match lock.try_lock() {
        Err(TryLockError::WouldBlock) => Err(taken()),
        // An error: no locks here, for nobody.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(lock),
    }
}

/// Removes partial folders of the target `out` whose process is gone; gives their paths. What cannot be removed or looked at stays: it
/// hinders nobody.
pub(super) fn remove_leftovers(out: &Path) -> Vec<PathBuf> {
    let parent = out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let prefix = format!(".{}.partial-", out.file_name().unwrap_or_default().to_string_lossy());
    let ours = |name: &str| {
        let number = name.strip_prefix(&prefix);
        number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit() || b == b'-'))
    };
    let Ok(entries) = fs::read_dir(parent) else { return Vec::new() };
    let candidates = entries.flatten().filter(|entry| {
        ours(&entry.file_name().to_string_lossy()) && entry.file_type().is_ok_and(|kind| kind.is_dir())
    });
    candidates.map(|entry| entry.path()).filter(|path| remove_if_unlocked(path)).collect()
}

fn remove_if_unlocked(path: &Path) -> bool {
    let Ok(lock) = File::open(path.join(LOCK)) else { return false };
    // Between opening and locking the folder may have been published, and the name be another's.
    let same = || {
        let (held, now) = (lock.metadata().ok()?, fs::symlink_metadata(path.join(LOCK)).ok()?);
        Some((held.dev(), held.ino()) == (now.dev(), now.ino()))
    };
    lock.try_lock().is_ok() && same() == Some(true) && fs::remove_dir_all(path).is_ok()
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
    fn only_unlocked_folders_of_the_target_are_leftovers() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let out = at("table");
        for name in
            [".table.partial-1", ".table.partial-22-3", ".other.partial-1", ".table.partial-x", ".table.partial-"]
        {
            fs::create_dir(at(name)).unwrap();
            fs::write(at(name).join(LOCK), b"").unwrap();
            fs::write(at(name).join("rows"), b"1").unwrap();
        }
        fs::create_dir(at(".table.partial-4")).unwrap();
        fs::write(at(".table.partial-5"), b"a file").unwrap();
        let live = Partial::create(&out).unwrap();
        let mut removed = remove_leftovers(&out);
        removed.sort();
        assert_eq!(removed, [at(".table.partial-1"), at(".table.partial-22-3")]);
        assert!(removed.iter().all(|path| !path.exists()) && live.path().exists());
        assert!(at(".table.partial-4").exists(), "no lock file: its maker may be about to lock it");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 6);
        live.publish().unwrap();
        assert_eq!(fs::read_dir(&out).unwrap().count(), 0, "no lock stays in the table");
        assert!(remove_leftovers(&out).is_empty() && remove_leftovers(&at("no/folder")).is_empty());
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
