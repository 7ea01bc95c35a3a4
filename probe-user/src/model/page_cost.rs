//! What a registration costs: a fixed part and a part per page, fitted to what was seen.

use std::collections::BTreeMap;

use crate::sample::Histogram;

/// The unit in which the kernel pins memory on x86-64, whatever page size lies behind it.
pub const PAGE_BYTES: u64 = 4096;

/// Pages of 4 KiB that a region touches, its unaligned ends included.
pub fn pages_of(addr: u64, length_bytes: u64) -> u64 {
    let first = addr / PAGE_BYTES;
    match length_bytes {
        0 => 0,
        _ => addr.saturating_add(length_bytes - 1) / PAGE_BYTES - first + 1,
    }
}

/// Registrations grouped by their number of pages (four groups per power of two), so that memory does not grow with
/// their number.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PageCost {
    classes: BTreeMap<u16, Class>,
}

#[derive(Debug, Clone, PartialEq, Default)]
struct Class {
    count: u64,
    pages: u128,
    duration_ns: Histogram,
}

/// `duration = base_ns + ns_per_page × pages`, as fitted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fit {
    /// Fixed part of a registration, ns.
    pub base_ns: f64,
    /// Part per page of 4 KiB, ns.
    pub ns_per_page: f64,
    /// Registrations the fit rests on.
    pub registrations: u64,
    /// Smallest and largest mean number of pages among the groups fitted.
    pub pages: (f64, f64),
    /// Largest deviation of a group's median from the fit, relative to the median.
    pub worst_deviation: f64,
}

impl PageCost {
    /// Takes in one successful registration.
    pub fn record(&mut self, pages: u64, duration_ns: u64) {
        let class = self.classes.entry(class_of(pages)).or_default();
        class.count += 1;
        class.pages += u128::from(pages);
        class.duration_ns.record(duration_ns);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.classes.clear();
    }

    /// Fits base and slope to the median duration of each group, by least squares of the relative deviation, so that
    /// neither one slow outlier nor the sheer size of the largest regions decides.
    ///
    /// `None` when sizes differ too little (less than a factor of two) to tell the two parts apart.
    pub fn fit(&self) -> Option<Fit> {
        let points: Vec<(f64, f64, f64)> = self
            .classes
            .values()
            .filter_map(|class| {
                let median = class.duration_ns.quantile(0.5)?.max(1) as f64;
                Some((class.pages as f64 / class.count as f64, median, class.count as f64))
            })
            .collect();
        let smallest = points.first()?.0;
        let largest = points.last()?.0;
        if largest < 2.0 * smallest.max(1.0) {
            return None;
        }
        // A group of a thousand registrations knows its median better than a group of one, but not a thousand times.
        let (mut s0, mut sx, mut sy, mut sxx, mut sxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (x, y, n) in &points {
            let weight = n.sqrt() / (y * y);
            s0 += weight;
            sx += weight * x;
            sy += weight * y;
            sxx += weight * x * x;
            sxy += weight * x * y;
        }
        let determinant = s0 * sxx - sx * sx;
        if determinant <= f64::EPSILON * s0 * sxx {
            return None;
        }
        let mut ns_per_page = (s0 * sxy - sx * sy) / determinant;
        let mut base_ns = (sxx * sy - sx * sxy) / determinant;
        // Noise may bend the line below zero where a cost cannot be; then the other part alone explains the data best.
        if base_ns < 0.0 {
            (base_ns, ns_per_page) = (0.0, sxy / sxx);
        } else if ns_per_page < 0.0 {
            (base_ns, ns_per_page) = (sy / s0, 0.0);
        }
        let deviation = |(x, y, _): &(f64, f64, f64)| ((base_ns + ns_per_page * x) / y - 1.0).abs();
        Some(Fit {
            base_ns,
            ns_per_page,
            registrations: self.classes.values().map(|class| class.count).sum(),
            pages: (smallest, largest),
            worst_deviation: points.iter().map(deviation).fold(0.0, f64::max),
        })
    }
}

fn class_of(pages: u64) -> u16 {
    if pages < 4 {
        return pages as u16;
    }
    let exponent = pages.ilog2();
    (exponent * 4) as u16 + ((pages >> (exponent - 2)) & 3) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_count_the_unaligned_ends() {
        for (addr, length, pages) in
            [(0, 0, 0), (0, 1, 1), (4095, 2, 2), (4096, 4096, 1), (4097, 4096, 2), (1, 1 << 20, 257)]
        {
            assert_eq!(pages_of(addr, length), pages, "{addr}+{length}");
        }
        assert_eq!(pages_of(0, u64::MAX), u64::MAX / PAGE_BYTES + 1, "implicit ODP covers everything");
        assert_eq!(pages_of(u64::MAX, u64::MAX), 1);
    }

    #[test]
    fn a_known_law_is_found_again_through_noise_and_outliers() {
        let mut cost = PageCost::default();
        let mut noise = 1_u64;
        for i in 0..20_000_u64 {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let pages = 1 << (i % 15);
            let exact = 20_000 + 90 * pages;
            let jitter = exact * (noise >> 60) / 160;
            cost.record(pages, exact + jitter + if i % 50 == 0 { 5_000_000 } else { 0 });
        }
        let fit = cost.fit().unwrap();
        assert!((fit.base_ns / 20_900.0 - 1.0).abs() < 0.1, "{fit:?}");
        assert!((fit.ns_per_page / 94.0 - 1.0).abs() < 0.1, "{fit:?}");
        assert!(fit.worst_deviation < 0.1, "{fit:?}");
        assert_eq!(fit.registrations, 20_000);
    }

    #[test]
    fn one_size_alone_gives_no_law() {
        let mut cost = PageCost::default();
        assert_eq!(cost.fit(), None);
        for _ in 0..100 {
            cost.record(16, 5000);
            cost.record(17, 5100);
        }
        assert_eq!(cost.fit(), None);
    }

    #[test]
    fn neither_part_is_ever_negative() {
        for durations in [[100, 100_000], [100_000, 100]] {
            let mut cost = PageCost::default();
            cost.record(100, durations[0]);
            cost.record(1000, durations[1]);
            let fit = cost.fit().unwrap();
            assert!(fit.base_ns >= 0.0 && fit.ns_per_page >= 0.0, "{fit:?}");
        }
    }
}
