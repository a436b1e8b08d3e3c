"""A trainer that writes and prints nothing."""

import lightning as L


def trainer(**kwargs):
    quiet = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
    }
    return L.Trainer(**(quiet | kwargs))
