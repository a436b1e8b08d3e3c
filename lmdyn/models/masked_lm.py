"""Pretraining of ALBERT, BERT and ELECTRA: models of transformers with their published objectives."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor
from transformers import (
    AlbertConfig,
    AlbertForPreTraining,
    AutoModel,
    BertConfig,
    BertForPreTraining,
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    PreTrainedConfig,
    PreTrainedModel,
)

from lmdyn.models.learning_rate_schedules import ScheduledModule
from lmdyn.models.module import IGNORED, Batch, TokenMean, predict_labels, row_inputs
from lmdyn.models.pretrained import PAIR_HEAD, check_arguments, check_size, hub_folder, load_model
from lmdyn.models.pretraining_tools import (
    Initialization,
    checkpoint_activations,
    draw_weights,
    gather_labelled,
    labelled_positions,
    labels_at,
)

Family = Literal["albert", "bert", "electra"]

_CONFIGS: dict[str, type[PreTrainedConfig]] = {
    "albert": AlbertConfig,
    "bert": BertConfig,
    "electra": ElectraConfig,
}
_PAIR_KEYS = ("sentence_order_label", "next_sentence_label")
_DISCRIMINATOR_WEIGHT = 50.0  # Clark et al. 2020, section 3


@dataclass
class MaskedLMOutput:
    """Output of a :class:`MaskedLanguageModel`.

    Attributes:
        logits: (batch, time, vocab) for the token at each position, or (n, vocab) at the requested positions; for
            ELECTRA, those of the generator.
        pair_logits: (batch, 2) sentence order (ALBERT) or next sentence (BERT); None for ELECTRA.
        discriminator_logits: (batch, time) logits of a token being replaced; None except for ELECTRA.
    """

    logits: Tensor
    pair_logits: Tensor | None = None
    discriminator_logits: Tensor | None = None


class MaskedLanguageModel(ScheduledModule):
    """Pretrains ALBERT, BERT or ELECTRA of transformers, from scratch or from published weights.

    The objective is the mean cross-entropy over the batch's labelled positions of masked tokens. For ALBERT, the mean
    cross-entropy of sentence order over pairs is added, for BERT that of next sentence, if the batch has such labels.
    ELECTRA trains a generator on the masked tokens, and a discriminator that predicts which tokens of the text are
    samples of the generator: its mean binary cross-entropy over all tokens has weight 50. The two share their
    embeddings. The projection to the vocabulary is computed only for predicted positions.

    Losses and logits equal those of transformers' ``AlbertForPreTraining``, ``BertForPreTraining``,
    ``ElectraForMaskedLM`` and ``ElectraForPreTraining`` with the same weights.

    Batches: ``input_ids``, ``token_type_ids``, ``attention_mask`` if there is padding, ``labels`` (−100 except for
    tokens to predict), ``sentence_order_label`` or ``next_sentence_label``, and ``masked_positions`` (batch, P), the
    positions of the labels, −100 if there are fewer: with it, all shapes are static and no step synchronizes with a
    GPU.

    Sites are those of ``layer_sites(module)``: ``layer@0`` … for ALBERT, whose layers share their weights, ``layer1``
    … for BERT and for ELECTRA's discriminator. ELECTRA's generator predicts the tokens, as ``.logits``.

    Logged: ``train_loss`` (the sum), ``train_mlm_loss``, ``train_pair_loss`` or ``train_discriminator_loss``;
    ``val_loss`` (of the masked tokens), ``val_perplexity``, ``val_accuracy``, ``val_pair_accuracy`` or
    ``val_discriminator_loss`` (mean binary cross-entropy per token), and the same with ``test_``; in nats.

    Args:
        family: ``albert``, ``bert`` or ``electra``.
        config: arguments of the family's transformers configuration; its defaults are the published base sizes, except
            for ALBERT, whose defaults are those of xxlarge. ``vocab_size`` comes from the tokenizer.
        pretrained: a hub name or a folder of ``save_pretrained`` to start from, instead of ``config``. For ELECTRA,
            the folder written by :meth:`save_pretrained`, or the name to which ``-generator`` and ``-discriminator``
            are appended (``google/electra-base``).
        generator_size: hidden size, heads and feed-forward size of ELECTRA's generator, as a share of the
            discriminator's.
        optimizer: creates the optimizer from two groups of parameters: with and without weight decay (biases and
            norms).
        decay_power: after the warmup, the rate falls to 0 at ``decay_steps`` as ((N − t) / (N − warmup))^power; 1 is
            linear, None keeps it constant.
        compile: whether to compile the encoders with ``torch.compile`` for training.
        checkpoint_activations: whether to recompute activations in the backward pass instead of storing them.
        initialization: distribution of the initial weights: ``truncated_normal`` (at two deviations, as published),
            ``clipped_normal`` (at two deviations), ``normal``, or ``normal_everywhere``, which includes the gains of
            norms; σ is the configuration's ``initializer_range``. One seed draws the same numbers for each.
        **kwargs: ``vocab_size``, ``warmup_steps``, ``decay_steps`` and ``gradient_clip_val``, see
            :class:`~lmdyn.models.CausalLanguageModel`.

    Raises:
        ValueError: if the family is unknown; if both or neither of ``config`` and ``pretrained`` are given; if
            transformers does not accept the configuration; if weights cannot be loaded.

    Reference: Devlin et al. 2019; Lan et al. 2020; Clark et al. 2020; Chiang, Huang & Lee 2020, section 2, appendix B.

    Example:
        >>> sizes = dict(embedding_size=8, hidden_size=8, intermediate_size=16, num_attention_heads=2)
        >>> model = MaskedLanguageModel("albert", config=sizes, vocab_size=20)
        >>> model(torch.tensor([[2, 5, 3]])).logits.shape
        torch.Size([1, 3, 20])
        >>> model(torch.tensor([[2, 5, 3]]), predict=torch.tensor([[False, True, False]])).logits.shape
        torch.Size([1, 20])
    """

    _objective = "masked"

    def __init__(
        self,
        family: Family = "albert",
        config: dict[str, Any] | None = None,
        pretrained: str | None = None,
        generator_size: float = 0.25,
        optimizer: OptimizerCallable = lambda params: torch.optim.AdamW(params, lr=1e-4),
        decay_power: float | None = 1.0,
        compile: bool = False,
        checkpoint_activations: bool = False,
        initialization: Initialization = "truncated_normal",
        **kwargs: Any,
    ) -> None:
        super().__init__(optimizer=optimizer, decay_power=decay_power, **kwargs)
        if (config is None) == (pretrained is None):
            raise ValueError(
                "expected either `config` (for a new model) or `pretrained` (weights), got "
                f"{'neither' if config is None else 'both'}"
            )
        check_arguments(config or {})
        self.family = family
        self.config = config
        self.pretrained = pretrained
        self.initialization = initialization
        self.generator_size = generator_size
        self.compile_encoders = compile
        self.checkpoint_activations = checkpoint_activations
        self.evaluation_accuracy = TokenMean()
        self.evaluation_extra = TokenMean()
        if self.vocab_size is not None or pretrained is not None:
            self.build()

    # Building ---------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Create the models of transformers, with weights drawn by ``initialization``, or load them."""
        self.model: Any
        if self.family == "electra":
            self.generator, self.model = self._electra()
            # all embeddings are shared: tables of words, positions and types, and their norm
            self.generator.electra.embeddings = self.model.electra.embeddings
            self.generator.tie_weights()
        else:
            cls = AlbertForPreTraining if self.family == "albert" else BertForPreTraining
            self.model = (
                load_model(cls, hub_folder(self.pretrained), self.pretrained, optional=PAIR_HEAD)
                if self.pretrained
                else cls(cast(Any, self._config()))
            )
        if self.pretrained is None:
            draw_weights(self.model, self.initialization)
            if self.family == "electra":
                draw_weights(self.generator, self.initialization)
        self.vocab_size = int(self.model.config.vocab_size)
        self.hparams["vocab_size"] = self.vocab_size

    def _config(self, **changes: Any) -> PreTrainedConfig:
        settings = {**(self.config or {}), "vocab_size": self.vocab_size, **changes}
        check_arguments(self.config or {}, _CONFIGS[self.family]())
        config = _CONFIGS[self.family](**settings)
        check_size(config, self.family, partial(AutoModel.from_config, config))
        return config

    def _electra(self) -> tuple[Any, Any]:
        if self.pretrained is not None:
            join = "/" if Path(self.pretrained).is_dir() else "-"
            names = {kind: f"{self.pretrained}{join}{kind}" for kind in ("generator", "discriminator")}
            return (
                load_model(ElectraForMaskedLM, hub_folder(names["generator"]), names["generator"]),
                load_model(ElectraForPreTraining, hub_folder(names["discriminator"]), names["discriminator"]),
            )
        whole = self._config()
        smaller = {
            name: max(1, round(getattr(whole, name) * self.generator_size))
            for name in ("hidden_size", "num_attention_heads", "intermediate_size")
        }
        generator = self._config(**smaller)
        return ElectraForMaskedLM(cast(Any, generator)), ElectraForPreTraining(cast(Any, whole))

    def save_pretrained(self, folder: str | Path) -> None:
        """Write files for transformers' ``from_pretrained``; for ELECTRA, two folders: generator and discriminator."""
        if self.family == "electra":
            self.generator.save_pretrained(Path(folder) / "generator")
            self.model.save_pretrained(Path(folder) / "discriminator")
        else:
            self.model.save_pretrained(folder)

    @property
    def encoder(self) -> PreTrainedModel:
        """The transformer without heads; for ELECTRA, that of the discriminator."""
        return cast(PreTrainedModel, self.model.base_model)

    # Running ----------------------------------------------------------------------------------------------

    def forward(
        self,
        input_ids: Int[Tensor, "batch time"],
        attention_mask: Int[Tensor, "batch time"] | None = None,
        token_type_ids: Int[Tensor, "batch time"] | None = None,
        predict: Bool[Tensor, "batch time"] | None = None,
    ) -> MaskedLMOutput:
        """Compute logits for the token at each position.

        Args:
            input_ids: tokens.
            attention_mask: 1 for tokens, 0 for padding; None without padding.
            token_type_ids: 0 in the first and 1 in the second segment; None means all 0.
            predict: if given, project only these positions to the vocabulary, in row-major order; for ELECTRA, run
                only the generator.
        """
        self.check_positions(input_ids.shape[1], int(self.model.config.max_position_embeddings))
        inputs = {"attention_mask": attention_mask, "token_type_ids": token_type_ids}
        if self.family != "electra":
            hidden, pooled = self._encode(self.model, input_ids, inputs)
            chosen = hidden if predict is None else hidden[predict]
            return MaskedLMOutput(self._token_logits(chosen), self._pair_logits(pooled))
        hidden, _ = self._encode(self.generator, input_ids, inputs)
        if predict is not None:
            return MaskedLMOutput(self._token_logits(hidden[predict]))
        return MaskedLMOutput(
            self._token_logits(hidden), discriminator_logits=self._discriminate(input_ids, inputs)
        )

    @staticmethod
    def _encode(model: Any, input_ids: Tensor, inputs: Mapping[str, Any]) -> tuple[Tensor, Any]:
        output = model.base_model(input_ids=input_ids, **inputs)
        return output.last_hidden_state, getattr(output, "pooler_output", None)

    def _token_logits(self, hidden: Tensor) -> Tensor:
        if self.family == "albert":
            return cast(Tensor, self.model.predictions(hidden))
        if self.family == "bert":
            return cast(Tensor, self.model.cls.predictions(hidden))
        return cast(Tensor, self.generator.generator_lm_head(self.generator.generator_predictions(hidden)))

    def _pair_logits(self, pooled: Tensor) -> Tensor:
        head = self.model.sop_classifier if self.family == "albert" else self.model.cls.seq_relationship
        return cast(Tensor, head(pooled))

    def _discriminate(self, input_ids: Tensor, inputs: Mapping[str, Any]) -> Tensor:
        hidden, _ = self._encode(self.model, input_ids, inputs)
        return cast(Tensor, self.model.discriminator_predictions(hidden))

    # Training ---------------------------------------------------------------------------------------------

    def on_fit_start(self) -> None:
        """Enable compilation and activation checkpointing, if requested."""
        for model in (self.model, *([self.generator] if self.family == "electra" else [])):
            if self.checkpoint_activations:
                checkpoint_activations(model)
            if self.compile_encoders:
                model.base_model.compile()

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the parts of a batch's training loss: ``mlm``, and ``pair`` or ``discriminator``; means in nats."""
        self.check_positions(batch["input_ids"].shape[1], int(self.model.config.max_position_embeddings))
        labels = batch["labels"]
        encoder = self.generator if self.family == "electra" else self.model
        hidden, pooled = self._encode(encoder, batch["input_ids"], row_inputs(batch))
        positions = batch.get("masked_positions")
        if positions is None:
            positions = labelled_positions(labels)
        chosen, expected = gather_labelled(hidden, labels, positions)
        logits = self._token_logits(chosen)
        total = F.cross_entropy(logits.flatten(0, 1).float(), expected.flatten(), reduction="sum")
        parts = {"mlm": total / (positions != IGNORED).sum().clamp(min=1)}
        if self.family == "electra":
            parts["discriminator"] = self._discriminator_loss(batch, logits, positions)
        elif (pair := _pair_label(batch)) is not None:
            parts["pair"] = F.cross_entropy(self._pair_logits(pooled).float(), pair)
        return parts

    def _discriminator_loss(
        self,
        batch: Batch,
        logits: Tensor,
        positions: Tensor,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Compute the mean binary cross-entropy over all tokens, masked ones replaced by the generator's samples."""
        labels, at = batch["labels"], positions.clamp(min=0)
        original = torch.where(labels == IGNORED, batch["input_ids"], labels)
        with torch.no_grad():
            exponential = torch.empty_like(logits, dtype=torch.float32).exponential_(generator=generator)
            drawn = (logits.float() - exponential.log()).argmax(-1)  # with Gumbel noise
            # unused entries of masked_positions point to position 0, whose token they must not change
            drawn = torch.where(labels_at(labels, positions) == IGNORED, original.gather(1, at), drawn)
            corrupted = original.scatter(1, at, drawn)
        replaced = corrupted != original
        judged = self._discriminate(corrupted, row_inputs(batch)).float()
        loss = F.binary_cross_entropy_with_logits(judged, replaced.to(judged.dtype), reduction="none")
        mask = batch.get("attention_mask")
        if mask is None:
            return loss.mean()
        return (loss * mask).sum() / mask.sum()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Compute the sum of the losses (nats); it is logged as ``train_loss``, and its parts."""
        parts = self.losses(batch)
        loss = self._weighed({name: value.detach() for name, value in parts.items()})
        self.log("train_loss", loss, prog_bar=True, logger=False)
        written = {"train_loss": loss}
        written |= {f"train_{name}_loss": value.detach() for name, value in parts.items()}
        self.log_periodically(written, batch_idx)
        parts["mlm"] = parts["mlm"] * self.rank_weight((batch["labels"] != IGNORED).sum())
        if "discriminator" in parts and (mask := batch.get("attention_mask")) is not None:
            parts["discriminator"] = parts["discriminator"] * self.rank_weight(mask.sum())
        return self._weighed(parts)  # ranks have equal numbers of pairs

    @staticmethod
    def _weighed(parts: Mapping[str, Tensor]) -> Tensor:
        """Sum the weighted parts of a loss."""
        return sum(
            (_DISCRIMINATOR_WEIGHT * p if name == "discriminator" else p for name, p in parts.items()),
            start=torch.zeros((), device=parts["mlm"].device),
        )

    # Evaluation -------------------------------------------------------------------------------------------

    evaluate = ScheduledModule.evaluate_labelled

    def evaluation_step(self, batch: Batch) -> None:
        """Add a batch to the sums."""
        labels = batch["labels"]
        logits, expected, output = predict_labels(self, labels, batch)
        losses = F.cross_entropy(logits, expected, reduction="none")
        self.evaluation_loss.update(losses, expected)
        self.evaluation_accuracy.update(logits.argmax(-1) == expected, expected)
        if self.family == "electra":
            at = labelled_positions(labels)
            logits = output.logits.new_zeros(*at.shape, output.logits.shape[-1])
            logits[at != IGNORED] = output.logits
            # evaluation does not affect the random numbers of training
            own = torch.Generator(labels.device).manual_seed(0)
            loss = self._discriminator_loss(batch, logits, at, own)
            mask = batch.get("attention_mask")
            count = labels.numel() if mask is None else int(mask.sum())
            self.evaluation_extra.update(loss.expand(1, count), labels.new_zeros(1, count))
        elif (pair := _pair_label(batch)) is not None:
            assert output.pair_logits is not None
            self.evaluation_extra.update((output.pair_logits.argmax(-1) == pair)[None], pair[None])

    def compute_metrics(self) -> dict[str, Tensor]:
        """Compute loss, perplexity and accuracy of masked tokens, and of the other objective."""
        metrics = super().compute_metrics() | {"accuracy": self.evaluation_accuracy.compute()}
        nothing = torch.full((1, 1), IGNORED, device=self.device)  # a metric without updates warns
        self.evaluation_extra.update(torch.zeros(1, 1, device=self.device), nothing)
        extra = self.evaluation_extra.compute()
        name = "discriminator_loss" if self.family == "electra" else "pair_accuracy"
        return metrics | ({} if extra.isnan() else {name: extra})


def _pair_label(batch: Batch) -> Tensor | None:
    return next((batch[key] for key in _PAIR_KEYS if key in batch), None)
