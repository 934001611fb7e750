//! A page in one file: pictures, tables, and the origin of the figures. The page loads nothing from the network.

use std::fmt::Write as _;

use super::plot::{self, COLOURS, Line, short, size};
use super::runs::{Row, Series};
use super::verdict::percent;
use crate::median;

/// The page of these sides; `time`: two sides are compared by their times.
pub(super) fn of(sides: &[Series], time: bool) -> String {
    let mut page = Page(String::new());
    let mut benchmarks = Vec::new();
    for benchmark in sides.iter().map(Series::benchmark) {
        if !benchmarks.contains(&benchmark) {
            benchmarks.push(benchmark);
        }
    }
    let benchmark = benchmarks.join(", ");
    page.add(format_args!("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"));
    page.add(format_args!("<meta name=\"viewport\" content=\"width=device-width\">"));
    page.add(format_args!(
        "<title>ironrail perf {}</title><style>{STYLE}{DARK}</style></head><body>",
        escaped(&benchmark)
    ));
    page.add(format_args!("<h1>ironrail perf {}</h1>", escaped(&benchmark)));
    page.sides(sides);
    page.picture("Bus bandwidth", "GB/s", &bandwidths(sides));
    page.picture(TIMES, "microseconds", &times(sides));
    if let [first, second] = sides {
        page.ratios(first, second, time);
    }
    page.rails(sides);
    page.table(sides);
    page.add(format_args!("</body></html>"));
    page.0
}

/// For operations that run one after the other this is the time that each takes; for a stream, in which several may end together, the gap
/// between two ends.
const TIMES: &str =
    "Time from the end of one operation to the next one's: median and 99th percentile";

struct Page(String);

impl Page {
    fn add(&mut self, text: std::fmt::Arguments<'_>) {
        let written = writeln!(self.0, "{text}");
        debug_assert!(written.is_ok(), "writing to a string never fails");
    }

    fn sides(&mut self, sides: &[Series]) {
        self.add(format_args!("<ul>"));
        for (at, side) in sides.iter().enumerate() {
            let network = side.runs.first().map_or("", |run| &run.network);
            let checked = match wrong(side.runs.iter().flat_map(|run| run.rows.values())) {
                None => "not checked".to_owned(),
                Some(0) => "no wrong byte".to_owned(),
                Some(wrong) => format!("<b>{wrong} wrong values</b>"),
            };
            self.add(format_args!(
                "<li>{}<b>{}</b>: {}, {}, {checked}<br><code>{}</code></li>",
                key(at, 1.0),
                escaped(&side.name),
                side.count(),
                escaped(network),
                escaped(&command(side)),
            ));
        }
        self.add(format_args!("</ul>"));
    }

    fn picture(&mut self, title: &str, unit: &str, lines: &[Line]) {
        if let Some(svg) = plot::lines(unit, lines) {
            self.add(format_args!("<h2>{title}</h2>\n<p class=\"legend\">"));
            for line in lines {
                let key = key(line.colour, line.strength);
                self.add(format_args!("<span>{key}{}</span>", escaped(&line.name)));
            }
            self.add(format_args!("</p>\n<figure>{svg}</figure>"));
        }
    }

    fn ratios(&mut self, first: &Series, second: &Series, time: bool) {
        self.add(format_args!(
            "<h2>{} against {}</h2>",
            escaped(&second.name),
            escaped(&first.name)
        ));
        let unit = if time { "us" } else { "GB/s" };
        self.add(format_args!("<div class=\"wide\"><table><tr><th>bytes<th>{}, {unit}<th>spread<th>{}, {unit}<th>spread<th>ratio<th class=\"words\">verdict</tr>", escaped(&first.name), escaped(&second.name)));
        for (bytes, row) in super::rows(first, second, time) {
            self.add(format_args!(
                "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{:.3}<td class=\"words\">{}</tr>",
                size_of(bytes),
                short(row.first),
                percent(row.spreads.0),
                short(row.second),
                percent(row.spreads.1),
                row.ratio,
                row.verdict.words()
            ));
        }
        self.add(format_args!("</table></div>"));
    }

    fn rails(&mut self, sides: &[Series]) {
        if sides.iter().all(|side| side.runs.iter().all(|run| run.rails.is_empty())) {
            return;
        }
        self.add(format_args!("<h2>Shares of the rails</h2>\n<p>Of the bytes on data rails. Short messages travel in control packets, and do not count.</p>"));
        for (at, side) in sides.iter().enumerate() {
            let Some(run) = side.runs.iter().find(|run| !run.rails.is_empty()) else { continue };
            self.add(format_args!("<p>{}</p><div class=\"bar\">", escaped(&side.name)));
            // The colour is that of the side, as in all pictures; a gap separates the rails.
            for rail in &run.rails {
                let percent = rail.percent.clamp(0.0, 100.0);
                self.add(format_args!(
                    "<div style=\"width:{percent:.2}%;background:{}\" title=\"{} {percent:.1} %\">{} {percent:.0}&nbsp;%</div>",
                    colour(at), escaped(&rail.name), escaped(&rail.name)
                ));
            }
            self.add(format_args!("</div>"));
        }
    }

    fn table(&mut self, sides: &[Series]) {
        self.add(format_args!("<h2>Figures</h2>\n<div class=\"wide\"><table><tr><th class=\"words\">side<th>bytes<th>time, us<th>p50, us<th>p99, us<th>busbw, GB/s<th>wrong</tr>"));
        for side in sides {
            for bytes in side.sizes() {
                let of = |value: fn(&Row) -> f64| {
                    short(median::of(&side.values(bytes, value)).unwrap_or(0.0))
                };
                let wrong = wrong(side.runs.iter().filter_map(|run| run.rows.get(&bytes)));
                let wrong = wrong.map_or_else(|| "N/A".to_owned(), |wrong| wrong.to_string());
                self.add(format_args!(
                    "<tr><td class=\"words\">{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{wrong}</tr>",
                    escaped(&side.name),
                    size_of(bytes),
                    of(|row| row.time_us),
                    of(|row| row.p50_us),
                    of(|row| row.p99_us),
                    of(|row| row.bus_bandwidth)
                ));
            }
        }
        self.add(format_args!("</table></div>\n<p>Medians of the runs; a percentile is the median of the runs' percentiles.</p>"));
    }
}

/// The number of wrong values in these rows; None if nothing was checked.
fn wrong<'a>(rows: impl Iterator<Item = &'a Row>) -> Option<u64> {
    rows.filter_map(|row| row.wrong).reduce(u64::saturating_add)
}

#[allow(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
fn points(side: &Series, of: impl Fn(&Row) -> f64 + Copy) -> Vec<(f64, f64)> {
    let point = |bytes: u64| Some((bytes as f64, median::of(&side.values(bytes, of))?));
    side.sizes().into_iter().filter_map(point).collect()
}

fn bandwidths(sides: &[Series]) -> Vec<Line> {
    let line = |(colour, side): (usize, &Series)| Line {
        name: side.name.clone(),
        points: points(side, |row| row.bus_bandwidth),
        colour,
        strength: 1.0,
    };
    sides.iter().enumerate().map(line).collect()
}

fn times(sides: &[Series]) -> Vec<Line> {
    let mut lines = Vec::new();
    for (colour, side) in sides.iter().enumerate() {
        for (word, strength, of) in
            [("p50", 1.0, (|row| row.p50_us) as fn(&Row) -> f64), ("p99", 0.45, |row| row.p99_us)]
        {
            lines.push(Line {
                name: format!("{} {word}", side.name),
                points: points(side, of),
                colour,
                strength,
            });
        }
    }
    lines
}

/// The command line of a side.
fn command(side: &Series) -> String {
    let words = side.runs.first().and_then(|run| run.whole["args"].as_array());
    let words = words.into_iter().flatten().filter_map(|word| word.as_str());
    // The command's path is left out: it may name a home folder.
    let words = words.enumerate().map(|(at, word)| if at == 0 { "ironrail" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

#[allow(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
fn size_of(bytes: u64) -> String {
    let short = size(bytes as f64);
    if bytes < 1024 || bytes.is_power_of_two() { short } else { bytes.to_string() }
}

/// A square of a side's colour for the legend, with the opacity of the side's line.
fn key(at: usize, strength: f64) -> String {
    let colour = colour(at);
    format!("<span class=\"key\" style=\"background:{colour};opacity:{strength}\"></span>")
}

fn colour(at: usize) -> String {
    let colour = COLOURS[at % COLOURS.len()];
    format!("#{:02x}{:02x}{:02x}", colour.0, colour.1, colour.2)
}

/// Escapes text for HTML: names of files and NICs may contain anything.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            other => escaped.push(other),
        }
    }
    escaped
}

const STYLE: &str = ":root{color-scheme:light dark;--ink:#222;--paper:#fff;--rule:#e4e4e4;--quiet:#555}\
body{font:15px/1.45 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:var(--ink);background:var(--paper)}\
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}\
figure,.wide{margin:0;overflow-x:auto}figure svg{display:block;min-width:45rem;max-width:100%;height:auto}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums}\
th,td{padding:.2rem .7rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--rule)}\
th{font-weight:600}th.words,td.words{text-align:left}li{margin-bottom:.5rem;overflow-wrap:anywhere}code{font-size:.85em;color:var(--quiet)}\
.key{display:inline-block;width:.8em;height:.8em;margin-right:.4em;border-radius:2px}.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.4rem;margin:.3rem 0}\
.bar{display:flex;height:1.7rem;border-radius:3px;overflow:hidden}.bar div+div{border-left:3px solid var(--paper)}\
.bar div{color:#fff;font-size:.8rem;line-height:1.7rem;padding-left:.4rem;white-space:nowrap;overflow:hidden;box-sizing:border-box}";

/// The style for systems in dark mode. It also replaces the colours that the pictures have as attributes.
const DARK: &str = "@media(prefers-color-scheme:dark){:root{--ink:#ddd;--paper:#181a1d;--rule:#36393e;--quiet:#aaa}\
svg [fill='#FFFFFF']{fill:#181a1d}svg [fill='#000000']{fill:#ccc}svg [stroke='#000000']{stroke:#999}\
svg [stroke='#F0F0F0']{stroke:#26292d}svg [stroke='#DCDCDC']{stroke:#36393e}\
svg [opacity='0.45'],.key[style*='0.45']{opacity:.7!important}}";

#[cfg(test)]
mod tests {
    use super::super::runs::tests::sample;
    use super::*;

    fn two() -> Vec<Series> {
        let runs = |by: f64| {
            (0..4).map(|run| sample("all_reduce", 0.1, by + f64::from(run) / 100.0)).collect()
        };
        vec![Series::of("before", runs(5.0)).unwrap(), Series::of("after <b>", runs(7.5)).unwrap()]
    }

    #[test]
    fn a_page_has_all_parts_and_loads_nothing_from_the_network() {
        let page = of(&two(), false);
        assert_eq!(page.matches("<svg").count(), 2);
        for words in
            ["1M", "better", "<td>1.49", "eth1 25&nbsp;%", "after &lt;b&gt; p99", "no wrong byte"]
        {
            assert!(page.contains(words), "{words}");
        }
        assert!(!page.contains("<b>.so") && !page.contains("after <b>"), "names are escaped");
        // The namespace of SVG is a name, not an address to load from.
        let page = page.replace("http://www.w3.org/2000/svg", "");
        for outside in ["http:", "https:", "src=", "<script", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn a_page_names_every_benchmark_and_compares_times_where_they_are_asked_for() {
        let mut sides = two();
        assert!(of(&sides, true).contains("<th>before, us"));
        sides.extend(
            [("c", "sendrecv"), ("d", "all_reduce")].map(|(name, benchmark)| {
                Series::of(name, vec![sample(benchmark, 0.1, 3.0)]).unwrap()
            }),
        );
        assert!(of(&sides, false).contains("<h1>ironrail perf all_reduce, sendrecv</h1>"));
    }

    #[test]
    fn a_page_does_not_call_unchecked_values_right() {
        let mut side = Series::of("this run", vec![sample("all_reduce", 0.1, 3.0)]).unwrap();
        side.runs[0].rows.values_mut().for_each(|row| row.wrong = None);
        let page = of(std::slice::from_ref(&side), false);
        assert!(page.contains("not checked") && page.contains("<td>N/A"));
        assert!(!page.contains("no wrong byte"));
        side.runs[0].rows.values_mut().for_each(|row| row.wrong = Some(2));
        assert!(of(std::slice::from_ref(&side), false).contains("<b>4 wrong values</b>"));
        // The sum of the largest counts that a file can have does not wrap around to 0.
        side.runs[0].rows.values_mut().for_each(|row| row.wrong = Some(1 << 63));
        assert!(of(&[side], false).contains(&format!("<b>{} wrong values</b>", u64::MAX)));
    }

    #[test]
    fn one_run_is_a_page_too_and_one_without_a_size_has_no_picture() {
        let one = Series::of("this run", vec![sample("sendrecv", 0.1, 3.0)]).unwrap();
        let page = of(std::slice::from_ref(&one), false);
        assert!(page.contains("<svg") && !page.contains("verdict"));
        let mut empty = one;
        empty.runs[0].rows.clear();
        assert!(!of(&[empty], false).contains("<svg"));
    }
}
