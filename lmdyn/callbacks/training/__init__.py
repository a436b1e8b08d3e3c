"""What a training needs next to observers: checkpoints, resuming, schedules, a budget of time."""
