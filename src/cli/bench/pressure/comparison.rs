//! The arm as shipped beside the best fixed batch that did not fail, and beside itself.

use serde::Serialize;

use super::report::ArmPart;
use super::verdict::Squeeze;
use crate::cli::bench::table::Table;

/// What the arm as shipped is worth.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Comparison {
    /// Each squeeze, in their order.
    pub(super) squeezes: Vec<Stretch>,
    /// All of the script, as far as calls could be sent. A fixed batch counts here only if none of its calls failed from the first to the last.
    pub(super) whole: Stretch,
}

/// A part of the script.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Stretch {
    /// From when, in seconds. Below 0: since before the server.
    pub(super) from_s: f64,
    /// Until when.
    pub(super) until_s: f64,
    /// Good rows per second of the arm as shipped.
    pub(super) good_rows_per_s: f64,
    /// The fixed batch with the most good rows of those of which no call failed meanwhile; null where each failed some.
    pub(super) fixed: Option<Fixed>,
    /// Good rows per second after it, as a part of those before it. Null where there is no before or after.
    pub(super) back: Option<f64>,
}

/// A fixed batch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Fixed {
    /// Its arm.
    pub(super) arm: String,
    /// Its good rows per second.
    pub(super) good_rows_per_s: f64,
    /// Those of the arm as shipped, as a multiple of them.
    pub(super) ratio: f64,
}

impl Comparison {
    /// Compares one arm with others.
    pub(super) fn of(shipped: &ArmPart, fixed: &[&ArmPart]) -> Comparison {
        let squeeze = |(index, squeeze): (usize, &Squeeze)| {
            // Every arm has the same neighbour, so the squeezes of one that lives are the same ones.
            let rival = |arm: &&ArmPart| {
                let same = arm.verdict.squeezes.get(index)?;
                let lives = arm.verdict.server_died_s.is_none_or(|died| died > same.freed_s);
                (lives && same.failed == 0).then(|| (arm.arm.clone(), same.good_rows_per_s))
            };
            let good = squeeze.good_rows_per_s;
            let back = squeeze.good_rows_per_s_before.zip(squeeze.good_rows_per_s_after);
            Stretch {
                from_s: squeeze.taken_s,
                until_s: squeeze.freed_s,
                good_rows_per_s: good,
                fixed: best(good, fixed.iter().filter_map(rival)),
                back: back.filter(|(before, _)| *before > 0.0).map(|(before, after)| after / before),
            }
        };
        let clean = fixed.iter().filter(|arm| arm.clean());
        let good = shipped.total.good.rows;
        Comparison {
            squeezes: shipped.verdict.squeezes.iter().enumerate().map(squeeze).collect(),
            whole: Stretch {
                from_s: 0.0,
                until_s: shipped.timeline.end_s,
                good_rows_per_s: good,
                fixed: best(good, clean.map(|arm| (arm.arm.clone(), arm.total.good.rows))),
                back: None,
            },
        }
    }

    /// In lines of text.
    pub(super) fn render(&self) -> String {
        let mut table = Table::new([
            "as shipped",
            "good rows/s",
            "best fixed batch without a failed call",
            "ratio",
            "after/before",
        ]);
        let mut row = |what: String, stretch: &Stretch| {
            let fixed = stretch.fixed.as_ref();
            table.row([
                what,
                format!("{:.1}", stretch.good_rows_per_s),
                fixed.map_or("none".to_owned(), |fixed| format!("{}: {:.1}", fixed.arm, fixed.good_rows_per_s)),
                fixed.map_or(String::new(), |fixed| format!("{:.2}", fixed.ratio)),
                stretch.back.map_or(String::new(), |back| format!("{:.0} %", back * 100.0)),
            ]);
        };
        for stretch in &self.squeezes {
            row(held(stretch.from_s, stretch.until_s), stretch);
        }
        row("whole script".to_owned(), &self.whole);
        table.render()
    }
}

/// When a neighbour held memory, in words.
pub(super) fn held(from_s: f64, until_s: f64) -> String {
    match from_s < 0.0 {
        true => format!("held from before the start to {until_s:.1} s"),
        false => format!("held from {from_s:.1} to {until_s:.1} s"),
    }
}

fn best(good: f64, rivals: impl Iterator<Item = (String, f64)>) -> Option<Fixed> {
    let rivals = rivals.filter(|(_, rate)| *rate > 0.0);
    let (arm, good_rows_per_s) = rivals.max_by(|a, b| a.1.total_cmp(&b.1))?;
    Some(Fixed { arm, good_rows_per_s, ratio: good / good_rows_per_s })
}

#[cfg(test)]
mod tests {
    use super::super::arm::Arm;
    use super::super::report::tests::arm;
    use super::*;

    /// An arm whose squeezes have these good rows per second and failed calls.
    fn squeezed(kind: Arm, failed: u64, rows: f64, squeezes: &[(f64, u64)]) -> ArmPart {
        let mut part = arm(kind, failed, rows, None);
        let squeeze = part.verdict.squeezes[0].clone();
        let with = |&(good_rows_per_s, failed): &(f64, u64)| Squeeze { good_rows_per_s, failed, ..squeeze.clone() };
        part.verdict.squeezes = squeezes.iter().map(with).collect();
        part
    }

    #[test]
    fn a_fixed_batch_counts_where_none_of_its_calls_failed() {
        let shipped = squeezed(Arm::Shipped, 0, 900.0, &[(60.0, 0), (20.0, 0), (9.0, 0)]);
        let small = squeezed(Arm::Fixed(4), 0, 300.0, &[(30.0, 0), (30.0, 0), (10.0, 1)]);
        let large = squeezed(Arm::Fixed(16), 50, 990.0, &[(80.0, 0), (90.0, 50), (0.0, 0)]);
        let found = Comparison::of(&shipped, &[&small, &large]);
        let fixed = |stretch: &Stretch| stretch.fixed.as_ref().map(|fixed| (fixed.arm.clone(), fixed.ratio));
        assert_eq!(
            found.squeezes.iter().map(fixed).collect::<Vec<_>>(),
            [Some(("fixed:16".to_owned(), 0.75)), Some(("fixed:4".to_owned(), 20.0 / 30.0)), None]
        );
        assert_eq!(fixed(&found.whole), Some(("fixed:4".to_owned(), 3.0)));
        assert_eq!(fixed(&Comparison::of(&shipped, &[&large]).whole), None);
    }

    #[test]
    fn a_dead_fixed_batch_does_not_count_from_then_on() {
        let shipped = squeezed(Arm::Shipped, 0, 900.0, &[(60.0, 0)]);
        let mut dead = squeezed(Arm::Fixed(16), 0, 990.0, &[(80.0, 0)]);
        let check = |died_s: f64, counts: bool| {
            dead.verdict.server_died_s = Some(died_s);
            assert_eq!(Comparison::of(&shipped, &[&dead]).squeezes[0].fixed.is_some(), counts, "{died_s}");
        };
        let freed_s = shipped.verdict.squeezes[0].freed_s;
        let mut check = check;
        check(freed_s - 0.1, false);
        check(freed_s + 0.1, true);
    }

    #[test]
    fn the_table_says_what_it_came_back_to() {
        let shipped = arm(Arm::Shipped, 0, 900.0, None);
        let text = Comparison::of(&shipped, &[&arm(Arm::Fixed(4), 0, 300.0, None)]).render();
        assert!(text.contains("held from 2.0 to 6.0 s"), "{text}");
        assert!(text.contains("fixed:4: 12.0"), "{text}");
        assert!(text.contains("95 %"), "{text}");
        assert!(text.contains("whole script") && text.contains("3.00"), "{text}");
        assert_eq!(held(-3.0, 4.0), "held from before the start to 4.0 s");
    }
}
