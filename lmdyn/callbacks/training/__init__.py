"""What trainings need: checkpoints, resuming, schedules, a budget of time, fine-tuning of copies."""
