//! Pictures as SVG: lines over the size, both axes logarithmic.

use plotters::prelude::{
    ChartBuilder, Circle, IntoDrawingArea, IntoLogRange, LineSeries, RGBColor, SVGBackend,
};
use plotters::style::{Color, WHITE};

/// A line in a picture: points by size.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
    /// The index of the line's colour. Percentiles of one side share a colour, and differ in `strength`, the opacity.
    pub(super) colour: usize,
    pub(super) strength: f64,
}

/// An SVG of these lines, without a legend: that is beside the picture, where it hides no point. None: there is nothing to draw.
pub(super) fn lines(unit: &str, lines: &[Line]) -> Option<String> {
    let points =
        || lines.iter().flat_map(|line| &line.points).filter(|(x, y)| *x > 0.0 && *y > 0.0);
    let (mut least, mut most) = ((f64::MAX, f64::MAX), (0.0_f64, 0.0_f64));
    for (x, y) in points() {
        least = (least.0.min(*x), least.1.min(*y));
        most = (most.0.max(*x), most.1.max(*y));
    }
    points().next()?;
    let mut text = String::new();
    // Drawing into a string fails only at a point that cannot be drawn; such points are left out.
    draw(&mut text, unit, lines, least, most).ok()?;
    Some(text)
}

fn draw(
    text: &mut String,
    unit: &str,
    lines: &[Line],
    least: (f64, f64),
    most: (f64, f64),
) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let (from, to) = ((least.0 / 1.3, least.1 / 1.5), (most.0 * 1.3, most.1 * 1.5));
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(92)
        .build_cartesian_2d((from.0..to.0).log_scale().base(2.0), (from.1..to.1).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("bytes")
        .y_desc(unit)
        .x_labels(12)
        .label_style(FONT)
        .axis_desc_style(FONT)
        .light_line_style(RGBColor(240, 240, 240))
        .bold_line_style(RGBColor(220, 220, 220))
        .x_label_formatter(&|bytes| size(*bytes))
        .y_label_formatter(&|value| short(*value))
        .draw()?;
    for line in lines {
        let colour = COLOURS[line.colour % COLOURS.len()].mix(line.strength);
        let drawn: Vec<_> =
            line.points.iter().copied().filter(|(x, y)| *x > 0.0 && *y > 0.0).collect();
        chart.draw_series(LineSeries::new(drawn.clone(), colour.stroke_width(2)))?;
        chart.draw_series(drawn.into_iter().map(|point| Circle::new(point, 2, colour.filled())))?;
    }
    area.present()?;
    Ok(())
}

const SIZE: (u32, u32) = (960, 420);
/// The font of the pictures, as large as the page's own text.
const FONT: (&str, u32) = ("sans-serif", 16);
/// Distinguishable with colour blindness (Okabe and Ito).
pub(super) const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// A size in bytes as text, for instance `64K`.
pub(super) fn size(bytes: f64) -> String {
    let units = [(1_073_741_824.0, "G"), (1_048_576.0, "M"), (1024.0, "K")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit * 0.999) {
        Some((unit, name)) => format!("{:.0}{name}", bytes / unit),
        None => format!("{bytes:.0}"),
    }
}

/// Three significant digits, without trailing zeros.
pub(super) fn short(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return "0".to_owned();
    }
    let before = value.abs().log10().floor();
    let behind = (2.0 - before).clamp(0.0, 9.0);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is 0 to 9")]
    let text = format!("{value:.*}", behind as usize);
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_every_size_have_three_digits() {
        for (value, shown) in [
            (0.0, "0"),
            (0.000_052_34, "0.0000523"),
            (0.5, "0.5"),
            (10.0, "10"),
            (12.345, "12.3"),
            (37_982.4, "37982"),
        ] {
            assert_eq!(short(value), shown);
        }
        for (bytes, shown) in [(8.0, "8"), (65_536.0, "64K"), (1_073_741_824.0, "1G")] {
            assert_eq!(size(bytes), shown);
        }
    }

    #[test]
    fn points_without_a_logarithm_are_left_out() {
        let line = |points| Line { name: "a".to_owned(), points, colour: 0, strength: 1.0 };
        assert!(lines("x", &[line(vec![(8.0, 0.0), (0.0, 1.0)])]).is_none());
        assert!(lines("x", &[line(vec![(8.0, 0.0), (16.0, 1.0)])]).is_some());
    }
}
