#!/bin/sh
# Fetches the pinned llama.cpp (headers, sources, prebuilt libraries) from the npm registry.
#
#   tools/fetch-llama.sh DEST [vulkan]
#   tools/fetch-llama.sh --is-here DEST    whether that can be done without a download: all is there, or was kept
#
# DEST receives include/ (public headers and ggml-backend-impl.h), lib/ (shared libraries) and src.bundle
# (a git bundle of the very sources the libraries were built from). Both packages are checked against a
# pinned sha512 and kept in ${XDG_CACHE_HOME:-~/.cache}/guanaco, so that a second build needs no network.
set -eu

VERSION=3.22.1
SHA_SOURCE=6e5b488a9b9699cd76dc7eed30880318a4ac4ab866865418795502e3c5d38d55bb5c624988927209d95333343f2e25a83e4183a5c2f816f883a60c3ba9f4e20f

fail() { echo "guanaco: $*" >&2; exit 1; }

is_here=
if [ "${1:-}" = --is-here ]; then is_here=yes && shift; fi
[ $# -ge 1 ] || fail "usage: tools/fetch-llama.sh [--is-here] DEST [vulkan]"
dest=$1
case "$(uname -m):${2:-cpu}" in
    x86_64:cpu)
        name=linux-x64
        sha=e6e0820cda9608d7da026f1a47f533c5ba381c1a4a80d17dd640873dea4a86032057638099ab6879f6ce94c8a1b2a0a21f639ddf913f7941d00856df44126e3a ;;
    x86_64:vulkan)
        name=linux-x64-vulkan
        sha=6c1c6a53e24e701bb59dbe508f6cdc31c8be241c93d44f046a31ef62877235f5483e41215e1fbf1ccc11d7f053ef13f4f182b4864b3e90cf1f825111d0ff0912 ;;
    aarch64:cpu)
        name=linux-arm64
        sha=5beee768a0975fdfde1238c59914bcbefc7dd50c8b5c36de1717b165cddb87f3ed40005982644bdc2d00b586179f86064e3ff7428af8956667dada636453cb75 ;;
    *) fail "no prebuilt llama.cpp for $(uname -m) ${2:-}; build with -DGUANACO_LLAMA_DIR=<your llama.cpp>" ;;
esac

stamp="$dest/.complete-$VERSION-$name"
[ ! -e "$stamp" ] || exit 0

cache="${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/guanaco"
if [ -n "$is_here" ]; then
    [ -e "$cache/node-llama-cpp-$name-$VERSION.tgz" ] && [ -e "$cache/node-llama-cpp-$VERSION.tgz" ]
    exit
fi
mkdir -p "$cache" "$dest"

# package NAME FILE SHA512: leaves the checked tarball in $cache/FILE
package() {
    if [ ! -e "$cache/$2" ]; then
        command -v npm >/dev/null 2>&1 || fail "npm is missing: install node and npm, or use -DGUANACO_LLAMA_DIR="
        echo "guanaco: downloading $1@$VERSION" >&2
        # A small request first, without npm's patience of minutes: no network is said at once.
        timeout 60 npm view --silent --fetch-retries=0 --fetch-timeout=20000 "$1@$VERSION" name >/dev/null 2>&1 ||
            fail "cannot reach the npm registry; is there a network? Run the same command again then"
        part=$(mktemp -d "$cache/download.XXXXXX")
        (cd "$part" && npm pack --silent "$1@$VERSION" >/dev/null) ||
            { rm -rf "$part"; fail "cannot download $1@$VERSION with 'npm pack'; run the same command again"; }
        mv "$part/$2" "$cache/$2"
        rm -rf "$part"
    fi
    if [ "$(sha512sum "$cache/$2" | cut -d ' ' -f 1)" != "$3" ]; then
        rm -f "$cache/$2"
        fail "$2 is not the pinned file (sha512 differs); it was removed, run again"
    fi
}

package "@node-llama-cpp/$name" "node-llama-cpp-$name-$VERSION.tgz" "$sha"
package "node-llama-cpp" "node-llama-cpp-$VERSION.tgz" "$SHA_SOURCE"

# Nothing of an earlier version stays: a build would find it beside the new one.
rm -rf "$dest"/lib "$dest"/include "$dest"/.complete-* "$dest"/unpack.*
work=$(mktemp -d "$dest/unpack.XXXXXX")
trap 'rm -rf "$work"' EXIT
tar -xzf "$cache/node-llama-cpp-$name-$VERSION.tgz" -C "$work" package/bins
tar -xzf "$cache/node-llama-cpp-$VERSION.tgz" -C "$work" package/llama/gitRelease.bundle
mkdir -p "$dest/lib" "$dest/include"
cp "$work"/package/bins/"$name"/*.so "$dest/lib/"
git clone --quiet "$work/package/llama/gitRelease.bundle" "$work/source" 2>/dev/null || fail "cannot unpack the source bundle"
cp "$work"/source/include/*.h "$work"/source/ggml/include/*.h "$work"/source/ggml/src/ggml-backend-impl.h "$dest/include/"
mv "$work/package/llama/gitRelease.bundle" "$dest/src.bundle"
: > "$stamp"
