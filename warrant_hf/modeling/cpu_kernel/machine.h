// The processor and the memory: instruction sets, sizes that suit the caches, buffers, and the mode of a thread.

#pragma once

#include <immintrin.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "arguments.h"

#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) || !defined(__AVX512VL__)
#error "AVX-512 is needed"
#endif

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#define WITH_AMX 1
#else
#define WITH_AMX 0
#endif

namespace {

constexpr i64 ROWS = 128;
constexpr i64 KEYS = 256;
// A row step of a power of two would map many rows to the same cache set.
constexpr i64 LD = KEYS + 16;
constexpr i64 LD_HALF = KEYS + 32;
constexpr i64 PLACES = 32;
constexpr i64 HUGE_PAGE = i64(1) << 21;

i64 round_up(i64 x, i64 step) { return (x + step - 1) / step * step; }
i64 ceil_div(i64 x, i64 step) { return (x + step - 1) / step; }

template <class T>
struct Buffer {
    T* data = nullptr;
    explicit Buffer(i64 count = 0, bool zero = false) {
        if (count == 0) return;
        // A buffer that is much smaller than a large page would waste most of it.
        i64 bytes = count * sizeof(T) + 64, unit = bytes < 2 * HUGE_PAGE ? 64 : HUGE_PAGE;
        bytes = round_up(bytes, unit);
        data = static_cast<T*>(std::aligned_alloc(unit, bytes));
        if (!data) throw 1;
        // Fresh memory costs one page fault per page: on large pages this is no longer a tenth of the run time.
        if (unit == HUGE_PAGE) madvise(data, bytes, MADV_HUGEPAGE);
        if (zero) std::memset(data, 0, bytes);
    }
    Buffer(Buffer&& other) noexcept : data(other.data) { other.data = nullptr; }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { std::free(data); }
    operator T*() const { return data; }
};

// Terms far in the tail would become denormal numbers, which are slow and change nothing.
struct FlushDenormals {
    unsigned saved = _mm_getcsr();
    FlushDenormals() { _mm_setcsr(saved | 0x8040); }
    ~FlushDenormals() { _mm_setcsr(saved); }
};

}  // namespace
