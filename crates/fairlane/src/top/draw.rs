//! The screen: links and tenants above, vifs below, a line about the selected vif, the keys.

use super::app::App;
use super::cells::{self, LINK_HEAD, LINK_RIGHT, TENANT_HEAD, TENANT_RIGHT, VIF_HEAD, VIF_RIGHT};
use crate::figures::{self, count};
use fairlane_engine::reading::VifReading;
use fairlane_engine::snapshot::State;
use fairlane_policy::units::format_rate;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table, Wrap};
use std::collections::HashMap;

/// How far a share may be from the due share and still count as equal.
const SAME_SHARE: f64 = 0.01;

/// Widths of a sparkline, each with a whole number of seconds per column; the widest that fits is used.
const SPARKLINES: [u16; 5] = [60, 30, 20, 15, 10];

/// Minimum widths of the vifs' columns, so that they do not move with every figure.
const WIDTHS: [u16; 10] = [4, 4, 8, 11, 11, 5, 5, 7, 7, 7];

/// The columns that a narrow screen leaves out, in this order: link, p50, state, received.
const OPTIONAL: [usize; 4] = [1, 8, 2, 4];

const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws the screen.
pub(super) fn draw(frame: &mut Frame, app: &mut App) {
    let Some(reading) = &app.reading else {
        let [body, keys] = Layout::vertical([Constraint::Fill(1), Constraint::Length(1)]).areas(frame.area());
        frame.render_widget(Paragraph::new(app.notice.as_str()).wrap(Wrap { trim: true }), body);
        frame.render_widget(self::keys(app), keys);
        return;
    };
    let links: Vec<_> = reading.links.iter().map(cells::link).collect();
    let tenants: Vec<_> = reading.tenants.iter().flat_map(cells::tenant).collect();
    // Each takes at most a third of the screen, or a quarter if there are both, since the vifs are of more interest.
    let parts = if tenants.is_empty() { 3 } else { 4 };
    let most = (frame.area().height / parts).max(2);
    let height = |rows: usize| u16::try_from(rows + 1).unwrap_or(u16::MAX).min(most);
    let (of_links, of_tenants) = (height(links.len()), if tenants.is_empty() { 0 } else { height(tenants.len()) });
    let rows = [1, of_links, of_tenants.min(1), of_tenants, 1].map(Constraint::Length);
    let rows = rows.into_iter().chain([Constraint::Fill(1), Constraint::Length(1), Constraint::Length(1)]);
    let [title, links_area, _, tenants_area, _, vifs, selected, keys] = Layout::vertical(rows).areas(frame.area());

    let seconds = reading.time / 1_000_000_000;
    let up = format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    let (link_count, vif_count) = (count(reading.links.len(), "link"), count(reading.vifs.len(), "vif"));
    let title_text = format!("fairlane: {link_count}, {vif_count}, up {up}");
    frame.render_widget(Line::from(title_text).bold(), title);
    frame.render_widget(table(LINK_HEAD, LINK_RIGHT, links), links_area);
    frame.render_widget(table(TENANT_HEAD, TENANT_RIGHT, tenants), tenants_area);
    let shown = app.vifs();
    let at = app.table.selected().unwrap_or(0).min(shown.len().saturating_sub(1));
    frame.render_widget(shown.get(at).map_or(Line::default(), |vif| about(vif)), selected);
    frame.render_widget(self::keys(app), keys);
    let table = vif_table(app, &shown, vifs.width);
    let mut state = app.table;
    frame.render_stateful_widget(table, vifs, &mut state);
    app.table = state;
}

/// The cells of a row, aligned as in plain text.
fn cells<'a>(texts: impl IntoIterator<Item = (String, bool)>) -> impl Iterator<Item = Cell<'a>> {
    let aligned = |(text, right)| match right {
        true => Text::from(text).alignment(Alignment::Right),
        false => Text::from(text),
    };
    texts.into_iter().map(aligned).map(Cell::from)
}

fn head<'a>(names: impl IntoIterator<Item = (String, bool)>) -> Row<'a> {
    Row::new(cells(names)).style(Style::new().add_modifier(Modifier::UNDERLINED))
}

/// A table whose columns are as wide as their longest cells.
fn table(names: [&str; 7], right: [bool; 7], rows: Vec<[String; 7]>) -> Table<'static> {
    let width = |column: usize| {
        let longest = rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
        Constraint::Length(longest.max(names[column].len()) as u16)
    };
    let widths: Vec<_> = (0..names.len()).map(width).collect();
    Table::new(rows.into_iter().map(|row| Row::new(cells(row.into_iter().zip(right)))), widths)
        .header(head(names.map(str::to_owned).into_iter().zip(right)))
        .column_spacing(2)
}

fn vif_table<'a>(app: &App, vifs: &[&VifReading], width: u16) -> Table<'a> {
    let rows: Vec<_> = vifs.iter().map(|vif| cells::vif(vif)).collect();
    let longest = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0) as u16;
    let widths: [u16; 10] = std::array::from_fn(|column| longest(column).max(WIDTHS[column]));
    let (columns, sparkline) = fit(&widths, width);

    let lines = sparklines(app, vifs, sparkline);
    let row = |((texts, vif), line): ((&[String; 10], &&VifReading), String)| {
        let chosen = columns.iter().map(|column| {
            let cell = cells([(texts[*column].clone(), VIF_RIGHT[*column])]).next().unwrap_or_default();
            if VIF_HEAD[*column] == "share" { cell.style(share_style(vif)) } else { cell }
        });
        Row::new(chosen.chain([Cell::from(line)])).style(state_style(&vif.seen.port.state))
    };
    let names = columns.iter().map(|column| (VIF_HEAD[*column].to_owned(), VIF_RIGHT[*column]));
    let names = names.chain([("last min".to_owned(), false)]);
    let constraints = columns.iter().map(|column| widths[*column]).chain([sparkline]).map(Constraint::Length);
    Table::new(rows.iter().zip(vifs).zip(lines).map(row), constraints)
        .header(head(names))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
}

/// The columns that fit beside a sparkline, and the sparkline's width.
fn fit(widths: &[u16; 10], width: u16) -> (Vec<usize>, u16) {
    let mut columns: Vec<usize> = (0..widths.len()).collect();
    // Each column with the space after it.
    let used = |columns: &[usize]| columns.iter().map(|column| widths[*column] + 1).sum::<u16>();
    let least = SPARKLINES[SPARKLINES.len() - 1];
    for optional in OPTIONAL {
        if used(&columns) + least > width {
            columns.retain(|column| *column != optional);
        }
    }
    let left = width.saturating_sub(used(&columns));
    let sparkline = SPARKLINES.into_iter().find(|sparkline| *sparkline <= left).unwrap_or(left);
    (columns, sparkline)
}

/// What each vif sent during the last minute, scaled to its link's rate, or without a rate to the most that any of its vifs sent.
fn sparklines(app: &App, vifs: &[&VifReading], width: u16) -> Vec<String> {
    let means: Vec<_> = vifs.iter().map(|vif| app.history.means(&vif.seen.name, width.into())).collect();
    let mut scales: HashMap<&str, f64> = HashMap::new();
    for (vif, means) in vifs.iter().zip(&means) {
        let scale = scales.entry(&vif.seen.link).or_default();
        *scale = means.iter().flatten().copied().fold(*scale, f64::max);
    }
    for link in app.reading.iter().flat_map(|reading| &reading.links) {
        if let Some(rate) = link.seen.rate {
            scales.insert(&link.seen.name, rate as f64);
        }
    }
    let line = |(vif, means): (&&VifReading, Vec<Option<f64>>)| {
        let scale = scales[vif.seen.link.as_str()];
        means.into_iter().map(|sent| sent.map_or(' ', |sent| level(sent, scale))).collect()
    };
    vifs.iter().zip(means).map(line).collect()
}

/// A bar; blank only if nothing was sent.
fn level(sent: f64, scale: f64) -> char {
    if sent <= 0.0 {
        return ' ';
    }
    let eighths = (sent / scale * LEVELS.len() as f64).ceil() as usize;
    LEVELS[eighths.clamp(1, LEVELS.len()) - 1]
}

fn state_style(state: &State) -> Style {
    match state {
        State::Up => Style::new(),
        State::Waiting => Style::new().add_modifier(Modifier::DIM),
        State::Disabled { .. } => Style::new().fg(Color::Red),
    }
}

/// Green if the share is the due share, else yellow. A vif that sends less than it may, or has a `min_rate` above, is rightly yellow.
fn share_style(vif: &VifReading) -> Style {
    match vif.due {
        Some(due) if (vif.seen.share - due).abs() <= SAME_SHARE => Style::new().fg(Color::Green),
        Some(_) => Style::new().fg(Color::Yellow),
        None => Style::new(),
    }
}

/// The line about the selected vif, for which the table has no room: its settings, and why it is disabled.
fn about(vif: &VifReading) -> Line<'static> {
    let seen = &vif.seen;
    if let State::Disabled { reason } = &seen.port.state {
        return Line::from(format!("{} is disabled: {reason}", seen.name)).fg(Color::Red);
    }
    let mut text = format!("{}: weight {}", seen.name, seen.weight);
    if seen.min_rate > 0 {
        text += &format!(", min_rate {}", format_rate(seen.min_rate));
    }
    if let Some(rate) = seen.max_rate {
        text += &format!(", max_rate {}", format_rate(rate));
    }
    if let Some(frames) = seen.max_frames {
        text += &format!(", max_frames {frames}");
    }
    if let Some(tenant) = &seen.tenant {
        text += &format!(", tenant {tenant}");
    }
    if let Some(port) = &seen.waits_for {
        text += &format!(", waits for {port}");
    }
    // A narrow screen leaves out the column of states.
    if let Some(not_served) = figures::not_served(seen) {
        text += &format!(", {not_served}");
    }
    if seen.receive.queued_frames > 0 {
        let (frames, bytes) = (seen.receive.queued_frames, figures::size(seen.receive.queued_bytes));
        text += &format!(", {frames} frames ({bytes}) wait for its guest");
    }
    // Frames that found room at once are in the bucket below 1 ns.
    if let Some(wait) = vif.rx_wait_p99.filter(|wait| *wait > 1) {
        text += &format!(", frames for its guest waited < {} (p99)", figures::time(wait));
    }
    if seen.receive.marked_frames > 0 {
        text += &format!(", {} marked (ECN)", seen.receive.marked_frames);
    }
    for (reason, count) in &seen.port.drops {
        text += &format!(", {count} {reason}");
    }
    Line::from(text)
}

fn keys(app: &App) -> Line<'static> {
    let pause = if app.paused { "p resume (paused)" } else { "p pause" };
    Line::from(format!("q quit  s sort (by {})  {pause}  arrows select", app.order.name())).dim()
}
