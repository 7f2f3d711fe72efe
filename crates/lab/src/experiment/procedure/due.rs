//! The parts of a link that guests are due by the weights of their cards and tenants, and how far from these they were.

use super::flows::worst;
use crate::{GuestPlan, Topology};

/// The weight of a card for which none is given.
const WEIGHT: u32 = 100;

/// The part that each of these guests is due if all want more. `rate` is that of the link; a guest's bounds are in the same unit.
pub(super) fn due(topology: &Topology, guests: &[usize], rate: f64, bounds: impl Fn(&GuestPlan) -> Bounds) -> Vec<f64> {
    let plans: Vec<&GuestPlan> = guests.iter().map(|guest| &topology.guests[guest - 1]).collect();
    let weights: Vec<f64> = plans.iter().map(|plan| weight(topology, &plans, plan)).collect();
    let bounds: Vec<Bounds> = plans.iter().map(|plan| bounds(plan)).collect();
    let mut fixed: Vec<Option<f64>> = vec![None; plans.len()];
    // Whoever is beyond a bound gets it, first the guaranteed ones, and the others share the rest.
    loop {
        let left = 1.0 - fixed.iter().flatten().sum::<f64>();
        let sum: f64 = weights.iter().zip(&fixed).filter(|(_, fixed)| fixed.is_none()).map(|(weight, _)| weight).sum();
        let part = |index: usize| fixed[index].unwrap_or(left * weights[index] / sum);
        let free = || (0..plans.len()).filter(|index| fixed[*index].is_none());
        let owed = free()
            .find_map(|index| Some((index, bounds[index].least? / rate)).filter(|(_, least)| part(index) < *least));
        let above = || {
            free().find_map(|index| Some((index, bounds[index].most? / rate)).filter(|(_, most)| part(index) > *most))
        };
        match owed.or_else(above) {
            Some((index, bound)) => fixed[index] = Some(bound),
            None => return (0..plans.len()).map(part).collect(),
        }
    }
}

/// What a guest gets at least and at most.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bounds {
    pub least: Option<f64>,
    pub most: Option<f64>,
}

/// A guest's weight beside all others, with its tenant's.
fn weight(topology: &Topology, plans: &[&GuestPlan], plan: &GuestPlan) -> f64 {
    let own = |plan: &GuestPlan| f64::from(plan.share.unwrap_or(WEIGHT));
    let Some(tenant) = topology.tenants.iter().find(|tenant| plan.tenant.as_ref() == Some(&tenant.name)) else {
        return own(plan);
    };
    let all: f64 = plans.iter().filter(|other| other.tenant == plan.tenant).map(|plan| own(plan)).sum();
    f64::from(tenant.share) * own(plan) / all
}

/// How far the guests were from what they were due in any second, as parts of the link. `rates` are those of each guest in each
/// interval, `second` the number of intervals in a second.
pub(super) fn off(rates: &[Vec<f64>], due: &[f64], second: usize) -> f64 {
    let intervals = rates.iter().map(Vec::len).min().unwrap_or(0);
    worst((second..=intervals).map(|end| {
        let had: Vec<f64> = rates.iter().map(|rates| rates[end - second..end].iter().sum()).collect();
        let total: f64 = had.iter().sum();
        worst(had.iter().zip(due).map(|(had, due)| (had / total - due).abs()))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TenantPlan;

    fn topology(guests: Vec<GuestPlan>) -> Topology {
        Topology { tenants: vec![TenantPlan { name: "red".into(), share: 300 }], ..Topology::of(guests) }
    }

    fn share(share: u32) -> GuestPlan {
        GuestPlan { share: Some(share), ..GuestPlan::default() }
    }

    #[test]
    fn weights_and_tenants_divide_the_link() {
        let red = |weight| GuestPlan { tenant: Some("red".into()), ..share(weight) };
        let topology = topology(vec![red(1), red(2), GuestPlan::default()]);
        let due = due(&topology, &[1, 2, 3], 1.0, |_| Bounds::default());
        assert!(due.iter().zip([0.25, 0.5, 0.25]).all(|(due, right)| (due - right).abs() < 1e-9), "{due:?}");
    }

    #[test]
    fn bounded_guests_leave_the_rest_to_others() {
        let topology = topology(vec![share(1), share(100), share(100)]);
        let bounds = |plan: &GuestPlan| match plan.share {
            Some(1) => Bounds { least: Some(50.0), most: None },
            _ => Bounds::default(),
        };
        assert_eq!(due(&topology, &[1, 2, 3], 100.0, bounds), [0.5, 0.25, 0.25]);
        let most = |plan: &GuestPlan| Bounds { least: None, most: (plan.share == Some(1)).then_some(0.1) };
        let due = due(&topology, &[1, 2], 100.0, most);
        assert!((due[0] - 0.001).abs() < 1e-9 && (due[1] - 0.999).abs() < 1e-9, "{due:?}");
    }

    #[test]
    fn the_worst_second_counts() {
        assert_eq!(off(&[vec![1.0, 1.0, 3.0], vec![1.0, 1.0, 1.0]], &[0.5, 0.5], 1), 0.25);
        assert!(off(&[vec![0.0], vec![0.0]], &[0.5, 0.5], 1).is_nan());
    }
}
