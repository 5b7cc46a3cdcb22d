// How far products of ours can be trusted. ggml is free to multiply many rows by other kernels than few, with other
// bits (v0.4.0 does so with most IQ types from 8 rows of one expert on), and which types those are is its own business:
// so it is tried, with the ggml that this process has loaded.
#pragma once

#include "backend/products.h"

// Returns the most rows of one expert for which a job (products.h) has the bits of ggml_mul_mat_id with weights of this
// type: 0, a few, or UINT32_MAX. The first call for a type computes some made-up products both ways on `cpu`, which
// must not be computing anything else; later ones, of any thread, take a few ns.
uint32_t gn_product_rows(ggml_backend_t cpu, gn_cpu_traits_fn traits, enum ggml_type type);
