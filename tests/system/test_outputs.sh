#!/bin/sh
# What is written: no output overwrites what is read, or another output, and nothing is lost when a run is stopped.
# usage: test_outputs.sh GUANACO OTHER_PROGRAM PLUGIN DEMO.gguf DYING-PLUGIN
set -u
guanaco=$1 other=$2 plugin=$3 demo=$4 dying=$5
tmp=$(mktemp -d) || exit 1
. "$(dirname "$0")/../support/program.sh"

cp "$demo" "$tmp/m.gguf"
cp "$demo" "$tmp/before"
ln "$tmp/m.gguf" "$tmp/hard"
ln -s m.gguf "$tmp/soft"
printf 'It was' >"$tmp/prompt"
cp "$tmp/prompt" "$tmp/words"
mkfifo "$tmp/fifo"
run() { timeout 60 "$guanaco" run -m "$tmp/m.gguf" -t 1 -n 8 "$@"; }
simulate() { timeout 60 "$guanaco" simulate "$@"; }
plugged() { # SETTINGS...: a program that is not ours, with the plugin
    env "$@" timeout 60 "$other" "$tmp/m.gguf" "$plugin" 8
}
unharmed() { # NAME
    cmp -s "$tmp/m.gguf" "$tmp/before" || failed "$1: the model is not what it was"
    cmp -s "$tmp/prompt" "$tmp/words" || failed "$1: the prompt is not what it was"
    [ -p "$tmp/fifo" ] || failed "$1: the FIFO is gone"
}

# ---- a file that is read
for file in m.gguf hard soft; do
    refuses "--hot-set $file" 1 "--hot-set (GUANACO_HOT_SET): $tmp/$file is a GGUF file" run --hot-set "$tmp/$file" -p x
    refuses "--trace $file" 1 "--trace (GUANACO_TRACE): $tmp/$file is a GGUF file" run --trace "$tmp/$file" -p x
    refuses "bench --json $file" 1 "json: $tmp/$file is a GGUF file" "$guanaco" bench "$tmp/m.gguf" --json "$tmp/$file"
    for setting in TRACE HOT_SET; do
        attempt plugged "GUANACO_$setting=$tmp/$file"
        [ $code = 1 ] || failed "GUANACO_$setting=$file: exit code $code"
        says "GUANACO_$setting=$file" err "error: .*$tmp/$file is a GGUF file"
    done
    unharmed "$file"
done
refuses "the prompt as trace" 1 "would overwrite the prompt" run --trace "$tmp/./prompt" -f "$tmp/prompt"
refuses "the prompt's link as trace" 1 "would overwrite the prompt" run --trace "$tmp/soft-prompt" -f "$tmp/prompt" \
    --hot-set "$(ln -s prompt "$tmp/soft-prompt" && echo off)"
refuses "the standard input as trace" 1 "is what standard input comes from" \
    sh -c "'$guanaco' run -m '$tmp/m.gguf' -p - --trace '$tmp/prompt' <'$tmp/prompt'"
refuses "the standard output as hot set" 1 "is what standard output goes to" \
    sh -c "'$guanaco' run -m '$tmp/m.gguf' -p x --hot-set '$tmp/text' >'$tmp/text'"
refuses "the prompt of a program" 1 "would overwrite a file that the program is given" \
    "$guanaco" exec --trace "$tmp/prompt" -- cat "$tmp/prompt"
refuses "the text of bench" 1 "would overwrite the text" \
    "$guanaco" bench "$tmp/m.gguf" -f "$tmp/prompt" --csv "$tmp/prompt"
refuses "a policy" 1 "would overwrite the policy" run --policy "$tmp/prompt" --trace "$tmp/prompt" -p x
unharmed "what is read"

# ---- of another kind
refuses "a text as hot set" 1 "is no hot set, and is not overwritten" run --hot-set "$tmp/prompt" -p x
refuses "a folder as hot set" 1 "is a directory" run --hot-set "$tmp" -p x
refuses "a device as hot set" 1 "is a device" run --hot-set /dev/null -p x
refuses "a FIFO as hot set" 1 "is a FIFO" run --hot-set "$tmp/fifo" -p x
refuses "a FIFO as trace" 1 "is a FIFO" run --trace "$tmp/fifo" -p x
refuses "a drawing on a device" 1 "is a device" simulate "$tmp/none.csv" --svg /dev/null
refuses "a link that leads nowhere" 1 "leads nowhere" run --hot-set "$(ln -s none "$tmp/loose" && echo "$tmp/loose")" -p x
refuses "no folder" 1 "cannot write $tmp/none/t.csv: No such file" run --trace "$tmp/none/t.csv" -p x
attempt plugged "GUANACO_HOT_SET=$tmp/prompt"
[ $code = 1 ] || failed "GUANACO_HOT_SET of a text: exit code $code"
unharmed "of another kind"

# ---- what is read may be a FIFO that nobody writes: nothing waits
reads() { # NAME CODE TEXT COMMAND...
    name=$1 wanted=$2 text=$3
    shift 3
    refuses "$name" "$wanted" "$text" timeout 60 "$@"
}
reads "a FIFO as model" 1 "is not a regular file" "$guanaco" run -m "$tmp/fifo" -p x
reads "a FIFO as model, inspect" 1 "is not a regular file" "$guanaco" inspect "$tmp/fifo"
reads "a FIFO as prompt" 1 "holds no prompt" "$guanaco" run -m "$tmp/m.gguf" -f "$tmp/fifo"
reads "a FIFO as text" 1 "cannot read a text from $tmp/fifo" "$guanaco" bench "$tmp/m.gguf" -f "$tmp/fifo"
reads "a FIFO as policy" 1 "is no regular file" "$guanaco" run -m "$tmp/m.gguf" -p x --policy "$tmp/fifo"
reads "a FIFO as policy, simulate" 2 "is no regular file" "$guanaco" simulate "$tmp/fifo" --policy "$tmp/fifo"
reads "a FIFO as plugin" 1 "plugin is not at $tmp/fifo" env GUANACO_PLUGIN="$tmp/fifo" "$guanaco" run -m "$tmp/m.gguf" -p x
reads "a FIFO as trace, simulate" 1 "the file ends before the first row" "$guanaco" simulate "$tmp/fifo"
reads "a FIFO as the trace's model" 1 "ends before the first row" "$guanaco" simulate "$tmp/fifo" --model "$tmp/fifo"
reads "a device as trace, simulate" 1 "a zero byte: this is no text" "$guanaco" simulate /dev/zero
works "a FIFO as imatrix" run --imatrix "$tmp/fifo" -p x
says "a FIFO as imatrix" err "warning: no expert counts are taken from the imatrix $tmp/fifo: it is no regular file"
reads "a FIFO as program" 127 "is not a program" "$guanaco" exec -- "$tmp/fifo"

# ---- two outputs in one file, which exists or does not
refuses "two new outputs" 1 "both write" run --trace "$tmp/./new" --hot-set "$tmp/new" -p x
refuses "two figures" 1 "both write" "$guanaco" bench "$tmp/m.gguf" --json "$tmp/x" --svg "$tmp/x"
[ ! -e "$tmp/new" ] && [ ! -e "$tmp/x" ] || failed "two outputs: something was made"

# ---- what may be written is written, with the mode that it had
works "new files" run --trace "$tmp/t.csv" --hot-set "$tmp/hot" -p x
[ "$(head -c 8 "$tmp/hot")" = GNHOTSET ] || failed "new files: no hot set"
[ "$(stat -c %a "$tmp/hot")" = 600 ] || failed "new files: others may read the hot set"
chmod 640 "$tmp/hot"
ln -s hot "$tmp/soft-hot"
works "a hot set again, by a link" run --hot-set "$tmp/soft-hot" -p x
says "a hot set again, by a link" err "expert counts from the hot set"
[ "$(stat -c %a "$tmp/hot")" = 640 ] || failed "a hot set again: its mode is $(stat -c %a "$tmp/hot")"
[ -L "$tmp/soft-hot" ] || failed "a hot set again: the link is gone"
works "a drawing" simulate "$tmp/t.csv" --budget 25% --svg "$tmp/t.svg"
refuses "the trace as drawing" 1 "would overwrite the trace" simulate "$tmp/t.csv" --svg "$tmp/./t.csv"
refuses "the model as drawing" 1 "is a GGUF file" simulate "$tmp/t.csv" --model "$tmp/m.gguf" --svg "$tmp/soft"
works "the trace as it was" simulate "$tmp/t.csv" --budget 25%
works "a trace by a pipe" sh -c "cat '$tmp/t.csv' | '$guanaco' simulate /dev/stdin --budget 25%"
works "nobody's file" run --hot-set auto -p x
[ -e "$tmp/m.guanaco-hot" ] || failed "a hot set beside the model: there is none"
echo notes >"$tmp/m.guanaco-hot"
works "a file in the hot set's place" run --hot-set auto -p x
says "a file in the hot set's place" err "there will be no hot set"
[ "$(cat "$tmp/m.guanaco-hot")" = notes ] || failed "a file in the hot set's place: it was overwritten"
set -- "$tmp"/*.??????
[ $# = 1 ] && [ "$1" = "$tmp/before" ] || [ "$1" = "$tmp/*.??????" ] || failed "files are left behind: $*"

# ---- a write that fails leaves the old file
cp "$tmp/hot" "$tmp/hot-before"
attempt sh -c "(trap '' XFSZ; ulimit -f 0; '$guanaco' run -m '$tmp/m.gguf' -t 1 -n 8 -p x --hot-set '$tmp/hot') 2>&1 | cat"
says "a write that fails" out "the hot set cannot be saved .*File too large"
cmp -s "$tmp/hot" "$tmp/hot-before" || failed "a write that fails: the old hot set is gone"

# ---- a signal that asks a run to end: the trace and the hot set are whole
stopped() { # SIGNAL EXIT-CODE
    rm -f "$tmp/t.csv" "$tmp/hot"
    : >"$tmp/out"
    "$guanaco" run -m "$tmp/m.gguf" --temp 0 -t 1 -c 32768 -p "It was" --trace "$tmp/t.csv" --hot-set "$tmp/hot" \
        >"$tmp/out" 2>"$tmp/err" </dev/null &
    pid=$!
    tries=0
    while [ "$(wc -c <"$tmp/out")" -lt 20 ] && [ $tries -lt 240 ]; do
        sleep 0.25
        tries=$((tries + 1))
    done
    kill "-$1" $pid
    wait $pid
    code=$?
    [ $code = "$2" ] || failed "SIG$1: exit code $code, not $2"
    [ "$(head -c 8 "$tmp/hot")" = GNHOTSET ] || failed "SIG$1: no hot set"
    works "the trace after SIG$1" simulate "$tmp/t.csv" --budget 25%
}
stopped TERM 143
stopped HUP 129
stopped INT 130

# A program that is killed leaves the trace of all that it has decoded.
mkfifo "$tmp/said"
rm -f "$tmp/t.csv"
GUANACO_TRACE="$tmp/t.csv" timeout 60 "$other" "$tmp/m.gguf" "$plugin" 8 wait >"$tmp/said" 2>"$tmp/err" &
pid=$!
read -r _ <"$tmp/said"
kill -TERM $pid
wait $pid
works "the trace of a program that is killed" simulate "$tmp/t.csv" --budget 25% --csv
[ "$(grep -c '^[0-9]*,1,' "$tmp/t.csv")" = 192 ] || # 8 tokens, 6 layers, 4 experts
    failed "the trace of a program that is killed: $(grep -c '^[0-9]*,1,' "$tmp/t.csv") rows, not 192"

# ---- standard streams that are closed, or full
works "closed standard streams" sh -c "exec '$guanaco' run -m '$tmp/m.gguf' -t 1 -n 8 -p x --trace '$tmp/t.csv' <&- >&- 2>&-"
works "the trace of closed standard streams" simulate "$tmp/t.csv" --budget 25%
GUANACO_TRACE="$tmp/t.csv" works "closed standard streams, another program" \
    sh -c "exec timeout 60 '$other' '$tmp/m.gguf' '$plugin' 8 <&- >&-"
works "the trace of closed standard streams, another program" simulate "$tmp/t.csv" --budget 25%
gives "closed standard streams are passed on" "/dev/null /dev/null" \
    sh -c "'$guanaco' exec -- sh -c 'echo \$(readlink /proc/self/fd/0) \$(readlink /proc/\$\$/fd/2) >\"$tmp/shown\"' <&- 2>&- && cat '$tmp/shown'"
if [ -w /dev/full ]; then
    full() { # NAME COMMAND...
        name=$1
        shift
        attempt sh -c 'exec "$@" >/dev/full' sh "$@"
        [ $code = 1 ] || failed "$name > /dev/full: exit code $code"
        [ "$(grep -c 'error: cannot write to standard output' "$tmp/err")" = 1 ] || failed "$name > /dev/full: not one line"
    }
    full "run" "$guanaco" run -m "$tmp/m.gguf" -t 1 -n 100000 -c 4096 --temp 0 -p "It was"
    full "inspect" "$guanaco" inspect "$tmp/m.gguf"
    full "inspect --json" "$guanaco" inspect "$tmp/m.gguf" --json
    full "simulate" "$guanaco" simulate "$tmp/t.csv"
    for command in "" run exec inspect simulate bench; do
        # shellcheck disable=SC2086
        full "$command --help" "$guanaco" $command --help
    done
    full "--version" "$guanaco" --version
else
    skipped dev-full "a standard output that is full"
fi

# ---- the process that measures a model dies
dies() { # NAME SIGNAL TEXT
    refuses "$1" 1 "the process that measures $tmp/m.gguf $3" \
        env GUANACO_PLUGIN="$dying" DYING_PLUGIN="$2" "$guanaco" run -m "$tmp/m.gguf" -p x
    grep -q "damaged" "$tmp/err" && [ "$2" != 11 ] && failed "$1: it is told as damage"
}
dies "killed" 9 "was killed by signal 9 (Killed), as the kernel does when memory is short"
dies "terminated" 15 "was killed by signal 15 (Terminated)"
dies "crashed" 11 "crashed with signal 11 (Segmentation fault)"
dies "ended" 0 "ended with exit code 3"

finish
