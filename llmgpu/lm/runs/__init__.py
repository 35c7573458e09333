"""A training run: its settings, its folder, its log and picture, from first to last step."""
