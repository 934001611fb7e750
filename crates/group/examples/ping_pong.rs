//! A ping-pong with tags: rank 0 sends a number to every other rank, each with its own tag, and receives the answers in any order.
//!
//! `cargo build --release --examples -p ironrail-group`, then
//! `ironrail run -n 3 -- target/release/examples/ping_pong PLUGIN`.

use std::error::Error;
use std::time::Duration;

use ironrail_group::group::Builder;
use ironrail_group::loader::Library;
use ironrail_group::messages::Any;
use ironrail_group::start::Start;

const BALLS: u32 = 5;

#[allow(clippy::print_stdout, reason = "an example shows what it found")]
fn main() -> Result<(), Box<dyn Error>> {
    let plugin = std::env::args().nth(1).unwrap_or_else(|| "ironrail".to_owned());
    let library = Library::open(&plugin, None)?;
    let (place, hub) = Start::from_environment()?.join(Duration::from_secs(30))?;
    let group = Builder::new(&library).join_with(place, hub)?;

    if group.rank() == 0 {
        for peer in 1..group.size() {
            for tag in 0..BALLS {
                group.send(&[u64::from(tag) + 10], peer, tag)?;
            }
        }
        let mut answer = [0_u64];
        for _ in 0..BALLS as usize * (group.size() - 1) {
            let came = group.recv(&mut answer, Any, Any)?;
            println!("rank {} answers {} to ball {}", came.source, answer[0], came.tag);
        }
    } else {
        // The last ball first: the tag identifies it.
        let mut ball = [0_u64];
        for tag in (0..BALLS).rev() {
            group.recv(&mut ball, 0, tag)?;
            group.send(&[ball[0] * ball[0]], 0, tag)?;
        }
    }
    group.barrier()?;
    Ok(())
}
