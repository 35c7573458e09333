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
        # C: memory for one more than is needed.
        r"\b[cm]alloc\(.*: 1 -> 2$",
        r"^uint8_t (?:room|word)\[.*: (?:\+ -> -|\d+ -> \d+)$",
        # Python: results do not depend on the number of threads.
        r"\bthreads: int = 1\b.*: 1 -> 2$",
        # C: of two equal numbers, either one.
        r"(?<!\S)(\S+) [<>] (\S+) \? (?:\1 : \2|\2 : \1)[;,].* \| \d+: (?:< -> <=|> -> >=)$",
        # A limit of memory or of time, but for one byte or one step.
        r"\b_?(?:MOST|MAX)_(?:STEPS|TABLE_\w+|BATCH)\b.* \| \d+: (?:> -> >=|>= -> >|.*\d -> \d+)$",
        # The same of limits that take gigabytes to reach.
        r"^MAX_(?:POSITIONS|WORD_BYTES) = .*: \d+ -> ",
        r"NO_PAIR \|\| \| \d+: ",
        # WGSL: who dispatches a kernel takes the numbers of its bindings from its text.
        r"^@group\(0\) @binding\(\d+\) .*\| 19: ",
        # Sizes of blocks, and estimates of memory, which have a margin.
        r"^_?(?:(?:NUMPY_|ENGINE_)?COSTS|SLICE_BYTES|BLOCK|WORD_BYTES|LEAST_BLOCK)\b.*: \d+ -> ",
    ],
    "llmgpu/cpu/blocks.c": [
        r"\bcontraction_end\(p \+ .*, end, 1\);.*: 1 -> 2$",  # it is compared with 0
        r"^starts \|= after - p < 64 \? .*: 0 -> 1$",  # bit 0, where a pre-token begins anyway
        r"^classes\.\w+ &= ascii;",  # `certain` takes off what is beyond, too
        # Equal numbers; 64 kept bits of 64, which is bit 0, where a pre-token begins anyway.
        r"end - p < 64 \? \(int\)\(end - p\) : 64\); \| (?:\d+: < -> <=|40: 64 -> 65)",
        r"^starts \|= (?:after - p|closed) < 64 \? .* \| \d+: < -> <=",
        r"^if \(classes\.known < 64\) \{ \| \d+: < -> <=",  # all 64 bits are kept
        r"^beyond &= beyond - 1; ",  # time alone: whether a block is tried
    ],
    "llmgpu/cpu/encode.c": [
        r"^if \(count >= 0\) .*: >= -> >$",  # time alone: a word without ids is not kept
        r"^table = shared_table\(encoder->shared\); ",  # the same: the table before is good, too
        r"^if \(more < 0\) \| \d+: 0 -> 1$",  # no text is without ids
        r"padded_room, length \+ TEXT_PADDING, 1\) != 0\) \| \d+: 1 -> 2$",  # room to spare
        # Time alone: whether words are kept.
        r"^shared_insert\(",
        r"length <= LONGEST_INLINE && batch\.count < BATCH\)",
    ],
    "llmgpu/cpu/long_words.c": [
        r"^window->first \+ window->tokens\[cut - 1\]\.begin, next\); .*: 1 -> 2$",  # as below
        r"heap->pairs\[child\] >= moved\) \| \d+: >= -> >",  # equal pairs are the same one
        r"heap\.count > 0\) \| \d+: (?:0 -> 1|> -> >=)$",  # one pair is in order
        # Time alone: how often a cut is tried.
        r"eighths >= LAST_CUT",
        # The same: beyond the limit, words are merged whole.
        r"length >= MOST_STEPS \|\| ",
        # Without stages, windows that go together gave the ids of whole words, too: 245,100 words
        # of random vocabularies, none of them other. That is no proof, so the code has stages.
        r"^if \((?:left|right) == NO_ID\) \| \d+: == -> !=",
        r"\btoken_id\(vocabulary, token \+ cut, length - cut\)",
        r"^if \(pair->key != NO_PAIR && |^\(right <= most && |^most = |^stages = NO_STAGES",
        r"^uint64_t left = pair->key >> 32, |^if \(token_id\(vocabulary, token, cut\) != NO_ID",
        r"^for \(uint64_t at = 0; at <= \w+->(?:pair_)?mask; .*: (?:<= -> <|0 -> 1)$",
        r"^(?:if \()?ranks_after\(vocabulary, token",
        r"^uint32_t rank = slot->value\[0\]; .*: 0 -> 1$",
        r"^for \(int64_t cut = 1; cut < length; .*: < -> <=$",  # the empty text is no token
        r"^made\[pair->result\] = ",
        r"^if \(scratch->stages == STAGES\) \{",
        r"^return id >= rank && has_parts\(.*: && -> \|\|$",
        # From an earlier token on, or up to a later one: the same answer, later.
        r"^last = window\.first \+ window\.tokens\[cut - 1\]\.begin; .*-> (?:;|2)$",
        r"^window\.size \*= 2; ",  # time alone: the size of windows
        r"^if \(window->size > length - window->first\) .*> -> >=$",  # of two equal numbers
    ],
    "llmgpu/cpu/matching.c": [
        r"^join\(joined, .*index \| token\[k \+ 1\], 1\); .*: 1 -> 2$",  # the first is the last
        # Time alone: words are cut in fewer places; tables are larger, or less of them is used.
        r"^if \(length > 1 && vocabulary->takes_whole && .*&& -> \|\|$",
        r"^while \(slots < 2 \* count\) .*: 2 -> 3$",
        r"^vocabulary->pair_mask = slots - 1; .*: 1 -> 2$",
        # Time alone: words are cut in fewer places.
        r"^if \(merged == 1 && ids\[0\] != .*&& -> \|\|$",
        r"^for \(int64_t k = 1; k < length; k\+\+\) \{ \| 17: 1 -> 2$",
        # Bytes that are kept together although no token needs it, and a look at the padding.
        r"^for \(int64_t k = 1; k < length; k\+\+\) \{ \| \d+: < -> <=",
        r"slots < 1 << 28 \? ",  # of more tokens than there are ids
        r"^if \(best \+ 1 < count\) ",  # nobody looks at the rank of the last part
        r"^if \(status == 0\) ",  # as above: without cuts
        # A slot that is free has no result, either.
        r"^while \(table\[4 \* \(size_t\)at \+ 2\] != empty\) \| \d+: 2 -> 3$",
    ],
    "llmgpu/cpu/tokens.c": [
        r"^\(children > 0 && next <= node\)\) .*: > -> >=$",  # at the end there is no node
        r"^for \(; slots\[slot\] != 0; slot = \(slot \+ 1\) & mask\) .*: \+ -> -$",  # any direction
        r"^branches\[0\] = .*\| (?:30|36): 0 -> 1$",  # nobody looks at these of the root
        r"branches\[order\[at - 1\]\]\.label > .*> -> >=$",  # the labels of siblings differ
    ],
    "llmgpu/cpu/merging.c": [
        r"^if \(just_made->occurrences > 0 && .*: > -> >=$",  # a pair that does not occur
        r"^return \(left > right\) - .*: (?:> -> >=|< -> <=)$",  # positions differ
        r"^needed \+= pair == NO_PAIR \? 0 : .*: 0 -> 1$",  # room to spare
        r"trainer->pairs\[pair\]\.count > 0 && .*> -> >=$",  # a pair that does not occur
        r"^int is_new = result >= trainer->next; .*>= -> >",  # room to spare
        r"^return is_new \? needed : 2 \* needed; .*: 2 -> 3$",  # the same
        r"^if \(size > 0\) \{ \| \d+: > -> >=",  # a list of none is copied, and sorted in vain
        r"^room \+= room / 8 > POOL_SPARE",  # time alone: how much more room
        r"^if \(trainer->sizes\[pair\] < 0\) \{ \| \d+: < -> <=",  # an empty list is in order
    ],
    "llmgpu/cpu/pairs.c": [
        # Time alone: positions in a list that hold another pair are passed over.
        r"^if \(pair == kept_whole \|\| .*&& -> \|\|$",
        # Time alone: how many pairs wait in the heap. It is filled again when none is left there.
        r"^for \(int64_t k = 0; k < trainer->num_pairs; k\+\+\) \| \d+: 0 -> 1$",
        r"^if \(trainer->pairs\[k\]\.count > largest\) \| \d+: > -> >=$",  # the same number
        r"^grow\(.*trainer->num_pairs \+ 1, .*1 -> 2$",  # room to spare
        # No list begins at 1, and positions in a list that hold another pair are passed over.
        r"^trainer->pairs\[pair\]\.(?:begin|size) = 0; .*: 0 -> 1$",
        r"^trainer->pairs\[pair\]\.begin = 0; .*-> ;$",  # it keeps its place in the pool
        # The place after the last holds the candidate that is moved, which ends the loop as well.
        r"^if \(child \+ 1 < trainer->heap_used && \| \d+: (?:< -> <=|\+ -> -)",
    ],
    "llmgpu/cpu/pretokens.c": [
        r"^return space_end\(pattern, p, end, 1\); .*: 1 -> 2$",  # the same
        r"^\} while \(p < end && \*p >= 0x80\); .*: < -> <=$",  # no letter is after the end
        r"^if \(p == end \|\| \*p < 0x80\) \| \d+: \|\| -> &&$",  # the next test says the same
        # Time alone: where blocks are looked for.
        r"\b(?:room - count|last - p) >= .*: (?:>= -> >|64 -> 65)$",
        r"\bcontraction_end\(p, end, 1\);.*: 1 -> 2$",  # it is compared with 0
        # A byte of 0 is decoded then; the next loop sets 128.
        r"^for \(int byte = 0; byte < 128; .*(?:0 -> 1|< -> <=|128 -> 129)$",
        r"^if \(load64\(\*p \+ 1\) & TOPS\)",  # time alone: whether it is worth a try
        r"^if \(p == end \|\| \*p < 0x80\) .*< -> <=$",  # no character begins with 0x80
        r"^if \(p == end \|\| \*p < 0x80 \|\|",  # neither the padding nor ASCII is a letter there
        r"^\} while \(p < end && \*p >= 0x80\); .*: >= -> >$",  # no character begins with 0x80
    ],
    "llmgpu/cpu/texts.c": [
        r"^while \(end - p >= 8 && .*8 -> 9$",  # time alone: bytes looked at together
    ],
    "llmgpu/cpu/jsonl.c": [
        r"^while \(p < end\) \{ \| \d+: < -> <=",  # nothing is plain at the end, either
        r"next - p > longest\) .*: > -> >=$",  # two ways, one answer
        r"^return 1; .*1 -> 2$|^string->is_escaped = 1; .*1 -> 2$",  # they are compared with 0
        # A limit, but for one level.
        r"depth < MOST_DEPTH\b|read_object\(&line, 0, 1\)",
    ],
    "llmgpu/cpu/rows.c": [
        r"p->rows - row < NORM_ROWS \? .*< -> <=$",  # of two equal numbers, either one
    ],
    "llmgpu/cpu/threads.c": [
        r"^int64_t seen = 0; ",  # time alone: the other threads do a job that one misses
        r"^free\(threads\);",  # memory alone
        # Time alone: how long a thread looks for work, and which work is shared.
        r"\bLOOKS\b|^pause_briefly\(|^__builtin_ia32_pause",
        r"^if \(__atomic_load_n\(&threads->(?:started|inside), __ATOMIC_\w+\) [!=]= ",
        r"^if \(threads->others == 0 \|\| count <= step\)",
        r"^return step > 0 \? step : 1; .*: 1 -> 2$",
        r"^int64_t step = LEAST_ELEMENTS .*: (?:0 -> 1|1 -> 2)$",
        r"^pthread_(?:mutex|cond)_init\(",  # memory of zeros is one already
        # Whoever looks compares it with the number before.
        r"^__atomic_fetch_add\(&threads->started, .*: 1 -> 2$",
        r"^threads->is_open = 0; ",  # who comes then finds nothing to do, either
    ],
    "llmgpu/cpu/transfers.c": [
        r"^threads = threads < MOST_THREADS \? .*-> ;$",  # it takes 64 pieces
        # Time alone: more pages are asked for, and if there are none, the file system writes.
        r"madvise\(place - into_page, \(size_t\)\(end - begin\) .*51: - -> \+$",
        # Time alone: how many threads there are.
        r"^int64_t pieces = transfer|^while \(started < threads - 1 .*(?:1 -> 2|< -> <=)$",
        r"^pthread_mutex_(?:init|destroy)\(",  # memory of zeros is one already
        r"^end = end < transfer->length \? .*< -> <=$",  # of two equal numbers, either one
    ],
    "llmgpu/cpu/products.c": [
        r"^if \(p->rows >= p->columns\) .*: >= -> >$",  # two ways, one answer
        r"^run_job\(.*, 1\); .*: 1 -> 2$",  # time alone: how many items are taken at once
        r"^if \(parts < 1\) ",  # the same
        r"^multiply\(.*\(Matrix\)\{[^}]*, 1, .*: 1 -> 2$",  # it is compared with 0
        r"a->seq - first < BLOCK \? .*< -> <=$",  # of two equal numbers, either one
        r"TRANSPOSED = 112 .*112 -> 113$",  # transposed and conjugated: the same for real numbers
        # Time alone: how many parts a product has.
        r"^int64_t parts = rows \* columns \* inner / LEAST_PART; ",
        r"^(?:if \()?parts (?:=|>) (?:thread_count\(|longer / ALIGNMENT)",
    ],
    "llmgpu/cpu/trainer.c": [
        r"trainer->passes \*= 2\) \{ .*: 2 -> 3$",  # time alone: how many more passes
        r"^int64_t at = 1, word = 0; ",  # both are set once more before they are read
        r"inside \+ 1 < length; inside\+\+\) \| \d+: < -> <=",  # overwritten by the next line
    ],
    "llmgpu/cpu/shared_words.c": [
        r"^if \(__atomic_compare_exchange_n\(.*, next, 0, .*: 0 -> 1$",  # tried until it is made
        r"^copy->high = high; ",  # time alone: whether words are kept
        # Time alone: a word that is not found is encoded again.
        r"^if \(word->length <= LONGEST_INLINE\) .*<= -> <$",
        r"^for \(uint64_t k = 0; k <= from->mask; .*(?:<= -> <|0 -> 1)$",
        r"^__atomic_fetch_add\(&words->bytes, ",  # a limit of memory, but for older tables
        r"^words->bytes = FIRST_SLOTS ",  # the same, but for the first table
        r"^bytes = \(bytes \+ 7\) & ~INT64_C\(7\); .*-> ;$",  # processors here read anywhere
        # Time alone: when a table grows, and when a chunk or the memory is full.
        r"SMALL_TABLE \? 4 : 2\) .*\| \d+: (?:4 -> 5|2 -> 3|< -> <=|> -> >=)",
        r"4 \* known > 3 \* table->mask .*\| \d+: (?:4 -> 5|> -> >=)",
        r"used <= CHUNK_BYTES - bytes\) \| \d+: <= -> <",
        r"taken > words->most_bytes - CHUNK_BYTES .*\| \d+: > -> >=",
    ],
    "llmgpu/cpu/words.c": [
        r"^if \(2 \* \(uint64_t\)\(table->words \+ 1\) > table->mask .*: > -> >=$",  # time alone
        r"^if \(bytes < HUGE_PAGE\)",  # the same bytes from either
        r"^for \(int64_t at = 0; at < length - 8; at \+= 8\) ",  # of a hash; bytes are compared
        r"^low = mix_words\(",  # the same
        r"^\*table_bytes = ",  # a figure for a limit of memory
        r"^madvise\(",  # advice
        r"^while \(next < num_starts && .*12: < -> <=$",  # nobody takes the start after the last
        # In any direction and steps, in a table that is half free.
        r"^for \(;; at = \(at \+ 1\) & table->mask\) \{ \| \d+: (?:\+ -> -|1 -> 2)",
    ],
    "llmgpu/bpe/encoding/matching.py": [
        # Time alone: the sizes of windows and memories, and how often a cut is tried.
        r"^(?:WINDOW|_LEAST_TOKENS|_CUTS|_REMEMBERED_WORDS) = ",
        r"^size \*= 2 ",
        r"^_GONE = -2 .*: 2 -> 3$",  # any number below -1
        # As in long_words.c: without stages, windows that go together gave the same ids.
        r"^if len\(word\) > WINDOW and self\._has_stages: .* or self",
        # From an earlier token on, or up to a later one: the same answer, later.
        r"^if self\._go_together\(word, first \+ int\(begins\[cut - 1\]\).*: 1 -> 2$",
        r"^end = border \+ int\(begins\[1\]\) if .*: (?:min -> max|1 -> 2)$",
        r"made\[(?:left|right)\]\).*: (.*) > (.*) -> \1 >= \2$",  # no token is its own part
        r"list\(range\(1, end \+ 1\)\) \| (?:58|62): 1 -> 2$",  # room to spare
        r"^made = np\.full\(int\(self\._pairs.*: 1 -> 2$",  # the same
        r"^self\._results = np\.zeros\(.*: 1 -> 2$",  # the same
        r"^last, first, size = first \+ int\(begins\[cut - 1\]\).*45: 1 -> 2$",  # as `end` above
        r"\.reshape\(-1, 3\) .*1 -> 2$|^unknown = -1 if .*: 1 -> 2$",  # any negative number
    ],
    "llmgpu/bpe/encoding/special_encoding.py": [
        r"^closed = final or bool",  # the end of the text ends the last document anyway
        r"len\(text\) > len\(rest\) and .*: len\(text\) > len\(rest\) -> ",  # waits once more
        r"^if depth == _MOST_NESTED: ",  # the same
        r"^branches = .*depth \+ 1\).*: 1 -> 2$",  # time alone: which texts are one branch
    ],
    "llmgpu/bpe/interchange/tiktoken.py": [
        r"json\.dumps\(side, indent=1\).*: 1 -> 2$",  # white space
        r"^here = position\.get\(merge, -1\) .*: 1 -> 2$",  # any negative number
    ],
    "llmgpu/bpe/words/counts_file.py": [
        r"^known = ",  # which of two messages
        r"^most = max\(1, block_bytes ",  # time alone: how many counts are in a block
        r"^max_buffer_size=size \+ 1,.*: 1 -> 2$",  # the same, but for one byte
        r"^max_map_len=",  # a limit of memory, but for one field
    ],
    "llmgpu/bpe/words/count_host.py": [
        r"^if self\._table\.nbytes > self\._memory_bytes: ",  # a limit of memory, but for one byte
        r"^self\.measured = 0, 0, self\._slices",  # rather one word too many
        r"^if 4 \* self\._slices > 5 \* self\.measured\[2\]: ",  # how often an estimate is made
    ],
    "llmgpu/bpe/training/merge_host.py": [
        r"^FEW_PAIRS, |^few_pairs = ",  # memory alone
        r"min\(task\.merges - made, SLICE_MERGES\).*: task\.merges - made -> ",  # as below
        r"^SLICE_OCCURRENCES = ",  # how often progress is told
        r"^is_too_much = .*: (.*) > (.*) -> \1 >= \2$",  # a limit of memory, but for one byte
        r"trainer\.train\(min\(.*: min -> max$",  # the trainer makes no more than asked for, anyway
        r"^trainer = Trainer\(words, most - len\(words\.lengths\)\) .*: .* - .* -> ",  # spare room
    ],
    "llmgpu/bpe/training/batched_numpy.py": [
        r"^SHORT_LIST = |^if results\[index\] < next_symbol: .*<= next_symbol$",  # time alone
        r"^MERGING = -1 .*: 1 -> 2$",  # the same
    ],
    "wgsl/pretoken/o200k_starts.wgsl": [
        r"\(neutral_end < 0 \|\| .*37: < -> <=$",  # it is never 0: a character is before it
    ],
    "wgsl/pretoken/gpt2_starts.wgsl": [
        r"^const OTHER: u32 = 3u; ",  # any number that no other class has
        r"^return select\(0u, 3u, ll \|\| ve_or_re\); .*: 0 -> 1$",  # a letter after "'" starts
        r"^for \(var back = 1; back <= 3; .*: 3 -> 4$",  # no contraction has 4 bytes
    ],
    "wgsl/pretoken/class_starts.wgsl": [
        r"^const NEWLINE: u32 = 4u; ",  # any number that no other class has
    ],
    "wgsl/pretoken/walk.wgsl": [
        # Time alone: the walk goes back to an earlier start that is certain.
        r"^return own == NUMBER_CATEGORY \|\| own == WHITE_SPACE .*: \|\| -> &&$",
        r"^for \(var length = 2; length <= 4; .*: 4 -> 5$",  # no character has 5 bytes
    ],
    "wgsl/pretoken/quick.wgsl": [
        r"^select\(0u, countLeadingZeros\(.* \| 7: 0 -> 1$",  # it is compared with BESIDE_BYTES
    ],
    "wgsl/words/03_rehash.wgsl": [
        r"probe < MAX_PROBES; .*: (?:0 -> 1|< -> <=)$",  # one of thousands, in a table half free
    ],
    "wgsl/words/look_up.wgsl": [
        r"probe < MAX_PROBES; .*: (?:0 -> 1|< -> <=)$",  # the same
        # Time alone: which hash a word has, whose bytes are compared.
        r"^for \(var done = 0u; done < length; done \+= 8u\) .*: (?:0 -> 1|8 -> 9|< -> <=)$",
        r"^var hash = |^let place = start \+ min\(.*: 8 -> 9$",
        r"^hash &= vec2<u32>\(HASH_MASK, ",  # the highest byte is that of HASHED anyway
    ],
    "wgsl/words/home.wgsl": [
        r"select\(key\.y, 0u, .*: 0 -> 1$",  # the same
    ],
    "wgsl/trie/00_chunk_entry.wgsl": [
        r"^let groups = \(params\.chunk_count .*: - -> \+$",  # time alone: a group without chunks
    ],
    "wgsl/recount/05_setup_merge.wgsl": [
        # Time alone: starts of runs are looked for, although no run is merged.
        r"^set_groups\(ARGS_RUNS, select\(.*: 0 -> 1$",
    ],
    "wgsl/recount/02_pair_count.wgsl": [
        r"^const GLOBAL_PROBES: .*: 32 -> 33$",  # when a table is made larger
    ],
    "wgsl/pretoken/unicode.wgsl": [
        r"^if \(position < 0\) .*: < -> <=$",  # the first character ends before a segment does
    ],
    "wgsl/encode/07_document_starts.wgsl": [
        r"^if \(document >= params\.documents .*: >= -> >$",  # nobody reads what is after the last
    ],
    "wgsl/batched/03_count_ranks.wgsl": [
        r"^for \(var bin = local_index; bin < BINS; .*< -> <=$",  # time alone, as below
    ],
    "wgsl/batched/rank.wgsl": [
        r"^let bits = 32u - countLeadingZeros\(most\); .*: 32 -> 33$",  # half of the bins are empty
    ],
    "wgsl/words/state.wgsl": [
        r"^override MAX_WORD: ",  # a limit, which the host reads here
    ],
    "wgsl/batched/09_make_pairs.wgsl": [
        # After the members there is one that was merged before, or slot 0, of no pair.
        r"^if \(thread\.x < state\.batch_size\) .*< -> <=$",
    ],
    "wgsl/batched/04_lower_threshold.wgsl": [
        r"^bins\[bin\] = 0u; ",  # time alone: of counts that are too large, fewer pairs are listed
    ],
    "wgsl/batched/06_select_batch.wgsl": [
        r"^var<workgroup> sh_pair: .*: 256 -> 257$",  # room to spare
        r"^state\.equal_parts = .*: 1 -> 2$",  # it is compared with 0
    ],
    "llmgpu/lm/sampling.py": [
        r"^if penalty == 1 or not self\._seen: ",  # nothing is lowered then, either
    ],
    "llmgpu/bpe/encoding/encoder_numpy.py": [
        r"^self\._table = table ",  # time alone: words are matched again
    ],
    "llmgpu/bpe/words/spilling.py": [
        r"^self\._end = 0 .*: 0 -> 1$",  # the first byte of a temporary file is not used
        r"^self\._file\.close\(\) .*left out$",  # the next line lets go of it
        r"^if words\.nbytes > self\._most_bytes // 2: .*: (?:2 -> 3|.* >= )",  # earlier
    ],
    "llmgpu/bpe/pretokens/slices.py": [
        r"^if len\(buffer\) < 2 \* len\(self\._tail\)",  # time alone: when a buffer grows
        r"^buffer, oversized = .*: (?:.* - PADDING|2 -> 3)$",  # the same
        r"length >= 2 \* searched: ",  # time alone: how often a cut is looked for
    ],
    "llmgpu/bpe/pretokens/unicode_classes.py": [
        r"^code_of = np\.array\(.*: 7 -> 8$",  # of a class that no character has
        r"^_LEAST = np\.array\(\[0, 0, .*: 0 -> 1$",  # no character here has fewer bytes than two
    ],
    "llmgpu/bpe/pretokens/expressions.py": [
        r"^_NEAR = ",  # time alone: how much is looked at first
        r"^_INCOMPLETE = .*: 3 -> 4$",  # the same
        # Time alone: only a mark is in two runs, and where a pre-token ends between the beginnings
        # of the two does not depend on what follows the mark.
        r"^begin = low \+ min\(.*: min -> max$",
        r"^_FIRST = |^wanted \*= 2 ",  # time alone: how much is looked at first, and next
    ],
    "llmgpu/tokens/bin.py": [
        r"^_MOST_IN_INDEX = ",  # a limit that takes gigabytes to reach
    ],
    "llmgpu/tokens/shards.py": [
        r"^_BLOCK_IDS = ",  # time alone: how many ids are counted at once
    ],
    "llmgpu/cpu/decimals.c": [
        r"^uint8_t digits\[20\], .*: 20 -> 21$",  # room to spare
    ],
    "llmgpu/cpu/row_kernels.h": [
        r"^int64_t end_ = \(n\)-i_ < SUM_BLOCK \? .*: < -> <=$",  # of two equal numbers
    ],
    "llmgpu/text/remote.py": [
        r"^time\.sleep\(",  # time alone
    ],
    "llmgpu/tokens/ids.py": [
        r"^_IS_SPACE = np\.zeros\(256, .*: 256 -> 257$",  # bytes are below 256
        r"len\(ids\) >= _LEAST_IDS and .*: .* > _LEAST_IDS$",  # two ways, one answer
        r"^for begin in range\(0, max\(len\(ids\), 1\), _BLOCK_IDS\): .*: 1 -> 2$",  # once, too
        r"^if len\(pending\) >= _BLOCK_IDS_READ .*: .* > ",  # the same
        r"stream\.wait\(0\): \| \d+: 0 -> 1$",  # time alone
        r"^if self\._vocabulary\.size <= CELL_IDS .*<= .* -> .* < ",  # two ways, one answer
    ],
    "llmgpu/tokens/sinks.py": [
        r"^_WRITE_THREADS = ",  # time alone: how many threads write
        r"\b_MAX_HEADER_BYTES\b.*: (?:\d+ -> \d+|.* > .* -> .* >= .*)$",  # a limit of memory
        r"^header = self\._header\(0\) .*: 0 -> 1$",  # it is written again with the count
        r"stream\.peek\(4\).*\| 30: 4 -> 5$",  # more than is looked at
        r"^shutil\.copyfileobj\(self\._numbers, stream, 1 << 20\) .*-> \d+$",  # copied at a time
    ],
}
for _name in ("pairs", "trainer"):  # the other parts of the trainer
    RULES[f"llmgpu/cpu/{_name}.c"] += RULES["llmgpu/cpu/merging.c"]
