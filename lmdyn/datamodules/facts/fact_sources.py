"""Sources of facts: T-REx as in LAMA, or the knowledge base of the synthetic grammar."""

import logging
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lmdyn.datamodules.files.checks import each_once
from lmdyn.datamodules.files.text_files import expand_paths, read_json_lines, read_lines, shown
from lmdyn.datamodules.grammar.grammar import GrammarCorpus
from lmdyn.datamodules.grammar.lexicon import RELATIONS

logger = logging.getLogger(__name__)

PUBLICATION: Mapping[str, str] = {
    "P140": "[X] is affiliated with the [Y] religion .",
    "P103": "The native language of [X] is [Y] .",
    "P276": "[X] is located in [Y] .",
    "P176": "[X] is produced by [Y] .",
    "P264": "[X] is represented by music label [Y] .",
    "P30": "[X] is located in [Y] .",
    "P138": "[X] is named after [Y] .",
    "P279": "[X] is a subclass of [Y] .",
    "P131": "[X] is located in [Y] .",
    "P407": "[X] was written in [Y] .",
    "P36": "The capital of [X] is [Y] .",
    "P159": "The headquarter of [X] is in [Y] .",
    "P17": "[X] is located in [Y] .",
    "P495": "[X] was created in [Y] .",
    "P20": "[X] died in [Y] .",
    "P136": "[X] plays [Y] music .",
    "P740": "[X] was founded in [Y] .",
    "P1376": "[X] is the capital of [Y] .",
    "P361": "[X] is part of [Y] .",
    "P364": "The original language of [X] is [Y] .",
    "P37": "The official language of [X] is [Y] .",
    "P127": "[X] is owned by [Y] .",
    "P19": "[X] was born in [Y] .",
    "P413": "[X] plays in [Y] position .",
    "P449": "[X] was originally aired on [Y] .",
}
"""Templates of the 25 relations of Chiang et al. 2020, table 8, in its order."""

_KINDS = ("1-1", "N-1", "N-M")
_ONE_TO_ONE = ("P1376", "P36")  # appendix F.1 of the publication; the others are N-1


@dataclass(frozen=True, slots=True)
class Cloze:
    """A fact to be queried.

    Attributes:
        relation: name of the relation.
        subject: words separated by white space.
        object: the answer, one word.
        template: a sentence with ``[X]`` for the subject and, as a separate word, ``[Y]`` for the object.

    Raises:
        ValueError: if subject or object are empty, or the template does not have both placeholders.

    Example:
        >>> Cloze("P36", "France", "Paris", "The capital of [X] is [Y] .").query
        'The capital of France is [MASK] .'
    """

    relation: str
    subject: str
    object: str
    template: str

    def __post_init__(self) -> None:
        if not self.subject.split() or not self.object.split():
            raise ValueError(f"subject and object must be words, got {self.subject!r} and {self.object!r}")
        _check_template(self.relation, self.template)

    @property
    def query(self) -> str:
        """The question as text."""
        return self.template.replace("[Y]", "[MASK]").replace("[X]", self.subject)

    @property
    def name(self) -> str:
        """Subject and object as text."""
        return f"{self.subject} → {self.object}"

    def words(self, lowercase: bool = False) -> tuple[list[str], int]:
        """Return the words of the sentence including the object, and the index of the object's first word."""
        before, after = self.template.split("[Y]")
        texts = (before.replace("[X]", self.subject), self.object, after.replace("[X]", self.subject))
        parts = [(text.lower() if lowercase else text).split() for text in texts]
        return [word for part in parts for word in part], len(parts[0])


# ------------------------------------------------------------------------------------------ sources


class FactSource(ABC):
    """A source of facts. A subclass defines facts, kinds of relations, and candidates."""

    @abstractmethod
    def facts(self) -> Iterator[Cloze]:
        """Yield the facts, relation by relation."""

    @abstractmethod
    def relation_kinds(self) -> dict[str, str]:
        """Return the kind of each relation, ``1-1``, ``N-1`` or ``N-M``."""

    @abstractmethod
    def candidates(self) -> list[str]:
        """Return the words among which an object is chosen when only candidates compete."""


class TrexFacts(FactSource):
    """T-REx in the files of LAMA (Petroni et al. 2019): ``trex_lms_vocab/<relation>.jsonl`` in a folder.

    Each line has a ``sub_label`` and an ``obj_label``. Only the first of identical facts is asked; the number of the
    others is logged.

    Args:
        folder: folder that contains ``trex_lms_vocab``; ``$VAR`` and ``~`` are expanded.
        relations: names such as ``P36``; default: the 25 of Chiang et al. 2020, table 8.
        templates: those of table 8 (``publication``; its 1-1 relations are P1376 and P36, all others N-1), or those
            of ``LAMA_relations.jsonl`` in the folder, with its kinds (``lama``). The two agree on the 25 relations.
        common_vocabulary: path of the candidates, one word per line; default: ``common_vocab_cased.txt`` in the folder.
        paraphrases: additional wordings in which each fact is also asked: a file with one ``{"relation": …,
            "template": …}`` per line, or a folder with ``<relation>.jsonl`` files that have one ``pattern`` per line,
            as in ParaRel (Elazar et al. 2021). Wordings that a relation already has are left out.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a relation has no template; when read, if a line is not a fact (with file and line number).

    Reference: Chiang et al. 2020, section 6 and appendix F; Elsahar et al. 2018.
    """

    def __init__(
        self,
        folder: str = "$LMDYN_DATA/trex",
        relations: Sequence[str] | None = None,
        templates: Literal["publication", "lama"] = "publication",
        common_vocabulary: str | None = None,
        paraphrases: str | None = None,
    ) -> None:
        self.folder = folder
        self.relations = list(PUBLICATION if relations is None else relations)
        self.templates = templates
        self.common_vocabulary = common_vocabulary
        self.paraphrases = paraphrases
        if templates == "publication":
            each_once(sorted(PUBLICATION), 1, relations=self.relations)

    def _relations(self) -> dict[str, tuple[str, str]]:
        """Return template and kind of each relation."""
        if self.templates == "publication":
            return {r: (PUBLICATION[r], "1-1" if r in _ONE_TO_ONE else "N-1") for r in self.relations}
        (path,) = expand_paths(f"{self.folder}/LAMA_relations.jsonl")
        found: dict[str, tuple[str, str]] = {}
        known: set[str] = set()
        for number, entry in read_json_lines(path, ("relation", "template", "type")):
            relation, template, kind = entry["relation"], entry["template"], entry["type"]
            known.add(relation)
            if relation not in self.relations:
                continue
            with _place(path, number):
                _check_template(relation, template)
                if kind not in _KINDS:
                    raise ValueError(f"type {shown(kind)} of {relation}: expected one of {', '.join(_KINDS)}")
                if found.setdefault(relation, (template, kind)) != (template, kind):
                    raise ValueError(f"{relation!r} is on an earlier line with other content: keep one line")
        each_once(sorted(known), 1, relations=self.relations)
        return {relation: found[relation] for relation in self.relations}

    def facts(self) -> Iterator[Cloze]:
        """Yield the facts of each relation, in the order of the files."""
        again = 0
        paraphrases = self._paraphrases()
        for relation, (template, _) in self._relations().items():
            wordings = list(dict.fromkeys([template, *paraphrases.get(relation, [])]))
            (path,) = expand_paths(f"{self.folder}/trex_lms_vocab/{relation}.jsonl")
            seen: set[tuple[str, str]] = set()
            for number, entry in read_json_lines(path, ("sub_label", "obj_label")):
                subject = entry["sub_label"]
                answer = entry["obj_label"]
                if (subject, answer) in seen:
                    again += 1
                    continue
                seen.add((subject, answer))
                with _place(path, number):
                    asked = [Cloze(relation, subject, answer, wording) for wording in wordings]
                yield from asked
            if not seen:
                raise ValueError(f"{path}:1: expected facts, got none: use the complete file")
        if again:
            logger.warning("T-REx: lmdyn asks each fact once, and leaves out %d repetitions", again)

    def _paraphrases(self) -> dict[str, list[str]]:
        """Return additional templates of each relation in the format of table 8: object and full stop set off."""
        if self.paraphrases is None:
            return {}
        found: dict[str, list[str]] = {relation: [] for relation in self.relations}
        for path in expand_paths(self.paraphrases, "*.jsonl"):
            of = path.stem if path.stem in found else None  # a file of one relation, as in ParaRel
            if of is None and Path(os.path.expandvars(self.paraphrases)).expanduser().is_dir():
                continue
            for number, entry in read_json_lines(path, ("pattern",) if of else ("relation", "template")):
                relation = of or entry["relation"]
                template = _apart(entry["pattern" if of else "template"])
                if relation in found:
                    with _place(path, number):
                        _check_template(relation, template)
                    found[relation].append(template)
        if not any(found.get(relation) for relation in self.relations):
            raise ValueError(f"{self.paraphrases} has no paraphrase of {', '.join(self.relations)}: add one")
        return found

    def relation_kinds(self) -> dict[str, str]:
        """Return the kinds of the publication, or of LAMA."""
        return {relation: kind for relation, (_, kind) in self._relations().items()}

    def candidates(self) -> list[str]:
        """Return the common vocabulary."""
        (path,) = expand_paths(self.common_vocabulary or f"{self.folder}/common_vocab_cased.txt")
        words = [line.strip() for _, line in read_lines(path) if line.strip()]
        if not words:
            raise ValueError(f"{path}:1: expected candidates, one word per line, got none")
        return words


class GrammarFacts(FactSource):
    """The knowledge base of the synthetic grammar, queried with the statements in its sentences.

    All relations are N-1: several subjects may have the same object. The candidates are the grammar's names.

    Args:
        corpus: the corpus on which the model is trained; only its grammar is used.
        template: which of the two statements of each relation to query, 0 or 1, or ``both``.

    Raises:
        ValueError: if ``template`` is another value.

    Example:
        >>> facts = GrammarFacts(GrammarCorpus(n_facts=6, n_names=60))
        >>> next(facts.facts()).template
        'the capital of [X] is [Y] .'
    """

    def __init__(self, corpus: GrammarCorpus, template: Literal[0, 1, "both"] = 0) -> None:
        corpus.grammar.require_english("GrammarFacts")
        self.corpus = corpus
        self.template = template

    def facts(self) -> Iterator[Cloze]:
        """Yield the knowledge base, relation by relation."""
        for fact in sorted(self.corpus.grammar.facts, key=lambda f: list(RELATIONS).index(f.relation)):
            for number in (0, 1) if self.template == "both" else (self.template,):
                template = fact.templates[number].format(subject="[X]", object="[Y]")
                yield Cloze(fact.relation, fact.subject, fact.object, template)

    def relation_kinds(self) -> dict[str, str]:
        """Return N-1 for all relations."""
        stated = {fact.relation for fact in self.corpus.grammar.facts}
        return {relation: "N-1" for relation in RELATIONS if relation in stated}

    def candidates(self) -> list[str]:
        """Return all names of the lexicon."""
        return [lexeme.lemma for lexeme in self.corpus.grammar.lexemes["PROPN"]]


def _check_template(relation: str, template: str) -> None:
    if template.count("[X]") != 1 or template.split().count("[Y]") != 1:
        raise ValueError(f"template {shown(template)} of {relation}: expected one [X], and one [Y] as a word")


@contextmanager
def _place(path: Path, number: int) -> Iterator[None]:
    """Within the context, prefix errors with file and line number."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}:{number}: {error}") from error


def _apart(template: str) -> str:
    """Put spaces around the object and before a full stop at the end of a template.

    Example:
        >>> _apart("The capital of [X] is [Y].")
        'The capital of [X] is [Y] .'
    """
    spaced = template.replace("[Y]", " [Y] ").strip()
    return " ".join(re.sub(r"([.!?])$", r" \1", spaced).split())
