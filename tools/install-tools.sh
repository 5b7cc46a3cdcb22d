#!/bin/sh
# Installs what is missing here for a purpose, and says what and why; without the right to install, names it in one line.
#
#   tools/install-tools.sh PURPOSE...
#
# build            builds guanaco (a llama.cpp is there already)
# fetch            downloads the pinned llama.cpp
# tests            builds and runs the tests
# llama-programs   builds llama.cpp's own programs
# lint             checks the style
# vulkan           a software GPU for make test-gpu
# clang            builds with clang
#
# What is there is left alone. Debian's packages alone are known by name; elsewhere the line says what to look for.
set -eu

missing= # packages
reasons= # what each purpose is for, where something of it is missing
purpose= # of the package that is looked for now

lacks() { # PACKAGE: it is missing
    case " $missing " in *" $1 "*) return ;; esac
    missing="$missing $1"
    case "$reasons" in *"$purpose"*) ;; *) reasons="$reasons${reasons:+, }$purpose" ;; esac
}
command_from() { command -v "$1" >/dev/null 2>&1 || lacks "$2"; }
installed() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }
package() { installed "$1" || lacks "$1"; }
library() { pkg-config --exists "$1" 2>/dev/null || installed "$2" || lacks "$2"; }
compiler() { # COMMAND PACKAGE: with C's headers, which Debian packages apart
    command_from "$1" "$2"
    ! command -v "$1" >/dev/null 2>&1 || echo '#include <stdio.h>' | "$1" -E - >/dev/null 2>&1 || lacks libc6-dev
    command -v "$1" >/dev/null 2>&1 || package libc6-dev
}

for want in "$@"; do
    case $want in
    build)
        purpose="to build guanaco"
        compiler "${CC:-cc}" gcc
        command_from git git
        command_from make make
        command_from cmake cmake
        command_from pkg-config pkg-config
        library liburing liburing-dev
        ;;
    fetch)
        purpose="to download llama.cpp"
        command_from npm npm
        [ -e /etc/ssl/certs/ca-certificates.crt ] || command -v npm >/dev/null 2>&1 || package ca-certificates
        ;;
    tests)
        purpose="to build and run the tests"
        library cmocka libcmocka-dev
        command_from python3 python3
        ;;
    llama-programs)
        purpose="to build llama.cpp's programs"
        command_from c++ g++
        command_from python3 python3
        ;;
    lint)
        purpose="to check the style"
        command_from clang-format clang-format
        command_from clang-tidy clang-tidy
        ;;
    vulkan)
        purpose="for a GPU in software"
        package libvulkan1
        package mesa-vulkan-drivers
        ;;
    clang)
        purpose="to build with clang"
        command_from clang clang
        ;;
    *)
        echo "install-tools: there is no purpose '$want'; see $0" >&2
        exit 2
        ;;
    esac
done
[ -n "$missing" ] || exit 0

as_root=
if [ "$(id -u)" != 0 ]; then
    if command -v sudo >/dev/null 2>&1 && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then as_root=sudo; else as_root=none; fi
fi
if ! command -v apt-get >/dev/null 2>&1 || [ "$as_root" = none ]; then
    echo "guanaco: please install first, $reasons:$missing (Debian: apt-get install --no-install-recommends$missing)" >&2
    exit 1
fi
echo "guanaco: installing, $reasons:$missing"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::Retries=0 -o Acquire::http::Timeout=15 "$@" >>"$log" 2>&1; }
# shellcheck disable=SC2086
if apt update && apt install -y --no-install-recommends $missing; then exit 0; fi
why=$(sed -n 's/^E: //p' "$log" | head -n 1 | cut -c 1-160)
! grep -q 'Temporary failure resolving\|Could not resolve\|Could not connect\|Unable to connect' "$log" ||
    why="Debian's packages cannot be reached"
echo "guanaco: cannot install$missing: ${why:-apt-get failed}; is there a network? Run the same command again then" >&2
exit 1
