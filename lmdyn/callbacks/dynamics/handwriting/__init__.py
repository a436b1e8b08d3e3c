"""Letters that are written by readouts of an encoder's transient."""
