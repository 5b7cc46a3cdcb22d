#!/bin/sh
# What reading ahead brings or costs: decodes the same tokens with each way of --prefetch at each budget, one after
# another in rounds, each in a process of its own, so that what disturbs the machine disturbs all alike. Prints the median
# of the rounds, tokens a second, and how much faster (+) or slower (-) that is than without, compared round by round.
#
#     tools/bench-prefetch.sh MODEL [ROUNDS [TOKENS]]
#
# BUDGETS and WAYS may be set, as well as GUANACO, the program to use, and OPTIONS, more of `guanaco bench`.
set -eu
[ $# -ge 1 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }
model=$1 rounds=${2:-5} tokens=${3:-128}
guanaco=${GUANACO:-$(dirname "$0")/../build/bin/guanaco}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' INT TERM
round=0
while [ "$round" -lt "$rounds" ]; do
    round=$((round + 1))
    for budget in ${BUDGETS:-10% 25% 50% 100%}; do
        for way in ${WAYS:-off router pilot auto}; do
            # shellcheck disable=SC2086
            "$guanaco" bench "$model" --no-stock -r 1 --prompt 16 -n "$tokens" --expert-cache "$budget" \
                --prefetch "$way" --csv "$folder/csv" ${OPTIONS:-} >"$folder/out" 2>&1 ||
                { cat "$folder/out" >&2; exit 1; }
            speed=$(awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i }
                             $at["engine"] == "streamed" { print $at["decode_tokens_per_second"] }' \
                "$folder/csv")
            echo "$budget $way $round $speed" >>"$folder/all"
            echo "round $round of $rounds: $budget $way $speed tokens/s" >&2
        done
    done
done
awk 'function median(list, n,    i, j, t) {
         for (i = 2; i <= n; i++)
             for (j = i; j > 1 && list[j] < list[j - 1]; j--) { t = list[j]; list[j] = list[j - 1]; list[j - 1] = t }
         return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2
     }
     { key = $1 " " $2; if (!(key in seen)) { order[++keys] = key; seen[key] = 1 }; speed[key, $3] = $4; rounds = $3 }
     END {
         printf "%-8s %-8s %12s %14s\n", "budget", "prefetch", "tokens/s", "than without"
         for (k = 1; k <= keys; k++) {
             split(order[k], part, " ")
             for (r = 1; r <= rounds; r++) {
                 one[r] = speed[order[k], r]
                 without = speed[part[1] " off", r]
                 gain[r] = without > 0 ? 100 * (one[r] / without - 1) : 0
             }
             printf "%-8s %-8s %12.2f %+12.1f %%\n", part[1], part[2], median(one, rounds), median(gain, rounds)
         }
     }' "$folder/all"
