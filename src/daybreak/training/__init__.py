"""Floor 2: the clock, schedules, objectives, optimizers and the one pretraining loop."""
