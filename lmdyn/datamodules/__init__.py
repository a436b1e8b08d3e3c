"""Sources of text: each source is one file with its reader and DataModule."""

from lmdyn.datamodules.corpora.bptt import StreamLoader
from lmdyn.datamodules.corpora.conll import ConllCorpus
from lmdyn.datamodules.corpora.conllu import ConlluCorpus
from lmdyn.datamodules.corpora.corpus import Corpus
from lmdyn.datamodules.corpora.semtags import SemtagCorpus
from lmdyn.datamodules.corpora.sentence import TOKEN_LAYERS, Constituent, Document, Mention, Role, Sentence
from lmdyn.datamodules.corpora.tagging import LexiconTagger, SpacyTagger, Tagger
from lmdyn.datamodules.corpora.text import TextCorpus
from lmdyn.datamodules.facts.facts import FactCorpus, FactSource, GrammarFacts, TrexFacts
from lmdyn.datamodules.grammar.grammar import GrammarCorpus
from lmdyn.datamodules.grammar.grammar_pairs import GrammarPairs
from lmdyn.datamodules.grammar.grammar_tasks import GrammarTasks
from lmdyn.datamodules.pairs.choice_files import ChoiceFiles
from lmdyn.datamodules.pairs.pair_files import PairFiles
from lmdyn.datamodules.pairs.reading_files import ReadingFiles
from lmdyn.datamodules.pretraining.masking import Masking
from lmdyn.datamodules.pretraining.pretraining import PretrainingCorpus
from lmdyn.datamodules.pretraining.streamed_text import StreamedText
from lmdyn.datamodules.spans.spans import SpanCorpus
from lmdyn.datamodules.synthetic.repeats import RepeatsCorpus
from lmdyn.datamodules.synthetic.scaffold import ScaffoldCorpus
from lmdyn.datamodules.tasks.glue import GlueTasks

__all__ = [
    "TOKEN_LAYERS",
    "ChoiceFiles",
    "ConllCorpus",
    "ConlluCorpus",
    "Constituent",
    "Corpus",
    "Document",
    "FactCorpus",
    "FactSource",
    "GlueTasks",
    "GrammarCorpus",
    "GrammarFacts",
    "GrammarPairs",
    "GrammarTasks",
    "LexiconTagger",
    "Masking",
    "Mention",
    "PairFiles",
    "PretrainingCorpus",
    "ReadingFiles",
    "RepeatsCorpus",
    "Role",
    "ScaffoldCorpus",
    "SemtagCorpus",
    "Sentence",
    "SpacyTagger",
    "SpanCorpus",
    "StreamLoader",
    "StreamedText",
    "Tagger",
    "TextCorpus",
    "TrexFacts",
]
