#!/bin/sh
# Runs the tests of a build folder; then says what was skipped, why, and how to run it.
#
#   tests/run.sh BUILD [ctest's arguments]
#
# A test that leaves something out says so in a line "skipped [NEED]: WHY". TESTS_REQUIRED names the needs that must
# not be missing, such as "io_uring,direct,cgroup,llama-programs": then a skip for one of them is a failure.
set -u
build=$1
shift
code=0
(cd "$build" && ctest --output-on-failure "$@") || code=$?

log=$build/Testing/Temporary/LastTest.log
[ -e "$log" ] || exit $code
# "NEED<tab>TEST: WHY", each once; a test that ended as skipped without such a line has no need.
skipped=$(awk '
    /^[0-9]+\/[0-9]+ (Testing|Test): / { name = $3; told = 0 }
    match($0, /skipped \[[a-z_-]+\]: /) {
        need = substr($0, RSTART + 9, RLENGTH - 12); why = substr($0, RSTART + RLENGTH); told = 1
        if (!seen[need, name, why]++) print need "\t" name ": " why
    }
    /^Test Skipped/ && !told { print "reason\t" name ": it did not say why" }' "$log" | sort)
[ -n "$skipped" ] || exit $code

how() {
    case $1 in
    io_uring) echo "a kernel that allows io_uring (in a container: a seccomp profile that does)" ;;
    direct) echo "a build folder on a file system with direct reads: make test BUILD=/some/disk/build" ;;
    page-cache) echo "a build folder on a disk, not in memory: make test BUILD=/some/disk/build" ;;
    cgroup) echo "to be root, where a memory control group can be made" ;;
    llama-programs) echo "make llama-programs (15 to 25 minutes on two cores), then make test again" ;;
    openai) echo "tools/fetch-openai.sh $build/openai" ;;
    plain-build) echo "a build without sanitizers: make test" ;;
    mlock) echo "a higher limit of locked memory: ulimit -l unlimited" ;;
    user) echo "to be another user than root" ;;
    root) echo "to be root" ;;
    newer-llama) echo "a newer llama.cpp" ;;
    gpu) echo "a llama.cpp with a GPU backend and a device: make test-gpu" ;;
    tmpfs) echo "a tmpfs at /dev/shm" ;;
    overlay) echo "to be root, where an overlay can be mounted" ;;
    disk) echo "a build folder on a disk: make test BUILD=/some/disk/build" ;;
    netns) echo "to be root, where a network namespace can be made: ip from iproute2" ;;
    locale) echo "localedef, from the package libc-bin" ;;
    dev-full) echo "a /dev/full that may be written" ;;
    *) echo "see the test" ;;
    esac
}
echo
echo "Skipped:"
for need in $(printf '%s\n' "$skipped" | cut -f 1 | uniq); do
    printf '  [%s] needs %s\n' "$need" "$(how "$need")"
    printf '%s\n' "$skipped" | sed -n "s/^$need	/      /p"
    case ",${TESTS_REQUIRED:-}," in
    *",$need,"*)
        echo "  FAILED: TESTS_REQUIRED names $need"
        [ $code -ne 0 ] || code=1
        ;;
    esac
done
exit $code
