//! What is due to each of some that share a capacity, by max-min fairness.
#![allow(dead_code)] // each test program uses a part

/// One of them: its weight, its guarantee, and the most it gets, by its limit or as it wants no more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    pub weight: f64,
    pub least: f64,
    pub most: f64,
}

impl Demand {
    /// Of one without a guarantee.
    pub(crate) fn of(weight: u32, wants: f64) -> Demand {
        Demand { weight: weight.into(), least: 0.0, most: wants }
    }

    fn at(&self, level: f64) -> f64 {
        self.most.min(self.least.max(level * self.weight))
    }
}

/// Divides a capacity: everybody has their guarantee, or more if all get as much for their weight, and no more than the most.
pub(crate) fn divide(demands: &[Demand], capacity: f64) -> Vec<f64> {
    let all = |level: f64| demands.iter().map(|demand| demand.at(level)).sum::<f64>();
    let weights = demands.iter().map(|demand| demand.weight).fold(f64::INFINITY, f64::min);
    let (mut low, mut high) = (0.0, capacity / weights);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if all(middle) > capacity { high = middle } else { low = middle }
    }
    demands.iter().map(|demand| demand.at(high)).collect()
}

/// Divides a capacity on two levels: among tenants and those without one, and then in each tenant. `whose` is the tenant of each.
pub(crate) fn divide_among(demands: &[Demand], tenants: &[Demand], whose: &[Option<usize>], capacity: f64) -> Vec<f64> {
    let members = |tenant| (0..demands.len()).filter(move |member| whose[*member] == Some(tenant));
    let mut groups: Vec<(Demand, Vec<usize>)> = Vec::new();
    for (tenant, demand) in tenants.iter().enumerate() {
        let wants = members(tenant).map(|member| demands[member].most).sum();
        groups.push((Demand { most: demand.most.min(wants), ..*demand }, members(tenant).collect()));
    }
    let alone = (0..demands.len()).filter(|member| whose[*member].is_none());
    groups.extend(alone.map(|member| (demands[member], vec![member])));
    let parts = divide(&groups.iter().map(|(demand, _)| *demand).collect::<Vec<_>>(), capacity);
    let mut due = vec![0.0; demands.len()];
    for (part, (_, members)) in parts.into_iter().zip(&groups) {
        let own: Vec<Demand> = members.iter().map(|member| demands[*member]).collect();
        members.iter().zip(divide(&own, part)).for_each(|(member, gets)| due[*member] = gets);
    }
    due
}
