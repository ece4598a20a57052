//! Line plots and bar plots as SVG text.
//!
//! Input: points of series, or bars in groups. Output: one SVG of fixed width. Invariant: the text depends on the input only;
//! coordinates have one digit, so that every machine writes the same; names are escaped.

use std::fmt::Write as _;

/// The kind of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlotAxis {
    /// From 0; the unit.
    Linear(&'static str),
    /// By powers of two; the unit.
    Logarithmic(&'static str),
    /// By powers of two, in bytes.
    Bytes,
}

/// A line.
#[derive(Clone, Debug)]
pub(super) struct PlotSeries {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// Bars with a heading.
#[derive(Clone, Debug)]
pub(super) struct BarGroup {
    pub(super) name: String,
    pub(super) bars: Vec<PlotBar>,
}

/// A bar; one without a value is a label alone.
#[derive(Clone, Debug)]
pub(super) struct PlotBar {
    pub(super) label: String,
    /// The start of the bar; that of the axis if `None`.
    pub(super) low: Option<f64>,
    pub(super) value: Option<f64>,
    /// Text behind the value.
    pub(super) note: String,
}

const WIDTH: f64 = 860.0;
const LINE_PLOT_HEIGHT: f64 = 420.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 44.0;
const LINE_LEFT: f64 = 70.0;
const LINE_RIGHT: f64 = 250.0;
const BAR_LEFT: f64 = 330.0;
const BAR_RIGHT: f64 = 190.0;
const BAR_PITCH: f64 = 20.0;
/// Colours that stay apart for readers who do not see red and green apart, and in grey.
const COLOURS: [&str; 7] = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb"];

/// The range of an axis, and the pixels that it covers.
#[derive(Clone, Copy, Debug)]
struct AxisScale {
    axis: PlotAxis,
    /// The ends of the range: values of a linear axis, logarithms of another.
    ends: [f64; 2],
    pixels: [f64; 2],
}

impl AxisScale {
    fn new(axis: PlotAxis, values: impl Iterator<Item = f64>, pixels: [f64; 2]) -> Self {
        let (low, high) = values
            .filter(|value| value.is_finite())
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        let ends = match axis {
            _ if low > high => [0.0, 1.0],
            PlotAxis::Linear(_) => [0.0, if high > 0.0 { high * 1.05 } else { 1.0 }],
            PlotAxis::Logarithmic(_) | PlotAxis::Bytes => {
                let ends = [low.max(1e-9).log2().floor(), high.max(1e-9).log2().ceil()];
                if ends[0] < ends[1] { ends } else { [ends[0], ends[0] + 1.0] }
            }
        };
        Self { axis, ends, pixels }
    }

    fn is_linear(&self) -> bool {
        matches!(self.axis, PlotAxis::Linear(_))
    }

    /// Returns the pixel of a value.
    fn at(&self, value: f64) -> f64 {
        let value = if self.is_linear() { value } else { value.max(1e-9).log2() };
        let share = ((value - self.ends[0]) / (self.ends[1] - self.ends[0])).clamp(0.0, 1.0);
        self.pixels[0] + share * (self.pixels[1] - self.pixels[0])
    }

    /// Returns the values of the grid: at most eleven.
    fn grid(&self) -> Vec<f64> {
        let span = self.ends[1] - self.ends[0];
        let mut step = if self.is_linear() { 0.001 } else { 1.0 };
        let factors = if self.is_linear() { [2.0, 2.5, 2.0] } else { [2.0; 3] };
        let mut factor = factors.iter().cycle();
        while span / step > 10.0 {
            step *= factor.next().unwrap_or(&2.0);
        }
        let count = (0..=10_u32).map(|nth| self.ends[0] + f64::from(nth) * step);
        let inside = count.take_while(|value| *value <= self.ends[1] + 1e-9);
        inside.map(|value| if self.is_linear() { value } else { value.exp2() }).collect()
    }

    /// Returns a value as text.
    fn text(&self, value: f64) -> String {
        if self.axis != PlotAxis::Bytes {
            let text = if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") };
            return match text.split_once('.') {
                Some((whole, part)) if part.trim_end_matches('0').is_empty() => whole.to_owned(),
                Some(_) => text.trim_end_matches('0').to_owned(),
                None => text,
            };
        }
        let (value, unit) = [(1_048_576.0, " MiB"), (1_024.0, " KiB")]
            .into_iter()
            .find(|(size, _)| value >= *size)
            .map_or((value, ""), |(size, unit)| (value / size, unit));
        if value.fract() == 0.0 { format!("{value:.0}{unit}") } else { format!("{value:.1}{unit}") }
    }

    const fn unit(&self) -> &'static str {
        match self.axis {
            PlotAxis::Linear(unit) | PlotAxis::Logarithmic(unit) => unit,
            PlotAxis::Bytes => "bytes",
        }
    }
}

/// An SVG that is being written. Writing to a string cannot fail.
struct SvgText(String);

impl SvgText {
    fn new(title: &str, height: f64) -> Self {
        let title = escape(title);
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" width=\"{WIDTH:.0}\" \
             height=\"{height:.0}\" font-family=\"sans-serif\" font-size=\"12\" role=\"img\">\n<title>{title}</title>\n"
        );
        let _ = writeln!(text, "<rect width=\"{WIDTH:.0}\" height=\"{height:.0}\" fill=\"white\"/>");
        let mut svg = Self(text);
        svg.text((WIDTH / 2.0, 22.0), "middle", &title);
        svg
    }

    /// Writes text that is escaped.
    fn text(&mut self, (x, y): (f64, f64), anchor: &str, escaped: &str) {
        let _ = writeln!(self.0, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{escaped}</text>");
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64)) {
        let _ = writeln!(
            self.0,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"#dddddd\"/>",
            from.0, from.1, to.0, to.1
        );
    }

    /// Draws the grid of a horizontal axis between two heights.
    fn columns(&mut self, scale: &AxisScale, top: f64, bottom: f64) {
        for value in scale.grid() {
            let x = scale.at(value);
            self.line((x, top), (x, bottom));
            self.text((x, bottom + 16.0), "middle", &scale.text(value));
        }
        let middle = f64::midpoint(scale.pixels[0], scale.pixels[1]);
        self.text((middle, bottom + 34.0), "middle", scale.unit());
    }

    fn end(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }
}

/// Draws a line for each series, with a legend.
pub(super) fn line_plot(title: &str, axes: (PlotAxis, PlotAxis), series: &[PlotSeries]) -> String {
    let bottom = LINE_PLOT_HEIGHT - BOTTOM;
    let points = || series.iter().flat_map(|line| &line.points);
    let x = AxisScale::new(axes.0, points().map(|point| point.0), [LINE_LEFT, WIDTH - LINE_RIGHT]);
    let y = AxisScale::new(axes.1, points().map(|point| point.1), [bottom, TOP]);
    let mut svg = SvgText::new(title, LINE_PLOT_HEIGHT);
    svg.columns(&x, TOP, bottom);
    for value in y.grid() {
        let at = y.at(value);
        svg.line((LINE_LEFT, at), (WIDTH - LINE_RIGHT, at));
        svg.text((LINE_LEFT - 6.0, at + 4.0), "end", &y.text(value));
    }
    svg.text((LINE_LEFT, TOP - 10.0), "end", y.unit());
    for (nth, line) in series.iter().enumerate() {
        let colour = COLOURS[nth % COLOURS.len()];
        let points: Vec<String> =
            line.points.iter().map(|point| format!("{:.1},{:.1}", x.at(point.0), y.at(point.1))).collect();
        let points = points.join(" ");
        let _ = writeln!(
            svg.0,
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
        );
        for point in &line.points {
            let (x, y) = (x.at(point.0), y.at(point.1));
            let _ = writeln!(svg.0, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"{colour}\"/>");
        }
        let at = TOP + 12.0 + 20.0 * f64::from(u32::try_from(nth).unwrap_or(u32::MAX));
        let left = WIDTH - LINE_RIGHT + 14.0;
        let _ = writeln!(
            svg.0,
            "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"14\" height=\"4\" fill=\"{colour}\"/>",
            at - 6.0
        );
        svg.text((left + 20.0, at), "start", &escape(&line.name));
    }
    svg.end()
}

/// Draws a horizontal bar for each row of the groups, with its value at the end.
pub(super) fn bar_plot(title: &str, axis: PlotAxis, groups: &[BarGroup]) -> String {
    let bars = || groups.iter().flat_map(|group| &group.bars);
    let rows = u32::try_from(groups.len() + bars().count()).unwrap_or(u32::MAX);
    let bottom = TOP + BAR_PITCH * f64::from(rows) + 6.0;
    let ends = bars().flat_map(|bar| [bar.low, bar.value]).flatten();
    let scale = AxisScale::new(axis, ends, [BAR_LEFT, WIDTH - BAR_RIGHT]);
    let mut svg = SvgText::new(title, bottom + BOTTOM);
    svg.columns(&scale, TOP, bottom);
    let mut at = TOP;
    for group in groups {
        at += BAR_PITCH;
        let name = escape(&group.name);
        let _ = writeln!(svg.0, "<text x=\"8\" y=\"{:.1}\" font-weight=\"bold\">{name}</text>", at - 4.0);
        for (nth, bar) in group.bars.iter().enumerate() {
            at += BAR_PITCH;
            svg.text((BAR_LEFT - 8.0, at - 4.0), "end", &escape(&bar.label));
            let Some(value) = bar.value else { continue };
            let from = bar.low.map_or(scale.pixels[0], |low| scale.at(low));
            let to = scale.at(value);
            let colour = COLOURS[nth % COLOURS.len()];
            let _ = writeln!(
                svg.0,
                "<rect class=\"bar\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"13\" fill=\"{colour}\"/>",
                at - 14.0,
                (to - from).max(2.0)
            );
            let text = match bar.low {
                Some(low) if scale.text(low) != scale.text(value) => {
                    format!("{} to {}", scale.text(low), scale.text(value))
                }
                _ => scale.text(value),
            };
            svg.text((to + 6.0, at - 4.0), "start", &(text + &escape(&bar.note)));
        }
    }
    svg.end()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_maps_its_ends_to_its_pixels() {
        let linear = AxisScale::new(PlotAxis::Linear("GB/s"), [3.0, 10.0].into_iter(), [100.0, 200.0]);
        assert!((linear.at(0.0) - 100.0).abs() < 1e-9);
        assert!((linear.at(10.5) - 200.0).abs() < 1e-9);
        let bytes = AxisScale::new(PlotAxis::Bytes, [64.0, 1_024.0].into_iter(), [400.0, 0.0]);
        assert!((bytes.at(64.0) - 400.0).abs() < 1e-9);
        assert!((bytes.at(256.0) - 200.0).abs() < 1e-9);
        assert!((bytes.at(1_024.0) - 0.0).abs() < 1e-9);
    }

    #[test]
    fn grid_has_few_values_and_bytes_have_units() {
        let bytes = AxisScale::new(PlotAxis::Bytes, [64.0, 2_097_152.0].into_iter(), [0.0, 1.0]);
        let texts: Vec<String> = bytes.grid().into_iter().map(|value| bytes.text(value)).collect();
        assert_eq!(texts, ["64", "256", "1 KiB", "4 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB"]);
        assert_eq!(bytes.text(14_336.0), "14 KiB");
        assert_eq!(bytes.text(1_536.0), "1.5 KiB");
        let linear = AxisScale::new(PlotAxis::Linear("GB/s"), [97.4].into_iter(), [0.0, 1.0]);
        let texts: Vec<String> = linear.grid().into_iter().map(|value| linear.text(value)).collect();
        assert_eq!(texts.first().map(String::as_str), Some("0"));
        assert!((4..=11).contains(&texts.len()), "{texts:?}");
    }

    #[test]
    fn plot_without_points_is_still_a_plot() {
        for svg in [
            line_plot("a", (PlotAxis::Bytes, PlotAxis::Linear("x")), &[]),
            bar_plot("a", PlotAxis::Bytes, &[]),
        ] {
            assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn bar_is_as_long_as_its_value_and_begins_at_its_low_end() {
        let bar = |low, value| PlotBar { label: "a".to_owned(), low, value, note: " (n)".to_owned() };
        let bars = vec![bar(None, Some(10.0)), bar(Some(5.0), Some(10.0)), bar(None, None)];
        let svg = bar_plot("a", PlotAxis::Linear("x"), &[BarGroup { name: "g".to_owned(), bars }]);
        let drawn: Vec<&str> = svg.lines().filter(|line| line.contains("class=\"bar\"")).collect();
        // 340 pixels are 10.5.
        assert_eq!(drawn.len(), 2);
        assert!(drawn[0].contains("x=\"330.0\"") && drawn[0].contains("width=\"323.8\""), "{}", drawn[0]);
        assert!(drawn[1].contains("x=\"491.9\"") && drawn[1].contains("width=\"161.9\""), "{}", drawn[1]);
        assert!(svg.contains(">5 to 10 (n)<"));
    }
}
