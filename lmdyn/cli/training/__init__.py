"""What a training of the command line adds to Lightning's: checks before it, exact resuming, progress in a log."""
