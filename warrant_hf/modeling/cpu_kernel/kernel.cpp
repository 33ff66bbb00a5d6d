// Attention with a permission per term, a bias and an L_p normaliser on the CPU (AVX-512, AMX): forward and backward.
// attention_cpu.py compiles this file with the headers beside it at first use and calls the functions at its end.
//
//     s_ij = scale q_i.k_j + bias_ij     lse_i = log sum_j exp(s_ij)     lse_power_i = log(sum_j exp(p s_ij)) / p
//     a_ij = exp(s_ij - lse_i)           w_ij = exp(s_ij - lse_power_i)  r_ij = exp(p (s_ij - lse_power_i))
//     context_i = sum_j g_ij w_ij v_j    mass_i = sum_j g_ij a_ij
//     dg_ij = w_ij (dcontext_i.v_j) + a_ij dmass_i
//     ds_ij = g_ij dg_ij + a_ij row_i + r_ij row_power_i
//
// No header of PyTorch is included: those take longer to compile than everything here.
//
// Rows of logits live in a scratch tile of at most ROWS x KEYS terms, in units of log 2, because the hardware scales
// by powers of two. Lengths and widths are padded with zeros up to the steps of the matrix products, so that none
// of these has an edge; a term that does not exist becomes -inf before the exponential and hence exactly 0.
//
// Loops inside parallel regions have no barrier: a thread that finds no memory leaves and nobody waits for it.

#include "backward.h"
#include "forward.h"

extern "C" {

// 1 if products of bfloat16 run in hardware tiles.
int warrant_has_amx() {
#if WITH_AMX
    return amx_allowed();
#else
    return 0;
#endif
}

int64_t warrant_row_block() { return ROWS; }

// Both return 0, or 1 if memory ran out.
int warrant_forward(const Arguments* arguments) {
    try {
#if WITH_AMX
        if (arguments->use_half) {
            forward<Half16>(*arguments);
            return 0;
        }
#endif
        forward<float>(*arguments);
        return 0;
    } catch (...) {
        return 1;
    }
}

int warrant_backward(const Arguments* arguments) {
    try {
#if WITH_AMX
        if (arguments->use_half) {
            backward<Half16>(*arguments);
            return 0;
        }
#endif
        backward<float>(*arguments);
        return 0;
    } catch (...) {
        return 1;
    }
}
}
