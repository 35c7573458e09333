"""The data of training: inputs as one row of token ids, and batches cut from this row."""
