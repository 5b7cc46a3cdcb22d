#!/bin/sh
# Fetches the OpenAI client library for node, pinned, for the system test that talks to llama-server with it.
#
#   tools/fetch-openai.sh DEST
#
# Leaves it in DEST/node_modules/openai; it needs no other package. The tarball is checked against a pinned sha512 and kept
# in ${XDG_CACHE_HOME:-~/.cache}/guanaco.
set -eu

VERSION=7.59.0
SHA=wPYKJkLPFEdNJ2tThSg4jE1Ptsv4X3u8g8LIvu0Qz/UIhsKeCzl73rl48PtQsDVrJL/ku0liXOsbyd2TsRsPJw==

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
if [ "$(openssl dgst -sha512 -binary "$cache/$file" | base64 | tr -d '\n')" != "$SHA" ]; then
    rm -f "$cache/$file"
    fail "$file is not the pinned file (sha512 differs); it was removed, run again"
fi
rm -rf "$dest/node_modules/openai"
mkdir -p "$dest/node_modules/openai"
tar -xzf "$cache/$file" -C "$dest/node_modules/openai" --strip-components=1
: >"$stamp"
