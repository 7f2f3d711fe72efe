//! Any data give a well-formed figure with everything inside its frame.
#![forbid(unsafe_code)]

mod sample;

use fairlane_report::plot::{Size, standalone};
use fairlane_report::{At, Axis, Figure, ResultFile, Series};
use proptest::prelude::*;
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

/// The elements of a figure.
#[derive(Default)]
struct Drawn {
    elements: Vec<Element>,
}

struct Element {
    name: String,
    attributes: Vec<(String, String)>,
    /// Whether it is in the group of data.
    data: bool,
}

impl Element {
    fn get(&self, key: &str) -> &str {
        self.attributes.iter().find(|(name, _)| name == key).map_or("", |(_, value)| value)
    }

    fn number(&self, key: &str) -> f64 {
        self.get(key).parse().unwrap_or_else(|_| panic!("{key} of {} is `{}`", self.name, self.get(key)))
    }

    /// The absolute coordinates of a path, a rectangle, a line or a text.
    fn places(&self) -> Vec<(f64, f64)> {
        match self.name.as_str() {
            "rect" => {
                let (x, y) = (self.number("x"), self.number("y"));
                vec![(x, y), (x + self.number("width"), y + self.number("height"))]
            }
            "line" => vec![(self.number("x1"), self.number("y1")), (self.number("x2"), self.number("y2"))],
            "text" => vec![(self.number("x"), self.number("y"))],
            "path" => absolute(self.get("d")),
            _ => Vec::new(),
        }
    }
}

/// The end points of a path's upper-case (absolute) commands.
fn absolute(d: &str) -> Vec<(f64, f64)> {
    let (mut x, mut y) = (0.0, 0.0);
    let mut places = Vec::new();
    let starts: Vec<usize> = d.char_indices().filter(|(_, c)| c.is_ascii_alphabetic()).map(|(at, _)| at).collect();
    for (index, &at) in starts.iter().enumerate() {
        let end = starts.get(index + 1).copied().unwrap_or(d.len());
        let numbers: Vec<f64> = d[at + 1..end].split_whitespace().map(|n| n.parse().expect("a number")).collect();
        match d.as_bytes()[at] {
            b'M' | b'L' => (x, y) = (numbers[0], numbers[1]),
            b'H' => x = numbers[0],
            b'V' => y = numbers[0],
            _ => continue,
        }
        places.push((x, y));
    }
    places
}

/// Parses a figure; panics if it is not well-formed.
fn parse(svg: &str) -> Drawn {
    let stray = |c: char| c.is_control() && c != '\n';
    assert!(!svg.contains(stray), "a character that XML does not allow");
    let mut reader = Reader::from_str(svg);
    reader.config_mut().check_end_names = true;
    let (mut drawn, mut depth, mut data) = (Drawn::default(), 0, None);
    loop {
        match reader.read_event().expect("well-formed") {
            Event::Start(start) => {
                let element = element(&start, data.is_some());
                if element.get("class") == "data" {
                    data = Some(depth);
                }
                depth += 1;
                drawn.elements.push(element);
            }
            Event::End(_) => {
                depth -= 1;
                if data == Some(depth) {
                    data = None;
                }
            }
            Event::Eof => break,
            _ => {}
        }
    }
    assert_eq!(depth, 0);
    drawn
}

fn element(start: &BytesStart, data: bool) -> Element {
    let attributes = start.attributes().map(|attribute| {
        let attribute = attribute.expect("a valid, unique attribute");
        (attribute.key.as_ref().to_owned(), attribute.value.to_string())
    });
    Element { name: start.name().as_ref().to_owned(), attributes: attributes.collect(), data }
}

/// Checks that data are within the grid, and everything within the frame.
fn check(svg: &str) -> Drawn {
    let drawn = parse(svg);
    let frame: Vec<f64> = drawn.elements[0].get("viewBox").split(' ').map(|n| n.parse().unwrap()).collect();
    let grid: Vec<_> = drawn.elements.iter().filter(|e| e.get("class") == "grid").flat_map(Element::places).collect();
    let least = |of: fn(&(f64, f64)) -> f64| grid.iter().map(of).fold(f64::INFINITY, f64::min);
    let most = |of: fn(&(f64, f64)) -> f64| grid.iter().map(of).fold(f64::NEG_INFINITY, f64::max);
    let (left, right, top, bottom) = (least(|p| p.0), most(|p| p.0), least(|p| p.1), most(|p| p.1));
    assert!(left < right && top < bottom, "the area is empty");
    for element in &drawn.elements {
        for (x, y) in element.places() {
            assert!((-0.2..=frame[2] + 0.2).contains(&x) && (-0.2..=frame[3] + 0.2).contains(&y), "{x} {y} is outside");
            if element.data && element.name != "text" {
                let inside = (left - 0.2..=right + 0.2).contains(&x) && (top - 0.2..=bottom + 0.2).contains(&y);
                assert!(inside, "{} at {x} {y}: area {left} {top} to {right} {bottom}\n{svg}", element.name);
            }
        }
    }
    drawn
}

#[test]
fn all_series_of_the_sample_are_drawn() {
    let result = sample::demo();
    for figure in &result.figures {
        for size in [Size::Wide, Size::Narrow] {
            let drawn = check(&standalone(&result, figure, size));
            let lines =
                drawn.elements.iter().filter(|e| e.data && e.name == "path" && e.get("class") == "line").count();
            let bars = drawn.elements.iter().filter(|e| e.data && e.name == "rect").count();
            let expected = if figure.title == "Share against weight" { (2, 4) } else { (figure.series.len(), 0) };
            assert_eq!((lines, bars), expected, "{}", figure.title);
        }
    }
}

#[test]
fn a_gap_in_the_samples_interrupts_the_line() {
    let mut result = ResultFile::new("gap");
    let values = [1.0, 2.0, f64::NAN, 3.0, f64::INFINITY, 4.0, 5.0];
    let points = values.iter().enumerate().map(|(x, y)| [x as f64, *y]);
    result.series(Series::new("a", "", Axis::time()).points(points));
    let svg = standalone(&result, &Figure::lines("gap").series(["a"]), Size::Wide);
    let drawn = check(&svg);
    let line = drawn.elements.iter().find(|e| e.data && e.get("class") == "line").unwrap();
    assert_eq!(line.get("d").matches('M').count(), 3);
    assert_eq!(drawn.elements.iter().filter(|e| e.data && e.get("class") == "dot").count(), 5);
}

#[test]
fn a_figure_without_data_has_a_note() {
    let mut result = ResultFile::new("empty");
    result.series(Series::new("none", "s", Axis::time()));
    result.series(Series::new("unmeasured", "s", Axis::time()).point(1.0, f64::NAN));
    for kind in [Figure::lines, Figure::bars, Figure::cdf, Figure::points, Figure::heat] {
        for names in [&[][..], &["none"], &["none", "unmeasured"]] {
            let svg = standalone(&result, &kind("empty").series(names.iter().copied()), Size::Narrow);
            check(&svg);
            assert!(svg.contains("nothing was measured"));
        }
    }
}

#[test]
fn cells_have_the_mean_of_their_samples() {
    let mut result = ResultFile::new("heat");
    let cells = |row: &str, points: &[[f64; 2]]| Series::new(row, "", Axis::time()).points(points.iter().copied());
    result.series(cells("low", &[[0.0, 1.0], [0.0, 3.0], [1.0, f64::NAN]]));
    result.series(cells("high", &[[0.0, 10.0], [1.0, 6.0]]));
    let svg =
        standalone(&result, &Figure::heat("heat").series(["low", "high"]).categories(["left", "right"]), Size::Wide);
    let drawn = check(&svg);
    let opacities: Vec<&str> = drawn.elements.iter().filter(|e| e.name == "rect").map(|e| e.get("opacity")).collect();
    // 2, which is the least; nothing; 10, which is the most; and 6.
    assert_eq!(opacities, ["0.080", "1.000", "0.540"]);
    assert!(svg.contains("2 (faint) to 10 (full)") && svg.contains("left") && svg.contains("right"), "{svg}");
}

#[test]
fn many_samples_make_a_short_path() {
    let mut result = ResultFile::new("long");
    let points = (0..200_000).map(|i| [f64::from(i), f64::from(i * 7919 % 1000)]);
    result.series(Series::new("a", "", Axis::time()).points(points));
    for kind in [Figure::lines, Figure::cdf, Figure::points] {
        let svg = standalone(&result, &kind("long").series(["a"]), Size::Wide);
        check(&svg);
        assert!(svg.len() < 100_000, "{} bytes", svg.len());
    }
}

fn value() -> impl Strategy<Value = f64> {
    prop_oneof![4 => -10.0..100.0, 1 => any::<f64>(), 1 => Just(f64::NAN), 1 => Just(f64::MAX), 1 => Just(f64::MIN)]
}

fn x() -> impl Strategy<Value = f64> {
    prop_oneof![4 => 0.0..10.0, 4 => (0..4u8).prop_map(f64::from), 1 => any::<f64>().prop_filter("finite", |x| x.is_finite())]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn any_data_are_drawn_inside_the_frame(
        series in prop::collection::vec((".{0,40}", prop::collection::vec((x(), value()), 0..12), any::<bool>()), 0..12),
        marks in prop::collection::vec((any::<bool>(), -20.0..200.0, ".{0,20}"), 0..5),
        kind in 0..5usize,
        wide: bool,
        title in ".*",
    ) {
        let mut result = ResultFile::new("any");
        let names: Vec<String> = (0..series.len()).map(|index| index.to_string()).collect();
        for (name, (group, points, expected)) in names.iter().zip(series) {
            let series = Series::new(name, "µs", Axis::time()).group(&group).points(points.into_iter().map(|(x, y)| [x, y]));
            result.series(if expected { series.expected() } else { series });
        }
        let kinds = [Figure::lines, Figure::bars, Figure::cdf, Figure::points, Figure::heat];
        let mut figure = kinds[kind](&title).caption(&title).y(&title).series(names);
        for (upright, at, text) in marks {
            figure = figure.mark(if upright { At::X(at) } else { At::Y(at) }, &text);
        }
        check(&standalone(&result, &figure, if wide { Size::Wide } else { Size::Narrow }));
    }
}
