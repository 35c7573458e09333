"""The data of training: one row of token ids from all inputs, and batches cut from this row."""
