//! Machines that are not available: descriptions, made from a healthy machine's.

use std::fs;
use std::sync::OnceLock;

use serde_json::{Value, json};

use super::Case;
use super::bench::{doctor, report, scratch};

pub(crate) const CASES: &[Case] = &[
    Case::new("efa-old-libfabric", efa_old_libfabric),
    Case::new("efa-security-group", efa_security_group),
    Case::new("port-down", port_down),
    Case::new("gpu-no-peermem", || judged("gpu-no-peermem", &[gpus()])),
    Case::new("gpu-direct-off", || gpus_with("gpu-direct-off", "IRONRAIL_DEVICE_MEMORY", "0")),
    Case::new("gpu-direct-level", || gpus_with("gpu-direct-level", "NCCL_NET_GDR_LEVEL", "LOC")),
    Case::new("protocol-forced", protocol_forced),
    Case::new("few-files-over-tcp", few_files_over_tcp),
    Case::new("rank-without-setting", rank_without_setting),
    Case::new("rank-with-other-libfabric", rank_with_other_libfabric),
    Case::new("rank-on-sockets", rank_on_sockets),
];

/// The description of this machine with our plugin, without its limits.
fn healthy() -> Value {
    static MACHINE: OnceLock<Value> = OnceLock::new();
    let read = || {
        let file = scratch("described").join("healthy.json");
        let mut command = doctor();
        command.arg("--describe").arg(&file);
        assert!(command.output().unwrap().status.success());
        let group: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        let mut machine = group["ranks"][0].clone();
        machine["limits"]["locked_bytes"] = Value::Null;
        machine
    };
    MACHINE.get_or_init(read).clone()
}

fn judged(name: &str, ranks: &[Value]) -> Value {
    judged_with(name, &json!({ "ranks": ranks }))
}

fn judged_with(name: &str, group: &Value) -> Value {
    let file = scratch("described").join(format!("{name}.json"));
    fs::write(&file, group.to_string()).unwrap();
    let mut command = doctor();
    command.arg("--machine").arg(file);
    report(command)
}

/// An instance with EFA, over this libfabric.
fn efa(major: u32, minor: u32) -> Value {
    let mut machine = healthy();
    machine["rdma"] = json!([{ "name": "efa_0", "efa": true, "device_file": true }]);
    machine["libfabric"]["version"] = json!([major, minor]);
    machine["libfabric"]["offers"] = json!([{ "provider": "efa", "domain": "efa_0-rdm" }]);
    machine["kernel"] = json!("6.1.0");
    machine
}

/// GPUs and a NIC that can reach their memory.
fn gpus() -> Value {
    let mut machine = healthy();
    machine["rdma"] = json!([{ "name": "mlx5_0", "device_file": true }]);
    machine["libfabric"]["offers"] = json!([{ "provider": "verbs;ofi_rxm", "domain": "mlx5_0" }]);
    machine["gpus"] = json!({
        "places": [{ "pci": "0000:18:00.0", "numa": 0 }], "driver": "470.82.01", "counted": 1, "dmabuf": false,
    });
    machine
}

fn gpus_with(name: &str, variable: &str, value: &str) -> Value {
    let mut machine = gpus();
    machine["gpus"]["dmabuf"] = json!(true);
    machine["environment"][variable] = json!(value);
    judged(name, &[machine])
}

fn efa_old_libfabric() -> Value {
    judged("efa-old-libfabric", &[efa(1, 18)])
}

fn few_files_over_tcp() -> Value {
    let mut machine = healthy();
    machine["libfabric"]["offers"] = json!([{ "provider": "tcp", "domain": "eth0" }]);
    machine["limits"]["files"] = json!(1024);
    judged("few-files-over-tcp", &[machine])
}

fn port_down() -> Value {
    let mut machine = healthy();
    machine["rdma"] = json!([{ "name": "mlx5_0", "state": "1: DOWN", "device_file": true }]);
    machine["limits"]["locked_bytes"] = json!(65536);
    machine["limits"]["pins_any"] = json!(false);
    let report = judged("port-down", &[machine]);
    assert_no_fail(&report);
    report
}

fn assert_no_fail(report: &Value) {
    let findings = report["findings"].as_array().unwrap();
    let failed: Vec<_> = findings.iter().filter(|finding| finding["level"] == "FAIL").collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

fn protocol_forced() -> Value {
    let mut machine = efa(2, 1);
    machine["environment"]["NCCL_PROTO"] = json!("LL128");
    judged("protocol-forced", &[machine])
}

fn efa_security_group() -> Value {
    let ranks: Vec<_> = ["node1", "node2"]
        .iter()
        .map(|host| {
            let mut machine = efa(2, 1);
            machine["host"] = json!(host);
            machine
        })
        .collect();
    let why = "nothing moved for 20.0 s while waiting for rank 1 to accept";
    let pairs = json!([{ "from": 0, "to": 1, "failure": why }]);
    judged_with("efa-security-group", &json!({ "ranks": ranks, "pairs": pairs }))
}

fn rank_without_setting() -> Value {
    let ranks: Vec<_> = (0..4)
        .map(|rank| {
            let mut machine = healthy();
            if rank != 2 {
                machine["environment"]["FI_CXI_RX_MATCH_MODE"] = json!("hybrid");
            }
            machine
        })
        .collect();
    judged("rank-without-setting", &ranks)
}

fn rank_with_other_libfabric() -> Value {
    let mut ranks = vec![healthy(); 3];
    ranks[1]["libfabric"]["version"] = json!([2, 9]);
    judged("rank-with-other-libfabric", &ranks)
}

fn rank_on_sockets() -> Value {
    let mut ranks = vec![healthy(); 4];
    let plugin = &mut ranks[3]["plugins"][0];
    plugin["devices"] = Value::Null;
    plugin["transfer"] = Value::Null;
    plugin["failure"] =
        json!({ "stage": "init", "why": "init returned 2", "signal": null, "silent_s": null });
    judged("rank-on-sockets", &ranks)
}

/// The finding with this name in the judgement of a machine.
fn found(name: &str, check: &str, machine: Value) -> Value {
    let report = judged(name, &[machine]);
    let findings = report["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["check"] == check);
    found.unwrap_or_else(|| panic!("no {check} in {report:#}")).clone()
}

pub(crate) fn nics_of_a_provider_that_is_not_chosen_fail_nothing() {
    let mut machine = healthy();
    machine["rdma"] = json!([{ "name": "efa_0", "efa": true }, { "name": "mlx5_0" }]);
    machine["cxi"] = json!([{ "name": "cxi0" }]);
    machine["limits"]["locked_bytes"] = json!(65536);
    machine["limits"]["pins_any"] = json!(false);
    machine["libfabric"]["offers"] =
        json!([{ "provider": "efa", "domain": "efa_0" }, { "provider": "tcp", "domain": "eth0" }]);
    for (variable, value) in
        [("IRONRAIL_PROVIDER", "tcp"), ("NCCL_PROTO", "LL128"), ("SLURM_JOB_ID", "7")]
    {
        machine["environment"][variable] = json!(value);
    }
    assert_no_fail(&judged("not-chosen", &[machine]));
}

/// The file may come from elsewhere: behind another file its pair would name ranks of that file, or numbers beyond all ranks.
pub(crate) fn a_pair_of_no_rank_of_its_file_is_refused() {
    let folder = scratch("no-rank");
    let (first, second) = (folder.join("first.json"), folder.join("second.json"));
    fs::write(&first, json!({ "ranks": [{}, {}] }).to_string()).unwrap();
    for (from, to) in [(0, 1), (u64::MAX, 0)] {
        let pairs = json!([{ "from": from, "to": to, "failure": "it is cut" }]);
        fs::write(&second, json!({ "ranks": [{}], "pairs": pairs }).to_string()).unwrap();
        let output = doctor().arg("--machine").args([&first, &second]).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{errors}");
        let why = format!("second.json: it has a pair of rank {from} and rank {to}, and");
        assert!(errors.contains(&why), "{errors}");
    }
}

pub(crate) fn messages_between_machines_described_apart_are_not_asked_for() {
    let folder = scratch("apart");
    let files = [folder.join("first.json"), folder.join("second.json")];
    let mut broken = healthy();
    broken["plugins"][0]["transfer"] = Value::Null;
    for (file, machine) in files.iter().zip([healthy(), broken]) {
        fs::write(file, json!({ "ranks": [machine] }).to_string()).unwrap();
    }
    let mut command = doctor();
    command.arg("--machine").args(&files);
    let report = report(command);
    let findings = report["findings"].as_array().unwrap();
    assert!(findings.iter().all(|finding| finding["check"] != "rank.transfer"), "{report:#}");
}

pub(crate) fn a_plugin_that_fails_is_left_for_the_next_one() {
    let mut machine = healthy();
    let second = machine["plugins"][0].clone();
    let mut first = second.clone();
    (first["network"], first["devices"]) = (json!("First"), Value::Null);
    first["failure"] =
        json!({ "stage": "init", "why": "init returned 2", "signal": null, "silent_s": null });
    machine["plugins"] = json!([first, second]);
    let starts = found("next-plugin", "plugin.starts", machine.clone());
    assert_eq!(starts["level"], "warn", "{starts:#}");
    let moves = found("next-plugin", "transfer.loopback", machine.clone());
    assert_eq!(moves["level"], "ok", "{moves:#}");
    // A crash is NCCL's, too.
    machine["plugins"][0]["failure"]["signal"] = json!(11);
    let starts = found("next-plugin", "plugin.starts", machine);
    assert_eq!(starts["level"], "FAIL", "{starts:#}");
}

pub(crate) fn a_provider_of_messages_alone_is_as_usable_as_the_protocol_says() {
    for (protocol, provider, level) in [
        ("auto", "", "ok"),
        ("sendrecv", "", "ok"),
        ("RDMA", "", "FAIL"),
        ("auto", "only", "ok"),
        ("rdma", "only", "FAIL"),
    ] {
        let mut machine = healthy();
        machine["libfabric"]["offers"] =
            json!([{ "provider": "only", "domain": "eth0", "messages_alone": true }]);
        machine["environment"]["IRONRAIL_PROTOCOL"] = json!(protocol);
        machine["environment"]["IRONRAIL_PROVIDER"] = json!(provider);
        let usable = found("messages-alone", "provider.usable", machine);
        assert_eq!(usable["level"], level, "{protocol} {provider}: {usable:#}");
        let why = usable["found"].as_str().unwrap().contains("only: no one-sided writes");
        assert_eq!(why, level == "FAIL", "{protocol} {provider}: {usable:#}");
    }
}

/// Messages between two machines with the devices of these names, by a plugin with these tables.
fn with_devices(name: &str, tables: &[u32], devices: [&[&str]; 3]) -> Value {
    let machine = |names: &&[&str]| {
        let mut machine = healthy();
        let plugin = &mut machine["plugins"][0];
        plugin["tables"] = json!(tables);
        let device = |name: &&str| json!({ "name": name });
        plugin["devices"] = names.iter().map(device).collect();
        machine
    };
    let ranks: Vec<_> = devices.iter().map(machine).collect();
    let moved = json!({ "messages": 1, "bytes": 9, "wrong": 0 });
    let pair = |device| json!({ "from": 0, "to": 1, "device": device, "transfer": moved });
    judged_with(name, &json!({ "ranks": ranks, "pairs": [pair(0), pair(1)] }))
}

pub(crate) fn a_nic_with_another_number_on_one_rank_is_named() {
    let all: &[&str] = &["mlx5_0", "mlx5_1", "mlx5_2"];
    let report = with_devices("numbers", &[12], [all, all, &["mlx5_0", "mlx5_2", "mlx5_1"]]);
    let findings = report["findings"].as_array().unwrap();
    let about = |finding: &&Value| finding["looked_at"] == "the devices' numbers on every rank";
    let finding = findings.iter().find(about).unwrap_or_else(|| panic!("{report:#}"));
    assert_eq!((&finding["check"], &finding["level"]), (&"rank.differs".into(), &"warn".into()));
    assert_eq!(
        finding["found"],
        "mlx5_1 is device 1 on most ranks, and device 2 on rank 2; 1 more likewise"
    );
    assert_eq!(finding["ranks"], json!([2]));
    // Names that one rank alone has say nothing.
    let other = with_devices("names", &[12], [all, all, &["eth0", "eth1", "eth2"]]);
    assert!(!other["findings"].as_array().unwrap().iter().any(|one| about(&one)), "{other:#}");
}

pub(crate) fn for_tables_without_networks_the_report_says_what_is_assumed() {
    let assumed = "; a plugin's table v11 names no networks, as v12 does: devices of one number are taken to be on one";
    for (tables, is_assumed) in [(&[11, 10][..], true), (&[12, 11], false)] {
        let report = with_devices("planes", tables, [&["a", "b"]; 3]);
        let findings = report["findings"].as_array().unwrap();
        let messages = findings.iter().find(|finding| finding["check"] == "rank.transfer").unwrap();
        let found = messages["found"].as_str().unwrap();
        assert_eq!(found.ends_with(assumed), is_assumed, "{found}");
    }
}

/// Of 64 machines the NIC of one is dead.
pub(crate) fn a_broken_rank_among_many_is_named() {
    let host = |rank: usize| {
        let mut machine = healthy();
        machine["host"] = json!(format!("node{rank}"));
        machine
    };
    let ranks: Vec<_> = (0..64).map(host).collect();
    let judged = |name: &str, is_broken: fn(usize, usize) -> bool| {
        let ends = (0..64).flat_map(|from| (0..64).map(move |to| (from, to)));
        let pair = |(from, to): (usize, usize)| match is_broken(from, to) {
            true => json!({ "from": from, "to": to, "failure": "nothing moved for 20.0 s" }),
            false => {
                json!({ "from": from, "to": to, "transfer": { "messages": 1, "bytes": 9, "wrong": 0 } })
            }
        };
        let pairs: Vec<_> = ends.filter(|(from, to)| from != to).map(pair).collect();
        let report = judged_with(name, &json!({ "ranks": ranks, "pairs": pairs }));
        let findings = report["findings"].as_array().unwrap();
        findings.iter().find(|finding| finding["check"] == "rank.transfer").unwrap().clone()
    };
    for (name, is_broken, count, way) in [
        ("rank-dead", (|from, to| from == 17 || to == 17) as fn(_, _) -> _, 126, "to or from"),
        ("rank-deaf", |_, to| to == 17, 63, "to"),
        ("rank-mute", |from, _| from == 17, 63, "from"),
    ] {
        let finding = judged(name, is_broken);
        let found = finding["found"].as_str().unwrap();
        let words = format!(
            "{count} of 4032 messages among 64 ranks failed, all of them {way} rank 17 (node17) by device 0"
        );
        assert!(found.starts_with(&words), "{found}");
        assert_eq!(finding["ranks"], json!([17]), "{found}");
        assert_eq!(finding["pairs"].as_array().unwrap().len(), count, "{found}");
    }
    let one = judged("pair-broken", |from, to| (from, to) == (0, 17));
    let found = one["found"].as_str().unwrap();
    assert!(found.contains("failed, the first of them rank 0 (node0) to rank 17 (node17)"));
    assert_eq!(one["ranks"], Value::Null, "either may be broken");
}

pub(crate) fn ranks_that_differ_keep_their_numbers_beside_one_without_answer() {
    let mut ranks = vec![healthy(); 30];
    ranks[0] = json!({ "host": "node0", "unreachable": "Connection timed out" });
    for rank in &mut ranks[20..30] {
        rank["environment"]["NCCL_BUFFSIZE"] = json!("7");
    }
    ranks[25]["libfabric"]["version"] = json!([2, 9]);
    let report = judged("rank-numbers", &ranks);
    let findings = report["findings"].as_array().unwrap();
    let of = |words: &str| {
        let is_it = |finding: &&Value| finding["looked_at"].as_str().unwrap().starts_with(words);
        findings.iter().find(is_it).unwrap_or_else(|| panic!("no {words} in {report:#}"))
    };
    let buffer = of("NCCL_BUFFSIZE");
    assert_eq!(buffer["ranks"], json!((20..30).collect::<Vec<_>>()), "{buffer:#}");
    assert!(buffer["found"].as_str().unwrap().contains("7 on ranks 20, 21"), "{buffer:#}");
    assert_eq!(of("libfabric's version")["ranks"], json!([25]));
    assert_eq!(of("rank 0 on node0")["ranks"], json!([0]));
}
