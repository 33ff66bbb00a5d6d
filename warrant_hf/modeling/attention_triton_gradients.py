"""Evidence attention on a GPU: the two Triton kernels of the backward pass; see `attention_triton_kernels`."""

from __future__ import annotations

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

if triton is not None:
    from .attention_triton_kernels import (
        HEURISTICS,
        LN2,
        LOG2E,
        _finish_logits,
        _gate,
        _load_rows,
        _normal_cdf,
        _offsets,
    )

    INV_SQRT_TAU = tl.constexpr(0.3989422804014327)

    GRADIENT_HEURISTICS = HEURISTICS | {"HAS_DMASS": lambda args: args["d_mass"] is not None}

    @triton.jit
    def _normal_density(x):
        return tl.exp2(x * x * (-0.5 * LOG2E)) * INV_SQRT_TAU

    @triton.jit
    def _tile_gradients(
        b_s, b_dp, b_g, b_lse, b_lse_power, b_dmass, b_row, b_row_power, power,
        HAS_GATE: tl.constexpr, HAS_DMASS: tl.constexpr, POWER_IS_ONE: tl.constexpr,
    ):  # fmt: skip
        """w, r, dG and dS of a tile. The row sums arrive in natural logarithms, shaped to broadcast."""
        b_a = tl.exp2(b_s - b_lse * LOG2E)
        if POWER_IS_ONE:
            b_w = b_a
            b_r = b_a
            b_ds = b_a * b_row
        else:
            # w = a exp(lse - lse_power) saves an exp2; they are the scarcest units at head dim 64.
            b_w = b_a * tl.exp2((b_lse - b_lse_power) * LOG2E)
            b_r = tl.exp2(power * (b_s - b_lse_power * LOG2E))
            b_ds = b_a * b_row + b_r * b_row_power
        b_dg = b_w * b_dp
        if HAS_DMASS:
            b_dg += b_a * b_dmass
        if HAS_GATE:
            b_ds += b_g * b_dg
        else:
            b_ds += b_dg
        return b_w, b_r, b_dg, b_ds

    @triton.heuristics(GRADIENT_HEURISTICS)
    @triton.jit
    def evidence_attention_bwd_dq_kernel(
        q, k, v, keep, bias, gate_a, gate_b, gate_weight, gate_offset,
        lse, lse_power, d_context, d_mass, row, row_power, d_query, d_bias, d_gate, d_power,
        s_qb, s_qh, s_qm, s_qd, s_kb, s_kh, s_kn, s_kd, s_vb, s_vh, s_vn, s_vd,
        s_keepb, s_keeph, s_keepm, s_keepn, s_biasb, s_biash, s_biasm, s_biasn,
        s_ab, s_ah, s_am, s_ar, s_bb, s_bh, s_bn, s_br,
        s_ob, s_oh, s_om, s_od, s_dbiasb, s_dbiash, s_dgateb, s_dgateh,
        num_heads, Q, K, scale, scale_log2e, power, leak,
        GROUPS: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, R: tl.constexpr, GATE_KIND: tl.constexpr,
        GATE_ROWS: tl.constexpr, BIAS_ROWS: tl.constexpr, KEEP_ROWS: tl.constexpr, IS_CAUSAL: tl.constexpr,
        POWER_IS_ONE: tl.constexpr, NEED_DQ: tl.constexpr, NEED_DBIAS: tl.constexpr, NEED_DGATE: tl.constexpr,
        NEED_DPOWER: tl.constexpr, BIAS_IS_SHARED: tl.constexpr, GATE_IS_SHARED: tl.constexpr,
        WIDE: tl.constexpr, HAS_KEEP: tl.constexpr, HAS_BIAS: tl.constexpr, EVEN: tl.constexpr,
        HAS_DMASS: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
        BLOCK_R: tl.constexpr,
    ):  # fmt: skip
        tl.static_assert(BLOCK_D >= D and BLOCK_DV >= DV)
        HAS_GATE: tl.constexpr = GATE_KIND != "none"
        LEARNED: tl.constexpr = GATE_KIND == "mlp" or GATE_KIND == "low_rank"
        ITEMS_IN_TILE: tl.constexpr = GATE_KIND == "item" and R <= BLOCK_R
        pid = tl.program_id(0)
        num_tiles = tl.cdiv(Q, BLOCK_M)
        i_m, i_bh = pid % num_tiles, (pid // num_tiles).to(tl.int64)
        i_b, i_h = i_bh // num_heads, i_bh % num_heads
        i_kv = i_h // GROUPS
        o_m = _offsets(i_m * BLOCK_M, BLOCK_M, WIDE)
        o_d, o_dv, o_r = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV), tl.arange(0, BLOCK_R)
        m_m = o_m < Q
        i = o_m[:, None]

        p_k, p_v = k + i_b * s_kb + i_kv * s_kh, v + i_b * s_vb + i_kv * s_vh
        if HAS_KEEP:
            keep += i_b * s_keepb + i_h * s_keeph
        if HAS_BIAS:
            bias += i_b * s_biasb + i_h * s_biash
        if HAS_GATE:
            gate_a += i_b * s_ab + i_h * s_ah
        if GATE_KIND == "item" or LEARNED:
            gate_b += i_b * s_bb + i_h * s_bh

        b_q = _load_rows(q + i_b * s_qb + i_h * s_qh, o_m, o_d, s_qm, s_qd, Q, D)  # [BLOCK_M, BLOCK_D]
        b_do = _load_rows(d_context + i_b * s_ob + i_h * s_oh, o_m, o_dv, s_om, s_od, Q, DV)  # [BLOCK_M, BLOCK_DV]
        if GATE_KIND == "low_rank":
            b_gq = _load_rows(gate_a, o_m, o_r, s_am, s_ar, Q, R)  # [BLOCK_M, BLOCK_R]
        i_row = i_bh * Q
        b_lse = tl.load(lse + i_row + o_m, mask=m_m, other=0.0)
        b_row = tl.load(row + i_row + o_m, mask=m_m, other=0.0)
        b_lse_power, b_row_power, b_dmass = b_lse, b_row, b_row
        if not POWER_IS_ONE:
            b_lse_power = tl.load(lse_power + i_row + o_m, mask=m_m, other=0.0)
            b_row_power = tl.load(row_power + i_row + o_m, mask=m_m, other=0.0)
        if HAS_DMASS:
            b_dmass = tl.load(d_mass + i_row + o_m, mask=m_m, other=0.0)
        b_dq = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
        b_dgq = tl.zeros([BLOCK_M, BLOCK_R], dtype=tl.float32)
        b_excess = tl.zeros([BLOCK_M], dtype=tl.float32)

        end = K
        if IS_CAUSAL:
            end = tl.minimum(K, (i_m + 1) * BLOCK_M + K - Q)
        for start in range(0, end, BLOCK_N):
            o_n = _offsets(start, BLOCK_N, WIDE)
            m_n = o_n < K
            j = o_n[None, :]
            b_k = _load_rows(p_k, o_n, o_d, s_kn, s_kd, K, D)  # [BLOCK_N, BLOCK_D]
            b_v = _load_rows(p_v, o_n, o_dv, s_vn, s_vd, K, DV)  # [BLOCK_N, BLOCK_DV]
            b_s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale_log2e  # [BLOCK_M, BLOCK_N]
            b_s = _finish_logits(
                b_s, bias, keep, i, j, Q, K, s_biasm, s_biasn, s_keepm, s_keepn,
                HAS_BIAS, BIAS_ROWS, HAS_KEEP, KEEP_ROWS, IS_CAUSAL, EVEN,
            )  # fmt: skip
            b_g, b_sigmoid = b_s, b_s
            if HAS_GATE:
                b_psi = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
                if GATE_KIND == "low_rank":
                    b_gk = _load_rows(gate_b, o_n, o_r, s_bn, s_br, K, R)  # [BLOCK_N, BLOCK_R]
                    b_psi = tl.dot(b_gq, tl.trans(b_gk), input_precision="ieee")
                b_g, b_sigmoid = _gate(
                    b_psi, gate_a, gate_b, gate_weight, gate_offset, i, j, Q, K, s_am, s_ar, s_bn, s_br, leak,
                    GATE_KIND, GATE_ROWS, R,
                )  # fmt: skip
            b_dp = tl.dot(b_do, tl.trans(b_v), input_precision="ieee")  # [BLOCK_M, BLOCK_N]
            b_w, b_r, b_dg, b_ds = _tile_gradients(
                b_s, b_dp, b_g, b_lse[:, None], b_lse_power[:, None], b_dmass[:, None], b_row[:, None],
                b_row_power[:, None], power, HAS_GATE, HAS_DMASS, POWER_IS_ONE,
            )  # fmt: skip

            if NEED_DQ:
                b_dq = tl.dot(b_ds.to(b_k.dtype), b_k, b_dq, input_precision="ieee")
            if NEED_DPOWER:
                # Relative to lse_power: the sum of r is 1, and the difference of two large sums would lose digits.
                b_above = tl.where(b_r > 0, b_s - b_lse_power[:, None] * LOG2E, 0.0)
                b_excess += tl.sum(b_r * b_above, 1)
            if NEED_DBIAS:
                p_dbias = d_bias + i_b * s_dbiasb + i_h * s_dbiash + i * K + j
                if BIAS_IS_SHARED:
                    tl.atomic_add(p_dbias, b_ds, mask=m_m[:, None] & m_n[None, :], sem="relaxed")
                else:
                    tl.store(p_dbias, b_ds, mask=m_m[:, None] & m_n[None, :])
            if NEED_DGATE and GATE_KIND == "tensor":
                p_dgate = d_gate + i_b * s_dgateb + i_h * s_dgateh + i * K + j
                if GATE_IS_SHARED:
                    tl.atomic_add(p_dgate, b_dg, mask=m_m[:, None] & m_n[None, :], sem="relaxed")
                else:
                    tl.store(p_dgate, b_dg, mask=m_m[:, None] & m_n[None, :])
            if NEED_DGATE and GATE_KIND == "item":
                o_item = tl.load(gate_b + o_n * s_bn, mask=m_n, other=0).to(tl.int32)
                if ITEMS_IN_TILE:
                    # Next to half-precision operands the 11 bits of tf32 lose nothing; the indicator is exact anyway.
                    PRECISION: tl.constexpr = "ieee" if b_k.dtype == tl.float32 else "tf32"
                    b_one_hot = (o_item[:, None] == o_r[None, :]).to(tl.float32)  # [BLOCK_N, BLOCK_R]
                    b_dgq = tl.dot(b_dg, b_one_hot, b_dgq, input_precision=PRECISION)
                else:
                    # Items come in runs, so a key tile meets few of them. No other program writes these rows, and a
                    # program meets its key tiles in order: the atomics always add in the same order.
                    first = tl.min(tl.where(m_n, o_item, R - 1), 0)
                    for item in range(first, tl.max(o_item, 0) + 1):
                        b_part = tl.sum(tl.where(o_item[None, :] == item, b_dg, 0.0), 1)
                        tl.atomic_add(d_gate + i_row * R + o_m * R + item, b_part, mask=m_m, sem="relaxed")
            if NEED_DGATE and LEARNED:
                b_dpsi = b_dg * (1.0 - leak) * b_sigmoid * (1.0 - b_sigmoid)
                if GATE_KIND == "low_rank":
                    b_dgq = tl.dot(b_dpsi.to(b_gk.dtype), b_gk, b_dgq, input_precision="ieee")
                else:
                    for r in range(R):
                        x = tl.load(gate_a + i * s_am + r * s_ar, mask=i < Q, other=0.0).to(tl.float32)
                        x = x + tl.load(gate_b + j * s_bn + r * s_br, mask=j < K, other=0.0).to(tl.float32)
                        b_slope = _normal_cdf(x) + x * _normal_density(x)
                        b_dx = tl.sum(b_dpsi * b_slope, 1) * tl.load(gate_weight + r).to(tl.float32)
                        b_dgq += tl.where(o_r[None, :] == r, b_dx[:, None], 0.0)

        if NEED_DQ:
            m_d = m_m[:, None] & (o_d[None, :] < D)
            tl.store(d_query + i_row * D + i * D + o_d[None, :], b_dq * scale, mask=m_d)
        if NEED_DPOWER:
            tl.store(d_power + i_row + o_m, b_row_power * b_excess * LN2 / power, mask=m_m)
        if NEED_DGATE and (LEARNED or ITEMS_IN_TILE):
            m_r = m_m[:, None] & (o_r[None, :] < R)
            tl.store(d_gate + i_row * R + i * R + o_r[None, :], b_dgq, mask=m_r)

    @triton.heuristics(GRADIENT_HEURISTICS)
    @triton.jit
    def evidence_attention_bwd_dkv_kernel(
        q, k, v, keep, bias, gate_a, gate_b, gate_weight, gate_offset,
        lse, lse_power, d_context, d_mass, row, row_power, d_key, d_value, d_bias, d_gate, d_weight, d_offset,
        s_qb, s_qh, s_qm, s_qd, s_kb, s_kh, s_kn, s_kd, s_vb, s_vh, s_vn, s_vd,
        s_keepb, s_keeph, s_keepm, s_keepn, s_biasb, s_biash, s_biasm, s_biasn,
        s_ab, s_ah, s_am, s_ar, s_bb, s_bh, s_bn, s_br, s_ob, s_oh, s_om, s_od,
        num_heads, Q, K, scale, scale_log2e, power, leak,
        GROUPS: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, R: tl.constexpr, GATE_KIND: tl.constexpr,
        GATE_ROWS: tl.constexpr, BIAS_ROWS: tl.constexpr, KEEP_ROWS: tl.constexpr, IS_CAUSAL: tl.constexpr,
        POWER_IS_ONE: tl.constexpr, NEED_DK: tl.constexpr, NEED_DV: tl.constexpr, NEED_DBIAS: tl.constexpr,
        NEED_DGATE: tl.constexpr,
        WIDE: tl.constexpr, HAS_KEEP: tl.constexpr, HAS_BIAS: tl.constexpr, EVEN: tl.constexpr,
        HAS_DMASS: tl.constexpr,
        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
        BLOCK_R: tl.constexpr,
    ):  # fmt: skip
        """Tiles are transposed, [BLOCK_N, BLOCK_M], so that they are left operands of the products as they stand.

        `num_heads` counts key heads here.
        """
        tl.static_assert(BLOCK_D >= D and BLOCK_DV >= DV)
        HAS_GATE: tl.constexpr = GATE_KIND != "none"
        LEARNED: tl.constexpr = GATE_KIND == "mlp" or GATE_KIND == "low_rank"
        pid = tl.program_id(0)
        num_tiles = tl.cdiv(K, BLOCK_N)
        i_n, i_bh = pid % num_tiles, (pid // num_tiles).to(tl.int64)
        i_b, i_kv = i_bh // num_heads, i_bh % num_heads
        o_n = _offsets(i_n * BLOCK_N, BLOCK_N, WIDE)
        o_d, o_dv, o_r = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV), tl.arange(0, BLOCK_R)
        m_n = o_n < K
        j = o_n[:, None]

        b_k = _load_rows(k + i_b * s_kb + i_kv * s_kh, o_n, o_d, s_kn, s_kd, K, D)  # [BLOCK_N, BLOCK_D]
        b_v = _load_rows(v + i_b * s_vb + i_kv * s_vh, o_n, o_dv, s_vn, s_vd, K, DV)  # [BLOCK_N, BLOCK_DV]
        b_dk = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
        b_dv = tl.zeros([BLOCK_N, BLOCK_DV], dtype=tl.float32)

        begin = 0
        if IS_CAUSAL:
            begin = tl.maximum(0, i_n * BLOCK_N + Q - K) // BLOCK_M * BLOCK_M
        for group in range(GROUPS):
            i_h = i_kv * GROUPS + group
            i_row = (i_bh * GROUPS + group) * Q
            p_q, p_do = q + i_b * s_qb + i_h * s_qh, d_context + i_b * s_ob + i_h * s_oh
            p_keep, p_bias, p_a, p_b = keep, bias, gate_a, gate_b
            if HAS_KEEP:
                p_keep = keep + i_b * s_keepb + i_h * s_keeph
            if HAS_BIAS:
                p_bias = bias + i_b * s_biasb + i_h * s_biash
            if HAS_GATE:
                p_a = gate_a + i_b * s_ab + i_h * s_ah
            if GATE_KIND == "item" or LEARNED:
                p_b = gate_b + i_b * s_bb + i_h * s_bh
            if GATE_KIND == "low_rank":
                b_gk = _load_rows(p_b, o_n, o_r, s_bn, s_br, K, R)  # [BLOCK_N, BLOCK_R]
            b_dbias = tl.zeros([BLOCK_N], dtype=tl.float32)
            b_dgate = tl.zeros([BLOCK_N], dtype=tl.float32)
            b_dgk = tl.zeros([BLOCK_N, BLOCK_R], dtype=tl.float32)
            b_dweight = tl.zeros([BLOCK_N, BLOCK_R], dtype=tl.float32)

            for start in range(begin, Q, BLOCK_M):
                o_m = _offsets(start, BLOCK_M, WIDE)
                i = o_m[None, :]
                b_q = _load_rows(p_q, o_m, o_d, s_qm, s_qd, Q, D)  # [BLOCK_M, BLOCK_D]
                b_do = _load_rows(p_do, o_m, o_dv, s_om, s_od, Q, DV)  # [BLOCK_M, BLOCK_DV]
                b_lse = tl.load(lse + i_row + i, mask=i < Q, other=0.0)
                b_row = tl.load(row + i_row + i, mask=i < Q, other=0.0)
                b_lse_power, b_row_power, b_dmass = b_lse, b_row, b_row
                if not POWER_IS_ONE:
                    b_lse_power = tl.load(lse_power + i_row + i, mask=i < Q, other=0.0)
                    b_row_power = tl.load(row_power + i_row + i, mask=i < Q, other=0.0)
                if HAS_DMASS:
                    b_dmass = tl.load(d_mass + i_row + i, mask=i < Q, other=0.0)

                b_s = tl.dot(b_k, tl.trans(b_q), input_precision="ieee") * scale_log2e  # [BLOCK_N, BLOCK_M]
                b_s = _finish_logits(
                    b_s, p_bias, p_keep, i, j, Q, K, s_biasm, s_biasn, s_keepm, s_keepn,
                    HAS_BIAS, BIAS_ROWS, HAS_KEEP, KEEP_ROWS, IS_CAUSAL, EVEN,
                )  # fmt: skip
                b_g, b_sigmoid = b_s, b_s
                if HAS_GATE:
                    b_psi = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
                    if GATE_KIND == "low_rank":
                        b_gq = _load_rows(p_a, o_m, o_r, s_am, s_ar, Q, R)  # [BLOCK_M, BLOCK_R]
                        b_psi = tl.dot(b_gk, tl.trans(b_gq), input_precision="ieee")
                    b_g, b_sigmoid = _gate(
                        b_psi, p_a, p_b, gate_weight, gate_offset, i, j, Q, K, s_am, s_ar, s_bn, s_br, leak,
                        GATE_KIND, GATE_ROWS, R,
                    )  # fmt: skip
                b_dp = tl.dot(b_v, tl.trans(b_do), input_precision="ieee")  # [BLOCK_N, BLOCK_M]
                b_w, _, b_dg, b_ds = _tile_gradients(
                    b_s, b_dp, b_g, b_lse, b_lse_power, b_dmass, b_row, b_row_power, power,
                    HAS_GATE, HAS_DMASS, POWER_IS_ONE,
                )  # fmt: skip

                if NEED_DV:
                    if HAS_GATE:
                        b_w *= b_g
                    b_dv = tl.dot(b_w.to(b_do.dtype), b_do, b_dv, input_precision="ieee")
                if NEED_DK:
                    b_dk = tl.dot(b_ds.to(b_q.dtype), b_q, b_dk, input_precision="ieee")
                if NEED_DBIAS:
                    b_dbias += tl.sum(b_ds, 1)
                if NEED_DGATE and GATE_KIND == "tensor":
                    b_dgate += tl.sum(b_dg, 1)
                if NEED_DGATE and LEARNED:
                    b_dpsi = b_dg * (1.0 - leak) * b_sigmoid * (1.0 - b_sigmoid)
                    b_dgate += tl.sum(b_dpsi, 1)
                    if GATE_KIND == "low_rank":
                        b_dgk = tl.dot(b_dpsi.to(b_gq.dtype), b_gq, b_dgk, input_precision="ieee")
                    else:
                        for r in range(R):
                            x = tl.load(p_a + i * s_am + r * s_ar, mask=i < Q, other=0.0).to(tl.float32)
                            x = x + tl.load(p_b + j * s_bn + r * s_br, mask=j < K, other=0.0).to(tl.float32)
                            b_cdf = _normal_cdf(x)
                            b_slope = b_cdf + x * _normal_density(x)
                            b_dx = tl.sum(b_dpsi * b_slope, 1) * tl.load(gate_weight + r).to(tl.float32)
                            b_dgk += tl.where(o_r[None, :] == r, b_dx[:, None], 0.0)
                            b_gelu = tl.sum(b_dpsi * x * b_cdf, 1)
                            b_dweight += tl.where(o_r[None, :] == r, b_gelu[:, None], 0.0)

            i_key = (i_bh * GROUPS + group) * K
            if NEED_DBIAS:
                tl.store(d_bias + i_key + o_n, b_dbias, mask=m_n)
            if NEED_DGATE and GATE_KIND == "tensor":
                tl.store(d_gate + i_key + o_n, b_dgate, mask=m_n)
            if NEED_DGATE and LEARNED:
                i_part = pid.to(tl.int64) * GROUPS + group
                m_r = m_n[:, None] & (o_r[None, :] < R)
                tl.store(d_gate + i_key * R + j * R + o_r[None, :], b_dgk, mask=m_r)
                tl.store(d_offset + i_part, tl.sum(b_dgate, 0))
                if GATE_KIND == "mlp":
                    tl.store(d_weight + i_part * R + o_r, tl.sum(b_dweight, 0), mask=o_r < R)

        i_key = i_bh * K
        if NEED_DK:
            m_d = m_n[:, None] & (o_d[None, :] < D)
            tl.store(d_key + i_key * D + j * D + o_d[None, :], b_dk * scale, mask=m_d)
        if NEED_DV:
            m_dv = m_n[:, None] & (o_dv[None, :] < DV)
            tl.store(d_value + i_key * DV + j * DV + o_dv[None, :], b_dv, mask=m_dv)
