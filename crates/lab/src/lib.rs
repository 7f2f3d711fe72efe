//! Guests, their images, the agent inside, experiments.
