"""Continuing a text with a trained model."""
