"""Causal transformers trained from scratch: a language model, and a tagger of the same architecture."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel

from lmdyn.models.learning_rate_schedules import ScheduledModule
from lmdyn.models.module import IGNORED, Batch
from lmdyn.models.pretrained import check_arguments, check_size
from lmdyn.models.tagger import Tagging


@dataclass
class CausalOutput:
    """Output of a causal transformer.

    Attributes:
        logits: (batch, time, outputs) for the word, or the tag, that follows the token at each position.
    """

    logits: Tensor


class CausalTransformer(ScheduledModule):
    """Base of the language model and the tagger: a decoder of transformers, one linear layer on it, the losses.

    Args:
        family: ``model_type`` of a causal model of transformers: ``gpt2``, ``llama``, ``gpt_neox``, …
        config: arguments of the family's configuration, except ``vocab_size``.
        vocab_size: number of token types; None uses that of the datamodule's tokenizer.
        **kwargs: see :class:`~lmdyn.models.learning_rate_schedules.ScheduledModule`.
    """

    _objective = "causal"

    def __init__(
        self,
        family: str = "gpt2",
        config: dict[str, Any] | None = None,
        vocab_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(vocab_size=vocab_size, **kwargs)
        check_arguments(config or {})
        self.family = family
        self.config = dict(config or {})

    def head(self, width: int) -> nn.Linear:
        """Return the output layer, with the word vectors as its weights if the configuration ties them.

        Args:
            width: size of the hidden states.
        """
        words = cast(nn.Embedding, self.model.get_input_embeddings())
        head = nn.Linear(words.embedding_dim, words.num_embeddings, bias=False)
        if getattr(self.model.config, "tie_word_embeddings", True) and words.embedding_dim == width:
            head.weight = words.weight
        else:
            nn.init.normal_(head.weight, std=getattr(self.model.config, "initializer_range", 0.02))
        return head

    def build(self) -> None:
        """Create the layers, with the weights that transformers' initialisation draws."""
        self.model = self.transformer()
        self.decoder = self.head(int(self.model.config.hidden_size))

    def transformer(self) -> PreTrainedModel:
        """Return a new transformer of the configuration, without a head.

        Raises:
            ValueError: if the family is not a causal transformer.
        """
        config = self.configuration()
        if config.is_encoder_decoder:
            raise ValueError(
                "expected a causal family such as gpt2, llama or gpt_neox, got the encoder-decoder "
                f"{self.family!r}"
            )
        check_size(config, self.family, partial(AutoModel.from_config, config))
        return cast(PreTrainedModel, AutoModel.from_config(config))

    def configuration(self) -> PreTrainedConfig:
        """Return the family's configuration.

        Raises:
            ValueError: if transformers does not have the family or an argument.
        """
        assert self.vocab_size is not None
        try:
            known = AutoConfig.for_model(self.family)
        except ValueError as error:
            raise ValueError(
                f"expected a family of transformers such as gpt2 or llama, got {self.family!r}"
            ) from error
        check_arguments(self.config, known)
        # ids of the published vocabulary
        own = {"use_cache": False, "bos_token_id": None, "eos_token_id": None}
        settings = {**own, **self.config, "vocab_size": self.vocab_size}
        return AutoConfig.for_model(self.family, **settings)

    @property
    def encoder(self) -> PreTrainedModel:
        """The transformer without the output layer."""
        return self.model

    def forward(
        self, input_ids: Int[Tensor, "batch time"], attention_mask: Int[Tensor, "batch time"] | None = None
    ) -> CausalOutput:
        """Compute logits at each position, from the tokens up to and including it.

        Args:
            input_ids: tokens.
            attention_mask: 1 for tokens, 0 for padding; None without padding.

        Raises:
            ValueError: if rows are longer than the model's number of positions.
        """
        self.check_positions(input_ids.shape[1], getattr(self.model.config, "max_position_embeddings", None))
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return CausalOutput(self.decoder(hidden))

    def evaluate(self, batch: Batch, **how: Any) -> tuple[Tensor, Tensor, Float[Tensor, "batch time"]]:
        """Return logits, labels and losses in nats; the loss of a token without a label is 0."""
        labels = self.labels_of(batch)
        logits = self.logits_of(batch, **how).float()
        return logits, labels, F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")

    def logits_of(self, batch: Batch, **how: Any) -> Tensor:
        """Return the logits of a batch, (batch, time, outputs); ``how`` are arguments of ``forward``."""
        return cast(Tensor, self(batch["input_ids"], batch.get("attention_mask"), **how).logits)

    def training_loss(self, batch: Batch, **how: Any) -> tuple[Tensor, Tensor]:
        """Return the sum of the cross-entropies of a batch, and the number of labelled tokens."""
        _, labels, losses = self.evaluate(batch, **how)
        return losses.sum(), (labels != IGNORED).sum()


class CausalLanguageModel(CausalTransformer):
    """A causal language model of transformers (GPT-2, Llama, …), trained from scratch on the data's vocabulary.

    ``logits[b, t]`` is the prediction for ``labels[b, t]``, the next token: the data does the shift. The output layer
    shares the word vectors unless the configuration has ``tie_word_embeddings: false``. Weights are initialised as in
    transformers.

    Batches: ``input_ids``, ``labels``, and ``attention_mask`` if there is padding.

    Logged: ``train_loss``, ``val_loss``, ``val_perplexity``, ``test_loss``, ``test_perplexity``, in nats per token.

    Args:
        family: ``model_type`` of a causal model of transformers: ``gpt2``, ``llama``, ``gpt_neox``, …
        config: arguments of the family's configuration, except ``vocab_size``; its defaults are the published sizes.
        vocab_size: number of token types; None uses that of the datamodule's tokenizer, which is then recorded.
        optimizer: creates the optimizer from two groups of parameters: with and without weight decay (biases and
            norms).
        warmup_steps: number of updates over which the learning rate rises linearly.
        decay_power: after the warmup, the rate falls to 0 at ``decay_steps`` as ((N − t) / (N − warmup))^power; 1 is
            linear, None keeps it constant.
        decay_steps: number of updates until the rate is 0; None uses the Trainer's number of updates.
        gradient_clip_val: maximum norm of the gradient; None does not clip. The Trainer's setting takes precedence.

    Attributes:
        model: the transformer without a head.

    Raises:
        ValueError: if transformers does not have the family or an argument; if rows are longer than its positions.

    Reference: Radford et al. 2019 (GPT-2); used here as in Saphra 2021, sections 4.1.1, 5.1.2 and 6.1.2.

    Example:
        >>> model = CausalLanguageModel(config=dict(n_embd=8, n_layer=1, n_head=2, n_positions=16), vocab_size=20)
        >>> model(torch.tensor([[1, 2, 3]])).logits.shape
        torch.Size([1, 3, 20])
    """

    def __init__(
        self,
        family: str = "gpt2",
        config: dict[str, Any] | None = None,
        vocab_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(family, config, vocab_size, **kwargs)
        if self.sizes_known():
            self.build()


class CausalTagger(Tagging, CausalTransformer):
    """Tags words with a causal transformer: the attention of a model that learned one category only.

    It is the counterpart of :class:`LSTMTagger` for attention (Saphra 2021, section 4.1.1): with ``target="next"`` it
    predicts the tag of the next word, as a language model must implicitly; with ``"current"`` it predicts that of the
    word just read. Labels are ``target_<task>`` (next) or ``<task>`` (current) in the batch.

    Logged: as in :class:`LSTMTagger`, ``train_loss``; ``val_loss``, ``val_perplexity``, ``val_accuracy``,
    ``val_majority`` (accuracy of always predicting the most frequent of these labels), and the same with ``test_``.

    Args:
        task: label layer to learn, such as ``upos``.
        target: ``"next"`` for the label of the following token, ``"current"`` for that of the input token.
        shuffled_labels: whether to learn the randomly shuffled labels of the layer.
        num_labels: number of classes; None uses ``len(datamodule.label_names[task])``, which is then recorded.
        **kwargs: see :class:`CausalLanguageModel`.

    Raises:
        ValueError: if ``target`` is not next or current; if the batch does not have the label layer; as in
            :class:`CausalLanguageModel`.

    Example:
        >>> sizes = dict(n_embd=8, n_layer=1, n_head=2, n_positions=16)
        >>> CausalTagger("upos", config=sizes, vocab_size=20, num_labels=3)(torch.tensor([[1, 2, 3]])).logits.shape
        torch.Size([1, 3, 3])
    """

    def __init__(
        self,
        task: str = "upos",
        target: Literal["next", "current"] = "next",
        shuffled_labels: bool = False,
        num_labels: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.learn(task, target, shuffled_labels, num_labels)

    def build(self) -> None:
        """Create the layers, the head first, so that a tagger does not start as the language model of its seed."""
        self.decoder = self.head(int(self.configuration().hidden_size))
        self.model = self.transformer()

    def head(self, width: int) -> nn.Linear:
        """Return a layer to the labels, whose number is read from the datamodule if needed."""
        return nn.Linear(width, self.num_outputs())
