"""Studies of several runs: where a run comes from, its records, the claims that it bears."""
