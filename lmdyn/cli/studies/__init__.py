"""Studies of several runs: provenance, records, and the claims that they test."""
