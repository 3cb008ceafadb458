//! openraft's published suite for storage, on the store of this program.

use std::{
    path::PathBuf,
    process,
    sync::atomic::{AtomicU64, Ordering},
};

use openraft::{
    StorageError,
    testing::log::{StoreBuilder, Suite},
};
use raft_kv::{
    store::{self, Log, Machine, Space},
    types::Types,
};

struct Builder;

/// A directory that is removed when this is dropped.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl StoreBuilder<Types, Log, Machine, Directory> for Builder {
    async fn build(&self) -> Result<(Directory, Log, Machine), StorageError<Types>> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("raft_kv-{}-{number}", process::id()));
        let (log, machine) = store::open(&path, &Space::default()).expect("a new store");
        Ok((Directory(path), log, machine))
    }
}

#[test]
fn the_store_passes_the_suite_of_openraft() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let passed = runtime.block_on(Suite::test_all(Builder));
    passed.expect("all tests of the suite");
}
