//! A record as a table and as a picture of text. Pure.

use std::fmt::Write;
use std::ops::Range;

use crate::record::Record;

/// A name for a stretch of time.
#[derive(Clone, Debug)]
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    pub(crate) time: Range<u64>,
}

/// A row per rail, a column per phase: MB/s that rank 0 sent.
pub(crate) fn table(record: &Record, rails: usize, phases: &[Phase]) -> String {
    let mut text = format!("{:<12}", "MB/s sent");
    for phase in phases {
        let _ = write!(text, "{:>10}", phase.name);
    }
    text.push('\n');
    let mut row = |name: &str, rate: &dyn Fn(&Range<u64>) -> f64| {
        let _ = write!(text, "  {name:<10}");
        for phase in phases {
            let _ = write!(text, "{:>10.0}", rate(&phase.time));
        }
        text.push('\n');
    };
    for rail in 0..rails {
        row(&format!("rail {rail}"), &|time| record.rate(rail, time));
    }
    row("all", &|time| (0..rails).map(|rail| record.rate(rail, time)).sum());
    text
}

/// A line per rail, a character per tenth of a second, as high as the rail was fast; full height is the fastest tenth of all. A last
/// line has the first letter of each phase where it begins.
pub(crate) fn picture(record: &Record, rails: usize, phases: &[Phase]) -> String {
    let (Some(first), Some(last)) = (phases.first(), phases.last()) else { return String::new() };
    let (start, end) = (first.time.start, last.time.end);
    let columns = (end.saturating_sub(start) / TENTH) as usize;
    let rate = |rail, column| {
        let at = start + column as u64 * TENTH;
        record.rate(rail, &(at..at + TENTH))
    };
    let all = (0..rails).flat_map(|rail| (0..columns).map(move |column| rate(rail, column)));
    let most = all.fold(1.0, f64::max);
    let mut text = String::new();
    for rail in 0..rails {
        let _ = write!(text, "  rail {rail} ");
        text.extend((0..columns).map(|column| bar(rate(rail, column) / most)));
        text.push('\n');
    }
    let mut marks = vec![' '; columns];
    for phase in phases {
        let column = (phase.time.start.saturating_sub(start) / TENTH) as usize;
        if let (Some(mark), Some(letter)) = (marks.get_mut(column), phase.name.chars().next()) {
            *mark = letter;
        }
    }
    let _ = writeln!(text, "         {}", marks.into_iter().collect::<String>().trim_end());
    text
}

/// One of nine heights. What is not nothing shows.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it lies between 0 and 8"
)]
fn bar(share: f64) -> char {
    let height = (share.clamp(0.0, 1.0) * 8.0).round() as usize;
    BARS[if share > 0.005 { height.max(1) } else { height }]
}

const BARS: [char; 9] = ['.', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const TENTH: u64 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::Sums;
    use crate::record::Sample;

    #[test]
    fn a_rail_that_stops_is_seen_to_stop() {
        let sums = |at: u64| vec![at, at.min(200_000)];
        let sample =
            |at| Sample { at_micros: at, sums: Sums { sent: sums(at), ..Sums::default() } };
        let samples = (0..=4).map(|tenth| sample(tenth * TENTH)).collect();
        let record = Record { samples, ..Record::default() };
        let phases = [
            Phase { name: "before", time: 0..200_000 },
            Phase { name: "lost", time: 200_000..400_000 },
        ];
        assert_eq!(picture(&record, 2, &phases), "  rail 0 ████\n  rail 1 ██..\n         b l\n");
        let table = table(&record, 2, &phases);
        assert!(table.contains("  rail 1             1         0\n"), "{table}");
    }
}
