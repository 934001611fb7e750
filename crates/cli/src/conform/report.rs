//! The output of a run: a line per behaviour, the counts, JSON; the list, the page.

use std::time::Duration;

use ironrail_group::error::GroupError;
use net_loader::{NEWEST, OLDEST};
use serde_json::{Value, json};

use super::behaviour::{Behaviour, Shape};
use super::said::Contents;
use super::table::CHAPTERS;
use crate::files::Destination;
use crate::output;

/// The result of a behaviour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Held {
    Pass,
    Fail(String),
    Skip(String),
}

#[derive(Debug)]
pub(super) struct Report {
    pub(super) behaviour: &'static Behaviour,
    pub(super) table: u32,
    pub(super) result: Held,
    pub(super) took: Duration,
    /// For a behaviour about idle peers, the seconds of silence.
    pub(super) idle: Option<u64>,
}

impl Report {
    fn line(&self) -> String {
        let Self { behaviour, table, .. } = self;
        let name = format!("v{table:<2}  {}", behaviour.id);
        match &self.result {
            Held::Pass => match self.idle {
                Some(seconds) => format!("pass  {name}: idle for {seconds} s"),
                None => format!("pass  {name}"),
            },
            Held::Skip(why) => format!("skip  {name}: {}", one_line(why)),
            Held::Fail(why) => format!(
                "FAIL  {name}: {} [NCCL expects: {}; {}]",
                one_line(why),
                behaviour.expects,
                behaviour.source
            ),
        }
    }

    fn json(&self) -> Value {
        let (result, reason) = match &self.result {
            Held::Pass => ("pass", None),
            Held::Fail(why) => ("fail", Some(why)),
            Held::Skip(why) => ("skip", Some(why)),
        };
        json!({
            "id": self.behaviour.id, "abi": self.table, "result": result, "reason": reason,
            "idle_seconds": self.idle, "seconds": (self.took.as_secs_f64() * 1000.0).round() / 1000.0,
            "expects": self.behaviour.expects, "source": self.behaviour.source,
        })
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Collects results, and prints each as it comes.
#[derive(Debug)]
pub(super) struct Results {
    json: Option<Destination>,
    plugin: Value,
    all: Vec<Value>,
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Results {
    pub(super) fn new(json: Option<Destination>, contents: &Contents) -> Self {
        let plugin = json!({
            "network": contents.name, "file": contents.path, "tables": contents.tables,
        });
        Self { json, plugin, all: Vec::new(), passed: 0, failed: 0, skipped: 0 }
    }

    pub(super) fn add(&mut self, report: Report) {
        match report.result {
            Held::Pass => self.passed += 1,
            Held::Fail(_) => self.failed += 1,
            Held::Skip(_) => self.skipped += 1,
        }
        if !self.replaces_lines() {
            output::line(report.line());
        }
        if self.json.is_some() {
            self.all.push(report.json());
        }
    }

    /// Prints the counts. Returns whether nothing failed.
    pub(super) fn finish(mut self) -> Result<bool, GroupError> {
        let replaces_lines = self.replaces_lines();
        if let Some(json) = &mut self.json {
            let document = json!({
                "format": "ironrail-conform/1", "plugin": self.plugin, "results": self.all,
                "passed": self.passed, "failed": self.failed, "skipped": self.skipped,
            });
            json.write(&format!("{document}\n"))?;
            if replaces_lines {
                return Ok(self.failed == 0);
            }
        }
        let Self { passed, failed, skipped, .. } = self;
        output::line(format_args!("{passed} passed, {failed} failed, {skipped} skipped"));
        Ok(failed == 0)
    }

    fn replaces_lines(&self) -> bool {
        self.json.as_ref().is_some_and(Destination::is_output)
    }
}

pub(super) fn list(behaviours: Vec<&Behaviour>) {
    for behaviour in behaviours {
        let Behaviour { id, expects, source, .. } = behaviour;
        output::line(format_args!("{id}: {expects} [{source}]{}", tables(behaviour)));
    }
}

fn tables(behaviour: &Behaviour) -> String {
    match behaviour.tables {
        (OLDEST, NEWEST) => String::new(),
        (oldest, NEWEST) => format!(" (v{oldest} and newer)"),
        (_, newest) => format!(" (v{newest} and older)"),
    }
}

/// Prints docs/conform.md.
pub(super) fn markdown() {
    output::line(HEAD.trim_end());
    for (chapter, behaviours) in CHAPTERS {
        output::line(format_args!("\n## {chapter}\n"));
        output::line("| id | NCCL expects | processes |");
        output::line("|---|---|---|");
        for behaviour in *behaviours {
            let Behaviour { id, expects, .. } = behaviour;
            let processes = match behaviour.shape {
                Shape::One => "1",
                Shape::Two => "2",
                Shape::Victim => "2 ¹",
            };
            let tables = tables(behaviour);
            output::line(format_args!("| `{id}` | {}{tables} | {processes} |", cell(expects)));
        }
        output::line("\nSources:\n");
        for Behaviour { id, source, .. } in *behaviours {
            output::line(format_args!("- `{id}`: {}", cell(source)));
        }
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('*', "\\*")
}

const HEAD: &str = "\
# `ironrail conform`

<!-- Made by the test `the_page_of_documentation_is_the_table`, which prints the command to renew it. -->

Tests any NCCL net plugin for the behaviours that NCCL relies on, without a GPU and without NCCL:

```
ironrail conform                                        # Ironrail's, next to this command: its newest table
ironrail conform --net ./libnccl-net-mine.so            # another one's
ironrail conform --net mine --abi all                   # every table it has, found as NCCL_NET_PLUGIN=mine would be
ironrail conform --net mine --only request-null-when-not-now,group-tags-above-16-bits
ironrail conform --list                                 # what there is
```

Each behaviour is tested in processes of its own, within a time limit: a plugin that crashes, hangs or leaks fails that behaviour, and the
others still run. The output is one line per behaviour, then the counts:

- `pass`;
- `FAIL`, with what was seen, what NCCL expects, and where NCCL's source says so;
- `skip`, with what was lacking.

The exit code is 0 when nothing failed, 1 when something did, 2 when the command line is wrong.

| option | effect |
|---|---|
| `--json [FILE]` | the same output for programs: to FILE, or in place of the lines |
| `--only ID,…`, `--except ID,…` | these behaviours alone, or all but these |
| `-j`, `--jobs N` | how many behaviours run at once: half the CPUs by default, 4 at most |
| `--timeout N` | how many seconds a behaviour may take, in place of its own limit |
| `--death N` | within how many seconds the death of a peer must be reported: 90 by default |
| `--no-skip` | a skipped behaviour is a failure, for runs that are meant to exercise everything |
| `--idle N` | how many seconds the idle peer of one behaviour is idle: 60 by default. It runs beside the others, and its line says for how long |
| `--large` | adds behaviours that need gigabytes of memory |
| `--threads` | runs both sides in two threads of one process, for fabrics that reach no other process; leaves out what stops or kills one |
| `-v`, `--verbose` | also what the plugin logs |

Memory is host memory, except in the chapter about GPUs. Sources are of NCCL 2.30.7. An id never changes its meaning.

¹ One of the processes is stopped or killed.
";
