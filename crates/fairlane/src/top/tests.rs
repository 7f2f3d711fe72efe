//! Figures from snapshots, keys, and the drawn screen.

use super::app::{App, SortKey};
use super::cells;
use super::draw::draw;
use super::history::History;
use fairlane_engine::reading::{Reading, TenantPart};
use fairlane_engine::snapshot::{LinkState, PortState, Snapshot, State, TenantState, VifState};
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::collections::BTreeMap;

const SECOND: u64 = 1_000_000_000;

fn port(sent_bytes: u64, received_bytes: u64) -> PortState {
    let (sent_frames, received_frames, drops) = (sent_bytes / 1000, received_bytes / 1000, BTreeMap::new());
    PortState { state: State::Up, sent_frames, sent_bytes, received_frames, received_bytes, drops }
}

fn vif(name: &str, weight: u32, share: f64, sent_bytes: u64) -> VifState {
    VifState {
        name: name.to_owned(),
        link: "lan".to_owned(),
        weight,
        burst: 65536,
        share,
        port: port(sent_bytes, 0),
        ..VifState::default()
    }
}

/// A link of 100 Mbit/s whose uplink carried everything that its vifs sent.
fn snapshot(time: u64, vifs: Vec<VifState>) -> Snapshot {
    let link = LinkState {
        name: "lan".to_owned(),
        scheduler: "fair".to_owned(),
        by_weight: true,
        rate: Some(100_000_000),
        uplink: Some(port(0, vifs.iter().map(|vif| vif.port.sent_bytes).sum())),
        ..LinkState::default()
    };
    Snapshot { time, links: vec![link], vifs, ..Snapshot::default() }
}

/// After this many seconds: `web` with three quarters of the link, `batch` with one quarter, `idle` without a guest.
fn busy(seconds: u64) -> Snapshot {
    let mut batch = vif("batch", 10, 0.25, seconds * 3_125_000);
    batch.port.drops.insert("spoofed_mac".to_owned(), seconds * 7);
    batch.waiting.buckets[17] = seconds * 100;
    let mut idle = vif("idle", 100, 0.0, 0);
    idle.port.state = State::Waiting;
    snapshot(seconds * SECOND, vec![vif("web", 30, 0.75, seconds * 9_375_000), batch, idle])
}

fn screen(app: &mut App, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, app)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |row| (0..width).map(|column| buffer[(column, row)].symbol()).collect::<String>();
    (0..height).map(|row| line(row).trim_end().to_owned() + "\n").collect()
}

fn watching(seconds: u64) -> App {
    let mut app = App::new();
    (1..=seconds).for_each(|second| app.handle_snapshot(Ok(busy(second))));
    app
}

fn press(app: &mut App, code: KeyCode) -> bool {
    app.handle_key(KeyEvent::new(code, KeyModifiers::NONE))
}

#[test]
fn two_snapshots_make_rates_shares_and_waits() {
    let reading = Reading::between(&busy(1), &busy(3)).unwrap();
    let [web, batch, idle] = &reading.vifs[..] else { panic!("{reading:?}") };
    assert_eq!((web.sent_rate, batch.sent_rate, idle.sent_rate), (75e6, 25e6, 0.0));
    assert_eq!((web.due, batch.due, idle.due), (Some(0.75), Some(0.25), None));
    assert_eq!((web.drop_rate, batch.drop_rate), (0.0, 7.0));
    assert_eq!((web.wait_p50, batch.wait_p99), (None, Some(1 << 17)));
    assert_eq!((reading.links[0].out_rate, reading.links[0].in_rate), (100e6, 0.0));
}

#[test]
fn who_is_not_served_at_all_has_its_due() {
    let starved = |seconds| {
        let mut seen = busy(seconds);
        seen.vifs[2].unserved = seconds * SECOND;
        seen
    };
    let reading = Reading::between(&starved(1), &starved(2)).unwrap();
    assert_eq!(reading.vifs[2].due, Some(100.0 / 140.0));
    assert_eq!((reading.vifs[2].waited, reading.vifs[2].wait_p50), (SECOND, None));
    // And is seen: in the table, in the line about it where the table has no room for the state, and first among those that wait.
    assert!(
        cells::plain(&reading).contains("idle   lan   waiting, not served for 2.0s  "),
        "{}",
        cells::plain(&reading)
    );
    let mut app = App::new();
    (1..=2).for_each(|second| app.handle_snapshot(Ok(starved(second))));
    app.order = SortKey::Waits;
    let shown = screen(&mut app, 60, 10);
    assert!(shown.contains("\nidle: weight 100, not served for 2.0s\n"), "{shown}");
}

#[test]
fn if_the_scheduler_ignores_weights_due_shares_are_equal() {
    let unweighted = |seconds| {
        let mut seen = busy(seconds);
        seen.links[0].by_weight = false;
        seen
    };
    let reading = Reading::between(&unweighted(1), &unweighted(2)).unwrap();
    assert_eq!((reading.vifs[0].due, reading.vifs[1].due), (Some(0.5), Some(0.5)));
}

#[test]
fn without_an_uplink_the_links_traffic_is_that_of_its_vifs() {
    let alone = |seconds| {
        let mut seen = busy(seconds);
        seen.links[0].uplink = None;
        seen
    };
    assert_eq!(Reading::between(&alone(1), &alone(2)).unwrap().links[0].out_rate, 100e6);
}

#[test]
fn a_vif_that_is_new_or_was_reset_has_sent_nothing_yet() {
    let later = busy(2);
    let without = snapshot(SECOND, Vec::new());
    assert_eq!(Reading::between(&without, &later).unwrap().vifs[0].sent_rate, 0.0);
    let before = snapshot(SECOND, vec![vif("web", 30, 1.0, u64::MAX)]);
    assert_eq!(Reading::between(&before, &later).unwrap().vifs[0].sent_rate, 0.0);
}

#[test]
fn a_history_has_the_means_of_the_last_minute_in_order() {
    let mut history = History::default();
    for second in 1..=90 {
        let earlier = snapshot((second - 1) * SECOND, vec![vif("web", 1, 1.0, 0)]);
        let later = snapshot(second * SECOND, vec![vif("web", 1, 1.0, second * 125)]);
        history.add((second - 1) * SECOND, &Reading::between(&earlier, &later).unwrap());
    }
    let seconds: Vec<f64> = history.means("web", 60).into_iter().flatten().collect();
    assert_eq!(seconds, (31..=90).map(|second| f64::from(second) * 1000.0).collect::<Vec<_>>());
    assert_eq!(history.means("web", 2), [Some(45_500.0), Some(75_500.0)]);
    assert_eq!(history.means("gone", 2), [None, None]);
}

#[test]
fn the_history_of_a_new_backend_begins_empty() {
    let app = watching(3);
    let parts = app.history.means("web", 60);
    assert_eq!(parts[..58], [None; 58]);
    assert_eq!(parts[58..], [Some(75e6); 2]);
}

#[test]
fn draws_links_vifs_and_sparklines() {
    let expected = "\
fairlane: 1 link, 3 vifs, up 0:01:40
link  scheduler       rate          out    used      in  uplink
lan   fair       100Mbit/s  100.0Mbit/s  100.0%  0bit/s  up

vif   link state           sent    received share   due drops/s   p50 <   p99 < last min
web   lan  up        75.0Mbit/s      0bit/s 0.750 0.750       0       -       - ▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆
batch lan  up        25.0Mbit/s      0bit/s 0.250 0.250       7 131.1us 131.1us ▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂
idle  lan  waiting       0bit/s      0bit/s 0.000     -       0       -       -
web: weight 30
q quit  s sort (by policy)  p pause  arrows select
";
    assert_eq!(screen(&mut watching(100), 120, 10), expected);
}

#[test]
fn a_narrow_screen_leaves_out_some_columns() {
    let expected = "\
fairlane: 1 link, 3 vifs, up 0:01:40
link  scheduler       rate          out    used      in  uplink
lan   fair       100Mbit/s  100.0Mbit/s  100.0%  0bit/s  up

vif   state           sent    received share   due drops/s   p99 < last min
web   up        75.0Mbit/s      0bit/s 0.750 0.750       0       - ▆▆▆▆▆▆▆▆▆▆
batch up        25.0Mbit/s      0bit/s 0.250 0.250       7 131.1us ▂▂▂▂▂▂▂▂▂▂
idle  waiting       0bit/s      0bit/s 0.000     -       0       -
web: weight 30
q quit  s sort (by policy)  p pause  arrows select
";
    assert_eq!(screen(&mut watching(100), 80, 10), expected);
}

#[test]
fn a_disabled_vif_shows_the_reason() {
    let mut app = App::new();
    for second in 1..=2 {
        let mut seen = busy(second);
        seen.vifs[1].port.state = State::Disabled { reason: "a descriptor points outside its memory".to_owned() };
        app.handle_snapshot(Ok(seen));
    }
    assert!(screen(&mut app, 100, 10).contains("\nbatch lan  disabled"));
    press(&mut app, KeyCode::Down);
    let shown = screen(&mut app, 100, 10);
    assert!(shown.contains("\nbatch is disabled: a descriptor points outside its memory\n"), "{shown}");
}

#[test]
fn the_line_about_a_vif_says_what_waits_for_its_guest() {
    let mut app = App::new();
    for second in 1..=2 {
        let mut seen = busy(second);
        let receive = &mut seen.vifs[1].receive;
        (receive.queued_frames, receive.queued_bytes, receive.marked_frames) = (3, 4096, 5);
        receive.waiting.buckets[21] = second * 100;
        app.handle_snapshot(Ok(seen));
    }
    press(&mut app, KeyCode::Down);
    let shown = screen(&mut app, 150, 10);
    let expected = "\nbatch: weight 10, 3 frames (4.0KiB) wait for its guest, frames for its guest waited < 2.1ms (p99), 5 marked (ECN), \
                    14 spoofed_mac\n";
    assert!(shown.contains(expected), "{shown}");
}

#[test]
fn waits_for_a_backend_that_stopped() {
    let mut app = watching(5);
    app.handle_snapshot(Err("no backend answers at /run/x".to_owned()));
    let shown = screen(&mut app, 60, 4);
    assert!(shown.starts_with("waiting for a backend: no backend answers at /run/x\n"), "{shown}");
    assert!(shown.contains("q quit"), "{shown}");
    app.handle_snapshot(Ok(busy(1)));
    assert!(screen(&mut app, 60, 4).starts_with("waiting for the first figures\n"));
    app.handle_snapshot(Ok(busy(2)));
    assert!(screen(&mut app, 60, 10).contains("75.0Mbit/s"));
}

#[test]
fn a_restarted_backend_causes_no_negative_rate() {
    let mut app = watching(5);
    app.handle_snapshot(Ok(busy(1)));
    assert_eq!(app.reading, None);
    app.handle_snapshot(Ok(busy(2)));
    assert_eq!(app.reading.as_ref().unwrap().vifs[0].sent_rate, 75e6);
    assert_eq!(app.history.means("web", 60).iter().flatten().count(), 1);
}

#[test]
fn keys_sort_pause_and_quit() {
    let mut app = watching(2);
    let names = |app: &App| app.vifs().iter().map(|vif| vif.seen.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&app), ["web", "batch", "idle"]);
    for (order, first) in
        [(SortKey::Sent, "web"), (SortKey::Received, "web"), (SortKey::Drops, "batch"), (SortKey::Waits, "batch")]
    {
        assert!(!press(&mut app, KeyCode::Char('s')));
        assert_eq!((app.order, names(&app)[0].as_str()), (order, first));
    }
    press(&mut app, KeyCode::Char('p'));
    app.handle_snapshot(Ok(busy(7)));
    assert_eq!(app.reading.as_ref().unwrap().time, 2 * SECOND);
    press(&mut app, KeyCode::Char('p'));
    app.handle_snapshot(Ok(busy(8)));
    assert_eq!(app.reading.as_ref().unwrap().time, 8 * SECOND);
    assert!(press(&mut app, KeyCode::Char('q')));
    assert!(app.handle_key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
}

#[test]
fn the_selection_stays_within_the_table() {
    let mut app = watching(2);
    for code in [KeyCode::Up, KeyCode::End, KeyCode::Down, KeyCode::PageDown, KeyCode::Down] {
        press(&mut app, code);
        screen(&mut app, 100, 10);
    }
    assert_eq!(app.table.selected(), Some(2));
    assert!(screen(&mut app, 100, 10).contains("\nidle: weight 100\n"));
}

#[test]
fn plain_text_has_the_same_figures() {
    let text = cells::plain(&Reading::between(&busy(1), &busy(2)).unwrap());
    let expected = "\
link  scheduler       rate          out    used      in  uplink
lan   fair       100Mbit/s  100.0Mbit/s  100.0%  0bit/s  up

vif    link  state          sent  received  share    due  drops/s    p50 <    p99 <
web    lan   up       75.0Mbit/s    0bit/s  0.750  0.750        0        -        -
batch  lan   up       25.0Mbit/s    0bit/s  0.250  0.250        7  131.1us  131.1us
idle   lan   waiting      0bit/s    0bit/s  0.000      -        0        -        -
";
    assert_eq!(text, expected);
}

proptest! {
    #[test]
    fn draws_on_any_screen(
        (width, height) in (1u16..200, 1u16..60),
        vifs in 0usize..40,
        tenants in 0usize..40,
        selected in 0usize..50,
    ) {
        let tenant = |i| TenantState { name: format!("t{i}"), weight: 1, ..TenantState::default() };
        let seen = |time| {
            let vifs = (0..vifs).map(|i| vif(&format!("v{i}"), 1, 0.5, time * 1000)).collect();
            Snapshot { tenants: (0..tenants).map(tenant).collect(), ..snapshot(time * SECOND, vifs) }
        };
        let mut app = App::new();
        app.handle_snapshot(Ok(seen(1)));
        app.handle_snapshot(Ok(seen(2)));
        app.table.select(Some(selected));
        screen(&mut app, width, height);
    }
}

/// Tenant `red` has twice the weight of the vif without a tenant; its two vifs share by 1 to 3. Tenant `blue` has no vifs.
fn tenants(seconds: u64) -> Snapshot {
    let of_red = |name: &str, weight, share| VifState {
        tenant: Some("red".to_owned()),
        ..vif(name, weight, share, seconds * 3_125_000)
    };
    let tenant = |name: &str, weight| TenantState { name: name.to_owned(), weight, ..TenantState::default() };
    let vifs = vec![of_red("a", 10, 0.25), of_red("b", 30, 0.25), vif("c", 100, 0.5, seconds * 6_250_000)];
    Snapshot { tenants: vec![tenant("red", 200), tenant("blue", 100)], ..snapshot(seconds * SECOND, vifs) }
}

#[test]
fn tenants_have_their_shares_of_each_link() {
    let mut app = App::new();
    (1..=2).for_each(|second| app.handle_snapshot(Ok(tenants(second))));
    let expected = "\
fairlane: 1 link, 3 vifs, up 0:00:02
link  scheduler       rate          out    used      in  uplink
lan   fair       100Mbit/s  100.0Mbit/s  100.0%  0bit/s  up

tenant  weight        sent  received  link  share    due
red        200  50.0Mbit/s    0bit/s  lan   0.500  0.667
blue       100      0bit/s    0bit/s  -         -      -

vif  link state ";
    let shown = screen(&mut app, 120, 20);
    assert!(shown.starts_with(expected), "{shown}");
    let plain = cells::plain(app.reading.as_ref().unwrap());
    assert!(plain.contains("\nred        200  50.0Mbit/s    0bit/s  lan   0.500  0.667\n"), "{plain}");
    // A second link has a row of its own.
    let reading = app.reading.as_mut().unwrap();
    let far = TenantPart { link: "far".to_owned(), share: 1.0, due: 1.0 };
    reading.tenants[0].links.push(far);
    let plain = cells::plain(reading);
    assert!(plain.contains(&format!("\n{:38}far   1.000  1.000\nblue ", "")), "{plain}");
}

#[test]
fn due_shares_follow_tenants() {
    let reading = Reading::between(&tenants(1), &tenants(2)).unwrap();
    let due: Vec<f64> = reading.vifs.iter().map(|vif| vif.due.unwrap()).collect();
    let expected = [1.0 / 6.0, 0.5, 1.0 / 3.0];
    assert!(due.iter().zip(expected).all(|(due, expected)| (due - expected).abs() < 1e-9), "{due:?}");
}
