#!/bin/sh
# Fetches the OpenAI client library for node, pinned, for the system test that talks to llama-server with it.
#
#   tools/fetch-openai.sh DEST
#
# Leaves it in DEST/node_modules/openai; it needs no other package. The tarball is checked against a pinned sha512 and kept
# in ${XDG_CACHE_HOME:-~/.cache}/guanaco.
set -eu

VERSION=7.59.0
SHA=c0f60a2642cf14474d276b538528388c4d4fb6cbf85f7bbc83c2c8beed10cff50886c29e0b397bdeb978f0fb50b0356b24bfe4bb49625ceb1bc9dd93b11b0f27

fail() { echo "fetch-openai: $*" >&2; exit 1; }

[ $# -eq 1 ] || fail "usage: tools/fetch-openai.sh DEST"
dest=$1
stamp="$dest/.complete-$VERSION"
[ ! -e "$stamp" ] || exit 0

cache="${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/guanaco"
file="openai-$VERSION.tgz"
mkdir -p "$cache" "$dest"
if [ ! -e "$cache/$file" ]; then
    command -v npm >/dev/null 2>&1 || fail "npm is missing: install node and npm"
    part=$(mktemp -d "$cache/download.XXXXXX")
    (cd "$part" && npm pack --silent "openai@$VERSION" >/dev/null) ||
        { rm -rf "$part"; fail "cannot download openai@$VERSION with 'npm pack'; is the npm registry reachable?"; }
    mv "$part/$file" "$cache/$file"
    rm -rf "$part"
fi
if [ "$(sha512sum "$cache/$file" | cut -d ' ' -f 1)" != "$SHA" ]; then
    rm -f "$cache/$file"
    fail "$file is not the pinned file (sha512 differs); it was removed, run again"
fi
rm -rf "$dest/node_modules/openai"
mkdir -p "$dest/node_modules/openai"
tar -xzf "$cache/$file" -C "$dest/node_modules/openai" --strip-components=1
: >"$stamp"
