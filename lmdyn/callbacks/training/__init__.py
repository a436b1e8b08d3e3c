"""Tools for training: checkpoints, resuming, schedules, time budgets, fine-tuning of copies."""
