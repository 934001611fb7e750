//! TCP's congestion control for the sockets of a run, which may affect the figures more than the plugin does.

use std::fs;

/// The default of new sockets in this network namespace, if the provider uses the kernel's TCP.
pub(super) fn of(provider: &str) -> Option<String> {
    if !uses_tcp(provider) {
        return None;
    }
    let name = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// Whether the provider, before a semicolon with a layered one (fi_provider(7)), uses the kernel's TCP.
fn uses_tcp(provider: &str) -> bool {
    matches!(provider.split(';').next(), Some("net" | "tcp" | "sockets"))
}

/// A line for readers of the figures.
pub(super) fn line(name: &str) -> String {
    // BBR paces by its estimate of the bandwidth, over loopback too.
    let warning = if name == "bbr" {
        ", which paces over loopback, too: single runs differ a lot; a network namespace with reno or cubic steadies them"
    } else {
        ""
    };
    format!("# TCP congestion control: {name}{warning}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_about_bbr_says_that_it_paces_and_what_helps() {
        assert_eq!(line("reno"), "# TCP congestion control: reno");
        assert_eq!(line("cubic"), "# TCP congestion control: cubic");
        let warned = line("bbr");
        for part in ["# TCP congestion control: bbr", "paces", "namespace with reno or cubic"] {
            assert!(warned.contains(part), "{warned}");
        }
        assert_eq!(warned.lines().count(), 1);
    }

    #[test]
    fn only_providers_over_tcp_of_the_kernel_have_one() {
        for provider in ["net", "tcp", "tcp;ofi_rxm", "net;ofi_rxm", "sockets"] {
            assert!(uses_tcp(provider), "{provider}");
        }
        for provider in ["shm", "udp;ofi_rxd", "verbs;ofi_rxm", "efa", "cxi", "vfabric", ""] {
            assert!(!uses_tcp(provider), "{provider}");
            assert_eq!(of(provider), None);
        }
    }
}
