#!/bin/sh
# A model of four times the memory limit runs to the end in a memory control group, and the resident set stays within --ram.
#
#     test_bound.sh GUANACO SYNTH DIRECTORY
set -eu
guanaco=$1 synth=$2 directory=$3
model=$directory/bound.gguf
limit_mib=176 # the model's 704 MiB are four times that
ram_mib=152   # the group counts the kernel's own pages too

group=
cleanup() {
    rm -f "$model" "$directory/bound.err"
    [ -z "$group" ] || rmdir "$group" 2>/dev/null || true
}
trap cleanup EXIT

mkdir -p "$directory"
"$synth" "$model" --layers 12 --embd 1024 --ff 512 --experts 68 --used 4 --type Q4_K --skew 1 --locality 0.5 2>/dev/null
size_mib=$(($(stat -c %s "$model") / 1048576))
[ "$size_mib" -ge $((4 * limit_mib)) ] || { echo "the model has only $size_mib MiB"; exit 1; }

# A group of our own: version 1 or 2, where this machine lets us.
for root in /sys/fs/cgroup/memory /sys/fs/cgroup; do
    [ -e "$root/cgroup.procs" ] || continue
    candidate=$root/guanaco-test-$$
    mkdir "$candidate" 2>/dev/null || continue
    if [ -e "$candidate/memory.limit_in_bytes" ]; then file=memory.limit_in_bytes; else file=memory.max; fi
    if echo $((limit_mib * 1048576)) 2>/dev/null >"$candidate/$file"; then
        group=$candidate
        break
    fi
    rmdir "$candidate"
done
[ -n "$group" ] || echo "skipped [cgroup]: only the resident set is checked"

for dense in copy mapped; do
    code=0
    (
        [ -z "$group" ] || sh -c 'echo $PPID' >"$group/cgroup.procs"
        exec "$guanaco" run -m "$model" --ram ${ram_mib}MiB --dense $dense -c 512 -n 24 -t 1 --temp 0 -p "the quick brown fox"
    ) >/dev/null 2>"$directory/bound.err" || code=$?
    [ $code -eq 0 ] || { echo "--dense $dense ended with $code:"; cat "$directory/bound.err"; exit 1; }
    peak=$(sed -n 's/.*peak memory \([0-9]*\)\.*[0-9]* MiB.*/\1/p' "$directory/bound.err")
    [ -n "$peak" ] || { echo "no peak memory in:"; cat "$directory/bound.err"; exit 1; }
    echo "--dense $dense: peak $peak MiB of --ram $ram_mib MiB, in a group of ${group:+$limit_mib MiB}"
    [ "$peak" -le $((ram_mib + 32)) ] || exit 1
done
[ -n "$group" ] || exit 77
