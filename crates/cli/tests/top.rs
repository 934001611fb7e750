//! `ironrail top` in a terminal of its own: whatever ends it, the terminal is left as it was.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize};

/// Longer than anything takes here on a busy machine.
const WAIT: Duration = Duration::from_secs(30);
const ENTERS_SCREEN: &str = "\x1b[?1049h";
const LEAVES_SCREEN: &str = "\x1b[?1049l";
const SHOWS_CURSOR: &str = "\x1b[?25h";

/// A terminal, and what was written to it.
struct Terminal {
    keys: File,
    own: File,
    written: Receiver<Vec<u8>>,
    /// It ends with the first bytes after `written` is gone.
    reader: JoinHandle<()>,
    text: String,
}

impl Terminal {
    fn open() -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let own = OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&own, size).unwrap();
        let keys = File::from(master);
        let mut reader = keys.try_clone().unwrap();
        let (send, written) = mpsc::channel();
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len @ 1..) = reader.read(&mut bytes) {
                if send.send(bytes[..len].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { keys, own, written, reader, text: String::new() }
    }

    /// Closes it, as a window is closed.
    fn close(self) {
        let Self { keys, mut own, written, reader, .. } = self;
        drop(written);
        own.write_all(b"the end").unwrap();
        reader.join().unwrap();
        drop((keys, own));
    }

    fn modes(&self) -> Termios {
        tcgetattr(&self.own).unwrap()
    }

    /// Returns when `words` were written.
    #[track_caller]
    fn shows(&mut self, words: &str) {
        let start = Instant::now();
        while !self.text.contains(words) {
            let left = WAIT.saturating_sub(start.elapsed());
            let more = self.written.recv_timeout(left);
            let more = more.unwrap_or_else(|_| panic!("{words:?} is not in {:?}", self.text));
            self.text.push_str(&String::from_utf8_lossy(&more));
        }
    }

    /// `ironrail top` on this terminal, whose next frame is an hour away.
    fn top(&mut self) -> Child {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-pages");
        fs::create_dir_all(&folder).unwrap();
        let own = || Stdio::from(self.own.try_clone().unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
        command.args(["top", "-d", "3600", "--folder"]).arg(folder);
        let child = command.stdin(own()).stdout(own()).stderr(own()).spawn().unwrap();
        self.shows(ENTERS_SCREEN);
        self.shows("ironrail top: 0 processes");
        assert!(!self.modes().local_modes.contains(LocalModes::ICANON), "keys come one by one");
        child
    }
}

fn ended(mut child: Child) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if start.elapsed() > WAIT {
            child.kill().unwrap();
            panic!("it does not end");
        }
        thread::yield_now();
    }
}

#[track_caller]
fn is_as_it_was(terminal: &mut Terminal, before: &Termios) {
    terminal.shows(LEAVES_SCREEN);
    terminal.shows(SHOWS_CURSOR);
    let after = terminal.modes();
    assert_eq!(after.local_modes, before.local_modes);
    assert_eq!(after.input_modes, before.input_modes);
    assert_eq!(after.output_modes, before.output_modes);
}

/// As on a serial line, or in a container before its terminal's size is set.
#[test]
fn a_terminal_that_does_not_know_its_size_shows_the_table() {
    let mut terminal = Terminal::open();
    let unknown = Winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&terminal.own, unknown).unwrap();
    let top = terminal.top();
    terminal.shows("no process of this user, or none of those named");
    terminal.keys.write_all(b"q").unwrap();
    assert_eq!(ended(top).code(), Some(0));
}

#[test]
fn a_signal_that_ends_it_leaves_the_terminal_as_it_was() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        let mut terminal = Terminal::open();
        let before = terminal.modes();
        let top = terminal.top();
        kill_process(Pid::from_child(&top), signal).unwrap();
        let status = ended(top);
        assert_eq!(status.signal(), Some(signal.as_raw()), "a shell sees what ended it");
        is_as_it_was(&mut terminal, &before);
    }
}

/// The state of a process by proc_pid_stat(5): it follows the name, which is in parentheses.
fn state(process: &Child) -> char {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
    stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

#[test]
fn top_stops_with_the_terminal_as_it_was_and_continues_on_its_screen() {
    for stop in [
        |_: &mut Terminal, top: &Child| kill_process(Pid::from_child(top), Signal::TSTP).unwrap(),
        |terminal: &mut Terminal, _: &Child| terminal.keys.write_all(b"\x1a").unwrap(),
    ] {
        let mut terminal = Terminal::open();
        let before = terminal.modes();
        let top = terminal.top();
        stop(&mut terminal, &top);
        let start = Instant::now();
        while state(&top) != 'T' {
            assert!(start.elapsed() < WAIT, "it does not stop");
            thread::yield_now();
        }
        is_as_it_was(&mut terminal, &before);
        terminal.text.clear();
        kill_process(Pid::from_child(&top), Signal::CONT).unwrap();
        terminal.shows(ENTERS_SCREEN);
        terminal.keys.write_all(b"q").unwrap();
        assert_eq!(ended(top).code(), Some(0));
        is_as_it_was(&mut terminal, &before);
    }
}

#[test]
fn an_interval_and_a_count_out_of_range_are_a_wrong_command_line() {
    for (option, value, words) in [
        ("-d", "-1", "seconds, from 0.1 to 3600"),
        ("-d", "0", "seconds, from 0.1 to 3600"),
        ("-n", "0", "1 or more"),
        ("-n", "-1", "1 or more"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_ironrail"))
            .args(["top", option, value])
            .output()
            .unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{option} {value}: {errors}");
        assert!(errors.contains(words), "{option} {value}: {errors}");
    }
}

#[test]
fn frames_end_when_their_reader_has_left() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-reader");
    fs::create_dir_all(&folder).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    command.args(["top", "-d", "0.1", "-n", "1000000", "--folder"]).arg(folder);
    let mut top = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut first = [0];
    top.stdout.take().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(ended(top).code(), Some(0));
}

/// As when a window is closed: every read of the terminal is an end of file.
#[test]
fn a_signal_ends_it_where_the_terminal_is_gone() {
    let mut terminal = Terminal::open();
    let top = terminal.top();
    terminal.close();
    kill_process(Pid::from_child(&top), Signal::HUP).unwrap();
    assert_eq!(ended(top).signal(), Some(Signal::HUP.as_raw()));
}

#[test]
fn a_key_that_ends_it_leaves_the_terminal_as_it_was() {
    for key in ["q", "\x1b", "\x03"] {
        let mut terminal = Terminal::open();
        let before = terminal.modes();
        let top = terminal.top();
        terminal.keys.write_all(key.as_bytes()).unwrap();
        assert_eq!(ended(top).code(), Some(0), "{key:?}");
        is_as_it_was(&mut terminal, &before);
    }
}
