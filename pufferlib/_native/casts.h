/* Casts of arrays between number types, equal to NumPy's astype, with a check that integers keep their values.
 *
 * Sources may have any alignment, stride and byte order; targets are contiguous, of any alignment. pack.pyx decides
 * which casts are allowed, by the rules of pack.py.
 */
#ifndef PUF_CASTS_H
#define PUF_CASTS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum puf_number { PUF_NO_NUMBER, PUF_BOOL, PUF_INT8, PUF_INT16, PUF_INT32, PUF_INT64, PUF_UINT8, PUF_UINT16, PUF_UINT32,
                  PUF_UINT64, PUF_FLOAT32, PUF_FLOAT64, PUF_NUM_NUMBERS };

/* Cast count elements, stride bytes apart; return whether integers kept their value. */
typedef int puf_cast(char *target, const char *source, ptrdiff_t stride, size_t count);

#define PUF_DEFINE_CAST(FROM_NAME, FROM, VALUE, TO_NAME, TO, CAST, LOST)                                               \
    static int puf_cast_##FROM_NAME##_##TO_NAME(char *target, const char *source, ptrdiff_t stride, size_t count)      \
    {                                                                                                                  \
        int is_lost = 0;                                                                                               \
        for (size_t i = 0; i < count; i++) {                                                                           \
            FROM read;                                                                                                 \
            memcpy(&read, source + (ptrdiff_t)i * stride, sizeof read);                                                \
            const FROM value = VALUE;                                                                                  \
            const TO cast = CAST;                                                                                      \
            is_lost |= LOST;                                                                                           \
            memcpy(target + i * sizeof cast, &cast, sizeof cast);                                                      \
        }                                                                                                              \
        return !is_lost;                                                                                               \
    }

#define PUF_TO_INTEGER(NAME, FROM, VALUE, TO_NAME, TO)                                                                 \
    PUF_DEFINE_CAST(NAME, FROM, VALUE, TO_NAME, TO, (TO)value, ((FROM)cast != value) | ((cast < 0) != (value < 0)))
#define PUF_TO_FLOAT(NAME, FROM, VALUE, TO_NAME, TO) PUF_DEFINE_CAST(NAME, FROM, VALUE, TO_NAME, TO, (TO)value, 0)

#define PUF_FROM_INTEGER(NAME, FROM, VALUE)                                                                            \
    PUF_DEFINE_CAST(NAME, FROM, VALUE, b1, uint8_t, value != 0, (value != 0) & (value != 1))                           \
    PUF_TO_INTEGER(NAME, FROM, VALUE, i1, int8_t) PUF_TO_INTEGER(NAME, FROM, VALUE, i2, int16_t)                       \
    PUF_TO_INTEGER(NAME, FROM, VALUE, i4, int32_t) PUF_TO_INTEGER(NAME, FROM, VALUE, i8, int64_t)                      \
    PUF_TO_INTEGER(NAME, FROM, VALUE, u1, uint8_t) PUF_TO_INTEGER(NAME, FROM, VALUE, u2, uint16_t)                     \
    PUF_TO_INTEGER(NAME, FROM, VALUE, u4, uint32_t) PUF_TO_INTEGER(NAME, FROM, VALUE, u8, uint64_t)                    \
    PUF_TO_FLOAT(NAME, FROM, VALUE, f4, float) PUF_TO_FLOAT(NAME, FROM, VALUE, f8, double)

PUF_FROM_INTEGER(b1, uint8_t, read != 0) /* a view of other bytes as bools may hold more than 0 and 1 */
PUF_FROM_INTEGER(i1, int8_t, read) PUF_FROM_INTEGER(i2, int16_t, read)
PUF_FROM_INTEGER(i4, int32_t, read) PUF_FROM_INTEGER(i8, int64_t, read)
PUF_FROM_INTEGER(u1, uint8_t, read) PUF_FROM_INTEGER(u2, uint16_t, read)
PUF_FROM_INTEGER(u4, uint32_t, read) PUF_FROM_INTEGER(u8, uint64_t, read)
PUF_TO_FLOAT(f4, float, read, f4, float) PUF_TO_FLOAT(f4, float, read, f8, double)
PUF_TO_FLOAT(f8, double, read, f4, float) PUF_TO_FLOAT(f8, double, read, f8, double)

#define PUF_CASTS(NAME)                                                                                                \
    {                                                                                                                  \
        NULL, puf_cast_##NAME##_b1, puf_cast_##NAME##_i1, puf_cast_##NAME##_i2, puf_cast_##NAME##_i4,                  \
            puf_cast_##NAME##_i8, puf_cast_##NAME##_u1, puf_cast_##NAME##_u2, puf_cast_##NAME##_u4,                    \
            puf_cast_##NAME##_u8, puf_cast_##NAME##_f4, puf_cast_##NAME##_f8                                           \
    }

/* Indexed by enum puf_number of source and target; NULL where a float would become an integer. */
static puf_cast *const PUF_CAST_OF[PUF_NUM_NUMBERS][PUF_NUM_NUMBERS] = {
    {NULL}, PUF_CASTS(b1), PUF_CASTS(i1), PUF_CASTS(i2), PUF_CASTS(i4), PUF_CASTS(i8), PUF_CASTS(u1),
    PUF_CASTS(u2), PUF_CASTS(u4), PUF_CASTS(u8),
    {[PUF_FLOAT32] = puf_cast_f4_f4, [PUF_FLOAT64] = puf_cast_f4_f8},
    {[PUF_FLOAT32] = puf_cast_f8_f4, [PUF_FLOAT64] = puf_cast_f8_f8},
};

static const size_t PUF_SIZE_OF[PUF_NUM_NUMBERS] = {0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 4, 8};

/* Cast an array with any strides, in C order; return whether integers kept their values. swapped: its byte order is not
 * the machine's. */
static int puf_cast_array(int from, int to, int swapped, char *target, const char *source, const ptrdiff_t *dims,
                          const ptrdiff_t *strides, int ndim)
{
    const size_t size = PUF_SIZE_OF[from];
    if (ndim > 1) {
        int is_exact = 1;
        size_t nbytes = PUF_SIZE_OF[to];
        for (int i = 1; i < ndim; i++) nbytes *= (size_t)dims[i];
        for (ptrdiff_t i = 0; i < dims[0]; i++)
            is_exact &= puf_cast_array(from, to, swapped, target + (size_t)i * nbytes, source + i * strides[0],
                                       dims + 1, strides + 1, ndim - 1);
        return is_exact;
    }
    const size_t count = ndim ? (size_t)dims[0] : 1;
    const ptrdiff_t stride = ndim ? strides[0] : 0;
    puf_cast *cast = PUF_CAST_OF[from][to];
    if (!swapped) return cast(target, source, stride, count);
    int is_exact = 1;
    for (size_t i = 0; i < count; i++) {
        char value[8];
        for (size_t byte = 0; byte < size; byte++) value[byte] = source[(ptrdiff_t)i * stride + (ptrdiff_t)(size - 1 - byte)];
        is_exact &= cast(target + i * PUF_SIZE_OF[to], value, 0, 1);
    }
    return is_exact;
}

#endif
