//! A PCIe link, as in sysfs and as NCCL counts it.

/// The speed of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LaneSpeed(u32);

/// Generations 1 to 6: tenths of GT/s, and NCCL's figure for a lane in Mb/s (NCCL src/graph/topo.cc, kvDictPciGen).
const GENERATIONS: [(u32, u64); 6] =
    [(25, 1_500), (50, 3_000), (80, 6_000), (160, 12_000), (320, 24_000), (640, 48_000)];
/// NCCL's figure for a lane of unknown speed.
const UNKNOWN_LANE_MBPS: u64 = 6_000;
/// The number of lanes that NCCL assumes where sysfs has none.
const UNKNOWN_LANES: u16 = 16;

impl LaneSpeed {
    /// Parses the number before `GT/s`: sysfs has `16.0 GT/s PCIe`, kernels up to 5.6 `16 GT/s`. None for `Unknown`, and for generations
    /// that NCCL does not know.
    pub fn parse(text: &str) -> Option<Self> {
        let number = text.trim().split([' ', 'G']).next()?;
        let (whole, tenth) = number.split_once('.').unwrap_or((number, "0"));
        let tenths =
            whole.parse::<u32>().ok()?.checked_mul(10)?.checked_add(tenth.parse().ok()?)?;
        GENERATIONS.iter().any(|(known, _)| *known == tenths).then_some(Self(tenths))
    }

    /// In the format of the kernel and of NCCL's files.
    pub fn text(self) -> String {
        format!("{}.{} GT/s PCIe", self.0 / 10, self.0 % 10)
    }

    fn mbps(self) -> u64 {
        GENERATIONS
            .iter()
            .find(|(known, _)| *known == self.0)
            .map_or(UNKNOWN_LANE_MBPS, |(_, mbps)| *mbps)
    }
}

/// The maximum of a link, by both of its ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// The speed of a lane.
    pub speed: Option<LaneSpeed>,
    /// The number of lanes.
    pub lanes: Option<u16>,
}

impl Link {
    /// The link of a function as NCCL sees it: the lower speed and width of the function and of the port above. An unknown width counts as
    /// 16 lanes, and if both speeds are unknown, generation 3 is assumed (NCCL src/graph/xml.cc, topo.cc).
    pub(crate) fn as_nccl_sees(self, above: Self) -> Self {
        let speed = [self.speed, above.speed].into_iter().flatten().min();
        let lanes = self.lanes.unwrap_or(0).min(above.lanes.unwrap_or(0));
        Self { speed, lanes: Some(if lanes == 0 { UNKNOWN_LANES } else { lanes }) }
    }

    /// NCCL's figure for a lane, in Mb/s.
    pub(crate) fn lane_mbps(self) -> u64 {
        self.speed.map_or(UNKNOWN_LANE_MBPS, LaneSpeed::mbps)
    }

    /// NCCL's figure for the link, in Mb/s.
    pub(crate) fn mbps(self) -> u64 {
        self.lane_mbps() * u64::from(self.lanes.unwrap_or(UNKNOWN_LANES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(speed: &str, lanes: u16) -> Link {
        Link { speed: LaneSpeed::parse(speed), lanes: Some(lanes).filter(|lanes| *lanes > 0) }
    }

    #[test]
    fn speeds_are_read_in_every_form_that_kernels_have_had() {
        for (text, written) in [
            ("16.0 GT/s PCIe", Some("16.0 GT/s PCIe")),
            ("16 GT/s", Some("16.0 GT/s PCIe")),
            ("2.5GT/s", Some("2.5 GT/s PCIe")),
            ("64.0 GT/s PCIe", Some("64.0 GT/s PCIe")),
            ("Unknown", None),
            ("", None),
            ("7 GT/s", None),
        ] {
            assert_eq!(LaneSpeed::parse(text).map(LaneSpeed::text).as_deref(), written, "{text}");
        }
    }

    #[test]
    fn a_link_has_the_speed_and_width_of_its_weaker_end_and_16_lanes_if_one_is_unknown() {
        let seen = |one: Link, above: Link| one.as_nccl_sees(above).mbps();
        assert_eq!(seen(link("16.0 GT/s", 16), link("32.0 GT/s", 16)), 16 * 12_000);
        assert_eq!(seen(link("16.0 GT/s", 16), link("16.0 GT/s", 8)), 8 * 12_000);
        assert_eq!(seen(link("16.0 GT/s", 8), Link::default()), 16 * 12_000, "as NCCL has it");
        assert_eq!(seen(Link::default(), Link::default()), 16 * 6_000);
    }
}
