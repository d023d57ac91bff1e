//! Properties of layouts: rows and extents are one to one, and no bytes make the opener panic.

use std::collections::BTreeMap;
use std::fs;

use engram_store::{DataFile, FileId, Part, RawGeometry, Shard, Table, open};
use proptest::prelude::*;

/// Tables of one to three parts, cut into shards that are spread over two files without touching each other.
fn tables() -> impl Strategy<Value = (Table, Vec<DataFile>)> {
    let part = (1u32..40, 0u64..5, 1u64..30, proptest::collection::vec((0u32..2, 0u64..50), 40));
    (1u64..200, proptest::collection::vec(part, 1..4)).prop_map(|(rows, parts)| {
        let mut ends = [0u64; 2];
        let parts: Vec<Part> = parts
            .into_iter()
            .map(|(bytes, slack, per_shard, places)| {
                let per_shard = per_shard.max(rows.div_ceil(40));
                let stride = u64::from(bytes) + slack;
                let shards = (0..rows.div_ceil(per_shard)).zip(places).map(|(n, (file, gap))| {
                    let rows = per_shard.min(rows - n * per_shard);
                    let offset = ends[file as usize] + gap;
                    ends[file as usize] = offset + rows * stride;
                    Shard { file: FileId(file), offset, rows }
                });
                Part { bytes, stride, rows_per_shard: per_shard, shards: shards.collect() }
            })
            .collect();
        let files: Vec<DataFile> =
            ends.iter().enumerate().map(|(n, &len)| DataFile { path: n.to_string().into(), len }).collect();
        (Table::new(1, rows, parts, &files).unwrap(), files)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Every row has its own bytes: no two extents share one, all lie in their file, lengths add up.
    #[test]
    fn rows_and_extents_are_one_to_one((table, files) in tables()) {
        let mut taken: BTreeMap<(FileId, u64), u64> = BTreeMap::new();
        for row in 0..table.rows() {
            let mut bytes = 0;
            for part in 0..table.parts().len() {
                let extent = table.extent(part, row);
                let end = extent.offset + u64::from(extent.len);
                prop_assert!(end <= files[extent.file.0 as usize].len);
                prop_assert!(taken.insert((extent.file, extent.offset), end).is_none());
                bytes += extent.len;
            }
            prop_assert_eq!(bytes, table.row_bytes());
        }
        let list: Vec<_> = taken.into_iter().collect();
        for pair in list.windows(2) {
            let (((file, _), end), ((next, offset), _)) = (pair[0], pair[1]);
            prop_assert!(file != next || end <= offset);
        }
    }

    /// Random bytes in every file that is looked at: an error or a table, never a panic.
    #[test]
    fn rubbish_never_panics(
        name in prop_oneof![
            Just("config.json"), Just("model.safetensors"), Just("model.safetensors.index.json"),
            Just("manifest.json"), Just("engram-sched.json"), Just("shard_000.bin"),
        ],
        bytes in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..100),
            "[\\[\\]{}:,\"a-z0-9_ .-]{0,60}".prop_map(String::into_bytes),
        ],
        geometry in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(name), &bytes).unwrap();
        let raw = RawGeometry { layer: 1, rows: None, row_bytes: 3, rows_per_shard: 7, format: None };
        let _ = open(dir.path(), geometry.then_some(&raw));
        let _ = open(&dir.path().join(name), None);
    }
}
