/* Intel AMX: whether this process may use its tiles, and how they are shaped. */

#ifndef HEADWAY_AMX_H
#define HEADWAY_AMX_H

#include <stdint.h>
#include <string.h>

#if defined(__AMX_BF16__) && defined(__AMX_TILE__) && defined(__AVX512BF16__) && defined(__linux__)
#define HEADWAY_AMX 1
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TILE_ROWS 16
#define TILE_BYTES 64 /* of a row: 16 floats, or 16 pairs of bf16 */

/* Ask the kernel for the tile registers, which it saves for processes that asked; all threads of the process have them
 * from then on. */
static inline int amx_allowed(void)
{
    const long request_permission = 0x1023, tile_data = 18; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

/* The memory format of LDTILECFG. */
struct tile_shapes {
    uint8_t palette, start_row, reserved[14]; /* palette 1 */
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Give the tiles of this thread these shapes, and zero them. The operand is the whole struct: `_tile_loadconfig` of
 * GCC tells the compiler of its first 8 bytes only. */
static inline void load_tile_shapes(const struct tile_shapes *shapes)
{
    __asm__ volatile("ldtilecfg %0" ::"m"(*shapes));
}

/* Shape the eight tiles of this thread, each of rows[i] rows of 64 bytes, and zero them; a tile of no rows must not be
 * used. */
static inline void shape_tiles(const uint8_t rows[8])
{
    struct tile_shapes shapes;
    memset(&shapes, 0, sizeof shapes);
    shapes.palette = 1;
    for (int i = 0; i < 8; i++) {
        shapes.rows[i] = rows[i];
        shapes.row_bytes[i] = rows[i] ? TILE_BYTES : 0;
    }
    load_tile_shapes(&shapes);
}

/* To be put between writing memory and `_tile_loadd` of it, which does not tell the compiler that it reads. */
static inline void written_before_tiles(void) { __asm__ volatile("" ::: "memory"); }
#else
static inline int amx_allowed(void) { return 0; }
#endif

#endif
