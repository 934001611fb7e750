//! Which edges of the code an input has taken: the compiler counts them (sancov's inline counters), and we read the counters.

use std::sync::Mutex;

/// The counters of each module, where they lie.
static COUNTERS: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// Called by every instrumented module before `main`. Clang's SanitizerCoverage documentation, "Inline 8bit-counters".
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut u8, stop: *mut u8) {
    let range = (start.expose_provenance(), stop.expose_provenance());
    COUNTERS.lock().expect("nothing panics before main").push(range);
}

/// What all inputs so far have reached: for each edge, how often, in powers of two.
#[derive(Debug, Default)]
pub(crate) struct Seen(Vec<u8>);

impl Seen {
    /// Adds what has been counted since the last call, and clears the counters. True if something is new.
    pub(crate) fn add(&mut self) -> bool {
        let (mut at, mut new) = (0, false);
        for (start, stop) in COUNTERS.lock().expect("nothing panics here").iter() {
            for address in *start..*stop {
                let place = std::ptr::with_exposed_provenance_mut::<u8>(address);
                // SAFETY: a counter of a module of this program, which has one thread.
                let count = unsafe { place.read() };
                if self.0.len() <= at {
                    self.0.push(0);
                }
                if count != 0 {
                    let bit = 1 << count.ilog2();
                    new |= self.0[at] & bit == 0;
                    self.0[at] |= bit;
                    // SAFETY: as above.
                    unsafe { place.write(0) };
                }
                at += 1;
            }
        }
        new
    }

    /// Edges reached, and edges that there are.
    pub(crate) fn edges(&self) -> (usize, usize) {
        (self.0.iter().filter(|bits| **bits != 0).count(), self.0.len())
    }
}
