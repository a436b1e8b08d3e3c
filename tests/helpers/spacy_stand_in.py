"""A stand-in: the parts of spaCy that SpacyTagger calls."""

import json
from functools import cache
from pathlib import Path


@cache
def tags():
    """By word, of the file that lies beside the copy of this one."""
    return json.loads(Path(__file__).with_name("tags.json").read_text(encoding="utf-8"))


class Token:
    def __init__(self, word):
        unknown = ("PROPN", "NNP") if word[:1].isupper() else ("NOUN", "NN")
        self.pos_, self.tag_ = tags().get(word.lower(), unknown)


class Doc(list):
    def __init__(self, vocab, words):
        super().__init__(Token(word) for word in words)


class Language:
    vocab = None
    meta = {"lang": "en", "name": "core_web_sm", "version": "3.8.0"}
    config = {"nlp": {"lang": "en"}}

    def to_bytes(self):
        return repr(self.meta).encode()

    def pipe(self, docs, batch_size):
        return docs


def load(name, exclude=()):
    if name != "en_core_web_sm":
        raise OSError(f"no model {name}")
    return Language()
