// Products of AMX's registers: eight tiles of 16 rows of 64 bytes.
#pragma once
#include <atomic>

#include "simd.h"

#if defined(__AMX_INT8__)
#include <sys/syscall.h>
#include <unistd.h>

namespace bandrank {

// Asks Linux to let this process use tiles, which make the state of each of its threads 8 KiB larger.
inline bool ask_for_tiles() {
    constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // of Linux's x86/xstate.rst
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

constexpr int TILE = 16;  // rows of a tile, and numbers of 32 bits or groups of four bytes in each

// Palette 1, and for each tile the bytes of a row and the number of rows.
struct TileSizes {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE};
};
alignas(64) inline constexpr TileSizes FULL_SIZE;
static_assert(sizeof FULL_SIZE == 64, "what ldtilecfg reads");

// While one lives, this thread's tiles have their full size. Other libraries set sizes of their own.
struct Tiles {
    Tiles() { _tile_loadconfig(&FULL_SIZE); }
    ~Tiles() { _tile_release(); }
    Tiles(const Tiles&) = delete;
};

// at(i): where the i-th 64 bytes of TILE rows are, `stride` bytes apart.  next: bytes from there to the next TILE rows.
template <class At>
struct Operand {
    At at;
    int64_t stride, next;
};
template <class At>
Operand(At, int64_t, int64_t) -> Operand<At>;

// Sums of products of the numbers in `steps` times 64 bytes of TILE rows, or 2 TILE, with those of TILE outputs, or 2 TILE:
// each tile that is loaded is multiplied with all of the other side. In a tile of outputs, a row has four bytes of each
// output. sums: (rows, outputs), `sums_stride` bytes from row to row.  meanwhile(): called whenever the products of the
// next 64 bytes are under way.
template <Of OF, bool TWO_BELOW, bool TWO_BESIDE, class Rows, class Outputs, class Meanwhile>
inline void multiply_tiles(int64_t steps, const Rows& rows, const Outputs& outputs, void* sums, int64_t sums_stride,
                           Meanwhile&& meanwhile) {
// A macro, since the numbers of tiles are words of the assembler.
#define MULTIPLY(sums, rows, outputs)      \
    if constexpr (OF == Of::BYTES)         \
        _tile_dpbusd(sums, rows, outputs); \
    else                                   \
        _tile_dpbf16ps(sums, rows, outputs)
    std::atomic_signal_fence(std::memory_order_seq_cst);  // compilers do not know that a tile is loaded from memory
    _tile_zero(0);
    if (TWO_BESIDE) _tile_zero(1);
    if (TWO_BELOW) _tile_zero(2);
    if (TWO_BELOW && TWO_BESIDE) _tile_zero(3);
    for (int64_t i = 0; i < steps; ++i) {
        const char *above = (const char*)rows.at(i), *left = (const char*)outputs.at(i);
        _tile_loadd(4, above, rows.stride);
        _tile_loadd(6, left, outputs.stride);
        MULTIPLY(0, 4, 6);
        if constexpr (TWO_BESIDE) {
            _tile_loadd(7, left + outputs.next, outputs.stride);
            MULTIPLY(1, 4, 7);
        }
        if constexpr (TWO_BELOW) {
            _tile_loadd(5, above + rows.next, rows.stride);
            MULTIPLY(2, 5, 6);
            if constexpr (TWO_BESIDE) {
                MULTIPLY(3, 5, 7);
            }
        }
        meanwhile();
    }
    char* below = (char*)sums + TILE * sums_stride;
    _tile_stored(0, sums, sums_stride);
    if (TWO_BESIDE) _tile_stored(1, (char*)sums + 64, sums_stride);
    if (TWO_BELOW) _tile_stored(2, below, sums_stride);
    if (TWO_BELOW && TWO_BESIDE) _tile_stored(3, below + 64, sums_stride);
#undef MULTIPLY
}

}  // namespace bandrank
#else
namespace bandrank {

inline bool ask_for_tiles() { return true; }  // there are none
struct Tiles {};

}  // namespace bandrank
#endif
