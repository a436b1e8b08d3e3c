"""Parts of a replay: distribution of observations over workers, reading ahead, failures."""
