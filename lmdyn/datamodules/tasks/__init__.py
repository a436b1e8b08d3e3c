"""Downstream tasks: GLUE, SQuAD."""
