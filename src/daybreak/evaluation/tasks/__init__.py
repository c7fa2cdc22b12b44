"""Tasks, their files, and the kinds of task that can be fine-tuned."""
