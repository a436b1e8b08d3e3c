"""The synthetic language of Saphra & Lopez 2020: a rule over a distance, across familiar or unfamiliar words."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from lmdyn.datamodules.corpora.corpus import SPLITS
from lmdyn.datamodules.corpora.sentence import Document, Sentence
from lmdyn.datamodules.corpora.tokenization import Ids
from lmdyn.datamodules.files.checks import at_least
from lmdyn.datamodules.synthetic.random_words import RandomWords, word_names

OPEN, CLOSE = "α", "ω"
"""The symbols that begin and end the rule."""

_WORDS_PER_SENTENCE = 100  # the text has no sentences; it is passed on in pieces of this length
_PHRASES, _EXAMPLES, _SCRAMBLED = 100, 200, 300  # random streams; those of the splits are 0, 1, 2


class ScaffoldCorpus(RandomWords):
    """Uniform noise with ``n_rules`` instances of α q ω, where the scaffold q is one of 100 phrases of k words.

    α predicts ω, k + 1 words later: a long-range rule across a scaffold. Both settings draw their scaffolds from
    the same phrases, so that the rule occurs equally often with each. In the familiar setting, each phrase also
    occurs ``n_outside`` times elsewhere in the text and can be learned by itself. All other words are drawn uniformly
    from Σ, which excludes α and ω; single words (k = 1) can be familiar only by chance. The number of words does
    not depend on the setting. Validation and test splits use the same phrases, with rules at the same rate.

    The text is one stream without sentences: no end-of-sentence token is written unless ``eos`` is set. It has no
    documents either: ``order_seed`` permutes the parts of the training text, i.e. instances of the rule, phrases
    outside it and single words of noise.

    With ``first_use`` the text is an intervention (Saphra 2021, section 5.1): phrases occur outside the rule only
    before its first use, and only those of one half; afterwards the rule is used across one half, the same one
    (``familiar``) or the other. Texts in which the same half occurs outside are equal up to the first use, and later
    differ only in the words of the scaffolds: two runs with the same seed are forks of one model at this step.

    Args:
        familiar: whether the phrases also occur outside the rule.
        length: k, words per scaffold.
        n_rules: n, instances of the rule in the training text.
        n_phrases: number of different scaffolds; instance i of the rule uses phrase i modulo this.
        n_outside: occurrences of each phrase outside the rule in the familiar training text.
        n_types: |Σ|, number of word types except α and ω.
        n_train_tokens: words of the training split.
        n_validation_tokens: words of the validation split.
        n_test_tokens: words of the test split.
        first_use: share of the text before the first instance of the rule, in each of the ``batch_size`` parts that
            one process reads side by side; None or 0: the rule is used throughout.
        half: the half of the phrases which the rule uses if ``first_use`` is above 0: those with even (0, and
            None) or odd (1) index.
        scrambled: whether each occurrence outside the rule has the phrase's words in an order of its own: then the
            words are familiar and the phrases are not.
        language_seed: seed of the phrases and the text.
        eos: whether to write the end-of-sentence token after each piece of 100 words.
        **kwargs: see :class:`~lmdyn.datamodules.Corpus`.

    Attributes:
        vocabulary: all words: Σ, then α and ω.
        phrases: (n_phrases, length) index of each word of the scaffolds in ``vocabulary``.

    Raises:
        ValueError: if a size is below 1, there are too few possible phrases, or rules and phrases exceed the text; for
            ``first_use`` with single words or one phrase.

    Reference: Saphra & Lopez 2020, sections 4.2 and 4.3, appendix B (Saphra 2021, chapter 5).

    Example:
        >>> corpus = ScaffoldCorpus(familiar=True, length=2, n_train_tokens=1000, n_rules=20, n_outside=2)
        >>> words = [word for document in corpus.documents("train") for s in document for word in s.words]
        >>> len(words), words.count(OPEN), words.count(CLOSE)
        (1000, 20, 20)
        >>> words.index(CLOSE) - words.index(OPEN)
        3
    """

    _orders_itself: ClassVar[bool] = True

    language = ("familiar", "length", "n_rules", "n_phrases", "n_outside", "n_tokens", "language_seed")

    def content_key(self) -> dict[str, Any]:
        """Return the settings of the language, and its version."""
        later = [*["first_use", "half", "batch_size"] * bool(self.first_use), *["scrambled"] * self.scrambled]
        return super().content_key() | {name: getattr(self, name) for name in later}

    def word_counts(self) -> Counter[str]:
        """Count each word in the training split; with ``first_use`` all alike, for equal ids in all such texts."""
        if not self.first_use:
            return super().word_counts()
        return Counter(dict.fromkeys(self.vocabulary, self.min_count))

    def __init__(
        self,
        familiar: bool = True,
        length: int = 2,
        *,
        n_rules: int = 1000,
        n_phrases: int = 100,
        n_outside: int = 1000,
        n_types: int = 1000,
        n_train_tokens: int = 1_000_000,
        n_validation_tokens: int = 50_000,
        n_test_tokens: int = 50_000,
        first_use: float | None = None,
        half: Literal[0, 1] | None = None,
        scrambled: bool | None = None,
        language_seed: int = 0,
        eos: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(eos=eos, **kwargs)
        self.n_tokens = self.by_split(n_train_tokens, n_validation_tokens, n_test_tokens)
        at_least(1, length=length, n_phrases=n_phrases, n_types=n_types)
        at_least(0, n_rules=n_rules, n_outside=n_outside, language_seed=language_seed)
        if n_phrases > n_types**length:
            raise ValueError(
                f"n_phrases is {n_phrases}: expected at most n_types ** length, {n_types**length}"
            )
        self.familiar = familiar
        self.length = length
        self.language_seed = language_seed
        self.n_rules = n_rules
        self.n_phrases = n_phrases
        self.n_outside = n_outside
        # null means what it meant when there was no such argument, so that runs of before are of the same condition
        first_use = first_use or 0.0
        half = half or 0
        scrambled = bool(scrambled)
        if not 0 <= first_use < 1 or half not in (0, 1) or (first_use and min(length, n_phrases) < 2):
            raise ValueError(
                f"first_use is {first_use}, half {half}: expected 0, or a share below 1 with at least 2 phrases of at "
                "least 2 words, and the half 0 or 1"
            )
        if scrambled and not familiar:
            raise ValueError(
                "scrambled requires familiar: only then do the phrases of the rule occur outside it"
            )
        self.first_use = first_use
        self.half = half
        self.scrambled = scrambled
        self.vocabulary = [*word_names(n_types), OPEN, CLOSE]
        random = self._random(_PHRASES, length)
        found: dict[tuple[int, ...], None] = {}
        while len(found) < n_phrases:
            found[tuple(random.integers(n_types, size=length).tolist())] = None
        self.phrases = np.array(list(found))
        for split in SPLITS:
            for size, rules, outside in self._sections(split):
                words = rules * (length + 2) + outside * length
                if words > size:
                    raise ValueError(
                        f"{rules} instances of the rule and {outside} phrases outside it fill {words} words, more than "
                        f"{f'{size} of ' * bool(first_use)}n_{split}_tokens = {self.n_tokens[split]}: raise "
                        "n_train_tokens, or lower n_rules or n_outside"
                    )

    @property
    def n_types(self) -> int:
        """|Σ|."""
        return len(self.vocabulary) - 2

    def _random(self, *stream: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence([self.language_seed, *stream]))

    def _used(self, *, in_rule: bool) -> Ids:
        """Return the phrases which the rule uses, or those which may occur outside it."""
        half = self.half if in_rule or self.familiar else 1 - self.half
        return self.phrases[half::2] if self.first_use else self.phrases

    def _sections(self, split: str) -> list[tuple[int, int, int]]:
        """Return words, instances of the rule and phrases outside it by part of the text: per word, as in training."""
        n = self.n_tokens[split]
        share = n / self.n_tokens["train"]
        phrases = len(self._used(in_rule=False)) if self.familiar or self.first_use else 0
        rules = round(self.n_rules * share)
        outside = round(phrases * self.n_outside * share)
        if not self.first_use:
            return [(n, rules, outside)]
        parts = self.batch_size
        sizes, rules_in, outside_in = (
            np.diff(np.arange(parts + 1) * of // parts).tolist() for of in (n, rules, outside)
        )
        before = [round(size * self.first_use) for size in sizes]
        return [
            section
            for size, of, rule, phrase in zip(sizes, before, rules_in, outside_in, strict=True)
            for section in ((of, 0, phrase), (size - of, rule, 0))
        ]

    def text(self, split: str) -> Ids:
        """Return the words of a split as indices into ``vocabulary``: noise, phrases and rules in random order.

        ``order_seed`` permutes those of the training split.
        """
        random = self._random(SPLITS.index(split))
        sections = self._sections(split)
        k, n = self.length, self.n_tokens[split]
        drawn = [
            random.permutation(
                np.repeat([k + 2, k, 1], [rules, outside, size - rules * (k + 2) - outside * k])
            )
            for size, rules, outside in sections
        ]
        lengths = np.concatenate(drawn)
        starts = np.cumsum(lengths) - lengths
        words = random.integers(self.n_types, size=n)
        outside_at = starts[lengths == k]
        if k == 1:  # phrases and noise have the same length: their places are drawn again
            outside_at = random.permutation(outside_at)[: sections[0][2]]
        opens = random.permutation(starts[lengths == k + 2])
        phrases = random.permutation(outside_at)
        scaffold = np.arange(k)
        words[opens] = self.n_types
        words[opens + k + 1] = self.n_types + 1
        words[opens[:, None] + 1 + scaffold] = np.resize(self._used(in_rule=True), (len(opens), k))
        planted = np.resize(self._used(in_rule=False), (len(phrases), k))
        words[phrases[:, None] + scaffold] = (
            self._random(_SCRAMBLED).permuted(planted, axis=1) if self.scrambled else planted
        )
        if split != "train" or self.order_seed is None:
            return words
        random = np.random.default_rng(self.order_seed)
        ends = np.cumsum([len(part) for part in drawn])
        order = np.concatenate(
            [e - len(part) + random.permutation(len(part)) for e, part in zip(ends, drawn, strict=True)]
        )
        lengths, starts = lengths[order], starts[order]
        return words[np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(n)]

    def documents(self, split: str) -> Iterator[Document]:
        """Yield the split as one document."""
        self.require_split(split)
        names = np.array(self.vocabulary, dtype=object)[self.text(split)]
        pieces = (names[i : i + _WORDS_PER_SENTENCE] for i in range(0, len(names), _WORDS_PER_SENTENCE))
        yield Document(split, tuple(Sentence(tuple(piece)) for piece in pieces))

    def examples(
        self, domain: Literal["in", "out"], n: int = 1000, context: int = 20
    ) -> Int[Tensor, "n time"]:
        """Return instances of the rule that were not in the text, as token ids: ``context`` words of noise, α, q, ω.

        Args:
            domain: scaffolds of the training text in order (``in``, figure 6d), or drawn uniformly (``out``, 6c).
            n: number of instances.
            context: words of noise before each.

        Returns:
            (n, context + length + 2) token ids; α at ``context``, ω last.

        Raises:
            ValueError: if the domain is unknown, or the tokenizer lacks words of the language.
        """
        at_least(1, n=n)
        at_least(0, context=context)
        random = self._random(_EXAMPLES, self.length, domain == "out")
        words = random.integers(self.n_types, size=(n, context + self.length + 2))
        words[:, context] = self.n_types
        words[:, -1] = self.n_types + 1
        if domain == "in":
            words[:, context + 1 : -1] = np.resize(self._used(in_rule=True), (n, self.length))
        return torch.from_numpy(self._ids[words])

    @property
    def _ids(self) -> Ids:
        """The token id of each word of the vocabulary."""
        known = self.tokenizer.get_vocab()
        missing = [word for word in self.vocabulary if word not in known]
        if missing:
            raise ValueError(
                f"the tokenizer lacks {len(missing)} of {len(self.vocabulary)} words of the language, such as "
                f"{missing[-1]!r}: observe only models that were trained on this language"
            )
        return np.array([known[word] for word in self.vocabulary])
