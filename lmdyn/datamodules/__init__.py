"""Sources of text: one file a source, with reader and DataModule together."""

from lmdyn.datamodules.conll import ConllCorpus
from lmdyn.datamodules.conllu import ConlluCorpus
from lmdyn.datamodules.corpus import Corpus
from lmdyn.datamodules.facts import FactCorpus, FactSource, GrammarFacts, TrexFacts
from lmdyn.datamodules.glue import GlueTasks
from lmdyn.datamodules.grammar import GrammarCorpus
from lmdyn.datamodules.grammar_tasks import GrammarTasks
from lmdyn.datamodules.masking import Masking
from lmdyn.datamodules.pretraining import PretrainingCorpus
from lmdyn.datamodules.scaffold import ScaffoldCorpus
from lmdyn.datamodules.semtags import SemtagCorpus
from lmdyn.datamodules.sentence import TOKEN_LAYERS, Constituent, Document, Mention, Role, Sentence
from lmdyn.datamodules.spans import SpanCorpus
from lmdyn.datamodules.streaming import StreamedText
from lmdyn.datamodules.streams import StreamLoader
from lmdyn.datamodules.tagging import LexiconTagger, SpacyTagger, Tagger
from lmdyn.datamodules.text import TextCorpus

__all__ = [
    "TOKEN_LAYERS",
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
    "GrammarTasks",
    "LexiconTagger",
    "Masking",
    "Mention",
    "PretrainingCorpus",
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
