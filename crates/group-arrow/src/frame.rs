//! The bytes of a schema and of a batch: messages of Arrow's IPC stream, split in two.

use std::hash::Hasher;
use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::reader::StreamDecoder;
use arrow_ipc::writer::StreamEncoder;
use arrow_schema::{ArrowError, Schema};
use bytes::Bytes;
use ironrail_group::error::shown;
use ironrail_group::objects::{self, Blob};
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;

/// A batch to be sent.
#[derive(Debug, Serialize, Deserialize, objects::Schema)]
pub(crate) struct Frame {
    /// The fingerprint of its schema.
    pub(crate) fingerprint: u64,
    pub(crate) messages: Blob,
}

impl Frame {
    /// The frame of a rank whose batch cannot be sent, for a collective: the other ranks wait for one.
    pub(crate) fn without() -> Self {
        Self { fingerprint: 0, messages: Vec::new().into() }
    }
}

/// A schema to be sent.
#[derive(Debug, Serialize, Deserialize, objects::Schema)]
pub(crate) struct Described {
    pub(crate) fingerprint: u64,
    pub(crate) message: Blob,
}

impl Described {
    pub(crate) fn new(schema: &Schema) -> Result<Self, ArrowError> {
        let mut message = joined(&StreamEncoder::try_new(schema)?.finish()?, 0);
        message.truncate(message.len() - NOTHING_MORE.len());
        let fingerprint = fingerprint(&message);
        Ok(Self { fingerprint, message: message.into() })
    }

    /// Whether the fingerprint matches.
    pub(crate) fn is_whole(&self) -> bool {
        self.fingerprint == fingerprint(&self.message)
    }

    /// The schema as text.
    pub(crate) fn text(&self) -> String {
        let schema = guarded(|| {
            let mut decoder = begun(self)?;
            // The decoder processes a message without a body only when something follows.
            decoder.decode(&mut Buffer::from(NOTHING_MORE))?;
            decoder.schema().ok_or_else(|| broken("no schema"))
        });
        match schema {
            Ok(schema) => text(&schema),
            Err(_) => format!("batches of schema {:016x}", self.fingerprint),
        }
    }
}

/// The end of a stream: a marker and a length of zero.
const NOTHING_MORE: &[u8] = &[0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0];

/// Every field with its type.
pub(crate) fn text(schema: &Schema) -> String {
    let field = |field: &arrow_schema::FieldRef| {
        format!(
            "{}: {}{}",
            field.name(),
            field.data_type(),
            if field.is_nullable() { "?" } else { "" }
        )
    };
    let fields: Vec<_> = schema.fields().iter().map(field).collect();
    let text = format!("batches of ({})", fields.join(", "));
    shown(&text).chars().take(TEXT_MAX).collect()
}

/// The longest schema in an error.
const TEXT_MAX: usize = 4 << 10;

/// A hash that is the same on every machine and in every build.
fn fingerprint(message: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new_with_keys(1, 2);
    hasher.write(message);
    hasher.finish()
}

/// A batch without its schema, which `described` has.
pub(crate) fn encode(batch: &RecordBatch, described: &Described) -> Result<Frame, ArrowError> {
    let parts = StreamEncoder::try_new(batch.schema_ref())?.encode(batch)?;
    let messages = joined(&parts, described.message.len()).into();
    Ok(Frame { fingerprint: described.fingerprint, messages })
}

/// Concatenates buffers, without the first `skip` bytes.
fn joined(parts: &[Buffer], mut skip: usize) -> Vec<u8> {
    let whole: usize = parts.iter().map(Buffer::len).sum();
    let mut bytes = Vec::with_capacity(whole.saturating_sub(skip));
    for part in parts {
        let skipped = skip.min(part.len());
        bytes.extend_from_slice(&part[skipped..]);
        skip -= skipped;
    }
    bytes
}

/// Decodes a batch in place.
pub(crate) fn decode(frame: Frame, described: &Described) -> Result<RecordBatch, ArrowError> {
    guarded(|| {
        let mut decoder = begun(described)?;
        let mut rest = Buffer::from(Bytes::from_owner(frame.messages));
        let mut batch = decoder.decode(&mut rest)?;
        if batch.is_none() {
            // The decoder processes a message without a body only when something follows, of which it takes nothing.
            let mut end = Buffer::from(NOTHING_MORE);
            batch = decoder.decode(&mut end)?.filter(|_| end.len() == NOTHING_MORE.len());
        }
        batch.filter(|_| rest.is_empty()).ok_or_else(|| broken("no whole batch"))
    })
}

/// A decoder of a stream that began with this schema.
fn begun(described: &Described) -> Result<StreamDecoder, ArrowError> {
    // Otherwise it would silently copy unaligned buffers.
    let mut decoder = StreamDecoder::new().with_require_alignment(true);
    decoder.decode(&mut Buffer::from(Bytes::from_owner(described.message.clone())))?;
    Ok(decoder)
}

/// Arrow's decoder panics at lengths that do not fit; a peer's bytes must not end this rank.
fn guarded<T>(decode: impl FnOnce() -> Result<T, ArrowError>) -> Result<T, ArrowError> {
    catch_unwind(AssertUnwindSafe(decode))
        .unwrap_or_else(|_| Err(broken("lengths that do not fit")))
}

fn broken(what: &str) -> ArrowError {
    ArrowError::IpcError(what.to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::builder::{
        FixedSizeListBuilder, Int64Builder, ListBuilder, MapBuilder, StringBuilder,
        StringDictionaryBuilder,
    };
    use arrow_array::types::{Int16Type, Int32Type};
    use arrow_array::{
        Array, ArrayRef, BinaryViewArray, Decimal256Array, FixedSizeBinaryArray, Float64Array,
        Int32Array, LargeStringArray, NullArray, RecordBatchOptions, RunArray, StringArray,
        StringViewArray, StructArray,
    };
    use arrow_schema::{DataType, Field};

    use super::*;

    fn sample(rows: usize) -> RecordBatch {
        let columns: [(&str, ArrayRef); 3] = [
            (
                "a",
                Arc::new(
                    (0_i32..).take(rows).map(|i| (i % 3 != 0).then_some(i)).collect::<Int32Array>(),
                ),
            ),
            ("b", Arc::new((0_i32..).take(rows).map(f64::from).collect::<Float64Array>())),
            ("c", Arc::new((0..rows).map(|i| Some(format!("row {i}"))).collect::<StringArray>())),
        ];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    #[test]
    fn columns_refer_to_the_memory_of_the_frame() {
        let batch = sample(1000);
        let described = Described::new(&batch.schema()).unwrap();
        assert!(described.is_whole());
        let frame = encode(&batch, &described).unwrap();
        let (base, len) = (frame.messages.as_ptr().addr(), frame.messages.len());
        let came = decode(frame, &described).unwrap();
        assert_eq!(came, batch);
        for column in came.columns() {
            for buffer in column.to_data().buffers() {
                assert!((base..=base + len).contains(&buffer.as_ptr().addr()));
            }
        }
    }

    #[test]
    fn a_batch_without_a_byte_of_memory_is_a_batch() {
        let nothing = RecordBatchOptions::new().with_row_count(Some(5));
        let no_column =
            RecordBatch::try_new_with_options(Arc::new(Schema::empty()), Vec::new(), &nothing);
        let column = |array: ArrayRef| RecordBatch::try_from_iter([("a", array)]).unwrap();
        let no_row: Int32Array = std::iter::empty::<i32>().collect();
        for batch in [
            sample(0),
            sample(9).slice(4, 0),
            column(Arc::new(no_row)),
            column(Arc::new(NullArray::new(3))),
            no_column.unwrap(),
        ] {
            let described = Described::new(&batch.schema()).unwrap();
            let came = decode(encode(&batch, &described).unwrap(), &described);
            assert_eq!(came.unwrap(), batch);
        }
    }

    #[test]
    fn columns_of_rare_layouts_and_slices_of_them_arrive_as_they_are() {
        let text = || (0..50).map(|i| (i % 7 != 3).then(|| "a row, ".repeat(i % 5)));
        let views: StringViewArray = text().collect();
        let bytes: BinaryViewArray = text().map(|text| text.map(String::into_bytes)).collect();
        let runs: RunArray<Int32Type> = text().map(|text| text.map(|_| "same")).collect();
        let mut maps = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
        let mut lists = ListBuilder::new(StringDictionaryBuilder::<Int16Type>::new());
        let mut fixed = FixedSizeListBuilder::new(Int64Builder::new(), 3);
        for row in 0..50_i64 {
            (0..row % 3).for_each(|at| {
                maps.keys().append_value(format!("key {at}"));
                maps.values().append_option((at > 0).then_some(row));
            });
            maps.append(row % 4 != 0).unwrap();
            lists.append_value((0..row % 4).map(|at| (at != 2).then(|| format!("word {at}"))));
            fixed.values().append_slice(&[row, row + 1, row + 2]);
            fixed.append(row % 5 != 0);
        }
        let nulls = StructArray::from(vec![(
            Arc::new(Field::new("null", DataType::Null, true)),
            Arc::new(NullArray::new(50)) as ArrayRef,
        )]);
        let large: LargeStringArray = text().collect();
        let sizes: FixedSizeBinaryArray =
            FixedSizeBinaryArray::try_from_iter((0..50_u8).map(|byte| [byte; 5])).unwrap();
        let numbers: Decimal256Array = (0..50).map(|i| Some(arrow_buffer::i256::from(i))).collect();
        let all: Vec<ArrayRef> = vec![
            Arc::new(views),
            Arc::new(bytes),
            Arc::new(runs),
            Arc::new(maps.finish()),
            Arc::new(lists.finish()),
            Arc::new(fixed.finish()),
            Arc::new(nulls),
            Arc::new(large),
            Arc::new(sizes),
            Arc::new(numbers),
        ];
        for array in all {
            let kind = array.data_type().clone();
            let batch = RecordBatch::try_from_iter_with_nullable([("a", array, true)]).unwrap();
            for (from, rows) in [(0, 50), (0, 7), (13, 30), (49, 1), (20, 0)] {
                let slice = batch.slice(from, rows);
                let described = Described::new(&slice.schema()).unwrap();
                let came = decode(encode(&slice, &described).unwrap(), &described);
                assert_eq!(came.unwrap(), slice, "{rows} rows of {kind} from {from}");
            }
        }
    }

    #[test]
    fn a_frame_that_a_peer_changed_is_an_error_or_a_batch() {
        let batch = sample(20);
        let described = Described::new(&batch.schema()).unwrap();
        let bytes = encode(&batch, &described).unwrap().messages.to_vec();
        let mut seed = 5_u64;
        let mut refused = 0;
        std::panic::set_hook(Box::new(|_| {}));
        for round in 0..2000 {
            let mut changed = bytes.clone();
            for _ in 0..=round % 3 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = usize::try_from(seed >> 33).unwrap() % changed.len();
                changed[at] = seed.to_le_bytes()[3];
            }
            if round % 5 == 0 {
                changed.truncate(round % bytes.len());
            }
            let fingerprint = described.fingerprint;
            refused += usize::from(
                decode(Frame { fingerprint, messages: changed.into() }, &described).is_err(),
            );
        }
        let _ = std::panic::take_hook();
        assert!(refused > 400, "{refused} of 2000");
    }
}
