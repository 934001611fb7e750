//! Closes an endpoint's libfabric objects. After a drain all of them close. If a NIC still has operations when the bound has passed,
//! [`fabric::Nic`] decides what closes first and what leaks.

use super::Endpoint;
use super::nics::Port;

impl Endpoint {
    /// Closes what can be closed, and logs the NICs that leak.
    pub(crate) fn release(mut self: Box<Self>) {
        let close = |Port { nic, label, .. }: Port| nic.close().err().map(|_| label);
        let leaked: Vec<String> = self.executor.nics.drain(..).filter_map(close).collect();
        if !leaked.is_empty() {
            log::warn!(
                "device {}: {} cannot be closed before its operations end, and leaks with the memory registered there",
                self.label(),
                leaked.join(", ")
            );
        }
    }
}
