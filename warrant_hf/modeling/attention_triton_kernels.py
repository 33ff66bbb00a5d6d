"""Evidence attention on a GPU: what all Triton kernels do with a tile, and the kernel of the forward pass.

`attention_triton` prepares the arguments. There are three kernels, and nothing of shape [Q, K] leaves a tile unless a
gradient of that shape is asked for:

    forward   one program per query tile, one pass over the keys, online softmax with a second sum for p != 1
    dq        one program per query tile, one pass over the keys: gradients that belong to queries
    dkv       one program per key tile, one pass over the queries of each head: gradients that belong to keys

The last two are in `attention_triton_gradients`.

Logits are kept in units of log 2 inside, natural logarithms outside. `b_*` are block values, `p_*` pointers, `o_*`
offsets, `m_*` masks, `s_*` strides. The offset of a head is int64, because [B, H, Q, K] outgrows int32 early; offsets
inside a head are int64 only if `WIDE`, because they cost twice the registers. The helpers take the row index i and the
key index j of a tile with a broadcast axis each, so they serve [BLOCK_M, BLOCK_N] tiles and the transposed tiles of
`dkv` alike.
"""

from __future__ import annotations

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

if triton is not None:
    LOG2E = tl.constexpr(1.4426950408889634)
    LN2 = tl.constexpr(0.6931471805599453)
    SQRT_HALF = tl.constexpr(0.7071067811865476)

    HEURISTICS = {
        "HAS_KEEP": lambda args: args["keep"] is not None,
        "HAS_BIAS": lambda args: args["bias"] is not None,
        "EVEN": lambda args: args["Q"] % args["BLOCK_M"] == 0 and args["K"] % args["BLOCK_N"] == 0,
    }

    @triton.jit
    def _offsets(start, SIZE: tl.constexpr, WIDE: tl.constexpr):
        o = start + tl.arange(0, SIZE)
        if WIDE:
            o = o.to(tl.int64)
        return o

    @triton.jit
    def _load_rows(base, o, o_d, s_o, s_d, size, width):
        """`[len(o), len(o_d)]` rows of a matrix, 0 outside."""
        mask = (o[:, None] < size) & (o_d[None, :] < width)
        return tl.load(base + o[:, None] * s_o + o_d[None, :] * s_d, mask=mask, other=0.0)

    @triton.jit
    def _load_pairs(base, i, j, Q, K, s_i, s_j, PER_ROW: tl.constexpr):
        """A tile of a `[Q, K]` tensor, or the `[1, K]` one that all rows share; 0 outside."""
        if PER_ROW:
            b_x = tl.load(base + i * s_i + j * s_j, mask=(i < Q) & (j < K), other=0)
        else:
            b_x = tl.load(base + j * s_j, mask=j < K, other=0)
        return b_x

    @triton.jit
    def _finish_logits(
        b_s, bias, keep, i, j, Q, K, s_biasm, s_biasn, s_keepm, s_keepn,
        HAS_BIAS: tl.constexpr, BIAS_ROWS: tl.constexpr, HAS_KEEP: tl.constexpr, KEEP_ROWS: tl.constexpr,
        IS_CAUSAL: tl.constexpr, EVEN: tl.constexpr,
    ):  # fmt: skip
        """Adds the bias to scaled dot products; -inf where no term exists."""
        if HAS_BIAS:
            b_s += _load_pairs(bias, i, j, Q, K, s_biasm, s_biasn, BIAS_ROWS).to(tl.float32) * LOG2E
        if HAS_KEEP:
            b_s = tl.where(_load_pairs(keep, i, j, Q, K, s_keepm, s_keepn, KEEP_ROWS) != 0, b_s, float("-inf"))
        if IS_CAUSAL:
            b_s = tl.where(j <= i + (K - Q), b_s, float("-inf"))
        if not EVEN:
            b_s = tl.where((i < Q) & (j < K), b_s, float("-inf"))
        return b_s

    @triton.jit
    def _normal_cdf(x):
        return 0.5 + 0.5 * tl.erf(x * SQRT_HALF)

    @triton.jit
    def _sigmoid(x):
        return 1.0 / (1.0 + tl.exp2(x * -LOG2E))

    @triton.jit
    def _gate(
        b_psi, gate_a, gate_b, gate_weight, gate_offset, i, j, Q, K, s_am, s_ar, s_bn, s_br, leak,
        KIND: tl.constexpr, ROWS: tl.constexpr, R: tl.constexpr,
    ):  # fmt: skip
        """Permission of a tile and, where the gate is learned, its sigmoid. `b_psi`: low_rank products or zeros."""
        if KIND == "tensor":
            b_g = _load_pairs(gate_a, i, j, Q, K, s_am, s_ar, ROWS).to(tl.float32)
            b_sigmoid = b_g
        elif KIND == "item":
            o_item = tl.load(gate_b + j * s_bn, mask=j < K, other=0).to(j.dtype)
            first = tl.min(o_item)
            # Items come in runs: most tiles need one value per row and no gather.
            if first == tl.max(o_item):
                b_row = tl.load(gate_a + i * s_am + first * s_ar, mask=i < Q, other=0.0).to(tl.float32)
                b_g = tl.zeros_like(b_psi) + b_row
            else:
                b_g = tl.load(gate_a + i * s_am + o_item * s_ar, mask=(i < Q) & (j < K), other=0.0).to(tl.float32)
            b_sigmoid = b_g
        else:
            tl.static_assert(KIND == "mlp" or KIND == "low_rank")
            if KIND == "mlp":
                for r in range(R):
                    x = tl.load(gate_a + i * s_am + r * s_ar, mask=i < Q, other=0.0).to(tl.float32)
                    x = x + tl.load(gate_b + j * s_bn + r * s_br, mask=j < K, other=0.0).to(tl.float32)
                    b_psi += tl.load(gate_weight + r).to(tl.float32) * x * _normal_cdf(x)
            b_sigmoid = _sigmoid(b_psi + tl.load(gate_offset).to(tl.float32))
            b_g = leak + (1.0 - leak) * b_sigmoid
        return b_g, b_sigmoid

    @triton.heuristics(HEURISTICS)
    @triton.jit
    def evidence_attention_fwd_kernel(
        q, k, v, keep, bias, gate_a, gate_b, gate_weight, gate_offset, context, mass, lse, lse_power,
        s_qb, s_qh, s_qm, s_qd, s_kb, s_kh, s_kn, s_kd, s_vb, s_vh, s_vn, s_vd,
        s_keepb, s_keeph, s_keepm, s_keepn, s_biasb, s_biash, s_biasm, s_biasn,
        s_ab, s_ah, s_am, s_ar, s_bb, s_bh, s_bn, s_br,
        num_heads, Q, K, scale_log2e, power, leak,
        GROUPS: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, R: tl.constexpr, GATE_KIND: tl.constexpr,
        GATE_ROWS: tl.constexpr, BIAS_ROWS: tl.constexpr, KEEP_ROWS: tl.constexpr, IS_CAUSAL: tl.constexpr,
        POWER_IS_ONE: tl.constexpr, NEED_MASS: tl.constexpr,
        WIDE: tl.constexpr, HAS_KEEP: tl.constexpr, HAS_BIAS: tl.constexpr, EVEN: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
        BLOCK_R: tl.constexpr,
    ):  # fmt: skip
        tl.static_assert(BLOCK_D >= D and BLOCK_DV >= DV)
        pid = tl.program_id(0)
        num_tiles = tl.cdiv(Q, BLOCK_M)
        i_m, i_bh = pid % num_tiles, (pid // num_tiles).to(tl.int64)
        i_b, i_h = i_bh // num_heads, i_bh % num_heads
        i_kv = i_h // GROUPS
        o_m = _offsets(i_m * BLOCK_M, BLOCK_M, WIDE)
        o_d, o_dv = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
        m_m = o_m < Q
        i = o_m[:, None]

        p_k, p_v = k + i_b * s_kb + i_kv * s_kh, v + i_b * s_vb + i_kv * s_vh
        if HAS_KEEP:
            keep += i_b * s_keepb + i_h * s_keeph
        if HAS_BIAS:
            bias += i_b * s_biasb + i_h * s_biash
        if GATE_KIND != "none":
            gate_a += i_b * s_ab + i_h * s_ah
        if GATE_KIND == "item" or GATE_KIND == "mlp" or GATE_KIND == "low_rank":
            gate_b += i_b * s_bb + i_h * s_bh

        b_q = _load_rows(q + i_b * s_qb + i_h * s_qh, o_m, o_d, s_qm, s_qd, Q, D)  # [BLOCK_M, BLOCK_D]
        if GATE_KIND == "low_rank":
            o_r = tl.arange(0, BLOCK_R)
            b_gq = _load_rows(gate_a, o_m, o_r, s_am, s_ar, Q, R)  # [BLOCK_M, BLOCK_R]
        b_max = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
        b_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
        b_sum_power = tl.zeros([BLOCK_M], dtype=tl.float32)
        b_mass = tl.zeros([BLOCK_M], dtype=tl.float32)
        b_o = tl.zeros([BLOCK_M, BLOCK_DV], dtype=tl.float32)

        end = K
        if IS_CAUSAL:
            end = tl.minimum(K, (i_m + 1) * BLOCK_M + K - Q)
        for start in range(0, end, BLOCK_N):
            o_n = _offsets(start, BLOCK_N, WIDE)
            j = o_n[None, :]
            b_k = _load_rows(p_k, o_n, o_d, s_kn, s_kd, K, D)  # [BLOCK_N, BLOCK_D]
            b_s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale_log2e  # [BLOCK_M, BLOCK_N]
            b_s = _finish_logits(
                b_s, bias, keep, i, j, Q, K, s_biasm, s_biasn, s_keepm, s_keepn,
                HAS_BIAS, BIAS_ROWS, HAS_KEEP, KEEP_ROWS, IS_CAUSAL, EVEN,
            )  # fmt: skip

            b_max_new = tl.maximum(b_max, tl.max(b_s, 1))
            # A row that has met no key yet would otherwise compute -inf - -inf.
            b_pivot = tl.where(b_max_new == float("-inf"), 0.0, b_max_new)
            b_shrink = tl.exp2(b_max - b_pivot)
            b_p = tl.exp2(b_s - b_pivot[:, None])
            b_sum = b_sum * b_shrink + tl.sum(b_p, 1)
            if not POWER_IS_ONE:
                b_sum_power *= tl.exp2(power * (b_max - b_pivot))
                b_sum_power += tl.sum(tl.exp2(power * (b_s - b_pivot[:, None])), 1)
            if GATE_KIND != "none":
                b_psi = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
                if GATE_KIND == "low_rank":
                    b_gk = _load_rows(gate_b, o_n, o_r, s_bn, s_br, K, R)  # [BLOCK_N, BLOCK_R]
                    b_psi = tl.dot(b_gq, tl.trans(b_gk), input_precision="ieee")
                b_g, _ = _gate(
                    b_psi, gate_a, gate_b, gate_weight, gate_offset, i, j, Q, K, s_am, s_ar, s_bn, s_br, leak,
                    GATE_KIND, GATE_ROWS, R,
                )  # fmt: skip
                b_p *= b_g
            if NEED_MASS:
                b_mass = b_mass * b_shrink + tl.sum(b_p, 1)
            b_v = _load_rows(p_v, o_n, o_dv, s_vn, s_vd, K, DV)  # [BLOCK_N, BLOCK_DV]
            b_o = tl.dot(b_p.to(b_v.dtype), b_v, b_o * b_shrink[:, None], input_precision="ieee")
            b_max = b_max_new

        # Rows without any key: every accumulator is 0, and so shall be every output.
        m_key = b_sum > 0
        b_max = tl.where(m_key, b_max, 0.0)
        b_sum = tl.where(m_key, b_sum, 1.0)
        b_log = tl.log2(b_sum)
        if POWER_IS_ONE:
            b_o = b_o / b_sum[:, None]
        else:
            b_log_power = tl.log2(tl.where(m_key, b_sum_power, 1.0)) / power
            b_o = b_o * tl.exp2(-b_log_power)[:, None]
        i_row = i_bh * Q
        m_o = m_m[:, None] & (o_dv[None, :] < DV)
        tl.store(context + i_row * DV + i * DV + o_dv[None, :], b_o.to(context.dtype.element_ty), mask=m_o)
        tl.store(lse + i_row + o_m, (b_max + b_log) * LN2, mask=m_m)
        if not POWER_IS_ONE:
            tl.store(lse_power + i_row + o_m, (b_max + b_log_power) * LN2, mask=m_m)
        if NEED_MASS:
            tl.store(mass + i_row + o_m, b_mass / b_sum, mask=m_m)
