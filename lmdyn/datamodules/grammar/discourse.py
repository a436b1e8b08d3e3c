"""The state of a document of the synthetic corpus: mentioned and salient entities, and the current sentence."""

import itertools
from collections.abc import Callable
from typing import Literal, Self

from lmdyn.datamodules.grammar.lexicon import Lexeme, Samplers, Uniforms
from lmdyn.datamodules.grammar.tree import Argument, Entity, Part, Phrase, Token, under

Tense = Literal["past", "present"]


class Discourse:
    """State that the rules of the grammar read and write while they write a document from left to right.

    A pronoun can only refer to what was mentioned before it. Rules receive a view of the discourse with the ``depth``
    and the ``banned`` entities of their place in the sentence; all views share the rest.

    Attributes:
        depth: levels of embedding and modification still allowed here.
        banned: identifiers of entities that cannot be named here: co-arguments of the same clause (they would need a
            reflexive) and the entity whose own modifier is being written.
        draw: samplers of words.
        u: uniform draws.
        relative: :func:`~lmdyn.datamodules.grammar.clauses.relative_clause`, a rule that noun phrases reach here.
        topic: index of the document's topic.
        past: probability of the past tense.
        salient: for each pronoun, the only entity to which it can currently refer.
        named: for each (lemma, plural), the referent of *the* <lemma>.
        roles: (predicate, argument, label) of this sentence.
        mentions: phrases of this sentence and the entities to which they refer.
    """

    def __init__(self, draw: Samplers, u: Uniforms, relative: Callable[..., Phrase]) -> None:
        self.draw = draw
        self.u = u
        self.relative = relative
        self.topic = int(u() * len(draw.topics))
        self.past = 0.65 if u() < 0.7 else 0.15
        self.salient: dict[str, Entity] = {}
        self.named: dict[tuple[str, bool], Entity] = {}
        self.roles: list[tuple[Token, Part, str]] = []
        self.mentions: list[tuple[Part, Entity]] = []
        self.depth = 1
        self.banned: frozenset[int] = frozenset()
        self._ids = itertools.count()
        self._stack: list[Entity] = []  # in order of recency, most recent last

    def at(self, depth: int, *beside: Argument | Entity) -> Self:
        """Return the view at a depth; there, the entities of ``beside`` are banned too."""
        view = object.__new__(type(self))
        banned = self.banned.union(*[other.named for other in beside])
        vars(view).update(vars(self), depth=depth, banned=banned)
        return view

    def beside(self, *others: Argument | Entity) -> Self:
        """Return the view at the same depth, beside others."""
        return self.at(self.depth, *others)

    def below(self, *beside: Argument | Entity) -> Self:
        """Return the view one level below."""
        return self.at(self.depth - 1, *beside)

    def touch(self, entity: Entity) -> None:
        """Make the entity the most recent one, and the referent of its pronoun."""
        if entity in self._stack:
            self._stack.remove(entity)
        self._stack.append(entity)
        self.salient[entity.pronoun] = entity

    def mention(self, phrase: Part, entity: Entity) -> None:
        """Record a phrase that refers to the entity, now the most recent one."""
        self.touch(entity)
        self.mentions.append((phrase, entity))

    def introduce(self, lexeme: Lexeme | None, plural: bool = False, members: tuple[int, ...] = ()) -> Entity:
        """Return a new entity, mentioned now."""
        entity = Entity(next(self._ids), lexeme, plural, members)
        if lexeme is not None:
            self.named[lexeme.lemma, plural] = entity
        self.touch(entity)
        return entity

    def recall(self, kind: str) -> Entity | None:
        """Return a recent entity of this kind that a pronoun, name or definite phrase can pick out."""
        for entity in self._stack[:-6:-1]:
            if kind in ("person", "place") and entity.kind != kind:
                continue
            if not self.banned.isdisjoint(entity.named):
                continue
            lexeme = entity.lexeme
            if self.salient[entity.pronoun] is not entity and (
                lexeme is None or self.named[lexeme.lemma, entity.plural] is not entity
            ):
                continue
            if self.u() < 0.6:
                return entity
        return None

    def verb(self, frame: str) -> Lexeme:
        """Return a verb of the topic with this frame."""
        return self.draw.verbs[frame](self.u(), self.topic)

    def tense(self) -> Tense:
        """Return the tense of the next clause; documents differ in their share of the past tense."""
        return "past" if self.u() < self.past else "present"

    def add_role(self, predicate: Token, argument: Argument, label: str) -> None:
        """Record the semantic role of an argument, for each phrase that carries it."""
        self.roles += [(predicate, phrase, prefix + label) for phrase, prefix in argument.spans]

    def dependent(self, phrase: Part, verb: Token, relation: str, label: str) -> Part:
        """Attach a phrase to its verb, with its role, and return it."""
        self.roles.append((verb, phrase, label))
        return under(phrase, verb, relation)
