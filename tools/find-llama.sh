#!/bin/sh
# Prints the folder of a llama.cpp that is installed on this machine and can be built against; fails where there is none.
# It needs what the plugin needs: ggml's header for backends (few packages have it) and shared libraries, of an interface
# that has all that is called.
set -eu
for folder in /usr/local /usr; do
    include=$folder/include
    [ -e "$include/ggml-backend-impl.h" ] || continue
    grep -q llama_model_init_from_user "$include/llama.h" 2>/dev/null || continue
    ls "$folder"/lib/libllama.so "$folder"/lib/libggml.so "$folder"/lib/libggml-base.so >/dev/null 2>&1 || continue
    echo "$folder"
    exit 0
done
exit 1
