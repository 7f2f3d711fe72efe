//! An invented result for tests: four acts on a 100 Mbit/s link, with deterministic noise.

use fairlane_report::{About, At, Axis, Claim, Figure, ResultFile, Series};

/// Adds the guests' throughput in one act: for each guest a measured and an expected series.
fn act(result: &mut ResultFile, act: &str, guests: &[(&str, &dyn Fn(f64) -> f64)], seconds: u32) -> Vec<String> {
    let mut names = Vec::new();
    for (index, (guest, share)) in guests.iter().enumerate() {
        let name = format!("{act}/{guest}");
        let times = || (1..=4 * seconds).map(|quarter| f64::from(quarter) / 4.0);
        let uneven = |t: f64| 0.45 * ((t * 7.3 + index as f64 * 2.1).sin() + (t * 17.9).cos());
        result.series(
            Series::new(&name, "Mbit/s", Axis::time()).group(guest).points(times().map(|t| [t, share(t) + uneven(t)])),
        );
        let expected = format!("{name} expected");
        result.series(
            Series::new(&expected, "Mbit/s", Axis::time())
                .group(guest)
                .expected()
                .points(times().map(|t| [t, share(t)])),
        );
        names.extend([name, expected]);
    }
    names
}

fn claim(about: About, source: &str, text: &str, expected: &str, measured: &str, holds: bool, figure: &str) -> Claim {
    let own = str::to_owned;
    Claim {
        about,
        source: own(source),
        text: own(text),
        expected: own(expected),
        measured: own(measured),
        ours: None,
        verdict: holds.into(),
        figure: Some(own(figure)),
    }
}

/// The weights of the third act at a time: from 30:1 to 1:30, one step per second.
fn weights(t: f64) -> (f64, f64) {
    const STEPS: [(f64, f64); 10] = [
        (30.0, 1.0),
        (16.0, 1.0),
        (8.0, 1.0),
        (4.0, 1.0),
        (2.0, 1.0),
        (1.0, 2.0),
        (1.0, 4.0),
        (1.0, 8.0),
        (1.0, 16.0),
        (1.0, 30.0),
    ];
    STEPS[((t - 0.01) as usize).min(9)]
}

pub(crate) fn demo() -> ResultFile {
    let mut result = ResultFile::new("demo");
    result.setting("link", "100 Mbit/s").setting("guests", "User-Mode Linux").setting("seconds an act", 10);
    result.setting("policy", serde_json::json!({"vif.a": {"weight": 1}, "vif.b": {"weight": 1}}));
    result.host.versions.insert("linux (guest)".into(), "6.12.48".into());

    let titles = [
        "1. Before: round robin and a queue that drops",
        "2. Fair: equal weights",
        "3. Weights from 30:1 to 1:30",
        "4. A guest with a minimum rate",
    ];
    let names = act(&mut result, "before", &[("guest a", &|_| 25.0), ("guest b", &|_| 75.0)], 10);
    result.figure(Figure::lines(titles[0]).y("throughput").series(names.iter().filter(|name| !name.ends_with("expected")))
        .caption("Guest a offers the link's rate, guest b three times as much. The queue behind the backend drops what does not fit, so whoever offers more gets more.")
        .mark(At::Y(50.0), "fair share"));
    let names = act(&mut result, "fair", &[("guest a", &|_| 50.0), ("guest b", &|_| 50.0)], 10);
    result.figure(Figure::lines(titles[1]).y("throughput").series(names)
        .caption("The same flood through Fairlane: packets wait in the guests' rings, and the scheduler takes from each in turn by bytes."));
    let a = |t: f64| {
        let (a, b) = weights(t);
        100.0 * a / (a + b)
    };
    let b = |t: f64| {
        let (a, b) = weights(t);
        100.0 * b / (a + b)
    };
    let names = act(&mut result, "wrr", &[("guest a", &a), ("guest b", &b)], 10);
    let mut figure = Figure::lines(titles[2])
        .y("throughput")
        .series(names)
        .caption("The weights change every second while both guests flood the link.");
    for second in 0..10 {
        let (a, b) = weights(f64::from(second) + 0.5);
        figure = figure.mark(At::X(f64::from(second) + 0.125), &format!("{a}:{b}"));
    }
    result.figure(figure);
    let names = act(&mut result, "min", &[("guest a", &|_| 20.0), ("guest b", &|_| 40.0), ("guest c", &|_| 40.0)], 10);
    result.figure(
        Figure::lines(titles[3])
            .y("throughput")
            .series(names)
            .caption("Guest a is promised 20 Mbit/s; b and c flood with many times its weight.")
            .mark(At::Y(20.0), "min_rate"),
    );
    let who = ["guest a", "guest b"];
    for (act, share) in [("before", [25.0, 75.0]), ("fair", [50.0, 50.0])] {
        let points = (0..2)
            .flat_map(|guest| (0..10).map(move |second| [guest as f64, share[guest] + f64::from(second % 4) - 1.5]));
        result.series(
            Series::new(&format!("{act} share"), "%", Axis::new("guest", ""))
                .group(act)
                .points(points.collect::<Vec<_>>()),
        );
    }
    result.series(
        Series::new("what the weight says", "%", Axis::new("guest", "")).expected().points([[0.0, 50.0], [1.0, 50.0]]),
    );
    result.figure(
        Figure::bars("Share against weight")
            .y("share of the link")
            .categories(who)
            .series(["before share", "fair share", "what the weight says"])
            .caption("Median of ten seconds, with its 95% interval."),
    );
    let wait = |scale: f64| (1..400).map(move |i| [f64::from(i), scale * -(1.0 - f64::from(i) / 400.0f64).ln()]);
    result.series(Series::new("fair wait", "µs", Axis::new("sample", "")).group("fair").points(wait(40.0)));
    result.series(Series::new("before wait", "µs", Axis::new("sample", "")).group("before").points(wait(95.0)));
    result.figure(Figure::cdf("Waiting time").x("time from ring to wire").series(["fair wait", "before wait"]));

    for name in ["fair/guest a", "fair/guest b", "min/guest a"] {
        let values = result.find(name).expect("made above").values();
        result.metric(&name.replace(['/', ' '], "_"), &values, "Mbit/s");
    }
    result.value("frames_dropped", 0.0, "").value("frames_forwarded", 1_284_233.0, "");
    let ours = About::Fairlane;
    result.claim(claim(
        About::Source,
        "Adamczyk and Chydzinski 2011, figure 7",
        "Round robin gives the guest that offers three times as much three times as much",
        "25 and 75 Mbit/s",
        "25.0 and 75.0 Mbit/s",
        true,
        titles[0],
    ));
    result.claim(claim(
        ours,
        "README",
        "Equal weights get equal shares in each second",
        "within 0.01 of one half",
        "0.004",
        true,
        titles[1],
    ));
    result.claim(claim(
        ours,
        "README",
        "Shares follow the weights from the first whole second after a change",
        "within 0.01",
        "0.007",
        true,
        titles[2],
    ));
    result.claim(claim(
        About::Source,
        "Adamczyk and Chydzinski 2011, figure 9",
        "Shares follow weights within 5% at 30:1",
        "within 5%",
        "6.1%",
        false,
        titles[2],
    ));
    result.claim(claim(
        ours,
        "README",
        "A guest with min_rate gets it whatever the others send",
        "20 Mbit/s within 2%",
        "19.9 Mbit/s",
        true,
        titles[3],
    ));
    result.claim(claim(
        ours,
        "README",
        "Nothing is dropped between ring and wire",
        "0 frames",
        "0 frames",
        true,
        titles[3],
    ));
    result
}
