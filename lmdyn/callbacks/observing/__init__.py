"""What all observers stand on: the base class, the probe set, the store, loggers, references, figures."""
