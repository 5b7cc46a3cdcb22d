#!/bin/sh
# In a program that has taken a language with decimal commas, numbers are read and written as in C.
# usage: test_comma.sh GUANACO OTHER_PROGRAM PLUGIN DEMO.gguf COMMA-PRELOAD
set -u
guanaco=$1 other=$2 plugin=$3 demo=$4 preload=$5
tmp=$(mktemp -d) || exit 1
. "$(dirname "$0")/../support/program.sh"

# A language of nothing but commas: it needs no package of languages.
if ! command -v localedef >/dev/null; then
    skipped locale "a language with decimal commas cannot be made"
    finish
fi
printf 'LC_NUMERIC\ndecimal_point ","\nthousands_sep "."\ngrouping 3;3\nEND LC_NUMERIC\n' >"$tmp/source"
mkdir "$tmp/locales"
localedef -c --no-archive -i "$tmp/source" "$tmp/locales/comma" >"$tmp/out" 2>"$tmp/err"
with_commas() { env LOCPATH="$tmp/locales" LC_ALL=comma LD_PRELOAD="$preload" "$@"; }
if ! with_commas true; then
    skipped locale "the C library does not take the language that localedef made"
    finish
fi

same() { # NAME COMMAND...: prints the same with commas
    name=$1
    shift
    works "$name" "$@"
    cp "$tmp/out" "$tmp/plain"
    works "$name, with commas" with_commas "$@"
    cmp -s "$tmp/out" "$tmp/plain" || failed "$name: not the same with commas: $(diff "$tmp/plain" "$tmp/out" | head -4)"
    grep -q '[0-9],[0-9][0-9]* [KMG]iB' "$tmp/err" && failed "$name: commas in the log"
}

same "a share" "$guanaco" run -m "$demo" --expert-cache 12.5% --pilot-mass 0.85 --temp 0.5 --seed 1 -t 1 -n 8 -p "It was"
says "a share" err "mode: streaming .* MiB"
same "a size" "$guanaco" run -m "$demo" --expert-cache 3.5MiB --temp 0 -t 1 -n 8 -p "It was" --trace "$tmp/t.csv"
refuses "a comma" 2 "'12,5%' will not do" with_commas "$guanaco" run --expert-cache 12,5% -p x
same "inspect" "$guanaco" inspect "$demo"
same "inspect --json" "$guanaco" inspect "$demo" --json
same "the help" "$guanaco" run --help
same "simulate" "$guanaco" simulate "$tmp/t.csv"
same "simulate --csv" "$guanaco" simulate "$tmp/t.csv" --csv
same "simulate --json" "$guanaco" simulate "$tmp/t.csv" --json
same "simulate --prefetch" "$guanaco" simulate "$tmp/t.csv" --budget 12.5% --prefetch pilot --csv
same "simulate --tiers" "$guanaco" simulate "$tmp/t.csv" --tiers GPU:auto:12.5%,RAM:auto:25% --dense-ms 1.5 --csv
works "a drawing" "$guanaco" simulate "$tmp/t.csv" --svg "$tmp/plain.svg"
works "a drawing, with commas" with_commas "$guanaco" simulate "$tmp/t.csv" --svg "$tmp/commas.svg"
cmp -s "$tmp/plain.svg" "$tmp/commas.svg" || failed "a drawing: not the same with commas"
works "bench" with_commas "$guanaco" bench "$demo" --expert-cache 12.5% --no-stock -r 1 -n 4 --prompt 16 --warm-up 2 \
    --json "$tmp/b.json" --csv "$tmp/b.csv" --svg "$tmp/b.svg"
grep -q '[0-9],[0-9]* MiB/s' "$tmp/out" && failed "bench: commas in the table"
[ "$(sed 's/"[^"]*"/x/g' "$tmp/b.csv" | awk -F, '{ print NF }' | sort -u | wc -l)" = 1 ] || failed "bench: rows of the CSV differ in length"
grep -q 'x1="[0-9]*,' "$tmp/b.svg" && failed "bench: commas in the drawing"
if command -v python3 >/dev/null; then
    python3 -m json.tool <"$tmp/b.json" >"$tmp/out" 2>"$tmp/err" || failed "bench: not JSON"
fi

# ---- the plugin in a program that is not ours
works "another program" with_commas env GUANACO_EXPERT_CACHE=12.5% GUANACO_PILOT_MASS=0.85 GUANACO_STATS_INTERVAL=4 \
    GUANACO_POLICY=slru GUANACO_POLICY_OPTIONS=protected=33.5 GUANACO_TRACE="$tmp/u.csv" "$other" "$demo" "$plugin" 8
grep 'guanaco: ' "$tmp/err" | grep -q '[0-9],[0-9][0-9]* *\(MiB\|KiB\|%\)' && failed "another program: commas in the log"
says "another program" err "mode: streaming .* MiB"
works "its trace" "$guanaco" simulate "$tmp/u.csv" --budget 12.5%

finish
