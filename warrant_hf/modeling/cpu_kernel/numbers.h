// Sixteen numbers at a time: the exponential and the sigmoid, and numbers of each dtype in and out of memory.

#pragma once

#include <limits>

#include "machine.h"

namespace {

using Lanes = __m512;

constexpr float LOG2E = 1.4426950408889634f;
constexpr float LN2 = 0.6931471805599453f;
constexpr float NONE = -std::numeric_limits<float>::infinity();

struct Half16 {
    uint16_t bits;
};

inline Lanes fill(float x) { return _mm512_set1_ps(x); }
inline Lanes load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Lanes x) { _mm512_storeu_ps(p, x); }

// 2^x to 1e-7 relative; exactly 0 below the range of float32, also for -inf.
inline Lanes exp2_lanes(Lanes x) {
    x = _mm512_max_ps(fill(-200.0f), x);
    Lanes n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    Lanes f = _mm512_sub_ps(x, n);
    Lanes y = fill(1.3400711e-3f);
    y = _mm512_fmadd_ps(y, f, fill(9.6706459e-3f));
    y = _mm512_fmadd_ps(y, f, fill(5.5503272e-2f));
    y = _mm512_fmadd_ps(y, f, fill(2.4022107e-1f));
    y = _mm512_fmadd_ps(y, f, fill(6.9314721e-1f));
    y = _mm512_fmadd_ps(y, f, fill(1.0f));
    return _mm512_scalef_ps(y, n);
}

inline Lanes sigmoid_lanes(Lanes x) {
    // The maximum is its second argument if one of them is NaN, which shall not become a number.
    Lanes e = exp2_lanes(_mm512_mul_ps(_mm512_max_ps(fill(-87.0f), x), fill(-LOG2E)));
    return _mm512_div_ps(fill(1.0f), _mm512_add_ps(fill(1.0f), e));
}

inline float sum_lanes(Lanes x) { return _mm512_reduce_add_ps(x); }

inline float half_to_float(uint16_t bits) { return _cvtsh_ss(bits); }

inline float bfloat_to_float(uint16_t bits) {
    uint32_t wide = uint32_t(bits) << 16;
    float x;
    std::memcpy(&x, &wide, 4);
    return x;
}

// `count` numbers of the last axis, from `start` on.
void read(const View& v, i64 at, i64 start, i64 count, float* out) {
    i64 step = v.step[3];
    at += start * step;
    if (v.type == FLOAT) {
        const float* p = static_cast<const float*>(v.data) + at;
        if (step == 1) {
            std::memcpy(out, p, count * sizeof(float));
        } else {
            for (i64 j = 0; j < count; ++j) out[j] = p[j * step];
        }
    } else if (v.type == DOUBLE) {
        const double* p = static_cast<const double*>(v.data) + at;
        for (i64 j = 0; j < count; ++j) out[j] = float(p[j * step]);
    } else {
        const uint16_t* p = static_cast<const uint16_t*>(v.data) + at;
        i64 j = 0;
        if (step == 1) {
            for (; j + 16 <= count; j += 16) {
                __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + j));
                store(out + j, v.type == HALF ? _mm512_cvtph_ps(x)
                                              : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)));
            }
        }
        for (; j < count; ++j) out[j] = v.type == HALF ? half_to_float(p[j * step]) : bfloat_to_float(p[j * step]);
    }
}

// To nearest, ties to even; NaN stays NaN.
inline __m256i to_bfloat(Lanes x) {
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __m512i high = _mm512_srli_epi32(rounded, 16);
    high = _mm512_mask_mov_epi32(high, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc0));
    return _mm512_cvtepi32_epi16(high);
}

void write(void* out, i64 type, i64 at, const float* x, i64 count) {
    if (type == FLOAT) {
        std::memcpy(static_cast<float*>(out) + at, x, count * sizeof(float));
        return;
    }
    uint16_t* p = static_cast<uint16_t*>(out) + at;
    for (i64 j = 0; j < count; j += 16) {
        __mmask16 exists = __mmask16(count - j >= 16 ? 0xffff : (1u << (count - j)) - 1);
        Lanes line = _mm512_maskz_loadu_ps(exists, x + j);
        _mm256_mask_storeu_epi16(p + j, exists, type == HALF ? _mm512_cvtps_ph(line, 0) : to_bfloat(line));
    }
}

}  // namespace
