// The gradients of the terms of one tile, in the layouts in which the backward pass multiplies them.

#pragma once

#include "gates.h"
#include "packing.h"

namespace {

struct RowFactors {
    float lse[ROWS], lse_power[ROWS], row[ROWS], row_power[ROWS], d_mass[ROWS];

    RowFactors(const Plan& plan, const Block& block, i64 h) {
        const Arguments& a = plan.a;
        i64 at = (block.b * a.heads + h) * a.queries + block.row;
        for (i64 i = 0; i < block.padded_rows; ++i) {
            bool exists = i < block.rows;
            // Rows of padding get an infinite normaliser: all their terms are 0.
            lse[i] = exists ? a.lse[at + i] * LOG2E : 1e30f;
            lse_power[i] = exists ? a.lse_power[at + i] * LOG2E : 1e30f;
            row[i] = exists ? a.row[at + i] : 0.0f;
            row_power[i] = exists ? a.row_power[at + i] : 0.0f;
            d_mass[i] = exists && a.d_mass ? a.d_mass[at + i] : 0.0f;
        }
    }
};

// The gradient of one term, 16 at a time.
template <int GATING, bool POWER>
struct TermGradient {
    Lanes lse, lse_power, row, row_power, d_mass, unit, power, power_sum = _mm512_setzero_ps();

    TermGradient(const RowFactors& f, i64 i, float unit_, float power_)
        : lse(fill(f.lse[i])),
          lse_power(fill(f.lse_power[i])),
          row(fill(POWER ? f.row[i] : f.row[i] + f.row_power[i])),
          row_power(fill(f.row_power[i])),
          d_mass(fill(f.d_mass[i])),
          unit(fill(unit_)),
          power(fill(power_)) {}

    // dv_j takes `weight` = g w, the logit `d_logit`, the gate `d_gate`.
    inline void at(Lanes logit, Lanes g, Lanes d_weight, Lanes& weight, Lanes& d_logit, Lanes& d_gate) {
        Lanes attention = exp2_lanes(_mm512_fmsub_ps(logit, unit, lse));
        if (!POWER) {
            Lanes sum = _mm512_add_ps(d_weight, d_mass);
            weight = GATING ? _mm512_mul_ps(attention, g) : attention;
            d_gate = _mm512_mul_ps(attention, sum);
            d_logit = _mm512_mul_ps(attention, GATING ? _mm512_fmadd_ps(g, sum, row) : _mm512_add_ps(sum, row));
        } else {
            // -inf * 0 would be NaN in the gradient of the power.
            Lanes x = _mm512_max_ps(fill(-1e30f), _mm512_fmsub_ps(logit, unit, lse_power));
            Lanes w = exp2_lanes(x), r = exp2_lanes(_mm512_mul_ps(x, power));
            d_gate = _mm512_fmadd_ps(w, d_weight, _mm512_mul_ps(attention, d_mass));
            weight = GATING ? _mm512_mul_ps(w, g) : w;
            d_logit = _mm512_fmadd_ps(attention, row, _mm512_mul_ps(r, row_power));
            d_logit = GATING ? _mm512_fmadd_ps(g, d_gate, d_logit) : _mm512_add_ps(d_gate, d_logit);
            power_sum = _mm512_fmadd_ps(r, x, power_sum);
        }
    }
};

inline void put_d_gate(float* out, Lanes x, bool add) { store(out, add ? _mm512_add_ps(load(out), x) : x); }

template <class T>
struct GradientTiles;

template <>
struct GradientTiles<float> {
    Buffer<float> d_weight{ROWS * LD}, d_gate{ROWS * LD};
    float* logits;
    explicit GradientTiles(Scratch& scratch) : logits(scratch.logits) {}
    const float* weight() const { return d_weight; }
    const float* d_logit() const { return logits; }
    const float* d_logit_pairs() const { return logits; }
    static i64 step(i64) { return LD; }

    template <int GATING, bool POWER>
    double terms(const Block& block, GateTile gate, const RowFactors& f, float unit, float power, int gate_mode,
                 bool) {
        double power_total = 0.0;
        for (i64 i = 0; i < block.rows; ++i) {
            TermGradient<GATING, POWER> term(f, i, unit, power);
            float *line = logits + i * LD, *other = d_weight + i * LD, *gate_line = d_gate + i * LD;
            const GateRow<GATING> g(gate, i);
            for (i64 j = 0; j < block.padded_keys; j += 16) {
                Lanes w, s, d;
                term.at(load(line + j), g.at(j), load(other + j), w, s, d);
                store(other + j, w);
                store(line + j, s);
                if (GATING && gate_mode) put_d_gate(gate_line + j, d, gate_mode == 2);
            }
            if (POWER) power_total += double(f.row_power[i]) * sum_lanes(term.power_sum);
        }
        return power_total;
    }
};

#if WITH_AMX
template <>
struct GradientTiles<Half16> {
    Buffer<float> d_weight{ROWS * LD}, d_gate{ROWS * LD};
    Buffer<uint32_t> weight_pairs{ROWS / 2 * KEYS}, logit_pairs{ROWS / 2 * KEYS};
    Buffer<Half16> logit_rows{ROWS * LD_HALF};
    float* logits;
    explicit GradientTiles(Scratch& scratch) : logits(scratch.logits) {}
    const uint32_t* weight() const { return weight_pairs; }
    const Half16* d_logit() const { return logit_rows; }
    const uint32_t* d_logit_pairs() const { return logit_pairs; }
    static i64 step(i64 rows) { return rows / 2 * 32; }

    // Two rows at a time: the products over rows take them in pairs.
    template <int GATING, bool POWER>
    double terms(const Block& block, GateTile gate, const RowFactors& f, float unit, float power, int gate_mode,
                 bool keep_logits) {
        alignas(64) static const uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                       8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
        const __m512i interleave = _mm512_load_si512(order);
        double power_total = 0.0;
        i64 panel = step(block.padded_rows);
        for (i64 i = 0; i < block.padded_rows; i += 2) {
            TermGradient<GATING, POWER> first(f, i, unit, power), second(f, i + 1, unit, power);
            float *line = logits + i * LD, *other = d_weight + i * LD, *gate_line = d_gate + i * LD;
            const GateRow<GATING> g(gate, i), h(gate, i + 1);
            for (i64 j = 0; j < block.padded_keys; j += 16) {
                Lanes w0, s0, d0, w1, s1, d1;
                first.at(load(line + j), g.at(j), load(other + j), w0, s0, d0);
                second.at(load(line + LD + j), h.at(j), load(other + LD + j), w1, s1, d1);
                i64 at = j / 32 * panel + i / 2 * 32 + j % 32;
                __m512i weights = (__m512i)_mm512_cvtne2ps_pbh(w1, w0), slopes = (__m512i)_mm512_cvtne2ps_pbh(s1, s0);
                _mm512_store_si512(weight_pairs + at, _mm512_permutexvar_epi16(interleave, weights));
                _mm512_store_si512(logit_pairs + at, _mm512_permutexvar_epi16(interleave, slopes));
                auto rows = reinterpret_cast<uint16_t*>(logit_rows + i * LD_HALF + j);
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(rows), _mm512_castsi512_si256(slopes));
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(rows + LD_HALF), _mm512_extracti64x4_epi64(slopes, 1));
                if (GATING && gate_mode) {
                    put_d_gate(gate_line + j, d0, gate_mode == 2);
                    put_d_gate(gate_line + LD + j, d1, gate_mode == 2);
                }
                if (keep_logits) {
                    store(line + j, s0);
                    store(line + LD + j, s1);
                }
            }
            if (POWER)
                power_total += double(f.row_power[i]) * sum_lanes(first.power_sum) +
                               double(f.row_power[i + 1]) * sum_lanes(second.power_sum);
        }
        return power_total;
    }
};
#endif

}  // namespace
