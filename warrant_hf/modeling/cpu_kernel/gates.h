// The gates of one tile, for every kind of gate.

#pragma once

#include <algorithm>

#include "products.h"
#include "tile.h"

namespace {

// Either the gates themselves, or per row the gates of at most PLACES items and per key the place of its item there.
struct GateTile {
    const float* data = nullptr;
    i64 ld = 0;
    const int32_t* place = nullptr;
};

enum Gating { OPEN, PER_TERM, PER_PLACE };

Gating gating_of(GateTile gate) { return !gate.data ? OPEN : gate.place ? PER_PLACE : PER_TERM; }

template <int GATING>
struct GateRow {
    const float* line;
    const int32_t* place;
    Lanes low, high;
    GateRow(GateTile gate, i64 i) : line(gate.data + i * gate.ld), place(gate.place) {
        if (GATING == PER_PLACE) low = load(line), high = load(line + 16);
    }
    inline Lanes at(i64 j) const {
        if (GATING == PER_TERM) return load(line + j);
        if (GATING == PER_PLACE) return _mm512_permutex2var_ps(low, _mm512_loadu_si512(place + j), high);
        return fill(1.0f);
    }
};

GateTile build_gate(const Plan& plan, const Block& block, i64 h, Scratch& scratch) {
    const Arguments& a = plan.a;
    float* out = scratch.gate;
    if (a.gate_kind == GATE_NONE) return {};
    if (a.gate_kind == GATE_TENSOR) {
        const View& v = a.gate_query;
        i64 at = offset_of(v, block.b, h, block.row);
        bool is_whole = block.rows == block.padded_rows && block.keys == block.padded_keys;
        if (v.type == FLOAT && v.step[3] == 1 && is_whole)
            return {static_cast<const float*>(v.data) + at + block.key, v.step[2]};
        for (i64 i = 0; i < block.rows; ++i) {
            read(v, at + i * v.step[2], block.key, block.keys, out + i * LD);
            std::fill(out + i * LD + block.keys, out + i * LD + block.padded_keys, 0.0f);
        }
    } else if (a.gate_kind == GATE_ITEM) {
        const View& v = a.gate_query;
        const ItemBlock& items = plan.items_of(block.b, block.key_block);
        bool is_compact = items.items.size() <= PLACES;
        for (i64 i = 0; i < block.rows; ++i) {
            i64 at = offset_of(v, block.b, h, block.row + i);
            const float* values = static_cast<const float*>(v.data) + at;
            if (v.type != FLOAT || v.step[3] != 1) {
                read(v, at, 0, a.rank, scratch.values);
                values = scratch.values;
            }
            if (is_compact) {
                for (size_t k = 0; k < items.items.size(); ++k) out[i * PLACES + k] = values[items.items[k]];
                continue;
            }
            float* line = out + i * LD;
            // A run may be written past its end: the next one follows and the line has room for 16 more.
            for (const Run& run : items.runs) {
                Lanes x = fill(values[run.item]);
                for (i64 j = run.begin; j < run.end; j += 16) store(line + j, x);
            }
            std::fill(line + block.keys, line + block.padded_keys, 0.0f);
        }
        if (is_compact) {
            std::fill(out + block.rows * PLACES, out + block.padded_rows * PLACES, 0.0f);
            return {out, PLACES, items.place};
        }
    } else {
        i64 qs = plan.query_sheet(block.b, h), ks = plan.key_sheet(block.b, h);
        const float* query = plan.gate_query + (qs * plan.row_blocks * plan.rows + block.row) * a.rank;
        const float* key = plan.gate_key + (ks * plan.key_blocks + block.key_block) * a.rank * LD;
        const float* query_line = plan.query_line + qs * plan.row_blocks * plan.rows + block.row;
        const float* key_line = plan.key_line + ks * plan.key_blocks * plan.keys + block.key;
        if (a.gate_kind == GATE_MLP) {
            pair_scores(block.rows, block.padded_keys, a.rank, query, key, plan.weight, query_line, key_line, out, LD);
        } else {
            product(block.rows, block.padded_keys, a.rank, query, a.rank, key, LD, out, LD, false);
            for (i64 i = 0; i < block.rows; ++i)
                for (i64 j = 0; j < block.padded_keys; j += 16)
                    store(out + i * LD + j, _mm512_add_ps(load(out + i * LD + j), fill(query_line[i])));
        }
        Lanes leak = fill(float(a.leak)), share = fill(float(1.0 - a.leak));
        for (i64 i = 0; i < block.rows; ++i)
            for (i64 j = 0; j < block.padded_keys; j += 16)
                store(out + i * LD + j, _mm512_fmadd_ps(share, sigmoid_lanes(load(out + i * LD + j)), leak));
    }
    for (i64 i = block.rows; i < block.padded_rows; ++i)
        std::fill(out + i * LD, out + i * LD + block.padded_keys, 0.0f);
    return {out, LD};
}

}  // namespace
