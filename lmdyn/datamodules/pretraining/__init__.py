"""Rows for masked, causal and cloze pretraining, from a corpus or a stream."""
