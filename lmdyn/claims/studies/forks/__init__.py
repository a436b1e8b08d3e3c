"""Claims about forks: runs that continue from one checkpoint with another setting or order of the data."""
