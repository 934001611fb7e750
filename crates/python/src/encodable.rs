//! The value that is sent for an object, which some objects lack.

use postcard_schema::Schema;
use postcard_schema::schema::NamedType;
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};

/// The value that is sent for an object, or why there is none: then encoding fails, which the group library reports to the other ranks.
#[derive(Debug)]
pub(crate) struct Encodable<T>(pub(crate) Result<T, &'static str>);

impl<T: Default> Default for Encodable<T> {
    fn default() -> Self {
        Self(Ok(T::default()))
    }
}

impl<T: Serialize> Serialize for Encodable<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Ok(object) => object.serialize(serializer),
            Err(why) => Err(ser::Error::custom(why)),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Encodable<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(|object| Self(Ok(object)))
    }
}

impl<T: Schema> Schema for Encodable<T> {
    const SCHEMA: &'static NamedType = T::SCHEMA;
}
