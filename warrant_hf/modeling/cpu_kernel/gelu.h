// GELU by table, for the scores of an mlp gate and their gradients.
//
// gelu(u) = u/2 + E(|u|) and gelu'(u) = 1/2 + sign(u) T(|u|), with E and T cut into pieces of third degree around 0,
// 1, .., 31 steps. The last piece is the asymptote, so that it is exact for every larger |u|.

#pragma once

#include <cmath>

#include "numbers.h"

namespace {

constexpr float GELU_STEPS = 30.5f / 5.4f;

struct GeluTable {
    alignas(64) float even[4][32], slope[4][32];
    GeluTable() {
        for (int piece = 0; piece < 32; ++piece) {
            fit(piece, [](double u) { return 0.5 * u * std::erf(u * std::sqrt(0.5)); }, even);
            fit(piece,
                [](double u) {
                    return 0.5 * std::erf(u * std::sqrt(0.5)) + u * std::exp(-0.5 * u * u) * 0.3989422804014327;
                },
                slope);
        }
        for (int power = 0; power < 4; ++power) even[power][31] = slope[power][31] = 0.0f;
        even[0][31] = 0.5f * 31.0f / GELU_STEPS;
        even[1][31] = 0.5f / GELU_STEPS;
        slope[0][31] = 0.5f;
    }
    // Interpolation at the Chebyshev nodes of [-1/2, 1/2] (of [0, 1/2] for the first piece, as |u| >= 0).
    template <class F>
    static void fit(int piece, F function, float out[4][32]) {
        double low = piece == 0 ? 0.0 : -0.5, x[4], y[4];
        for (int k = 0; k < 4; ++k) {
            x[k] = low + (0.5 - low) * (0.5 - 0.5 * std::cos((2 * k + 1) * 3.141592653589793 / 8));
            y[k] = function((piece + x[k]) / double(GELU_STEPS));
        }
        for (int order = 1; order < 4; ++order)
            for (int k = 3; k >= order; --k) y[k] = (y[k] - y[k - 1]) / (x[k] - x[k - order]);
        double poly[4] = {y[3], 0, 0, 0};
        for (int k = 2; k >= 0; --k) {
            for (int power = 3; power > 0; --power) poly[power] = poly[power - 1] - x[k] * poly[power];
            poly[0] = y[k] - x[k] * poly[0];
        }
        for (int power = 0; power < 4; ++power) out[power][piece] = float(poly[power]);
    }
};

const GeluTable& gelu_table() {
    static const GeluTable table;
    return table;
}

struct Piecewise {
    Lanes low[4], high[4];
    explicit Piecewise(const float table[4][32]) {
        for (int k = 0; k < 4; ++k) low[k] = load(table[k]), high[k] = load(table[k] + 16);
    }
    inline Lanes at(__m512i piece, Lanes x) const {
        Lanes y = _mm512_permutex2var_ps(low[3], piece, high[3]);
        y = _mm512_fmadd_ps(y, x, _mm512_permutex2var_ps(low[2], piece, high[2]));
        y = _mm512_fmadd_ps(y, x, _mm512_permutex2var_ps(low[1], piece, high[1]));
        return _mm512_fmadd_ps(y, x, _mm512_permutex2var_ps(low[0], piece, high[0]));
    }
};

// Splits |u| (in steps) into piece and rest; adding 2^23 leaves the rounded number in the lowest bits.
inline __m512i split_steps(Lanes u, Lanes& rest) {
    const Lanes shift = fill(8388608.0f);
    Lanes size = _mm512_abs_ps(u);
    Lanes moved = _mm512_add_ps(_mm512_min_ps(size, fill(31.0f)), shift);
    rest = _mm512_sub_ps(size, _mm512_sub_ps(moved, shift));
    return _mm512_castps_si512(moved);
}

// out[i][j] = sum_r weight_r E(query_ir + key_rj) + query_line_i + key_line_j.
void pair_scores(i64 rows, i64 keys, i64 rank, const float* query, const float* key, const float* weight,
                 const float* query_line, const float* key_line, float* out, i64 ld) {
    const Piecewise even(gelu_table().even);
    for (i64 i = 0; i < rows; ++i) {
        const float* q = query + i * rank;
        for (i64 j = 0; j < keys; j += 32) {
            Lanes s0 = _mm512_add_ps(fill(query_line[i]), load(key_line + j));
            Lanes s1 = _mm512_add_ps(fill(query_line[i]), load(key_line + j + 16));
            for (i64 r = 0; r < rank; ++r) {
                Lanes left = fill(q[r]), factor = fill(weight[r]), x0, x1;
                __m512i p0 = split_steps(_mm512_add_ps(left, load(key + r * LD + j)), x0);
                __m512i p1 = split_steps(_mm512_add_ps(left, load(key + r * LD + j + 16)), x1);
                s0 = _mm512_fmadd_ps(factor, even.at(p0, x0), s0);
                s1 = _mm512_fmadd_ps(factor, even.at(p1, x1), s1);
            }
            store(out + i * ld + j, s0);
            store(out + i * ld + j + 16, s1);
        }
    }
}

// Given d[i][j] = dpsi_ij, for one r: d_query[i] += sum_j d T and d_key[j] += sum_i d T, T with the sign of the
// argument; the result is sum_ij d E. The caller applies the weight and adds what belongs to u/2, which is separable.
template <bool WEIGHT, int M>
inline Lanes pair_gradient_rows(i64 keys, i64 rank, const Piecewise& slope, const Piecewise& even, const float* query,
                                const float* key, const float* d, i64 ld, float* d_query, float* d_key, Lanes total) {
    const Lanes sign = fill(-0.0f);
    Lanes left[M], mine[M];
    for (int m = 0; m < M; ++m) left[m] = fill(query[m * rank]), mine[m] = _mm512_setzero_ps();
    for (i64 j = 0; j < keys; j += 16) {
        Lanes right = load(key + j), sum = load(d_key + j);
        for (int m = 0; m < M; ++m) {
            Lanes x, u = _mm512_add_ps(left[m], right), up = load(d + m * ld + j);
            __m512i piece = split_steps(u, x);
            Lanes t = _mm512_xor_ps(slope.at(piece, x), _mm512_and_ps(u, sign));
            mine[m] = _mm512_fmadd_ps(up, t, mine[m]);
            sum = _mm512_fmadd_ps(up, t, sum);
            if (WEIGHT) total = _mm512_fmadd_ps(up, even.at(piece, x), total);
        }
        store(d_key + j, sum);
    }
    for (int m = 0; m < M; ++m) d_query[m * rank] += sum_lanes(mine[m]);
    return total;
}

template <bool WEIGHT>
void pair_gradients(i64 rows, i64 keys, i64 rank, const float* query, const float* key, const float* d, i64 ld,
                    float* d_query, float* d_key, float* d_weight) {
    const Piecewise slope(gelu_table().slope), even(gelu_table().even);
    for (i64 r = 0; r < rank; ++r, ++query, ++d_query, key += LD, d_key += LD) {
        Lanes total = _mm512_setzero_ps();
        i64 i = 0;
        for (; i + 2 <= rows; i += 2)
            total = pair_gradient_rows<WEIGHT, 2>(keys, rank, slope, even, query + i * rank, key, d + i * ld, ld,
                                                  d_query + i * rank, d_key, total);
        if (i < rows)
            total = pair_gradient_rows<WEIGHT, 1>(keys, rank, slope, even, query + i * rank, key, d + i * ld, ld,
                                                  d_query + i * rank, d_key, total);
        d_weight[r] = sum_lanes(total);
    }
}

}  // namespace
