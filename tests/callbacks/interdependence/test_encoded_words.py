"""Words are encoded as the text that they make up."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lmdyn.callbacks.interdependence.encoded_words import encoded_words
from lmdyn.callbacks.interdependence.word_pairs import encode_words
from lmdyn.datamodules import Sentence


def byte_level(merges):
    vocabulary = ["<unk>", "a", "b", "Ġ", "Ġa", "Ġb", "Ġab"]
    backend = Tokenizer(models.BPE({t: i for i, t in enumerate(vocabulary)}, merges, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


def test_byte_level_words_have_the_space_before_them():
    tokenizer = byte_level([("Ġ", "a"), ("Ġ", "b"), ("Ġa", "b")])
    words = ["a", "ab", "b"]
    ((ids, of),) = encoded_words([words], tokenizer, "observer")
    assert ids == tokenizer("a ab b")["input_ids"] == [1, 6, 5]
    assert of == [0, 1, 2]
    assert encode_words([Sentence(words=words)], tokenizer, "observer") == [[1, 6, 5]]
    plain = tokenizer(words, is_split_into_words=True, add_special_tokens=False)["input_ids"]
    assert plain != ids  # the control: without spaces these are other tokens


def test_words_of_several_tokens_are_refused():
    with pytest.raises(ValueError, match="the word 'ab' has 2 tokens"):
        encode_words([Sentence(words=["a", "ab"])], byte_level([("Ġ", "a"), ("Ġ", "b")]), "observer")
