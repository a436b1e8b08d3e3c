"""Foundations of all observers: base class, probe set, storage, loggers, references, figures."""
