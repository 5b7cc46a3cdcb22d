#!/bin/sh
# One model in every layout that its files may have, and in every way that it may be loaded: the same words each time,
# from `guanaco run` and, where llama.cpp's own programs are, from llama-completion with `guanaco exec`.
#
#     test_layouts.sh GUANACO SYNTH DIRECTORY PROGRAMS
set -u
guanaco=$1 synth=$2 programs=$4
mkdir -p "$3" || exit 1
directory=$(cd "$3" && pwd)
tmp=$(mktemp -d "$directory/layouts.XXXXXX") || exit 1
. "$(dirname "$0")/../support/program.sh"
memory= overlay= device=
clean_up() {
    [ -z "$device" ] || losetup --detach "$device"
    [ -z "$overlay" ] || umount "$overlay"
    [ -z "$memory" ] || rm -rf "$memory"
}
completion=
[ -x "$programs/llama-completion" ] && completion=$programs/llama-completion ||
    echo "llama-completion is not in $programs ('make llama-programs'): only guanaco run is tried"
export GUANACO_EXPERT_CACHE=20% GUANACO_SPOOL_DIR="$tmp"

make() { "$synth" "$1" --layers 4 --embd 256 --ff 256 --experts 16 --used 4 --vocab 512 $2 >/dev/null 2>"$tmp/err" || failed "making $1"; }
words() { # COMMAND...: standard output, the log in err
    "$@" -p "one two three" -n 24 --temp 0 -t 1 -c 256 </dev/null 2>"$tmp/err"
}
run() { words "$guanaco" run -m "$@"; }
# The program writes its words in a thread of its own and sometimes ends before the last: then it is asked again.
complete() {
    file=$1
    shift
    for _ in 1 2 3; do
        said=$(words "$guanaco" exec -- "$completion" -m "$file" --no-repack -no-cnv "$@")
        [ "$said" != "$by_completion" ] || break
    done
    echo "$said"
}
complete_alone() { # the longest of three
    longest=
    for _ in 1 2 3; do
        said=$(words "$completion" -m "$1" --no-repack -no-cnv)
        [ ${#said} -le ${#longest} ] || longest=$said
    done
    echo "$longest"
}

compare() { # NAME EXPECTED GOT
    if [ "$2" != "$3" ]; then
        failed "$1: other words"
    elif ! grep -q "mode: streaming" "$tmp/err"; then
        failed "$1: nothing is streamed"
    else
        echo "ok: $1"
    fi
}

# layout NAME FILE [SAYS]: both programs with that file
layout() {
    compare "$1" "$by_run" "$(run "$2")"
    [ $# -lt 3 ] || says "$1" err "$3"
    [ -z "$completion" ] || compare "$1, llama-completion" "$by_completion" "$(complete "$2")"
}

make "$tmp/one.gguf" ""
make "$tmp/many.gguf" "--shards 3"
by_run=$(run "$tmp/one.gguf")
[ -n "$by_run" ] || failed "the model says nothing"
# The reference is llama.cpp alone.
[ -z "$completion" ] || by_completion=$(complete_alone "$tmp/one.gguf")

layout "one file" "$tmp/one.gguf"
for n in 1 2 3; do
    layout "shard $n of 3 given" "$tmp/many-0000$n-of-00003.gguf"
done

# As the Hugging Face cache has it: names that are links to files called by their checksum.
mkdir -p "$tmp/blobs" "$tmp/snapshots/main"
for n in 1 2 3; do
    mv "$tmp/many-0000$n-of-00003.gguf" "$tmp/blobs/c0ffee$n"
    ln -s "../../blobs/c0ffee$n" "$tmp/snapshots/main/many-0000$n-of-00003.gguf"
done
layout "links to blobs" "$tmp/snapshots/main/many-00001-of-00003.gguf"
layout "links to blobs, shard 3 given" "$tmp/snapshots/main/many-00003-of-00003.gguf"
ln -s "$tmp/one.gguf" "$tmp/a link, \"with\" blanks: ümlaut.gguf"
layout "a name with blanks" "$tmp/a link, \"with\" blanks: ümlaut.gguf"

# File systems without O_DIRECT.
memory=$(mktemp -d /dev/shm/guanaco-layouts.XXXXXX 2>/dev/null) || memory=
if [ -n "$memory" ] && cp "$tmp/one.gguf" "$memory/"; then
    layout "on tmpfs" "$memory/one.gguf" "cannot be read directly"
else
    skipped tmpfs "no tmpfs at /dev/shm"
fi
mkdir "$tmp/upper" "$tmp/work" "$tmp/lower" "$tmp/merged"
cp "$tmp/one.gguf" "$tmp/lower/"
if mount -t overlay overlay -o "lowerdir=$tmp/lower,upperdir=$tmp/upper,workdir=$tmp/work" "$tmp/merged" 2>/dev/null; then
    overlay=$tmp/merged
    layout "on overlay" "$overlay/one.gguf"
else
    skipped overlay "none can be mounted here"
fi

# A block device, as one that holds nothing but the model.
cp "$tmp/one.gguf" "$tmp/device" && truncate --size %4096 "$tmp/device" # a device has whole sectors
device=$(losetup --read-only --find --show "$tmp/device" 2>/dev/null) || device=
if [ -n "$device" ]; then
    layout "on a block device" "$device"
    ! grep -q "cannot open\|without a" "$tmp/err" || failed "on a block device: experts are written to a file of their own"
else
    echo "skipped: no loop device can be set up here"
fi

# Ways to the bytes, and other loaders.
for io in uring threads mapped; do
    export GUANACO_IO=$io
    if [ $io = uring ] && [ -z "$(run "$tmp/one.gguf")" ] && grep -q "cannot open the reader" "$tmp/err"; then
        skipped io_uring "it is refused here"
        continue
    fi
    layout "--io $io" "$tmp/one.gguf"
done
unset GUANACO_IO
GUANACO_DIRECT=off
export GUANACO_DIRECT
layout "--direct off" "$tmp/one.gguf"
unset GUANACO_DIRECT
if [ -n "$completion" ]; then
    for mode in none dio mmap mlock mmap+mlock streaming; do
        compare "--load-mode $mode" "$by_completion" "$(complete "$tmp/one.gguf" --load-mode $mode)"
        case $mode in
        none | dio | mlock) grep -q "warning: experts come without a mapped file: .*MiB of them are written to .*--lock dense" "$tmp/err" || failed "--load-mode $mode: not spooled" ;;
        esac
    done
    compare "--load-mode none, shards" "$by_completion" \
        "$(complete "$tmp/snapshots/main/many-00001-of-00003.gguf" --load-mode none)"
fi
finish
