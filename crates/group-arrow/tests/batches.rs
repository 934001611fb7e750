//! Record batches between ranks of this process.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[path = "../../group/tests/support/mod.rs"]
mod support;

use std::sync::Arc;
use std::time::Duration;

use arrow_array::builder::{Int64Builder, ListBuilder, StringBuilder};
use arrow_array::types::Int32Type;
use arrow_array::{
    Array, ArrayRef, BooleanArray, DictionaryArray, Float64Array, Int32Array, RecordBatch,
    StructArray,
};
use arrow_buffer::NullBuffer;
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field, Schema};
use ironrail_group::error::GroupError;
use ironrail_group::messages::Any;
use ironrail_group::objects::Origin;
use ironrail_group_arrow::Batches;
use support::{library, ranks};

/// Columns of every kind of layout: fixed, bits, offsets, children, dictionaries, with nulls and without.
fn table(seed: usize, rows: usize) -> RecordBatch {
    let number = |row: usize| i32::try_from(row * 7 + seed).unwrap();
    let numbers: Int32Array = (0..rows).map(number).collect();
    let some: Float64Array =
        (0..rows).map(|row| (row % 3 != 0).then(|| f64::from(number(row)))).collect();
    let flags: BooleanArray = (0..rows).map(|row| Some(row % 5 == seed % 5)).collect();
    let words: DictionaryArray<Int32Type> =
        (0..rows).map(|row| ["red", "green", "blue"][(row + seed) % 3]).collect();
    let (mut names, mut lists) = (StringBuilder::new(), ListBuilder::new(Int64Builder::new()));
    for row in 0..rows {
        names.append_value(format!("row {row} of {seed}"));
        lists.append_value((0..row % 4).map(|i| i64::try_from(i).ok()));
    }
    let inner = Field::new("inner", DataType::Int32, false);
    let nested = StructArray::from(vec![(Arc::new(inner), Arc::new(numbers.clone()) as ArrayRef)]);
    let columns: [(&str, ArrayRef); 7] = [
        ("number", Arc::new(numbers)),
        ("some", Arc::new(some)),
        ("flag", Arc::new(flags)),
        ("word", Arc::new(words)),
        ("name", Arc::new(names.finish())),
        ("list", Arc::new(lists.finish())),
        ("nested", Arc::new(nested)),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

/// `columns` columns of one kind.
fn wide(columns: usize) -> RecordBatch {
    let column = |number: i32| Arc::new(Int32Array::from(vec![number; 3])) as ArrayRef;
    let named = (0..i32::try_from(columns).unwrap()).map(|i| (format!("column {i}"), column(i)));
    RecordBatch::try_from_iter(named).unwrap()
}

/// The allocations that a batch's arrays refer to.
fn memory(batch: &RecordBatch) -> Vec<usize> {
    fn visit(data: &ArrayData, found: &mut Vec<usize>) {
        let nulls = data.nulls().map(NullBuffer::buffer);
        for buffer in data.buffers().iter().chain(nulls).filter(|buffer| !buffer.is_empty()) {
            assert!(buffer.as_ptr().addr().is_multiple_of(64), "aligned as Arrow recommends");
            found.push(buffer.data_ptr().as_ptr().addr());
        }
        data.child_data().iter().for_each(|child| visit(child, found));
    }
    let mut found = Vec::new();
    batch.columns().iter().for_each(|column| visit(&column.to_data(), &mut found));
    found.sort_unstable();
    found.dedup();
    found
}

#[test]
fn columns_alias_the_memory_that_a_batch_was_received_into() {
    ranks(&library(), 2, |group| {
        let batches = Batches::new(&group).unwrap();
        for rows in [1, 30, 1000, 40_000] {
            if group.rank() == 0 {
                batches.send(&table(rows, rows), 1, 0).unwrap();
            } else {
                let (came, _) = batches.recv(0, 0).unwrap();
                assert_eq!(came, table(rows, rows));
                let memory = memory(&came);
                assert_eq!(memory.len(), 1, "all arrays stand in one piece of memory: {memory:?}");
            }
        }
        group.barrier().unwrap();
    });
}

#[test]
fn a_slice_of_a_batch_takes_no_other_rows_with_it() {
    ranks(&library(), 2, |group| {
        let batches = Batches::new(&group).unwrap();
        let part = table(1, 10_000).slice(4321, 77);
        if group.rank() == 0 {
            batches.send(&part, 1, 0).unwrap();
            batches.send(&part.slice(0, 0), 1, 0).unwrap();
        } else {
            let (came, _) = batches.recv(0, 0).unwrap();
            assert_eq!(came, part);
            let bytes = came.column(0).to_data().buffers()[0].data_ptr();
            let end = came.column(6).to_data().child_data()[0].buffers()[0].as_ptr();
            assert!(end.addr() - bytes.as_ptr().addr() < 20_000, "the rows of the slice alone");
            assert_eq!(batches.recv(0, 0).unwrap().0.num_rows(), 0);
        }
        group.barrier().unwrap();
    });
}

/// Words by a dictionary, which is ordered or not.
fn words(is_ordered: bool) -> RecordBatch {
    let words: DictionaryArray<Int32Type> = ["blue", "green", "red", "green"].into_iter().collect();
    let field = Field::new("word", words.data_type().clone(), false);
    let schema = Schema::new(vec![field.with_dict_is_ordered(is_ordered)]);
    RecordBatch::try_new(Arc::new(schema), vec![Arc::new(words)]).unwrap()
}

#[test]
fn batches_of_schemas_that_differ_in_the_order_of_a_dictionary_alone_arrive_as_they_are() {
    ranks(&library(), 2, |group| {
        let batches = Batches::new(&group).unwrap();
        for is_ordered in [false, true, false] {
            if group.rank() == 0 {
                batches.send(&words(is_ordered), 1, 0).unwrap();
            } else {
                let (came, _) = batches.recv(0, 0).unwrap();
                assert_eq!(came, words(is_ordered));
                assert_eq!(came.schema().field(0).dict_is_ordered(), Some(is_ordered));
            }
        }
        group.barrier().unwrap();
    });
}

#[test]
fn a_batch_that_arrow_cannot_represent_is_an_error_of_the_others_that_names_its_rank() {
    // A dictionary of dictionaries, which no schema of IPC can represent.
    let inner: DictionaryArray<Int32Type> = ["red", "green"].into_iter().collect();
    let keys = Int32Array::from(vec![0, 1, 1]);
    let twice = Arc::new(DictionaryArray::<Int32Type>::new(keys, Arc::new(inner))) as ArrayRef;
    let strange = RecordBatch::try_from_iter([("twice", twice)]).unwrap();
    ranks(&library(), 3, move |group| {
        let (own, batches) = (group.rank(), Batches::new(&group).unwrap());
        let batch = if own == 1 { strange.clone() } else { table(own, 5) };
        let check = |ended: Result<(), GroupError>, receives: bool| match ended {
            Ok(()) => assert!(own != 1 && !receives, "rank {own} gets no error"),
            Err(GroupError::InvalidArgument(_)) => assert_eq!(own, 1),
            Err(GroupError::Mismatch { rank: 1, .. }) => assert_ne!(own, 1),
            Err(error) => panic!("rank {own}: {error}"),
        };
        check(batches.gather(&batch, 2).map(drop), own == 2);
        check(batches.all_gather(&batch).map(drop), true);
        check(batches.broadcast(Some(&batch), 1).map(drop), true);
        assert_eq!(batches.all_gather(&table(own, 5)).unwrap()[1], table(1, 5));
    });
}

#[test]
fn a_batch_of_another_schema_is_refused_by_name_and_the_next_one_is_received() {
    ranks(&library(), 2, |group| {
        let batches = Batches::new(&group).unwrap();
        let known = table(3, 20_000);
        if group.rank() == 0 {
            batches.send(&wide(2), 1, 4).unwrap();
            batches.send(&wide(3), 1, 4).unwrap();
            batches.send(&known, 1, 4).unwrap();
            batches.send(&wide(2), 1, 4).unwrap();
        } else {
            for columns in ["column 0", "column 2"] {
                match batches.recv_as(&known.schema(), 0, 4) {
                    Err(GroupError::SchemaMismatch { rank: 0, expected, got }) => {
                        assert!(expected.contains("nested"), "{expected}");
                        assert!(got.contains(columns), "{got}");
                    }
                    other => panic!("{other:?}"),
                }
            }
            // The same schema, made separately.
            let schema = Arc::new(Schema::new(table(9, 1).schema().fields().clone()));
            assert_eq!(batches.recv_as(&schema, 0, 4).unwrap().0, known);
            assert_eq!(batches.recv(0, 4).unwrap(), (wide(2), Origin { source: 0, tag: 4 }));
        }
        group.barrier().unwrap();
    });
}

#[test]
fn requests_of_any_source_and_tag_find_their_schemas_whatever_the_order() {
    ranks(&library(), 3, |group| {
        let batches = Batches::new(&group).unwrap();
        if group.rank() == 0 {
            // The last one first: its schema was sent after the others'.
            for tag in (0..4).rev() {
                for source in 1..3 {
                    let mut receiving = batches.irecv(source, tag).unwrap();
                    assert!(receiving.wait_timeout(support::WAIT).unwrap());
                    assert!(receiving.wait_timeout(Duration::MAX).unwrap(), "it has come");
                    let (came, origin) = receiving.wait().unwrap();
                    let columns = usize::try_from(tag).unwrap() * 300 + source;
                    assert_eq!((came, origin), (wide(columns), Origin { source, tag }));
                }
            }
            let mut sources = [Any, Any].map(|any| batches.recv(any, Any).unwrap().1.source);
            sources.sort_unstable();
            assert_eq!(sources, [1, 2]);
            let mut none = batches.irecv(1, 77).unwrap();
            assert!(!none.test().unwrap());
        } else {
            // Schemas of 600 columns and more are long messages.
            let sends: Vec<_> = (0..4)
                .map(|tag| {
                    let columns = usize::try_from(tag).unwrap() * 300 + group.rank();
                    batches.isend(&wide(columns), 0, tag).unwrap()
                })
                .collect();
            batches.send(&table(1, 5), 0, 9).unwrap();
            sends.into_iter().for_each(|sending| sending.wait().unwrap());
        }
        group.barrier().unwrap();
    });
}

#[test]
fn a_send_has_ended_once_its_batch_was_received() {
    ranks(&library(), 1, |group| {
        let batches = Batches::new(&group).unwrap();
        let mut receiving = batches.irecv(0, 4).unwrap();
        assert!(!receiving.wait_timeout(Duration::ZERO).unwrap(), "nothing was sent");
        let mut sending = batches.isend(&table(1, 5), 0, 4).unwrap();
        assert!(!sending.test().unwrap(), "nothing was received");
        assert!(receiving.wait_timeout(support::WAIT).unwrap());
        assert!(sending.test().unwrap());
        sending.wait().unwrap();
        assert_eq!(receiving.wait().unwrap().0, table(1, 5));
    });
}

#[test]
fn batches_are_gathered_broadcast_and_sent_in_a_ring() {
    for n in [1, 2, 4] {
        ranks(&library(), n, |group| {
            let (rank, size) = (group.rank(), group.size());
            let batches = Batches::new(&group).unwrap();
            let ragged = |rank: usize| table(rank, rank * 9000);
            let all: Vec<_> = (0..size).map(ragged).collect();
            let root = size - 1;
            for _ in 0..2 {
                let came = batches.gather(&ragged(rank), root).unwrap();
                assert_eq!(came, (rank == root).then(|| all.clone()));
                assert_eq!(batches.all_gather(&ragged(rank)).unwrap(), all);
                let own = if rank == root { table(5, 100) } else { wide(rank + 1) };
                assert_eq!(batches.broadcast(Some(&own), root).unwrap(), table(5, 100));
                let (right, left) = ((rank + 1) % size, (rank + size - 1) % size);
                let (came, origin) = batches.sendrecv(&ragged(rank), right, left, 3).unwrap();
                assert_eq!((came, origin.source), (ragged(left), left));
            }
            let refused = batches.send(&wide(1), size, 0);
            assert!(matches!(refused, Err(GroupError::InvalidArgument(_))), "{refused:?}");
            let refused = batches.send(&wide(1), rank, 0);
            assert!(matches!(refused, Err(GroupError::InvalidArgument(_))), "{refused:?}");
            group.barrier().unwrap();
        });
    }
}

#[test]
fn a_batch_is_broadcast_to_all_ranks_but_one_that_has_left() {
    ranks(&library(), 4, |group| {
        let batches = Batches::new(&group).unwrap();
        if group.rank() == 1 {
            return;
        }
        let lost = |ended: Result<RecordBatch, GroupError>| {
            assert!(matches!(ended, Err(GroupError::PeerLost { rank: 1, .. })), "{ended:?}");
        };
        lost(batches.recv(1, 0).map(|(batch, _)| batch));
        for rows in [10, 20_000] {
            if group.rank() == 0 {
                lost(batches.broadcast(Some(&table(1, rows)), 0));
            } else {
                assert_eq!(batches.broadcast(None, 0).unwrap(), table(1, rows));
            }
        }
    });
}
