"""Words among pieces: found as by hand; their probabilities are those of words, which sum to one."""

import math
import re

import pytest
import torch

from lmdyn.analysis.words import words_in_pieces as W
from lmdyn.datamodules.corpora.tokenization import word_tokenizer
from tests.helpers.foreign_tokenizers import KINDS, trained

TEXT = "in words of a text, and of the words don't (some) wrap. the line"
A, B, X, DOT, EOS = range(5)  # two words, what may follow them, a period, and the end of a text
TABLE = W.PieceTable(
    begins=torch.tensor([True, True, False, False, False]),
    continues=torch.tensor([False, False, True, False, False]),
    opens=torch.tensor([False, False, False, False, True]),
)


def found_in(rows, table=TABLE):
    found = W.find_words(torch.tensor(rows), table)
    return list(zip(found.row.tolist(), found.begin.tolist(), found.end.tolist(), strict=True)), found


@pytest.mark.parametrize("kind", KINDS)
def test_words_of_tokenizers_are_those_of_the_text(kind):
    tokenizer = trained(kind)
    ids = torch.tensor([tokenizer(TEXT)["input_ids"]])
    found = W.find_words(ids, W.PieceTable.of(tokenizer))
    words = [
        W.spell(tokenizer, ids[0, b:e].tolist())
        for b, e in zip(found.begin.tolist(), found.end.tolist(), strict=True)
    ]
    words = [word for word in words if len(word.split()) == 1]
    spelled = ["words", "of", "a", "text", "and", "of", "the", "words", "don", "wrap", "the"]
    if kind == "wordpiece":  # has no white space: punctuation of each side is a word of its own
        spelled = re.findall("[a-z]+", TEXT)
    if kind == "llama 2":  # its pieces extend over several words
        assert {*words} <= {*spelled, "in", "line"}
    else:
        assert words == spelled


def test_a_vocabulary_of_words_has_no_other_pieces():
    tokenizer = word_tokenizer({"the": 3, "U.S.": 2, ".": 4, "'t": 1})
    table = W.PieceTable.of(tokenizer)
    assert table.whole_words
    words = [tokenizer.convert_ids_to_tokens(i) for i in table.begins.nonzero()[:, 0].tolist()]
    assert sorted(words) == ["'t", "U.S.", "the"]
    assert found_in([[6, 5, 6, W.CUT_OFF]], table)[0][-1] == (0, 2, 3)


def test_words_are_found_as_by_hand():
    rows = [
        # the first is within a word; after the end, one begins; the last goes on
        [X, A, X, X, B, DOT, EOS, X, X],
        [A, DOT, B, X, W.CUT_OFF, A, W.CUT_OFF, B, X],
        [W.NO_TEXT, A, B, X, *[W.NO_TEXT] * 5],
    ]
    places, found = found_in(rows)
    assert places == [(0, 1, 4), (0, 4, 5), (1, 0, 1), (1, 2, 5), (1, 5, 7), (2, 1, 2), (2, 2, 4)]
    assert found.before.tolist() == [1, 4, 0, 2, 5, 0, 1]
    assert found.spaced.all()
    _, after_end = found_in([[EOS, X, X, A]])
    assert (after_end.begin, after_end.end, after_end.spaced) == (1, 3, False)


def test_codes_are_those_of_words_and_contexts_those_of_texts():
    _, found = found_in([[A, X, B, A, X, DOT, B, X, DOT], [W.NO_TEXT, A, X, B, A, X, B, DOT, W.NO_TEXT]])
    codes = found.code.tolist()  # ax b ax bx, ax b ax b
    assert codes[0] == codes[2] == codes[4] == codes[6]
    assert codes[1] == codes[5] == codes[7]
    assert len(set(codes)) == 3
    assert len(set(found.context.tolist())) == 8
    _, padded = found_in([[A, X, B, A, X, B, DOT]])
    assert padded.context.tolist() == found.context.tolist()[4:]


def bigrams():
    torch.manual_seed(0)
    frequent = torch.tensor([1.0, 1.0, 1.5, 0.0, 0.0])  # words, and what continues them
    return (torch.randn(5, 5, dtype=torch.float64) + frequent).log_softmax(-1)


def log_p(row, ends, log_bigrams):
    """Of the second word of a row, by logits that a model has at each of its places."""
    text = torch.tensor([row])
    found = W.find_words(text, TABLE)
    found = found.at(found.begin == 1)
    logits = log_bigrams[text]
    pieces = torch.nn.functional.pad(logits[:, :-1].gather(2, text[:, 1:, None])[..., 0], (1, 0))
    return float(W.word_log_probability(found, pieces, logits, TABLE, first=1, ends=ends))


def test_probabilities_of_words_sum_to_one():
    """With the end of the word; without it they sum to more: each word is also the beginning of longer ones."""
    model = bigrams()
    words = [[w, *[X] * n] for w in (A, B) for n in range(60)]
    of_words = sum(math.exp(log_p([A, *word, DOT], True, model)) for word in words)
    p = model.exp()[A]
    others = float((p[DOT] + p[EOS]) / (1 - p[X]))  # that no word follows, given that the first has ended
    assert of_words + others == pytest.approx(1, abs=1e-12)
    begun = sum(math.exp(log_p([A, *word, DOT], False, model)) for word in words)
    assert begun + float(p[[X, DOT, EOS]].sum()) > 1.01


def test_of_words_without_pieces_both_are_the_same():
    model = bigrams().log_softmax(-1)
    row = torch.tensor([[A, B, A]])
    table = W.PieceTable(TABLE.begins, TABLE.begins & False, TABLE.opens)
    found = W.find_words(row, table)
    pieces, logits = torch.randn(1, 3), model[row]
    for ends in (True, False):
        both = W.word_log_probability(found, pieces, logits, table, first=0, ends=ends)
        torch.testing.assert_close(both, pieces[0].double())


def test_a_tokenizer_without_beginnings_of_words_is_refused():
    tokenizer = trained("gpt-2")

    class Ends:
        all_special_ids, unk_token_id = (), None
        convert_ids_to_tokens = staticmethod(lambda ids: [f"w{i}" for i in ids])
        convert_tokens_to_string = staticmethod("".join)

        def __len__(self):
            return 4

    with pytest.raises(ValueError, match="of the tokenizer shows where a word begins"):
        W.PieceTable.of(Ends())
    assert W.PieceTable.of(tokenizer).begins.any()
