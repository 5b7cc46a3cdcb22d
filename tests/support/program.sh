# Sourced by the tests that run programs from outside, once $tmp is a folder of theirs: it is removed in the end. Each
# command's output is in $tmp/out and $tmp/err afterwards, its exit code in $code.
failures=0 code=0 left_out=0
clean_up() { :; } # a test may have one of its own
trap 'clean_up; rm -rf "$tmp"' EXIT
trap 'exit 1' INT TERM
unset LD_PRELOAD GGML_BACKEND_PATH GUANACO_STREAMING

failed() { # WHAT
    echo "FAILED: $1"
    sed 's/^/    /' "$tmp/err" | tail -n 5
    failures=$((failures + 1))
}

attempt() { # COMMAND...
    code=0
    "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
}

ends() { # NAME CODE COMMAND...
    name=$1 wanted=$2
    shift 2
    attempt "$@"
    [ $code = "$wanted" ] || failed "$name: exit code $code, not $wanted"
}

works() { # NAME COMMAND...
    name=$1
    shift
    ends "$name" 0 "$@"
}

gives() { # NAME OUTPUT COMMAND...: works, and standard output is that, whole
    name=$1 text=$2
    shift 2
    ends "$name" 0 "$@"
    [ "$(cat "$tmp/out")" = "$text" ] || failed "$name: '$(head -c 300 "$tmp/out")', not '$text'"
}

# Ends with CODE and one error line with TEXT; writes nothing else than lines of ours, and none to standard output.
refuses() { # NAME CODE TEXT COMMAND...
    name=$1 wanted=$2 text=$3
    shift 3
    attempt "$@"
    if [ $code != "$wanted" ]; then
        failed "$name: exit code $code, not $wanted"
    elif [ "$(grep -c 'guanaco: error: ' "$tmp/err")" != 1 ] || ! grep 'guanaco: error: ' "$tmp/err" | grep -qe "$text"; then
        failed "$name: not one error line with '$text'"
    elif [ "$(grep -vc '^guanaco: ' "$tmp/err")" != 0 ]; then
        failed "$name: lines that are not ours"
    elif [ -s "$tmp/out" ]; then
        failed "$name: writes to standard output"
    fi
}

says() { # NAME FILE TEXT: of the last command
    grep -qe "$3" "$tmp/$2" || failed "$1: '$3' is not in what it says"
}

skipped() { # NEED WHY: something is left out; tests/run.sh tells what it takes
    echo "skipped [$1]: $2"
    left_out=77
}

finish() {
    [ $failures = 0 ] && echo "all is well" || echo "$failures failures"
    [ $failures = 0 ] && exit $left_out
    exit 1
}
