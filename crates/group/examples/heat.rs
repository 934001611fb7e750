//! Heat in a square plate, split in bands of rows: each step needs the rows next to a band, which the neighbours send. Rank 0 gathers the
//! bands and writes a picture, `heat.ppm` unless the second argument names another file.
//!
//! `cargo build --release --examples -p ironrail-group`, then
//! `ironrail run -n 4 -- target/release/examples/heat PLUGIN heat.ppm`.

use std::error::Error;
use std::fs;
use std::time::Duration;

use ironrail_group::group::Builder;
use ironrail_group::halo::Halo1d;
use ironrail_group::loader::{Library, Op};
use ironrail_group::objects::Leaf;
use ironrail_group::start::Start;

const SIDE: usize = 128;
const STEPS: usize = 1000;

#[allow(clippy::print_stdout, reason = "an example shows what it found")]
fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let plugin = arguments.next().unwrap_or_else(|| "ironrail".to_owned());
    let picture = arguments.next().unwrap_or_else(|| "heat.ppm".to_owned());
    let library = Library::open(&plugin, None)?;
    let (place, hub) = Start::from_environment()?.join(Duration::from_secs(30))?;
    let group = Builder::new(&library).join_with(place, hub)?;

    // This rank's rows, with one row above and one below from the neighbours. Outside of the plate it is cold.
    let (first, end) =
        (rows_before(group.rank(), group.size()), rows_before(group.rank() + 1, group.size()));
    let cold = vec![0.0_f32; SIDE];
    let mut rows = vec![cold.clone(); end - first + 2];
    let mut next = rows.clone();
    let mut halo = Halo1d::new(&group);
    for step in 0..STEPS {
        warm(&mut rows[1..=end - first], first);
        let (above, below) = halo.round(Some(rows[1].clone()), Some(rows[end - first].clone()))?;
        rows[0] = above.unwrap_or_else(|| cold.clone());
        rows[end - first + 1] = below.unwrap_or_else(|| cold.clone());
        for row in 1..=end - first {
            for column in 0..SIDE {
                let at = |row: usize, column: Option<usize>| {
                    column.and_then(|column| rows[row].get(column)).copied().unwrap_or(0.0)
                };
                let around = at(row - 1, Some(column))
                    + at(row + 1, Some(column))
                    + at(row, column.checked_sub(1))
                    + at(row, Some(column + 1));
                next[row][column] = rows[row][column] + 0.2 * (around - 4.0 * rows[row][column]);
            }
        }
        std::mem::swap(&mut rows, &mut next);
        if step % 250 == 249 {
            let mut heat = [rows[1..=end - first].iter().flatten().sum::<f32>()];
            group.all_reduce(&mut heat, Op::Sum)?;
            if group.rank() == 0 {
                println!("step {}: {:.0} units of heat", step + 1, heat[0]);
            }
        }
    }
    let band = Leaf::from(rows[1..=end - first].concat());
    if let Some(bands) = group.gather_obj(&band, 0)? {
        let heat: Vec<f32> = bands.into_iter().flat_map(Leaf::into_vec).collect();
        fs::write(&picture, ppm(&heat))?;
        println!("{picture} is {SIDE} by {SIDE} pixels");
    }
    Ok(())
}

/// The number of rows before a band; bands differ by at most one row.
fn rows_before(rank: usize, size: usize) -> usize {
    SIDE * rank / size
}

/// Two spots are kept hot.
fn warm(rows: &mut [Vec<f32>], first: usize) {
    for (row, column) in [(SIDE / 4, SIDE / 3), (SIDE / 2 + 20, SIDE * 3 / 4)] {
        for near in row..row + 8 {
            if let Some(row) = near.checked_sub(first).and_then(|near| rows.get_mut(near)) {
                row[column..column + 8].fill(1.0);
            }
        }
    }
}

/// Black, red, yellow, white.
fn ppm(heat: &[f32]) -> Vec<u8> {
    let mut bytes = format!("P6 {SIDE} {SIDE} 255\n").into_bytes();
    for value in heat {
        let warmth = value.max(0.0).sqrt() * 3.0;
        for colour in 0..3_u8 {
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "from 0 to 255"
            )]
            bytes.push(((warmth - f32::from(colour)).clamp(0.0, 1.0) * 255.0) as u8);
        }
    }
    bytes
}
