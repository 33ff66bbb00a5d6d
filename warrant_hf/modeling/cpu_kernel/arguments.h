// What attention_cpu.py passes in: `View` and `Arguments` have the fields of `_View` and `_Arguments` there.

#pragma once

#include <cstdint>

extern "C" {

// Four axes; steps in elements, 0 on an axis that is shared.
struct View {
    const void* data;
    int64_t step[4];
    int64_t type;
};

struct Arguments {
    View query, key, value, keep, bias, gate_query, gate_key, weight, d_context;
    const int64_t* items;  // [item_batch, keys], contiguous
    int64_t item_batch;
    int64_t gate_query_shape[2], gate_key_shape[2];  // own b and h of the gate's tensors
    int64_t batch, heads, kv_heads, queries, keys, width, value_width;
    int64_t rank;  // items of an item gate, R of the other ones
    int64_t gate_kind, is_causal, threads, use_half, out_type;
    double scale, power, leak, offset;
    void* context;
    float *mass, *lse, *lse_power;  // written by the forward pass, read by the backward pass
    const float *d_mass, *row, *row_power;
    // Contiguous, of the type `out_type`.
    void *d_query, *d_key, *d_value;
    // Gradients, float32, zeroed by the caller; the first axis of the gate's and the bias's is the job that wrote it.
    float *d_bias, *d_gate_query, *d_gate_key, *d_weight;
    double *d_offset, *d_power;
    int64_t d_bias_step[4], d_gate_query_step[4], d_gate_key_step[4];  // job, b, h, row or key
    int64_t d_bias_job[3], d_gate_query_job[3], d_gate_key_job[3];     // factors of (batch part, head part, chunk)
    int64_t batch_parts, head_parts, chunks;
    int64_t need_query, need_key, need_value;
};
}

namespace {

using i64 = int64_t;

enum Kind { GATE_NONE, GATE_TENSOR, GATE_ITEM, GATE_MLP, GATE_LOW_RANK };
enum Type { FLOAT, BFLOAT16, HALF, DOUBLE };

inline i64 offset_of(const View& v, i64 b, i64 h, i64 i) { return b * v.step[0] + h * v.step[1] + i * v.step[2]; }

}  // namespace
