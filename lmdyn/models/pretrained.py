"""Language models of the Hugging Face hub, causal and masked, as a thin LightningModule."""

import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from huggingface_hub import snapshot_download
from jaxtyping import Bool, Int
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging as transformers_logging

from lmdyn.models.module import IGNORED, Batch, LanguageModule, predict_labels

log = logging.getLogger(__name__)

_MOST_LAYERS = 1000  # as the deepest known models; creating them takes seconds
_DEPTH = re.compile(r"(?:^|_)layers?$")
"""Names of numbers of layers in configurations: ``num_hidden_layers``, ``n_layer``, ``encoder_layers``."""

Objective = Literal["causal", "masked", "encoder_decoder"]

PAIR_HEAD = ("pooler", "sop_classifier", "seq_relationship")
"""Parts of ALBERT and BERT for pairs of sentences, which published weights may lack (those of ALBERT v2 do)."""

_TEXT = ["*.json", "*.txt", "*.model"]
_WEIGHTS = (["*.safetensors"], ["pytorch_model*.bin"])
_TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")


_LAYER = re.compile(r"(?:^|\.)(?:layers?|h|blocks?)\.(\d+)\.")
"""The number of a layer in the name of its weights."""


@dataclass
class PretrainedOutput:
    """Output of a :class:`PretrainedLM`.

    Attributes:
        logits: (batch, time, vocab) for the token at each position, or (n, vocab) at the requested positions.
        past_key_values: cache from which a causal model continues, with ``use_cache``.
    """

    logits: Tensor
    past_key_values: Any = None


class PretrainedLM(LanguageModule):
    """A causal or masked language model that transformers can load, to observe it or to continue its training.

    ``logits[b, t]`` is the prediction for ``labels[b, t]``: the data does the shift of causal models, whose own
    forward never receives labels. The weights are loaded as float32 whatever their stored type, from safetensors or by
    ``torch.load(weights_only=True)``, and all weights of the model must be in the files. No code from the hub is run.

    Batches: ``input_ids``, ``attention_mask`` if there is padding, ``token_type_ids`` (read by models with more than
    one type), ``labels`` (-100 except for tokens to predict).

    Logged: ``train_loss``, ``val_loss``, ``val_perplexity``, ``test_loss``, ``test_perplexity``, in nats per token.

    Args:
        name: a folder written by ``save_pretrained`` or transformers' Trainer, or a name of the Hugging Face hub.
        revision: branch, tag or commit of a hub model, such as ``step3000``; None is ``main``.
        objective: ``causal``, ``masked``, ``encoder_decoder`` (which is observed, not trained), or None to use the
            configuration.
        optimizer: creates the optimizer from the parameters.
        gradient_clip_val: maximum norm of the gradient; None does not clip. The Trainer's setting takes precedence.

    Attributes:
        model: the model of transformers.

    Raises:
        ValueError: if the name is not a folder and cannot be reached on the hub, with the remedy; if the objective
            cannot be recognized; if files cannot be read, or lack weights of the model.

    Example:
        >>> import tempfile
        >>> from transformers import BertConfig, BertForMaskedLM
        >>> folder = tempfile.mkdtemp()
        >>> sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
        >>> BertForMaskedLM(BertConfig(vocab_size=20, **sizes)).save_pretrained(folder)
        >>> module = PretrainedLM(folder)
        >>> module.objective, module(torch.tensor([[2, 5, 3]])).logits.shape
        ('masked', torch.Size([1, 3, 20]))
        >>> module(torch.tensor([[2, 5, 3]]), predict=torch.tensor([[False, True, False]])).logits.shape
        torch.Size([1, 20])
    """

    def __init__(
        self,
        name: str,
        revision: str | None = None,
        objective: Objective | None = None,
        optimizer: OptimizerCallable = lambda params: torch.optim.AdamW(params, lr=5e-5),
        gradient_clip_val: float | None = 1.0,
    ) -> None:
        super().__init__(vocab_size=None, optimizer=optimizer, gradient_clip_val=gradient_clip_val)
        self.name = name
        self.revision = revision
        self.folder = hub_folder(name, revision)
        self.objective, self.model = _load(self.folder, objective, self._label)
        self.vocab_size = int(self.model.config.get_text_config(decoder=True).vocab_size)

    @property
    def _label(self) -> str:
        return self.name if self.revision is None else f"{self.name} at {self.revision}"

    @property
    def encoder(self) -> PreTrainedModel:
        """The transformer without heads."""
        return cast(PreTrainedModel, self.model.base_model)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer next to the weights, loaded at the first access.

        Raises:
            ValueError: if there is none, or if it is not a fast one.
        """
        # without its files, AutoTokenizer may create an empty one from config.json
        try:
            if not any(any(self.folder.glob(pattern)) for pattern in _TOKENIZERS):
                raise ValueError(
                    f"there is no tokenizer: expected one of {', '.join(_TOKENIZERS)} in {self.folder}"
                )
            tokenizer = AutoTokenizer.from_pretrained(str(self.folder), trust_remote_code=False)
            if not isinstance(tokenizer, PreTrainedTokenizerFast):
                raise ValueError(f"expected a fast tokenizer, got a {type(tokenizer).__name__}")
        except Exception as error:  # OSError, ValueError, and plain Exception from the Rust code
            raise ValueError(
                f"lmdyn cannot load the tokenizer of {self._label} ({_in_a_line(error)}): save a fast tokenizer with "
                "the weights, `tokenizer.save_pretrained(FOLDER)`"
            ) from error
        return tokenizer

    # Running ----------------------------------------------------------------------------------------------

    def forward(
        self,
        input_ids: Int[Tensor, "batch time"],
        attention_mask: Int[Tensor, "batch time"] | Bool[Tensor, "batch time"] | None = None,
        token_type_ids: Int[Tensor, "batch time"] | None = None,
        predict: Bool[Tensor, "batch time"] | None = None,
        past_key_values: Any = None,
        use_cache: bool = False,
        decoder_input_ids: Int[Tensor, "batch out"] | None = None,
    ) -> PretrainedOutput:
        """Compute logits for the token at each position.

        Args:
            input_ids: tokens.
            attention_mask: 1 for tokens, 0 for padding; None without padding.
            token_type_ids: 0 in the first and 1 in the second segment; models with one type do not read them.
            predict: if given, project only these positions to the vocabulary, in row-major order.
            past_key_values: cache of the tokens before, of a causal model.
            use_cache: whether a causal model returns its cache.
            decoder_input_ids: tokens that the decoder reads, whose positions the logits have; None for one token,
                if only the encoder is observed.
        """
        inputs: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        # GPT-2 would add the embeddings of words 0 and 1, RoBERTa has only one type
        if getattr(self.model.config, "type_vocab_size", 0) > 1:
            inputs["token_type_ids"] = token_type_ids
        if self.objective == "causal":
            inputs["use_cache"] = use_cache
        if self.objective == "encoder_decoder":
            # without an input of the decoder, only the encoder is observed
            inputs["decoder_input_ids"] = input_ids[:, :1] if decoder_input_ids is None else decoder_input_ids
        elif decoder_input_ids is not None:
            raise ValueError(f"expected an encoder-decoder, got {self._label}, read as {self.objective}")
        if past_key_values is not None:
            inputs["past_key_values"] = past_key_values

        def choose(_: Any, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if predict is None or not args or args[0].ndim != 3 or args[0].shape[:2] != predict.shape:
                return None
            return (args[0][predict], *args[1:])

        # works for every architecture, whatever its forward does before and after; the few that multiply by the
        # weights of the output embeddings without calling them project everything
        with self.model.get_output_embeddings().register_forward_pre_hook(choose):
            output = self.model(**inputs)
        logits = getattr(output, "prediction_logits", None)
        logits = output.logits if logits is None else logits
        logits = logits if predict is None or logits.ndim == 2 else logits[predict]
        return PretrainedOutput(logits, getattr(output, "past_key_values", None))

    evaluate = LanguageModule.evaluate_labelled

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> None:
        """Return nothing, in place of the method of transformers: labels of rows are not what its decoder reads."""

    def labels_of(self, batch: Batch) -> Tensor:
        """Return the labels of a batch; refuses encoder-decoders, whose decoder reads other rows."""
        if self.objective == "encoder_decoder":
            raise ValueError(
                "PretrainedLM has no losses of encoder-decoders: use MinimalPairs, Choices or Reading with `scoring: "
                "enc_dec_mask`, or lmdyn.watch with the model of transformers and its own labels"
            )
        return super().labels_of(batch)

    # Training and evaluation ------------------------------------------------------------------------------

    def training_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the sum of the cross-entropies of a batch, and the number of labelled tokens."""
        logits, labels, _ = predict_labels(self, self.labels_of(batch), batch)
        return F.cross_entropy(logits, labels, reduction="sum"), (batch["labels"] != IGNORED).sum()


# Loading ----------------------------------------------------------------------------------------------------


def hub_folder(name: str, revision: str | None = None, **options: Any) -> Path:
    """Return the folder of a model: ``name`` if it is one, else the hub model's, downloaded to Hugging Face's cache.

    Only configuration, tokenizer and weights are downloaded, the weights as safetensors if available; ``options`` are
    those of ``snapshot_download``.

    Raises:
        ValueError: if there is no such folder, and the hub cannot be reached or has no such model or revision.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        if revision is not None:
            raise ValueError(f"{name} is a folder and has no revision {revision!r}: leave out the revision")
        return path
    for weights in _WEIGHTS:
        options |= {"allow_patterns": [*_TEXT, *weights], "ignore_patterns": ["*/*"]}
        try:
            folder = Path(snapshot_download(name, revision=revision, **options))
        except Exception as error:  # from the hub's library, its HTTP client, or the file system
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise ValueError(
                f"{name!r} at revision {revision or 'main'!r} is no folder here, and unavailable on Hugging Face's hub "
                f"or in its cache ({reason[0]}). Check name, revision and connection, or run `hf download "
                f"{name} --revision {revision or 'main'}` on a connected machine and use the printed folder as name"
            ) from error
        if any(folder.glob(weights[0])):
            return folder
    raise ValueError(f"{name!r} ({revision or 'main'}) has no PyTorch weights: use another model or revision")


def cached_folder(name: str, revision: str | None = None) -> Path | None:
    """Return the folder of a hub model in Hugging Face's cache, if all files of :func:`hub_folder` are in it."""
    try:
        folder = hub_folder(name, revision, local_files_only=True)
    except ValueError:  # not in the cache
        return None
    found = {path.name for weights in _WEIGHTS for path in folder.glob(weights[0]) if path.exists()}
    index = next(folder.glob("*.index.json"), None)
    parts = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values() if index else ()
    return folder if found and found.issuperset(parts) and (folder / "config.json").exists() else None


def objective_of(architecture: str) -> Objective | None:
    """Return the objective that follows from the name of a class of transformers; None if none does.

    Example:
        >>> objective_of("GPTNeoXForCausalLM"), objective_of("AlbertForPreTraining"), objective_of("BertModel")
        ('causal', 'masked', None)
    """
    if architecture.endswith(("ForCausalLM", "LMHeadModel")):
        return "causal"
    return "masked" if architecture.endswith(("ForMaskedLM", "ForPreTraining")) else None


def _load(folder: Path, objective: Objective | None, label: str) -> tuple[Objective, Any]:
    try:
        config = AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
    except Exception as error:  # as for the tokenizer
        raise ValueError(f"{label} is not a model of transformers ({_in_a_line(error)})") from error
    named = getattr(config, "architectures", None) or ["model"]
    architecture = str(named[0] if isinstance(named, list) else named)[:100]
    objective = objective or objective_of(architecture)
    generates = architecture.endswith(("ForConditionalGeneration", "EncoderDecoderModel", "MTModel"))
    if objective is None and generates and getattr(config, "is_encoder_decoder", False):
        objective = "encoder_decoder"
    if objective is None:
        raise ValueError(f"{label} is a {architecture}, which may be causal or masked: set the objective")
    kinds = {"causal": AutoModelForCausalLM, "masked": AutoModelForMaskedLM}
    auto: Any = kinds.get(objective, AutoModelForSeq2SeqLM)
    if objective == "masked" and architecture.endswith("ForPreTraining"):
        auto = AutoModelForPreTraining  # with its second head, if the files have it
    model = load_model(auto, folder, label, optional=PAIR_HEAD)
    if model.get_output_embeddings() is None:
        raise ValueError(
            f"{label} has no output layer and predicts no tokens: use another model (of ELECTRA, the generator)"
        )
    return objective, model


def load_model(cls: Any, folder: Path, label: str, *, optional: Sequence[str] = ()) -> Any:
    """Load a model of transformers from a folder, in float32 and in train mode; observers set eval mode.

    Args:
        cls: a class of transformers.
        folder: folder written by ``save_pretrained``.
        label: name of the model in messages.
        optional: parts of the model, as parts of the names of its weights, that the files may lack: these keep their
            initial weights, with a warning.

    Raises:
        ValueError: if files cannot be read, or lack weights of the model.
    """
    try:
        reader = getattr(cls, "config_class", None) or AutoConfig
        config = reader.from_pretrained(str(folder), trust_remote_code=False)
        _check_names(config, folder)
        check_size(config, "it", partial(getattr(cls, "from_config", cls), config))
        with _quiet():
            model, info = cls.from_pretrained(
                str(folder),
                config=config,
                dtype=torch.float32,
                weights_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except Exception as error:  # as for the tokenizer
        raise ValueError(f"{cls.__name__} cannot load {label} ({_in_a_line(error)})") from error
    lacking = {key: set(optional) & set(key.split(".")) for key in info["missing_keys"]}
    if needed := sorted(key for key, parts in lacking.items() if not parts):
        raise ValueError(
            f"{label} lacks {len(needed)} weights of {type(model).__name__}, such as {', '.join(needed[:3])}: load the "
            "model with the objective or family with which the model was saved"
        )
    depth = getattr(model.config, "num_hidden_layers", math.inf)
    numbered = [(int(found[1]), key) for key in info["unexpected_keys"] if (found := _LAYER.search(key))]
    if numbered and max(numbered)[0] >= depth:
        raise ValueError(
            f"{label} has weights of more layers ({max(numbered)[1]}) than the {depth} layers of config.json: use "
            "weights and config.json of the same model"
        )
    if lacking:
        log.warning(
            "%s has no weights of %s, like many published models: these modules stay untrained and predict no tokens",
            label,
            ", ".join(sorted(set().union(*lacking.values()))),
        )
    return model.train()


def _check_names(config: Any, folder: Path) -> None:
    """Refuse names with a slash: attention of a hub's repository, which is code; weights of another folder."""
    for part in (config, *(getattr(config, name, None) for name in config.sub_configs)):
        if "/" in str(kernel := getattr(part, "_attn_implementation", None)):
            raise ValueError(
                f"config.json names the attention {kernel}, which is code from the hub: remove the entry"
            )
    for index in folder.glob("*.index.json"):
        named = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        if strange := [name for name in named if Path(name).name != name]:
            raise ValueError(
                f"{index.name} names {strange[0]}, outside the folder: expected names of files in the folder"
            )


def check_arguments(given: Mapping[str, Any], known: Any = None) -> None:
    """Refuse the vocabulary's size, and arguments that a configuration of transformers, if known, does not have.

    Raises:
        ValueError: for these.
    """
    if "vocab_size" in given:
        raise ValueError("vocab_size must not be in the config: pass vocab_size as an argument")
    names = {*given} if known is None else {*known.to_dict(), *known.attribute_map}
    if unknown := sorted(given.keys() - names):
        raise ValueError(f"{known.model_type} has no {', '.join(unknown)}, only {', '.join(sorted(names))}")


def check_size(config: Any, label: str, make: Callable[[], nn.Module]) -> None:
    """Refuse a configuration of too many layers, or of more weights than the machine has memory, before it is built.

    Args:
        config: configuration of transformers.
        label: name of the model in the message.
        make: function that builds the model; it is called on the device ``meta``, where weights take no memory.

    Raises:
        ValueError: if the model is too large.
    """
    parts = [config.to_dict(), *(one for one in config.to_dict().values() if isinstance(one, dict))]
    depth = max(
        (n for part in parts for k, n in part.items() if _DEPTH.search(str(k)) and isinstance(n, int)),
        default=0,
    )
    if depth > _MOST_LAYERS:
        raise ValueError(
            f"{label} would have {depth} layers, expected at most {_MOST_LAYERS}: check the configuration"
        )
    if not hasattr(os, "sysconf"):  # Windows does not tell its memory
        return
    with torch.device("meta"):
        size = 4 * sum(parameter.numel() for parameter in make().parameters())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > memory:
        raise ValueError(
            f"{label} would have {size / 1e9:,.0f} GB of weights, but the machine has {memory / 1e9:,.0f} GB of "
            "memory: check the configuration"
        )


def _in_a_line(error: Exception) -> str:
    return " ".join(str(error).split())[:1000] or type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """Disable the progress bar for each checkpoint."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
