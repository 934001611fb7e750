//! The output of callgrind, summed by function, by call and by source line.

use std::collections::HashMap;
use std::path::Path;

/// A function of an object file.
pub(crate) type Function = (String, String);

/// Costs in instructions.
#[derive(Debug, Default)]
pub(crate) struct Profile {
    /// What a function spent itself.
    pub(crate) own: HashMap<Function, f64>,
    /// What calls from one function to another cost, all below included.
    pub(crate) calls: HashMap<(Function, Function), f64>,
    /// What was spent by lines of source, wherever they were inlined: object, file, line.
    pub(crate) lines: HashMap<(String, String, u32), f64>,
}

impl Profile {
    /// Reads a file written with `--compress-strings=no --compress-pos=no`.
    pub(crate) fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).expect("callgrind wrote its file");
        let mut profile = Self::default();
        let (mut object, mut function, mut file) = (String::new(), String::new(), String::new());
        let (mut callee_object, mut callee) = (None, String::new());
        let mut is_call = false;
        for line in text.lines() {
            if let Some((key, value)) = line.split_once('=') {
                match key {
                    "ob" => value.clone_into(&mut object),
                    "fn" => function = plain(value),
                    "fl" | "fi" | "fe" => value.clone_into(&mut file),
                    "cob" => callee_object = Some(value.to_owned()),
                    "cfn" => callee = plain(value),
                    "calls" => is_call = true,
                    _ => {}
                }
                continue;
            }
            let Some((at, cost)) = costs(line) else { continue };
            let here = (object.clone(), function.clone());
            if std::mem::take(&mut is_call) {
                // The object of a callee is left out where it is the caller's.
                let there = callee_object.take().unwrap_or_else(|| object.clone());
                *profile.calls.entry((here, (there, callee.clone()))).or_default() += cost;
            } else {
                *profile.own.entry(here).or_default() += cost;
                *profile.lines.entry((object.clone(), file.clone(), at)).or_default() += cost;
            }
        }
        profile
    }

    /// The costs of one message, if this run had `more` messages than the other.
    pub(crate) fn beyond(mut self, other: &Self, more: f64) -> Self {
        per_message(&mut self.own, &other.own, more);
        per_message(&mut self.calls, &other.calls, more);
        per_message(&mut self.lines, &other.lines, more);
        self
    }
}

fn per_message<K: std::hash::Hash + Eq>(
    costs: &mut HashMap<K, f64>,
    fewer: &HashMap<K, f64>,
    more: f64,
) {
    for (key, cost) in costs {
        *cost = (*cost - fewer.get(key).copied().unwrap_or(0.0)) / more;
    }
}

/// A line of costs: where, and how many instructions.
fn costs(line: &str) -> Option<(u32, f64)> {
    let (at, cost) = line.split_once(' ')?;
    Some((at.parse().ok()?, cost.trim().parse().ok()?))
}

/// A name without what the compiler appended to make it unique.
fn plain(name: &str) -> String {
    match name.rsplit_once("::h") {
        Some((path, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => {
            path.to_owned()
        }
        _ => name.to_owned(),
    }
}
