//! Many inputs in one file: each behind its length, shortest first, so that the same inputs make the same file.

use std::path::Path;
use std::{fs, io};

/// The inputs in a file; none if there is no file. A file that is cut off is an error.
pub(crate) fn read(file: &Path) -> io::Result<Vec<Vec<u8>>> {
    match fs::read(file) {
        Ok(bytes) => unpack(&bytes).ok_or_else(|| io::ErrorKind::InvalidData.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The inputs that [`pack`] made a file of.
pub(crate) fn unpack(mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut inputs = Vec::new();
    while !bytes.is_empty() {
        let (len, rest) = bytes.split_first_chunk()?;
        let (input, rest) = rest.split_at_checked(u32::from_le_bytes(*len).try_into().ok()?)?;
        inputs.push(input.to_vec());
        bytes = rest;
    }
    Some(inputs)
}

/// What a file of these inputs holds. None is there twice.
pub(crate) fn pack(inputs: &[Vec<u8>]) -> Vec<u8> {
    let mut sorted: Vec<&Vec<u8>> = inputs.iter().collect();
    sorted.sort_by_key(|input| (input.len(), *input));
    sorted.dedup();
    let mut bytes = Vec::new();
    for input in sorted {
        bytes.extend(u32::try_from(input.len()).expect("inputs are short").to_le_bytes());
        bytes.extend(input);
    }
    bytes
}
