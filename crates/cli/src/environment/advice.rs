//! The settings that a machine needs, and why; pure.

use std::path::Path;

use crate::doctor::Machine;

/// Variables, and further options for launchers and containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Advice {
    pub(super) variables: Vec<Variable>,
    /// Options of `docker run`, with reasons.
    pub(super) container: Vec<(String, &'static str)>,
    /// Options of Slurm, with reasons.
    pub(super) scheduler: Vec<(String, &'static str)>,
}

/// One variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Variable {
    pub(super) name: &'static str,
    pub(super) value: String,
    /// The value is prepended to an existing one.
    pub(super) prepends: bool,
    pub(super) because: String,
}

impl Advice {
    /// The advice for a machine, with the plugin in this folder.
    pub(super) fn of(machine: &Machine, folder: &Path) -> Self {
        let mut advice = Self::default();
        advice.set(
            "NCCL_NET_PLUGIN",
            "ironrail",
            "NCCL looks for libnccl-net-ironrail.so, and for nothing else",
        );
        advice.variables.push(Variable {
            name: "LD_LIBRARY_PATH",
            value: folder.display().to_string(),
            prepends: true,
            because: "the folder of libnccl-net-ironrail.so, before the loader's others".to_owned(),
        });
        advice.set(
            "NCCL_NET",
            "Ironrail",
            "NCCL ends with an error where it would silently use sockets",
        );
        advice.libfabric(machine);
        advice.efa(machine);
        advice.cxi(machine);
        advice.options(machine);
        advice
    }

    fn set(&mut self, name: &'static str, value: &str, because: &str) {
        let (value, because) = (value.to_owned(), because.to_owned());
        self.variables.push(Variable { name, value, prepends: false, because });
    }

    /// Names a vendor's libfabric that has the NICs' provider, if the libfabric of the loader lacks it.
    fn libfabric(&mut self, machine: &Machine) {
        let kinds = [
            (!machine.cxi.is_empty(), "cxi", "cray"),
            (machine.rdma.iter().any(|one| one.efa), "efa", "amazon"),
        ];
        let Some((_, kind, vendor)) = kinds.into_iter().find(|(there, ..)| *there) else { return };
        let offers = machine.libfabric.iter().flat_map(|one| &one.offers);
        if offers.map(|offer| offer.provider.as_str()).any(|name| name.starts_with(kind)) {
            return;
        }
        let theirs = |path: &&Path| path.components().any(|part| part.as_os_str() == vendor);
        let mut paths = machine.libfabrics.iter().filter_map(|one| one.path.as_deref());
        if let Some(path) = paths.rfind(theirs) {
            let because = format!(
                "the loader's libfabric has no {kind}, and this one is made for these NICs"
            );
            self.set("IRONRAIL_LIBFABRIC", &path.to_string_lossy(), &because);
        }
    }

    fn efa(&mut self, machine: &Machine) {
        if !machine.rdma.iter().any(|one| one.efa) {
            return;
        }
        if machine.is_older_than(5, 12) {
            let because = format!(
                "Linux {} is older than 5.12: data loaders that fork run out of huge pages",
                machine.kernel
            );
            self.set("FI_EFA_USE_HUGE_PAGE", "0", &because);
        }
    }

    fn cxi(&mut self, machine: &Machine) {
        if machine.cxi.is_empty() {
            return;
        }
        // A value that the site has set is kept, unless it is known to be wrong.
        let is_wrong =
            |name: &str, wrong: &str| machine.value(name).is_none_or(|value| value == wrong);
        if is_wrong("FI_MR_CACHE_MONITOR", "memhooks") {
            self.set("FI_MR_CACHE_MONITOR", "userfaultfd", "memhooks, the default of some builds, is known to deadlock; take kdreg2 where the site has it");
        }
        if is_wrong("FI_CXI_RX_MATCH_MODE", "hardware") {
            self.set(
                "FI_CXI_RX_MATCH_MODE",
                "hybrid",
                "hardware matching ends the job when its entries run out",
            );
        }
        self.scheduler.push((
            "--network=single_node_vni".to_owned(),
            "Slurm gives a job of one node no VNI by itself",
        ));
    }

    fn options(&mut self, machine: &Machine) {
        self.container.push(("--network host".to_owned(), "the host's interfaces, not a bridge's"));
        self.container.push((
            "--shm-size 8g".to_owned(),
            "NCCL's ranks share memory there, and 64 MiB are the default",
        ));
        if !machine.rdma.is_empty() {
            self.container.push(("--device /dev/infiniband".to_owned(), "the NICs' device files"));
        }
        for nic in &machine.cxi {
            self.container.push((format!("--device /dev/{}", nic.name), "the NIC's device file"));
        }
        if !machine.rdma.is_empty() || !machine.cxi.is_empty() {
            self.container.push(("--ulimit memlock=-1".to_owned(), "NICs pin every buffer"));
        }
        if !machine.gpus.places.is_empty() {
            self.container.push(("--gpus all".to_owned(), "the GPUs, and the driver's libraries"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::{Cxi, Libfabric, Offer, Rdma};

    fn names(machine: &Machine) -> Vec<&'static str> {
        let advice = Advice::of(machine, Path::new("/opt/ironrail"));
        advice.variables.iter().map(|variable| variable.name).collect()
    }

    fn ethernet() -> Machine {
        let offer = Offer { provider: "tcp".to_owned(), ..Offer::default() };
        let libfabric = Libfabric { offers: vec![offer], ..Libfabric::default() };
        Machine { libfabric: Some(libfabric), kernel: "6.1.0".to_owned(), ..Machine::default() }
    }

    #[test]
    fn a_machine_with_ethernet_needs_three_variables_and_no_more() {
        assert_eq!(names(&ethernet()), ["NCCL_NET_PLUGIN", "LD_LIBRARY_PATH", "NCCL_NET"]);
    }

    #[test]
    fn a_vendors_libfabric_is_named_where_the_loaders_lacks_the_provider() {
        let vendors = Libfabric {
            path: Some("/opt/cray/libfabric/2.2/lib64/libfabric.so.1".into()),
            ..Libfabric::default()
        };
        let other = Libfabric {
            path: Some("/usr/local/lib/libfabric.so.1".into()),
            ..Libfabric::default()
        };
        let mut machine =
            Machine { cxi: vec![Cxi::default()], libfabrics: vec![vendors, other], ..ethernet() };
        let advice = Advice::of(&machine, Path::new("/opt/ironrail"));
        let named = advice.variables.iter().find(|variable| variable.name == "IRONRAIL_LIBFABRIC");
        assert_eq!(named.unwrap().value, "/opt/cray/libfabric/2.2/lib64/libfabric.so.1");
        assert!(names(&machine).contains(&"FI_MR_CACHE_MONITOR"));
        machine.libfabric.as_mut().unwrap().offers[0].provider = "cxi".to_owned();
        assert!(!names(&machine).contains(&"IRONRAIL_LIBFABRIC"));
    }

    #[test]
    fn a_value_of_a_site_for_cxi_stays_unless_it_is_known_to_be_wrong() {
        let of = |monitor: &str, mode: &str| {
            let set = [("FI_MR_CACHE_MONITOR", monitor), ("FI_CXI_RX_MATCH_MODE", mode)];
            let environment = set.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
            let machine = Machine { cxi: vec![Cxi::default()], environment, ..ethernet() };
            names(&machine).iter().filter(|name| name.starts_with("FI_")).count()
        };
        assert_eq!((of("kdreg2", "software"), of("memhooks", "hardware"), of("", "")), (0, 2, 2));
    }

    #[test]
    fn huge_pages_are_switched_off_for_efa_on_an_old_kernel_alone() {
        let efa = Rdma { efa: true, ..Rdma::default() };
        let mut machine = Machine { rdma: vec![efa], ..ethernet() };
        assert!(!names(&machine).contains(&"FI_EFA_USE_HUGE_PAGE"));
        machine.kernel = "5.4.0-1041-aws".to_owned();
        assert!(names(&machine).contains(&"FI_EFA_USE_HUGE_PAGE"));
    }
}
