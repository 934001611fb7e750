//! `ironrail top`: rates per peer and rail, refreshed in a terminal; or frame by frame without one.

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use counters::{Direction, Kind};
use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::{cursor, execute, queue, terminal};
use ironrail_group::error::GroupError;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;
use signal_hook::low_level::raise;

use super::NONE;
use super::pages::{self, Found, Query};
use super::rates::{Before, Rate};
use crate::values::seconds;
use crate::{output, signals};

/// Shows what this user's processes with Ironrail move, now: rates per device, peer and direction, and per rail.
///
/// It reads pages of shared memory, and costs the processes nothing. q ends it, Ctrl-Z stops it. Where a terminal has no room for all rows,
/// those with trouble come first.
///
/// PROCESS is a process's number, with its PID namespace where that is another, as of a container: 7@4026532281. COUNT is messages, or parts
/// of them on a rail; a rail has ? for bytes that its provider does not report. INLINE is the share of messages
/// that travelled in control packets, WAITS the calls or posts that had to be repeated, P50 and P99 are latencies of messages. TROUBLE, since
/// the start: stalls of messages; failed and rerouted parts of a rail.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Top {
    #[command(flatten)]
    query: Query,
    /// Seconds between two frames
    #[arg(long, short = 'd', default_value = "1", value_parser = seconds(0.1, 3600.0), allow_negative_numbers = true)]
    interval: Duration,
    /// Print this many frames, one below the other, and end
    #[arg(long, short = 'n', value_name = "COUNT", value_parser = frames, allow_negative_numbers = true)]
    frames: Option<usize>,
}

const EXAMPLES: &str = "\
Examples:
  ironrail top                 everything of this user's, each second
  ironrail top --by rail       rails, summed over peers
  ironrail top -n 10 > log     ten frames as text";

fn frames(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(frames @ 1..) => Ok(frames),
        _ => Err("expected a whole number of frames, 1 or more".to_owned()),
    }
}

impl Top {
    /// Shows frames until the user ends it.
    pub(crate) fn run(&self) -> Result<bool, GroupError> {
        match self.frames {
            None if io::stdout().is_terminal() => self.live(),
            frames => self.print(frames.unwrap_or(1)),
        }
    }

    /// Frames as text. The first comes after an interval: rates need two samples.
    fn print(&self, frames: usize) -> Result<bool, GroupError> {
        signals::end_as_first_process();
        let mut display = Display::new();
        let whole = (usize::MAX, usize::MAX);
        display.frame(self, whole)?;
        for _ in 0..frames {
            thread::sleep(self.interval);
            for line in display.frame(self, whole)? {
                output::line(line);
            }
            if output::is_over() {
                break;
            }
        }
        Ok(true)
    }

    fn live(&self) -> Result<bool, GroupError> {
        let system = |error| GroupError::System { what: "drawing on the terminal", error };
        restore_on_signals().map_err(system)?;
        let screen = Screen::open().map_err(system)?;
        let mut display = Display::new();
        loop {
            let (columns, rows) = size().map_err(system)?;
            // One line is left to the cursor.
            let lines = display.frame(self, (columns, rows.saturating_sub(1)))?;
            screen.draw(&lines, columns).map_err(system)?;
            if is_ended(self.interval).map_err(system)? {
                return Ok(true);
            }
        }
    }
}

/// The terminal's columns and rows. A terminal that reports 0, as a serial line or at first that of a container, is taken for one of 80 by
/// 24.
fn size() -> io::Result<(usize, usize)> {
    let known = |cells: u16, usual| if cells == 0 { usual } else { cells.into() };
    terminal::size().map(|(columns, rows)| (known(columns, 80), known(rows, 24)))
}

/// Restores the terminal when a signal comes, then ends or stops the process by that signal, so that a shell sees the signal. This is done
/// in a thread of its own, since crossterm continues a wait that a signal has interrupted, and never returns if the terminal is gone.
fn restore_on_signals() -> io::Result<()> {
    let mut heeded = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP])?;
    let wait = move || {
        for signal in heeded.forever() {
            // Held until the process has ended or continues, so that no frame follows.
            let _out = io::stdout().lock();
            restore();
            if signal == SIGTSTP {
                signals::stop();
            } else {
                signals::end_by(signal);
            }
            // If the terminal is gone, the next frame is an error anyway.
            let _again = take();
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(wait)?;
    Ok(())
}

/// Waits for the next frame. True if the user quits.
fn is_ended(interval: Duration) -> io::Result<bool> {
    let until = Instant::now() + interval;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        if !event::poll(left)? {
            break;
        }
        match event::read()? {
            Event::Key(key) if key.kind == KeyEventKind::Press => {
                let control = key.modifiers.contains(KeyModifiers::CONTROL);
                if matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
                    || key.code == KeyCode::Char('c') && control
                {
                    return Ok(true);
                }
                // In raw mode the terminal sends no signal.
                if key.code == KeyCode::Char('z') && control {
                    raise(SIGTSTP)?;
                }
            }
            // The terminal has another size: draw at once.
            Event::Resize(..) => break,
            _ => {}
        }
    }
    Ok(false)
}

/// The terminal's alternate screen, without a cursor. The drop restores the terminal.
#[derive(Debug)]
struct Screen;

impl Screen {
    fn open() -> io::Result<Self> {
        let screen = Self;
        take()?;
        Ok(screen)
    }

    fn draw(&self, lines: &[String], columns: usize) -> io::Result<()> {
        let mut out = io::stdout().lock();
        queue!(out, cursor::MoveTo(0, 0))?;
        for line in lines {
            let cut: String = line.chars().take(columns).collect();
            queue!(out, terminal::Clear(terminal::ClearType::CurrentLine))?;
            write!(out, "{cut}\r\n")?;
        }
        queue!(out, terminal::Clear(terminal::ClearType::FromCursorDown))?;
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

fn take() -> io::Result<()> {
    terminal::enable_raw_mode()?;
    execute!(io::stdout(), terminal::EnterAlternateScreen, cursor::Hide)
}

fn restore() {
    let _shown = execute!(io::stdout(), terminal::LeaveAlternateScreen, cursor::Show);
    let _cooked = terminal::disable_raw_mode();
}

/// The state from one frame to the next.
struct Display {
    before: Before,
    at: Instant,
}

impl Display {
    fn new() -> Self {
        Self { before: Before::default(), at: Instant::now() }
    }

    fn frame(&mut self, top: &Top, room: (usize, usize)) -> Result<Vec<String>, GroupError> {
        let found = top.query.find()?;
        let elapsed = self.at.elapsed();
        self.at = Instant::now();
        let rates = self.before.rates(&found, elapsed);
        Ok(lines(&found, rates, room, top.query.all_users))
    }
}

/// The lines that fit the room; the last line counts those left out.
fn fitting(mut lines: Vec<String>, room: usize) -> Vec<String> {
    let room = room.max(2);
    if lines.len() > room {
        let left = lines.len() + 1 - room;
        lines.truncate(room - 1);
        lines.push(format!(
            "{left} lines more: a taller terminal shows them, `--by rail` or `ironrail top PROCESS`"
        ));
    }
    lines
}

/// The columns of the table, and the widths of those with names.
#[derive(Clone, Copy, Debug)]
struct Layout {
    process: usize,
    /// 0: no column of users.
    user: usize,
    name: usize,
    peer: usize,
    /// Whether there are the columns INLINE and WAITS/s.
    is_wide: bool,
}

impl Layout {
    /// The layout for a terminal of this width, and names of these lengths. INLINE and WAITS/s are left out if names would otherwise be cut
    /// too short.
    fn of(columns: usize, [process, user, name, peer]: [usize; 4]) -> Self {
        let process = process.max(PROCESS_MIN);
        let figures = FIGURES + process + if user > 0 { user + 1 } else { 0 };
        let longest = |len: usize| len.clamp(NAME_MIN, NAME_MAX);
        let (name, peer) = (longest(name), longest(peer));
        let wide = columns.saturating_sub(figures + INLINE_AND_WAITS);
        let is_wide = wide >= (name + peer).min(2 * NAME_GOOD);
        let room = if is_wide { wide } else { columns.saturating_sub(figures) };
        let name = name.min(room.saturating_sub(peer.min(room / 2))).max(NAME_MIN);
        let peer = peer.min(room.saturating_sub(name)).max(NAME_MIN);
        Self { process, user, name, peer, is_wide }
    }

    fn line(self, cells: &[String; 12]) -> String {
        let [process, user, name, way, peer, bytes, count, inline, waits, half, most, trouble] =
            cells;
        let (name, peer) = (cut(name, self.name), cut(peer, self.peer));
        let (first, wide, high, most_user) = (self.process, self.name, self.peer, self.user);
        let user = if most_user > 0 { format!("{user:>most_user$} ") } else { String::new() };
        let more = if self.is_wide { format!("{inline:>6} {waits:>7} ") } else { String::new() };
        format!(
            "{process:>first$} {user}{name:<wide$} {way:<4} {peer:<high$} {bytes:>10} {count:>8} {more}{half:>7} {most:>7} {trouble:>7}"
        )
    }
}

/// The width of all columns apart from processes, names, INLINE and WAITS/s, and of the blanks between them.
const FIGURES: usize = 4 + 10 + 8 + 7 + 7 + 7 + 8;
const INLINE_AND_WAITS: usize = 6 + 7 + 2;
/// The least width of a process's number: those of Linux have seven digits at most.
const PROCESS_MIN: usize = 7;
/// Widths of a name: the largest, the least one with the columns INLINE and WAITS/s, and the smallest.
const NAME_MAX: usize = 24;
const NAME_GOOD: usize = 14;
const NAME_MIN: usize = 8;

/// The lines of a frame for a terminal of this many columns and lines. If not all rows fit, those with trouble come first.
fn lines(
    found: &[Found],
    mut rates: Vec<Rate>,
    (columns, room): (usize, usize),
    of_users: bool,
) -> Vec<String> {
    let sum = |direction| {
        let of = |rate: &&Rate| rate.key.kind == Kind::Messages && rate.key.direction == direction;
        rates.iter().filter(of).fold(0.0, |sum, rate| sum + rate.bytes)
    };
    let processes = pages::processes(found.iter().filter_map(Found::live)).len();
    let mut lines = vec![format!(
        "ironrail top: {processes} {}, out {}, in {}",
        if processes == 1 { "process" } else { "processes" },
        bytes(sum(Direction::Send)),
        bytes(sum(Direction::Receive))
    )];
    let mut notes: Vec<_> = found.iter().filter_map(Found::complaint).collect();
    if found.is_empty() {
        notes.push(NONE.to_owned());
    }
    let notes: Vec<_> = notes.iter().flat_map(|note| wrapped(note, columns)).collect();
    if 2 + rates.len() + notes.len() > room {
        rates.sort_by_key(|rate| rate.trouble == 0);
    }
    let head = [
        "PROCESS",
        "USER",
        "DEVICE / RAIL",
        "WAY",
        "PEER",
        "BYTES/s",
        "COUNT/s",
        "INLINE",
        "WAITS/s",
        "P50",
        "P99",
        "TROUBLE",
    ];
    let rows: Vec<_> =
        [head.map(str::to_owned)].into_iter().chain(rates.iter().map(cells)).collect();
    let longest = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let user = if of_users { longest(1) } else { 0 };
    let layout = Layout::of(columns, [longest(0), user, longest(2), longest(4)]);
    lines.extend(rows.iter().map(|row| layout.line(row)));
    // Complaints about pages stay below the rows, unless they take more than half of the lines.
    let kept = notes.len().min(room / 2);
    let mut lines = fitting(lines, room - kept);
    lines.extend(notes);
    lines.truncate(room);
    lines
}

/// A sentence in lines that fit, unless a single word does not: otherwise the screen would cut off the end, which says what to do.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is one");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= columns {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

fn cells(rate: &Rate) -> [String; 12] {
    let Rate { process, user, key, count, inline_percent, waits, latency, trouble, .. } = rate;
    let name = match key.kind {
        Kind::Messages => format!("{} {}", key.device, key.name),
        Kind::Rail => format!("  {}: {}", key.rail, key.name),
    };
    let way = match key.direction {
        Direction::Send => "send",
        Direction::Receive => "recv",
    };
    let inline = inline_percent.map_or_else(String::new, |percent| format!("{percent:.0}%"));
    let (half, most) =
        latency.map_or_else(Default::default, |(half, most)| (time(half), time(most)));
    // Where a provider does not report received parts, there is no rate; it is not 0.
    let moved = match rate.bytes {
        zero if zero == 0.0 && *count > 0.0 && key.kind == Kind::Rail => "?".to_owned(),
        moved => bytes(moved),
    };
    [
        process.clone(),
        user.to_string(),
        name,
        way.to_owned(),
        key.peer.clone(),
        moved,
        format!("{count:.0}"),
        inline,
        format!("{waits:.0}"),
        half,
        most,
        if *trouble == 0 { String::new() } else { trouble.to_string() },
    ]
}

/// The text within a width. The middle is replaced by a mark: names of rails differ at their ends.
fn cut(text: &str, most: usize) -> String {
    let length = text.chars().count();
    if length <= most {
        return text.to_owned();
    }
    let behind = most.saturating_sub(1) / 2;
    let before = most.saturating_sub(1) - behind;
    let start = text.chars().take(before);
    start.chain(['~']).chain(text.chars().skip(length - behind)).take(most).collect()
}

fn bytes(per_second: f64) -> String {
    let units = ["B/s", "KB/s", "MB/s", "GB/s", "TB/s"];
    let mut value = per_second;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", units[unit])
}

fn time(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    match micros {
        micros if micros < 1000.0 => format!("{micros:.1}us"),
        micros if micros < 1e6 => format!("{:.1}ms", micros / 1e3),
        micros => format!("{:.1}s", micros / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_fits_its_terminal_and_keeps_rates_latencies_and_trouble() {
        let rate = Rate {
            process: "4194304".to_owned(),
            user: 1_000_000,
            key: counters::Key {
                kind: Kind::Rail,
                direction: Direction::Receive,
                device: 0,
                rail: 12,
                peer: "a-long-name-of-a-host:4194304".to_owned(),
                name: "cxi hsn0 and more than there is room for".to_owned(),
            },
            bytes: 999.9e9,
            count: 12_345_678.0,
            inline_percent: Some(100.0),
            waits: 1_234_567.0,
            latency: Some((Duration::from_micros(134_200), Duration::from_micros(268_400))),
            trouble: 1_234_567,
        };
        for columns in [75, 80, 100, 120, 500] {
            let lines = lines(&[], vec![rate.clone()], (columns, usize::MAX), false);
            for line in &lines[1..=2] {
                assert!(line.chars().count() <= columns, "{columns}: {line}");
            }
            for word in ["999.9 GB/s", "134.2ms", "268.4ms", "1234567"] {
                assert!(lines[2].contains(word), "{columns}: {word}: {}", lines[2]);
            }
            assert_eq!(lines[1].contains("INLINE"), columns >= 108, "{}", lines[1]);
        }
        let users = lines(&[], vec![rate.clone()], (100, usize::MAX), true);
        assert!(users[1].contains("    USER DEVICE") && users[1].len() <= 100, "{}", users[1]);
        assert!(users[2].starts_with("4194304 1000000 ") && users[2].len() <= 100, "{}", users[2]);
        let inside = Rate { process: "4194304@4026532281".to_owned(), ..rate };
        for columns in [86, 120, 500] {
            let lines = lines(&[], vec![inside.clone()], (columns, usize::MAX), false);
            assert!(lines[2].starts_with("4194304@4026532281 "), "{}", lines[2]);
            assert!(lines[1..].iter().all(|line| line.chars().count() <= columns), "{lines:?}");
        }
        let none = lines(&[], Vec::new(), (80, usize::MAX), false);
        assert_eq!(none[0], "ironrail top: 0 processes, out 0.0 B/s, in 0.0 B/s");
    }

    #[test]
    fn processes_of_one_number_in_two_containers_have_rows_that_differ() {
        let row = counters::Row::new(counters::Key {
            kind: Kind::Messages,
            direction: Direction::Send,
            device: 0,
            rail: 0,
            peer: "node8:7".to_owned(),
            name: "eth0".to_owned(),
        });
        // Namespaces have numbers from 0xF000_0000 on (PROC_DYNAMIC_FIRST).
        let found = [1, 2].map(|namespace| Found {
            path: "page".into(),
            user: 0,
            state: pages::State::Live(pages::page_in(namespace, vec![row.clone()])),
        });
        let rates = Before::default().rates(&found, Duration::from_secs(1));
        let lines = lines(&found, rates, (120, usize::MAX), false);
        let processes: Vec<_> = lines[2..].iter().map(|line| line.trim_start()).collect();
        assert!(processes[0].starts_with("7@1 0 eth0 "), "{processes:?}");
        assert!(processes[1].starts_with("7@2 0 eth0 "), "{processes:?}");
    }

    #[test]
    fn names_that_do_not_fit_keep_both_ends() {
        assert_eq!(cut("  0: net 127.0.0.1", 14), "  0: ne~.0.0.1");
        assert_eq!(cut("0 rail0+rail1+rail2", 12), "0 rail~rail2");
        assert_eq!(cut("vm:15535", 8), "vm:15535");
        assert_eq!(["abc", "abc", "abc"].map(|text| cut(text, 2)), ["a~", "a~", "a~"]);
        assert_eq!((cut("abc", 1), cut("abc", 0)), ("~".to_owned(), String::new()));
    }

    #[test]
    fn complaints_about_pages_fit_the_terminal_to_their_last_word() {
        let complaint = "it is not readable, and should be removed by rm".to_owned();
        let path = "/dev/shm/ironrail-stats.0.6664.4026531836.0".into();
        let state = pages::State::Unreadable(complaint);
        let found = [Found { path, user: 0, state }];
        for (found, last) in [(&found[..], "removed by rm"), (&[], "--all-users")] {
            // A path is not cut.
            for columns in [44, 60, 80] {
                let lines = lines(found, Vec::new(), (columns, usize::MAX), false);
                assert!(lines[2..].iter().all(|line| line.len() <= columns), "{lines:?}");
                assert!(lines[2..].join(" ").ends_with(last), "{lines:?}");
            }
            let whole = (usize::MAX, usize::MAX);
            assert_eq!(lines(found, Vec::new(), whole, false).len(), 3);
        }
    }

    #[test]
    fn lines_that_do_not_fit_a_screen_are_counted() {
        let lines = |count: usize| (0..count).map(|at| at.to_string()).collect::<Vec<_>>();
        assert_eq!(fitting(lines(23), 23), lines(23));
        let cut = fitting(lines(30), 23);
        assert_eq!((cut.len(), &cut[21]), (23, &"21".to_owned()));
        assert!(cut[22].starts_with("8 lines more"), "{}", cut[22]);
    }

    #[test]
    fn rows_with_trouble_come_first_where_not_all_fit_and_complaints_about_pages_stay() {
        let rate = |process: u32| Rate {
            process: process.to_string(),
            user: 0,
            key: counters::Key {
                kind: Kind::Rail,
                direction: Direction::Send,
                device: 0,
                rail: 0,
                peer: "a:1".to_owned(),
                name: "eth0".to_owned(),
            },
            bytes: 0.0,
            count: 0.0,
            inline_percent: None,
            waits: 0.0,
            latency: None,
            trouble: u64::from(process == 29),
        };
        let state = pages::State::Unreadable("it is no file".to_owned());
        let found = [Found { path: "page".into(), user: 0, state }];
        let shown = |room| {
            let lines = lines(&found, (1..=30).map(rate).collect(), (120, room), false);
            let process = |line: &String| line.split_whitespace().next().unwrap().to_owned();
            lines.iter().map(process).collect::<Vec<_>>()
        };
        assert_eq!(shown(6), ["ironrail", "PROCESS", "29", "1", "28", "page:"]);
        assert_eq!(shown(33)[2..4], ["1", "2"], "all fit");
    }
}
