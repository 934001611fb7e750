//! Listeners of a machine with other settings of its network than this one's. Ignored where no network namespace can be made.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::env;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::process::{Command, ExitCode};
use std::time::Duration;

use harness::{Need, Test};
use ironrail_group::bootstrap::Hub;

/// Set where this program runs in the namespace.
const APART: &str = "IRONRAIL_TEST_APART";

fn main() -> ExitCode {
    if env::var_os(APART).is_some() {
        listen_beside_a_stranger();
        return ExitCode::SUCCESS;
    }
    let test = Test::new(a_strangers_listener_of_ipv4_is_noticed_where_ipv6_is_kept_apart);
    harness::run([test.needs(namespaces())])
}

/// Runs `what` where a socket at all addresses of IPv6 has none of IPv4.
fn apart(what: &str) -> Command {
    let mut command = Command::new("unshare");
    let set = "ip link set lo up && echo 1 > /proc/sys/net/ipv6/bindv6only";
    command.args(["-rn", "sh", "-c", &format!("{set} && exec {what}"), "sh"]);
    command
}

fn namespaces() -> Need {
    match apart("true").output() {
        Ok(output) if output.status.success() => Ok(()),
        _ => Err("namespaces (unshare -rn) with net.ipv6.bindv6only".to_owned()),
    }
}

fn a_strangers_listener_of_ipv4_is_noticed_where_ipv6_is_kept_apart() {
    let mut command = apart("\"$1\"");
    let output = command.arg(env::current_exe().unwrap()).env(APART, "1").output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
}

fn listen_beside_a_stranger() {
    let stranger = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let port = stranger.local_addr().unwrap().port();
    let all: [SocketAddr; 2] =
        [(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()];
    let listen = || Hub::with_secret(&all, 2, Duration::from_secs(30), 7);
    let why = listen().unwrap_err().to_string();
    assert!(why.contains(&format!("at 0.0.0.0:{port}")), "{why}");
    assert!(why.contains("names another port"), "{why}");
    drop(stranger);
    let _hub = listen().unwrap();
    // It has both.
    for address in all {
        assert!(TcpListener::bind(address).is_err(), "{address}");
    }
}
