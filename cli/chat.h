// A conversation in the model's own chat format.
#pragma once

#include "llama.h"

#include <stdbool.h>
#include <stddef.h>

struct chat {
    const char *template;
    struct llama_chat_message *messages; // their contents are the chat's
    size_t n_messages;
    size_t asked;     // bytes of the conversation, formatted, up to where the model answers
    size_t formatted; // bytes of it that the context already holds
};

// Returns true, or false with one plain line when the model has no template, or one that llama.cpp's C interface does
// not know.
bool chat_open(struct chat *chat, const struct llama_model *model, char *why, size_t why_size);
void chat_close(struct chat *chat);

// Adds what the user says and returns the text to append to the context (to be freed), NULL when memory is short.
char *chat_ask(struct chat *chat, const char *text);
// Adds what the model said.
void chat_answer(struct chat *chat, const char *text);
