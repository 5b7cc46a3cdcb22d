#!/bin/sh
# Tries README's two commands as a newcomer would, on a machine that has nothing but git and make: a fresh Debian in a folder
# of its own, removed in the end. Prints how long each step took.
#
#   tools/try-clean-machine.sh RELEASE [user]     RELEASE: bookworm, trixie, sid or another
#
# `user`: as a user who may install nothing, and is told in one line what to have installed; then root installs that line.
# Needs root and debootstrap. Packages come from where this machine's own come from. What is tried is the last commit.
# TESTS in the environment is make test's: TESTS='-L unit' runs only these.
set -eu
[ $# -ge 1 ] || { sed -n 's/^# \{0,1\}//p' "$0" | sed -n 2,10p >&2; exit 2; }
release=$1
as=${2:-root}
[ "$(id -u)" = 0 ] || { echo "try-clean-machine: it must be root, to make the machine" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "try-clean-machine: please install debootstrap first" >&2; exit 1; }
root=$(cd "$(dirname "$0")/.." && pwd)
machine=$(mktemp -d "${TMPDIR:-/var/tmp}/guanaco-$release.XXXXXX")
chmod 755 "$machine" # a user's root folder as well
log=$machine.log

clean_up() {
    for place in proc sys dev/shm dev; do
        ! mountpoint -q "$machine/$place" || umount -R -l "$machine/$place"
    done
    rm -rf --one-file-system "$machine" "$log"
}
trap clean_up EXIT
trap 'exit 1' INT TERM

failures=0
began=$(date +%s)
step() { # NAME EXIT COMMAND...: runs it, and wants that exit code: 0, or "not" for any other
    name=$1 wanted=$2
    shift 2
    start=$(date +%s%N) code=0
    "$@" >"$log" 2>&1 || code=$?
    result=ok
    case $wanted:$code in 0:0 | not:[1-9]*) ;; *) result="FAILED ($code)" ;; esac
    printf '%-52s %7.1f s  %s\n' "$name" "$(echo $(($(date +%s%N) - start)) | awk '{ print $1 / 1e9 }')" "$result"
    if [ "$result" != ok ]; then
        failures=$((failures + 1))
        tail -n 15 "$log" | sed 's/^/    /'
    fi
}
show() { { grep "$1" "$log" || :; } | cut -c 1-200 | sed 's/^/    /'; }
inside() { # as the newcomer, with an environment as small as a new login's
    if [ "$as" = root ]; then set -- env -i HOME=/root PATH="$path" LC_ALL=C.UTF-8 "$@"
    else set -- setpriv --reuid=1000 --regid=1000 --clear-groups env -i HOME=/home/newcomer PATH="$path" LC_ALL=C.UTF-8 "$@"; fi
    chroot "$machine" "$@"
}
path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
make_machine() {
    debootstrap --variant=minbase --include=git,make "$release" "$machine" \
        "$(apt-get indextargets --format '$(REPO_URI)' | head -n 1)"
    cp /etc/resolv.conf /etc/hosts "$machine/etc/"
    # A network that has certificates of its own has them for the new machine as well.
    mkdir -p "$machine/usr/local/share/ca-certificates"
    cp -r /usr/local/share/ca-certificates/. "$machine/usr/local/share/ca-certificates/" 2>/dev/null || :
    # A mirror that is a snapshot of some day is out of date for apt: what this machine says of that holds there too.
    apt-config dump | grep '^Acquire::Check' >"$machine/etc/apt/apt.conf.d/99mirror" || :
    echo force-unsafe-io >"$machine/etc/dpkg/dpkg.cfg.d/fast" # it need not survive a power cut
    mount -t proc proc "$machine/proc"
    mount --rbind /sys "$machine/sys" && mount --make-rslave "$machine/sys"
    mount --rbind /dev "$machine/dev" && mount --make-rslave "$machine/dev"
    mkdir -p "$machine/home/newcomer"
    [ "$as" = root ] || { echo "newcomer:x:1000:1000::/home/newcomer:/bin/sh" >>"$machine/etc/passwd"
        chown 1000:1000 "$machine/home/newcomer"; }
    git -C "$root" bundle create "$machine/tmp/guanaco.bundle" HEAD
}
root_installs() { # what the last command named
    install=$(sed -n 's/.*(Debian: \(apt-get install .*\))$/\1/p' "$log")
    step "root installs that line" 0 chroot "$machine" sh -c "apt-get update && DEBIAN_FRONTEND=noninteractive $install -y"
}
home=/home/newcomer/guanaco
in_checkout() { inside sh -c "cd $home && $*"; }

echo "Debian $release, as $as, $(nproc) cores"
step "a machine with git and make" 0 make_machine
step "git clone" 0 inside git clone -q /tmp/guanaco.bundle $home
step "make run without a network says so" not unshare -n chroot "$machine" env -i HOME=/root PATH="$path" sh -c "
    cd $home && make run"
show '^guanaco: cannot\|^guanaco: please'
if [ "$as" != root ]; then
    step "make run says what to have installed" not in_checkout make run
    show '^guanaco: please'
    root_installs
fi
clone=$(date +%s)
step "make run" 0 in_checkout make run
show '^guanaco: installing\|^guanaco: downloading\|^guanaco: mode\|warning:'
echo "    from git clone to the end of the first text: $(($(date +%s) - clone)) s, installing included"
step "the same text alone" 0 in_checkout "build/bin/guanaco run --expert-cache 8MiB -n 128 -p 'Elizabeth had hardly time to'"
step "make run again" 0 in_checkout make run
show '^-- \|Building'
step "make run with other flags configures anew" 0 in_checkout "make run CMAKE_FLAGS=-DCMAKE_BUILD_TYPE=RelWithDebInfo"
step "make run with the first flags" 0 in_checkout make run
if [ "$as" != root ]; then
    step "make test says what to have installed" not in_checkout make test
    show '^guanaco: please'
    root_installs
fi
step "make test${TESTS:+ TESTS='$TESTS'}" 0 in_checkout "make test TESTS='${TESTS:-}'"
sed -n '/tests passed/p; /^Skipped:/,/^make/p' "$log" | cut -c 1-160 | sed 's/^/    /'
show 'warning:'
echo "$failures of the steps failed, $(($(date +%s) - began)) s in all"
exit $((failures > 0))
