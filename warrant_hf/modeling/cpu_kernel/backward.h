// The backward pass: jobs that write to no common place, and then the sums over their copies.

#pragma once

#include <algorithm>
#include <cstring>

#include "gate_gradients.h"
#include "gradient_tiles.h"

namespace {

// Sums over rows and keys run in float32; those of keys and values are turned, `[width, keys]`. They end here.
struct Finish {
    const Plan& plan;
    i64 width, value_width, ld_key, query_size, key_size, value_size;

    Finish(const Plan& p, i64 wide, i64 value_wide)
        : plan(p),
          width(wide),
          value_width(value_wide),
          ld_key(p.keys + 16),
          query_size(p.rows * wide),
          key_size(wide * ld_key),
          value_size(value_wide * ld_key) {}

    // One block of queries of head `s`.
    void queries(float* sum, i64 s, i64 rb) const {
        const Arguments& a = plan.a;
        Lanes scale = fill(float(a.scale));
        i64 start = rb * plan.rows, count = std::min(plan.rows, a.queries - start);
        for (i64 i = 0; i < count; ++i, sum += width) {
            for (i64 d = 0; d < width; d += 16) store(sum + d, _mm512_mul_ps(load(sum + d), scale));
            write(a.d_query, a.out_type, (s * a.queries + start + i) * a.width, sum, a.width);
        }
    }

    // One block of keys of key head `s`, from `copies` sums that lie `step` apart.
    void keys(const float* sum, i64 copies, i64 step, i64 s, i64 kb) const {
        turn_back(sum, copies, step, width, plan.a.width, float(plan.a.scale), plan.a.d_key, s, kb);
    }
    void values(const float* sum, i64 copies, i64 step, i64 s, i64 kb) const {
        turn_back(sum, copies, step, value_width, plan.a.value_width, 1.0f, plan.a.d_value, s, kb);
    }

    // 16 keys at a time through a transposed square.
    void turn_back(const float* sum, i64 copies, i64 step, i64 wide, i64 narrow, float factor, void* out, i64 s,
                   i64 kb) const {
        i64 start = kb * plan.keys, count = std::min(plan.keys, plan.a.keys - start);
        alignas(64) float total[256], square[256];
        for (i64 j = 0; j < count; j += 16)
            for (i64 d = 0; d < narrow; d += 16) {
                for (i64 k = 0; k < 16; ++k) {
                    Lanes x = _mm512_setzero_ps();
                    for (i64 copy = 0; copy < copies; ++copy)
                        x = _mm512_add_ps(x, load(sum + copy * step + (d + k) * ld_key + j));
                    store(total + k * 16, _mm512_mul_ps(x, fill(factor)));
                }
                transpose_words(reinterpret_cast<uint32_t*>(total), 16, reinterpret_cast<uint32_t*>(square), 16);
                for (i64 k = 0; k < std::min<i64>(16, count - j); ++k)
                    write(out, plan.a.out_type, (s * plan.a.keys + start + j + k) * narrow + d, square + k * 16,
                          std::min<i64>(16, narrow - d));
            }
    }
};

template <class T>
void backward(const Arguments& a) {
    Plan plan(a, true);
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
    // Where a job has all rows of a head to itself, it needs memory for that one only: packed inputs and sums of one
    // head per thread. Otherwise they exist for all heads, sums of keys with a copy per chunk of rows.
    bool by_head = a.chunks == 1 && !together;
    i64 all_rows = a.batch * a.heads * plan.row_blocks, all_keys = a.batch * a.kv_heads * plan.key_blocks;
    auto shared = [&](i64 count) { return by_head ? 0 : count; };
    PackedRows<T> shared_rows(plan, shared(all_rows), true);
    PackedKeys<T> shared_keys(plan, shared(all_keys), true);
    Finish finish(plan, shared_rows.width, shared_rows.value_width);
    Buffer<float> shared_query_sum(a.need_query ? shared(all_rows * finish.query_size) : 0);
    Buffer<float> shared_key_sum(a.need_key ? shared(a.chunks * all_keys * finish.key_size) : 0);
    Buffer<float> shared_value_sum(a.need_value ? shared(a.chunks * all_keys * finish.value_size) : 0);
    if (!by_head) pack_all<T>(plan, &shared_rows, shared_keys);
    bool failed = false;
#pragma omp parallel num_threads(int(std::min(a.threads, jobs)))
    try {
        FlushDenormals flush;
        ThreadTiles<T> amx;
        (void)amx;
        Scratch scratch(plan);
        G tiles(scratch);
        i64 own_rows = by_head ? plan.row_blocks : 0, own_keys = by_head ? plan.key_blocks : 0;
        PackedRows<T> own_packed_rows(plan, own_rows, true);
        PackedKeys<T> own_packed_keys(plan, own_keys, true);
        Workbench<T> bench(plan);
        Buffer<float> own_query_sum(a.need_query ? own_rows * finish.query_size : 0);
        Buffer<float> own_key_sum(a.need_key ? own_keys * finish.key_size : 0);
        Buffer<float> own_value_sum(a.need_value ? own_keys * finish.value_size : 0);
        PackedRows<T>& packed = by_head ? own_packed_rows : shared_rows;
        PackedKeys<T>& packed_keys = by_head ? own_packed_keys : shared_keys;
        float* query_sum = by_head ? own_query_sum : shared_query_sum;
        float* key_sum = by_head ? own_key_sum : shared_key_sum;
        float* value_sum = by_head ? own_value_sum : shared_value_sum;
#pragma omp for schedule(dynamic) nowait
        for (i64 n = 0; n < jobs; ++n) {
            Job job{n / a.chunks / a.head_parts, n / a.chunks % a.head_parts, n % a.chunks};
            GateGradients gate_gradients(plan, job);
            double power_total = 0.0;
            i64 batch_size = a.batch / a.batch_parts, head_size = a.heads / a.head_parts;
            i64 first_head = job.head_part * head_size, last_head = first_head + head_size;
            // Where the blocks of a head begin, in what is packed and in the sums.
            auto rows_at = [&](i64 b, i64 h) { return by_head ? 0 : (b * a.heads + h) * plan.row_blocks; };
            auto keys_at = [&](i64 b, i64 kv) { return by_head ? 0 : (b * a.kv_heads + kv) * plan.key_blocks; };
            auto key_sums_at = [&](i64 b, i64 kv) { return job.chunk * all_keys + keys_at(b, kv); };

            auto tile = [&](const Block& block, i64 h, GateTile gate, int gate_mode) {
                i64 qb = rows_at(block.b, h) + block.row_block, kb = keys_at(block.b, h / groups) + block.key_block;
                i64 rows = sizeof(T) == 4 ? block.rows : block.padded_rows;
                RowFactors factors(plan, block, h);
                product(rows, block.padded_keys, packed.width, packed.query + qb * packed.query_size, packed.width,
                        packed_keys.key_turned + kb * packed_keys.key_turned_size,
                        L::right_turned_step(plan.keys, packed.width), scratch.logits, LD, false);
                float unit = finish_logits(plan, block, h, scratch);
                product(rows, block.padded_keys, packed.value_width, packed.context + qb * packed.context_size,
                        packed.value_width, packed_keys.value_turned + kb * packed_keys.value_turned_size,
                        L::right_turned_step(plan.keys, packed.value_width), tiles.d_weight, LD, false);
                auto terms = terms_of[gating_of(gate)];
                power_total +=
                    (tiles.*terms)(block, gate, factors, unit, float(a.power), gate_mode, a.d_bias != nullptr);
                if (a.d_bias)
                    add_rows(block, h, scratch.logits, a.d_bias, a.d_bias_step, job.index(a.d_bias_job));
                i64 step = tiles.step(block.padded_rows);
                i64 sum = key_sums_at(block.b, h / groups) + block.key_block;
                if (a.need_value)
                    product(packed.value_width, block.padded_keys, rows,
                            packed.context_turned + qb * packed.context_turned_size, L::turned_ld(plan.rows),
                            tiles.weight(), step, value_sum + sum * finish.value_size, finish.ld_key, true);
                if (a.need_key)
                    product(packed.width, block.padded_keys, rows, packed.query_turned + qb * packed.query_turned_size,
                            L::turned_ld(plan.rows), tiles.d_logit_pairs(), step, key_sum + sum * finish.key_size,
                            finish.ld_key, true);
                if (a.need_query)
                    product(rows, packed.width, block.padded_keys, tiles.d_logit(), Terms<T>::STEP,
                            packed_keys.key + kb * packed_keys.key_size, L::right_step(plan.keys, packed.width),
                            query_sum + qb * finish.query_size, packed.width, true);
            };
            auto begin_keys = [&](i64 b, i64 kv) {
                i64 sum = key_sums_at(b, kv);
                if (a.need_key) std::memset(key_sum + sum * finish.key_size, 0, plan.key_blocks * finish.key_size * 4);
                if (a.need_value)
                    std::memset(value_sum + sum * finish.value_size, 0, plan.key_blocks * finish.value_size * 4);
                for (i64 kb = 0; by_head && kb < plan.key_blocks; ++kb) packed_keys.put(b, kv, kb, kb, bench);
            };
            auto begin_rows = [&](i64 b, i64 h) {
                for (i64 rb = job.chunk; rb < plan.row_blocks; rb += a.chunks) {
                    if (by_head) packed.put(b, h, rb, rb, bench);
                    if (a.need_query)
                        std::memset(query_sum + (rows_at(b, h) + rb) * finish.query_size, 0, finish.query_size * 4);
                }
            };

            for (i64 b = job.batch_part * batch_size; b < (job.batch_part + 1) * batch_size; ++b) {
                i64 step = together ? last_head - first_head : 1;
                for (i64 head = first_head; head < last_head; head += step) {
                    for (i64 h = head; h < head + step; ++h) {
                        if (h % groups == 0) begin_keys(b, h / groups);
                        begin_rows(b, h);
                    }
                    for (i64 kb = 0; kb < plan.key_blocks; ++kb)
                        for (i64 rb = job.chunk; rb < plan.row_blocks; rb += a.chunks) {
                            Block block(plan, b, rb, kb);
                            if (is_above_diagonal(plan, block)) continue;
                            GateTile gate = build_gate(plan, block, head, scratch);
                            for (i64 h = head; h < head + step; ++h)
                                tile(block, h, gate, need_gate ? (h == head ? 1 : 2) : 0);
                            if (need_gate) gate_gradients.add(block, head, tiles.d_gate, gate);
                        }
                    if (!by_head) continue;
                    for (i64 rb = 0; a.need_query && rb < plan.row_blocks; ++rb)
                        finish.queries(query_sum + rb * finish.query_size, b * a.heads + head, rb);
                    for (i64 kb = 0; (head + 1) % groups == 0 && kb < plan.key_blocks; ++kb) {
                        i64 kv = b * a.kv_heads + head / groups;
                        if (a.need_key) finish.keys(key_sum + kb * finish.key_size, 1, 0, kv, kb);
                        if (a.need_value) finish.values(value_sum + kb * finish.value_size, 1, 0, kv, kb);
                    }
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
    if (by_head) return;

#pragma omp parallel num_threads(int(a.threads))
    {
        i64 rows = a.need_query ? all_rows : 0;
#pragma omp for schedule(static) nowait
        for (i64 n = 0; n < rows; ++n)
            finish.queries(shared_query_sum + n * finish.query_size, n / plan.row_blocks, n % plan.row_blocks);
#pragma omp for schedule(static) nowait
        for (i64 n = 0; n < all_keys; ++n) {
            i64 kv = n / plan.key_blocks, kb = n % plan.key_blocks;
            i64 key_step = all_keys * finish.key_size, value_step = all_keys * finish.value_size;
            if (a.need_key) finish.keys(shared_key_sum + n * finish.key_size, a.chunks, key_step, kv, kb);
            if (a.need_value) finish.values(shared_value_sum + n * finish.value_size, a.chunks, value_step, kv, kb);
        }
    }
}

}  // namespace
