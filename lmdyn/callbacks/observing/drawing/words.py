"""Words on screen for the names in observations: of quantities, sites, group columns and their values."""

import re
from numbers import Real
from typing import Any

from lmdyn.runs.schema import Quantity

_COLUMNS = {
    "by": "grouping",
    "over": "tokens",
    "pos": "part of speech",
    "pos_class": "kind of words",
    "rank": "frequency rank",
    "reference": "compared with",
    "reference_site": "layer",
    "role": "role of the word",
    "semtag": "semantic tag",
    "semtag_coarse": "semantic tag",
    "site": "layer",
    "upos": "part of speech",
}
_TAGS = {
    "ADJ": "adjectives",
    "ADP": "adpositions",
    "ADV": "adverbs",
    "AUX": "auxiliaries",
    "CCONJ": "coordinating conjunctions",
    "DET": "determiners",
    "INTJ": "interjections",
    "NOUN": "nouns",
    "NUM": "numerals",
    "PART": "particles",
    "PRON": "pronouns",
    "PROPN": "proper nouns",
    "PUNCT": "punctuation",
    "SCONJ": "subordinating conjunctions",
    "SYM": "symbols",
    "VERB": "verbs",
    "X": "other words",
}
_ROLES = {"target": "predicted words", "input": "words read"}
_BANDS = re.compile(r"(\d+)(?:-(\d+)|\+)")
_ACRONYMS = re.compile(r"\b(?:(?:sv|pw)?cca|cka|rsa|nmse|f1|di)\b")
_SITE = re.compile(r"(?:layer|block)([@_]?)(\d+)|h(\d+)")


def site_label(site: str) -> str:
    """Return the name of a site in figures: layers by their number from 1, also those that share one module.

    Example:
        >>> [site_label(site) for site in ("layer@0", "layer3", "block_00", "h2", "embedding", "mlp_act")]
        ['layer 1', 'layer 3', 'layer 1', 'layer 2', 'embedding', 'mlp act']
    """
    found = _SITE.fullmatch(site)
    if found is None:
        return site if "." in site else site.replace("_", " ")
    return f"layer {int(found[2] or found[3]) + bool(found[1])}"


def column_words(column: str) -> str:
    """Return what a group column distinguishes.

    Example:
        >>> column_words("upos"), column_words("data_draw")
        ('part of speech', 'data draw')
    """
    return _COLUMNS.get(column, column.replace("_", " "))


def value_words(column: str, value: Any, by: str = "") -> str:
    """Return a value of a group column; ``by`` is the grouping of a value in the column ``group``.

    Example:
        >>> value_words("upos", "NOUN"), value_words("group", "10-99", by="rank"), value_words("head", 3)
        ('nouns', 'frequency ranks 10–99', 'head 3')
        >>> value_words("pos_class", "0-9"), value_words("site", "block_01"), value_words("role", "input")
        ('words seen 0–9 times', 'layer 2', 'words read')
    """
    text = str(value)
    if not isinstance(value, str):
        return f"{column_words(column)} {f'{value:g}' if isinstance(value, Real) else text}"
    if column in ("site", "reference_site"):
        return site_label(text)
    if column == "by":
        return column_words(text)
    if column == "over" and text in ("all", "last"):
        return "" if text == "all" else "last tokens"
    if by and text.isdigit():
        return f"{column_words(by)} {text}"
    band = _BANDS.fullmatch(text)
    if band and (by == "rank" or column in ("rank", "pos_class")):
        ends = f"{band[1]}–{band[2]}" if band[2] else f"{band[1]} or more"
        return f"frequency ranks {ends}" if column != "pos_class" else f"words seen {ends} times"
    known = _ROLES if column == "role" else _TAGS if "upos" in (column, by) or column == "pos_class" else {}
    return known.get(text, text.replace("_", " "))


def quantity_words(name: str, declared: Quantity | None) -> str:
    r"""Return the name of a quantity in words, with its unit.

    Example:
        >>> quantity_words("rankme", Quantity("rankme", "", short="effective rank,\nuncentred"))
        'effective rank, uncentred'
        >>> quantity_words("mean_loss", Quantity("mean_loss", "", unit="nats")), quantity_words("my_own", None)
        ('mean loss (nats)', 'my own')
    """
    label = declared.label if declared else name.replace("_", " ")
    if declared is None or not declared.short:
        return _ACRONYMS.sub(lambda found: found[0].upper(), label)
    words = " ".join(declared.short.split()) or name
    return f"{words} ({declared.unit})" if declared.unit and declared.unit not in words else words
