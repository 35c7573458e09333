#!/usr/bin/env bash
# The main jobs on the sources of Python's standard library: a tokenizer trained and used on every
# backend, then a language model.
set -euo pipefail
out=demo-output
mkdir -p "$out"

if [ -t 1 ]; then bold=$'\033[1m' plain=$'\033[0m'; else bold='' plain=''; fi
# Prints a command as it can be pasted into a shell.
step() { printf '\n%s$ %s%s\n' "$bold" "$1" "$plain"; }
run() {
    local words
    printf -v words '%q ' "$@"
    step "${words% }"
    "$@"
}

library=$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
find "$library" -name '*.py' -not -path '*/site-packages/*' -print0 |
    LC_ALL=C sort -z | xargs -0 cat >"$out/corpus.txt"
head -c 200000 "$out/corpus.txt" >"$out/part.txt"
echo "Corpus: $(wc -c <"$out/corpus.txt") bytes of Python's standard library."

echo; echo "== 1. Train a vocabulary on the best backend"
run llmgpu bpe-train "$out/corpus.txt" -o "$out/v.bin" --vocab-size 16384
run llmgpu info "$out/v.bin"

echo; echo "== 2. Tokenize through a pipe, and back"
step "head -3 $out/corpus.txt | llmgpu tokenize --vocab $out/v.bin"
head -3 "$out/corpus.txt" | llmgpu tokenize --quiet --vocab "$out/v.bin"
step "cat $out/corpus.txt | llmgpu tokenize --vocab $out/v.bin |
    llmgpu tokenize --vocab $out/v.bin --decode | cmp - $out/corpus.txt"
cat "$out/corpus.txt" | llmgpu tokenize --quiet --vocab "$out/v.bin" |
    llmgpu tokenize --vocab "$out/v.bin" --decode | cmp - "$out/corpus.txt"
echo "The round trip gives the same bytes."
run llmgpu info "$out/v.bin" --tokens --search return

echo; echo "== 3. The same bytes from every backend (on 200 KB, since some are slow)"
adapters=$(python -c 'from llmgpu.backend import list_adapters
print(*(adapter.name for adapter in list_adapters()), sep="\n")')
printf 'cpu\n%s\n' "$adapters" | sed '/^$/d' | while read -r device; do
    name=$(printf '%s' "$device" | tr -c 'A-Za-z0-9' '-')
    run llmgpu bpe-train "$out/part.txt" -o "$out/$name.v.bin" --vocab-size 768 --device "$device"
    run llmgpu tokenize "$out/part.txt" --vocab "$out/$name.v.bin" --device "$device" \
        --format bin -o "$out/$name.bin"
    cmp "$out/$name.v.bin" "$out/cpu.v.bin"
    cmp "$out/$name.bin" "$out/cpu.bin"
    cmp "$out/$name.bin.json" "$out/cpu.bin.json"
    echo "Same vocabulary and same tokens as NumPy: $device"
done

echo; echo "== 4. The other pipeline: pairs recounted for each merge, and longest match"
adapter=$(printf '%s\n' "$adapters" | head -1)
if [ -n "$adapter" ]; then
    run llmgpu bpe-train "$out/part.txt" -o "$out/recount.v.bin" --vocab-size 400 \
        --engine recount --match greedy --device "$adapter"
    run llmgpu bpe-train "$out/part.txt" -o "$out/greedy.v.bin" --vocab-size 400 \
        --match greedy --device cpu
    cmp "$out/recount.v.bin" "$out/greedy.v.bin"
    for device in cpu "$adapter"; do
        run llmgpu tokenize "$out/part.txt" --vocab "$out/greedy.v.bin" --device "$device" \
            --format bin -o "$out/greedy.bin"
        llmgpu tokenize --decode --vocab "$out/greedy.v.bin" --format bin "$out/greedy.bin" |
            cmp - "$out/part.txt"
    done
    echo "Same vocabulary as without recounting, and the text comes back."
fi

echo; echo "== 5. A language model, for a minute at most: it will have learnt how lines are indented"
run llmgpu bpe-train --quiet "$out/corpus.txt" -o "$out/small.bin" --vocab-size 2048 --limit 5MB
run llmgpu train --vocab "$out/small.bin" "$out/corpus.txt" -o "$out/run" --force \
    --limit 5MB --preset tiny --steps 150 --log-interval 50
run llmgpu generate "$out/run" --prompt 'def __init__(self' --max-new-tokens 60

echo; echo "Done; the files are in $out/."
