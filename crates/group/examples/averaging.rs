//! Data-parallel averaging: every rank computes a gradient of its own data, and all take the mean of them.
//!
//! `cargo build --release --examples -p ironrail-group`, then
//! `ironrail run -n 4 -- target/release/examples/averaging PLUGIN`.

use std::error::Error;
use std::time::Duration;

use ironrail_group::group::Builder;
use ironrail_group::loader::{Library, Op};
use ironrail_group::start::Start;

#[allow(clippy::print_stdout, reason = "an example shows what it found")]
fn main() -> Result<(), Box<dyn Error>> {
    let plugin = std::env::args().nth(1).unwrap_or_else(|| "ironrail".to_owned());
    let library = Library::open(&plugin, None)?;
    let (place, hub) = Start::from_environment()?.join(Duration::from_secs(30))?;
    let group = Builder::new(&library).join_with(place, hub)?;

    // Points of the line y = 3x + 1, a few for each rank, and an untrained model.
    let points: Vec<_> =
        (0..64).map(|point| (point * group.size() + group.rank()) as f64 / 64.0).collect();
    let mut model = [0.0_f64; 2];
    group.broadcast(&mut model, 0)?;
    let mut gradient = group.buffer::<f64>(2)?;
    for _ in 0..4000 {
        gradient.fill(0.0);
        for x in &points {
            let wrong = model[0] * x + model[1] - (3.0 * x + 1.0);
            gradient[0] += 2.0 * wrong * x / 64.0;
            gradient[1] += 2.0 * wrong / 64.0;
        }
        group.all_reduce(&mut gradient, Op::Avg)?;
        for (weight, slope) in model.iter_mut().zip(gradient.iter()) {
            *weight -= 0.05 * slope;
        }
    }
    println!("rank {} of {}: y = {:.3} x + {:.3}", group.rank(), group.size(), model[0], model[1]);
    Ok(())
}
