"""Annotated text: sentences, readers of corpora, tokenization, encoding, batches for BPTT."""
