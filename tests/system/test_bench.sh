#!/bin/sh
# guanaco bench from outside, on a tiny model: that its files are whole and agree with one another, that failures are
# told, and that nothing is left behind when it is stopped. Speeds are not looked at.
#
#     test_bench.sh GUANACO SYNTH DIRECTORY
set -u
guanaco=$1 synth=$2
mkdir -p "$3" || exit 1
tmp=$(mktemp -d "$3/bench-XXXXXX") || exit 1
. "$(dirname "$0")/../support/program.sh"
bench_pid=
clean_up() { [ -z "$bench_pid" ] || kill -9 "$bench_pid" 2>/dev/null; }
model=$tmp/model.gguf
layers=4 used=4 tokens=8

bench() { "$guanaco" bench "$model" -t 1 "$@"; }

# A process that has ended may wait for ever to be looked after, where nobody does.
alive() {
    state=$(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null)
    [ -n "$state" ] && [ "$state" != Z ]
}

children_of() {
    grep -lE "^PPid:[[:space:]]*$1\$" /proc/[0-9]*/status 2>/dev/null | cut -d / -f 3 | tr '\n' ' '
}

# What must be as before: the read-ahead of the drives, the control groups.
surroundings() {
    cat /sys/block/*/queue/read_ahead_kb 2>/dev/null
    find /sys/fs/cgroup -type d -name 'guanaco-bench-*' 2>/dev/null
}

"$synth" "$model" --layers $layers --embd 512 --ff 256 --experts 16 --used $used --vocab 512 --skew 1 2>"$tmp/err" || {
    failed "cannot make a model"
    exit 1
}
surroundings >"$tmp/before"

# ---- what is refused
refuses "a budget that is none" 2 "expert-cache" bench --expert-cache 25%,lots
refuses "too long for the model" 1 "was trained for" bench --prompt 5000
refuses "a file that cannot be written" 1 "cannot write $tmp/none/x.json" bench --json "$tmp/none/x.json"
refuses "no such text" 1 "cannot read a text from $tmp/none" bench -f "$tmp/none"
: >"$tmp/empty"
refuses "an empty text" 1 "it is empty" bench -f "$tmp/empty"
refuses "a budget that is too small" 1 "no budget can be run.*1.00 MiB.*this needs at least" bench --ram 1MiB --no-stock -r 1 -n 1 --prompt 2
works "--help" "$guanaco" bench --help
says "--help" out "--warm-up"

# ---- the whole run
works "a run" bench -r 2 -n $tokens --warm-up 3 --prompt 40 -ub 20 --expert-cache 25%,100% --limit 64MiB \
    --json "$tmp/b.json" --csv "$tmp/b.csv" --svg "$tmp/b.svg"
says "a run" out "^same logits"
[ "$(grep -c 'streamed 25 %$' "$tmp/err")" = 2 ] || failed "a run: no progress for each round"
python3 - "$tmp" $layers $used $tokens <<'CHECK' >"$tmp/err" 2>&1 || failed "a run: its files"
import csv, json, statistics, sys, xml.etree.ElementTree
tmp, layers, used, tokens = sys.argv[1], *map(int, sys.argv[2:])
bench = json.load(open(tmp + "/b.json"))
cells = {cell["label"]: cell for cell in bench["cells"]}
assert bench["rounds"] == 2 and bench["threads"] == 1 and bench["experts"] == 16
assert bench["logits"]["same"] and bench["logits"]["steps"] == 2 + 3 + tokens, bench["logits"]
ran = [cell for cell in bench["cells"] if "left_out" not in cell]
assert bench["logits"]["runs_compared"] == 2 * len(ran) - 1, bench["logits"]
assert set(cells) == {"resident", "resident+reads", "mmap 64.00 MiB", "25 %", "100 %"}, set(cells)
assert bench["drive"]["mib_per_second"] > 0 and len(bench["drive"]["depths"]) >= 6
assert cells["mmap 64.00 MiB"].get("left_out") or cells["mmap 64.00 MiB"]["group_peak_bytes"] <= 64 << 20
reads = cells["resident+reads"]
busy = "left_out" not in reads
assert busy == bench["drive"]["direct"], reads.get("left_out")
for cell in ran:
    assert len(cell["rounds"]) == 2 and cell["peak_bytes"] > 0
    for key in "decode", "prefill":
        phases = [r[key] for r in cell["rounds"]]
        speeds = [1e9 * p["tokens"] / p["ns"] for p in phases]
        figures = cell[key]
        assert abs(figures["tokens_per_second"] - statistics.median(speeds)) < 1e-3, (figures, speeds)
        assert figures["least"] <= figures["tokens_per_second"] <= figures["most"]
        assert [p["tokens"] for p in phases] == [tokens if key == "decode" else 40] * 2
        assert all(p["stall_ns"] + p["compute_ns"] <= p["total_ns"] <= p["ns"] for p in phases)
        if cell["engine"] == "streamed":
            assert 0 < figures["roof_reached"] and figures["roof_by"] in ("drive", "cores")
            known = busy and all(r[key]["kernel_read_bytes"] > 0 for r in reads["rounds"])
            assert figures["both_tokens_per_second"] > 0 if known else busy or "both_reached" not in figures
        else:
            assert "hit_rate" not in figures and "roof_reached" not in figures and "both_reached" not in figures
for label in "25 %", "100 %":
    for r in cells[label]["rounds"]:
        assert r["decode"]["hits"] + r["decode"]["misses"] == tokens * layers * used, r["decode"]
        if bench["drive"]["direct"] and "io_uring" in cells[label]["mode"]:
            under_way = 8 * bench["expert_bytes"] // (16 * layers) # read ahead since before the phase
            assert r["decode"]["kernel_read_bytes"] + under_way >= r["decode"]["read_bytes"], r["decode"]
assert cells["25 %"]["decode"]["hit_rate"] < 0.9 < cells["100 %"]["decode"]["hit_rate"] <= 1
assert cells["25 %"]["decode"]["mib_per_token"] > cells["100 %"]["decode"]["mib_per_token"]
assert cells["resident"]["decode"]["major_faults_per_token"] == 0
assert not busy or any(r[key]["kernel_read_bytes"] > 0 for r in reads["rounds"] for key in ("decode", "prefill"))
rows = list(csv.DictReader(open(tmp + "/b.csv")))
assert [row["label"] for row in rows] == [cell["label"] for cell in ran]
for row, cell in zip(rows, ran):
    assert float(row["decode_tokens_per_second"]) == cell["decode"]["tokens_per_second"]
    assert (row["decode_stall_ms"] == "") == (cell["engine"] != "streamed")
    assert None not in row and None not in row.values()
svg = xml.etree.ElementTree.parse(tmp + "/b.svg").getroot()
name = "{http://www.w3.org/2000/svg}"
assert len(svg.findall(name + "polyline")) == (6 if busy else 4), "decode and prefill, each with its roofs"
assert len(svg.findall(name + "circle")) == 8
CHECK
surroundings >"$tmp/after"
cmp -s "$tmp/before" "$tmp/after" || failed "a run: leaves a group or another read-ahead behind"

# ---- a text that is too short is repeated; budgets of the whole process; settings of streaming
echo "one two three" >"$tmp/text"
attempt bench -r 1 -n 2 --warm-up 0 --prompt 30 --no-stock --ram 256MiB --policy lru --io threads -f "$tmp/text"
if [ $code = 0 ]; then
    says "a short text" out "repeated"
else
    says "a short text" err "cannot spell this text"
fi
works "--ram" bench -r 1 -n 2 --warm-up 0 --prompt 30 --no-stock --ram 256MiB --policy lru --io threads
says "--io threads" out "threads, page cache"
says "--no-stock" out "the roof is the drive's alone"

works "--no-busy" bench -r 1 -n 2 --warm-up 0 --prompt 30 --no-busy --no-mmap --expert-cache 25%
says "--no-busy" out "stock resident "
! grep -q "resident+reads " "$tmp/out" || failed "--no-busy: is there all the same"
works "--direct off" bench -r 1 -n 2 --warm-up 0 --prompt 30 --no-mmap --expert-cache 25% --direct off
says "--direct off" out "stock resident+reads left out: direct I/O is off"

# ---- a read that fails is a failure of that budget, told once, and of the whole
ends "a failed read" 1 env GUANACO_FAULT_AT=40 GUANACO_FAULT_RESULT=-5 "$guanaco" bench "$model" -t 1 -r 2 -n 2 \
    --warm-up 0 --prompt 30 --no-stock --expert-cache 25%
says "a failed read" err "guanaco: error: streamed 25 %"
ends "a failed read beside stock" 1 env GUANACO_FAULT_AT=40 GUANACO_FAULT_RESULT=-5 "$guanaco" bench "$model" -t 1 \
    -r 2 -n 2 --warm-up 0 --prompt 30 --no-mmap --expert-cache 25%
grep -q "stock resident+reads left out: \(a read that keeps the drive busy failed: Input\|this file system\)" "$tmp/out" ||
    failed "a failed read beside stock: is not told"

# ---- stopped in the midst of it: by Ctrl-C, and by what cannot be caught
for signal in INT KILL; do
    "$guanaco" bench "$model" -t 1 -n 3000 --prompt 500 --seconds 600 --limit 64MiB --no-resident --expert-cache 50% \
        >"$tmp/out" 2>"$tmp/err" </dev/null &
    bench_pid=$!
    tries=0
    until grep -q "round 1 of 3, 2 of " "$tmp/err" || [ $tries = 600 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    sleep 0.5 # into the run
    children=$(children_of $bench_pid)
    [ -n "$children" ] || failed "SIG$signal: no child process to be stopped"
    kill -s $signal $bench_pid
    wait $bench_pid 2>/dev/null
    code=$?
    bench_pid=
    [ $signal = KILL ] || [ $code = 130 ] || failed "SIG$signal: exit code $code"
    tries=0
    while surroundings >"$tmp/after"; ! cmp -s "$tmp/before" "$tmp/after" && [ $tries -lt 100 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    cmp -s "$tmp/before" "$tmp/after" || failed "SIG$signal: leaves a group or another read-ahead behind"
    for child in $children; do
        tries=0
        while alive "$child" && [ $tries -lt 100 ]; do
            sleep 0.1
            tries=$((tries + 1))
        done
        ! alive "$child" || failed "SIG$signal: process $child lives on"
    done
done

finish
