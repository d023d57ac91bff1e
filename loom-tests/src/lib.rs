//! Loom models; see `tests/`.
