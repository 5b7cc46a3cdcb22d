#!/bin/sh
# Prepares a build folder, once: installs what is missing, fetches llama.cpp, runs CMake.
#
#   tools/configure.sh BUILD programs|tests [CMAKE_FLAGS...]
#
# Does nothing where that was done before with the same compiler and flags. What failed is done again the next time.
set -eu
[ $# -ge 2 ] || { echo "usage: tools/configure.sh BUILD programs|tests [CMAKE_FLAGS...]" >&2; exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd)
llama="$root/.deps/llama"
build=$1
want=$2
shift 2

# What a build folder is made for. Another compiler, or other flags, and all is configured anew.
compiler=${CC:-cc}
flags=$*
pinned=$(sed -n 's/^VERSION=//p' "$root/tools/fetch-llama.sh")
describe() { echo "$compiler $("$compiler" --version 2>/dev/null | head -n 1) ${CFLAGS:-} ${LDFLAGS:-} $pinned : $flags"; }
key=$(describe)
state="$build/.configured"
had_key= had=
if [ -f "$state" ]; then { IFS= read -r had && IFS= read -r had_key; } <"$state" || had=; fi
[ "$had_key" = "$key" ] && { [ -e "$llama/lib" ] || [ -e "$build/.own-llama" ]; } || had=
case "$had:$want" in programs:programs | tests:programs | tests:tests) exit 0 ;; esac

purposes=build
[ "$want" != tests ] || purposes="$purposes tests"
fetch=
case "$*" in
*GUANACO_LLAMA_DIR=?*) ;; # the user's own
*)
    if "$root/tools/fetch-llama.sh" --is-here "$llama"; then
        fetch=yes
    elif system=$("$root/tools/find-llama.sh"); then
        echo "guanaco: the llama.cpp in $system is used"
        set -- "-DGUANACO_LLAMA_DIR=$system" "$@"
    else
        fetch=yes purposes="$purposes fetch"
    fi
    ;;
esac
# shellcheck disable=SC2086
"$root/tools/install-tools.sh" $purposes
[ -z "$fetch" ] || "$root/tools/fetch-llama.sh" "$llama"

# The compiler may have been missing until now.
key=$(describe)
mkdir -p "$build"
if [ "$had_key" != "$key" ]; then
    rm -rf "$state" "$build/CMakeCache.txt" "$build"/CMakeFiles/[0-9]*
fi
tests=off
[ "$want" = programs ] || tests=all
log="$build/configure.log"
if ! cmake -S "$root" -B "$build" -DGUANACO_TESTS=$tests "$@" >"$log" 2>&1; then
    rm -f "$build/CMakeCache.txt"
    tail -n 15 "$log" >&2
    echo "guanaco: cannot configure the build in $build; all that CMake said is in $log" >&2
    exit 1
fi
rm -f "$build/.own-llama"
[ -n "$fetch" ] || : >"$build/.own-llama"
printf '%s\n%s\n' "$want" "$key" >"$state"
