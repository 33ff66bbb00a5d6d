// What is prepared once per call: the cut into blocks, the gate's inputs and the runs of equal items.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gelu.h"

namespace {

struct Run {
    i64 begin, end, item;
};

// The items of one block of keys: the runs of equal ones, and which they are; two registers hold PLACES gates.
struct ItemBlock {
    std::vector<Run> runs;
    std::vector<i64> items;
    alignas(64) int32_t place[KEYS] = {};
};

struct Plan {
    const Arguments& a;
    i64 rows, keys;  // size of a block
    i64 row_blocks, key_blocks;
    i64 gate_batch, gate_heads;  // shape of the gate as a whole
    float unit;                  // logits in units of log 2 = dot product * unit + bias * log2(e)

    // mlp and low_rank
    Buffer<float> gate_query, gate_key, query_line, key_line, weight, gate_query_turned, gate_key_rows;
    // item
    std::vector<ItemBlock> item_blocks;

    explicit Plan(const Arguments& arguments, bool backward)
        : a(arguments),
          rows(std::min(ROWS, round_up(arguments.queries, 32))),
          keys(std::min(KEYS, round_up(arguments.keys, 32))),
          row_blocks(ceil_div(arguments.queries, rows)),
          key_blocks(ceil_div(arguments.keys, keys)),
          gate_batch(std::max(arguments.gate_query_shape[0], arguments.gate_key_shape[0])),
          gate_heads(std::max(arguments.gate_query_shape[1], arguments.gate_key_shape[1])),
          unit(float(arguments.scale * 1.4426950408889634)),
          gate_query(is_pairwise() ? query_sheets() * row_blocks * rows * a.rank : 0),
          gate_key(is_pairwise() ? key_sheets() * key_blocks * a.rank * LD : 0),
          query_line(is_pairwise() ? query_sheets() * row_blocks * rows : 0, true),
          key_line(is_pairwise() ? key_sheets() * key_blocks * keys : 0, true),
          weight(is_pairwise() ? a.rank : 0),
          gate_query_turned(is_low_rank() && backward ? query_sheets() * row_blocks * rows * a.rank : 0),
          gate_key_rows(is_low_rank() && backward ? key_sheets() * key_blocks * keys * padded_rank() : 0, true) {
        if (is_pairwise()) prepare_pairwise();
        if (a.gate_kind == GATE_ITEM) prepare_items();
    }

    bool is_low_rank() const { return a.gate_kind == GATE_LOW_RANK; }
    bool is_pairwise() const { return a.gate_kind == GATE_MLP || is_low_rank(); }
    i64 query_sheets() const { return a.gate_query_shape[0] * a.gate_query_shape[1]; }
    i64 key_sheets() const { return a.gate_key_shape[0] * a.gate_key_shape[1]; }
    i64 padded_rank() const { return round_up(a.rank, 16); }
    static i64 sheet(const i64* shape, i64 b, i64 h) {
        return (shape[0] == 1 ? 0 : b) * shape[1] + (shape[1] == 1 ? 0 : h);
    }
    i64 query_sheet(i64 b, i64 h) const { return sheet(a.gate_query_shape, b, h); }
    i64 key_sheet(i64 b, i64 h) const { return sheet(a.gate_key_shape, b, h); }

    // The table of GELU counts in steps, so the inputs do too.
    void prepare_pairwise() {
        bool is_mlp = a.gate_kind == GATE_MLP;
        float step = is_mlp ? GELU_STEPS : 1.0f;
        if (is_mlp) read(a.weight, 0, 0, a.rank, weight);
        i64 padded_rows = row_blocks * rows;
        std::vector<float> line(padded_rank());
        for (i64 s = 0; s < query_sheets(); ++s) {
            i64 b = s / a.gate_query_shape[1], h = s % a.gate_query_shape[1];
            for (i64 i = 0; i < padded_rows; ++i) {
                float* out = gate_query + (s * padded_rows + i) * a.rank;
                std::fill(out, out + a.rank, 0.0f);
                if (i >= a.queries) continue;
                read(a.gate_query, offset_of(a.gate_query, b, h, i), 0, a.rank, out);
                double half = a.offset;
                for (i64 r = 0; r < a.rank; ++r) {
                    if (is_mlp) half += 0.5 * double(weight[r]) * out[r];
                    out[r] *= step;
                }
                query_line[s * padded_rows + i] = float(half);
            }
            if (!gate_query_turned) continue;
            for (i64 block = 0; block < row_blocks; ++block)
                for (i64 i = 0; i < rows; ++i)
                    for (i64 r = 0; r < a.rank; ++r)
                        gate_query_turned[(s * row_blocks + block) * rows * a.rank + r * rows + i] =
                            gate_query[(s * padded_rows + block * rows + i) * a.rank + r];
        }
        for (i64 s = 0; s < key_sheets(); ++s) {
            i64 b = s / a.gate_key_shape[1], h = s % a.gate_key_shape[1];
            for (i64 j = 0; j < key_blocks * keys; ++j) {
                float* out = gate_key + (s * key_blocks + j / keys) * a.rank * LD + j % keys;
                std::fill(line.begin(), line.end(), 0.0f);
                if (j < a.keys) read(a.gate_key, offset_of(a.gate_key, b, h, j), 0, a.rank, line.data());
                double half = 0.0;
                for (i64 r = 0; r < a.rank; ++r) {
                    if (is_mlp) half += 0.5 * double(weight[r]) * line[r];
                    out[r * LD] = line[r] * step;
                }
                key_line[s * key_blocks * keys + j] = float(half);
                if (gate_key_rows)
                    std::copy(line.begin(), line.end(), gate_key_rows + (s * key_blocks * keys + j) * padded_rank());
            }
        }
    }

    void prepare_items() {
        item_blocks.resize(a.item_batch * key_blocks);
        for (i64 n = 0; n < a.item_batch * key_blocks; ++n) {
            ItemBlock& block = item_blocks[n];
            const int64_t* items = a.items + n / key_blocks * a.keys + n % key_blocks * keys;
            i64 count = std::min(keys, a.keys - n % key_blocks * keys), at = 0;
            for (i64 j = 0; j < count; ++j) {
                if (j > 0 && items[j] == items[j - 1]) {
                    block.runs.back().end = j + 1;
                } else {
                    block.runs.push_back({j, j + 1, items[j]});
                    at = std::find(block.items.begin(), block.items.end(), items[j]) - block.items.begin();
                    if (at == i64(block.items.size()) && at <= PLACES) block.items.push_back(items[j]);
                }
                block.place[j] = int32_t(at);
            }
        }
    }
    const ItemBlock& items_of(i64 b, i64 block) const {
        return item_blocks[(a.item_batch == 1 ? 0 : b) * key_blocks + block];
    }
};

}  // namespace
