//! Geometry: shapes that follow from keys and tables, and from what this process owns of them.

use crate::Layer;

/// Heads of one order that this process owns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct OwnedOrder {
    /// The keygen's order.
    pub(crate) order: usize,
    /// The order's heads.
    pub(crate) heads: std::ops::Range<usize>,
}

/// Shapes that follow from keys and tables, and from what this process owns of them.
#[derive(Debug)]
pub(crate) struct Geometry {
    pub(crate) layers: Vec<Layer>,
    /// The keygen's table of each table.
    pub(crate) keys: Vec<usize>,
    /// When a layer is due: its share of a step's time, by table.
    pub(crate) lead: Vec<f64>,
    /// Groups of a token and table: one per owned order.
    pub(crate) orders: Vec<OwnedOrder>,
    /// Rows of a token and table.
    pub(crate) columns: usize,
    /// Rows of a group at most.
    pub(crate) heads: usize,
    /// Bytes of a row, by table.
    pub(crate) row_bytes: Vec<usize>,
    /// Bytes of a token's rows, by table.
    pub(crate) token_bytes: Vec<usize>,
    /// Bytes of the largest group.
    pub(crate) group_bytes: usize,
}

impl Geometry {
    /// The table of a layer.
    pub(crate) fn table(&self, layer: Layer) -> Option<usize> {
        self.layers.iter().position(|&l| l == layer)
    }
}
