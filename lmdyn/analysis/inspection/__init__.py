"""Inspection of a model: activations, gradients, losses and predictions of any module; its weights."""
