"""What the runs were that had been looked at before the claims of the thesis' studies were said: ours, of seed 1."""

__all__ = ["GRAMMAR", "SCAFFOLDS", "WIKITEXT"]

_MODEL = ("model", "LSTMLanguageModel")
GRAMMAR = (_MODEL, ("data", "GrammarCorpus"))
WIKITEXT = (_MODEL, ("data", "TextCorpus"), ("data.train", "wikitext-2/train.txt"))
SCAFFOLDS = (_MODEL, ("data", "ScaffoldCorpus"))
