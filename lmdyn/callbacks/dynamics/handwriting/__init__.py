"""Letters written by readouts of an encoder's transient."""
