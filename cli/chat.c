#include "chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool chat_open(struct chat *chat, const struct llama_model *model, char *why, size_t why_size) {
    *chat = (struct chat){.template = llama_model_chat_template(model, NULL)};
    if (!chat->template) {
        snprintf(why, why_size, "this model has no chat template; leave --chat out");
        return false;
    }
    struct llama_chat_message hello = {"user", "hello"};
    if (llama_chat_apply_template(chat->template, &hello, 1, true, NULL, 0) < 0) {
        snprintf(
            why, why_size,
            "this model's chat template is not one that llama.cpp's C interface knows; leave --chat out and write the "
            "format into the prompt, or use llama-server with the plugin");
        return false;
    }
    return true;
}

void chat_close(struct chat *chat) {
    for (size_t m = 0; m < chat->n_messages; m++) {
        free((char *)chat->messages[m].content);
    }
    free(chat->messages);
    *chat = (struct chat){0};
}

static bool add(struct chat *chat, const char *role, const char *text) {
    struct llama_chat_message *messages = realloc(chat->messages, (chat->n_messages + 1) * sizeof *messages);
    char *copy = strdup(text);
    if (messages) {
        chat->messages = messages;
    }
    if (!messages || !copy) {
        free(copy);
        return false;
    }
    messages[chat->n_messages++] = (struct llama_chat_message){role, copy};
    return true;
}

// The whole conversation so far, formatted.
static char *format(const struct chat *chat, bool open_answer) {
    int32_t need = llama_chat_apply_template(chat->template, chat->messages, chat->n_messages, open_answer, NULL, 0);
    char *text = need >= 0 ? calloc(1, (size_t)need + 1) : NULL;
    if (text) {
        llama_chat_apply_template(chat->template, chat->messages, chat->n_messages, open_answer, text, need + 1);
    }
    return text;
}

char *chat_ask(struct chat *chat, const char *text) {
    char *whole = add(chat, "user", text) ? format(chat, true) : NULL;
    if (!whole) {
        return NULL;
    }
    size_t length = strlen(whole), from = chat->formatted < length ? chat->formatted : length;
    chat->asked = length;
    memmove(whole, whole + from, length - from + 1);
    return whole;
}

void chat_answer(struct chat *chat, const char *text) {
    char *whole = add(chat, "assistant", text) ? format(chat, false) : NULL;
    if (!whole) {
        return;
    }
    // What ends an answer in the format (the context has not seen it) comes before the next question, unless the
    // template has changed the answer.
    size_t said = chat->asked + strlen(text), length = strlen(whole);
    bool unchanged = said <= length && memcmp(whole + chat->asked, text, strlen(text)) == 0;
    chat->formatted = unchanged ? said : length;
    free(whole);
}
