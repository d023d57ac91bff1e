//! JSON objects whose keys must not repeat.
//!
//! A map type keeps the last of two equal keys and drops the first without a word; for a list of tensors that is a wrong row waiting to be
//! read. [`Unique`] keeps the entries in order and refuses repetition.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// How the value behind a key is read; the key may decide.
pub(crate) trait Keyed<'de>: Sized {
    fn value<A: MapAccess<'de>>(key: &str, map: &mut A) -> Result<Self, A::Error>;
}

impl<'de> Keyed<'de> for String {
    fn value<A: MapAccess<'de>>(_: &str, map: &mut A) -> Result<Self, A::Error> {
        map.next_value()
    }
}

/// The entries of an object, each key once.
pub(crate) struct Unique<T>(pub(crate) Vec<(String, T)>);

impl<'de, T: Keyed<'de>> Deserialize<'de> for Unique<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);
        impl<'de, T: Keyed<'de>> Visitor<'de> for Entries<T> {
            type Value = Unique<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Unique<T>, A::Error> {
                let (mut entries, mut seen) = (Vec::new(), HashSet::new());
                while let Some(key) = map.next_key::<String>()? {
                    let value = T::value(&key, &mut map)?;
                    if !seen.insert(key.clone()) {
                        return Err(A::Error::custom(format!("{key} is named twice")));
                    }
                    entries.push((key, value));
                }
                Ok(Unique(entries))
            }
        }
        deserializer.deserialize_map(Entries(PhantomData))
    }
}
