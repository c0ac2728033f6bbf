// Products of bytes in AMX's registers: eight tiles of 16 rows of 64 bytes, which multiply each other.
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

// While one lives, this thread's tiles have their full size. Other libraries set them to theirs.
struct Tiles {
    Tiles() { _tile_loadconfig(&FULL_SIZE); }
    ~Tiles() { _tile_release(); }
    Tiles(const Tiles&) = delete;
};

// The sums of products of TILE or 2 TILE rows with 2 TILE outputs of a panel, (rows, 2 TILE): each tile that is loaded is
// multiplied with both of the other side. bytes: a multiple of 64.  meanwhile(): called whenever the products of the next 64
// bytes are under way.
template <bool TWO, class Meanwhile>
inline void multiply_tiles(const uint8_t* rows, int64_t bytes, const int8_t* weights, int32_t* sums,
                           Meanwhile&& meanwhile) {
    std::atomic_signal_fence(std::memory_order_seq_cst);  // compilers do not know that a tile is loaded from memory
    _tile_zero(0);
    _tile_zero(1);
    if (TWO) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t i = 0; i < bytes; i += 64) {
        const int8_t* beside = weights + i * PANEL;
        _tile_loadd(4, rows + i, bytes);
        _tile_loadd(6, beside, 64);
        _tile_dpbusd(0, 4, 6);
        _tile_loadd(7, beside + 64 * TILE, 64);
        _tile_dpbusd(1, 4, 7);
        if (TWO) {
            _tile_loadd(5, rows + TILE * bytes + i, bytes);
            _tile_dpbusd(2, 5, 6);
            _tile_dpbusd(3, 5, 7);
        }
        meanwhile();
    }
    _tile_stored(0, sums, 128);
    _tile_stored(1, sums + TILE, 128);
    if (TWO) {
        _tile_stored(2, sums + 2 * TILE * TILE, 128);
        _tile_stored(3, sums + 2 * TILE * TILE + TILE, 128);
    }
}

}  // namespace bandrank
#else
namespace bandrank {

inline bool ask_for_tiles() { return true; }  // there are none
struct Tiles {};

}  // namespace bandrank
#endif
