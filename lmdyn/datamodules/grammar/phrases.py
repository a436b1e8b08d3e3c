"""Noun phrases of the synthetic corpus: names, pronouns and descriptions of entities."""

from lmdyn.datamodules.grammar.discourse import Discourse
from lmdyn.datamodules.grammar.lexicon import YEARS, Lexeme
from lmdyn.datamodules.grammar.tree import Argument, Entity, Part, Phrase, Token, under

PRONOUNS = {
    # nominative, accusative, possessive, reflexive
    "he": ("he", "him", "his", "himself"),
    "she": ("she", "her", "her", "herself"),
    "it": ("it", "it", "its", "itself"),
    "they": ("they", "them", "their", "themselves"),
}
_NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve", "twenty")
_NAME_TAGS = {"person": "PER", "city": "GPE", "country": "GPE", "org": "ORG"}
_SINGULAR_DETERMINERS = (
    (0.42, "a", "DIS"),
    (0.74, "the", "DEF"),
    (0.80, "this", "PRX"),
    (0.86, "that", "DST"),
    (0.91, "every", "AND"),
    (0.96, "another", "ALT"),
    (1.00, "no", "NOT"),
)
_PLURAL_DETERMINERS = (
    (0.34, "the", "DEF"),
    (0.56, "", ""),
    (0.66, "some", "DIS"),
    (0.72, "these", "PRX"),
    (0.78, "those", "DST"),
    (0.82, "all", "AND"),
    (0.85, "many", "QUV"),
    (0.87, "few", "QUV"),
    (0.90, "several", "QUV"),
    (1.00, "#", "QUC"),
)
_DEFINITE = ((0.8, "the", "the", "DEF"), (0.9, "this", "these", "PRX"), (1.0, "that", "those", "DST"))
_ANAPHORIC = frozenset(("the", "this", "that", "these", "those"))
_ADJUNCTS = {
    # share, kind and other kind of the noun after a preposition, and the role of both
    **dict.fromkeys(("during", "after", "before"), (0.0, "event", "", "ARGM-TMP")),
    **dict.fromkeys(("in", "at", "near", "on", "behind"), (0.7, "place", "thing", "ARGM-LOC")),
    **dict.fromkeys(("into", "from"), (0.0, "place", "", "ARGM-DIR")),
    **dict.fromkeys(("of", "about", "by", "to"), (0.0, "any", "", "ARGM-ADV")),
    "with": (0.6, "person", "thing", "ARGM-COM"),
    "for": (0.0, "any", "", "ARGM-PRP"),
}
LOCATIVE = ("in", "in", "at", "near", "on", "behind")


def pronoun(d: Discourse, entity: Entity, case: int) -> Phrase:
    """Mention the entity by a pronoun; cases 0 to 3 index :data:`PRONOUNS`."""
    word = PRONOUNS[entity.pronoun][case]
    phrase = Phrase("NP", [Token(word, "PRON", "PRP", "REF" if case == 3 else "PRO")])
    d.mention(phrase, entity)
    return phrase


def proper_name(d: Discourse, lexeme: Lexeme) -> Argument:
    """Return a proper name; the first mention introduces its bearer."""
    entity = d.named.get((lexeme.lemma, False)) or d.introduce(lexeme)
    phrase = Phrase("NP", [Token(lexeme.lemma, "PROPN", "NNP", _NAME_TAGS[lexeme.kind])])
    d.mention(phrase, entity)
    return Argument(phrase, False, entity)


def mention_again(d: Discourse, entity: Entity, case: int) -> Argument:
    """Return another mention of a known entity: pronoun, name, or definite description."""
    lexeme = entity.lexeme
    salient = d.salient[entity.pronoun] is entity
    if lexeme is None or (salient and d.u() < 0.7) or d.named[lexeme.lemma, entity.plural] is not entity:
        return Argument(pronoun(d, entity, case), entity.plural, entity)
    if lexeme.upos == "PROPN":
        return proper_name(d, lexeme)
    noun = noun_token(lexeme, entity.plural)
    u = d.u()
    singular, plural, semtag = next(words for limit, *words in _DEFINITE if u < limit)
    phrase = Phrase(
        "NP", [Token(plural if entity.plural else singular, "DET", "DT", semtag, noun, "det"), noun]
    )
    d.mention(phrase, entity)
    return Argument(phrase, entity.plural, entity)


def with_article(article: Token, following: Part) -> Token:
    """Return the article as *an* if a vowel follows."""
    while isinstance(following, Phrase):
        following = following.parts[0]
    if article.word == "a" and following.word[0] in "aeiou":
        article.word = "an"
    return article


def noun_token(lexeme: Lexeme, plural: bool) -> Token:
    """Return a common noun in its number."""
    xpos = "NNS" if plural else "NN"
    return Token(lexeme.forms[xpos], "NOUN", xpos, "ROL" if lexeme.kind == "person" else "CON")


def attributive_adjectives(d: Discourse, noun: Token) -> list[Part]:
    """Return up to two attributive adjectives, attached to the noun."""
    u = d.u()
    if u < 0.62:
        return []
    first = draw_adjective(d)
    if u < 0.70:
        very = Token("very", "ADV", "RB", "INT", first, "advmod")
        return [under(Phrase("ADJP", [very, first]), noun, "amod")]
    under(first, noun, "amod")
    second = draw_adjective(d)
    if u < 0.93 or second.word == first.word:
        return [first]
    return [first, under(second, noun, "amod")]


def draw_adjective(d: Discourse) -> Token:
    """Return an adjective of the topic."""
    lexeme = d.draw.adjectives(d.u(), d.topic)
    return Token(lexeme.lemma, "ADJ", "JJ", "IST" if lexeme.kind == "intersective" else "SST")


def noun_phrase(
    d: Discourse,
    kind: str = "any",
    case: int = 0,
    topic: int | None = None,
    indefinite: bool = False,
) -> Argument:
    """Return a noun phrase.

    Args:
        d: the document so far.
        kind: ``person``, ``thing``, ``place``, ``event`` or ``any``.
        case: 0 nominative, 1 accusative: the form of pronouns.
        topic: topic of its noun; default: that of the document.
        indefinite: whether to use only new entities, as after *there is*.
    """
    u = d.u()
    if not indefinite:
        if u < 0.45 and kind in ("any", "person", "place"):
            entity = d.recall(kind)
            if entity is not None:
                return mention_again(d, entity, case)
        elif u < 0.52 and d.depth > 0 and kind in ("any", "person"):
            return coordination(d, kind, case)
        if kind in ("any", "person", "place") and d.u() < 0.24:
            lexeme = d.draw.names[kind](d.u(), d.topic)
            entity = d.named.get((lexeme.lemma, False))
            if entity is None or entity.id not in d.banned:
                return proper_name(d, lexeme)
    lexeme = d.draw.nouns[kind](d.u(), d.topic if topic is None else topic)
    return common_noun(d, lexeme, indefinite)


def coordination(d: Discourse, kind: str, case: int) -> Argument:
    """Return two noun phrases joined; two people joined by *and* make a group that *they* refers to."""
    first = noun_phrase(d.at(0), kind, case)
    second = noun_phrase(d.at(0, first), kind, case)
    # with "or", the number of a subject is ambiguous
    disjunction = case == 1 and d.u() < 0.25
    phrase = Phrase.coordinated("NP", first.phrase, second.phrase, disjunction)
    named = first.named | second.named
    group = None
    both_people = all(x.entity is not None and x.entity.kind == "person" for x in (first, second))
    if both_people and not disjunction:
        group = d.introduce(None, True, tuple(sorted(named)))
        d.mentions.append((phrase, group))
    return Argument(phrase, True, group, named=named)


def common_noun(d: Discourse, lexeme: Lexeme, indefinite: bool) -> Argument:
    """Return a noun phrase around a common noun. *no* and *every* refer to nothing."""
    plural = d.u() < 0.36
    noun = noun_token(lexeme, plural)
    parts: list[Part] = []
    refers, again = True, False
    entity: Entity | None = None
    u = d.u()
    if not indefinite and u < 0.10 and (owner := d.recall("any")) is not None:
        parts.append(possessor(d, owner, noun))
        d = d.at(0)  # avoids two owners, as in "his dog of the man"
    else:
        table = _PLURAL_DETERMINERS if plural else _SINGULAR_DETERMINERS
        u = d.u()
        word, semtag = next((w, s) for limit, w, s in table if u <= limit)
        entity = d.named.get((lexeme.lemma, plural))
        if word in _ANAPHORIC:
            if indefinite or (entity is not None and entity.id in d.banned):
                word, semtag = ("some", "DIS") if plural else ("another", "ALT")
            else:
                again = entity is not None
        if word == "#":
            parts.append(Token(d.u.among(_NUMBERS), "NUM", "CD", "QUC", noun, "nummod"))
        elif semtag == "QUV":
            parts.append(Token(word, "ADJ", "JJ", semtag, noun, "amod"))
        elif word:
            parts.append(Token(word, "DET", "DT", semtag, noun, "det"))
        refers = word not in ("no", "every")
    if not again:
        parts.extend(attributive_adjectives(d, noun))
    parts.append(noun)
    if isinstance(parts[0], Token) and parts[0] is not noun:
        with_article(parts[0], parts[1])
    if again:
        assert entity is not None
        d.touch(entity)
    else:
        entity = d.introduce(lexeme, plural) if refers else None
    found = Argument(Phrase("NP", parts), plural, entity)
    if d.depth > 0:
        found = Argument(modifiers(d.below(found), found, lexeme.kind == "person"), plural, entity)
    if entity is not None:
        d.mentions.append((found.phrase, entity))
    return found


def possessor(d: Discourse, owner: Entity, noun: Token) -> Part:
    """Return a possessive pronoun, or a noun phrase with *'s*."""
    by_pronoun = d.salient[owner.pronoun] is owner and (d.u() < 0.75 or owner.lexeme is None)
    inner = Argument(pronoun(d, owner, 2), owner.plural, owner) if by_pronoun else mention_again(d, owner, 1)
    head = inner.phrase.head
    if head.upos == "PRON":
        head.word = PRONOUNS[owner.pronoun][2]
        head.xpos = "PRP$"
        head.semtag = "HAS"
        d.mentions[-1] = (head, owner)
        return under(head, noun, "nmod:poss")
    mark = "'" if head.xpos == "NNS" and head.word.endswith("s") else "'s"
    inner.phrase.parts.append(Token(mark, "PART", "POS", "REL", head, "case"))
    return under(inner.phrase, noun, "nmod:poss")


def modifiers(d: Discourse, modified: Argument, person: bool) -> Phrase:
    """Return the noun phrase within prepositional phrases and relative clauses."""
    u = d.u()
    inner, head = modified.phrase, modified.phrase.head
    if u < 0.20:
        phrase, _ = prepositional_phrase(d, ("of", "of", "with", "near", "from", "in", "for"))
        inner = Phrase("NP", [inner, under(phrase, head, "nmod")], head)
        u = d.u() * 0.5 + 0.2
    if 0.20 <= u < 0.36:
        described = Argument(inner, modified.plural, modified.entity)
        relative = d.relative(d, described, person)
        inner = Phrase("NP", [inner, under(relative, head, "acl:relcl")], head)
    elif 0.36 <= u < 0.39:
        participle = participle_clause(d, inner)
        inner = Phrase("NP", [inner, under(participle, head, "acl")], head)
    return inner


def prepositional_phrase(d: Discourse, prepositions: tuple[str, ...]) -> tuple[Phrase, str]:
    """Return a prepositional phrase and the role it has as an adjunct of a verb."""
    word = d.u.among(prepositions)
    share, kind, other, label = _ADJUNCTS[word]
    if share:
        kind = kind if d.u() < share else other
    return Phrase.after(word, noun_phrase(d, kind, 1).phrase), label


def in_year(d: Discourse) -> Phrase:
    """Return a year: *in 1987*."""
    return Phrase.after("in", Phrase("NP", [Token(d.u.among(YEARS), "NUM", "CD", "YOC")]))


def by_phrase(d: Discourse, verb: Token) -> Part:
    """Return the agent of a passive verb."""
    agent = noun_phrase(d, "person", 1)
    return d.dependent(Phrase.after("by", agent.phrase), verb, "obl:agent", "ARG0")


def participle_clause(d: Discourse, antecedent: Phrase) -> Phrase:
    """Return a reduced passive relative clause: *the dog seen by him*."""
    lexeme = d.verb("transitive")
    verb = Token(lexeme.forms["VBN"], "VERB", "VBN", "EXS")
    d.roles.append((verb, antecedent, "ARG1"))
    return Phrase("VP", [verb, by_phrase(d, verb)], verb)
