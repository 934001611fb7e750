//! The devices that NCCL numbers: first those that were found, then those that NCCL makes of several (makeVDevice).
//!
//! - A device is never freed: endpoints refer to it, and NCCL keeps pointers to its strings.
//! - NCCL makes its devices once per load of the plugin. It may unload the plugin and load it again while the library stays in memory. Then
//!   its first call about devices is `devices`, and the number returned no longer includes the devices that it made before. If it makes one
//!   again of the same parts, it gets the same device.
//! - Until NCCL makes devices again, the earlier ones keep their indices: NCCL 2.24 to 2.26 makes its devices once per process
//!   (src/graph/topo.cc, ncclTopoGetSharedState), and goes on using them after it has loaded the plugin again.

use std::sync::Arc;

use fabric::{Library, Lock};
use net_abi::MAX_DEVICES;
use proto::limits::MAX_DATA_RAILS;

use super::config::Config;
use super::device::Device;
use super::plan::DevicePlan;
use super::properties;
use super::{DeviceProperties, no_device};
use crate::error::{Cause, Error, Result};

/// Every device of the process.
#[derive(Debug)]
pub(super) struct DeviceTable {
    found: usize,
    table: Lock<Table>,
    library: Arc<Library>,
    settings: Arc<Config>,
}

/// A device, and its properties for NCCL.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) device: Device,
    pub(super) properties: DeviceProperties,
    /// Its number in the process, which is independent of its index for NCCL.
    pub(super) number: usize,
}

#[derive(Debug, Default)]
struct Table {
    /// All devices of the process, by number; the devices that were found come first.
    all: Vec<&'static Known>,
    /// The numbers of the devices that NCCL has made. Their indices follow those of the devices that were found.
    made: Vec<usize>,
    /// NCCL has loaded the plugin again since it made `made`: those are not counted, and the next device that it makes replaces them all.
    is_made_before: bool,
    /// NCCL has called `init`, and no call about devices since.
    is_fresh: bool,
}

impl DeviceTable {
    pub(super) fn new(
        plans: Vec<DevicePlan>,
        library: Arc<Library>,
        settings: Arc<Config>,
    ) -> Self {
        let found = plans.len();
        let properties = properties::of_all(&plans);
        let devices = Self { found, table: Lock::new(Table::default()), library, settings };
        {
            let mut table = devices.table.lock();
            for (plan, properties) in plans.into_iter().zip(properties) {
                devices.add(&mut table, plan, properties);
            }
        }
        devices
    }

    /// NCCL has called `init` while it has nothing open in this library.
    pub(super) fn init_called(&self) {
        self.table.lock().is_fresh = true;
    }

    /// The number of devices for NCCL. If this is the first call after `init`, NCCL has loaded the plugin again.
    pub(super) fn count(&self) -> usize {
        let mut table = self.table.lock();
        if std::mem::take(&mut table.is_fresh) {
            table.is_made_before = true;
        }
        self.found + if table.is_made_before { 0 } else { table.made.len() }
    }

    /// All devices of the process, for tools; does not count as a call of NCCL's.
    pub(super) fn all(&self) -> Vec<&'static Known> {
        self.table.lock().all.clone()
    }

    /// The device with this index.
    pub(super) fn get(&self, index: usize) -> Result<&'static Known> {
        let mut table = self.table.lock();
        table.is_fresh = false;
        self.at(&table, index)
    }

    fn at(&self, table: &Table, index: usize) -> Result<&'static Known> {
        let number = match index.checked_sub(self.found) {
            None => Some(index),
            Some(place) => table.made.get(place).copied(),
        };
        number.and_then(|number| table.all.get(number).copied()).ok_or_else(|| no_device(index))
    }

    /// Makes one device with all rails of `parts`, and returns its index. A single part is returned unchanged.
    pub(super) fn make(&self, parts: &[usize]) -> Result<usize> {
        let refused = |cause: Cause| Err(Error::from(cause));
        let mut table = self.table.lock();
        table.is_fresh = false;
        let (first, rest) = match parts {
            [] => return refused(Cause::PartsOfDevice { count: 0 }),
            [only] => return self.at(&table, *only).map(|_| *only),
            [first, rest @ ..] => (*first, rest),
        };
        let repeats = |place: usize| parts[..place].contains(&parts[place]);
        if (1..parts.len()).any(repeats) {
            return refused(Cause::PartsOfDevice { count: parts.len() });
        }
        // NCCL does not merge devices that it has made itself.
        if let Some(made) = parts.iter().find(|part| **part >= self.found) {
            return Err(no_device(*made));
        }
        if std::mem::take(&mut table.is_made_before) {
            table.made.clear();
        }
        let same = |number: &usize| table.all[*number].properties.parts == parts;
        if let Some(place) = table.made.iter().position(same) {
            return Ok(self.found + place);
        }
        if self.found + table.made.len() >= MAX_DEVICES {
            return Err(no_device(MAX_DEVICES));
        }
        let mut plan = self.at(&table, first)?.device.plan.clone();
        for part in rest {
            plan.join(&self.at(&table, *part)?.device.plan)?;
        }
        if plan.rails.len() > MAX_DATA_RAILS {
            return refused(Cause::RailsOfDevice { count: plan.rails.len(), most: MAX_DATA_RAILS });
        }
        plan.rename();
        let before = table.all[self.found..].iter().find(|known| known.properties.parts == parts);
        let number = match before {
            Some(known) => known.number,
            None => {
                let index = table.all.len();
                plan.name_apart(index, table.all.iter().map(|known| &known.device.plan));
                let properties = properties::of_made(index, &plan, parts, |part| {
                    table.all[part].properties.clone()
                });
                log::info!(
                    "device {}: made of {} devices, as NCCL requested; {} rails",
                    plan.name,
                    parts.len(),
                    plan.rails.len()
                );
                self.add(&mut table, plan, properties)
            }
        };
        table.made.push(number);
        Ok(self.found + table.made.len() - 1)
    }

    fn add(&self, table: &mut Table, plan: DevicePlan, properties: DeviceProperties) -> usize {
        let device = Device::new(plan, Arc::clone(&self.library), Arc::clone(&self.settings));
        let number = table.all.len();
        table.all.push(Box::leak(Box::new(Known { device, properties, number })));
        number
    }
}

#[cfg(test)]
mod tests {
    use super::super::discovery::discover;
    use super::*;

    /// One device for each address, on a real provider.
    fn devices(addresses: &[&str]) -> DeviceTable {
        let mut plans = Vec::new();
        let mut library = None;
        for address in addresses {
            let rails = ("IRONRAIL_RAILS".to_owned(), (*address).to_owned());
            let found = discover(&Config::from_variables([rails]).unwrap()).unwrap();
            plans.extend(found.devices);
            library = Some(found.library);
        }
        DeviceTable::new(plans, library.unwrap(), Arc::new(Config::default()))
    }

    fn three() -> DeviceTable {
        devices(&["127.0.0.1", "127.0.0.2,127.0.0.3", "127.0.0.4"])
    }

    #[test]
    fn a_made_device_has_all_rails_and_comes_after_those_found() {
        let devices = three();
        assert_eq!(devices.count(), 3);
        assert_eq!(devices.make(&[0, 1]).unwrap(), 3);
        assert_eq!(devices.count(), 4);
        let made = devices.get(3).unwrap();
        let addresses: Vec<_> =
            made.device.plan.rails.iter().map(|rail| rail.address.as_str()).collect();
        assert_eq!(addresses, ["127.0.0.1", "127.0.0.2", "127.0.0.3"]);
        let properties = &made.properties;
        assert_eq!(properties.name.to_str().unwrap(), "127.0.0.1+127.0.0.2+127.0.0.3");
        assert_eq!(
            (properties.speed_mbps, properties.parts.as_slice()),
            (30_000, [0, 1].as_slice())
        );
        assert_ne!(properties.guid, devices.get(0).unwrap().properties.guid);
        assert_eq!(devices.get(2).unwrap().properties.parts, [2]);
    }

    #[test]
    fn a_device_that_is_made_twice_is_one_device() {
        let devices = three();
        assert_eq!(devices.make(&[0, 2]).unwrap(), 3);
        assert_eq!(devices.make(&[1, 2]).unwrap(), 4);
        assert_eq!(devices.make(&[0, 2]).unwrap(), 3);
        assert_eq!(devices.make(&[2]).unwrap(), 2, "a single part is returned");
        assert_eq!(devices.count(), 5);
    }

    /// NCCL takes devices of one name for one (NCCL src/graph/xml.cc, ncclTopoFillNet).
    #[test]
    fn made_devices_with_many_rails_have_names_of_their_own() {
        let devices = devices(&[
            "127.100.100.1,127.100.100.2,127.100.100.3",
            "127.100.100.4,127.100.100.5",
            "127.100.100.6,127.100.100.7",
        ]);
        let name = |index| devices.get(index).unwrap().properties.name.to_str().unwrap();
        let made = [&[0, 1][..], &[0, 2]].map(|parts| name(devices.make(parts).unwrap()));
        assert_eq!(made[0], "127.100.100.1+4more");
        assert_ne!(made[0], made[1]);
    }

    #[test]
    fn a_device_that_cannot_be_made_is_refused_and_not_counted() {
        let devices = three();
        for parts in [&[][..], &[0, 0], &[0, 3], &[7], &[0, 1, 2, 1]] {
            assert!(devices.make(parts).is_err(), "{parts:?}");
        }
        assert_eq!(devices.make(&[0, 1]).unwrap(), 3);
        assert!(devices.make(&[3, 2]).is_err(), "a made device is a part");
        assert_eq!(devices.count(), 4);
        assert!(devices.get(4).is_err());
    }

    #[test]
    fn a_plugin_that_is_loaded_anew_has_the_devices_that_were_found() {
        let devices = three();
        let made = devices.make(&[0, 1]).unwrap();
        let before = devices.get(made).unwrap().number;
        devices.init_called();
        assert_eq!(devices.count(), 3);
        assert_eq!(devices.make(&[1, 2]).unwrap(), made, "another device at its index");
        assert_ne!(devices.get(made).unwrap().number, before, "another device has its index");
        assert_eq!(devices.make(&[0, 1]).unwrap(), made + 1);
        assert_eq!(devices.get(made + 1).unwrap().number, before);
    }

    /// NCCL 2.24 to 2.26 (its src/graph/topo.cc, netStates).
    #[test]
    fn a_made_device_keeps_its_index_where_nccl_does_not_make_it_again() {
        let devices = three();
        let made = devices.make(&[0, 1]).unwrap();
        let before = devices.get(made).unwrap().number;
        devices.init_called();
        assert_eq!(devices.count(), 3);
        assert_eq!(devices.get(made).unwrap().number, before);
        assert_eq!(devices.make(&[1]).unwrap(), 1, "a single part makes no device");
        assert_eq!(devices.get(made).unwrap().number, before);
        assert_eq!(devices.count(), 3);
        assert_eq!(devices.make(&[0, 2]).unwrap(), made);
        assert_eq!(devices.count(), 4);
        assert!(devices.get(made + 1).is_err(), "a device that is made again replaces all");
    }

    /// With NCCL_NET_PLUGIN_REF_COUNT the plugin stays loaded, and NCCL neither calls devices nor makeVDevice again.
    #[test]
    fn a_plugin_that_stayed_loaded_keeps_the_devices_that_were_made() {
        let devices = three();
        let made = devices.make(&[0, 1]).unwrap();
        devices.init_called();
        assert!(devices.get(0).is_ok());
        assert_eq!(devices.count(), 4);
        assert!(devices.get(made).is_ok());
    }
}
