#!/bin/sh
# guanaco exec from outside, with programs that are no llama.cpp: what it passes on, what it refuses, and what it says.
# usage: test_exec.sh GUANACO TEST_CLI_DENSE PROGRAMS DEMO.gguf
# PROGRAMS: the folder of test_exec_static, test_exec_inside, test_exec_older and test_exec_other (test_exec_program.c).
set -u
guanaco=$1 make_dense=$2 programs=$3 demo=$4
tmp=$(mktemp -d) || exit 1
. "$(dirname "$0")/../support/program.sh"

show='for word; do echo "$word"; done'
shown() { # NAME OUTPUT ARGUMENT...: the arguments as the program gets them
    name=$1 text=$2
    shift 2
    gives "$name" "$text" "$guanaco" exec -- sh -c "$show" sh "$@"
}
# ---- the program becomes this process
ends "exit code" 7 "$guanaco" exec -- sh -c 'exit 7'
ends "killed by a signal" 137 sh -c "$guanaco exec -- sh -c 'kill -9 \$\$'"
gives "same process" "same" sh -c "echo \$\$ >$tmp/pid; exec $guanaco exec -- sh -c '[ \$\$ = \$(cat $tmp/pid) ] && echo same'"
gives "no options, no dashes" "hello" "$guanaco" exec echo hello
gives "standard input" "hello" sh -c "echo hello | $guanaco exec -- cat /dev/stdin </dev/fd/0"
shown "arguments" "-m
x y
--temp" -m "x y" --temp

# ---- programs that cannot
refuses "no program" 2 "no program is given" "$guanaco" exec
refuses "no program after options" 2 "no program is given" "$guanaco" exec --ram 1GiB --
refuses "unknown option" 2 "no option '--rum'" "$guanaco" exec --rum 1GiB -- true
refuses "bad value" 2 "'x' will not do" "$guanaco" exec --ram x -- true
refuses "not on PATH" 127 "none-such is not on PATH" "$guanaco" exec -- none-such
refuses "no such file" 127 "does not exist" "$guanaco" exec -- "$tmp/none"
refuses "not a program" 127 "is not a program" "$guanaco" exec -- "$tmp"
refuses "server not on PATH" 127 "llama-server is not on PATH" env PATH="$tmp" "$guanaco" server -m x
refuses "linked statically" 1 "linked statically" "$guanaco" exec -- "$programs/test_exec_static"
refuses "ggml inside" 1 "has ggml linked into it" "$guanaco" exec -- "$programs/test_exec_inside"
refuses "ggml that lacks functions" 1 "lacks what the plugin needs" "$guanaco" exec -- "$programs/test_exec_older"
refuses "ggml with another interface" 1 "9.8.7) has another plugin interface" "$guanaco" exec -- "$programs/test_exec_other"
says "ggml with another interface" err "make llama-programs"
gives "it runs without streaming all the same" "ran" "$guanaco" exec -- "$programs/test_exec_other" -ngs
refuses "another plugin" 1 "GGML_BACKEND_PATH names" env GGML_BACKEND_PATH=/x.so "$guanaco" exec -- true
ends "one within another" 0 "$guanaco" exec -- "$guanaco" exec -- true
refuses "no plugin" 1 "plugin is not at" env GUANACO_PLUGIN=/x.so "$guanaco" exec -- true
ends "a program that is linked to nothing of it" 0 "$guanaco" exec -- true
says "a program that is linked to nothing of it" err "not linked to libllama"

# ---- flags of earlier tools
shown "streaming modes" "--load-mode
mmap
-lm
mmap" --load-mode streaming -lm mmap+pin
shown "llama.cpp's own modes" "-lm
dio" -lm dio
shown "switches" "a" -gs --guanaco-streaming a
shown "a prompt is no flag" "-p
-ngs" -p -ngs
gives "on by flag over off by variable" "on" env GUANACO_STREAMING=off "$guanaco" exec -- printenv GUANACO_STREAMING -gs
for off in -ngs --no-guanaco-streaming; do
    gives "$off" "-m" "$guanaco" exec -- sh -c 'printenv LD_PRELOAD GGML_BACKEND_PATH; echo "$@"' sh -m $off
    says "$off" err "mode: nothing is streamed: $off switches it off"
done
gives "GUANACO_STREAMING=off" "" env GUANACO_STREAMING=off "$guanaco" exec -- sh -c 'printenv LD_PRELOAD; true'
says "GUANACO_STREAMING=off" err "GUANACO_STREAMING switches it off"
refuses "GUANACO_STREAMING=perhaps" 2 "give on or off" env GUANACO_STREAMING=perhaps "$guanaco" exec -- true
gives "a policy" "slru" "$guanaco" exec -- printenv GUANACO_POLICY --moe-expert-cache-policy slru
refuses "an unknown policy" 2 "'none' will not do" "$guanaco" exec -- true --moe-expert-cache-policy none
refuses "a missing value" 2 "a value is missing" "$guanaco" exec -- true --moe-expert-cache-policy
gives "io_uring off" "threads" env GUANACO_IO_URING=0 "$guanaco" exec -- printenv GUANACO_IO
gives "io_uring on" "uring" env GUANACO_IO_URING=1 "$guanaco" exec -- printenv GUANACO_IO
refuses "io_uring perhaps" 2 "give 1 or 0" env GUANACO_IO_URING=perhaps "$guanaco" exec -- true
gives "pilot off" "off" env GUANACO_PILOT=0 "$guanaco" exec -- printenv GUANACO_PILOT
gives "pilot on" "on" env GUANACO_PILOT=1 "$guanaco" exec -- printenv GUANACO_PILOT
gives "pilot's mass" "0.25" env GUANACO_PILOT_MASS=0.25 "$guanaco" exec -- printenv GUANACO_PILOT_MASS
refuses "pilot perhaps" 2 "give off or on" env GUANACO_PILOT=perhaps "$guanaco" exec -- true
refuses "a mass of 1.5" 2 "give a number from 0 to 1" env GUANACO_PILOT_MASS=1.5 "$guanaco" exec -- true

acts() { # FLAG VARIABLE VALUE: the flag sets the variable
    gives "$1" "$3" "$guanaco" exec -- printenv "$2" "$1" "$3"
}
acts --guanaco-max-experts GUANACO_MAX_EXPERTS 12
acts --pin-hot-experts GUANACO_PIN_HOT_EXPERTS 160
acts --pin-hot-experts-stats-interval GUANACO_STATS_INTERVAL 100
acts --moe-expert-cache-size GUANACO_GPU_SLOTS 12
acts --moe-expert-cache GUANACO_GPU_SLOTS 12
gives "a budget in MiB" "67108864B" "$guanaco" exec -- printenv GUANACO_PIN_HOT_EXPERTS_BUDGET --pin-hot-experts-budget-mib 64
gives "the variable beats the flag" "7" env GUANACO_MAX_EXPERTS=7 "$guanaco" exec -- printenv GUANACO_MAX_EXPERTS --guanaco-max-experts 9

# ---- settings, and a model with nothing to stream
gives "a setting" "2147483648B" "$guanaco" exec --ram 2GiB -- printenv GUANACO_RAM
gives "a setting from the environment" "30.00%" env GUANACO_EXPERT_CACHE=30% "$guanaco" exec -- printenv GUANACO_EXPERT_CACHE
gives "the flag beats it" "40.00%" env GUANACO_EXPERT_CACHE=30% "$guanaco" exec --expert-cache 40% -- printenv GUANACO_EXPERT_CACHE
gives "another preload stays" "yes" env LD_PRELOAD=libm.so.6 "$guanaco" exec -- sh -c 'case $LD_PRELOAD in *libguanaco-preload.so:libm.so.6) echo yes;; esac'
"$make_dense" "$demo" "$tmp/dense.gguf" >/dev/null 2>&1 || failed "making a dense model"
gives "a dense model" "-m" "$guanaco" exec -- sh -c 'printenv LD_PRELOAD; echo "$1"' sh -m "$tmp/dense.gguf"
says "a dense model" err "mode: nothing is streamed: .*dense.gguf has no routed experts"

# ---- llama-server without a model: several models share what there is
ln -s "$(command -v printenv)" "$tmp/llama-server"
gives "a router" "1073741824B" "$guanaco" exec --ram 4GiB -- "$tmp/llama-server" GUANACO_RAM
says "a router" err "router: up to 4 models at once"
gives "a router of two" "536870912B" env LLAMA_ARG_MODELS_MAX=2 "$guanaco" exec --expert-cache 1GiB -- "$tmp/llama-server" GUANACO_EXPERT_CACHE
gives "shares are of each model" "30.00%" "$guanaco" exec --expert-cache 30% -- "$tmp/llama-server" GUANACO_EXPERT_CACHE
gives "a router without a limit" "4294967296B" env LLAMA_ARG_MODELS_MAX=0 "$guanaco" exec --ram 4GiB -- "$tmp/llama-server" GUANACO_RAM
says "a router without a limit" err "sets no limit"
gives "one model" "4294967296B" env LLAMA_ARG_MODEL=x.gguf "$guanaco" exec --ram 4GiB -- "$tmp/llama-server" GUANACO_RAM

finish
