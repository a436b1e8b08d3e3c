"""Classifiers trained on frozen features, and fine-tuning on downstream tasks."""
