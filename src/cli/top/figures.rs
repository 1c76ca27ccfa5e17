//! Numbers as people read them, each at most seven characters wide; bytes have a form of their own.

use crate::units::Bytes;

/// `0.5`, `57`, `12 k`, `1.3 M`: something counted.
pub(super) fn count(value: f64) -> String {
    match value {
        999_500_000.0.. => format!("{:.1} G", value / 1e9),
        999_500.0.. => format!("{:.1} M", value / 1e6),
        9_999.5.. => format!("{:.0} k", value / 1e3),
        9.95.. => format!("{value:.0}"),
        _ => format!("{value:.1}").trim_end_matches(".0").to_owned(),
    }
}

/// `3.10 ms`, `120 ms`, `1.50 s`: three digits.
pub(super) fn seconds(value: f64) -> String {
    let (value, unit) = if value < 0.999_5 { (value * 1e3, "ms") } else { (value, "s") };
    let decimals = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.decimals$} {unit}")
}

/// `63%`.
pub(super) fn percent(part: f64) -> String {
    format!("{:.0}%", part * 100.0)
}

/// As the rest of the program writes them; a metric's infinity is "unlimited".
pub(super) fn bytes(value: f64) -> Bytes {
    // `as` saturates at both ends.
    Bytes::new(value as u64)
}

/// Shares out `cells` by `values`: as near as whole cells allow, and one at least for what is not nothing, as far as
/// there are enough.
pub(super) fn share_out(values: &[f64], cells: usize) -> Vec<usize> {
    let total: f64 = values.iter().filter(|value| **value > 0.0).sum();
    let exact: Vec<f64> =
        values.iter().map(|value| if *value > 0.0 { value / total * cells as f64 } else { 0.0 }).collect();
    let mut shared: Vec<usize> =
        exact.iter().map(|exact| if *exact > 0.0 { (*exact as usize).max(1) } else { 0 }).collect();
    // How much more a part has than it should; nothing gives or takes at nothing.
    let excess = |shared: &[usize], index: usize| shared[index] as f64 - exact[index];
    while shared.iter().sum::<usize>() > cells {
        let candidates = (0..shared.len()).filter(|index| shared[*index] > 1);
        let most = candidates.max_by(|one, other| excess(&shared, *one).total_cmp(&excess(&shared, *other)));
        // With more parts than cells the last ones go.
        let index = most.or_else(|| shared.iter().rposition(|cells| *cells > 0));
        let Some(index) = index else { break };
        shared[index] -= 1;
    }
    while total > 0.0 && shared.iter().sum::<usize>() < cells {
        let candidates = (0..shared.len()).filter(|index| exact[*index] > 0.0);
        let least = candidates.min_by(|one, other| excess(&shared, *one).total_cmp(&excess(&shared, *other)));
        let Some(index) = least else { break };
        shared[index] += 1;
    }
    shared
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_short() {
        let check = |value: f64, text: &str| assert_eq!(count(value), text);
        check(0.0, "0");
        check(0.54, "0.5");
        check(9.94, "9.9");
        check(9.96, "10");
        check(1234.0, "1234");
        check(12_345.0, "12 k");
        check(999_499.0, "999 k");
        check(1_250_000.0, "1.2 M");
        check(2e9, "2.0 G");
    }

    #[test]
    fn times_have_three_digits() {
        let check = |value: f64, text: &str| assert_eq!(seconds(value), text);
        check(0.0, "0.00 ms");
        check(0.000_5, "0.50 ms");
        check(0.0123, "12.3 ms");
        check(0.9994, "999 ms");
        check(0.9996, "1.00 s");
        check(30.0, "30.0 s");
        check(1234.0, "1234 s");
    }

    #[test]
    fn cells_are_shared_out_to_the_last() {
        let check = |values: &[f64], cells: usize, expected: &[usize]| {
            assert_eq!(share_out(values, cells), expected, "{values:?} over {cells}");
        };
        check(&[], 10, &[]);
        check(&[0.0, 0.0], 10, &[0, 0]);
        check(&[1.0], 10, &[10]);
        check(&[1.0, 1.0], 10, &[5, 5]);
        check(&[1.0, 2.0], 10, &[3, 7]);
        // The small one is seen, at the cost of the large one.
        check(&[1.0, 0.0, 999.0], 10, &[1, 0, 9]);
        check(&[1.0, 1.0, 1.0], 2, &[1, 1, 0]);
        check(&[1.0, -5.0], 4, &[4, 0]);
    }
}
