/* Row-wise operations that PyTorch does in several passes over memory. Rows are independent and each is computed in one
 * fixed order, whatever their number. */

#include <math.h>

#include "vectors.h"

#define PARALLEL_FROM 65536 /* elements from which a second thread pays */

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(f) JOIN(f, FORMAT)

#define FORMAT f32
#define ACT float
#define ACT_LOAD load
#define ACT_STORE store
#include "rowwise.h"
#undef FORMAT
#undef ACT
#undef ACT_LOAD
#undef ACT_STORE

#define FORMAT bf16
#define ACT uint16_t
#define ACT_LOAD bf16_load
#define ACT_STORE bf16_store
#include "rowwise.h"
