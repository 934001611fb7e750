//! A PCIe link, as the kernel tells it and as NCCL counts it.

/// How fast each lane is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LaneSpeed(u32);

/// Generations 1 to 6: tenths of GT/s, and what NCCL counts for a lane in Mb/s (NCCL src/graph/topo.cc, kvDictPciGen).
const GENERATIONS: [(u32, u64); 6] =
    [(25, 1_500), (50, 3_000), (80, 6_000), (160, 12_000), (320, 24_000), (640, 48_000)];
/// What NCCL counts for a lane of unknown speed.
const UNKNOWN_LANE_MBPS: u64 = 6_000;
/// How many lanes NCCL counts where sysfs names none.
const UNKNOWN_LANES: u16 = 16;

impl LaneSpeed {
    /// The number before `GT/s`: sysfs says `16.0 GT/s PCIe`, kernels up to 5.6 `16 GT/s`. None of `Unknown`, and of generations that
    /// NCCL does not know.
    pub fn parse(text: &str) -> Option<Self> {
        let number = text.trim().split([' ', 'G']).next()?;
        let (whole, tenth) = number.split_once('.').unwrap_or((number, "0"));
        let tenths =
            whole.parse::<u32>().ok()?.checked_mul(10)?.checked_add(tenth.parse().ok()?)?;
        GENERATIONS.iter().any(|(known, _)| *known == tenths).then_some(Self(tenths))
    }

    /// As the kernel and NCCL's files write it.
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

/// The most that a link can be, by what both of its ends say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Of each lane.
    pub speed: Option<LaneSpeed>,
    /// How many lanes.
    pub lanes: Option<u16>,
}

impl Link {
    /// What NCCL believes of a function's link: the slower speed and the smaller width of it and of the port above, where a width that one
    /// of them does not tell is 16 lanes, and a speed that neither tells is that of generation 3 (NCCL src/graph/xml.cc, topo.cc).
    pub(crate) fn as_nccl_sees(self, above: Self) -> Self {
        let speed = [self.speed, above.speed].into_iter().flatten().min();
        let lanes = self.lanes.unwrap_or(0).min(above.lanes.unwrap_or(0));
        Self { speed, lanes: Some(if lanes == 0 { UNKNOWN_LANES } else { lanes }) }
    }

    /// What NCCL counts for a lane, in Mb/s.
    pub(crate) fn lane_mbps(self) -> u64 {
        self.speed.map_or(UNKNOWN_LANE_MBPS, LaneSpeed::mbps)
    }

    /// What NCCL counts for the link, in Mb/s.
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
    fn a_link_is_what_its_weaker_end_says_and_sixteen_lanes_where_one_says_nothing() {
        let seen = |one: Link, above: Link| one.as_nccl_sees(above).mbps();
        assert_eq!(seen(link("16.0 GT/s", 16), link("32.0 GT/s", 16)), 16 * 12_000);
        assert_eq!(seen(link("16.0 GT/s", 16), link("16.0 GT/s", 8)), 8 * 12_000);
        assert_eq!(seen(link("16.0 GT/s", 8), Link::default()), 16 * 12_000, "as NCCL has it");
        assert_eq!(seen(Link::default(), Link::default()), 16 * 6_000);
    }
}
