//! `ironrail perf versus-raw`: the plugin and bare libfabric alternate run by run, so that disturbances of the machine affect both.
//!
//! Which of the two goes first changes from pair to pair, since a run affects the next one by caches and the kernel.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use ironrail_group::error::GroupError;
use ironrail_group::launch::Program;
use serde_json::json;

use super::arguments::{Options, Versus};
use super::congestion;
use super::interval::{Estimate, Goal, Interval, Verdict};
use super::launcher::processes;
use super::report::{self, Event, Row};
use crate::files::Destination;
use crate::{median, output};

/// One side: its program, the network that it reports, and its times per size in µs, one per run in order.
struct Side {
    name: &'static str,
    program: Program,
    network: String,
    times: BTreeMap<usize, Vec<f64>>,
}

impl Side {
    fn new(name: &'static str, program: Program) -> Self {
        Self { name, program, network: String::new(), times: BTreeMap::new() }
    }

    /// Runs this side once, and keeps its times.
    fn run(&mut self, versus: &Versus, options: &Options) -> Result<(), Vec<String>> {
        let mut rows = Vec::new();
        processes(&self.program, options, |event| match event {
            Event::Ready(ready) => self.network = format!("{} ({})", ready.network, ready.file),
            Event::Row(row) => rows.push((row.bytes, time(versus, &row))),
            Event::Moved(_) => {}
        })?;
        self.take(rows);
        Ok(())
    }

    /// The rows of one run. Sizes below an element's multiple may be rounded to the same one: its first row counts.
    fn take(&mut self, rows: Vec<(usize, f64)>) {
        let first: BTreeMap<_, _> = rows.into_iter().rev().collect();
        for (bytes, time) in first {
            self.times.entry(bytes).or_default().push(time);
        }
    }
}

/// The time of a row. For round trips it is the median, which a rank that loses its CPU once does not change. For a stream it is the whole
/// time, on both sides until the slower end has seen the last message.
fn time(versus: &Versus, row: &Row) -> f64 {
    if versus.latency { row.times.p50_us } else { row.slowest_us }
}

/// Runs both sides, alternating. Returns whether every run went well.
pub(super) fn run(versus: &Versus, options: &Options) -> Result<bool, GroupError> {
    let json = options.json.as_deref().map(Destination::open).transpose()?;
    let mut plugin = Side::new("plugin", plugin(versus, options)?);
    let mut raw = Side::new("raw", raw(versus, options)?);
    let mut first = Vec::with_capacity(versus.runs);
    for pair in 0..versus.runs {
        output::progress(format_args!("pair {} of {}", pair + 1, versus.runs));
        let mut sides = [&mut plugin, &mut raw];
        if !pair.is_multiple_of(2) {
            sides.reverse();
        }
        first.push(sides[0].name);
        for side in sides {
            if let Err(causes) = side.run(versus, options) {
                output::print_causes(&causes);
                return Ok(false);
            }
        }
    }
    print(versus, options, json, &first, &plugin, &raw)
}

/// The result of a size over all runs.
struct Line<'a> {
    bytes: usize,
    ours: &'a [f64],
    theirs: &'a [f64],
    estimate: Estimate,
    verdict: Verdict,
}

impl<'a> Line<'a> {
    fn new(versus: &Versus, bytes: usize, ours: &'a [f64], theirs: &'a [f64]) -> Option<Self> {
        let ratios: Vec<_> =
            ours.iter().zip(theirs).map(|(ours, theirs)| ratio(versus, *ours, *theirs)).collect();
        let estimate = Estimate::of(&ratios)?;
        let goal = if versus.latency { Goal::AtMost } else { Goal::AtLeast };
        let verdict = estimate.verdict(goal, versus.bound, versus.precision);
        Some(Self { bytes, ours, theirs, estimate, verdict })
    }

    #[allow(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
    fn text(&self, versus: &Versus) -> Option<String> {
        let (our_median, their_median) = (median::of(self.ours)?, median::of(self.theirs)?);
        let moved = if versus.rate { 1.0 } else { self.bytes as f64 / 1e3 };
        let speed = |us: f64| if us > 0.0 { moved / us } else { 0.0 };
        let interval = self
            .estimate
            .interval
            .map_or_else(|| "-".to_owned(), |Interval { low, high }| format!("{low:.3}-{high:.3}"));
        Some(format!(
            "{:>12} {:>14} {:>14} {:>14.3} {:>11.3} {:>7.3} {interval:>13} {:>8} {:>15} {:>15}",
            self.bytes,
            report::time(our_median),
            report::time(their_median),
            speed(our_median),
            speed(their_median),
            self.estimate.ratio,
            self.verdict.word(),
            span(self.ours),
            span(self.theirs),
        ))
    }

    fn json(&self, versus: &Versus) -> serde_json::Value {
        let Self {
            bytes, ours, theirs, estimate: Estimate { ratio: middle, pairs, interval }, ..
        } = self;
        let ratios: Vec<_> = ours.iter().zip(*theirs).map(|(a, b)| ratio(versus, *a, *b)).collect();
        let (word, why) = match &self.verdict {
            Verdict::Refused(why) => (None, Some(why)),
            verdict => (Some(verdict.word()), None),
        };
        json!({
            "size": bytes, "plugin_us": ours, "raw_us": theirs, "ratios": ratios, "ratio": middle, "pairs": pairs,
            "interval": interval.map(|Interval { low, high }| [low, high]),
            "reaches_percent": interval.map(|interval| interval.percent_of(*middle)),
            "verdict": word, "refused": why,
        })
    }
}

/// The fastest and the slowest of several runs.
fn span(times: &[f64]) -> String {
    let mut sorted = times.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    match sorted[..] {
        [first, .., last] => format!("{}-{}", report::time(first), report::time(last)),
        _ => String::new(),
    }
}

/// The ratio of times for latency, otherwise of bandwidths: so that "at least" and "at most" read as in the goals.
fn ratio(versus: &Versus, ours: f64, theirs: f64) -> f64 {
    if versus.latency { ours / theirs } else { theirs / ours }
}

fn print(
    versus: &Versus,
    options: &Options,
    json: Option<Destination>,
    first: &[&str],
    plugin: &Side,
    raw: &Side,
) -> Result<bool, GroupError> {
    let say = |text: String| {
        if options.json.as_deref() != Some(Path::new("-")) {
            output::line(text);
        }
    };
    say(format!("# plugin: {}", plugin.network));
    say(format!("# raw:    {}", raw.network));
    // The provider's name comes first: "net of libfabric 1.17".
    let control = raw.network.split(' ').next().and_then(congestion::of);
    if let Some(name) = &control {
        say(congestion::line(name));
    }
    let unit = if versus.rate { "M/s" } else { "GB/s" };
    let goal = if versus.latency { "at most" } else { "at least" };
    say(format!(
        "# {}, {} pairs of runs: medians, the median of the pairs' ratios and its 95 % interval, fastest and slowest run",
        what(versus),
        versus.runs
    ));
    say(format!("# verdict: whether the ratio is {goal} {}", versus.bound));
    let (ours, theirs) = (format!("plugin ({unit})"), format!("raw ({unit})"));
    say(format!(
        "#       size    plugin (us)       raw (us) {ours:>14} {theirs:>11}   ratio   95 %         verdict          plugin             raw"
    ));
    let lines: Vec<_> = plugin
        .times
        .iter()
        .filter_map(|(bytes, ours)| Line::new(versus, *bytes, ours, raw.times.get(bytes)?))
        .collect();
    lines.iter().filter_map(|line| line.text(versus)).for_each(&say);
    for line in &lines {
        if let Verdict::Refused(why) = &line.verdict {
            say(format!("# {} bytes, no verdict: {why}", line.bytes));
        }
    }
    if let Some(mut file) = json {
        let rows: Vec<_> = lines.iter().map(|line| line.json(versus)).collect();
        let json = json!({
            "format": "ironrail-versus/2", "args": report::arguments(), "plugin": plugin.network,
            "raw": raw.network, "congestion_control": control, "latency": versus.latency, "rate": versus.rate,
            "bound": versus.bound, "precision_percent": versus.precision,
            "first_of_pair": first, "results": rows,
        });
        file.write(&format!("{json:#}\n"))?;
    }
    Ok(lines.len() == options.whole_sizes().len())
}

/// The subject of the comparison, as text.
fn what(versus: &Versus) -> String {
    let reference = match versus {
        Versus { rendezvous: true, .. } => "raw by rendezvous",
        Versus { unanswered: true, .. } => "raw two-sided, unanswered",
        Versus { two_sided: true, .. } | Versus { rate: true, .. } => "raw two-sided",
        Versus { answered: true, .. } => "raw answered",
        _ => "raw",
    };
    match versus.ahead() {
        _ if !versus.latency => {
            format!("one way, {} messages outstanding, {reference}", versus.window)
        }
        1 => format!("half round trip, 1 receive posted, {reference}"),
        ahead => format!("half round trip, {ahead} receives posted, {reference}"),
    }
}

fn plugin(versus: &Versus, options: &Options) -> Result<Program, GroupError> {
    let (window, factor) = (versus.window.to_string(), versus.recv_factor.to_string());
    let (ahead, group) = (versus.ahead().to_string(), versus.group.to_string());
    let mut arguments: Vec<OsString> = vec!["perf".into()];
    let own: &[&str] = if versus.latency {
        &["pingpong", "--ahead", &ahead, "--recv-factor", &factor]
    } else {
        &["sendrecv", "--one-way", "--window", &window, "--recv-factor", &factor, "--group", &group]
    };
    arguments.extend(own.iter().map(Into::into));
    if let Some(batch) = versus.batch {
        arguments.extend(["--batch".into(), batch.to_string().into()]);
    }
    arguments.extend(options.to_plugin_arguments());
    arguments.extend(options.to_arguments());
    let mut program =
        Program::this(arguments)?.with("IRONRAIL_LIBFABRIC", versus.place.libfabric());
    if let Some(provider) = versus.place.provider() {
        program = program.with("IRONRAIL_PROVIDER", provider);
    }
    if let Some(source) = versus.place.source() {
        program = program.with("IRONRAIL_RAILS", source);
    }
    Ok(program)
}

fn raw(versus: &Versus, options: &Options) -> Result<Program, GroupError> {
    let mut arguments: Vec<OsString> = vec!["perf".into(), "raw".into()];
    let (name, depth) =
        if versus.latency { ("--ahead", versus.ahead()) } else { ("--window", versus.window) };
    let flags = [
        ("--latency", versus.latency),
        ("--two-sided", versus.two_sided || versus.rate),
        ("--rendezvous", versus.rendezvous),
        ("--unanswered", versus.unanswered),
        ("--answered", versus.answered),
    ];
    arguments.extend(flags.iter().filter(|(_, asked)| *asked).map(|(flag, _)| flag.into()));
    arguments.extend([name.into(), depth.to_string().into()]);
    arguments.extend(["--source".into(), versus.place.source().unwrap_or("none").into()]);
    arguments.extend(["--libfabric".into(), versus.place.libfabric().into()]);
    if let Some(provider) = versus.place.provider() {
        arguments.extend(["--provider".into(), provider.into()]);
    }
    arguments.extend(options.to_arguments());
    Program::this(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_ran_twice_counts_once_in_a_run() {
        let mut side = Side::new("plugin", Program::this([""; 0]).unwrap());
        side.take(vec![(0, 1.0), (0, 2.0), (4, 3.0)]);
        side.take(vec![(0, 5.0), (0, 6.0), (4, 7.0)]);
        assert_eq!(side.times, BTreeMap::from([(0, vec![1.0, 5.0]), (4, vec![3.0, 7.0])]));
    }
}
