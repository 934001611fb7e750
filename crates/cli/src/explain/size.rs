//! `ironrail explain --size`: how a message of some size would travel here, by the plugin's own rules (the crate `proto`).

use ironrail_group::error::GroupError;
use proto::packet::Ring;
use proto::setup::Features;
use proto::split::Cutting;
use proto::{
    COPIED_AT_MOST, Capabilities, Generation, ImmediateWidth, InlineLimits, Name, Slot, Terms,
};
use serde_json::json;

use super::explanation::{self, Device, Explanation};
use crate::output;

/// How a message of this size travels between two ranks like this one.
struct Way {
    device: String,
    rails: u64,
    /// The longest message of a device that sends messages (SENDRECV), if this message is longer.
    too_long_for: Option<u64>,
    messages: bool,
    /// The message travels inline in a packet, from host memory. With SENDRECV only until the advert is known.
    inline: bool,
    parts: u64,
    part_bytes: u64,
    /// The number of rails that carry parts of one message.
    shared_by: u64,
    /// How the receiver learns of the last part; None: no connection can be made.
    ends_by: Option<&'static str>,
}

/// Starts the plugin in a process of its own, and prints for each device how a message of this many bytes would travel.
///
/// # Errors
///
/// The plugin cannot be opened, or does not support `explain`.
pub(super) fn explain(net: &str, size: u64, json: bool) -> Result<bool, GroupError> {
    let found = explanation::ask(net, true)?;
    let Some(explanation) = &found.explanation else {
        return Err(super::not_ours(&found.file, &found.network));
    };
    let devices = explanation.devices.as_deref().unwrap_or_default();
    let ways: Vec<_> = devices.iter().filter_map(|device| way(explanation, device, size)).collect();
    if let Some(failed) = &found.failed {
        output::print_error(failed);
    }
    if json {
        let all: Vec<_> = ways.iter().map(|way| to_json(way, size)).collect();
        output::line(format_args!("{:#}", json!(all)));
    } else {
        ways.iter().for_each(|way| show(way, size));
    }
    Ok(found.failed.is_none() && !ways.is_empty())
}

/// How a message travels by a device. None: the device was not probed.
fn way(explanation: &Explanation, device: &Device, size: u64) -> Option<Way> {
    if device.sends_messages() {
        return Some(messages(explanation, device, size));
    }
    let probed = device.probed.as_ref()?;
    let agreed = Capabilities {
        immediate: match probed.immediate_bytes {
            0 => ImmediateWidth::None,
            4 => ImmediateWidth::Four,
            _ => ImmediateWidth::Eight,
        },
        true_lengths: probed.true_lengths,
        proves_arrival: probed.proves_arrival,
        delivery_complete: probed.delivery_complete,
        largest_write: probed.largest_write.parse().ok()?,
        self_read: probed.self_read,
        virtual_addresses: false,
        messages: false,
        arrival_times: false,
    };
    let inline_max = setting(explanation, "INLINE_MAX_SIZE").min(LONGEST_INLINE);
    let shared_from = setting(explanation, "STRIPE_MIN");
    let fin_only = setting(explanation, "FORCE_FIN") == 1;
    let (rails, generation) = (device.rails.len(), Generation::default());
    let name = Name { slot: Slot::new(0)?, generation };
    let limits = InlineLimits::default();
    let cutting = Cutting::new(rails, shared_from, agreed.largest_write)?;
    let features = Features { groups: false, fin_only };
    let terms = Terms::settle(name, name, cutting, &agreed, features, limits);
    let split = cutting.split(size);
    let ends_by = terms.map(|terms| match terms.takes_immediates(size) {
        true => "an immediate with each part",
        false => "a FIN frame behind the last part",
    });
    let shared = split.parts > 1 && size >= shared_from;
    Some(Way {
        device: device.name.clone(),
        rails: rails as u64,
        too_long_for: None,
        messages: false,
        inline: inline_max > 0 && size <= inline_max,
        parts: split.parts,
        part_bytes: split.step.min(size),
        shared_by: if shared { (rails as u64).min(split.parts) } else { 1 },
        ends_by,
    })
}

/// With SENDRECV a message is not split, and the completion of its receive reports the end.
fn messages(explanation: &Explanation, device: &Device, size: u64) -> Way {
    let (largest, packet) = (device.largest(), Ring::SENT.longest_inline().into());
    let inline_max = setting(explanation, "INLINE_MAX_SIZE").min(packet);
    Way {
        device: device.name.clone(),
        rails: device.rails.len() as u64,
        too_long_for: (size > largest).then_some(largest),
        messages: true,
        inline: inline_max > 0 && size <= inline_max,
        parts: 1,
        part_bytes: size,
        shared_by: 1,
        ends_by: Some("the completion of its receive"),
    }
}

/// The value of a setting in its smallest unit; 0 if it is not set.
fn setting(explanation: &Explanation, name: &str) -> u64 {
    let name = format!("IRONRAIL_{name}");
    let setting = explanation.settings.iter().find(|setting| setting.name == name);
    let text = setting.map(|setting| setting.value.as_ref().unwrap_or(&setting.default));
    text.and_then(|text| parse(text).ok()).unwrap_or(0)
}

/// Bytes, with K, M or G for powers of 1024; switches are 0 or 1.
pub(super) fn parse(text: &str) -> Result<u64, String> {
    let wrong = || "expected bytes, with K, M or G for powers of 1024".to_owned();
    let text = text.trim();
    match text.to_ascii_lowercase().as_str() {
        "on" | "true" | "yes" => return Ok(1),
        "off" | "false" | "no" => return Ok(0),
        _ => {}
    }
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let shift = match unit.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

fn show(way: &Way, size: u64) {
    let Way { device, rails, too_long_for, messages, inline, parts, part_bytes, .. } = way;
    let Way { shared_by, ends_by, .. } = way;
    let counted = if *rails == 1 { "1 rail".to_owned() } else { format!("{rails} rails") };
    output::line(format_args!("a message of {size} bytes on device {device}, {counted}:"));
    if let Some(largest) = too_long_for {
        output::line(format_args!(
            "    an error on both ends: this device sends a message in one piece (SENDRECV), of {largest} bytes at most, as maxP2pBytes reports"
        ));
        return;
    }
    if *inline {
        let when = match messages {
            true => "before its receive is known",
            false if size > COPIED_AT_MOST => {
                "before its receive is known or after, unless receives are posted ahead of their messages"
            }
            false => "before its receive is known or after",
        };
        output::line(format_args!(
            "    from host memory to host memory inline: in a packet of the control channel, {when}"
        ));
    }
    let Some(ends_by) = ends_by else {
        output::line("    no connection: the sizes of messages could not be exchanged");
        return;
    };
    let how = match (parts, shared_by) {
        _ if *messages => {
            "whole, as a tagged message into its posted receive (SENDRECV)".to_owned()
        }
        (1, _) if *rails > 1 => "whole, in one part, on the rails in turn".to_owned(),
        (1, _) => "whole, in one part".to_owned(),
        (parts, 1) => format!("in {parts} parts of {part_bytes} bytes, on one rail"),
        (parts, rails) => format!(
            "in {parts} parts of {part_bytes} bytes over {rails} rails, each on the rail that is expected to finish it first"
        ),
    };
    let of = match (inline, messages) {
        (false, _) => "",
        (true, false) => "else, as from GPU memory, ",
        (true, true) => "else ",
    };
    output::line(format_args!(
        "    {of}{how}; once the receive is known; the receiver learns of its end by {ends_by}"
    ));
}

fn to_json(way: &Way, size: u64) -> serde_json::Value {
    json!({
        "size": size,
        "device": way.device,
        "rails": way.rails,
        "protocol": if way.messages { "sendrecv" } else { "rdma" },
        "too_long_for": way.too_long_for,
        "inline": way.inline,
        "parts": way.parts,
        "part_bytes": way.part_bytes,
        "shared_by_rails": way.shared_by,
        "ends_by": way.ends_by,
    })
}

/// The most bytes that a packet carries inline with any setting.
pub(super) const LONGEST_INLINE: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn explanation(settings: &[(&str, &str)]) -> Explanation {
        let setting = |(name, value): &(&str, &str)| {
            serde_json::from_value(json!({
                "name": format!("IRONRAIL_{name}"), "value": value, "source": "default", "alias": null,
                "default": "", "takes": "", "shared": true, "what": "",
            }))
            .unwrap()
        };
        Explanation { settings: settings.iter().map(setting).collect(), ..Explanation::default() }
    }

    fn device(rails: usize) -> Device {
        let rail = json!({
            "interface": "eth0", "address": "", "network": "", "provider": "net", "provider_version": "1",
            "speed_mbps": null, "pci_path": null, "device_memory": false, "registration": "",
            "immediate_bytes": 8, "inject_bytes": 0, "largest_write": "0", "transmit_depth": 1, "in_order": false,
        });
        serde_json::from_value(json!({
            "name": "eth", "because": "", "libfabric": "", "speed_mbps": 0, "gpu_memory": "", "pci_path": null,
            "guid": "", "groups": 8, "comms": 1, "rails": vec![rail; rails],
            "probed": {"immediate_bytes": 8, "true_lengths": false, "self_read": true, "proves_arrival": false,
                "delivery_complete": true, "largest_write": "1073741824"},
        }))
        .unwrap()
    }

    #[test]
    fn a_size_is_inline_whole_or_shared_as_the_plugin_cuts_it() {
        let settings =
            explanation(&[("INLINE_MAX_SIZE", "4K"), ("STRIPE_MIN", "128K"), ("FORCE_FIN", "0")]);
        let of = |rails, size| way(&settings, &device(rails), size).unwrap();
        assert!(of(2, 4096).inline && !of(2, 4097).inline);
        assert_eq!((of(2, 100_000).parts, of(2, 100_000).shared_by), (1, 1));
        let long = of(2, 1 << 20);
        assert_eq!((long.parts, long.part_bytes, long.shared_by), (4, 1 << 18, 2));
        assert_eq!(long.ends_by, Some("an immediate with each part"));
        assert_eq!(of(1, 1 << 20).parts, 1);
        let forced = explanation(&[("STRIPE_MIN", "128K"), ("FORCE_FIN", "1")]);
        let forced = way(&forced, &device(1), 8).unwrap();
        assert!(!forced.inline);
        assert_eq!(forced.ends_by, Some("a FIN frame behind the last part"));
    }

    #[test]
    fn with_sendrecv_a_message_of_any_length_is_one_piece_or_too_long() {
        let settings = explanation(&[("INLINE_MAX_SIZE", "4K"), ("STRIPE_MIN", "128K")]);
        let mut device = Device { protocol: "sendrecv".to_owned(), probed: None, ..device(1) };
        device.rails[0].largest_write = (1 << 30).to_string();
        let of = |size| way(&settings, &device, size).unwrap();
        // A packet has a header, and is at most a quarter of a ring of 16 KiB.
        assert!(of(4048).inline && !of(4049).inline);
        let long = of(1 << 30);
        assert_eq!((long.parts, long.part_bytes, long.too_long_for), (1, 1 << 30, None));
        assert_eq!(long.ends_by, Some("the completion of its receive"));
        assert_eq!(of((1 << 30) + 1).too_long_for, Some(1 << 30));
    }

    #[test]
    fn a_size_is_read_with_its_unit() {
        assert_eq!(parse("8"), Ok(8));
        assert_eq!(parse("128K"), Ok(128 << 10));
        assert_eq!(parse("1GiB"), Ok(1 << 30));
        assert!(parse("12X").is_err() && parse("").is_err() && parse("99999999999G").is_err());
    }
}
