//! A ragged gather of record batches: every rank has its own number of measurements, and rank 0 gathers all tables.
//!
//! `cargo build --release --examples -p ironrail-group-arrow`, then
//! `ironrail run -n 3 -- target/release/examples/ragged_batches PLUGIN`.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{ArrayRef, Float64Array, RecordBatch, StringArray};
use ironrail_group::group::Builder;
use ironrail_group::loader::Library;
use ironrail_group::start::Start;
use ironrail_group_arrow::Batches;

#[allow(clippy::print_stdout, reason = "an example shows what it found")]
fn main() -> Result<(), Box<dyn Error>> {
    let plugin = std::env::args().nth(1).unwrap_or_else(|| "ironrail".to_owned());
    let library = Library::open(&plugin, None)?;
    let (place, hub) = Start::from_environment()?.join(Duration::from_secs(30))?;
    let group = Builder::new(&library).join_with(place, hub)?;

    let rank = group.rank();
    let rows = rank * 1000 + 1;
    let sensors: StringArray = (0..rows).map(|row| Some(format!("sensor {}", row % 7))).collect();
    let values: Float64Array =
        (0_u32..).take(rows).map(|row| (row % 10 != 3).then(|| f64::from(row) / 2.0)).collect();
    let columns: [(&str, ArrayRef); 2] =
        [("sensor", Arc::new(sensors)), ("value", Arc::new(values))];
    let table = RecordBatch::try_from_iter(columns)?;

    let batches = Batches::new(&group)?;
    for (rank, table) in batches.gather(&table, 0)?.into_iter().flatten().enumerate() {
        let values = table.column(1).as_primitive::<Float64Type>();
        let sum: f64 = values.iter().flatten().sum();
        println!(
            "rank {rank}: {} rows, {} nulls, sum {sum}",
            table.num_rows(),
            table.column(1).null_count()
        );
    }
    Ok(())
}
