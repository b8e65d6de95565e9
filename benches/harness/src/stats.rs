//! Medians, because on a shared machine the mean belongs to whoever else is running.

/// The middle of several figures, and their ends.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    pub median: f64,
    pub lowest: f64,
    pub highest: f64,
}

impl Spread {
    /// # Panics
    /// If there are no figures.
    pub fn of(figures: &[f64]) -> Self {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (lowest, highest) = (sorted[0], sorted[sorted.len() - 1]);
        Spread { median: middle(&sorted), lowest, highest }
    }

    /// The ratio in each round first, then the middle of the ratios: what disturbs a round disturbs both.
    pub fn of_ratios(ours: &[f64], peer: &[f64]) -> Self {
        let ratios: Vec<f64> = ours.iter().zip(peer).map(|(ours, peer)| ours / peer).collect();
        Spread::of(&ratios)
    }
}

fn middle(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[half] } else { (sorted[half - 1] + sorted[half]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::Spread;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        let spread = Spread::of(&[9.0, 1.0, 2.0, 4.0]);
        assert_eq!((spread.lowest, spread.median, spread.highest), (1.0, 3.0, 9.0));
    }

    #[test]
    fn a_disturbed_round_does_not_move_the_ratio() {
        let ratio = Spread::of_ratios(&[1.0, 10.0, 1.0], &[2.0, 20.0, 2.0]);
        assert_eq!((ratio.lowest, ratio.median, ratio.highest), (0.5, 0.5, 0.5));
    }
}
