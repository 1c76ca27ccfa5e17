//! The view in a terminal, until somebody has seen enough.

use std::io;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use anyhow::bail;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use super::history::History;
use super::lines::lines;
use super::scrape::Answer;
use super::view::{Condition, View};

/// How long a key or an answer waits until it is looked at.
const PATIENCE: Duration = Duration::from_millis(100);

/// What the terminal is told from elsewhere.
#[derive(Debug)]
pub(super) enum Message {
    /// The server answered, or did not.
    Asked(anyhow::Result<Answer>),
    /// The process was asked to end.
    End,
}

/// Whether colours are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colours {
    /// As the view has them.
    Shown,
    /// Those of the terminal, and bold text.
    None,
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    End,
    Up(u16),
    Down(u16),
    Nothing,
}

/// Shows what comes until a key or a signal ends it. The terminal is as it was afterwards, also after a panic.
///
/// # Errors
/// Those of the terminal.
pub(super) fn run(address: &str, messages: &Receiver<Message>, colours: Colours) -> anyhow::Result<()> {
    // This sets the panic hook that restores the terminal.
    let terminal = ratatui::try_init();
    let ended = terminal.map_err(Into::into).and_then(|terminal| watch(terminal, address, messages, colours));
    let restored = ratatui::try_restore();
    ended.and(restored.map_err(Into::into))
}

fn watch(
    mut terminal: ratatui::DefaultTerminal,
    address: &str,
    messages: &Receiver<Message>,
    colours: Colours,
) -> anyhow::Result<()> {
    let start = Instant::now();
    let mut history = History::default();
    let mut condition = Condition::Asking;
    // When it last answered, or was first asked.
    let mut answered = start;
    let mut scroll = 0;
    let mut fresh = true;
    loop {
        if fresh {
            let view = View::new(address, condition.clone(), &history);
            terminal.draw(|frame| draw(frame, &view, &mut scroll, colours))?;
            fresh = false;
        }
        match messages.try_recv() {
            Ok(Message::End) => return Ok(()),
            Ok(Message::Asked(Ok(answer))) => {
                answered = Instant::now();
                history.push(answered - start, answer.samples);
                condition = answer.condition;
                fresh = true;
            }
            Ok(Message::Asked(Err(error))) => {
                condition = Condition::Away { since: answered.elapsed(), reason: format!("{error:#}") };
                fresh = true;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => bail!("nobody asks the server any more"),
        }
        if !event::poll(PATIENCE)? {
            continue;
        }
        match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => match wish(key) {
                Wish::End => return Ok(()),
                Wish::Up(lines) => scroll = scroll.saturating_sub(lines),
                Wish::Down(lines) => scroll = scroll.saturating_add(lines),
                Wish::Nothing => continue,
            },
            Event::Resize(..) => {}
            _ => continue,
        }
        fresh = true;
    }
}

fn wish(key: KeyEvent) -> Wish {
    match key.code {
        KeyCode::Char('c' | 'd') if key.modifiers.contains(KeyModifiers::CONTROL) => Wish::End,
        KeyCode::Char('q') | KeyCode::Esc => Wish::End,
        KeyCode::Up | KeyCode::Char('k') => Wish::Up(1),
        KeyCode::Down | KeyCode::Char('j') => Wish::Down(1),
        KeyCode::PageUp => Wish::Up(10),
        KeyCode::PageDown => Wish::Down(10),
        KeyCode::Home => Wish::Up(u16::MAX),
        _ => Wish::Nothing,
    }
}

/// Draws the view and, below it, which keys there are. `scroll` is bounded by what there is to see.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View, scroll: &mut u16, colours: Colours) {
    let [above, below] = Layout::vertical([Constraint::Fill(1), Constraint::Length(1)]).areas(frame.area());
    let lines = lines(view, above.width.into());
    let hidden = u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_sub(above.height);
    *scroll = (*scroll).min(hidden);
    let keys = match hidden - *scroll {
        0 if hidden == 0 => "q ends".to_owned(),
        0 => "q ends, Up and Down move".to_owned(),
        more => format!("q ends, Up and Down move: {more} more lines below"),
    };
    frame.render_widget(Paragraph::new(lines).scroll((*scroll, 0)), above);
    frame.render_widget(Line::styled(keys, Style::new().add_modifier(Modifier::DIM)), below);
    if colours == Colours::None {
        for cell in &mut frame.buffer_mut().content {
            cell.set_fg(Color::Reset);
        }
    }
}

/// The same view as plain lines, with nothing in them that a terminal would obey.
///
/// # Errors
/// Those of `out`.
pub(super) fn print(out: &mut impl io::Write, view: &View, width: usize) -> io::Result<()> {
    for line in lines(view, width) {
        let text: String = line.to_string().chars().filter(|c| !c.is_control()).collect();
        writeln!(out, "{}", text.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_end_it_or_move_it() {
        let check = |code: KeyCode, modifiers: KeyModifiers, expected: Wish| {
            assert_eq!(wish(KeyEvent::new(code, modifiers)), expected, "{code:?} {modifiers:?}");
        };
        check(KeyCode::Char('q'), KeyModifiers::NONE, Wish::End);
        check(KeyCode::Esc, KeyModifiers::NONE, Wish::End);
        check(KeyCode::Char('c'), KeyModifiers::CONTROL, Wish::End);
        check(KeyCode::Char('c'), KeyModifiers::NONE, Wish::Nothing);
        check(KeyCode::Down, KeyModifiers::NONE, Wish::Down(1));
        check(KeyCode::Home, KeyModifiers::NONE, Wish::Up(u16::MAX));
    }
}
