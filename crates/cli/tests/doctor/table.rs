//! The rows of misconfigurations.md.

/// A machine, and the finding that is expected.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) case: String,
    pub(crate) made: String,
    pub(crate) level: String,
    pub(crate) finding: String,
    pub(crate) says: Vec<String>,
}

pub(crate) fn rows() -> Vec<Row> {
    let page = include_str!("misconfigurations.md");
    let (_, body) = page.split_once("|---|").expect("the table has a head");
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let row = |line: &str| {
        let cells = cells(line);
        let [case, made, _, level, finding, says] = cells.as_slice() else {
            panic!("{line} has {} cells", cells.len());
        };
        let says = says.split("`, `").map(|words| words.trim_matches('`').to_owned()).collect();
        let [case, made, level, finding] = [case, made, level, finding].map(Clone::clone);
        Row { case, made, level, finding, says }
    };
    body.lines().skip(1).filter(|line| line.starts_with('|')).map(row).collect()
}
