//! MLX's device matrix: the device that each rank uses towards each other rank, as a JSON file.
//!
//! Row r of the file has an entry for each rank: null for r itself, and for another rank the name of a device, or a list of names.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::error::GroupError;

/// Names of devices by rank and peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceMatrix {
    /// The file's name, for messages.
    file: String,
    rows: Vec<Vec<Vec<String>>>,
}

impl DeviceMatrix {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// [`GroupError::Usage`] in one line, with the file, and the row and column that are wrong.
    pub fn read(path: &Path) -> Result<Self, GroupError> {
        let file = path.display().to_string();
        let text = fs::read_to_string(path).map_err(|error| {
            GroupError::Usage(format!("the device file {file} cannot be read: {error}"))
        })?;
        Self::parse(&file, &text)
    }

    /// Parses the text of a file, whose name `file` is for messages.
    ///
    /// # Errors
    ///
    /// As [`DeviceMatrix::read`].
    pub fn parse(file: &str, text: &str) -> Result<Self, GroupError> {
        let wrong = |why: String| GroupError::Usage(format!("the device file {file}: {why}"));
        let json: Value =
            serde_json::from_str(text).map_err(|error| wrong(format!("not JSON: {error}")))?;
        let list = json.as_array().filter(|rows| !rows.is_empty());
        let list = list.ok_or_else(|| wrong("not a list of rows".to_owned()))?;
        let mut rows = Vec::with_capacity(list.len());
        for (rank, row) in list.iter().enumerate() {
            let entries = row.as_array().ok_or_else(|| wrong(format!("row {rank} is no list")))?;
            if entries.len() != list.len() {
                let (has, needs) = (entries.len(), list.len());
                return Err(wrong(format!(
                    "row {rank} has {has} entries, and there are {needs} rows"
                )));
            }
            let names = entries.iter().enumerate().map(|(peer, entry)| {
                let place = format!("row {rank}, column {peer}");
                match names(entry) {
                    Some(names) if names.is_empty() == (peer == rank) => Ok(names),
                    Some(_) if peer == rank => {
                        Err(wrong(format!("{place}: a rank needs no device to itself")))
                    }
                    Some(_) => Err(wrong(format!(
                        "{place}: no device leads from rank {rank} to rank {peer}"
                    ))),
                    None => {
                        Err(wrong(format!("{place} is neither null, a name nor a list of names")))
                    }
                }
            });
            rows.push(names.collect::<Result<_, _>>()?);
        }
        Ok(Self { file: file.to_owned(), rows })
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.rows.len()
    }

    /// The names of the devices between two ranks; none from a rank to itself.
    pub fn names(&self, rank: usize, peer: usize) -> &[String] {
        self.rows.get(rank).and_then(|row| row.get(peer)).map_or(&[], Vec::as_slice)
    }

    /// The device for each peer of `rank`, as an index of `devices`, which are the existing names. Of several names the first one counts: a
    /// plugin's device has all its rails.
    ///
    /// # Errors
    ///
    /// [`GroupError::Usage`] for an unknown name, with the known ones.
    pub fn devices(&self, rank: usize, devices: &[String]) -> Result<Vec<usize>, GroupError> {
        (0..self.size())
            .map(|peer| {
                let mut places = self.names(rank, peer).iter().map(|name| {
                    devices.iter().position(|device| device == name).ok_or_else(|| {
                        GroupError::Usage(format!(
                            "the device file {}: row {rank}, column {peer} names {name}, and there are {}",
                            self.file,
                            devices.join(", ")
                        ))
                    })
                });
                let first = places.next().transpose()?.unwrap_or(0);
                places.try_for_each(|place| place.map(drop))?;
                Ok(first)
            })
            .collect()
    }
}

fn names(entry: &Value) -> Option<Vec<String>> {
    match entry {
        Value::Null => Some(Vec::new()),
        Value::String(name) => Some(vec![name.clone()]),
        Value::Array(list) => list.iter().map(|name| name.as_str().map(str::to_owned)).collect(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_has_the_devices_that_the_file_names() {
        let text = r#"[[null, "a"], [["b", "a"], null]]"#;
        let matrix = DeviceMatrix::parse("m.json", text).unwrap();
        let there = ["a".to_owned(), "b".to_owned()];
        assert_eq!(matrix.devices(0, &there).unwrap(), [0, 0]);
        assert_eq!(matrix.devices(1, &there).unwrap(), [1, 0]);
        let why = matrix.devices(1, &there[..1]).unwrap_err().to_string();
        assert_eq!(why, "the device file m.json: row 1, column 0 names b, and there are a");
    }

    #[test]
    fn an_error_in_a_file_names_its_row_and_column() {
        for (text, why) in [
            ("no", "not JSON"),
            ("{}", "not a list of rows"),
            ("[[null,\"a\"],[\"a\"]]", "row 1 has 1 entries, and there are 2 rows"),
            (
                "[[null,null],[\"a\",null]]",
                "row 0, column 1: no device leads from rank 0 to rank 1",
            ),
            ("[[\"a\",\"a\"],[\"a\",null]]", "row 0, column 0: a rank needs no device to itself"),
            ("[[null,3],[\"a\",null]]", "row 0, column 1 is neither"),
        ] {
            let said = DeviceMatrix::parse("m.json", text).unwrap_err().to_string();
            assert!(said.contains("m.json") && said.contains(why), "{said}");
        }
        let said = DeviceMatrix::read("/no/such".as_ref()).unwrap_err().to_string();
        assert!(said.contains("/no/such cannot be read"), "{said}");
    }

    #[test]
    fn each_of_several_names_must_be_a_device() {
        let matrix = DeviceMatrix::parse("m.json", r#"[[null, ["a", "c"]], ["a", null]]"#).unwrap();
        let why = matrix.devices(0, &["a".to_owned(), "b".to_owned()]).unwrap_err().to_string();
        assert_eq!(why, "the device file m.json: row 0, column 1 names c, and there are a, b");
    }
}
