//! n-gram embedding rows, read ahead of the layer that needs them.
