"""Fine-tune a model on a task and collect its scores."""
