"""What the runs were that had been looked at before claims were said: our own models on our own texts."""

__all__ = ["GRAMMAR", "SCAFFOLDS", "WIKITEXT", "pretraining"]

Case = tuple[tuple[str, object], ...]

_MODEL = ("model", "LSTMLanguageModel")
GRAMMAR = (_MODEL, ("data", "GrammarCorpus"))
WIKITEXT = (_MODEL, ("data", "TextCorpus"), ("data.train", "wikitext-2/train.txt"))
SCAFFOLDS = (_MODEL, ("data", "ScaffoldCorpus"))


def pretraining(model: str, **config: object) -> tuple[Case, Case]:
    """Models of a class, and of some sizes, on the two texts that we pre-train on: the grammar and WikiText-2."""
    of = (("model", model), *((f"model.config.{key}", value) for key, value in config.items()))
    return (
        (*of, ("data.corpus", "GrammarCorpus")),
        (*of, ("data.corpus.train", "wikitext-2/train.txt")),
    )
