"""Changes that `mutate.py` does not try, because they alter no result.

By module, "" for all: expressions that are looked for in what a change is called, which is its
line, ``|``, and the change from which column of it. Each has its reason.
"""

RULES: dict[str, list[str]] = {
    "": [
        # C: whoever calls looks at the sign.
        r"^return -1; \| \d+: 1 -> 2$",
        # C: an array with room to spare.
        r"^(?:static |const )*\w+ \*?\w+\[[\w +*]+\](?: = \{\D*\})?; \| \d+: \d+ -> \d+$",
        # C: of two equal numbers, either one.
        r"\b(\w+) [<>] (\w+) \? (?:\1 : \2|\2 : \1)\b.* \| \d+: (?:< -> <=|> -> >=)$",
        # A limit of memory or of time, but for one byte or one step.
        r"\b_?(?:MOST|MAX)_(?:STEPS|TABLE_\w+|BATCH)\b.* \| \d+: (?:> -> >=|>= -> >|.*\d -> \d+)$",
    ],
    "llmgpu/cpu/blocks.c": [
        r"end - p < 64 \? \(int\)\(end - p\) : 64\); \| \d+: < -> <=",  # equal numbers
    ],
    "llmgpu/cpu/encode.c": [
        # Time alone: whether words are kept.
        r"^shared_insert\(",
        r"length <= LONGEST_INLINE && batch\.count < BATCH\)",
    ],
    "llmgpu/cpu/long_words.c": [
        r"heap->pairs\[child\] >= moved\) \| \d+: >= -> >",  # equal pairs are the same one
        r"heap\.count > 0\) \| \d+: (?:0 -> 1|> -> >=)$",  # one pair is in order
        # Time alone: how often a cut is tried.
        r"eighths >= LAST_CUT",
        # Without stages, windows that go together gave the ids of whole words, too: 245,100 words
        # of random vocabularies, none of them other. That is no proof, so the code has stages.
        r"^if \(right == NO_ID\) \| \d+: == -> !=",
        r"^made\[pair->result\] = ",
        r"^if \(scratch->stages == STAGES\) \{",
        r"^return id >= rank && has_parts\(.*: && -> \|\|$",
        # From an earlier token on: the same answer, later.
        r"^last = window\.first \+ window\.tokens\[cut - 1\]\.begin; .*-> ;$",
    ],
    "llmgpu/cpu/matching.c": [
        # Bytes that are kept together although no token needs it, and a look at the padding.
        r"^for \(int64_t k = 1; k < length; k\+\+\) \{ \| \d+: < -> <=",
        # A slot that is free has no result, either.
        r"^while \(table\[4 \* \(size_t\)at \+ 2\] != empty\) \| \d+: 2 -> 3$",
    ],
    "llmgpu/cpu/merging.c": [
        r"^room \+= room / 8 > POOL_SPARE",  # time alone: how much more room
        r"^if \(trainer->sizes\[pair\] < 0\) \{ \| \d+: < -> <=",  # an empty list is in order
    ],
    "llmgpu/cpu/trainer.c": [
        r"^int64_t at = 1, word = 0; ",  # both are set once more before they are read
        r"inside \+ 1 < length; inside\+\+\) \| \d+: < -> <=",  # overwritten by the next line
    ],
    "llmgpu/cpu/shared_words.c": [
        # Time alone: when a table grows, and when a chunk or the memory is full.
        r"2 \* known > shared_table\(words\)->mask\) \| \d+: (?:2 -> 3|> -> >=)",
        r"4 \* known > 3 \* table->mask .*\| \d+: (?:4 -> 5|> -> >=)",
        r"used <= CHUNK_BYTES - bytes\) \| \d+: <= -> <",
        r"taken > words->most_bytes - CHUNK_BYTES .*\| \d+: > -> >=",
    ],
    "llmgpu/cpu/words.c": [
        r"^madvise\(",  # advice
        r"^for \(;; at = \(at \+ 1\) & table->mask\) \{ \| \d+: \+ -> -",  # in either direction
    ],
    "llmgpu/bpe/encoding/special_encoding.py": [
        r"^values\[:, 1\] = self\._bos or 0 .*: 0 -> 1$",  # what is not present is not taken
        r"^closed = final or bool",  # the end of the text ends the last document anyway
    ],
    "llmgpu/bpe/encoding/special_search.py": [
        r"len\(text\) > len\(rest\) and .*: len\(text\) > len\(rest\) -> ",  # waits once more
    ],
    "llmgpu/bpe/interchange/tiktoken.py": [
        r"json\.dumps\(side, indent=1\).*: 1 -> 2$",  # white space
    ],
    "llmgpu/bpe/words/count_host.py": [
        r"^if 4 \* self\._slices > 5 \* self\.measured\[2\]: ",  # how often an estimate is made
    ],
    "llmgpu/bpe/words/spilling.py": [
        r"^if self\._kept_bytes > self\._most_bytes // 2: .*: 2 -> 3$",  # written a little earlier
    ],
    "llmgpu/bpe/pretokens/o200k.py": [
        r"^rank -= np\.maximum\.accumulate",  # only whether it is even counts
    ],
    "llmgpu/bpe/pretokens/runs.py": [
        r"& \(opened \+ 2 <= last\)",  # texts have padding after them
    ],
    "llmgpu/bpe/pretokens/slices.py": [
        r"^if len\(buffer\) < 2 \* len\(self\._tail\)",  # time alone: when a buffer grows
    ],
    "llmgpu/bpe/vocabulary/trie.py": [
        r"^if trie\.longest > _MOST_LEVELS: ",  # two ways, one answer
    ],
    "llmgpu/text/remote.py": [
        r"^time\.sleep\(",  # time alone
    ],
    "llmgpu/tokens/ids.py": [
        r"stream\.wait\(0\): \| \d+: 0 -> 1$",  # time alone
    ],
    "llmgpu/tokens/npy.py": [
        r"^shutil\.copyfileobj\(self\._numbers, stream, 1 << 20\) .*-> \d+$",  # copied at a time
    ],
}
for _name in ("pairs", "trainer"):  # the other parts of the trainer
    RULES[f"llmgpu/cpu/{_name}.c"] = RULES["llmgpu/cpu/merging.c"]
