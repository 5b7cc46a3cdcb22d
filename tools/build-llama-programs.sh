#!/bin/sh
# Builds llama.cpp's own programs from the pinned sources, unpatched, for users who have none and for the system tests.
#
#   tools/build-llama-programs.sh BUNDLE DEST [JOBS]
#
# BUNDLE is the git bundle that tools/fetch-llama.sh leaves in .deps/llama. The programs and their libraries are left in
# DEST/bin. CPU only; backends are loaded at run time (GGML_BACKEND_DL), so that the plugin can be one of them. Nothing is
# downloaded: no web interface, no TLS. Started again it goes on where it stopped. The programs are kept in
# ${XDG_CACHE_HOME:-~/.cache}/guanaco as well.
set -eu
fail() { echo "build-llama-programs: $*" >&2; exit 1; }

[ $# -ge 2 ] || fail "usage: tools/build-llama-programs.sh BUNDLE DEST [JOBS]"
bundle=$1
dest=$2
jobs=${3:-$(nproc)}
[ -e "$bundle" ] || fail "$bundle is missing; 'make' fetches it"
command -v c++ >/dev/null 2>&1 || fail "a C++ compiler is missing: install g++"

# The same sources, compiler and processor: the same programs. A clean checkout takes those that were built before.
made_of=$({ cat "$bundle" "$0"; c++ --version; grep -m 1 -i '^flags\|^features' /proc/cpuinfo; } | sha512sum | cut -c 1-16)
cache="${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/guanaco"
kept="$cache/llama-programs-$made_of"
[ "$(cat "$dest/.complete" 2>/dev/null)" != "$made_of" ] || exit 0
done_with() {
    echo "$made_of" >"$dest/.complete"
    echo "llama.cpp's programs are in $dest/bin"
    exit 0
}
mkdir -p "$dest" "$cache"
if [ -d "$kept" ]; then
    rm -rf "$dest/bin"
    cp -a "$kept" "$dest/bin"
    done_with
fi
if [ "$(cat "$dest/.made-of" 2>/dev/null)" != "$made_of" ]; then
    rm -rf "$dest"
    mkdir -p "$dest"
    git clone --quiet "$bundle" "$dest/source" 2>/dev/null || fail "cannot unpack $bundle"
    echo "$made_of" >"$dest/.made-of"
fi

# GGML_NATIVE does not go with loadable backends, so the compiler is told itself to build for this machine.
case "$(uname -m)" in aarch64) native=-mcpu=native ;; *) native=-march=native ;; esac
cmake -S "$dest/source" -B "$dest" -DCMAKE_BUILD_TYPE=Release -DCMAKE_BUILD_RPATH_USE_ORIGIN=ON -DBUILD_SHARED_LIBS=ON \
    -DCMAKE_C_FLAGS="$native" -DCMAKE_CXX_FLAGS="$native" -DGGML_BACKEND_DL=ON -DGGML_NATIVE=OFF -DGGML_SSE42=OFF -DGGML_AVX=OFF \
    -DGGML_AVX2=OFF -DGGML_BMI2=OFF -DGGML_FMA=OFF -DGGML_F16C=OFF -DGGML_OPENMP=OFF -DGGML_RPC=ON -DGGML_CCACHE=OFF -DLLAMA_BUILD_IS_DEV=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON \
    -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF >"$dest/configure.log" 2>&1 ||
    { tail -n 5 "$dest/configure.log" >&2; fail "cannot configure, see $dest/configure.log"; }

# The small programs come first: whoever stops it early has those.
for targets in "ggml ggml-cpu ggml-rpc llama" "llama-completion llama-bench llama-perplexity llama-gguf-split" \
               "llama-quantize llama-imatrix ggml-rpc-server" "llama-server llama-cli"; do
    # shellcheck disable=SC2086
    cmake --build "$dest" -j "$jobs" --target $targets || fail "the build of $targets failed"
done
rm -rf "$cache"/llama-programs-*
cp -a "$dest/bin" "$kept.part"
mv "$kept.part" "$kept"
done_with
