// The forward pass: the softmax runs over the blocks of keys and is rescaled when its maximum rises.

#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "gates.h"
#include "packing.h"

namespace {

struct RowState {
    Buffer<float> sum;  // [rows, value width], relative to 2^top
    float top[ROWS], total[ROWS], power_total[ROWS], mass[ROWS];
    explicit RowState(i64 size) : sum(size) {}
    void reset(i64 rows, i64 value_width) {
        std::fill(sum.data, sum.data + round_up(rows, 32) * value_width, 0.0f);
        std::fill(top, top + ROWS, NONE);
        std::fill(total, total + ROWS, 0.0f);
        std::fill(power_total, power_total + ROWS, 0.0f);
        std::fill(mass, mass + ROWS, 0.0f);
    }
};

template <class T, int GATING, bool POWER>
void forward_terms(const Block& block, const float* logits, GateTile gate, float unit, float power, i64 value_width,
                   RowState& state, T* terms) {
    const Lanes scale = fill(unit), p = fill(power);
    for (i64 i = 0; i < block.rows; ++i) {
        const float* line = logits + i * LD;
        const GateRow<GATING> g(gate, i);
        T* out = terms + i * Terms<T>::STEP;
        Lanes highest = fill(NONE), other = highest;
        for (i64 j = 0; j < block.padded_keys; j += 32) {
            highest = _mm512_max_ps(highest, load(line + j));
            other = _mm512_max_ps(other, load(line + j + 16));
        }
        // The unit is positive, so the largest logit is the same before and after it.
        float here = _mm512_reduce_max_ps(_mm512_max_ps(highest, other)) * unit;
        float before = state.top[i], top = std::max(before, here);
        if (top > before) {
            state.top[i] = top;
            if (before > NONE) {
                float shrink = std::exp2(before - top);
                state.total[i] *= shrink;
                state.mass[i] *= shrink;
                if (POWER) state.power_total[i] *= std::exp2(power * (before - top));
                float* sum = state.sum + i * value_width;
                for (i64 d = 0; d < value_width; d += 16) store(sum + d, _mm512_mul_ps(load(sum + d), fill(shrink)));
            }
        }
        Lanes shift = fill(top > NONE ? top : 0.0f);
        Lanes total = _mm512_setzero_ps(), power_total = total, mass = total;
        for (i64 j = 0; j < block.padded_keys; j += 16) {
            Lanes x = _mm512_fmsub_ps(load(line + j), scale, shift), e = exp2_lanes(x);
            total = _mm512_add_ps(total, e);
            if (POWER) power_total = _mm512_add_ps(power_total, exp2_lanes(_mm512_mul_ps(x, p)));
            if (GATING) {
                e = _mm512_mul_ps(e, g.at(j));
                mass = _mm512_add_ps(mass, e);
            }
            Terms<T>::put(out + j, e);
        }
        state.total[i] += sum_lanes(total);
        if (POWER) state.power_total[i] += sum_lanes(power_total);
        if (GATING) state.mass[i] += sum_lanes(mass);
    }
}

void finish_rows(const Plan& plan, const Block& block, i64 h, i64 value_width, RowState& state) {
    const Arguments& a = plan.a;
    for (i64 i = 0; i < block.rows; ++i) {
        i64 at = (block.b * a.heads + h) * a.queries + block.row + i;
        float total = state.total[i], lse = 0.0f, lse_power = 0.0f, mass = 0.0f, factor = 0.0f;
        if (total != 0.0f) {  // also where it is NaN
            factor = 1.0f / total;
            mass = state.mass[i] * factor;
            lse = lse_power = float(double(state.top[i]) * 0.6931471805599453 + std::log(double(total)));
            if (a.power != 1.0) {
                double power_log = std::log(double(state.power_total[i])) / a.power;
                lse_power = float(double(state.top[i]) * 0.6931471805599453 + power_log);
                factor = float(std::exp(-power_log));
            }
        }
        float* sum = state.sum + i * value_width;
        for (i64 d = 0; d < value_width; d += 16) store(sum + d, _mm512_mul_ps(load(sum + d), fill(factor)));
        write(a.context, a.out_type, at * a.value_width, sum, a.value_width);
        a.lse[at] = lse;
        if (a.lse_power) a.lse_power[at] = lse_power;
        if (a.mass) a.mass[at] = mass;
    }
}

template <class T>
void forward(const Arguments& a) {
    Plan plan(a, false);
    PackedKeys<T> keys(plan, a.batch * a.kv_heads * plan.key_blocks, false);
    pack_all<T>(plan, nullptr, keys);
    using L = Layout<T>;
    bool has_power = a.power != 1.0;
    decltype(&forward_terms<T, OPEN, true>) terms_of[] = {
        has_power ? forward_terms<T, OPEN, true> : forward_terms<T, OPEN, false>,
        has_power ? forward_terms<T, PER_TERM, true> : forward_terms<T, PER_TERM, false>,
        has_power ? forward_terms<T, PER_PLACE, true> : forward_terms<T, PER_PLACE, false>,
    };
    // A gate that is costly and the same for all heads is evaluated once per tile, with the heads inside.
    i64 together = plan.is_pairwise() && plan.gate_heads == 1 ? a.heads : 1;
    i64 head_jobs = a.heads / together, jobs = a.batch * head_jobs * plan.row_blocks, groups = a.heads / a.kv_heads;
    bool failed = false;
#pragma omp parallel num_threads(int(std::min(a.threads, jobs)))
    try {
        FlushDenormals flush;
        ThreadTiles<T> tiles;
        (void)tiles;
        Scratch scratch(plan);
        Buffer<T> terms(ROWS * Terms<T>::STEP);
        Workbench<T> bench(plan);
        PackedRows<T> packed(plan, together, false);
        std::vector<RowState> states;
        states.reserve(together);
        for (i64 k = 0; k < together; ++k) states.emplace_back(plan.rows * packed.value_width);
#pragma omp for schedule(dynamic) nowait
        for (i64 job = 0; job < jobs; ++job) {
            i64 rb = job % plan.row_blocks, head = job / plan.row_blocks % head_jobs * together;
            i64 b = job / plan.row_blocks / head_jobs;
            Block rows(plan, b, rb, 0);
            for (RowState& state : states) state.reset(rows.rows, packed.value_width);
            for (i64 k = 0; k < together; ++k) packed.put(b, head + k, rb, k, bench);
            for (i64 kb = 0; kb < plan.key_blocks; ++kb) {
                Block block(plan, b, rb, kb);
                if (is_above_diagonal(plan, block)) break;
                GateTile gate = build_gate(plan, block, head, scratch);
                i64 product_rows = sizeof(T) == 4 ? block.rows : block.padded_rows;
                for (i64 k = 0; k < together; ++k) {
                    i64 h = head + k;
                    i64 at = (b * a.kv_heads + h / groups) * plan.key_blocks + kb;
                    RowState& state = states[k];
                    product(product_rows, block.padded_keys, packed.width, packed.query + k * packed.query_size,
                            packed.width, keys.key_turned + at * keys.key_turned_size,
                            L::right_turned_step(plan.keys, packed.width), scratch.logits, LD, false);
                    float unit = finish_logits(plan, block, h, scratch);
                    terms_of[gating_of(gate)](block, scratch.logits, gate, unit, float(a.power), packed.value_width,
                                              state, terms);
                    product(product_rows, packed.value_width, block.padded_keys, terms, Terms<T>::STEP,
                            keys.value + at * keys.value_size, L::right_step(plan.keys, packed.value_width),
                            state.sum, packed.value_width, true);
                }
            }
            for (i64 k = 0; k < together; ++k) finish_rows(plan, rows, head + k, packed.value_width, states[k]);
        }
    } catch (...) {
#pragma omp atomic write
        failed = true;
    }
    if (failed) throw 1;
}

}  // namespace
