//! Placement: which I/O actor owns which file. A pure function of the devices.
//!
//! One actor per device (disk group), so that single-flight of pages stays inside one actor and a slow disk delays no other.

use engram_store::FileId;

/// I/O actors at most: owners of a plan are a 64-bit set.
pub(crate) const ACTORS_MAX: usize = 64;

/// See the module text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Placement {
    actor_of_file: Vec<u16>,
    actors: usize,
}

impl Placement {
    /// One actor for each distinct device in `devices` (one entry per file), in order of first appearance; devices beyond
    /// `actors_max` share the actors round robin.
    pub(crate) fn by_device(devices: &[u64], actors_max: usize) -> Self {
        let mut seen: Vec<u64> = Vec::new();
        let actor_of_file = devices
            .iter()
            .map(|device| {
                let index = seen.iter().position(|d| d == device).unwrap_or_else(|| {
                    seen.push(*device);
                    seen.len() - 1
                });
                (index % actors_max) as u16
            })
            .collect();
        Self { actor_of_file, actors: seen.len().clamp(1, actors_max) }
    }

    /// `actors` actors with the files dealt out in turn, several to a disk.
    pub(crate) fn round_robin(files: usize, actors: usize) -> Self {
        Self { actor_of_file: (0..files).map(|f| (f % actors) as u16).collect(), actors }
    }

    pub(crate) fn actors(&self) -> usize {
        self.actors
    }

    pub(crate) fn actor_of(&self, file: FileId) -> usize {
        usize::from(self.actor_of_file[file.0 as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_one_actors() {
        let p = Placement::by_device(&[8, 9, 8, 7], 64);
        assert_eq!((p.actors(), [0, 1, 2, 3].map(|f| p.actor_of(FileId(f)))), (3, [0, 1, 0, 2]));
        let p = Placement::by_device(&[8, 9, 8, 7], 2);
        assert_eq!((p.actors(), [0, 1, 2, 3].map(|f| p.actor_of(FileId(f)))), (2, [0, 1, 0, 0]));
        assert_eq!(Placement::by_device(&[], 64).actors(), 1);
        assert_eq!(Placement::round_robin(5, 2).actor_of(FileId(3)), 1);
    }
}
