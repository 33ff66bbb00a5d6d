// From the gradients of a tile's gates and biases to those of the tensors that they are made of.

#pragma once

#include <algorithm>
#include <vector>

#include "gates.h"
#include "packing.h"

namespace {

struct Job {
    i64 batch_part, head_part, chunk;
    i64 index(const i64 factors[3]) const {
        return batch_part * factors[0] + head_part * factors[1] + chunk * factors[2];
    }
};

void add_rows(const Block& block, i64 h, const float* tile, float* out, const i64 step[4], i64 job) {
    out += job * step[0] + block.b * step[1] + h * step[2] + block.row * step[3] + block.key;
    for (i64 i = 0; i < block.rows; ++i, out += step[3], tile += LD)
        for (i64 j = 0; j < block.keys; ++j) out[j] += tile[j];
}

struct GateGradients {
    const Plan& plan;
    Job job;
    std::vector<double> weight;
    double offset = 0.0;
    Buffer<float> query, key_turned, row_sum, column_sum, line;

    GateGradients(const Plan& p, Job j)
        : plan(p),
          job(j),
          weight(p.is_pairwise() && p.a.d_gate_query ? p.a.rank : 0),
          query(active_pairs(p) * ROWS * p.padded_rank()),
          key_turned(active_pairs(p) * p.padded_rank() * LD),
          row_sum(ROWS),
          column_sum(LD),
          line(p.padded_rank()) {}

    static i64 active_pairs(const Plan& p) { return p.is_pairwise() && p.a.d_gate_query ? 1 : 0; }

    void add(const Block& block, i64 h, float* d, GateTile gate) {
        const Arguments& a = plan.a;
        if (a.gate_kind == GATE_TENSOR) {
            add_rows(block, h, d, a.d_gate_query, a.d_gate_query_step, job.index(a.d_gate_query_job));
        } else if (a.gate_kind == GATE_ITEM) {
            add_items(block, h, d);
        } else {
            add_pairwise(block, h, d, gate);
        }
    }

    void add_items(const Block& block, i64 h, const float* d) {
        const Arguments& a = plan.a;
        const i64* step = a.d_gate_query_step;
        float* out = a.d_gate_query + job.index(a.d_gate_query_job) * step[0] + block.b * step[1] + h * step[2] +
                     block.row * step[3];
        const auto& runs = plan.items_of(block.b, block.key_block).runs;
        for (i64 i = 0; i < block.rows; ++i, out += step[3], d += LD)
            for (const Run& run : runs) {
                if (run.end - run.begin == 1) {
                    out[run.item] += d[run.begin];
                    continue;
                }
                Lanes sum = _mm512_setzero_ps();
                i64 j = run.begin;
                for (; j + 16 <= run.end; j += 16) sum = _mm512_add_ps(sum, load(d + j));
                sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(__mmask16((1u << (run.end - j)) - 1), d + j));
                out[run.item] += sum_lanes(sum);
            }
    }

    void add_pairwise(const Block& block, i64 h, float* d, GateTile gate) {
        const Arguments& a = plan.a;
        i64 qs = plan.query_sheet(block.b, h), ks = plan.key_sheet(block.b, h), rank = a.rank;
        // dpsi = dg (g - leak) (1 - g) / (1 - leak)
        Lanes leak = fill(float(a.leak)), one = fill(1.0f);
        Lanes inverse = fill(a.leak < 1.0 ? float(1.0 / (1.0 - a.leak)) : 0.0f);
        std::fill(column_sum.data, column_sum.data + block.padded_keys, 0.0f);
        for (i64 i = 0; i < block.rows; ++i) {
            Lanes sum = _mm512_setzero_ps();
            for (i64 j = 0; j < block.padded_keys; j += 16) {
                Lanes g = load(gate.data + i * gate.ld + j);
                Lanes slope = _mm512_mul_ps(_mm512_mul_ps(_mm512_sub_ps(g, leak), inverse), _mm512_sub_ps(one, g));
                Lanes x = _mm512_mul_ps(load(d + i * LD + j), slope);
                store(d + i * LD + j, x);
                sum = _mm512_add_ps(sum, x);
                store(column_sum + j, _mm512_add_ps(load(column_sum + j), x));
            }
            row_sum[i] = sum_lanes(sum);
            offset += row_sum[i];
        }
        i64 at = qs * plan.row_blocks * plan.rows + block.row;
        const float* q = plan.gate_query + at * rank;
        const float* k = plan.gate_key + (ks * plan.key_blocks + block.key_block) * rank * LD;
        const i64 *query_step = a.d_gate_query_step, *key_step = a.d_gate_key_step;
        float* d_query = a.d_gate_query + job.index(a.d_gate_query_job) * query_step[0] + block.b * query_step[1] +
                         h * query_step[2] + block.row * query_step[3];
        float* d_key = a.d_gate_key + job.index(a.d_gate_key_job) * key_step[0] + block.b * key_step[1] +
                       h * key_step[2] + block.key * rank;
        if (a.gate_kind == GATE_LOW_RANK) {
            i64 wide = plan.padded_rank();
            const float* rows = plan.gate_key_rows + (ks * plan.key_blocks * plan.keys + block.key) * wide;
            product(block.rows, wide, block.keys, d, LD, rows, wide, query, wide, false);
            for (i64 i = 0; i < block.rows; ++i)
                for (i64 r = 0; r < rank; ++r) d_query[i * rank + r] += query[i * wide + r];
            const float* turned = plan.gate_query_turned + (qs * plan.row_blocks + block.row_block) * plan.rows * rank;
            product(rank, block.padded_keys, block.rows, turned, plan.rows, d, LD, key_turned, LD, false);
        } else {
            std::fill(query.data, query.data + block.rows * rank, 0.0f);
            std::fill(key_turned.data, key_turned.data + rank * LD, 0.0f);
            auto run = a.d_weight ? pair_gradients<true> : pair_gradients<false>;
            run(block.rows, block.padded_keys, rank, q, k, d, LD, query, key_turned, line);
            // The arguments count in steps of the table.
            const float unit = 1.0f / GELU_STEPS;
            for (i64 i = 0; i < block.rows; ++i, q += rank, d_query += rank) {
                float sum = 0.5f * row_sum[i];
                for (i64 r = 0; r < rank; ++r) {
                    d_query[r] += plan.weight[r] * (query[i * rank + r] + sum);
                    line[r] += sum * unit * q[r];
                }
            }
            Lanes half = fill(0.5f);
            for (i64 r = 0; r < rank; ++r, k += LD) {
                Lanes factor = fill(plan.weight[r]), linear = _mm512_setzero_ps();
                for (i64 j = 0; j < block.padded_keys; j += 16) {
                    Lanes sum = _mm512_mul_ps(half, load(column_sum + j));
                    float* out = key_turned + r * LD + j;
                    store(out, _mm512_mul_ps(factor, _mm512_add_ps(load(out), sum)));
                    linear = _mm512_fmadd_ps(sum, load(k + j), linear);
                }
                weight[r] += line[r] + sum_lanes(linear) * unit;
            }
        }
        alignas(64) float square[256];
        for (i64 j = 0; j < block.keys; j += 16)
            for (i64 r = 0; r < rank; r += 16) {
                transpose_words(reinterpret_cast<const uint32_t*>(key_turned + r * LD + j), LD,
                                reinterpret_cast<uint32_t*>(square), 16);
                i64 count = std::min<i64>(16, rank - r);
                for (i64 m = 0; m < std::min<i64>(16, block.keys - j); ++m)
                    for (i64 n = 0; n < count; ++n) d_key[(j + m) * rank + r + n] += square[m * 16 + n];
            }
    }

    void finish(i64 index) {
        const Arguments& a = plan.a;
        if (!active_pairs(plan)) return;
        if (a.d_weight)
            for (i64 r = 0; r < a.rank; ++r) a.d_weight[index * a.rank + r] = float(weight[r]);
        a.d_offset[index] = offset;
    }
};

}  // namespace
