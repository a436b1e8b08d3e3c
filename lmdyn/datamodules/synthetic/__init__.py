"""Languages of random words with one property each: a rule across a scaffold, repeats."""
