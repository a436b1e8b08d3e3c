"""What a training needs beside observers: checkpoints, resuming, schedules, a budget of time."""
