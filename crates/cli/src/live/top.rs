//! `ironrail top`: rates per peer and rail, refreshed in a terminal; or frame by frame without one.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use counters::Kind;
use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::{cursor, execute, queue, terminal};
use ironrail_group::error::GroupError;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::NONE;
use super::pages::{self, Found, State};
use super::rates::{Before, Rate};
use crate::output;

/// Shows what this user's processes with Ironrail move, now: rates per device, peer and direction, and per rail.
///
/// It reads pages of shared memory, and costs the processes nothing. q ends it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Top {
    /// Processes [default: all of this user's]
    #[arg(value_name = "PROCESS")]
    processes: Vec<u32>,
    /// Seconds between two frames
    #[arg(long, short = 'd', default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// Print this many frames, one below the other, and end
    #[arg(long, short = 'n', value_name = "COUNT")]
    frames: Option<usize>,
    /// Where pages are
    #[arg(long, hide = true, default_value = counters::FOLDER)]
    folder: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  ironrail top                 everything of this user's, each second
  ironrail top -n 10 > log     ten frames as text";

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("seconds from 0.1 to 3600 are asked for".to_owned()),
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
        let mut look = Look::new();
        look.frame(self)?;
        for _ in 0..frames {
            std::thread::sleep(self.interval);
            for line in look.frame(self)? {
                output::line(line);
            }
        }
        Ok(true)
    }

    fn live(&self) -> Result<bool, GroupError> {
        let system = |error| GroupError::System { what: "drawing on the terminal", error };
        let signal = Signal::watch().map_err(system)?;
        self.frames_until_ended(&signal)?;
        signal.take_effect().map_err(system)?;
        Ok(true)
    }

    fn frames_until_ended(&self, signal: &Signal) -> Result<(), GroupError> {
        let system = |error| GroupError::System { what: "drawing on the terminal", error };
        let screen = Screen::open().map_err(system)?;
        let mut look = Look::new();
        loop {
            let lines = look.frame(self)?;
            screen.draw(&lines).map_err(system)?;
            if is_ended(self.interval, signal).map_err(system)? {
                return Ok(());
            }
        }
    }
}

/// A signal that ends the process, kept until the terminal is as it was.
#[derive(Debug)]
struct Signal(Arc<AtomicUsize>);

impl Signal {
    fn watch() -> io::Result<Self> {
        let came = Arc::new(AtomicUsize::new(0));
        for signal in ENDS {
            let number = usize::try_from(signal).expect("signals are numbers above 0");
            signal_hook::flag::register_usize(signal, Arc::clone(&came), number)?;
        }
        Ok(Self(came))
    }

    fn has_come(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Ends the process as the signal does that has come, if any, so that a shell sees what ended it.
    fn take_effect(&self) -> io::Result<()> {
        match i32::try_from(self.0.load(Ordering::Relaxed)) {
            Ok(0) | Err(_) => Ok(()),
            Ok(signal) => signal_hook::low_level::emulate_default_handler(signal),
        }
    }
}

const ENDS: [i32; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];
/// How long a signal waits at most: crossterm goes on with a wait that one has interrupted.
const SIGNAL_WAITS: Duration = Duration::from_millis(100);

/// Waits for the next frame. True if the user quits, by a key or a signal.
fn is_ended(interval: Duration, signal: &Signal) -> io::Result<bool> {
    let until = Instant::now() + interval;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        if signal.has_come() {
            return Ok(true);
        }
        if !event::poll(left.min(SIGNAL_WAITS))? {
            continue;
        }
        match event::read()? {
            Event::Key(key) if key.kind == KeyEventKind::Press => {
                let control = key.modifiers.contains(KeyModifiers::CONTROL);
                if matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
                    || key.code == KeyCode::Char('c') && control
                {
                    return Ok(true);
                }
            }
            // The terminal has another size: draw at once.
            Event::Resize(..) => break,
            _ => {}
        }
    }
    Ok(false)
}

/// The terminal's alternate screen, without a cursor. Dropped, it restores the terminal.
#[derive(Debug)]
struct Screen;

impl Screen {
    fn open() -> io::Result<Self> {
        terminal::enable_raw_mode()?;
        let screen = Self;
        execute!(io::stdout(), terminal::EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }

    fn draw(&self, lines: &[String]) -> io::Result<()> {
        let (columns, rows) = terminal::size()?;
        let mut out = io::stdout().lock();
        queue!(out, cursor::MoveTo(0, 0))?;
        for line in lines.iter().take(usize::from(rows).saturating_sub(1)) {
            let cut: String = line.chars().take(usize::from(columns)).collect();
            queue!(out, terminal::Clear(terminal::ClearType::CurrentLine))?;
            write!(out, "{cut}\r\n")?;
        }
        queue!(out, terminal::Clear(terminal::ClearType::FromCursorDown))?;
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _shown = execute!(io::stdout(), terminal::LeaveAlternateScreen, cursor::Show);
        let _cooked = terminal::disable_raw_mode();
    }
}

/// The state from one frame to the next.
struct Look {
    before: Before,
    at: Instant,
}

impl Look {
    fn new() -> Self {
        Self { before: Before::default(), at: Instant::now() }
    }

    fn frame(&mut self, top: &Top) -> Result<Vec<String>, GroupError> {
        let found = pages::find(&top.folder, &top.processes)?;
        let elapsed = self.at.elapsed();
        self.at = Instant::now();
        let live = found.iter().filter_map(|found| match &found.state {
            State::Live(page) => Some(page),
            _ => None,
        });
        let rates = self.before.rates(live, elapsed);
        Ok(lines(&found, &rates))
    }
}

fn lines(found: &[Found], rates: &[Rate]) -> Vec<String> {
    let sum = |direction| {
        let of = |rate: &&Rate| rate.key.kind == Kind::Messages && rate.key.direction == direction;
        rates.iter().filter(of).map(|rate| rate.bytes).sum::<f64>()
    };
    let processes = found.iter().filter(|found| matches!(found.state, State::Live(_))).count();
    let mut lines = vec![format!(
        "ironrail top: {processes} processes, out {}, in {}",
        bytes(sum(counters::Direction::Send)),
        bytes(sum(counters::Direction::Receive))
    )];
    let head = format!(
        "{:>8} {:<24} {:<7} {:<24} {:>11} {:>9} {:>7} {:>8} {:>8} {:>8} {:>7}",
        "PROCESS",
        "DEVICE / RAIL",
        "WAY",
        "PEER",
        "BYTES/s",
        "COUNT/s",
        "INLINE",
        "WAITS/s",
        "P50",
        "P99",
        "TROUBLE"
    );
    lines.push(head);
    lines.extend(rates.iter().map(line));
    if found.is_empty() {
        lines.push(NONE.to_owned());
    }
    lines.extend(found.iter().filter_map(Found::complaint));
    lines
}

fn line(rate: &Rate) -> String {
    let Rate { process, key, count, inline_percent, waits, latency, trouble, .. } = rate;
    let name = match key.kind {
        Kind::Messages => format!("{} {}", key.device, key.name),
        Kind::Rail => format!("  rail {} {}", key.rail, key.name),
    };
    let inline = inline_percent.map_or_else(String::new, |percent| format!("{percent:.0}%"));
    let (half, most) =
        latency.map_or_else(Default::default, |(half, most)| (time(half), time(most)));
    // Where a provider does not report received parts, there is no rate; it is not 0.
    let moved = match rate.bytes {
        zero if zero == 0.0 && *count > 0.0 && key.kind == Kind::Rail => "?".to_owned(),
        moved => bytes(moved),
    };
    format!(
        "{process:>8} {:<24} {:<7} {:<24} {moved:>11} {count:>9.0} {inline:>7} {waits:>8.0} {half:>8} {most:>8} {:>7}",
        cut(&name, 24),
        key.direction.name(),
        cut(&key.peer, 24),
        if *trouble == 0 { String::new() } else { trouble.to_string() }
    )
}

fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
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
