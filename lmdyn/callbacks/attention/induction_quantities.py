"""Quantities that Induction records."""

from lmdyn.callbacks.observing.schema import Quantity

__all__ = ["QUANTITIES"]

_HEAD = ("<site>/head=<head>",)
_ABLATED = ("<ablated>", "<ablated>/draw=<draw>")


def _score(name: str, meaning: str) -> tuple[Quantity, Quantity]:
    error = f"Standard error of {name} over sequences."
    return (
        Quantity(name, meaning, low=0.0, high=1.0, tags=_HEAD),
        Quantity(f"{name}_error", error, low=0.0, high=0.5, tags=()),
    )


def _loss(name: str, meaning: str) -> Quantity:
    return Quantity(name, meaning, "nats", low=0.0, better="lower")


QUANTITIES = (
    *_score("prefix_matching", "Mean weight of the token after the earlier occurrence of the query's token."),
    *_score("previous_token", "Mean weight of the token before the query."),
    *_score("duplicate_token", "Mean weight of the earlier occurrence of the query's token."),
    Quantity("uniform_attention", "Value of these three scores for uniform attention.", low=0.0, high=1.0),
    Quantity(
        "copying", "Σ Re λ / Σ |λ| of the head's circuit from tokens to logits.", low=-1.0, high=1.0, tags=_HEAD
    ),
    _loss("first_loss", "Mean loss on the first of two equal sequences of random tokens."),
    _loss("second_loss", "Mean loss on the second."),
    Quantity("second_minus_first", "Difference of these losses, negative for induction.", "nats"),
    Quantity(
        "second_minus_first_error", "Standard error of the difference over sequences.", "nats", low=0.0, tags=()
    ),
    _loss("early_loss", "Mean loss of the text after few tokens of context."),
    _loss("late_loss", "Mean loss of the text after many tokens of context."),
    Quantity("late_minus_early", "Difference of these losses, negative if more context helps.", "nats"),
    Quantity("position_loss", "Mean loss after a number of tokens of context.", "nats", low=0.0, tags=()),
    Quantity("second_loss_rise", "Rise of second_loss if heads are ablated.", "nats", tags=_ABLATED),
    Quantity("late_loss_rise", "Rise of late_loss if heads are ablated.", "nats", tags=_ABLATED),
)  # fmt: skip
