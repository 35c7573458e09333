"""The vocabulary, its file and its trie."""

MATCH_RULES = ("greedy", "bpe")  # see `llmgpu.bpe.vocabulary.vocabulary.Vocabulary`
TIE_RULES = ("hf", "bytes")  # see `llmgpu.bpe.vocabulary.building`
