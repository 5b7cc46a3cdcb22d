#!/bin/sh
# Installs what the build needs and this machine lacks, when it may; else names it in one line.
#
#   tools/install-tools.sh [NAME...]   also these: commands, from packages of the same name, or packages without any
set -eu
missing=
need() { command -v "$1" >/dev/null 2>&1 || missing="$missing $2"; }
need cc gcc
need make make
need git git
need cmake cmake
need pkg-config pkg-config
need openssl openssl
for extra in "$@"; do
    case $extra in
        libvulkan1 | mesa-vulkan-drivers) dpkg -s "$extra" >/dev/null 2>&1 || missing="$missing $extra" ;;
        *) need "$extra" "$extra" ;;
    esac
done
for library in liburing cmocka; do
    pkg-config --exists $library 2>/dev/null || missing="$missing lib${library#lib}-dev"
done
[ -n "$missing" ] || exit 0

sudo=
if [ "$(id -u)" != 0 ]; then
    if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then sudo="sudo -n"; else sudo=none; fi
fi
if ! command -v apt-get >/dev/null 2>&1 || [ "$sudo" = none ]; then
    echo "guanaco: please install first:$missing (Debian: sudo apt-get install$missing)" >&2
    exit 1
fi
echo "guanaco: installing$missing"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
# shellcheck disable=SC2086
if ! { $sudo apt-get update && $sudo apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    echo "guanaco: could not install$missing" >&2
    exit 1
fi
rm -f "$log"
