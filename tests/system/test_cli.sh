#!/bin/sh
# The program from outside: what it says, and where, when something is wrong; and that it runs when nothing is.
# usage: test_cli.sh GUANACO GUANACO-SYNTH TEST_CLI_DENSE DEMO.gguf GUANACO-TINY
set -u
guanaco=$1 synth=$2 make_dense=$3 demo=$4 tiny=$5
tmp=$(mktemp -d) || exit 1
. "$(dirname "$0")/../support/program.sh"

run() { "$guanaco" run --seed 1 -t 1 "$@"; }
both() { # NAME TEXT FILE: run and inspect refuse the file with the same line
    refuses "run, $1" 1 "$2" run -m "$3" -p x
    refuses "inspect, $1" 1 "$2" "$guanaco" inspect "$3"
}

# ---- files
size=$(wc -c <"$demo")
both "no such file" "cannot open $tmp/none.gguf: No such file" "$tmp/none.gguf"
both "a directory" "is a directory" "$tmp"
both "a device" "is not a regular file" /dev/null
: >"$tmp/empty.gguf"
both "an empty file" "is empty" "$tmp/empty.gguf"
echo "no model at all" >"$tmp/text.gguf"
both "not a GGUF file" "is not a GGUF file" "$tmp/text.gguf"
head -c 100 "$demo" >"$tmp/secret.gguf"
chmod 0 "$tmp/secret.gguf"
program=$guanaco
if [ "$(id -u)" = 0 ]; then # root reads everything, without these capabilities it does not
    printf '#!/bin/sh\nexec setpriv --bounding-set=-dac_override,-dac_read_search -- "%s" "$@"\n' "$program" >"$tmp/guanaco"
    chmod +x "$tmp/guanaco"
    guanaco=$tmp/guanaco
fi
both "unreadable" "cannot open .*Permission denied" "$tmp/secret.gguf"
guanaco=$program
for bytes in 4 23 24 100 5000 90000; do
    head -c $bytes "$demo" >"$tmp/cut.gguf"
    both "header cut at $bytes" "cut short" "$tmp/cut.gguf"
done
for bytes in 1000000 $((size / 2)) $((size - 1)); do
    head -c "$bytes" "$demo" >"$tmp/cut.gguf"
    both "cut at $bytes" "is cut short: it has $bytes bytes, its header promises $size" "$tmp/cut.gguf"
done
printf 'GGUF\003\000\000\000\377\377\377\377\377\377\377\177\001\000\000\000\000\000\000\000' >"$tmp/counts.gguf"
both "absurd counts" "damaged header" "$tmp/counts.gguf"
{ printf 'GGUF\003\000\000\000'; head -c 100000 /dev/urandom; } >"$tmp/random.gguf"
both "random bytes" "damaged" "$tmp/random.gguf"

# ---- shards
"$synth" "$tmp/s.gguf" --layers 3 --embd 256 --ff 256 --experts 8 --used 2 --vocab 512 --shards 3 >"$tmp/out" 2>"$tmp/err" ||
    failed "cannot make shards"
works "shards, the second given" run -m "$tmp/s-00002-of-00003.gguf" -p "a b" -n 4
says "shards are streamed" err "mode: "
works "inspect shards" "$guanaco" inspect "$tmp/s-00003-of-00003.gguf"
says "inspect shards" out "3 shards"
mv "$tmp/s-00002-of-00003.gguf" "$tmp/elsewhere"
both "a missing shard" "shard 2 of 3 is missing: .*s-00002-of-00003.gguf" "$tmp/s-00001-of-00003.gguf"
head -c 20000 "$tmp/elsewhere" >"$tmp/s-00002-of-00003.gguf"
both "a shard cut short" "s-00002-of-00003.gguf.*cut short" "$tmp/s-00001-of-00003.gguf"
cp "$tmp/s-00001-of-00003.gguf" "$tmp/s-00002-of-00003.gguf"
both "a shard in another's place" "not by its header" "$tmp/s-00003-of-00003.gguf"
cp "$tmp/s-00001-of-00003.gguf" "$tmp/lone.gguf"
both "a shard renamed" "rename it" "$tmp/lone.gguf"

# ---- budgets
refuses "--ram too small" 1 "needs at least .*dense weights .*KV cache .*compute buffers .*the program .*experts .*--ram" \
    run --ram 2MiB -p x
refuses "--expert-cache too small" 1 "needs at least .*raise it" run --expert-cache 64KiB -p x
refuses "--expert-cache beyond --ram" 1 "needs at least" run --ram 60MiB --expert-cache 1GiB -p x
works "the least cache" run --expert-cache min -n 4 -p "Elizabeth had"
says "the least cache" err "warning: slots hold 0 B, but one token uses"
works "a share" run --expert-cache 25% -n 4 -p "Elizabeth had"

# ---- --ram holds
works "--ram 64MiB" run --ram 64MiB -n 16 -p "Elizabeth had hardly time to"
peak=$(sed -n 's/.*peak memory \([0-9]*\)\.[0-9]* MiB.*/\1/p' "$tmp/err")
[ "${peak:-1000}" -le 96 ] || failed "--ram 64MiB: peak memory is '$peak' MiB"

# ---- what is generated
works "greedy" run --temp 0 -n 8 -p "Elizabeth had hardly time to"
cp "$tmp/out" "$tmp/greedy"
[ -s "$tmp/greedy" ] || failed "nothing is generated"
works "greedy, the least cache" run --temp 0 -n 8 -p "Elizabeth had hardly time to" --expert-cache min
cmp -s "$tmp/out" "$tmp/greedy" || failed "the cache's size changes the text"
printf 'Elizabeth had hardly time to' >"$tmp/prompt"
works "-f" run --temp 0 -n 8 -f "$tmp/prompt"
cmp -s "$tmp/out" "$tmp/greedy" || failed "-f and -p differ"
run --temp 0 -n 8 -p - <"$tmp/prompt" >"$tmp/out" 2>"$tmp/err"
cmp -s "$tmp/out" "$tmp/greedy" || failed "-p - and -p differ"
works "-n 0" run -n 0 -p "Elizabeth"
works "a full context" run -c 256 -p "Elizabeth had hardly time to" --temp 0
says "a full context" err "warning: the context of 256 tokens is full"
refuses "a prompt longer than the context" 1 "of the context's 256 are 256 left; raise -c" \
    run -c 256 -p "$(head -c 3000 "$0" | tr -c 'a-z \n' ' ')"
refuses "an empty prompt file" 1 "holds no prompt" run -f /dev/null
refuses "no prompt file" 1 "cannot read the prompt from $tmp/none: No such file" run -f "$tmp/none"
refuses "no chat template" 1 "no chat template" run --chat -p x
GUANACO_FAULT_AT=30 refuses "a read that fails" 1 "cannot read expert .*Input/output error" \
    run --expert-cache min --io threads -n 20 -p "Elizabeth had"

# ---- Ctrl-C: the text so far, the closing line, 130
"$guanaco" run --temp 0 -t 1 -c 32768 -p "Elizabeth had" >"$tmp/out" 2>"$tmp/err" </dev/null &
pid=$!
tries=0
while [ "$(wc -c <"$tmp/out")" -lt 20 ] && [ $tries -lt 120 ]; do
    sleep 0.25
    tries=$((tries + 1))
done
kill -INT $pid
wait $pid
code=$?
[ $code = 130 ] || failed "Ctrl-C: exit code $code"
says "Ctrl-C" err "decode [1-9][0-9]* tokens"

# ---- dense models
"$tiny" qwen3moe "$tmp/mute.gguf" >/dev/null 2>&1 || failed "cannot make a model without a tokenizer"
run -m "$tmp/mute.gguf" -p x >"$tmp/out" 2>"$tmp/err" </dev/null # llama.cpp warns as well
[ $? = 1 ] || failed "no tokenizer: not refused"
says "no tokenizer" err "error: .*has no tokenizer"
"$make_dense" "$demo" "$tmp/dense.gguf" 2>"$tmp/err" || failed "cannot make a dense model"
works "a dense model" run -m "$tmp/dense.gguf" -n 4 -p "Elizabeth"
[ "$(grep -c "dense model: nothing to stream" "$tmp/err")" = 1 ] || failed "a dense model: not one line that says so"
grep -q "mode:" "$tmp/err" && failed "a dense model: the plugin is loaded"
works "inspect a dense model" "$guanaco" inspect "$tmp/dense.gguf" --context 64
says "inspect a dense model" out "nothing would be streamed"
works "--chat" run -m "$tmp/dense.gguf" --chat -n 4 -p "Hello"
refuses "a dense model beyond --ram" 1 "dense model needs" run -m "$tmp/dense.gguf" --ram 2MiB -p x

# ---- options
for option in -n -c --temp --top-k --top-p --min-p --repeat-penalty --repeat-last-n --seed -t -b -ub -ngl --ram \
    --expert-cache --io --io-depth --direct --dense --policy --staging --prefill-tokens --log; do
    for nonsense in nonsense 1x -9 "" 99999999999999999999999 1e3 0x10; do
        refuses "$option '$nonsense'" 2 "^guanaco: error: $option" run "$option" "$nonsense" -p x
    done
    refuses "$option without a value" 2 "value" run -p x "$option"
done
for option in -m -p -f; do
    refuses "$option without a value" 2 "a value is missing" run "$option"
    refuses "$option ''" 2 "is empty" run "$option" ""
done
refuses "an unknown option" 2 "no option '--fast'" run --fast -p x
refuses "a stray word" 2 "stands alone" run model.gguf
refuses "a value for a switch" 2 "takes no value" run --chat=on
refuses "two prompts" 2 "both give a prompt" run -p x -f y
refuses "an unknown command" 2 "no command 'walk'" "$guanaco" walk
refuses "inspect, an unknown option" 2 "no option" "$guanaco" inspect --fast
refuses "inspect, two models" 2 "one model" "$guanaco" inspect a.gguf b.gguf
for nonsense in x 0 -1 "" 99999999999; do
    refuses "inspect --context '$nonsense'" 2 "context" "$guanaco" inspect --context "$nonsense"
done

# ---- less than a token's experts in slots
works "few slots" run --expert-cache 5% -n 4 -p x
says "few slots" err "expected-wait, the policy in use, finds some"
works "few slots and lru" run --expert-cache 5% --policy lru -n 4 -p x
says "few slots and lru" err "next to none of them again, --policy expected-wait"
works "few slots and lfu" run --expert-cache 5% --policy lfu -n 4 -p x
says "few slots and lfu" err "--policy expected-wait (the default) finds most"

# ---- traces
refuses "a trace that cannot be made" 1 "cannot write $tmp/none/t.csv" run --trace "$tmp/none/t.csv" -n 2 -p x
works "a trace of a run" run --trace "$tmp/t.csv" -n 40 -p "It was"
works "its replay" "$guanaco" simulate "$tmp/t.csv" --budget 25%
says "its replay" out "expected-wait"
works "a model's slots" "$guanaco" simulate "$tmp/t.csv" --model "$demo" --staging 8 --budget 7MiB,100slots,25% --policy lru --csv --svg "$tmp/x.svg"
says "a share" out "^lru,25%,[0-9]*,96,"
says "slots" out "^lru,100slots,[0-9]*,100,"
says "a size, less staging" out "^lru,7MiB,[0-9]*,91,"
says "a drawing" x.svg "</svg>"
works "other rules" "$guanaco" simulate "$tmp/t.csv" --rules pool --budget 25%
works "admission" "$guanaco" simulate "$tmp/t.csv" --admission second-miss --budget 25% --json
works "tiers" "$guanaco" simulate "$tmp/t.csv" --tiers GPU:auto:25%,RAM:auto:25% --csv --svg "$tmp/y.svg"
says "tiers" out "^0,25%,GPU,slru,96,"
says "tiers" out "^1,25%,RAM,expected-wait,96,"
says "tiers, drawn" y.svg "tokens/s, of"
works "tiers in words" "$guanaco" simulate "$tmp/t.csv" --tiers GPU:lfu:2MiB,RAM:lru:50% --budget 1MiB --dense-ms 1
says "tiers in words" out "^  GPU  *lfu"
says "tiers in words" out "1.00 are not the experts'"
works "tiers as JSON" "$guanaco" simulate "$tmp/t.csv" --tiers RAM:auto:50% --json
says "tiers as JSON" out '"late_tokens_per_second"'
simulate() { # NAME TEXT WORDS...
    name=$1 text=$2
    shift 2
    refuses "simulate, $name" 2 "$text" "$guanaco" simulate "$tmp/t.csv" "$@"
}
works "foresight" "$guanaco" simulate "$tmp/t.csv" --budget 25% --prefetch pilot --pilot-mass 0.5
grep -q "^pilot names [0-9.]* %" "$tmp/out" || failed "simulate: what pilot names"
works "foresight as JSON" "$guanaco" simulate "$tmp/t.csv" --budget 25% --prefetch pilot --json
works "foresight as CSV" "$guanaco" simulate "$tmp/t.csv" --budget 25%,50% --prefetch pilot --csv
[ "$(wc -l <"$tmp/out")" = 5 ] || failed "simulate: a line for each budget and bar"
simulate "routers of a trace" "a trace does not know the routers" --prefetch router
simulate "a mass of nothing" "is for '--prefetch pilot'" --pilot-mass 0.5
simulate "a mass that is none" "give a number from 0 to 1" --prefetch pilot --pilot-mass 2
simulate "slots that are none" "give shares such as 10%" --budget 1.5slots
simulate "a policy that is none" "there is no policy 'x'" --policy x
simulate "a parameter that is none" "protected (1 to 99" --policy slru --policy-options x=1
simulate "parameters of all" "name the --policy" --policy-options protected=50
simulate "rules that are none" "give engine or pool" --rules x
simulate "tiers that are none" "NAME:POLICY:SIZE" --tiers GPU:2GiB
simulate "tiers of unknown size" "what GPU would have free" --tiers GPU:auto:auto,RAM:auto:50%
simulate "tiers and a policy" "leave out '--policy'" --tiers RAM:auto:50% --policy lru
simulate "rates without tiers" "give --tiers with '--disk'" --disk 2
simulate "rules without admission" "knows nothing of '--admission'" --rules pool --admission second-miss
refuses "a model of another trace" 1 "layers with experts" "$guanaco" simulate "$tmp/t.csv" --model "$tmp/dense.gguf"
refuses "a drawing that cannot be made" 1 "--svg: cannot write" sh -c "'$guanaco' simulate '$tmp/t.csv' --budget 25% --svg '$tmp/none/x.svg' >/dev/null"
if [ -w /dev/full ]; then
    works "a trace on a full disk" run --trace /dev/full -n 2 -p x
    says "a trace on a full disk" err "cannot write the trace /dev/full: No space left"
fi

# ---- environment
for variable in RAM EXPERT_CACHE RESERVE IO IO_DEPTH DIRECT DENSE POLICY STAGING PREFILL_TOKENS LOG FAULT_AT FAULT_RESULT; do
    refuses "GUANACO_$variable=nonsense" 2 "^guanaco: error: GUANACO_$variable: 'nonsense'" \
        env "GUANACO_$variable=nonsense" "$guanaco" run -p x
done
works "an unknown variable" env GUANACO_RAMM=1GiB "$guanaco" run -n 1 -p x
says "an unknown variable" err "warning: .*GUANACO_RAMM"
refuses "GUANACO_PLUGIN" 1 "plugin is not at $tmp/none.so" env "GUANACO_PLUGIN=$tmp/none.so" "$guanaco" run -p x
refuses "GUANACO_PLUGIN, no plugin" 1 "cannot be loaded" env "GUANACO_PLUGIN=$tmp/text.gguf" "$guanaco" run -p x

# ---- limits of another kind
works "max experts" "$guanaco" run --guanaco-max-experts 10 --expert-cache 100% -n 1 -p x
says "max experts" err " 60 slots "
works "max experts, little room" "$guanaco" run --guanaco-max-experts 10 --expert-cache 10% -n 1 -p x
says "max experts, little room" err "guanaco-max-experts 10 .* asks for slots of"
works "a lock without pins" "$guanaco" run --lock hot -n 1 -p x
says "a lock without pins" err "pin some with --pin-hot-experts"
printf 'GNHOTSET damaged' >"$tmp/damaged"
works "an imatrix that is none" "$guanaco" run --imatrix "$tmp/text.gguf" --hot-set "$tmp/damaged" -n 1 -p x
says "an imatrix that is none" err "warning: no expert counts are taken from the imatrix $tmp/text.gguf"
says "a damaged hot set" err "warning: the hot set is not used"
works "a hot set" "$guanaco" run --hot-set "$tmp/hot" -n 1 -p x
works "a hot set again" "$guanaco" run --hot-set "$tmp/hot" -n 1 -p x
says "a hot set again" err "expert counts from the hot set $tmp/hot"

# ---- inspect, help
works "inspect" "$guanaco" inspect
says "inspect" out "architecture .*qwen3moe"
says "inspect" out "64 a layer, 4 used"
says "inspect" out "token cycle T"
if command -v python3 >/dev/null; then
    cp "$demo" "$tmp/a \"quoted\" name.gguf"
    for model in "$demo" "$tmp/dense.gguf" "$tmp/a \"quoted\" name.gguf"; do
        works "inspect --json" "$guanaco" inspect --json --context 128 "$model"
        python3 -m json.tool <"$tmp/out" >/dev/null 2>"$tmp/err" || failed "inspect --json $model: not JSON"
    done
fi
# Names in a file: they reach neither the terminal nor JSON as they are.
LC_ALL=C sed -e 's/guanaco-demo-moe/g\x1b[2J\xff\xc2\x9bdemo-moe/' -e 's/ffn_gate_exps/ffn_\x1bat\xfe_exps/g' \
    "$demo" >"$tmp/odd.gguf"
works "odd names" "$guanaco" inspect "$tmp/odd.gguf"
says "odd names" out 'name  *g\\x1b\[2J\\xff\\xc2\\x9bdemo-moe$'
says "odd names of experts" out '\\x1bat\\xfe'
LC_ALL=C grep -q '[^ -~]' "$tmp/out" && failed "odd names: control characters reach the terminal"
works "odd names as JSON" "$guanaco" inspect --json "$tmp/odd.gguf"
says "odd names as JSON" out '"name": "g\\u001b\[2J?\\u009bdemo-moe"'
says "odd keys as JSON" out '"\\u001bat?": '
if command -v python3 >/dev/null; then
    python3 -c 'import json, sys; json.loads(sys.stdin.buffer.read().decode("utf-8", "strict"))' <"$tmp/out" 2>"$tmp/err" ||
        failed "odd names: not JSON"
fi
refuses "an odd path" 1 'cannot open .*\\x1b\[2Jx' "$guanaco" inspect "$tmp/$(printf '\033[2Jx')"
for words in --help "run --help" "inspect --help" --version; do
    # shellcheck disable=SC2086
    works "$words" "$guanaco" $words
    [ -s "$tmp/out" ] || failed "$words: says nothing"
done

finish
