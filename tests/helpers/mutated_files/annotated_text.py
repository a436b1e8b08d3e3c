"""Treebanks and tagged text: CoNLL-U, CoNLL-2012 in three layouts, semantic tags."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lmdyn.datamodules.corpora.conll import read_conll
from lmdyn.datamodules.corpora.conllu import read_conllu
from lmdyn.datamodules.corpora.semtags import SEMTAG_COARSE, read_pmb
from lmdyn.datamodules.corpora.sentence import Document
from tests.helpers.mutants import CELLS, KEEPING, Reader, naive_lines

__all__ = ["READERS"]


def sentences(documents: Iterator[Document]) -> list[Any]:
    found = []
    for document in documents:
        for s in document:
            spans = [
                None if layer is None else sorted((x.start, x.end, x.label) for x in layer)
                for layer in (s.constituents,)
            ]
            roles = (
                None if s.roles is None else sorted((r.predicate, r.start, r.end, r.label) for r in s.roles)
            )
            mentions = None if s.mentions is None else sorted((m.start, m.end, m.entity) for m in s.mentions)
            found.append(
                (
                    document.name,
                    s.words,
                    s.upos,
                    s.xpos,
                    s.semtag,
                    s.semtag_coarse,
                    s.heads,
                    s.deprels,
                    spans[0],
                    roles,
                    mentions,
                )
            )
    return found


def blocks(lines: list[str]) -> Iterator[list[str]]:
    block: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            block.append(line)
        elif block:
            yield block
            block = []


def labels(values: list[str]) -> tuple[str | None, ...] | None:
    named = tuple(None if v.strip() in ("_", "") else re.sub(" {2,}", " ", v) for v in values)
    return named if any(named) else None


def naive_conllu(content: bytes) -> list[Any]:
    found: list[Any] = []
    name = None
    for number, block in enumerate(blocks(naive_lines(content)), start=1):
        about: dict[str, str | None] = {}
        for line in block:
            if line.startswith("#"):
                key, equals, value = (part.strip() for part in line[1:].partition("="))
                if key == "newdoc" or (key and value):
                    about[key] = value if equals else None
        if {"newdoc", "newdoc id"} & set(about):
            name = about.get("newdoc id") or f"x-{number}"
        rows = [line.split("\t") for line in block if not line.startswith("#")]
        other = [row[0] for row in rows if not row[0].isdigit()]
        rows = [row for row in rows if row[0].isdigit()]
        if not rows:
            assert not other
            continue
        assert all(len(row) == 10 for row in rows)
        assert [row[0] for row in rows] == [str(i + 1) for i in range(len(rows))]
        assert all(max(map(int, re.split("[-.]", i))) <= len(rows) for i in other)
        columns = list(zip(*rows, strict=True))
        heads = tuple(int(head) - 1 for head in columns[6]) if set(columns[6]) != {"_"} else None
        words = tuple("_".join(form.split()) for form in columns[1])
        found.append(
            (
                name or about.get("sent_id") or f"x-{number}",
                words,
                labels(columns[3]),
                labels(columns[4]),
                None,
                None,
                heads,
                labels(columns[7]),
                None,
                None,
                None,
            )
        )
    return found


CONLLU = """\
# newdoc id = one
# sent_id = one-1
# text = The cat doesn't sleep.
1\tThe\tthe\tDET\tDT\tDefinite=Def|PronType=Art\t2\tdet\t_\t_
2\tcat\tcat\tNOUN\tNN\tNumber=Sing\t5\tnsubj\t5:nsubj\t_
3-4\tdoesn't\t_\t_\t_\t_\t_\t_\t_\t_
3\tdoes\tdo\tAUX\tVBZ\t_\t5\taux\t_\t_
4\tn't\tnot\tPART\tRB\t_\t5\tadvmod\t_\t_
5\tsleep\tsleep\tVERB\tVB\t_\t0\troot\t_\tSpaceAfter=No
6\t.\t.\tPUNCT\t.\t_\t5\tpunct\t_\t_

# sent_id = one-2
1\tNew York\tNew York\tPROPN\tNNP\t_\t2\tnsubj\t_\t_
2\twaits\twait\tVERB\tVBZ\t_\t0\troot\t_\t_
2.1\twaits\twait\tVERB\tVBZ\t_\t_\t_\t0:root\t_

# newdoc id = two
# sent_id = two-1
1\tÉmile\tÉmile\tPROPN\tNNP\t_\t2\tnsubj\t_\t_
2\truns\trun\tVERB\tVBZ\t_\t0\troot\t_\t_
3\t#\t#\tSYM\t_\t_\t2\tobj\t_\t_

"""

PMB = """\
# newdoc id = p02/d0010
# raw = She sleeps in New York .
She\tshe\tfemale\tPRO\tnp\tO\t[]
sleeps\tsleep\tsleep\tENS\ts\\np\tO\t[Theme]
in\tin\tin\tREL\tpp/np\tO\t[Location]
New~York\tnew~york\tcity\tGPE\tn\tB-GPE\t[Name]
.\t.\t.\tNIL\t.\tO\t[]

# newdoc id = p02/d0011
#\t#\t#\tXYZ\tn\tO\t[]
1\t1\tcardinal\tQUC\tn\tO\t[]

Ça~va\tça~va\t\tITJ\ts\tO\t[]
?\t?\t\tQUE\t.\tO\t[]
"""


def naive_pmb(content: bytes) -> list[Any]:
    found: list[Any] = []
    name, number, rows = None, 0, []
    for line in [*naive_lines(content), ""]:
        newdoc = re.match(r"# newdoc\b(?: id =)?(.*)", line)
        if rows and (newdoc or not line.strip()):
            number += 1
            words, tags = (tuple(part) for part in zip(*rows, strict=True))
            coarse = tuple(SEMTAG_COARSE.get(tag, "UNK") for tag in tags)
            found.append(
                (name or f"x-{number}", words, None, None, tags, coarse, None, None, None, None, None)
            )
            rows = []
        if newdoc:
            number += 1
            name = newdoc[1].strip() or f"x-{number}"
        elif line.strip() and not re.match(r"#+( |$)", line):
            cells = line.split("\t")
            assert len(cells) == 7
            assert all(cells[i].strip() for i in (0, 3))
            rows.append(("_".join(cells[0].split()), cells[3].strip()))
    return found


ONTONOTES = """\
#begin document (bc/x/00/x_0000); part 000
bc/x 0 0 The DT (TOP(S(NP* - - - Ann * (ARG0* * (3
bc/x 0 1 cat NN *) - - - Ann * *) * 3)
bc/x 0 2 -LRB- -LRB- (VP* - - - Ann * * * -
bc/x 0 3 wants VBZ * want 01 1 Ann * (V*) * -
bc/x 0 4 to TO (S(VP* - - - Ann * (ARG1* * -
bc/x 0 5 sleep VB (VP*)))))) sleep 02 1 Ann * *) (V*) (4)

bc/x 0 0 It PRP (TOP(S(NP-SBJ*) - - - - * (ARG0*) (3)|(4)
bc/x 0 1 runs VBZ (VP*))) run 02 1 - * (V*) -

#end document
#begin document (bc/x/00/x_0000); part 001
bc/x 1 0 Élan NN (TOP(NP*)) - - - - (ORG) (0)

#end document
"""


def _tabs(text: str, drop: slice | None = None, keep: Callable[[str], bool] = lambda line: True) -> str:
    lines = []
    for line in text.splitlines():
        cells = line.split(" ")
        if drop is not None and not line.startswith("#"):
            cells = cells[: drop.start] + cells[drop.stop :] if drop.stop is not None else cells[: drop.start]
        if keep(line):
            lines.append((" " if line.startswith("#") else "\t").join(cells))
    return "\n".join(lines) + "\n"


GUM = re.sub(r"(?m)^(bc/x (?:\S+ ){10}).*?(\S+)$", r"\1\2", ONTONOTES)
GUM = _tabs(GUM)
EWT = """\
x-1 s1 0 She PRP (TOP(S(NP*) - - (ARG0*) (ARG0*)
x-1 s1 1 wants VBZ (VP* want want.01 (V*) *
x-1 s1 2 to TO (S(VP* - - (ARG1* *
x-1 s1 3 run VB (VP*)))))) run run.02 *) (V*)

x-2 s2 0 It PRP (TOP(S(NP*) - - (ARG1*)
x-2 s2 1 is VBZ (VP* - - *
x-2 s2 2 # NN (NP*)))) # #.01 *
""".replace(" ", "\t")


def _brackets(cells: tuple[str, ...]) -> list[tuple[int, int, str]]:
    spans: list[Any] = []
    stack: list[int] = []
    for i, cell in enumerate(cells):
        if cell in ("-", "*"):
            continue
        assert cell.count("*") == 1
        before, after = cell.split("*")
        for label in before.split("(")[1:]:
            stack.append(len(spans))
            spans.append([i, None, label])
        assert before[:1] in ("", "(")
        assert not after.strip(")")
        assert ")" not in before
        for _ in after:
            spans[stack.pop()][1] = i + 1
    assert not stack
    return [(start, end, label) for start, end, label in spans]


def naive_conll(
    content: bytes, fixed: int, *, coreference: bool, predicates: bool, tabs: bool, unescape: bool
) -> list[Any]:
    found: list[Any] = []
    name: str | None = None
    entities: dict[str, int] = {}
    rows: list[list[str]] = []
    for line in [*naive_lines(content), ""]:
        if rows and (not line.strip() or line.startswith("#")):
            cells = list(zip(*rows, strict=True))
            assert list(cells[2]) == [str(i) for i in range(len(rows))]
            if not coreference:
                name = cells[0][0]
            tags = [None if tag in ("-", "_", "") else tag for tag in cells[4]]
            escaped = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
            words = tuple("_".join(word.split()) for word in cells[3])
            words = tuple(escaped.get(w, w) if unescape else w for w in words)
            phrases = [(a, b, re.split(r"(?<=.)[-=]", c)[0]) for a, b, c in _brackets(cells[5])]
            roles = []
            framed = [i for i, frame in enumerate(cells[7]) if frame not in ("-", "_")]
            columns = cells[fixed : len(cells) - coreference]
            for k, column in enumerate(columns):
                spans = _brackets(column)
                verbs = [a for a, _, label in spans if label == "V"] or (
                    [framed[k]] if len(framed) == len(columns) else []
                )
                (verb,) = verbs
                roles += [(verb, a, b, label) for a, b, label in spans if label != "V"]
            mentions = []
            opened: dict[str, list[int]] = {}
            for i, cell in enumerate(cells[-1] if coreference else ()):
                for bit in cell.split("|") if cell not in ("-", "_", "*") else ():
                    assert re.fullmatch(r"\(\d+\)?|\d+\)", bit)
                    chain = bit.strip("()")
                    if bit[0] == "(":
                        opened.setdefault(chain, []).append(i)
                    if bit[-1] == ")":
                        mentions.append(
                            (opened[chain].pop(), i + 1, entities.setdefault(chain, len(entities)))
                        )
            assert not any(opened.values())
            roots = ("", "TOP", "ROOT", "NOPARSE")
            found.append(
                (name, words, None, tuple(tags) if any(tags) else None, None, None, None, None,
                 sorted(p for p in phrases if p[2] not in roots) if phrases else None,
                 sorted(roles) if predicates else None, sorted(mentions) if coreference else None)
            )  # fmt: skip
            rows = []
        if line.startswith("#begin"):
            begin = re.fullmatch(r"#begin document \(?(.*?)\)?(?:; part (\d+))?\s*", line)
            assert begin
            assert name is None
            name, entities = "/".join(part for part in begin.groups() if part), {}
        elif line.startswith("#end") and line.split()[0] == "#end":
            assert name is not None
            name = None
        elif line.strip() and not line.startswith("#"):
            assert name is not None or not coreference
            cells_ = line.split("\t")
            if not tabs and len(cells_) < fixed + coreference:
                cells_ = line.split()
            assert len(cells_) == len(rows[0]) if rows else len(cells_) >= fixed + coreference
            rows.append([cell.strip() or "-" for cell in cells_])
    assert name is None or not coreference
    return found


def reader(file: str, valid: str, read: Callable[[Path], Iterator[Document]], naive: Any) -> Reader:
    """Of a file with cells, that keeps its content under other line ends."""
    return Reader(
        file, valid.encode(), lambda folder: sentences(read(folder / file)), naive, CELLS, keeping=KEEPING
    )


READERS = {
    "CoNLL-U": reader("x.conllu", CONLLU, read_conllu, naive_conllu),
    "semantic tags": reader("x.conll", PMB, read_pmb, naive_pmb),
    "CoNLL-2012": reader(
        "x.gold_conll", ONTONOTES, lambda path: read_conll(path, "conll2012"),
        lambda content: naive_conll(content, 11, coreference=True, predicates=True, tabs=False, unescape=True),
    ),
    "CoNLL-2012 of GUM": reader(
        "x.gold_conll", GUM, lambda path: read_conll(path, "gum"),
        lambda content: naive_conll(content, 11, coreference=True, predicates=False, tabs=True, unescape=False),
    ),
    "CoNLL-2012 of PropBank": reader(
        "x.gold_conll", EWT, lambda path: read_conll(path, "ewt_propbank"),
        lambda content: naive_conll(content, 8, coreference=False, predicates=True, tabs=True, unescape=False),
    ),
}  # fmt: skip
