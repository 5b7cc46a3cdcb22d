#!/bin/sh
# tests/fuzz/fuzz.sh BUILD MINUTES [SEED]: new mutants of every reader, and of whole models against stock llama.cpp, for
# so many minutes in all. A report's mutant is kept in BUILD/fuzz-reports. Without a SEED the clock gives one.
set -eu
build=$1 minutes=$2 seed=${3:-$(date +%s)}
reports=$build/fuzz-reports
mkdir -p "$reports"
# Eleven parts: ten readers, and the models.
part=$((minutes * 60 / 11))
[ "$part" -gt 0 ] || part=1
echo "fuzz: seed $seed, $part s for each reader and for models; a report is kept in $reports"
failed=0
"$build/bin/fuzz" --seed "$seed" --seconds "$part" --save "$reports" || failed=1
"$build/bin/guanaco-tiny" qwen3moe "$reports/model.gguf" --type Q8_0 --experts 4 --used 2
"$build/bin/fuzz-stock" "$build/lib/libguanaco.so" "$reports/model.gguf" --seed "$seed" --seconds "$part" --save "$reports" ||
    failed=1
rm -f "$reports/model.gguf"
exit $failed
