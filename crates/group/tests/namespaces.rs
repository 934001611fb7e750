//! Groups that meet over IPv6, and listeners of a machine with other settings of its network than this one's. Ignored where there is no IPv6, or no
//! network namespace can be made.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod support;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::process::{Command, ExitCode};
use std::time::Duration;
use std::{env, io, thread};

use harness::{Need, Test};
use ironrail_group::bootstrap::Hub;
use ironrail_group::group::Builder;
use ironrail_group::loader::Op;
use ironrail_group::start::Start;
use support::{WAIT, library};

/// Set where this program runs in the namespace.
const APART: &str = "IRONRAIL_TEST_APART";

fn main() -> ExitCode {
    if env::var_os(APART).is_some() {
        listen_beside_a_stranger();
        return ExitCode::SUCCESS;
    }
    harness::run([
        Test::new(ranks_meet_at_an_address_of_ipv6_by_a_token).wants(has_ipv6()),
        Test::new(a_strangers_listener_of_ipv4_is_noticed_where_ipv6_is_kept_apart)
            .needs(namespaces()),
    ])
}

/// A free address of this machine alone.
fn ipv6() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv6Addr::LOCALHOST, 0))?.local_addr()
}

fn has_ipv6() -> Need {
    ipv6().map(drop).map_err(|error| format!("IPv6 ({error})"))
}

fn ranks_meet_at_an_address_of_ipv6_by_a_token() {
    let address = ipv6().unwrap().to_string();
    let join = move |rank: usize| {
        let address = address.clone();
        thread::spawn(move || {
            let start = Start::from_variables(|name| match name {
                "RANK" => Some(rank.to_string()),
                "WORLD_SIZE" => Some("2".to_owned()),
                "IRONRAIL_GROUP_COORDINATOR" => Some(address.clone()),
                "IRONRAIL_GROUP_TOKEN" => Some("sesame".to_owned()),
                _ => None,
            });
            let (place, hub) = start.unwrap().join(WAIT).unwrap();
            let group = Builder::new(&library()).join_with(place, hub).unwrap();
            let mut sum = [1_u8];
            group.all_reduce(&mut sum, Op::Sum).unwrap();
            sum[0]
        })
    };
    let both = [join(1), join(0)];
    assert_eq!(both.map(|rank| rank.join().unwrap()), [2, 2]);
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
