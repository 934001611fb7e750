//! A ragged gather: every rank has another number of findings, as structures; rank 0 gathers them.
//!
//! `cargo build --release --examples -p ironrail-group`, then
//! `ironrail run -n 3 -- target/release/examples/ragged PLUGIN`.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use ironrail_group::group::Builder;
use ironrail_group::loader::{Library, Op};
use ironrail_group::objects::{Leaf, Schema};
use ironrail_group::start::Start;
use serde::{Deserialize, Serialize};

/// The findings of a rank.
#[derive(Debug, Serialize, Deserialize, Schema)]
struct Findings {
    /// The number of each kind.
    kinds: BTreeMap<String, u64>,
    /// The places; any number of them.
    places: Leaf<f64>,
    remark: Option<String>,
}

/// The total over all ranks: only numbers can be reduced.
#[derive(Debug, Serialize, Deserialize, Schema)]
struct Total {
    places: u64,
    mean: f64,
}

#[allow(clippy::print_stdout, reason = "an example shows what it found")]
fn main() -> Result<(), Box<dyn Error>> {
    let plugin = std::env::args().nth(1).unwrap_or_else(|| "ironrail".to_owned());
    let library = Library::open(&plugin, None)?;
    let (place, hub) = Start::from_environment()?.join(Duration::from_secs(30))?;
    let group = Builder::new(&library).join_with(place, hub)?;

    let rank = group.rank();
    let places: Vec<f64> = (0..=rank * 1000).map(|place| place as f64 / 1000.0).collect();
    let own = Total { places: places.len() as u64, mean: places.iter().sum() };
    let findings = Findings {
        kinds: BTreeMap::from([("even".to_owned(), 5), (format!("only {rank}'s"), 1)]),
        places: places.into(),
        remark: (rank == 1).then(|| "rank 1 has something to say".to_owned()),
    };
    if let Some(all) = group.gather_obj(&findings, 0)? {
        for (rank, Findings { kinds, places, remark }) in all.iter().enumerate() {
            println!("rank {rank}: {} places, {kinds:?}, {remark:?}", places.len());
        }
    }
    let total = group.all_reduce_obj(&own, Op::Sum)?;
    if rank == 0 {
        println!(
            "{} places in all, {:.3} on average",
            total.places,
            total.mean / total.places as f64
        );
    }
    Ok(())
}
