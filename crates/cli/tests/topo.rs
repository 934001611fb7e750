//! `ironrail topo` as users run it, on described machines.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn machine(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../topology/machines/{name}.machine"))
}

/// The exit code, and the text of both outputs.
fn topo(arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    let output = command.arg("topo").args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn of(name: &str, more: &[&str]) -> (i32, String, String) {
    let file = machine(name);
    topo(&[&["--machine", file.to_str().unwrap()], more].concat())
}

#[test]
fn topo_names_each_device_with_its_reason() {
    let (code, said, _) = of("p5", &[]);
    assert_eq!(code, 0);
    assert_eq!(said.lines().filter(|line| line.starts_with("device ")).count(), 8);
    assert_eq!(said.lines().filter(|line| line.starts_with("  because: 4 NICs below")).count(), 8);
    let (_, said, _) = of("p5", &["--max-rails", "1"]);
    assert_eq!(said.lines().filter(|line| line.starts_with("device ")).count(), 32);
}

#[test]
fn a_machine_without_a_nic_is_said_to_have_none() {
    let empty = Path::new(env!("CARGO_TARGET_TMPDIR")).join("empty.machine");
    fs::write(&empty, "").unwrap();
    let (code, _, errors) = topo(&["--machine", empty.to_str().unwrap()]);
    assert_eq!((code, errors.as_str()), (1, "ironrail: no NIC makes a device\n"));
}

#[test]
fn a_description_describes_itself() {
    let (code, said, _) = of("dgx-h100", &["--describe"]);
    assert_eq!(code, 0);
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("described.machine");
    fs::write(&copy, &said).unwrap();
    let (_, again, _) = topo(&["--machine", copy.to_str().unwrap(), "--describe"]);
    assert_eq!(again, said);
    let (_, devices, _) = topo(&["--machine", copy.to_str().unwrap()]);
    assert_eq!(devices, of("dgx-h100", &[]).1);
}

#[test]
fn nccls_file_is_shown_where_there_is_one() {
    let (code, said, _) = of("p5", &["--hint"]);
    assert!(code == 0 && said.starts_with("<system version=\"1\">"), "{said}");
    let (code, said, errors) = of("p4d", &["--hint"]);
    assert!(code == 0 && said.is_empty(), "{said}");
    assert!(errors.starts_with("ironrail: NCCL needs no file"), "{errors}");
}

#[test]
fn the_picture_is_a_document() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("p5.svg");
    let (code, said, _) = of("p5", &["--svg", file.to_str().unwrap()]);
    assert!(code == 0 && said.is_empty(), "{said}");
    let picture = fs::read_to_string(file).unwrap();
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    assert_eq!(picture.matches("rdmap").count(), 32);
}

#[test]
fn a_text_that_is_no_machine_is_an_error_with_its_file_and_line() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wrong.machine");
    fs::write(&file, "# fine\npci 0000:00:01.0 below nothing\n").unwrap();
    let (code, _, errors) = topo(&["--machine", file.to_str().unwrap()]);
    assert_eq!(code, 1);
    assert!(errors.contains("wrong.machine: line 2 is not understood at \"nothing\""), "{errors}");
    assert!(errors.contains("`ironrail topo --describe` prints what is read here"), "{errors}");
    let (code, _, errors) = topo(&["--machine", "/no/such/machine"]);
    assert!(code == 1 && errors.contains("/no/such/machine: No such file"), "{errors}");
}

#[test]
fn a_machine_without_nics_has_no_devices_and_says_so_by_its_code() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("without_nics.machine");
    fs::write(&file, "pci 0000:00:01.0 class 030200 vendor 10de\n").unwrap();
    let (code, said, _) = topo(&["--machine", file.to_str().unwrap()]);
    assert!(code == 1 && said.contains("GPU 0000:00:01.0"), "{code} {said}");
}

/// Any machine that the tests run on.
#[test]
fn this_machine_can_be_described_and_read_again() {
    let (code, said, _) = topo(&["--describe"]);
    assert_eq!(code, 0);
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("here.machine");
    fs::write(&copy, &said).unwrap();
    let (_, again, _) = topo(&["--machine", copy.to_str().unwrap(), "--describe"]);
    assert_eq!(again, said);
}
