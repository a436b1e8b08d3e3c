"""Which tables of a model are of its tokens."""

from torch import nn

from lmdyn.analysis.weights.matrices import token_tables


def test_a_square_layer_at_the_end_is_no_output_of_positions():
    """Tied weights without an output layer, and as many positions as the model is wide."""
    parts = {"tokens": nn.Embedding(9, 4), "positions": nn.Embedding(4, 4), "projection": nn.Linear(4, 4)}
    assert (
        token_tables(nn.ModuleDict(parts))
        == "0 linear layers of ModuleDict have one output for each of 9 tokens"
    )


def test_fewer_characters_than_positions():
    parts = {"tokens": nn.Embedding(9, 4), "positions": nn.Embedding(16, 4), "mlp": nn.Linear(4, 16)}
    found = token_tables(nn.ModuleDict({**parts, "out": nn.Linear(4, 9)}))
    assert tuple(found.inputs.shape) == (9, 4)
