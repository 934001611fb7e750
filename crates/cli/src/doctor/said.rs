//! What a child process of the doctor is asked, and its answers.

use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::machine::{Device, Gpus, Libfabric, Pair, Refused, Stage, Transfer};

/// What to probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Probe {
    /// A plugin: open, start, move bytes.
    Plugin,
    /// A plugin: open alone.
    File,
    /// A libfabric and what it offers.
    Libfabric,
    /// A libfabric's version alone.
    Version,
    /// libcuda.so.1.
    Gpu,
    /// Messages between this rank and all others.
    Pairs,
}

/// An answer of the child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Said {
    Began(Stage),
    Refused(Vec<Refused>),
    Opened {
        file: Option<PathBuf>,
        tables: Vec<u32>,
        network: Option<String>,
    },
    Devices(Vec<Device>),
    /// The messages of each device to itself; None of one that has failed.
    Transferred(Vec<Option<Transfer>>),
    Libraries(Vec<PathBuf>),
    Failed(String),
    Libfabric(Libfabric),
    Gpus(Gpus),
    Pairs(Vec<Pair>),
}
