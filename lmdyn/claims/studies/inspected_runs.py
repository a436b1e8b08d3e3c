"""The conditions of runs that were inspected before claims were stated: our own models on our own texts."""

__all__ = ["GRAMMAR", "SCAFFOLDS", "WIKITEXT", "pretraining"]

Case = tuple[tuple[str, object], ...]

_MODEL = ("model", "LSTMLanguageModel")
GRAMMAR = (_MODEL, ("data", "GrammarCorpus"))
WIKITEXT = (_MODEL, ("data", "TextCorpus"), ("data.train", "wikitext-2/train.txt"))
SCAFFOLDS = (_MODEL, ("data", "ScaffoldCorpus"))


def pretraining(model: str, **config: object) -> tuple[Case, Case]:
    """Return the conditions of models of a class and some sizes on both pretraining texts: grammar and WikiText-2."""
    of = (("model", model), *((f"model.config.{key}", value) for key, value in config.items()))
    return ((*of, ("data.corpus", "GrammarCorpus")), (*of, ("data.corpus.train", "wikitext-2/train.txt")))
