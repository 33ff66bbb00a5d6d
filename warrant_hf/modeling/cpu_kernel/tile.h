// One block of rows against one block of keys: its place, its memory, and what becomes of its logits at the edges.

#pragma once

#include <algorithm>

#include "plan.h"

namespace {

struct Block {
    i64 b, row, key;          // batch entry, first row, first key
    i64 row_block, key_block;
    i64 rows, keys;           // that exist
    i64 padded_rows, padded_keys;

    Block(const Plan& plan, i64 batch, i64 rb, i64 kb)
        : b(batch),
          row(rb * plan.rows),
          key(kb * plan.keys),
          row_block(rb),
          key_block(kb),
          rows(std::min(plan.rows, plan.a.queries - row)),
          keys(std::min(plan.keys, plan.a.keys - key)),
          padded_rows(round_up(rows, 32)),
          padded_keys(round_up(keys, 32)) {}
};

struct Scratch {
    Buffer<float> logits{ROWS * LD}, gate{ROWS * LD}, line{KEYS + 32}, values;
    explicit Scratch(const Plan& plan) : values(plan.a.gate_kind == GATE_ITEM ? plan.a.rank : 0) {}
};

bool is_above_diagonal(const Plan& plan, const Block& block) {
    return plan.a.is_causal && block.key > block.row + block.rows - 1 + plan.a.keys - plan.a.queries;
}

// Adds the bias and removes terms that do not exist. Returns the unit of the logits that it leaves, which is positive.
float finish_logits(const Plan& plan, const Block& block, i64 h, Scratch& scratch) {
    const Arguments& a = plan.a;
    i64 reach = block.row + a.keys - a.queries - block.key + 1;  // keys of the first row up to the diagonal
    bool is_cut = a.is_causal && reach < block.keys;
    bool is_whole = !is_cut && block.keys == block.padded_keys;
    if (!a.keep.data && !a.bias.data && is_whole && plan.unit > 0.0f) return plan.unit;
    Lanes unit = fill(plan.unit), log2e = fill(LOG2E), none = fill(NONE);
    for (i64 i = 0; i < block.rows; ++i) {
        float* line = scratch.logits + i * LD;
        const float* bias = nullptr;
        if (a.bias.data) {
            i64 at = offset_of(a.bias, block.b, h, block.row + i);
            bias = static_cast<const float*>(a.bias.data) + at + block.key;
            if (a.bias.type != FLOAT || a.bias.step[3] != 1 || block.keys != block.padded_keys) {
                read(a.bias, at, block.key, block.keys, scratch.line);
                std::fill(scratch.line + block.keys, scratch.line + block.padded_keys, 0.0f);
                bias = scratch.line;
            }
        }
        const uint8_t* keep = nullptr;
        if (a.keep.data)
            keep = static_cast<const uint8_t*>(a.keep.data) + offset_of(a.keep, block.b, h, block.row + i) +
                   block.key * a.keep.step[3];
        i64 valid = a.is_causal ? std::clamp<i64>(reach + i, 0, block.keys) : block.keys;
        for (i64 j = 0; j < block.padded_keys; j += 16) {
            Lanes x = _mm512_mul_ps(load(line + j), unit);
            if (bias) x = _mm512_fmadd_ps(load(bias + j), log2e, x);
            i64 left = std::clamp<i64>(valid - j, 0, 16);
            __mmask16 exists = __mmask16((1u << left) - 1);
            if (keep) {
                if (a.keep.step[3] == 1) {
                    __m128i bytes = _mm_maskz_loadu_epi8(exists, keep + j);
                    exists = _mm_test_epi8_mask(bytes, bytes);
                } else {
                    for (i64 k = 0; k < left; ++k)
                        if (!keep[(j + k) * a.keep.step[3]]) exists &= __mmask16(~(1u << k));
                }
            }
            store(line + j, _mm512_mask_blend_ps(exists, none, x));
        }
    }
    return 1.0f;
}

}  // namespace
