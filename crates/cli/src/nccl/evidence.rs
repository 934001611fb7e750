//! Which network NCCL used, from its log; pure over the log's text.
//!
//! NCCL falls back to sockets without an error if a plugin cannot be loaded and NCCL_NET does not forbid it, so figures alone prove
//! nothing. Two lines of its log do (NCCL 2.30, src/plugin/net.cc and src/transport/net.cc): `Using network NAME`, once per rank, and `via
//! NET/NAME/…`, once per connection.

/// The facts that the log of one rank must prove.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    /// The network's name, as the plugin's table has it.
    pub(super) network: &'a str,
    /// Whether the rank has peers to connect to.
    pub(super) peers: bool,
}

/// Whether the log proves that the network was used; otherwise why not, with NCCL's lines about its networks.
pub(super) fn prove(log: &str, wanted: Wanted<'_>) -> Result<(), String> {
    let Wanted { network, peers } = wanted;
    let using = format!("Using network {network}");
    let via = format!("via NET/{network}/");
    if !log.lines().any(|line| line.trim_end().ends_with(&using)) {
        let other = log
            .lines()
            .find_map(|line| line.split_once("Using network "))
            .map(|(_, name)| name.trim());
        let found = other.map_or_else(
            || "no network was taken".to_owned(),
            |name| format!("it used network {name}"),
        );
        return Err(format!("NCCL's log has no line `{using}`: {found}{}", hints(log)));
    }
    if peers && !log.contains(&via) {
        let seen = log.lines().find_map(|line| line.split_once(" via ")).map(|(_, how)| how.trim());
        let how = seen.map_or_else(
            || "no connection is in the log".to_owned(),
            |how| format!("connections go via {how}"),
        );
        return Err(format!("NCCL's log has no line with `{via}`: {how}"));
    }
    Ok(())
}

/// The lines of a network about its version, its libraries and its devices: `NET/NAME : …`, each once.
pub(super) fn said(log: &str, network: &str) -> Vec<String> {
    let start = format!("NET/{network} : ");
    let mut lines: Vec<String> = Vec::new();
    for (_, line) in log.lines().filter_map(|line| line.split_once(&start)) {
        let line = line.trim().to_owned();
        if lines.len() < SAID_MAX && !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

const SAID_MAX: usize = 16;

/// NCCL's lines about plugins, and its warnings, for the error of a missing proof.
fn hints(log: &str) -> String {
    let words = ["NET/Plugin", "NCCL WARN", "Could not find", "Failed to initialize NET"];
    let mut lines: Vec<&str> = Vec::new();
    for line in log.lines().filter(|line| words.iter().any(|word| line.contains(word))) {
        // Without host, process and thread.
        let said = line.split_once("NCCL ").map_or(line, |(_, said)| said).trim();
        if !lines.contains(&said) {
            lines.push(said);
        }
    }
    let from = lines.len().saturating_sub(HINTS_MAX);
    if lines.is_empty() {
        String::new()
    } else {
        format!("; it says: {}", lines[from..].join(" | "))
    }
}

const HINTS_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
host:12:34 [0] NCCL INFO NET/Plugin: Loaded net plugin Ironrail (v12)
host:12:34 [0] NCCL INFO NET/Ironrail : Using Libfabric 1.17 from /lib/libfabric.so.1
host:12:34 [0] NCCL INFO NET/Ironrail : Using Libfabric 1.17 from /lib/libfabric.so.1
host:12:34 [0] NCCL INFO Using network Ironrail
host:12:34 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Ironrail/0
";
    const SOCKET: &str = "\
host:12:34 [0] NCCL INFO NET/Plugin: Could not find: ironrial libnccl-net-ironrial.so.
host:12:34 [0] NCCL INFO Using network Socket
host:12:34 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
";

    fn wanted(network: &str) -> Wanted<'_> {
        Wanted { network, peers: true }
    }

    #[test]
    fn a_log_with_both_lines_is_proof() {
        assert_eq!(prove(GOOD, wanted("Ironrail")), Ok(()));
        assert_eq!(prove(SOCKET, wanted("Socket")), Ok(()));
    }

    #[test]
    fn another_network_is_named_with_what_nccl_said_of_the_plugin() {
        let why = prove(SOCKET, wanted("Ironrail")).unwrap_err();
        assert!(why.contains("it used network Socket"), "{why}");
        assert!(why.contains("Could not find: ironrial"), "{why}");
        // A name of which the searched one is a prefix is another name.
        assert!(prove(GOOD, wanted("Iron")).is_err());
    }

    #[test]
    fn a_network_that_no_connection_uses_is_not_proven() {
        let log = GOOD.replace("NET/Ironrail/0", "P2P/CUMEM");
        let why = prove(&log, wanted("Ironrail")).unwrap_err();
        assert!(why.contains("connections go via P2P/CUMEM"), "{why}");
        let alone = Wanted { network: "Ironrail", peers: false };
        assert_eq!(prove(&log, alone), Ok(()));
    }

    #[test]
    fn each_line_of_a_network_about_itself_is_kept_once() {
        assert_eq!(said(GOOD, "Ironrail"), ["Using Libfabric 1.17 from /lib/libfabric.so.1"]);
        assert!(said(SOCKET, "Ironrail").is_empty());
    }

    #[test]
    fn an_empty_log_is_no_proof() {
        let why = prove("", wanted("Ironrail")).unwrap_err();
        assert!(why.contains("no network was taken"), "{why}");
    }
}
