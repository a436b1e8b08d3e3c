"""Arguments of ``EncoderDynamics``, one by one as in its files: tests change few of many."""

from dataclasses import fields

from lmdyn.callbacks import DynamicsNumerics, LongTerm, ShortTerm

GROUPS = {
    "short_term": ("short_", ShortTerm),
    "long_term": ("long_", LongTerm),
    "numerics": ("", DynamicsNumerics),
}


def grouped(**flat):
    """Arguments with the settings of each group in its dataclass."""
    found = {}
    for group, (prefix, kind) in GROUPS.items():
        names = {field.name: field.name for field in fields(kind)}
        names |= {name: prefix + name for name in ("steps", "tau", "sentences") if prefix and name in names}
        given = {name: flat.pop(there) for name, there in names.items() if there in flat}
        found |= {group: kind(**given)} if given else {}
    return {**found, **flat}
