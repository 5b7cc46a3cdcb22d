#!/bin/sh
# In a memory control group: what is asked for and fits is taken, and what cannot fit is refused before it is loaded.
#
#     test_group.sh GUANACO SYNTH DIRECTORY
set -eu
guanaco=$1 synth=$2 directory=$3
mkdir -p "$directory"
tmp=$(mktemp -d "$directory/group-XXXXXX")
. "$(dirname "$0")/../support/program.sh"
model=$tmp/model.gguf

make_group() {
    for root in /sys/fs/cgroup/memory /sys/fs/cgroup; do
        [ -e "$root/cgroup.procs" ] || continue
        candidate=$root/guanaco-group-$$
        mkdir "$candidate" 2>/dev/null || continue
        if [ -e "$candidate/memory.limit_in_bytes" ]; then file=memory.limit_in_bytes; else file=memory.max; fi
        if echo 1073741824 2>/dev/null >"$candidate/$file"; then
            group=$candidate
            return
        fi
        rmdir "$candidate"
    done
}

group=
clean_up() { [ -z "$group" ] || rmdir "$group" 2>/dev/null || true; }
make_group
if [ -z "$group" ]; then
    echo "skipped: no memory control group can be made here"
    exit 77
fi

within() { # MIB COMMAND...
    echo $(($1 * 1048576)) >"$group/$file"
    shift
    sh -c 'echo $$ >"$0" && exec "$@"' "$group/cgroup.procs" "$@"
}

"$synth" "$model" --layers 8 --embd 512 --ff 512 --experts 80 --used 2 --type Q4_K 2>/dev/null
run="$guanaco run -m $model -c 256 -n 4 -t 1 --temp 0 -p the"

# A cache that was asked for is not refused for the three quarters that nobody asked for.
works "--expert-cache beyond three quarters" within 200 $run --expert-cache 100MiB
says "--expert-cache beyond three quarters" err "mode: streaming"
refuses "--expert-cache beyond the group" 1 "set --ram (GUANACO_RAM) yourself" within 200 $run --expert-cache 180MiB

# A group that allows less than --ram.
attempt within 12 $run --ram 400MiB
[ $code = 1 ] || failed "a group that is too small: exit code $code"
says "a group that is too small" err "warning: --ram (GUANACO_RAM) gives 400.00 MiB, but the control group"
says "a group that is too small" err "error: .*the control group"
works "a group below --ram" within 160 $run --ram 400MiB
says "a group below --ram" err "warning: --ram (GUANACO_RAM) gives 400.00 MiB, but the control group"
finish
