/* The rules of action_values.py for valid actions, for batches that are one plain array. */

#ifndef PUF_VALUES_H
#define PUF_VALUES_H

#include <stddef.h>
#include <stdint.h>

enum puf_values { PUF_ANY_VALUE, PUF_F2, PUF_F4, PUF_F8, PUF_I1, PUF_I2, PUF_I4, PUF_I8, PUF_U1, PUF_U2, PUF_U4, PUF_U8 };

/* Return whether all values lie between low and high, one value per column. No early exit, so that it vectorizes. */
#define PUF_WITHIN(TYPE)                                                                                               \
    static inline int puf_within_##TYPE(const TYPE *values, const TYPE *low, const TYPE *high, size_t rows,            \
                                        size_t columns)                                                                \
    {                                                                                                                  \
        int wrong = 0;                                                                                                 \
        if (columns == 1) {                                                                                            \
            const TYPE least = *low, most = *high;                                                                     \
            for (size_t row = 0; row < rows; row++) wrong |= (values[row] < least) | (values[row] > most);             \
            return !wrong;                                                                                             \
        }                                                                                                              \
        for (size_t row = 0; row < rows; row++, values += columns)                                                     \
            for (size_t i = 0; i < columns; i++) wrong |= (values[i] < low[i]) | (values[i] > high[i]);                \
        return !wrong;                                                                                                 \
    }

/* Return whether no value is an infinity or NaN, which have all exponent bits set. Values are read as integers. */
#define PUF_FINITE(TYPE, EXPONENT)                                                                                     \
    static inline int puf_finite_##TYPE(const TYPE *values, size_t count)                                              \
    {                                                                                                                  \
        int wrong = 0;                                                                                                 \
        for (size_t i = 0; i < count; i++) wrong |= (values[i] & (EXPONENT)) == (EXPONENT);                            \
        return !wrong;                                                                                                 \
    }

PUF_WITHIN(int8_t) PUF_WITHIN(int16_t) PUF_WITHIN(int32_t) PUF_WITHIN(int64_t)
PUF_WITHIN(uint8_t) PUF_WITHIN(uint16_t) PUF_WITHIN(uint32_t) PUF_WITHIN(uint64_t)
PUF_FINITE(uint16_t, 0x7c00u) PUF_FINITE(uint32_t, 0x7f800000u) PUF_FINITE(uint64_t, 0x7ff0000000000000ull)

/* Return whether all values are valid. low, high: as in PUF_WITHIN; not read for floats. */
static inline int puf_values_fit(enum puf_values kind, const void *values, size_t rows, size_t columns, const void *low,
                                 const void *high)
{
    switch (kind) {
    case PUF_ANY_VALUE: return 1;
    case PUF_F2: return puf_finite_uint16_t(values, rows * columns);
    case PUF_F4: return puf_finite_uint32_t(values, rows * columns);
    case PUF_F8: return puf_finite_uint64_t(values, rows * columns);
    case PUF_I1: return puf_within_int8_t(values, low, high, rows, columns);
    case PUF_I2: return puf_within_int16_t(values, low, high, rows, columns);
    case PUF_I4: return puf_within_int32_t(values, low, high, rows, columns);
    case PUF_I8: return puf_within_int64_t(values, low, high, rows, columns);
    case PUF_U1: return puf_within_uint8_t(values, low, high, rows, columns);
    case PUF_U2: return puf_within_uint16_t(values, low, high, rows, columns);
    case PUF_U4: return puf_within_uint32_t(values, low, high, rows, columns);
    case PUF_U8: return puf_within_uint64_t(values, low, high, rows, columns);
    }
    return 0;
}

#endif
