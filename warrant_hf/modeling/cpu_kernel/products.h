// Matrix products, C (+)= A B: float32 in vector registers, bfloat16 in hardware tiles.

#pragma once

#include "numbers.h"

#if WITH_AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

template <int M, int N>
inline void product_block(i64 depth, const float* a, i64 lda, const float* b, i64 ldb, float* c, i64 ldc, bool add) {
    Lanes sum[M][N];
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) sum[i][j] = add ? load(c + i * ldc + 16 * j) : _mm512_setzero_ps();
    for (i64 k = 0; k < depth; ++k) {
        Lanes right[N];
        for (int j = 0; j < N; ++j) right[j] = load(b + k * ldb + 16 * j);
        for (int i = 0; i < M; ++i) {
            Lanes left = fill(a[i * lda + k]);
            for (int j = 0; j < N; ++j) sum[i][j] = _mm512_fmadd_ps(left, right[j], sum[i][j]);
        }
    }
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) store(c + i * ldc + 16 * j, sum[i][j]);
}

template <int N>
void product_panel(i64 m, i64 depth, const float* a, i64 lda, const float* b, i64 ldb, float* c, i64 ldc, bool add) {
    for (; m >= 6; m -= 6, a += 6 * lda, c += 6 * ldc) product_block<6, N>(depth, a, lda, b, ldb, c, ldc, add);
    if (m == 5) product_block<5, N>(depth, a, lda, b, ldb, c, ldc, add);
    if (m == 4) product_block<4, N>(depth, a, lda, b, ldb, c, ldc, add);
    if (m == 3) product_block<3, N>(depth, a, lda, b, ldb, c, ldc, add);
    if (m == 2) product_block<2, N>(depth, a, lda, b, ldb, c, ldc, add);
    if (m == 1) product_block<1, N>(depth, a, lda, b, ldb, c, ldc, add);
}

// n is a multiple of 16.
void product(i64 m, i64 n, i64 depth, const float* a, i64 lda, const float* b, i64 ldb, float* c, i64 ldc, bool add) {
    for (; n >= 64; n -= 64, b += 64, c += 64) product_panel<4>(m, depth, a, lda, b, ldb, c, ldc, add);
    for (; n >= 16; n -= 16, b += 16, c += 16) product_panel<1>(m, depth, a, lda, b, ldb, c, ldc, add);
}

#if WITH_AMX

struct alignas(64) TileShape {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

bool amx_allowed() {
    constexpr int request_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

// m, n and depth are multiples of 32. B holds pairs of depth in 32-bit words, in panels of 32 columns.
void product(i64 m, i64 n, i64 depth, const Half16* a, i64 lda, const uint32_t* b, i64 panel, float* c, i64 ldc,
             bool add) {
    for (i64 column = 0; column < n; column += 32, b += panel) {
        for (i64 line = 0; line < m; line += 32) {
            const Half16 *top = a + line * lda, *bottom = top + 16 * lda;
            float *out = c + line * ldc + column, *low = out + 16 * ldc;
            if (add) {
                _tile_loadd(0, out, ldc * 4);
                _tile_loadd(1, out + 16, ldc * 4);
                _tile_loadd(2, low, ldc * 4);
                _tile_loadd(3, low + 16, ldc * 4);
            } else {
                _tile_zero(0);
                _tile_zero(1);
                _tile_zero(2);
                _tile_zero(3);
            }
            for (i64 k = 0; k < depth; k += 32) {
                _tile_loadd(4, top + k, lda * 2);
                _tile_loadd(6, b + k * 16, 128);
                _tile_loadd(7, b + k * 16 + 16, 128);
                _tile_loadd(5, bottom + k, lda * 2);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            _tile_stored(0, out, ldc * 4);
            _tile_stored(1, out + 16, ldc * 4);
            _tile_stored(2, low, ldc * 4);
            _tile_stored(3, low + 16, ldc * 4);
        }
    }
}

struct Tiles {
    Tiles() {
        TileShape shape;
        _tile_loadconfig(&shape);
    }
    ~Tiles() { _tile_release(); }
};

#endif

template <class T>
struct ThreadTiles {};
#if WITH_AMX
template <>
struct ThreadTiles<Half16> : Tiles {};
#endif

}  // namespace
