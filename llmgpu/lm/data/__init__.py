"""What a model is trained on: inputs as one row of token ids, and batches cut from it."""
