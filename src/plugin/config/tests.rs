//! Each setting, each sentence, and the page made from the table.

use super::*;
use crate::plugin::environment::PROVIDER_VARIABLES;

fn owned(variables: &[(&str, &str)]) -> Vec<(String, String)> {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn config(variables: &[(&str, &str)]) -> Config {
    Config::from_variables(owned(variables)).unwrap()
}

/// The configuration with one setting given.
fn with(name: &str, value: &str) -> Config {
    config(&[(&format!("{PREFIX}{name}"), value)])
}

fn refusal(name: &str, value: &str) -> String {
    Config::from_variables(owned(&[(&format!("{PREFIX}{name}"), value)])).unwrap_err().to_string()
}

fn texts(config: &Config) -> Vec<&str> {
    config.notes().iter().map(|note| note.text.as_str()).collect()
}

/// Any value in the environment is accepted, or refused by a sentence that names the setting.
#[test]
fn no_text_breaks_a_setting() {
    const PIECES: &[&str] = &[
        "",
        "0",
        "1",
        "-1",
        "9",
        "18446744073709551616",
        " ",
        ",",
        ",,",
        "127.0.0.1",
        "[::1]",
        "=",
        "on",
        "off",
        "none",
        "%p",
        "\u{0}",
        "é",
        "K",
        "M",
        "0x",
        "eth0",
        ";",
        "\u{2028}",
        ".",
    ];
    for (number, setting) in SETTINGS.iter().enumerate() {
        for round in 0..600 {
            let pick = |at: usize| PIECES[(round * (at * 2 + 1) + number * 7 + at) % PIECES.len()];
            let base = if round % 3 == 0 { setting.default } else { "" };
            let text = format!("{base}{}{}{}", pick(round % 5), pick(round / 25), pick(round / 7));
            let name = format!("{PREFIX}{}", setting.name);
            if let Err(error) = Config::from_variables([(name.clone(), text)]) {
                assert!(error.to_string().contains(&name), "{error}");
            }
        }
    }
}

#[test]
fn an_empty_environment_gives_the_defaults() {
    let config = Config::default();
    assert_eq!(config.libfabric, None);
    assert_eq!(config.provider, None);
    assert!(config.rails.is_empty());
    assert_eq!((config.max_rails, config.max_control_rails), (4, 4));
    assert!(!config.force_fin && !config.basic_regions);
    assert_eq!((config.largest_write, config.stripe_bytes_min, config.cq_entries), (0, 131_072, 0));
    assert_eq!(config.connect_timeout, Duration::from_secs(600));
    assert_eq!(config.connect_warn, Duration::from_secs(30));
    assert_eq!(config.peer_timeout, Duration::from_secs(75));
    assert_eq!(config.close_timeout, Duration::from_millis(1500));
    assert_eq!(config.inline_bytes_max, 4096);
    assert_eq!(config.stats_file, None);
    assert_eq!(config.job, "");
    assert_eq!(config.log_level, LevelFilter::Info);
    assert!(config.notes().is_empty());
    assert_eq!(config.given(), "");
}

#[test]
fn each_setting_reaches_its_field() {
    assert_eq!(
        with("LIBFABRIC", "/opt/lib/libfabric.so.1").libfabric,
        Some("/opt/lib/libfabric.so.1".into())
    );
    assert_eq!(with("PROVIDER", "tcp;ofi_rxm").provider.as_deref(), Some("tcp;ofi_rxm"));
    assert_eq!(with("RAILS", "127.0.0.1, eth0").rails, ["127.0.0.1", "eth0"]);
    assert_eq!(with("MAX_RAILS", "2").max_rails, 2);
    assert_eq!(with("MAX_CONTROL_RAILS", "1").max_control_rails, 1);
    assert!(with("FORCE_FIN", "on").force_fin);
    assert_eq!(with("LARGEST_WRITE", "64k").largest_write, 65_536);
    assert_eq!(with("STRIPE_MIN", "1M").stripe_bytes_min, 1 << 20);
    assert!(with("BASIC_REGIONS", "true").basic_regions);
    assert_eq!(with("CONNECT_TIMEOUT_MS", "5000").connect_timeout, Duration::from_secs(5));
    assert_eq!(with("CONNECT_WARN_MS", "1").connect_warn, Duration::from_millis(1));
    assert_eq!(with("PEER_TIMEOUT_MS", "10").peer_timeout, Duration::from_millis(10));
    assert_eq!(with("CLOSE_TIMEOUT_MS", "0").close_timeout, Duration::ZERO);
    assert_eq!(with("CQ_ENTRIES", "4096").cq_entries_or_default(), 4096);
    assert_eq!(with("CQ_ENTRIES", "0").cq_entries_or_default(), 16_384);
    assert_eq!(with("INLINE_MAX_SIZE", "40").of_endpoints().inline_bytes_max, 40);
    assert_eq!(with("INLINE_MAX_SIZE", "1G").of_endpoints().inline_bytes_max, 4096);
    assert_eq!(with("INLINE_MAX_SIZE", "0").of_endpoints().inline_bytes_max, 0);
    assert_eq!(
        with("STATS_FILE", "rails/%h.%p").stats_path(7, "node"),
        Some("rails/node.7".into())
    );
    assert_eq!(with("JOB", "a job").job, "a job");
    assert_eq!(with("LOG_LEVEL", "Debug").log_level, LevelFilter::Debug);
}

#[test]
fn a_path_may_have_any_bytes() {
    let given = OsString::from_vec(b"dumps.\xff.%p.%".to_vec());
    let names = ["LIBFABRIC", "DUMP_TRIGGER", "STATS_FILE"];
    let variables = names.map(|name| (format!("{PREFIX}{name}"), given.clone()));
    let config = Config::from_variables(variables).unwrap();
    assert_eq!(config.libfabric, Some(given.clone().into()));
    assert_eq!(config.dump_trigger, Some(given.into()));
    let path = config.stats_path(7, "node").unwrap();
    assert_eq!(path.as_os_str().as_bytes(), b"dumps.\xff.7.%");
}

#[test]
fn a_wrong_value_is_refused_with_the_name_the_value_and_what_is_accepted() {
    assert_eq!(
        refusal("MAX_RAILS", "none"),
        "IRONRAIL_MAX_RAILS=none is not a value Ironrail can use: give a whole number from 1 to 16, or unset it (default: 4)"
    );
    for (name, value, accepted) in [
        ("MAX_RAILS", "0", "from 1 to 16"),
        ("MAX_CONTROL_RAILS", "5", "from 1 to 4"),
        ("FORCE_FIN", "2", "0 or 1"),
        ("LARGEST_WRITE", "127", "bytes from 128 to 1024G, or 0 for what the provider allows"),
        ("STRIPE_MIN", "0", "bytes from 128 to 1024G"),
        ("STRIPE_MIN", "99999999999G", "bytes from"),
        ("STRIPE_MIN", "é", "bytes from"),
        ("STRIPE_MIN", "K", "bytes from"),
        ("BASIC_REGIONS", "maybe", "0 or 1"),
        ("CONNECT_TIMEOUT_MS", "10 s", "milliseconds from 1"),
        ("CONNECT_WARN_MS", "-1", "milliseconds from 1"),
        ("PEER_TIMEOUT_MS", "0", "milliseconds from 1"),
        ("CLOSE_TIMEOUT_MS", "99999999999", "milliseconds from 0"),
        ("CQ_ENTRIES", "1535", "from 1536 to 1048576, or 0 for"),
        ("INLINE_MAX_SIZE", "-1", "bytes from 1 to 1024G, or 0 for never"),
        ("RAILS", "127.0.0.1,,127.0.0.2", "a list separated by commas"),
        ("RAILS", "eth0,eth0", "without empty places or repetitions"),
        ("LOG_LEVEL", "loud", "one of off, error, warn, info, debug, trace"),
    ] {
        let sentence = refusal(name, value);
        assert!(sentence.contains(accepted), "{sentence}");
        assert!(sentence.starts_with(&format!("{PREFIX}{name}={value} ")), "{sentence}");
    }
}

#[test]
fn an_empty_value_is_an_unset_one() {
    assert_eq!(with("MAX_RAILS", ""), Config::default());
}

#[test]
fn an_unknown_name_gets_the_nearest_suggested() {
    assert_eq!(
        texts(&with("MAXRAILS", "2")),
        [
            "IRONRAIL_MAXRAILS is not a setting of Ironrail and is ignored: did you mean IRONRAIL_MAX_RAILS?"
        ]
    );
    for name in ["XYZ", "FOO"] {
        assert!(texts(&with(name, "2"))[0].ends_with("`ironrail explain` lists them"), "{name}");
    }
    assert_eq!(with("XYZ", "2").notes()[0].level, Level::Warn);
    assert!(with("TEST_PROFILE", "release").notes().is_empty());
    assert!(with("GROUP_COORDINATOR", "10.0.0.1:7700").notes().is_empty(), "the group library's");
    assert!(with("GROUP_TOKEN", "sesame").notes().is_empty(), "the group library's");
    let misspelt = with("GROUP_TOKN", "sesame");
    assert!(texts(&misspelt)[0].ends_with("did you mean IRONRAIL_GROUP_TOKEN?"), "{misspelt:?}");
}

#[test]
fn a_setting_of_an_earlier_version_is_reported_as_unknown() {
    for name in ["LONE_DONE_TURNS", "ADVERT_BATCHING", "EAGER_MAX_SIZE", "BUNDLE_MAX_SIZE"] {
        let config = with(name, "0");
        let sentence = format!("{PREFIX}{name} is not a setting of Ironrail and is ignored: ");
        assert!(texts(&config)[0].starts_with(&sentence), "{:?}", config.notes());
        assert_eq!(config.notes()[0].level, Level::Warn);
    }
}

#[test]
fn the_distance_is_the_fewest_changes() {
    for (from, to, steps) in [
        ("", "", 0),
        ("", "ab", 2),
        ("kitten", "sitting", 3),
        ("RAIL", "RAILS", 1),
        ("ab", "ba", 2),
    ] {
        assert_eq!(distance(from, to), steps);
        assert_eq!(distance(to, from), steps);
    }
}

#[test]
fn aws_ofi_nccls_names_are_used_with_a_note_unless_ours_is_given() {
    let found = config(&[("OFI_NCCL_FORCE_NUM_RAILS", "3"), ("OFI_NCCL_CQ_SIZE", "12288")]);
    assert_eq!((found.max_rails, found.cq_entries), (3, 12288));
    assert!(texts(&found)[1].contains("used as IRONRAIL_MAX_RAILS=3"));

    let inline = |value| config(&[("OFI_NCCL_EAGER_MAX_SIZE", value)]).inline_bytes_max;
    assert_eq!((inline("512"), inline("-1")), (512, 0), "aws-ofi-nccl's -1 means never");

    let ours = config(&[("OFI_NCCL_MIN_STRIPE_SIZE", "4096"), ("IRONRAIL_STRIPE_MIN", "8192")]);
    assert_eq!(ours.stripe_bytes_min, 8192);
    assert!(texts(&ours)[0].contains("is ignored: IRONRAIL_STRIPE_MIN is set"));

    let useless = config(&[("OFI_NCCL_FORCE_NUM_RAILS", "0"), ("OFI_NCCL_PROTOCOL", "RDMA")]);
    assert_eq!(useless.max_rails, 4);
    assert!(texts(&useless)[0].contains("OFI_NCCL_FORCE_NUM_RAILS=0 is ignored"));
    assert!(texts(&useless)[1].ends_with("OFI_NCCL_PROTOCOL"));
}

#[test]
fn given_settings_are_logged_whatever_their_source() {
    let config =
        config(&[("OFI_NCCL_CQ_SIZE", "2048"), ("IRONRAIL_JOB", "seven"), ("PATH", "/bin")]);
    assert_eq!(config.given(), "IRONRAIL_CQ_ENTRIES=2048 IRONRAIL_JOB=seven");
}

#[test]
fn libfabrics_own_variables_are_kept() {
    let config = config(&[("FI_PROVIDER", "net"), ("HOME", "/root")]);
    assert_eq!(config.provider_variable("FI_PROVIDER"), Some("net"));
    assert_eq!(config.provider_variable("HOME"), None);
}

#[test]
fn fingerprints_name_the_shared_settings_that_differ() {
    let plain = Config::default().of_endpoints();
    assert!(plain.differing(&plain.fingerprint).is_empty());
    let print = |name, value| with(name, value).of_endpoints().fingerprint;
    assert_eq!(
        print("STRIPE_MIN", "131072"),
        plain.fingerprint,
        "the same value, written otherwise"
    );
    assert_eq!(print("CLOSE_TIMEOUT_MS", "1"), plain.fingerprint, "not shared");
    for (name, value) in [
        ("PROVIDER", "net"),
        ("MAX_RAILS", "2"),
        ("MAX_CONTROL_RAILS", "2"),
        ("FORCE_FIN", "1"),
        ("LARGEST_WRITE", "4K"),
        ("STRIPE_MIN", "64K"),
        ("BASIC_REGIONS", "1"),
        ("INLINE_MAX_SIZE", "0"),
    ] {
        assert_eq!(plain.differing(&print(name, value)), [format!("{PREFIX}{name}")]);
    }
}

#[test]
fn the_table_is_sound() {
    assert!(shared().count() <= FINGERPRINT_BYTES, "the fingerprint has a byte for each");
    for (place, one) in SETTINGS.iter().enumerate() {
        assert!(SETTINGS[..place].iter().all(|other| other.name != one.name), "{} twice", one.name);
        assert!(one.kind.parse(one.default).is_some(), "{}", one.name);
        assert!(
            one.name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_'),
            "{}",
            one.name
        );
    }
    for (alias, ours) in ALIASES {
        assert!(alias.starts_with(ALIAS_PREFIX) && setting(ours).is_some(), "{alias}");
    }
}

#[test]
fn the_page_about_settings_is_made_from_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");
    if updates_docs() {
        std::fs::write(path, page()).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == page(),
        "docs/configuration.md differs from the table: UPDATE_DOCS=1 scripts/test the_page_about"
    );
}

fn page() -> String {
    let mut page = String::from(PAGE_HEAD);
    page.push_str("\n| name | takes | default | |\n|---|---|---|---|\n");
    for setting in SETTINGS {
        let (name, doc, default) = (setting.name, setting.doc.trim(), setting.shown_default());
        let mark = if setting.shared { " ¹" } else { "" };
        page.push_str(&format!(
            "| `{PREFIX}{name}`{mark} | {} | {default} | {doc} |\n",
            setting.kind.accepted()
        ));
    }
    page.push_str(PAGE_ALIASES);
    for (alias, ours) in ALIASES {
        page.push_str(&format!("| `{alias}` | `{PREFIX}{ours}` |\n"));
    }
    page.push_str(PAGE_PROVIDERS);
    for wanted in PROVIDER_VARIABLES {
        page.push_str(&format!(
            "| `{}` | {} | {} | {} |\n",
            wanted.name, wanted.value, wanted.provider, wanted.doc
        ));
    }
    page.push_str(PAGE_TAIL);
    page
}

const PAGE_HEAD: &str = "\
# Settings

For users who set up or tune a job: the settings of Ironrail, and the variables of libfabric and NCCL that it sets. None has to be set; `ironrail explain` shows the values on a machine.
Generated from the table in `src/plugin/config.rs`; a test compares. To regenerate: `UPDATE_DOCS=1 scripts/test the_page_about`.

Settings are environment variables, read once per process when NCCL initialises the plugin. They may also be in NCCL's
files, from which NCCL sets the environment before that: the file that `NCCL_CONF_FILE` names, or else `~/.nccl.conf`, and `/etc/nccl.conf`.

- An empty value is the same as an unset one.
- A wrong value fails the start, with one error that names the value and what is accepted.
- An unknown name causes one warning, which names a known setting with a similar name. `IRONRAIL_GROUP_COORDINATOR` and
  `IRONRAIL_GROUP_TOKEN` are known: the group library reads them ([group.md](group.md#start)).
- Numbers of bytes may end in K, M or G, powers of 1024. Times are in milliseconds.
";

const PAGE_ALIASES: &str = "
¹ Peers should have the same value. They compare these settings when they connect, and a difference causes one warning that names the setting.

## Names of aws-ofi-nccl

These names have the same meaning. They are accepted, with a note in the log, if Ironrail's own name is not set:

| name | used as |
|---|---|
";

const PAGE_PROVIDERS: &str = "
A value that Ironrail's setting does not accept is ignored, with a note, and so is every other `OFI_NCCL_` name. `OFI_NCCL_FORCE_NUM_RAILS` is
only an upper limit here: it does not open a NIC twice. `OFI_NCCL_EAGER_MAX_SIZE=-1` means 0: no inline messages.

## Variables of libfabric

Some options of providers are variables, which the providers read when libfabric loads. Before that the plugin sets the following, if they have no value
and `IRONRAIL_PROVIDER` does not exclude the provider. It sets those of `tcp;ofi_rxm` only if `IRONRAIL_PROVIDER`, or, where that is unset, `FI_PROVIDER`
names tcp or net:

| name | value | provider | why |
|---|---|---|---|
";

const PAGE_TAIL: &str = "
## GPU memory

A device supports GPU memory (GPUDirect RDMA) if there is a CUDA driver with a GPU, and if each of its rails has FI_HMEM and makes no CUDA calls in
NCCL's threads, where they could hang the job. A log line at the start says which path GPU memory uses, and, if it is copied through host
memory, why.

The requirements of providers, by libfabric's sources; none of this was run on hardware:

| provider | direct access if | else |
|---|---|---|
| efa | libfabric is 1.18 or newer, and the kernel lets the NIC reach the GPU's memory | through the host |
| cxi | libfabric is 2.0 or newer (earlier ones lack the option that forbids CUDA calls) and was built with CUDA and GDRCopy, and `gdrdrv` is loaded | through the host |
| verbs;ofi_rxm | never: rxm does not promise to make no CUDA calls where FI_MR_LOCAL is required, as over verbs | through the host |
| tcp, net, sockets | never: they have no FI_HMEM | through the host |
| shm | never: it copies by CUDA calls | through the host |

Registration by DMA-BUF needs libfabric 1.20 or newer, and a driver and kernel that support it; registration by address needs nvidia-peermem. NCCL
chooses; `NCCL_DMABUF_ENABLE` and `NCCL_NET_GDR_LEVEL` control that.

## NCCL_PROTO

NCCL's kernels poll flags inside the receive buffer before the message is complete. LL needs words of 8 bytes that appear whole or front to
back; LL128 needs the same for lines of 128 bytes. If a provider does not promise that, and `NCCL_PROTO` is not set, the plugin sets that variable when
NCCL initialises the plugin, once per process, with a line in the log:

| the provider | `NCCL_PROTO` |
|---|---|
| promises that bytes land in order (`FI_ORDER_DATA`), or grants the option for that and does not emulate writes by messages (efa) | not set |
| writes by words: net, tcp, rxm, sockets, shm, cxi, verbs | `^LL128` where GPU memory is registered; else not set, since NCCL sends LL128 over the network into GPU memory only |
| promises nothing: efa otherwise, and every provider not named here | `Simple` |

All ranks must have the same value. A value that you set is kept, right or wrong.

## NCCL_TOPO_FILE

If a device is wider than the PCIe link that NCCL would assume for it, the plugin gives NCCL a topology file, and sets `NCCL_TOPO_FILE` to its path. A file that you give is kept
([topology.md](topology.md)).

## What is not set

`FI_MR_CACHE_MONITOR` is not set. It determines how libfabric notices that memory with a cached registration was unmapped. tcp, sockets and shm
pin nothing, so it has no effect there. On cxi and EFA different sites use different values (`userfaultfd` or `kdreg2`), `memhooks` has been seen to
deadlock, and the project could not try any of them. A value that you set is kept.

`FI_PROVIDER` and `FI_TCP_IFACE` filter what libfabric lists, before any setting above applies.
";
