"""The command line: inspect (first); fit, validate, test, predict (LightningCLI); analyze and report (afterwards)."""

INSPECT_FIRST = (
    "Begin with `python -m lmdyn.cli inspect MODEL`: it shows the observers of MODEL, and writes a yaml."
)
"""Epilog of the help of all other commands."""


def whole_number(text: str) -> int:
    """Return a whole number, also written as ``1e6`` or ``12.0``; the ``type=`` of argparse's options.

    Raises:
        ValueError: if it is not a whole number.

    Example:
        >>> whole_number("1e6"), whole_number("-3")
        (1000000, -3)
    """
    try:
        return int(text)
    except ValueError:
        number = float(text)
    if not number.is_integer():
        raise ValueError(f"expected a whole number, got {text!r}")
    return int(number)


whole_number.__name__ = "whole number"  # argparse shows it: "invalid whole number value: '12.5'"
