"""Words are encoded as the text that they make up."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lmdyn.callbacks.interdependence.word_pairs import SentencePairs
from lmdyn.datamodules import Sentence


def byte_level(*merges):
    vocabulary = ["<unk>", "a", "b", "Ġ", "Ġa", "Ġb", "Ġab"]
    backend = Tokenizer(models.BPE({t: i for i, t in enumerate(vocabulary)}, [*merges], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


WHOLE = byte_level(("Ġ", "a"), ("Ġ", "b"), ("Ġa", "b"))


def encoded(sentence, tokenizer=WHOLE, one_token=False):
    """Token ids, and the word of each."""
    how = {"max_distance": 2, "batch_tokens": 9, "name": "observer", "one_token": one_token}
    (batch,) = SentencePairs([sentence], tokenizer, None, **how).batches
    return batch.ids[0].tolist(), batch.words[0].tolist()


def test_byte_level_words_have_the_space_before_them():
    words = ["a", "ab", "b"]
    assert WHOLE("a ab b")["input_ids"] == [1, 6, 5]
    for one_token in (False, True):
        assert encoded(Sentence(words=words), one_token=one_token) == ([1, 6, 5], [0, 1, 2])
    plain = WHOLE(words, is_split_into_words=True, add_special_tokens=False)["input_ids"]
    assert plain != [1, 6, 5]  # the control: without spaces these are other tokens


def test_text_is_encoded_as_it_is_written():
    sentence = Sentence(words=("a", "b", "b"), text="\n ab b\n", places=((2, 3), (3, 4), (5, 6)))
    assert encoded(sentence) == ([1, 2, 5], [0, 1, 2])
    assert encoded(sentence, one_token=True)[0] == [1, 5, 5]  # a decomposition of words reads words


def test_words_of_several_tokens_and_slow_tokenizers_are_refused():
    with pytest.raises(ValueError, match="the word 'ab' has 2 tokens"):
        encoded(Sentence(words=["a", "ab"]), byte_level(("Ġ", "a"), ("Ġ", "b")), one_token=True)
    with pytest.raises(ValueError, match=r"the word of each token, got object. Load a fast tokenizer"):
        encoded(Sentence(words=["a", "b"]), object())
