//! `ironrail perf versus-raw`: the plugin and bare libfabric in turns, so that what else the machine does hits both.

use std::collections::BTreeMap;
use std::ffi::OsString;

use ironrail_group::error::GroupError;
use ironrail_group::launch::Program;
use serde_json::json;

use super::arguments::{Options, Versus};
use super::congestion;
use super::launcher::processes;
use super::report::{self, Event};
use super::statistics::median;
use crate::output;

/// Times per size in µs, one per run.
type Times = BTreeMap<usize, Vec<f64>>;

/// Runs both sides in turns. Whether every run went well.
pub(super) fn run(versus: &Versus, options: &Options) -> Result<bool, GroupError> {
    let (plugin, raw) = (plugin(versus, options)?, raw(versus, options)?);
    let (mut with_plugin, mut bare) = (Times::new(), Times::new());
    let (mut network_plugin, mut network_raw) = (String::new(), String::new());
    for _ in 0..versus.runs {
        for (program, times, network) in
            [(&plugin, &mut with_plugin, &mut network_plugin), (&raw, &mut bare, &mut network_raw)]
        {
            let collect = |event| match event {
                Event::Ready(ready) => *network = format!("{} ({})", ready.network, ready.file),
                Event::Row(row) => {
                    // Of round trips the typical one: a rank that loses its CPU for once would drown the others.
                    let time = if versus.latency { row.times.p50_us } else { row.times.mean_us };
                    times.entry(row.bytes).or_default().push(time);
                }
            };
            if let Err(causes) = processes(program, options, collect) {
                causes.iter().for_each(output::complain);
                return Ok(false);
            }
        }
    }
    print(versus, options, &[network_plugin, network_raw], with_plugin, bare)
}

#[allow(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
fn print(
    versus: &Versus,
    options: &Options,
    network: &[String; 2],
    mut plugin: Times,
    mut raw: Times,
) -> Result<bool, GroupError> {
    let say = |text: String| {
        if options.json.as_deref() != Some(std::path::Path::new("-")) {
            output::line(text);
        }
    };
    say(format!("# plugin: {}", network[0]));
    say(format!("# raw:    {}", network[1]));
    // Its name comes first: "net of libfabric 1.17".
    let control = network[1].split(' ').next().and_then(congestion::of);
    if let Some(name) = &control {
        say(congestion::line(name));
    }
    let (what, unit) = match (versus.latency, versus.rate) {
        (true, _) => ("half round trip", "GB/s"),
        (_, true) if versus.unanswered => ("one way, two-sided raw, unanswered", "M/s"),
        (_, true) => ("one way, two-sided raw", "M/s"),
        _ if versus.answered => ("one way, raw answered", "GB/s"),
        _ => ("one way", "GB/s"),
    };
    say(format!(
        "# {what}, medians of {} alternating runs, fastest and slowest run of each",
        versus.runs
    ));
    let (ours, theirs) = (format!("plugin ({unit})"), format!("raw ({unit})"));
    say(format!(
        "#       size    plugin (us)       raw (us) {ours:>14} {theirs:>11}   ratio        plugin          raw"
    ));
    let mut rows = Vec::new();
    for (bytes, times) in &mut plugin {
        let Some(bare) = raw.get_mut(bytes) else { continue };
        let (Some(ours), Some(theirs)) = (median(times), median(bare)) else { continue };
        let moved = if versus.rate { 1.0 } else { *bytes as f64 / 1e3 };
        let speed = |us: f64| if us > 0.0 { moved / us } else { 0.0 };
        // Of times when latency is asked for, of bandwidths else: so "at least" and "at most" read as in the goals.
        let ratio = if versus.latency { ours / theirs } else { theirs / ours };
        // `median` has sorted them.
        let span = |times: &[f64]| match times {
            [first, .., last] => format!("{}-{}", report::time(*first), report::time(*last)),
            _ => String::new(),
        };
        say(format!(
            "{bytes:>12} {:>14} {:>14} {:>14.3} {:>11.3} {ratio:>7.3} {:>13} {:>12}",
            report::time(ours),
            report::time(theirs),
            speed(ours),
            speed(theirs),
            span(times),
            span(bare),
        ));
        rows.push(json!({ "size": bytes, "plugin_us": times, "raw_us": bare, "ratio": ratio }));
    }
    if let Some(path) = &options.json {
        let json = json!({
            "format": "ironrail-versus/1", "args": std::env::args().collect::<Vec<_>>(), "plugin": network[0],
            "raw": network[1], "congestion_control": control, "latency": versus.latency, "rate": versus.rate,
            "results": rows,
        });
        report::write_json(path, &json)?;
    }
    Ok(rows.len() == options.sizes().len())
}

fn plugin(versus: &Versus, options: &Options) -> Result<Program, GroupError> {
    let (window, factor) = (versus.window.to_string(), versus.recv_factor.to_string());
    let group = versus.group.to_string();
    let mut arguments: Vec<OsString> = vec!["perf".into()];
    let own: &[&str] = if versus.latency {
        &["pingpong", "--ahead", &window, "--recv-factor", &factor]
    } else {
        &["sendrecv", "--one-way", "--window", &window, "--recv-factor", &factor, "--group", &group]
    };
    arguments.extend(own.iter().map(Into::into));
    if let Some(batch) = versus.batch.filter(|_| versus.latency) {
        arguments.extend(["--batch".into(), batch.to_string().into()]);
    }
    arguments.extend(["--net".into(), options.net().into()]);
    arguments.extend(options.to_arguments());
    let mut program = Program::this(arguments)?.with("IRONRAIL_LIBFABRIC", &versus.place.libfabric);
    if let Some(provider) = &versus.place.provider {
        program = program.with("IRONRAIL_PROVIDER", provider);
    }
    if let Some(source) = versus.place.source() {
        program = program.with("IRONRAIL_RAILS", source);
    }
    Ok(program)
}

fn raw(versus: &Versus, options: &Options) -> Result<Program, GroupError> {
    let mut arguments: Vec<OsString> = vec!["perf".into(), "raw".into()];
    arguments.extend(["--window".into(), versus.window.to_string().into()]);
    let flags = [
        ("--latency", versus.latency),
        ("--two-sided", versus.rate),
        ("--unanswered", versus.unanswered),
        ("--answered", versus.answered),
    ];
    arguments.extend(flags.iter().filter(|(_, asked)| *asked).map(|(flag, _)| flag.into()));
    arguments.extend(["--source".into(), versus.place.source().unwrap_or("none").into()]);
    arguments.extend(["--libfabric".into(), versus.place.libfabric.clone().into()]);
    if let Some(provider) = &versus.place.provider {
        arguments.extend(["--provider".into(), provider.into()]);
    }
    arguments.extend(options.to_arguments());
    Program::this(arguments)
}
