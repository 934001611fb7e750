//! What the kernel reports about a process or a thread, by proc_pid_status(5) and proc_pid_stat(5).
#![forbid(unsafe_code)]

use std::fmt::Display;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process;
use std::str::FromStr;

/// When a process or a thread began, in clock ticks after the system's boot.
///
/// # Errors
///
/// Its file cannot be read, or has no start time.
pub fn started(whose: impl Display) -> io::Result<u64> {
    let stat = Stat::of(whose)?;
    stat.number(22)
}

/// What a process belongs to, in numbers of the PID namespace that `/proc` is of: 0 stands for what is outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Belonging {
    pub parent: u32,
    /// The process group.
    pub group: u32,
    pub session: u32,
    /// The process group in the foreground of the controlling terminal. `None`: the process has no terminal.
    pub foreground: Option<u32>,
}

impl Belonging {
    /// Of this process.
    ///
    /// # Errors
    ///
    /// As [`of`](Self::of).
    pub fn of_this_process() -> io::Result<Self> {
        Self::from_stat(&Stat::of("self")?)
    }

    /// # Errors
    ///
    /// Its file cannot be read, or lacks a field.
    pub fn of(process: u32) -> io::Result<Self> {
        Self::from_stat(&Stat::of(process)?)
    }

    fn from_stat(stat: &Stat) -> io::Result<Self> {
        Ok(Self {
            parent: stat.number(4)?,
            group: stat.number(5)?,
            session: stat.number(6)?,
            // -1: no terminal.
            foreground: u32::try_from(stat.number::<i32>(8)?).ok(),
        })
    }
}

/// A `/proc/…/stat`.
struct Stat(String);

impl Stat {
    fn of(whose: impl Display) -> io::Result<Self> {
        let stat = fs::read(format!("/proc/{whose}/stat"))?;
        Ok(Self(String::from_utf8_lossy(&stat).into_owned()))
    }

    /// A field behind the name, by its number in proc_pid_stat(5).
    fn number<T: FromStr>(&self, field: usize) -> io::Result<T> {
        // The name, field 2, is in parentheses and may contain anything.
        let behind = self.0.rsplit_once(')').map_or("", |(_, behind)| behind);
        let number = behind.split_whitespace().nth(field - 3).and_then(|text| text.parse().ok());
        number.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// The PID namespace of this process (pid_namespaces(7)): a process has another number in each.
///
/// # Errors
///
/// There is no `/proc`.
pub fn pid_namespace() -> io::Result<u64> {
    fs::metadata("/proc/self/ns/pid").map(|found| found.ino())
}

/// Whether the numbers in `/proc` are those of this process's PID namespace. A sandbox may leave the `/proc` of the namespace above, where a
/// number is another process.
pub fn has_our_numbers() -> bool {
    let own = fs::read_link("/proc/self").ok();
    own.is_some_and(|own| own.to_str() == Some(process::id().to_string().as_str()))
}

/// The fields of a `/proc/…/status`, as they were when it was read.
#[derive(Clone, Debug)]
pub struct Status(String);

impl Status {
    /// Of this process.
    pub fn of_this_process() -> io::Result<Self> {
        Self::read("self")
    }

    /// Of this thread.
    pub fn of_this_thread() -> io::Result<Self> {
        Self::read("thread-self")
    }

    pub fn of(process: u32) -> io::Result<Self> {
        Self::read(process)
    }

    fn read(whose: impl Display) -> io::Result<Self> {
        Self::in_file(Path::new(&format!("/proc/{whose}/status")))
    }

    /// Of a file with such fields.
    pub fn in_file(file: &Path) -> io::Result<Self> {
        // A thread's name may contain anything, and the kernel cuts it at 15 bytes.
        let status = fs::read(file)?;
        Ok(Self(String::from_utf8_lossy(&status).into_owned()))
    }

    /// A field by its whole name, without the blanks around it. `None`: this kernel has no such field.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
    }

    /// A field that counts memory, such as VmRSS, in KiB.
    pub fn kib(&self, name: &str) -> Option<u64> {
        self.field(name)?.strip_suffix("kB")?.trim_end().parse().ok()
    }

    /// A field that is a set of signals, such as SigIgn: signal 1 is the lowest bit.
    pub fn signals(&self, name: &str) -> Option<u64> {
        u64::from_str_radix(self.field(name)?, 16).ok()
    }

    /// Whether a capability of linux/capability.h is effective, in the user namespace that the process is in.
    pub fn has_capability(&self, number: u32) -> bool {
        let effective = self.field("CapEff").and_then(|set| u64::from_str_radix(set, 16).ok());
        effective.is_some_and(|set| set >> number & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_whole_names_and_values_without_blanks() {
        let status = Status(
            "Name:\tVmRSS: 1\nVmRSS:\t   12345 kB\nSigIgn:\t0000000000001001\nCpus_allowed_list:\t0-1\nCpus_allowed:\t3\n"
                .to_owned(),
        );
        assert_eq!(status.field("Name"), Some("VmRSS: 1"));
        assert_eq!(status.field("Cpus_allowed"), Some("3"));
        assert_eq!(status.field("Cpus"), None);
        assert_eq!(status.kib("VmRSS"), Some(12345));
        assert_eq!((status.kib("Name"), status.kib("VmSwap")), (None, None));
        assert_eq!(status.signals("SigIgn"), Some(0x1001));
    }

    #[test]
    fn a_capability_is_a_bit_of_the_effective_ones() {
        let status = Status("CapPrm:\t000001ffffffffff\nCapEff:\t00000000a80425fb\n".to_owned());
        assert!(status.has_capability(0) && status.has_capability(31));
        assert!(!status.has_capability(2) && !status.has_capability(14));
        assert!(!Status(String::new()).has_capability(0));
    }

    #[test]
    fn this_process_has_a_status_and_a_missing_one_has_none() {
        let own = Status::of_this_process().unwrap();
        assert_eq!(own.field("Pid"), Some(process::id().to_string().as_str()));
        assert!(own.kib("VmRSS").unwrap() > 0);
        assert!(own.signals("SigIgn").is_some());
        assert!(Status::of_this_thread().unwrap().field("Cpus_allowed").is_some());
        assert!(Status::of(u32::MAX).is_err());
    }

    #[test]
    fn a_name_that_is_not_utf8_hides_no_field() {
        let named = std::thread::spawn(|| {
            fs::write("/proc/thread-self/comm", b"half a letter\xc3").unwrap();
            Status::of_this_thread().unwrap()
        });
        let status = named.join().unwrap();
        assert_eq!(status.field("Name"), Some("half a letter\u{fffd}"));
        assert!(status.field("Cpus_allowed").is_some());
    }

    #[test]
    fn a_process_belongs_to_a_parent_a_group_and_a_session() {
        let at_terminal = Stat("7 (a) b (c) S 5 6 4 34816 6 4194560".to_owned());
        let expected = Belonging { parent: 5, group: 6, session: 4, foreground: Some(6) };
        assert_eq!(Belonging::from_stat(&at_terminal).unwrap(), expected);
        let apart = Stat("7 (a) S 0 0 0 0 -1 4194560".to_owned());
        let expected = Belonging { parent: 0, group: 0, session: 0, foreground: None };
        assert_eq!(Belonging::from_stat(&apart).unwrap(), expected);
        assert!(Belonging::from_stat(&Stat("7 (a) S 5 6".to_owned())).is_err());
        assert!(Belonging::from_stat(&Stat(String::new())).is_err());
        let own = Belonging::of_this_process().unwrap();
        assert_eq!(own.parent, std::os::unix::process::parent_id());
        assert_eq!(Belonging::of(process::id()).unwrap(), own);
    }

    #[test]
    fn a_process_began_before_its_threads_and_is_in_a_namespace() {
        let thread = std::thread::spawn(|| {
            fs::write("/proc/thread-self/comm", b") 1 2\xc3").unwrap();
            started("thread-self").unwrap()
        });
        let process = started(process::id()).unwrap();
        assert!(process > 0 && thread.join().unwrap() >= process);
        assert_eq!(started(u32::MAX).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(pid_namespace().unwrap() > 0);
        assert!(has_our_numbers());
    }
}
