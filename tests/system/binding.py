"""Generates through libllama as language bindings load it: binding.py LIBRARIES MODEL N. Prints the tokens.

Parameter structures are left as the library makes them: opaque, larger than they are.
"""
import ctypes
import os
import sys


class Opaque(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 1024)]


class Batch(ctypes.Structure):
    _fields_ = [("n_tokens", ctypes.c_int32), ("token", ctypes.c_void_p), ("embd", ctypes.c_void_p), ("pos", ctypes.c_void_p),
                ("n_seq_id", ctypes.c_void_p), ("seq_id", ctypes.c_void_p), ("logits", ctypes.c_void_p)]


def main():
    folder, model_path, n = os.path.abspath(sys.argv[1]), sys.argv[2].encode(), int(sys.argv[3])
    libraries = {}

    def function(library, name, result, *arguments):
        if library not in libraries:
            libraries[library] = ctypes.CDLL(os.path.join(folder, library))  # its symbols stay its own
        found = getattr(libraries[library], name)
        found.restype, found.argtypes = result, arguments
        return found

    pointer = ctypes.c_void_p
    quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, pointer)(lambda level, text, context: None)
    function("libllama.so", "llama_log_set", None, pointer, pointer)(ctypes.cast(quiet, pointer), None)
    function("libggml.so", "ggml_backend_load_all_from_path", None, ctypes.c_char_p)(folder.encode())
    defaults = function("libllama.so", "llama_model_default_params", Opaque)()
    model = function("libllama.so", "llama_model_load_from_file", pointer, ctypes.c_char_p, Opaque)(model_path, defaults)
    defaults = function("libllama.so", "llama_context_default_params", Opaque)()
    context = function("libllama.so", "llama_init_from_model", pointer, pointer, Opaque)(model, defaults) if model else None
    if not context:
        sys.exit("cannot load the model")
    vocabulary = function("libllama.so", "llama_model_get_vocab", pointer, pointer)(model)
    size = function("libllama.so", "llama_vocab_n_tokens", ctypes.c_int32, pointer)(vocabulary)
    threads = function("libllama.so", "llama_set_n_threads", None, pointer, ctypes.c_int32, ctypes.c_int32)
    one = function("libllama.so", "llama_batch_get_one", Batch, pointer, ctypes.c_int32)
    decode = function("libllama.so", "llama_decode", ctypes.c_int32, pointer, Batch)
    logits = function("libllama.so", "llama_get_logits_ith", ctypes.POINTER(ctypes.c_float), pointer, ctypes.c_int32)
    threads(context, 1, 1)
    tokens, said = [5, 300, 77, 1200], []
    for _ in range(n):
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        if decode(context, one(ctypes.cast(array, pointer), len(tokens))):
            sys.exit("cannot decode")
        row = logits(context, -1)
        tokens = [max(range(size), key=lambda i: row[i])]
        said += tokens
    print(said)


main()
