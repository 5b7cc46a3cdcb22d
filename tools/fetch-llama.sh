#!/bin/sh
# Fetches the pinned llama.cpp (headers, sources, prebuilt libraries) from the npm registry.
#
#   tools/fetch-llama.sh DEST [vulkan]
#
# DEST receives include/ (public headers and ggml-backend-impl.h), lib/ (shared libraries) and src.bundle
# (a git bundle of the very sources the libraries were built from). Both packages are checked against a
# pinned sha512 and kept in ${XDG_CACHE_HOME:-~/.cache}/guanaco, so that a second build needs no network.
set -eu

VERSION=3.22.1
SHA_SOURCE=bltIipuWmc123H7tMIgDGKSsSrhmhlQYeVUC48XTjVW7XGJJiJJyCdlTMzQ/LiWoPkGDpcL4FviDpgw7qfTiDw==

fail() { echo "fetch-llama: $*" >&2; exit 1; }

[ $# -ge 1 ] || fail "usage: tools/fetch-llama.sh DEST [vulkan]"
dest=$1
case "$(uname -m):${2:-cpu}" in
    x86_64:cpu)
        name=linux-x64
        sha=5uCCDNqWCNfaAm8aR/Uzxbo4HBpKgNF91kCHPepKhgMgV2OAmatoefbOlMihsqCiH2Od35E/eUHQCFbfRBJuOg== ;;
    x86_64:vulkan)
        name=linux-x64-vulkan
        sha=bBxqU+JOcBu1nb5Qj2zcMci+JByT1E8EajHvYodyNfVIPkEhXh+/HMwR1/BT7xP08YK0hks+kM8fglER0P8JEg== ;;
    aarch64:cpu)
        name=linux-arm64
        sha=W+7naKCXX9/eEjjFmRS8vvx91QyLXDbeFxexZc3bh/PtQABZgmRL3C0AtYYXn4YGTj/3Qor4lWZn2tpjZFPLdQ== ;;
    *) fail "no prebuilt llama.cpp for $(uname -m) ${2:-}; build with -DGUANACO_LLAMA_DIR=<your llama.cpp>" ;;
esac

stamp="$dest/.complete-$VERSION-$name"
[ ! -e "$stamp" ] || exit 0

cache="${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/guanaco"
mkdir -p "$cache" "$dest"

# package NAME FILE SHA512: leaves the checked tarball in $cache/FILE
package() {
    if [ ! -e "$cache/$2" ]; then
        command -v npm >/dev/null 2>&1 || fail "npm is missing: install node and npm, or use -DGUANACO_LLAMA_DIR="
        echo "fetch-llama: downloading $1@$VERSION" >&2
        part=$(mktemp -d "$cache/download.XXXXXX")
        (cd "$part" && npm pack --silent "$1@$VERSION" >/dev/null) ||
            { rm -rf "$part"; fail "cannot download $1@$VERSION with 'npm pack'; is the npm registry reachable?"; }
        mv "$part/$2" "$cache/$2"
        rm -rf "$part"
    fi
    got=$(openssl dgst -sha512 -binary "$cache/$2" | base64 | tr -d '\n')
    if [ "$got" != "$3" ]; then
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
