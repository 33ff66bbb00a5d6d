// The backward pass: jobs that write to no common place, and then the sums over their copies.

#pragma once

#include <algorithm>
#include <cstring>

#include "gate_gradients.h"
#include "gradient_tiles.h"

namespace {

template <class T>
void backward(const Arguments& a) {
    Plan plan(a, true);
    Packed<T> packed(plan, true);
    packed.fill_all(plan);
    using L = Layout<T>;
    bool need_gate = a.d_gate_query != nullptr;
    bool has_power = a.power != 1.0 || a.d_power;
    using G = GradientTiles<T>;
    decltype(&G::template terms<OPEN, true>) terms_of[] = {
        has_power ? &G::template terms<OPEN, true> : &G::template terms<OPEN, false>,
        has_power ? &G::template terms<PER_TERM, true> : &G::template terms<PER_TERM, false>,
        has_power ? &G::template terms<PER_PLACE, true> : &G::template terms<PER_PLACE, false>,
    };
    bool together = plan.is_pairwise() && plan.gate_heads == 1;
    i64 groups = a.heads / a.kv_heads, jobs = a.batch_parts * a.head_parts * a.chunks;
    i64 ld_key = plan.keys + 16;
    i64 key_sum_size = packed.width * ld_key, value_sum_size = packed.value_width * ld_key;
    i64 key_sums = a.batch * a.kv_heads * plan.key_blocks;
    // Sums over rows and keys run in float32, turned, with one copy per chunk of rows: no two jobs write one place.
    Buffer<float> query_sum(a.need_query ? Packed<T>::row_blocks(plan) * packed.query_size : 0);
    Buffer<float> key_sum(a.need_key ? a.chunks * key_sums * key_sum_size : 0);
    Buffer<float> value_sum(a.need_value ? a.chunks * key_sums * value_sum_size : 0);
    bool failed = false;
#pragma omp parallel num_threads(int(std::min(a.threads, jobs)))
    try {
        FlushDenormals flush;
        ThreadTiles<T> amx;
        (void)amx;
        Scratch scratch(plan);
        G tiles(scratch);
#pragma omp for schedule(dynamic) nowait
        for (i64 n = 0; n < jobs; ++n) {
            Job job{n / a.chunks / a.head_parts, n / a.chunks % a.head_parts, n % a.chunks};
            GateGradients gate_gradients(plan, job);
            double power_total = 0.0;
            i64 batch_size = a.batch / a.batch_parts, head_size = a.heads / a.head_parts;
            i64 first_head = job.head_part * head_size, last_head = first_head + head_size;

            auto tile = [&](const Block& block, i64 h, GateTile gate, int gate_mode) {
                i64 qb = (block.b * a.heads + h) * plan.row_blocks + block.row_block;
                i64 kb = (block.b * a.kv_heads + h / groups) * plan.key_blocks + block.key_block;
                i64 rows = sizeof(T) == 4 ? block.rows : block.padded_rows;
                RowFactors factors(plan, block, h);
                product(rows, block.padded_keys, packed.width, packed.query + qb * packed.query_size, packed.width,
                        packed.key_turned + kb * packed.key_turned_size, L::right_turned_step(plan.keys, packed.width),
                        scratch.logits, LD, false);
                float unit = finish_logits(plan, block, h, scratch);
                product(rows, block.padded_keys, packed.value_width, packed.d_context + qb * packed.context_size,
                        packed.value_width, packed.value_turned + kb * packed.value_turned_size,
                        L::right_turned_step(plan.keys, packed.value_width), tiles.d_weight, LD, false);
                auto terms = terms_of[gating_of(gate)];
                power_total +=
                    (tiles.*terms)(block, gate, factors, unit, float(a.power), gate_mode, a.d_bias != nullptr);
                if (a.d_bias)
                    add_rows(block, h, scratch.logits, a.d_bias, a.d_bias_step, job.index(a.d_bias_job));
                i64 step = tiles.step(block.padded_rows), sum = job.chunk * key_sums + kb;
                if (a.need_value)
                    product(packed.value_width, block.padded_keys, rows,
                            packed.d_context_turned + qb * packed.context_turned_size, L::turned_ld(plan.rows),
                            tiles.weight(), step, value_sum + sum * value_sum_size, ld_key, true);
                if (a.need_key)
                    product(packed.width, block.padded_keys, rows, packed.query_turned + qb * packed.query_turned_size,
                            L::turned_ld(plan.rows), tiles.d_logit_pairs(), step, key_sum + sum * key_sum_size, ld_key,
                            true);
                if (a.need_query)
                    product(rows, packed.width, block.padded_keys, tiles.d_logit(), Terms<T>::STEP,
                            packed.key + kb * packed.key_size, L::right_step(plan.keys, packed.width),
                            query_sum + qb * packed.query_size, packed.width, true);
            };

            for (i64 b = job.batch_part * batch_size; b < (job.batch_part + 1) * batch_size; ++b) {
                i64 first_kv = first_head / groups, last_kv = ceil_div(last_head, groups);
                for (i64 h = first_kv; h < last_kv; ++h) {
                    i64 sum = job.chunk * key_sums + (b * a.kv_heads + h) * plan.key_blocks;
                    if (key_sum) std::memset(key_sum + sum * key_sum_size, 0, plan.key_blocks * key_sum_size * 4);
                    if (value_sum)
                        std::memset(value_sum + sum * value_sum_size, 0, plan.key_blocks * value_sum_size * 4);
                }
                for (i64 h = first_head; query_sum && h < last_head; ++h)
                    for (i64 rb = job.chunk; rb < plan.row_blocks; rb += a.chunks)
                        std::memset(query_sum + ((b * a.heads + h) * plan.row_blocks + rb) * packed.query_size, 0,
                                    packed.query_size * 4);
                i64 step = together ? last_head - first_head : 1;
                for (i64 head = first_head; head < last_head; head += step)
                    for (i64 kb = 0; kb < plan.key_blocks; ++kb)
                        for (i64 rb = job.chunk; rb < plan.row_blocks; rb += a.chunks) {
                            Block block(plan, b, rb, kb);
                            if (is_above_diagonal(plan, block)) continue;
                            GateTile gate = build_gate(plan, block, head, scratch);
                            for (i64 h = head; h < head + step; ++h)
                                tile(block, h, gate, need_gate ? (h == head ? 1 : 2) : 0);
                            if (need_gate) gate_gradients.add(block, head, tiles.d_gate, gate);
                        }
            }
            gate_gradients.finish(n);
            if (a.d_power) a.d_power[n] = power_total * double(LN2);
        }
    } catch (...) {
#pragma omp atomic write
        failed = true;
    }
    if (failed) throw 1;

#pragma omp parallel num_threads(int(a.threads))
    try {
        Lanes scale = fill(float(a.scale));
        if (a.need_query) {
            i64 lines = a.batch * a.heads * a.queries;
            Buffer<float> line(packed.width);
#pragma omp for schedule(static) nowait
            for (i64 n = 0; n < lines; ++n) {
                i64 s = n / a.queries, i = n % a.queries;
                const float* from = query_sum + (s * plan.row_blocks * plan.rows + i) * packed.width;
                for (i64 d = 0; d < packed.width; d += 16) store(line + d, _mm512_mul_ps(load(from + d), scale));
                std::memcpy(a.d_query + n * a.width, line, a.width * 4);
            }
        }
        auto turn_back = [&](const float* sums, i64 size, i64 wide, i64 narrow, float factor, float* out, i64 n) {
            // 16 keys at a time through a transposed square.
            i64 s = n / plan.key_blocks, start = n % plan.key_blocks * plan.keys;
            i64 count = std::min(plan.keys, a.keys - start);
            alignas(64) float total[256], square[256];
            for (i64 j = 0; j < count; j += 16)
                for (i64 d = 0; d < wide; d += 16) {
                    for (i64 k = 0; k < 16; ++k) {
                        Lanes x = _mm512_setzero_ps();
                        for (i64 chunk = 0; chunk < a.chunks; ++chunk)
                            x = _mm512_add_ps(x, load(sums + (chunk * key_sums + n) * size + (d + k) * ld_key + j));
                        store(total + k * 16, _mm512_mul_ps(x, fill(factor)));
                    }
                    transpose_words(reinterpret_cast<uint32_t*>(total), 16, reinterpret_cast<uint32_t*>(square), 16);
                    for (i64 k = 0; k < std::min<i64>(16, count - j); ++k)
                        if (d < narrow)
                            std::memcpy(out + (s * a.keys + start + j + k) * narrow + d, square + k * 16,
                                        std::min<i64>(16, narrow - d) * 4);
                }
        };
        if (a.need_key) {
#pragma omp for schedule(static) nowait
            for (i64 n = 0; n < key_sums; ++n)
                turn_back(key_sum, key_sum_size, packed.width, a.width, float(a.scale), a.d_key, n);
        }
        if (a.need_value) {
#pragma omp for schedule(static) nowait
            for (i64 n = 0; n < key_sums; ++n)
                turn_back(value_sum, value_sum_size, packed.value_width, a.value_width, 1.0f, a.d_value, n);
        }
    } catch (...) {
#pragma omp atomic write
        failed = true;
    }
    if (failed) throw 1;
}

}  // namespace
