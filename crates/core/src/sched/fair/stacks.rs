//! Stacks of ports, many of them in one table.
//!
//! A stack is a chain of cache lines of 15 ports each. To push or pop a port touches one line and no other port's
//! state, and as the ports on top lie side by side, the processor fetches the state of the next ones while it still
//! works on this one (in a linked list, each port has to arrive before the next is known).

/// No port: the top of an empty stack. As if its line were full, so that the next port gets a line.
pub(super) const NONE: u32 = PORTS as u32;

/// Ports of a line.
const PORTS: usize = 15;

/// The place of what lies below the line (in a free line: of another free line), then ports. A place is 16 times the
/// number of a line, plus the position in it.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u32; 1 + PORTS]);

/// The lines of all stacks. The caller keeps the place of each stack's top and of each port.
pub(super) struct Stacks {
    /// The first is never used, so that [`NONE`] is no place.
    lines: Vec<Line>,
    free: u32,
}

impl Stacks {
    pub(super) fn new() -> Stacks {
        Stacks { lines: vec![Line([0; 1 + PORTS])], free: NONE }
    }

    /// Makes room for so many ports in any of so many stacks.
    pub(super) fn grow(&mut self, ports: usize, stacks: usize) {
        let lines = 1 + ports / PORTS + ports.min(stacks);
        for line in self.lines.len()..lines {
            self.lines.push(Line([self.free; 1 + PORTS]));
            self.free = (line * (1 + PORTS)) as u32;
        }
    }

    /// Adds a port. Returns its place.
    #[inline]
    pub(super) fn push(&mut self, top: &mut u32, port: u32) -> u32 {
        if position(*top) == PORTS {
            let line = self.free;
            let below = self.at(line);
            self.free = std::mem::replace(below, *top);
            *top = line;
        }
        *top += 1;
        *self.at(*top) = port;
        *top
    }

    /// [`Stacks::push`], if there is room in the topmost line.
    #[inline(always)]
    pub(super) fn push_at_once(&mut self, top: &mut u32, port: u32) -> Option<u32> {
        let place = *top + 1;
        if position(place) == 0 {
            return None;
        }
        *self.lines.get_mut(place as usize / (1 + PORTS))?.0.get_mut(position(place))? = port;
        *top = place;
        Some(place)
    }

    /// The port on top, if there is another one in the same line.
    #[inline(always)]
    pub(super) fn peek(&self, top: u32) -> Option<u32> {
        let line = self.lines.get(top as usize / (1 + PORTS))?;
        (position(top) > 1).then(|| line.0[position(top)])
    }

    /// Removes the port on top of a stack that is not empty.
    #[inline]
    pub(super) fn pop(&mut self, top: &mut u32) -> u32 {
        let port = *self.at(*top);
        *top -= 1;
        if position(*top) == 0 {
            let (line, free) = (*top, self.free);
            *top = std::mem::replace(self.at(line), free);
            self.free = line;
        }
        port
    }

    /// Removes the port at a place. The port on top takes its place, and is returned if it is another one.
    pub(super) fn remove(&mut self, top: &mut u32, place: u32) -> Option<u32> {
        let another = *top != place;
        let last = self.pop(top);
        another.then(|| {
            *self.at(place) = last;
            last
        })
    }

    #[inline(always)]
    fn at(&mut self, place: u32) -> &mut u32 {
        &mut self.lines[place as usize / (1 + PORTS)].0[position(place)]
    }
}

/// The position of a place in its line.
#[inline(always)]
fn position(place: u32) -> usize {
    place as usize % (1 + PORTS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STACKS: usize = 3;

    proptest! {
        #[test]
        fn behave_like_vectors(steps in prop::collection::vec((0usize..STACKS, 0u8..3, 0u32..60), 0..400)) {
            let mut stacks = Stacks::new();
            stacks.grow(60, STACKS);
            let mut tops = [NONE; STACKS];
            let mut places = [NONE; 60];
            let mut models = [const { Vec::new() }; STACKS];
            for (stack, step, port) in steps {
                let place = places[port as usize];
                let owner = models.iter().position(|model: &Vec<u32>| model.contains(&port));
                prop_assert_eq!(owner.is_some(), place != NONE);
                match (step, owner) {
                    (0, None) => {
                        places[port as usize] = stacks.push(&mut tops[stack], port);
                        models[stack].push(port);
                    }
                    (1, Some(owner)) => {
                        let moved = stacks.remove(&mut tops[owner], place);
                        places[port as usize] = NONE;
                        let at = models[owner].iter().position(|known| *known == port).unwrap();
                        models[owner].swap_remove(at);
                        prop_assert_eq!(moved, models[owner].get(at).copied());
                        if let Some(moved) = moved {
                            places[moved as usize] = place;
                        }
                    }
                    _ => if let Some(port) = models[stack].pop() {
                        prop_assert_eq!(stacks.pop(&mut tops[stack]), port);
                        places[port as usize] = NONE;
                    }
                }
                prop_assert!(tops.iter().zip(&models).all(|(top, model)| (*top == NONE) == model.is_empty()));
            }
        }
    }
}
