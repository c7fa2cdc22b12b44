"""Fine-tuning and scoring: tasks (a table), metrics, the second and last training loop, protocols."""
