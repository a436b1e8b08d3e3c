"""Silver annotation for text without gold annotation: taggers that add layers to tokenised sentences."""

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import Any

from lmdyn.datamodules.corpora.conllu import read_conllu
from lmdyn.datamodules.files.text_files import expand_paths, file_digest

Tags = dict[str, tuple[str | None, ...]]
"""Labels of the words of a sentence, by layer; None means no label."""


class Tagger(ABC):
    """Adds token layers to sentences that are already split into words."""

    @abstractmethod
    def tag(self, sentences: Sequence[tuple[str, ...]]) -> list[Tags]:
        """Return the labels of each sentence: a dict of layers with one label per word, None if it has none."""

    @abstractmethod
    def key(self) -> dict[str, Any]:
        """Return plain values that determine the tags; part of the key of the cache."""


class LexiconTagger(Tagger):
    """Assigns to each word its most frequent ``upos`` and ``xpos`` tag in a treebank; unknown words have none.

    Args:
        train: path of a CoNLL-U file; ``$VAR`` and ``~`` are expanded.
        lowercase: whether to count and look up words in lower case.
        min_share: a word has no tag if the share of its most frequent one is below this.

    Raises:
        FileNotFoundError: on first use, if the file does not exist.
        ValueError: if ``min_share`` is outside 0 ... 1; on first use, if a line is malformed.
    """

    def __init__(self, train: str, lowercase: bool = True, min_share: float = 0.0) -> None:
        if not 0 <= min_share <= 1:
            raise ValueError(f"min_share must be from 0 to 1, got {min_share}")
        self.train = train
        self.lowercase = lowercase
        self.min_share = min_share

    @cached_property
    def _lexicon(self) -> dict[str, dict[str, str | None]]:
        counts: dict[str, dict[str, Counter[str]]] = {n: defaultdict(Counter) for n in ("upos", "xpos")}
        for path in expand_paths(self.train):
            for s in chain.from_iterable(read_conllu(path, self.lowercase)):
                for layer, table in counts.items():
                    for word, tag in zip(s.words, getattr(s, layer) or (), strict=False):
                        if tag is not None:
                            table[word][tag] += 1
        found = ((layer, table) for layer, table in counts.items() if table)
        return {layer: {word: self._best(tags) for word, tags in table.items()} for layer, table in found}

    def _best(self, tags: Counter[str]) -> str | None:
        tag = min(tags, key=lambda t: (-tags[t], t))
        return tag if tags[tag] >= self.min_share * tags.total() else None

    def tag(self, sentences: Sequence[tuple[str, ...]]) -> list[Tags]:
        """Return the labels of each sentence, by lookup."""
        if self.lowercase:
            sentences = [tuple(w.lower() for w in words) for words in sentences]
        return [
            {layer: tuple(map(table.get, words)) for layer, table in self._lexicon.items()}
            for words in sentences
        ]

    def key(self) -> dict[str, Any]:
        """Return the hash of the treebank, and the settings."""
        files = [file_digest(path) for path in expand_paths(self.train)]
        return {"tagger": "lexicon", "files": files, "lowercase": self.lowercase, "min_share": self.min_share}


class SpacyTagger(Tagger):
    """``upos`` and ``xpos`` of a spaCy pipeline, run over the given words.

    Args:
        model: name or path of the pipeline.
        batch_size: sentences per call of the pipeline.

    Raises:
        ImportError: on first use, if spaCy or its model is not installed.
    """

    def __init__(self, model: str = "en_core_web_sm", batch_size: int = 256) -> None:
        self.model = model
        self.batch_size = batch_size

    @cached_property
    def _pipeline(self) -> Any:
        try:
            import spacy
        except ImportError as error:
            raise ImportError("spaCy is missing: pip install 'lmdyn[spacy]', or use LexiconTagger") from error
        try:
            return spacy.load(self.model, exclude=["parser", "ner", "lemmatizer", "senter"])
        except OSError as error:
            raise ImportError(f"{self.model} is missing: python -m spacy download {self.model}") from error

    def tag(self, sentences: Sequence[tuple[str, ...]]) -> list[Tags]:
        """Return the labels of each sentence, by the pipeline's tagger and attribute ruler."""
        from spacy.tokens import Doc

        pipeline = self._pipeline
        texts = (Doc(pipeline.vocab, words=list(words)) for words in sentences)
        return [
            {"upos": tuple(t.pos_ or None for t in doc), "xpos": tuple(t.tag_ or None for t in doc)}
            for doc in pipeline.pipe(texts, batch_size=self.batch_size)
        ]

    def key(self) -> dict[str, Any]:
        """Return name and version of the pipeline."""
        meta = self._pipeline.meta
        return {"tagger": "spacy", "model": f"{meta['lang']}_{meta['name']}", "version": meta["version"]}
