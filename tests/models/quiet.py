"""A trainer that writes and prints nothing, of one epoch."""

from tests.helpers.modules import quiet_trainer


def trainer(folder=None, *callbacks, **settings):
    off = {"max_epochs": 1, "enable_checkpointing": False, "num_sanity_val_steps": 0}
    return quiet_trainer(folder, *callbacks, **{**off, **settings})
