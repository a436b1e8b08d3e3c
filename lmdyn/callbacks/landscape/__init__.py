"""Observers of the loss as a function of the weights."""
