"""The training loop, clock, schedules, objectives and optimizers."""
