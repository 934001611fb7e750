//! Known machines: for each the devices, rails and properties that a specialist expects. docs/topology.md has the same as a table, with the
//! source of each fact.

use std::fs;
use std::path::Path;

use topology::{Class, Description, Grouping, Hint, Omission, Reason, group, hint, properties};

/// The expected result for a machine's file.
struct Expected {
    machine: &'static str,
    /// The title on the page.
    title: &'static str,
    /// For each device: its rails, in order; its Mb/s, 0 if unknown; the address for NCCL; the lanes in NCCL's file, 0 if it has none.
    devices: &'static [(&'static str, u64, &'static str, u64)],
    /// NICs without a rail.
    left_out: &'static [&'static str],
    /// For the page: the reason for these devices.
    why: &'static str,
}

const EXPECTED: &[Expected] = &[
    Expected {
        machine: "p4d",
        title: "AWS p4d.24xlarge",
        devices: &[
            ("rdmap16s27", 100_000, "0000:10:1b.0", 0),
            ("rdmap32s27", 100_000, "0000:20:1b.0", 0),
            ("rdmap144s27", 100_000, "0000:90:1b.0", 0),
            ("rdmap160s27", 100_000, "0000:a0:1b.0", 0),
        ],
        left_out: &[],
        why: "each NIC is on the root bus of two GPUs: two GPUs, one NIC, one device",
    },
    Expected {
        machine: "p5",
        title: "AWS p5.48xlarge",
        devices: &[
            ("rdmap79s0 rdmap80s0 rdmap81s0 rdmap82s0", 400_000, "0000:4f:00.0", 64),
            ("rdmap96s0 rdmap97s0 rdmap98s0 rdmap99s0", 400_000, "0000:60:00.0", 64),
            ("rdmap113s0 rdmap114s0 rdmap115s0 rdmap116s0", 400_000, "0000:71:00.0", 64),
            ("rdmap130s0 rdmap131s0 rdmap132s0 rdmap133s0", 400_000, "0000:82:00.0", 64),
            ("rdmap147s0 rdmap148s0 rdmap149s0 rdmap150s0", 400_000, "0000:93:00.0", 64),
            ("rdmap164s0 rdmap165s0 rdmap166s0 rdmap167s0", 400_000, "0000:a4:00.0", 64),
            ("rdmap181s0 rdmap182s0 rdmap183s0 rdmap184s0", 400_000, "0000:b5:00.0", 64),
            ("rdmap198s0 rdmap199s0 rdmap200s0 rdmap201s0", 400_000, "0000:c6:00.0", 64),
        ],
        left_out: &[],
        why: "four NICs share a switch with one GPU; one NIC's link is 96000 Mb/s to NCCL, four carry 384000",
    },
    Expected {
        machine: "p5en",
        title: "AWS p5en.48xlarge",
        devices: &[
            ("rdmap83s0 rdmap84s0", 400_000, "0000:53:00.0", 17),
            ("rdmap86s0 rdmap87s0", 400_000, "0000:56:00.0", 17),
            ("rdmap115s0 rdmap116s0", 400_000, "0000:73:00.0", 17),
            ("rdmap118s0 rdmap119s0", 400_000, "0000:76:00.0", 17),
            ("rdmap147s0 rdmap148s0", 400_000, "0000:93:00.0", 17),
            ("rdmap150s0 rdmap151s0", 400_000, "0000:96:00.0", 17),
            ("rdmap179s0 rdmap180s0", 400_000, "0000:b3:00.0", 17),
            ("rdmap182s0 rdmap183s0", 400_000, "0000:b6:00.0", 17),
        ],
        left_out: &[],
        why: "four NICs share a switch with two GPUs: two devices of two rails",
    },
    Expected {
        machine: "gh200",
        title: "Slingshot node with 4 GH200",
        devices: &[
            ("cxi0", 200_000, "0000:01:00.0", 0),
            ("cxi1", 200_000, "0010:01:00.0", 0),
            ("cxi2", 200_000, "0020:01:00.0", 0),
            ("cxi3", 200_000, "0030:01:00.0", 0),
        ],
        left_out: &[],
        why: "GPU and NIC of a module are in PCI domains of their own, and meet in the CPU alone",
    },
    Expected {
        machine: "dgx-h100",
        title: "NVIDIA DGX H100",
        devices: &[
            ("mlx5_0", 400_000, "0000:18:00.0", 0),
            ("mlx5_1", 400_000, "0000:29:00.0", 0),
            ("mlx5_2", 400_000, "0000:29:00.1", 0),
            ("mlx5_3", 400_000, "0000:40:00.0", 0),
            ("mlx5_4", 400_000, "0000:4f:00.0", 0),
            ("mlx5_5", 400_000, "0000:5e:00.0", 0),
            ("mlx5_6", 400_000, "0000:9a:00.0", 0),
            ("mlx5_7", 400_000, "0000:aa:00.0", 0),
            ("mlx5_8", 400_000, "0000:aa:00.1", 0),
            ("mlx5_9", 400_000, "0000:c0:00.0", 0),
            ("mlx5_10", 400_000, "0000:ce:00.0", 0),
            ("mlx5_11", 400_000, "0000:dc:00.0", 0),
        ],
        left_out: &[],
        why: "one NIC and one GPU below each switch; a storage card's two ports have networks of two kinds, and no GPU",
    },
    Expected {
        machine: "two-sockets",
        title: "two sockets, Ethernet, tcp",
        devices: &[("ens1f0np0 ens1f1np1 eno1", 225_000, "0000:cb:00.0", 19)],
        left_out: &["eno2", "lo", "docker0"],
        why: "software drives the interfaces, so where they are does not matter: one device, the fastest leads; the two ports of its card share one link, of 192000 Mb/s to NCCL, and the third rail adds 25000",
    },
    Expected {
        machine: "broken",
        title: "a machine with every fault",
        devices: &[
            ("pf other", 400_000, "0000:13:00.0", 67),
            ("orphan", 100_000, "0000:20:00.0", 0),
            ("looped", 0, "0000:32:00.0", 0),
            ("itself", 100_000, "0000:33:00.0", 0),
            ("guest0", 100_000, "0000:40:00.2", 0),
            ("dark", 100_000, "0000:99:00.0", 0),
            ("nowhere", 100_000, "", 0),
        ],
        left_out: &["unplugged", "vf0", "vf1", "guest1"],
        why: "what is not known groups nothing; a port counts once; unknown links are assumed to be fast enough for their NICs",
    },
];

const RAILS_MAX: usize = 4;

struct Found {
    described: Description,
    grouping: Grouping,
    hint: Option<Hint>,
}

fn text_of(machine: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("machines/{machine}.machine"));
    fs::read_to_string(path).expect("the machine has a file")
}

fn found(machine: &str, rails_max: usize) -> Found {
    let described: Description = text_of(machine).parse().expect("the file is a description");
    let grouping = group(&described.machine, &described.nics, rails_max);
    let hint = hint(&described.machine, &described.nics, &grouping);
    Found { described, grouping, hint }
}

impl Found {
    fn devices(&self) -> Vec<(String, u64, String, u64)> {
        let Self { described: Description { machine, nics }, grouping, hint } = self;
        let given = properties(machine, nics, grouping);
        let device = |(index, given): (usize, &topology::Properties)| {
            let rails = grouping.groups[index].rails.iter().map(|rail| nics[*rail].name.as_str());
            let raised = hint.iter().flat_map(|hint| &hint.raised).find(|one| one.device == index);
            (
                rails.collect::<Vec<_>>().join(" "),
                given.speed_mbps.unwrap_or(0),
                given.address.map_or_else(String::new, |address| address.to_string()),
                raised.map_or(0, |raised| raised.lanes),
            )
        };
        given.iter().enumerate().map(device).collect()
    }

    fn left_out(&self) -> Vec<&str> {
        self.grouping
            .left_out
            .iter()
            .map(|left| self.described.nics[left.nic].name.as_str())
            .collect()
    }
}

#[test]
fn each_machine_has_the_devices_that_a_specialist_expects() {
    for expected in EXPECTED {
        let found = found(expected.machine, RAILS_MAX);
        let given: Vec<_> = found.devices();
        let given: Vec<_> = given
            .iter()
            .map(|(rails, speed, place, lanes)| (rails.as_str(), *speed, place.as_str(), *lanes))
            .collect();
        assert_eq!(given, expected.devices, "{}", expected.machine);
        assert_eq!(found.left_out(), expected.left_out, "{}", expected.machine);
    }
}

#[test]
fn each_machine_says_its_sources() {
    for expected in EXPECTED {
        let text = text_of(expected.machine);
        assert!(text.lines().any(|line| line.starts_with("# source: ")), "{}", expected.machine);
    }
}

#[test]
fn every_nic_is_in_one_device_or_left_out_with_a_reason_whatever_the_limit() {
    for expected in EXPECTED {
        for rails_max in 1..10 {
            let found = found(expected.machine, rails_max);
            let grouped = found.grouping.groups.iter().flat_map(|group| &group.rails).copied();
            let mut all: Vec<_> =
                grouped.chain(found.grouping.left_out.iter().map(|left| left.nic)).collect();
            all.sort_unstable();
            assert_eq!(
                all,
                (0..found.described.nics.len()).collect::<Vec<_>>(),
                "{}",
                expected.machine
            );
            let longest = found.grouping.groups.iter().map(|group| group.rails.len()).max();
            assert!(longest.is_some_and(|longest| (1..=rails_max).contains(&longest)));
        }
    }
}

#[test]
fn the_order_of_the_nics_does_not_matter() {
    for expected in EXPECTED.iter().filter(|expected| expected.machine != "two-sockets") {
        let mut described: Description = text_of(expected.machine).parse().unwrap();
        described.nics.reverse();
        let grouping = group(&described.machine, &described.nics, RAILS_MAX);
        let hint = hint(&described.machine, &described.nics, &grouping);
        let found = Found { described, grouping, hint };
        let rails: Vec<_> = found.devices().into_iter().map(|(rails, ..)| rails).collect();
        let same: Vec<_> = expected.devices.iter().map(|(rails, ..)| *rails).collect();
        assert_eq!(rails, same, "{}", expected.machine);
    }
}

#[test]
fn fewer_rails_make_more_devices_and_each_gpu_has_its_share() {
    let two = found("p5", 2);
    assert_eq!(two.grouping.groups.len(), 16);
    assert!(two.grouping.groups.iter().all(|group| group.rails.len() == 2));
    let three = found("p5", 3);
    let lengths: Vec<_> = three.grouping.groups.iter().map(|group| group.rails.len()).collect();
    assert_eq!(lengths, [2; 16], "four in two devices of at most three: evenly");
}

#[test]
fn the_reasons_name_what_is_there() {
    let reason = |machine: &str, device: usize| {
        found(machine, RAILS_MAX).grouping.groups[device].reason.to_string()
    };
    assert_eq!(
        reason("p4d", 0),
        "1 NIC below root bus 0000:10 with GPUs 0000:10:1c.0, 0000:10:1d.0"
    );
    assert_eq!(reason("p5", 7), "4 NICs below bridge 0000:bc:00.0 with GPU 0000:ca:00.0");
    assert_eq!(
        reason("p5en", 1),
        "4 NICs below bridge 0000:51:00.0 with GPUs 0000:55:00.0, 0000:58:00.0, shared out to 2 devices"
    );
    assert_eq!(reason("gh200", 3), "1 NIC below root port 0030:00:00.0, which meets no GPU");
    assert_eq!(reason("dgx-h100", 11), "1 NIC below bridge 0000:da:00.0 with GPU 0000:df:00.0");
    let broken = found("broken", RAILS_MAX);
    assert_eq!(broken.grouping.groups[6].reason, Reason::Alone);
    let phrases: Vec<_> =
        broken.grouping.left_out.iter().map(|left| left.phrase(&broken.described.nics)).collect();
    assert_eq!(
        phrases,
        [
            "its port has no link",
            "it is a function of the same port as pf",
            "it is a function of the same port as pf",
            "it is a function of the same port as guest0"
        ]
    );
    let two_sockets = found("two-sockets", RAILS_MAX);
    assert_eq!(two_sockets.grouping.left_out[1].why, Omission::LeadsLessFar(Class::Ordinary));
}

#[test]
fn a_nodes_guid_is_used_where_no_other_device_has_it() {
    let p5 = found("p5", RAILS_MAX);
    let given = properties(&p5.described.machine, &p5.described.nics, &p5.grouping);
    assert_eq!(given[0].guid, Some(0xcd77_f833_0000_1001));
    assert_eq!(given[1].guid, None);
    let rails: Vec<_> = given.iter().map(|given| given.rail).collect();
    assert_eq!(rails, (0..8).map(Some).collect::<Vec<_>>());
    let doubled = text_of("p4d").replace("link 8.0 x16\n", "link 8.0 x16 guid 1\n");
    let doubled: Description = doubled.parse().unwrap();
    let grouping = group(&doubled.machine, &doubled.nics, RAILS_MAX);
    let given = properties(&doubled.machine, &doubled.nics, &grouping);
    assert!(
        given.iter().all(|given| given.guid.is_none()),
        "four devices of one GUID are one to NCCL"
    );
}

/// Parsed as NCCL does: tags in order, attributes in quotes.
#[test]
fn nccls_file_holds_the_ways_to_the_leaders_and_nothing_else() {
    let hint = found("p5", RAILS_MAX).hint.expect("the devices are wider than one link");
    let first = "<system version=\"1\">\n  <cpu numaid=\"0\">\n    <pci busid=\"0000:45:00.0\">\n      \
                 <pci busid=\"0000:4f:00.0\" link_speed=\"8.0 GT/s PCIe\" link_width=\"64\"/>\n    </pci>\n";
    assert!(hint.xml.starts_with(first), "{}", hint.xml);
    assert_eq!(hint.xml.matches("<cpu ").count(), 2);
    assert_eq!(hint.xml.matches("<pci ").count(), 16, "a switch and a leader for each device");
    assert!(hint.xml.ends_with("  </cpu>\n</system>\n"));
    for machine in ["p4d", "gh200", "dgx-h100"] {
        assert_eq!(found(machine, RAILS_MAX).hint, None, "{machine}: NCCL believes enough");
    }
    let broken = found("broken", RAILS_MAX).hint.expect("two NICs of 200 Gb/s share a device");
    assert!(
        broken.xml.contains("<cpu numaid=\"-1\">"),
        "as sysfs says where firmware says nothing"
    );
}

/// The link above all rails has its own bandwidth, however many rails there are.
#[test]
fn the_link_above_the_rails_common_switch_stays_as_it_is() {
    let narrow =
        text_of("p5").replace("device 0200 numa 0 link 32.0 x16", "device 0200 numa 0 link 8.0 x8");
    let described: Description = narrow.parse().unwrap();
    let grouping = group(&described.machine, &described.nics, RAILS_MAX);
    let hint = hint(&described.machine, &described.nics, &grouping).expect("the leader is raised");
    assert!(hint.xml.contains("<pci busid=\"0000:45:00.0\">\n"), "{}", hint.xml);
    assert!(hint.xml.contains("<pci busid=\"0000:4f:00.0\" link_speed"), "{}", hint.xml);
}

/// Two NICs behind each of two switches below a third, where their paths meet.
#[test]
fn the_links_between_a_leader_and_the_common_switch_are_raised_with_its_own() {
    let mut text = String::from(
        "pci 0000:00:01.0 class 060400 link 32.0 x16\npci 0000:01:00.0 below 0000:00:01.0 class 060400 link 32.0 x16\n\
         pci 0000:50:00.0 below 0000:01:00.0 class 030200 vendor 10de link 32.0 x16\n",
    );
    for (half, bus) in [(0, 0x10), (1, 0x20)] {
        text += &format!(
            "pci 0000:02:0{half}.0 below 0000:01:00.0 class 060400 link 16.0 x16\n\
             pci 0000:{bus:x}:00.0 below 0000:02:0{half}.0 class 060400 link 16.0 x16\n"
        );
        for nic in 1..=2 {
            let (port, at) =
                (format!("0000:{:x}:0{nic}.0", bus + 1), format!("0000:{:x}:00.0", bus + 1 + nic));
            text += &format!(
                "pci {port} below 0000:{bus:x}:00.0 class 060400 link 16.0 x16\n\
                 pci {at} below {port} class 020000 link 16.0 x16\nnic n{half}{nic} at {at} speed 200000\n"
            );
        }
    }
    let described: Description = text.parse().unwrap();
    let grouping = group(&described.machine, &described.nics, RAILS_MAX);
    assert_eq!(grouping.groups.len(), 1, "one GPU, four NICs");
    let hint =
        hint(&described.machine, &described.nics, &grouping).expect("four are wider than one");
    let way = "<pci busid=\"0000:10:00.0\" link_speed=\"16.0 GT/s PCIe\" link_width=\"64\">\n        \
               <pci busid=\"0000:12:00.0\" link_speed=\"16.0 GT/s PCIe\" link_width=\"64\"/>";
    assert!(hint.xml.contains(way), "{}", hint.xml);
}

/// The root port has a GPU below it, whose closest NIC is behind the same inner switch.
#[test]
fn a_gpu_meets_its_closest_nics_and_no_others() {
    let mut text = String::from(
        "pci 0000:00:01.0 class 060400\npci 0000:01:00.0 below 0000:00:01.0 class 060400\n\
         pci 0000:10:00.0 below 0000:01:00.0 class 060400\n\
         pci 0000:11:00.0 below 0000:10:00.0 class 030200 vendor 10de\n\
         pci 0000:12:00.0 below 0000:10:00.0 class 020000\nnic near at 0000:12:00.0 speed 100000\n",
    );
    for nic in 0..2 {
        text += &format!(
            "pci 0000:2{nic}:00.0 below 0000:01:00.0 class 020000\nnic far{nic} at 0000:2{nic}:00.0 speed 100000\n"
        );
    }
    let described: Description = text.parse().unwrap();
    let grouping = group(&described.machine, &described.nics, RAILS_MAX);
    let reasons: Vec<_> = grouping.groups.iter().map(|group| group.reason.to_string()).collect();
    assert_eq!(
        reasons,
        [
            "1 NIC below bridge 0000:10:00.0 with GPU 0000:11:00.0",
            "2 NICs below root port 0000:00:01.0, which meet no GPU"
        ]
    );
}

/// As on a host that lends parts of its GPU to guests (SR-IOV).
#[test]
fn virtual_functions_of_a_gpu_are_not_counted_as_gpus() {
    let mut text = String::from("pci 0000:10:00.0 class 060400\n");
    text += "pci 0000:11:00.0 below 0000:10:00.0 class 030200 vendor 10de\n";
    for function in 4..8 {
        text += &format!(
            "pci 0000:11:00.{function} below 0000:10:00.0 class 030200 vendor 10de physical 0000:11:00.0\n"
        );
    }
    for nic in 0..4 {
        text += &format!(
            "pci 0000:2{nic}:00.0 below 0000:10:00.0 class 020000\nnic n{nic} at 0000:2{nic}:00.0 speed 100000\n"
        );
    }
    let described: Description = text.parse().unwrap();
    let grouping = group(&described.machine, &described.nics, RAILS_MAX);
    assert_eq!(grouping.groups.len(), 1, "one GPU, four NICs");
}

/// As on a host that lends subfunctions of its NIC (mlx5) to containers: they have one port, at one address.
#[test]
fn a_function_and_its_subfunctions_are_one_rail() {
    let all = "nic sub1 at 0000:03:00.0 part speed 100000\nnic pf at 0000:03:00.0 speed 100000\n\
               nic sub2 at 0000:03:00.0 part speed 100000\nnic other at 0000:03:00.1 speed 100000\n";
    for (text, rails) in [
        (all.to_owned(), &["pf", "other"][..]),
        (all.replace("nic pf at 0000:03:00.0", "nic pf at 0000:04:00.0"), &["sub1", "other", "pf"]),
        (all.replace(" part", ""), &["sub1", "pf", "sub2", "other"]),
    ] {
        let described: Description = text.parse().unwrap();
        let grouping = group(&described.machine, &described.nics, RAILS_MAX);
        let taken = grouping.groups.iter().flat_map(|group| &group.rails);
        let names: Vec<_> = taken.map(|rail| described.nics[*rail].name.as_str()).collect();
        assert_eq!(names, rails, "{text}");
    }
}

#[test]
fn a_limit_of_one_rail_needs_no_file() {
    for expected in EXPECTED {
        assert_eq!(found(expected.machine, 1).hint, None, "{}", expected.machine);
    }
}

#[test]
fn the_page_has_the_same_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/topology.md");
    let page = fs::read_to_string(&path).expect("the page is there");
    let (before, rest) = page.split_once(BEGIN).expect("the page has the table");
    let (_, after) = rest.split_once(END).expect("the table has an end");
    let made = format!("{before}{BEGIN}{}{END}{after}", table());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(path, made).expect("the page can be written");
        return;
    }
    assert_eq!(page, made, "UPDATE_DOCS=1 writes it");
}

const BEGIN: &str = "<!-- machines -->\n";
const END: &str = "<!-- end -->\n";

fn table() -> String {
    let mut rows = String::from(
        "| machine | device | rails | Mb/s | at | lanes in the file |\n|---|---|---|---|---|---|\n",
    );
    let mut notes = String::new();
    for Expected { machine, title, devices, left_out, why } in EXPECTED {
        for (index, (rails, speed, place, lanes)) in devices.iter().enumerate() {
            let title = if index == 0 { *title } else { "" };
            let or_dash =
                |text: String| if text.is_empty() || text == "0" { "–".to_owned() } else { text };
            let (speed, place, lanes) = (
                or_dash(speed.to_string()),
                or_dash((*place).to_owned()),
                or_dash(lanes.to_string()),
            );
            rows += &format!("| {title} | {index} | {rails} | {speed} | {place} | {lanes} |\n");
        }
        notes += &format!("\n**{title}** (`machines/{machine}.machine`): {why}.");
        if !left_out.is_empty() {
            notes += &format!(" Left out: {}.", left_out.join(", "));
        }
        notes.push('\n');
        for line in text_of(machine).lines() {
            if let Some(fact) = line.strip_prefix("# source: ") {
                notes += &format!("- source: {fact}\n");
            } else if let Some(fact) = line.strip_prefix("# assumed: ") {
                notes += &format!("- assumed: {fact}\n");
            }
        }
    }
    format!("\n{rows}{notes}\n")
}
