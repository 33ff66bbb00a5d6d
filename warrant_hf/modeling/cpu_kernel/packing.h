// How rows enter the matrix products: layouts per element type, and all inputs of a call in these.

#pragma once

#include <algorithm>

#include "plan.h"

namespace {

// 16 x 16 words.
void transpose_words(const uint32_t* in, i64 ld_in, uint32_t* out, i64 ld_out) {
    __m512i r[16], t[16];
    for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_si512(in + i * ld_in);
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; ++i) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
    for (int i = 0; i < 16; ++i) _mm512_storeu_si512(out + i * ld_out, r[i]);
}

// The layouts of one block of rows `[count, wide]` (padded) as they enter the products, for each element type:
//   left         rows as they are                          A of  rows @ ...
//   left_turned  `[wide, count]`                           A of  rows^T @ ...
//   right        rows                                      B of  ... @ rows
//   right_turned `[wide, count]`                           B of  ... @ rows^T
template <class T>
struct Layout;

template <>
struct Layout<float> {
    using Right = float;
    static constexpr i64 WIDTH_STEP = 16;
    static i64 turned_ld(i64 block) { return block + 16; }
    static i64 turned_size(i64 block, i64 wide) { return wide * turned_ld(block); }
    static i64 right_turned_step(i64 block, i64) { return turned_ld(block); }
    static i64 right_step(i64, i64 wide) { return wide; }
    static void left(const float* rows, i64 count, i64 wide, float* out) { std::memcpy(out, rows, count * wide * 4); }
    static void right(const float* rows, i64 count, i64 wide, float* out, uint32_t*) { left(rows, count, wide, out); }
    static void right_turned(const float* rows, i64 block, i64 wide, float* out, uint32_t*) {
        for (i64 j = 0; j < block; j += 16)
            for (i64 d = 0; d < wide; d += 16)
                transpose_words(reinterpret_cast<const uint32_t*>(rows) + j * wide + d, wide,
                                reinterpret_cast<uint32_t*>(out) + d * turned_ld(block) + j, turned_ld(block));
    }
    static void left_turned(const float* rows, i64 block, i64 wide, float* out, uint32_t* scratch) {
        right_turned(rows, block, wide, out, scratch);
    }
};

#if WITH_AMX
template <>
struct Layout<Half16> {
    using Right = uint32_t;
    static constexpr i64 WIDTH_STEP = 32;
    static i64 turned_ld(i64 block) { return block; }
    static i64 turned_size(i64 block, i64 wide) { return wide * block; }
    static i64 right_turned_step(i64, i64 wide) { return wide / 2 * 32; }
    static i64 right_step(i64 block, i64) { return block / 2 * 32; }
    static void left(const float* rows, i64 count, i64 wide, Half16* out) {
        for (i64 k = 0; k < count * wide; k += 16)
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + k), (__m256i)_mm512_cvtneps_pbh(load(rows + k)));
    }
    // Word (i, d) holds rows 2i and 2i + 1 of column d.
    static __m512i pair(const float* rows, i64 wide, i64 i, i64 d) {
        __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(load(rows + 2 * i * wide + d)));
        __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(load(rows + (2 * i + 1) * wide + d)));
        return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
    }
    static void right(const float* rows, i64 block, i64 wide, uint32_t* out, uint32_t*) {
        for (i64 d = 0; d < wide; d += 16)
            for (i64 i = 0; i < block / 2; ++i)
                _mm512_storeu_si512(out + d / 32 * right_step(block, wide) + i * 32 + d % 32, pair(rows, wide, i, d));
    }
    static void right_turned(const float* rows, i64 block, i64 wide, uint32_t* out, uint32_t* scratch) {
        left(rows, block, wide, reinterpret_cast<Half16*>(scratch));
        for (i64 j = 0; j < block; j += 16)
            for (i64 d = 0; d < wide / 2; d += 16)
                transpose_words(scratch + j * wide / 2 + d, wide / 2,
                                out + j / 32 * right_turned_step(block, wide) + d * 32 + j % 32, 32);
    }
    static void left_turned(const float* rows, i64 block, i64 wide, Half16* out, uint32_t* scratch) {
        for (i64 i = 0; i < block / 2; ++i)
            for (i64 d = 0; d < wide; d += 16) _mm512_storeu_si512(scratch + i * wide + d, pair(rows, wide, i, d));
        for (i64 i = 0; i < block / 2; i += 16)
            for (i64 d = 0; d < wide; d += 16)
                transpose_words(scratch + i * wide + d, wide, reinterpret_cast<uint32_t*>(out) + d * (block / 2) + i,
                                block / 2);
    }
};
#endif

template <class T>
struct Terms;
template <>
struct Terms<float> {
    static constexpr i64 STEP = LD;
    static void put(float* out, Lanes x) { store(out, x); }
};
#if WITH_AMX
template <>
struct Terms<Half16> {
    static constexpr i64 STEP = LD_HALF;
    static void put(Half16* out, Lanes x) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), (__m256i)_mm512_cvtneps_pbh(x));
    }
};
#endif

void read_block(const View& v, i64 b, i64 h, i64 start, i64 end, i64 size, i64 narrow, i64 wide, float* out) {
    for (i64 i = 0; i < size; ++i, out += wide) {
        i64 have = start + i < end ? narrow : 0;
        if (have) read(v, offset_of(v, b, h, start + i), 0, narrow, out);
        std::fill(out + have, out + wide, 0.0f);
    }
}

// A block of float32, and what turning it needs; one for each thread.
template <class T>
struct Workbench {
    Buffer<float> block;
    Buffer<uint32_t> scratch;
    explicit Workbench(const Plan& plan)
        : block(size(plan)), scratch(size(plan)) {}
    static i64 size(const Plan& plan) {
        i64 widest = round_up(std::max(plan.a.width, plan.a.value_width), Layout<T>::WIDTH_STEP);
        return std::max(plan.rows, plan.keys) * widest;
    }
};

// `count` blocks of queries, and in the backward pass of the gradients of their context.
template <class T>
struct PackedRows {
    using L = Layout<T>;
    const Plan& plan;
    i64 width, value_width, query_size, context_size, query_turned_size, context_turned_size;
    Buffer<T> query, query_turned, context, context_turned;

    PackedRows(const Plan& p, i64 count, bool backward)
        : plan(p),
          width(round_up(p.a.width, L::WIDTH_STEP)),
          value_width(round_up(p.a.value_width, L::WIDTH_STEP)),
          query_size(p.rows * width),
          context_size(p.rows * value_width),
          query_turned_size(L::turned_size(p.rows, width)),
          context_turned_size(L::turned_size(p.rows, value_width)),
          query(count * query_size),
          query_turned(backward ? count * query_turned_size : 0),
          context(backward ? count * context_size : 0),
          context_turned(backward ? count * context_turned_size : 0) {}

    // Block `rb` of a head becomes the block `at` here.
    void put(i64 b, i64 h, i64 rb, i64 at, const Workbench<T>& bench) {
        const Arguments& a = plan.a;
        i64 start = rb * plan.rows;
        read_block(a.query, b, h, start, a.queries, plan.rows, a.width, width, bench.block);
        L::left(bench.block, plan.rows, width, query + at * query_size);
        if (!query_turned) return;
        L::left_turned(bench.block, plan.rows, width, query_turned + at * query_turned_size, bench.scratch);
        read_block(a.d_context, b, h, start, a.queries, plan.rows, a.value_width, value_width, bench.block);
        L::left(bench.block, plan.rows, value_width, context + at * context_size);
        L::left_turned(bench.block, plan.rows, value_width, context_turned + at * context_turned_size, bench.scratch);
    }
};

// `count` blocks of keys and values.
template <class T>
struct PackedKeys {
    using L = Layout<T>;
    using Right = typename L::Right;
    const Plan& plan;
    i64 width, value_width, key_turned_size, value_turned_size, key_size, value_size;
    Buffer<Right> key_turned, value_turned, key, value;

    static i64 words(i64 count) { return sizeof(T) == 4 ? count : count / 2; }

    PackedKeys(const Plan& p, i64 count, bool backward)
        : plan(p),
          width(round_up(p.a.width, L::WIDTH_STEP)),
          value_width(round_up(p.a.value_width, L::WIDTH_STEP)),
          key_turned_size(words(L::turned_size(p.keys, width))),
          value_turned_size(words(L::turned_size(p.keys, value_width))),
          key_size(words(p.keys * width)),
          value_size(words(p.keys * value_width)),
          key_turned(count * key_turned_size),
          value_turned(backward ? count * value_turned_size : 0),
          key(backward ? count * key_size : 0),
          value(backward ? 0 : count * value_size) {}

    void put(i64 b, i64 h, i64 kb, i64 at, const Workbench<T>& bench) {
        const Arguments& a = plan.a;
        i64 start = kb * plan.keys;
        read_block(a.key, b, h, start, a.keys, plan.keys, a.width, width, bench.block);
        L::right_turned(bench.block, plan.keys, width, key_turned + at * key_turned_size, bench.scratch);
        if (key) L::right(bench.block, plan.keys, width, key + at * key_size, bench.scratch);
        read_block(a.value, b, h, start, a.keys, plan.keys, a.value_width, value_width, bench.block);
        if (value) L::right(bench.block, plan.keys, value_width, value + at * value_size, bench.scratch);
        if (value_turned)
            L::right_turned(bench.block, plan.keys, value_width, value_turned + at * value_turned_size, bench.scratch);
    }
};

// All keys, and all rows unless `rows` is null.
template <class T>
void pack_all(const Plan& plan, PackedRows<T>* rows, PackedKeys<T>& keys) {
    const Arguments& a = plan.a;
    i64 row_count = rows ? a.batch * a.heads * plan.row_blocks : 0, key_count = a.batch * a.kv_heads * plan.key_blocks;
    bool failed = false;
#pragma omp parallel num_threads(int(a.threads))
    try {
        FlushDenormals flush;
        Workbench<T> bench(plan);
#pragma omp for schedule(static) nowait
        for (i64 n = 0; n < row_count; ++n) {
            i64 s = n / plan.row_blocks;
            rows->put(s / a.heads, s % a.heads, n % plan.row_blocks, n, bench);
        }
#pragma omp for schedule(static) nowait
        for (i64 n = 0; n < key_count; ++n) {
            i64 s = n / plan.key_blocks;
            keys.put(s / a.kv_heads, s % a.kv_heads, n % plan.key_blocks, n, bench);
        }
    } catch (...) {
#pragma omp atomic write
        failed = true;
    }
    if (failed) throw 1;
}

}  // namespace
