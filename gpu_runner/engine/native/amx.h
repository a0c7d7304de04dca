/* Intel AMX: products of tiles of up to 16 rows of 64 bytes. Whether this process may use it, and the shapes of its
 * eight tile registers; HEADWAY_AMX is defined where the compiler knows the instructions for bf16.
 *
 * A tile product does not tell the compiler what memory its loads read: put `tiles_see_memory()` between writing
 * something by other means and loading it into a tile. */

#ifndef HEADWAY_AMX_H
#define HEADWAY_AMX_H

#include <stdint.h>

#if defined(__linux__) && defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512BF16__)
#define HEADWAY_AMX

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TILE_SIDE 16 /* most rows of a tile, and floats or bf16 pairs of one of its rows */

/* Linux keeps the tile registers from processes that have not asked for them (arch_prctl(2), asm/prctl.h). */
#define AMX_GET_PERMISSION 0x1022
#define AMX_ASK_PERMISSION 0x1023
#define AMX_TILE_DATA 18

/* Operand of ldtilecfg: rows and bytes of a row of each tile register. */
struct tile_shapes {
    uint8_t palette, start_row, unused[14]; /* palette 1 */
    uint16_t bytes[16];
    uint8_t rows[16];
};

/* Give the tile registers these shapes, and zeros. `_tile_release` ends their use by a thread. */
static inline void shape_tiles(const struct tile_shapes *shapes)
{
    __asm__ volatile("ldtilecfg %0" ::"m"(*shapes));
}

static inline void tiles_see_memory(void) { __asm__ volatile("" ::: "memory"); }

/* 1 when this process, its later threads included, may use the tile registers; asks for it. */
static inline int amx_allowed(void)
{
    unsigned long granted = 0;
    if (syscall(SYS_arch_prctl, AMX_ASK_PERMISSION, AMX_TILE_DATA))
        return 0;
    return !syscall(SYS_arch_prctl, AMX_GET_PERMISSION, &granted) && (granted >> AMX_TILE_DATA & 1);
}
#else
static inline int amx_allowed(void) { return 0; }
#endif

#endif
