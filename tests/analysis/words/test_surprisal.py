"""Surprisals: by the definition, one piece at a time, and what the loss of transformers says."""

import math

import numpy as np
import pytest
import torch
import transformers as hf
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import nn

from lmdyn.analysis import surprisals, word_surprisals
from lmdyn.analysis.words.surprisal import EncodedTexts
from lmdyn.models import LSTMLanguageModel
from tests.helpers.foreign_tokenizers import byte_level, trained

TEXTS = [
    "The cats sat on the mat, unbelievably.",
    "  Naïve  Élan — 日本 sat.",
    "Cats",
    "the mat on the cats sat on the mat on the cats sat on the mat",
]


def albert_like():
    tokenizer = byte_level(
        TEXTS, pad_token="<pad>", unk_token="<unk>", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]"
    )
    ids = [("[CLS]", tokenizer.cls_token_id), ("[SEP]", tokenizer.sep_token_id)]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=ids
    )
    return tokenizer


def gpt2(vocab_size, **sizes):
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, **sizes}
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=vocab_size, **sizes))


@pytest.fixture
def causal():
    torch.manual_seed(0)
    tokenizer = byte_level(TEXTS, bos_token="<|endoftext|>", eos_token="<|endoftext|>")
    return gpt2(len(tokenizer) + 9, n_layer=2, initializer_range=0.5).train(), tokenizer


@pytest.fixture
def masked():
    torch.manual_seed(0)
    tokenizer = albert_like()
    config = hf.AlbertConfig(
        vocab_size=len(tokenizer), embedding_size=8, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=64, initializer_range=0.5,
    )  # fmt: skip
    return hf.AlbertForMaskedLM(config).train(), tokenizer


def test_causal_models_agree_with_the_loss_of_transformers(causal):
    model, tokenizer = causal
    found = surprisals(model, tokenizer, TEXTS, batch_tokens=40)
    assert model.training  # as it was, and measured without dropout
    model.eval()
    for number, text in enumerate(TEXTS):
        ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer(text)["input_ids"]]])
        with torch.no_grad():
            answer = model(input_ids=ids, labels=ids)
        of_text = found[found["text"] == number]
        assert -of_text["log_probability"].mean() == pytest.approx(float(answer.loss), abs=1e-5)
        logits = answer.logits[0, :-1].double()
        p = logits.softmax(-1)
        entropy = -(p * p.log()).sum(-1)
        rank = [1 + int((row > row[i]).sum()) for row, i in zip(logits, ids[0, 1:].tolist(), strict=True)]
        np.testing.assert_allclose(of_text["entropy"], entropy, atol=1e-5)
        assert of_text["rank"].tolist() == rank
        assert of_text["piece"].tolist() == tokenizer.convert_ids_to_tokens(ids[0, 1:].tolist())
        np.testing.assert_allclose(of_text["surprisal"], -of_text["log_probability"] / math.log(2))


def test_words_are_what_white_space_separates(causal):
    found = surprisals(*causal, TEXTS)
    words = word_surprisals(found)
    for number, text in enumerate(TEXTS):
        of_text = words[words["text"] == number]
        assert of_text["word"].tolist() == text.split()
        assert of_text["word_index"].tolist() == list(range(len(text.split())))
    assert words["pieces"].sum() == len(found)
    assert words["log_probability"].sum() == pytest.approx(found["log_probability"].sum())
    first = found.groupby(["text", "word_index"])[["rank", "entropy"]].first()
    np.testing.assert_array_equal(words["rank"], first["rank"])
    np.testing.assert_array_equal(words["entropy"], first["entropy"])


def test_without_a_token_that_starts_a_text(causal, caplog):
    model, tokenizer = causal
    whole = surprisals(model, tokenizer, TEXTS)
    without = surprisals(model, tokenizer, TEXTS, start="")
    first = without.groupby("text").head(1).index
    assert without.loc[first, "log_probability"].isna().all()
    assert without.loc[first, "rank"].isna().all()
    assert without["log_probability"].isna().sum() == len(TEXTS)
    assert word_surprisals(without)["log_probability"].isna().sum() == len(TEXTS)  # no sum over what is left
    assert whole["log_probability"].notna().all()
    with pytest.raises(ValueError, match="start must be a token of the tokenizer"):
        surprisals(model, tokenizer, TEXTS, start="<s>")


def test_texts_longer_than_the_context(causal):
    model, tokenizer = causal
    text = " ".join(TEXTS * 4)
    ids = [tokenizer.bos_token_id, *tokenizer(text)["input_ids"]]
    assert len(ids) > 2 * 64
    found = surprisals(model, tokenizer, [text])["log_probability"].to_numpy(float)
    model.eval()
    done, begin = 1, 0
    while done < len(ids):
        window = torch.tensor([ids[begin : begin + 64]])
        with torch.no_grad():
            log_p = model(input_ids=window).logits[0].log_softmax(-1)
        for i in range(done, min(begin + 65, len(ids))):
            assert found[i - 1] == pytest.approx(float(log_p[i - begin - 1, ids[i]]), abs=1e-5)
            assert i - begin >= 32 or begin == 0  # half a context at least
        done = begin + 65
        begin += 32
    short = surprisals(model, tokenizer, [text], context=8)["log_probability"]
    assert short.notna().all()
    assert not np.allclose(short, found)


def log_probabilities(model, ids):
    """Of each token but the first, by transformers."""
    model.eval()
    with torch.no_grad():
        log_p = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    return log_p[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].double().numpy()


def in_its_context(model, tokenizer, ids, i, room):
    """Of piece i, masked, among the ``room`` pieces around it."""
    begin = max(0, min(i - room // 2, len(ids) - room))
    window = ids[begin : begin + room]
    window[i - begin] = tokenizer.mask_token_id
    row = torch.tensor([[tokenizer.cls_token_id, *window, tokenizer.sep_token_id]])
    with torch.no_grad():
        log_p = model(input_ids=row).logits[0, i - begin + 1].log_softmax(-1)
    return float(log_p[ids[i]])


def pseudo_log_likelihoods(model, tokenizer, text, pseudo):
    """By the definition, a piece at a time."""
    encoding = tokenizer(text, return_offsets_mapping=True)
    ids, offsets = encoding["input_ids"], encoding["offset_mapping"]
    word_of = []
    for begin, _ in offsets:
        letter = next((k for k in range(begin, len(text)) if text[k] != " "), 0)  # its first, or the next
        word_of.append(len(text[: letter + 1].split()) - 1)
    found = []
    for i in range(1, len(ids) - 1):
        hidden = list(ids)
        hidden[i] = tokenizer.mask_token_id
        if pseudo == "rest_of_word":
            for j in range(i + 1, len(ids) - 1):
                if word_of[j] == word_of[i]:
                    hidden[j] = tokenizer.mask_token_id
        with torch.no_grad():
            log_p = model(input_ids=torch.tensor([hidden])).logits[0, i].log_softmax(-1)
        found.append(float(log_p[ids[i]]))
    return found


@pytest.mark.parametrize("pseudo", ["piece", "rest_of_word"])
def test_masked_models(masked, pseudo):
    model, tokenizer = masked
    found = surprisals(model, tokenizer, TEXTS, pseudo=pseudo, batch_tokens=50)
    model.eval()
    for number, text in enumerate(TEXTS):
        expected = pseudo_log_likelihoods(model, tokenizer, text, pseudo)
        np.testing.assert_allclose(found["log_probability"][found["text"] == number], expected, atol=1e-5)


def test_masked_models_see_a_context_around_each_piece(masked):
    model, tokenizer = masked
    text = " ".join(TEXTS * 4)
    found = surprisals(model, tokenizer, [text])["log_probability"].to_numpy(float)
    model.eval()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    for i in (0, 5, 31, 80, len(ids) - 1):
        assert found[i] == pytest.approx(in_its_context(model, tokenizer, ids, i, 62), abs=1e-5)


def test_recurrent_models():
    torch.manual_seed(0)
    tokenizer = byte_level(TEXTS, eos_token="<eos>")
    model = LSTMLanguageModel(vocab_size=len(tokenizer), hidden_size=8, num_layers=1)
    model.configure_model()
    found = surprisals(model, tokenizer, TEXTS[:1])
    ids = tokenizer(TEXTS[0])["input_ids"]
    expected = log_probabilities(model, [tokenizer.eos_token_id, *ids])
    np.testing.assert_allclose(found["log_probability"], expected, atol=1e-5)


@pytest.fixture
def encoder_decoder():
    torch.manual_seed(0)
    tokenizer = albert_like()
    tokenizer.bos_token, tokenizer.eos_token = "<pad>", "[SEP]"
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2}
    return hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=len(tokenizer), **sizes)).train(), tokenizer


@torch.no_grad()
def decoded(model, encoder, decoder):
    ids = {"input_ids": torch.tensor([encoder]), "decoder_input_ids": torch.tensor([decoder])}
    return model.eval()(**ids).logits[0].double().log_softmax(-1)


def test_encoder_decoders_by_the_definition_of_the_protocol(encoder_decoder):
    model, tokenizer = encoder_decoder
    cls, sep, mask, bos = (tokenizer.convert_tokens_to_ids(t) for t in ("[CLS]", "[SEP]", "[MASK]", "<pad>"))
    ids = tokenizer(TEXTS[0], add_special_tokens=False)["input_ids"]
    each = [
        decoded(model, [cls, *ids[:i], mask, *ids[i + 1 :], sep], [bos, mask])[-1, piece].item()
        for i, piece in enumerate(ids)
    ]
    found = surprisals(model, tokenizer, TEXTS[:1], objective="enc_dec_mask")
    np.testing.assert_allclose(found["log_probability"], each, atol=1e-5)
    after = [decoded(model, [cls, *ids[:i], mask, sep], [bos])[0, p].item() for i, p in enumerate(ids)]
    read = surprisals(model, tokenizer, TEXTS[:1], objective="enc_dec_mask", pseudo="left_context")
    np.testing.assert_allclose(read["log_probability"], after, atol=1e-5)
    # the end of a text, from a character on
    start = TEXTS[0].index(" mat")
    encoded = EncodedTexts(model, tokenizer, TEXTS[:1], objective="enc_dec_prefix", begins=[start])
    first = int(encoded.scored.argmax())
    assert encoded.lengths == [first + 3]  # of the encoder, which reads more than the decoder
    ends = decoded(model, [cls, *ids[:first], mask, sep], [bos, mask, *ids[first:-1]])[1:]
    expected = ends[range(len(ids) - first), ids[first:]]
    np.testing.assert_allclose(encoded.log_probabilities(model, 64)[first:], expected, atol=1e-5)
    assert np.isnan(encoded.log_probabilities(model, 64)[:first]).all()
    # with few positions, the encoder reads the last pieces before
    last = surprisals(model, tokenizer, TEXTS[:1], objective="enc_dec_mask", pseudo="left_context", context=6)
    short = decoded(model, [cls, *ids[-4:-1], mask, sep], [bos])[0, ids[-1]].item()
    assert last["log_probability"].iloc[-1] == pytest.approx(short, abs=1e-5)
    with pytest.raises(ValueError, match=r"the decoder would read \d+ tokens, expected at most 6"):
        surprisals(model, tokenizer, TEXTS[:1], objective="enc_dec_prefix", context=6)


def test_sentinels_stand_for_masks(encoder_decoder):
    """As in T5, whose tokenizer has neither a mask nor a token before a text."""
    model, _ = encoder_decoder
    tokenizer = byte_level(TEXTS, vocab_size=290, pad_token="<pad>", eos_token="</s>")
    tokenizer.add_special_tokens({"extra_special_tokens": ["<extra_id_0>", "<extra_id_1>"]})
    ids, mask = tokenizer(TEXTS[2])["input_ids"], tokenizer.convert_tokens_to_ids("<extra_id_0>")
    each = [decoded(model, [*ids[:i], mask, *ids[i + 1 :]], [mask])[0, p].item() for i, p in enumerate(ids)]
    found = surprisals(model, tokenizer, TEXTS[2:3], objective="enc_dec_mask")
    np.testing.assert_allclose(found["log_probability"], each, atol=1e-5)
    tokenizer = byte_level(TEXTS, vocab_size=290, pad_token="<pad>", eos_token="</s>")
    tokenizer.add_special_tokens({"extra_special_tokens": ["__fr__"]})  # a language, as in M2M100
    with pytest.raises(ValueError, match="the tokenizer has no mask_token"):
        surprisals(model, tokenizer, TEXTS[2:3], objective="enc_dec_mask")


def test_what_is_refused(causal, masked, caplog):
    model, tokenizer = causal
    with pytest.raises(ValueError, match="none of 2 texts contains a word"):
        surprisals(model, tokenizer, ["", "  "])
    with pytest.raises(ValueError, match="the tokenizer has no mask_token"):
        surprisals(masked[0], tokenizer, TEXTS)
    with pytest.raises(ValueError, match=r"the model predicts 20 token ids, got \d+"):
        surprisals(nn.Sequential(nn.Embedding(400, 4), nn.Linear(4, 20)), tokenizer, TEXTS)
    with pytest.raises(ValueError, match="context must be at least 4"):
        surprisals(model, tokenizer, TEXTS, context=2)
    bigrams = nn.Sequential(nn.Embedding(400, 4), nn.Linear(4, 400))
    with pytest.raises(ValueError, match="causal or masked: set `objective`"):
        surprisals(bigrams, masked[1], TEXTS)
    assert len(surprisals(bigrams, masked[1], TEXTS, objective="causal", start="[CLS]"))
    small = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    with pytest.raises(ValueError, match="got an encoder-decoder"):
        surprisals(hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=400, **small)), tokenizer, TEXTS)
    with pytest.raises(ValueError, match="enc_dec_mask requires an encoder-decoder, got GPT2LMHeadModel"):
        surprisals(model, tokenizer, TEXTS, objective="enc_dec_mask")
    some = surprisals(model, tokenizer, ["", "Cats sat"])
    assert set(some["text"]) == {1}


def test_white_space_at_the_end_is_left_out_and_elsewhere_is_of_the_next_word(causal):
    model, tokenizer = causal
    words = word_surprisals(
        surprisals(model, tokenizer, ["The cats sat", "The cats sat \t ", "  The  cats sat"])
    )
    bos = tokenizer.bos_token_id
    plain = log_probabilities(model, [bos, *tokenizer("The cats sat")["input_ids"]])
    of_text = words.groupby("text")
    assert of_text.size().tolist() == [3, 3, 3]
    for number in (0, 1):
        assert of_text.get_group(number)["log_probability"].sum() == pytest.approx(plain.sum(), abs=1e-4)
    np.testing.assert_allclose(*(of_text.get_group(n)["log_probability"] for n in (0, 1)), atol=1e-6)
    assert of_text.get_group(0)["pieces"].tolist() == of_text.get_group(1)["pieces"].tolist()
    ids, spans = (
        tokenizer("  The  cats sat", return_offsets_mapping=True)[k] for k in ("input_ids", "offset_mapping")
    )
    log_p = log_probabilities(model, [bos, *ids])
    ends = [sum(begin < end for begin, _ in spans) for end in (5, 11, 15)]
    expected = [part.sum() for part in np.split(log_p, ends[:-1])]
    np.testing.assert_allclose(of_text.get_group(2)["log_probability"], expected, atol=1e-4)


def test_all_pieces_of_a_text_are_scored_from_its_beginning_and_equal_texts_are_read_once(causal):
    model, tokenizer = causal
    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)  # of Ġ: (0, 0)
    encoded = EncodedTexts(model, tokenizer, ["  The cats"] * 20, begins=[0] * 20)
    assert encoded.scored.all()
    assert len(list(encoded.read(model, batch_tokens=16))) == 1


@pytest.mark.parametrize("template", ["[CLS] $A [SEP]", "[CLS] [SEP] $A", "[SEP] [CLS] [MASK] $A"])
def test_causal_models_read_what_the_tokenizer_puts_before_a_text(template):
    torch.manual_seed(0)
    tokenizer = albert_like()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=template,
        special_tokens=[(t, tokenizer.convert_tokens_to_ids(t)) for t in ("[CLS]", "[SEP]", "[MASK]")],
    )
    tokenizer.bos_token = "<pad>"  # what the tokenizer itself writes comes first
    model = gpt2(len(tokenizer), initializer_range=0.5)
    found = surprisals(model, tokenizer, ["", *TEXTS[:3]], objective="causal")
    before = template.split(" $A")[0].split()
    assert found.attrs == {"objective": "causal", "start": "".join(before), "context": 64}
    for number, text in enumerate(TEXTS[:3], 1):
        ids = [
            *tokenizer.convert_tokens_to_ids(before),
            *tokenizer(text, add_special_tokens=False)["input_ids"],
        ]
        expected = log_probabilities(model, ids)[len(before) - 1 :]
        np.testing.assert_allclose(found["log_probability"][found["text"] == number], expected, atol=1e-5)
    few = gpt2(len(tokenizer), n_positions=8)
    assert len(surprisals(few, tokenizer, TEXTS[:3], objective="causal"))  # measured within its positions
    long = surprisals(model, tokenizer, [" ".join(TEXTS)], objective="causal", context=8)
    assert long["log_probability"].notna().all()


@pytest.mark.parametrize(
    ("kind", "asked", "says"), [("gpt2", "masked", "does not read"), ("bert", "causal", "reads")]
)
def test_scored_as_another_kind_of_model_is_reported(kind, asked, says, caplog):
    tokenizer = trained("wordpiece")
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 16}
    bert = hf.BertForMaskedLM(hf.BertConfig(vocab_size=400, max_position_embeddings=64, **sizes))
    model = gpt2(400) if kind == "gpt2" else bert
    surprisals(model, tokenizer, TEXTS, objective=asked)
    assert f"scores texts as {asked}, but the model {says} later tokens" in caplog.text
    caplog.clear()
    surprisals(model, tokenizer, TEXTS, objective={"gpt2": "causal", "bert": "mntp"}[kind])
    assert "but the model" not in caplog.text


def test_which_token_starts_a_text_where_the_tokenizer_puts_none(caplog):
    model = nn.Sequential(nn.Embedding(400, 4), nn.Linear(4, 400))
    for special, expected in (
        ({"eos_token": "<e>", "cls_token": "<c>"}, "<e>"),
        ({"eos_token": "<e>", "cls_token": "<c>", "bos_token": "<b>"}, "<b>"),
        ({"cls_token": "<c>"}, "<c>"),
        ({}, ""),
    ):
        caplog.clear()
        found = surprisals(model, byte_level(TEXTS, **special), TEXTS)
        assert found.attrs["start"] == expected
        assert found["log_probability"].isna().sum() == (0 if expected else len(TEXTS))
    assert "puts no token before a text, and has no bos_token, eos_token or cls_token" in caplog.text


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (hf.RobertaConfig, hf.RobertaForMaskedLM),
        (hf.CamembertConfig, hf.CamembertForMaskedLM),
        (hf.RobertaPreLayerNormConfig, hf.RobertaPreLayerNormForMaskedLM),
        (hf.MPNetConfig, hf.MPNetForMaskedLM),
    ],
)
@pytest.mark.parametrize("limit", [None, 16, 12])
def test_positions_that_begin_after_the_paddings(config, kind, limit):
    torch.manual_seed(0)
    tokenizer = albert_like()
    if limit is not None:  # the tokenizer's is of tokens
        tokenizer.model_max_length = limit
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    rest = {"max_position_embeddings": 18, "pad_token_id": 1, "initializer_range": 0.5}
    model = kind(config(vocab_size=len(tokenizer), **sizes, **rest))
    text = " ".join(TEXTS)
    found = surprisals(model, tokenizer, [text])
    room = (limit or 16) - 2
    assert found.attrs == {"objective": "masked", "start": None, "context": room + 2}
    model.eval()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    for i in (0, 7, 30, len(ids) - 1):
        expected = in_its_context(model, tokenizer, ids, i, room)
        assert found["log_probability"][i] == pytest.approx(expected, abs=1e-5)


def test_words_without_a_piece_of_their_own(caplog):
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "of the": 1, "cats": 2, "<s>": 3}, "<unk>"))
    backend.normalizer = normalizers.Replace("\u200b", "")
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("of the|[^ ]+"), "removed", invert=True)
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", bos_token="<s>")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4))
    texts = ["\u200b", "cats of the cats", "", "cats \u200b cats"]
    found = surprisals(model, tokenizer, texts)
    assert found["piece"].tolist() == ["cats", "of the", "cats", "cats", "cats"]
    assert found["word"].tolist() == ["cats", "of", "cats", "cats", "cats"]
    assert found["word_index"].dtype == np.int64
    assert found["word_index"].tolist() == [0, 1, 3, 0, 2]
    assert "3 of 8 words have no surprisal" in caplog.text
    words = word_surprisals(found, texts)
    assert words["text"].tolist() == [0, 1, 1, 1, 1, 3, 3, 3]
    assert words["word"].tolist() == " ".join(texts).split()
    assert words["word_index"].tolist() == [0, 0, 1, 2, 3, 0, 1, 2]
    assert words["word_index"].dtype == words["pieces"].dtype == np.int64
    assert words["pieces"].tolist() == [0, 1, 1, 0, 1, 1, 0, 1]
    numbers = words[["log_probability", "surprisal", "rank", "entropy"]].isna()
    assert numbers.all(axis=1).tolist() == numbers.any(axis=1).tolist() == (words["pieces"] == 0).tolist()
    some = word_surprisals(found)
    assert some["log_probability"].tolist() == words["log_probability"].dropna().tolist()
    with pytest.raises(ValueError, match="the words of the texts and of the pieces differ"):
        word_surprisals(found, texts[1:])


def test_pieces_whose_logits_are_not_finite_have_no_number(causal, caplog):
    model, tokenizer = causal
    sound = surprisals(model, tokenizer, ["the cat sat on the mat"])
    assert sound[["rank", "entropy"]].notna().all(axis=None)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    found = surprisals(model, tokenizer, ["the cat sat on the mat"], objective="causal")
    assert found[["log_probability", "surprisal", "rank", "entropy"]].isna().all(axis=None)
    assert f"the logits of {len(found)} of {len(found)} tokens are not finite" in caplog.text
