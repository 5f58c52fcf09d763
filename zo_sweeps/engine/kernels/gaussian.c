/* Sums of addressed directions, Gaussian or of signs: the maps specified in noise.py, bit-identical to its torch expressions.

   Only IEEE additions, multiplications and square roots, each rounded separately: compile with -ffp-contract=off and
   without -ffast-math. Compilers vectorize the loops over lanes. */

#include <stdint.h>
#include <string.h>

#define LANES 512 /* counters per group; a group is 2 * LANES elements */

static inline float as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t as_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Word 0 of a counter, and the word 1 that follows from it. */
static inline uint32_t word_0(uint32_t counter, uint32_t k0, uint32_t k1) {
    uint32_t x = counter ^ k0;
    x = (x ^ x >> 16) * 0x7FEB352Du;
    x ^= k1;
    x = (x ^ x >> 15) * 0x846CA68Bu;
    return x ^ x >> 16;
}

static inline uint32_t word_1(uint32_t x, uint32_t k0) {
    uint32_t y = x * 0x9E3779B1u + k0;
    return y ^ y >> 15;
}

/* The elements of lanes 0..n-1: a[i] and b[i] are the first and the second member of counter + i. */
static void pairs(uint32_t counter, int n, uint32_t k0, uint32_t k1, float *restrict a, float *restrict b) {
    for (int i = 0; i < n; i++) {
        const uint32_t x = word_0(counter + (uint32_t)i, k0, k1), y = word_1(x, k0);

        uint32_t bits = (as_bits((float)(int32_t)(x | 1)) & 0x7FFFFFFFu) - (0x3F3504F3u + (31u << 23));
        float exponent = (float)((int32_t)bits >> 23);
        float f = as_float((bits & 0x7FFFFFu) + 0x3F3504F3u) - 1.0f;
        float p = -0.23792209f * f + 0.3733571f;
        p = p * f - 0.4099266f;
        p = p * f + 0.49819487f;
        p = p * f - 0.66629016f;
        p = p * f + 1.0000223f;
        p = p * f - 2.000002f;
        float r = __builtin_sqrtf(p * f - exponent * 1.3862944f);

        float t = (float)(int32_t)y * 0x1p-31f;
        float t2 = t * t;
        float s = (((-0.004333095f * t2 + 0.07943434f) * t2 - 0.64589286f) * t2 + 1.570791f) * t;
        float c = (((0.00085819064f * t2 - 0.020810628f) * t2 + 0.25365075f) * t2 - 1.2336982f) * t2 + 0.99999994f;
        a[i] = s * r;
        b[i] = as_float(as_bits(c * r) ^ (x & 0x80000000u));
    }
}

/* out[i] = base[i] + sum_k scale[k] * z_k[start + i] for i < count; base may be NULL (the sum alone) or out. */
void zo_combine(float *out, const float *base, int64_t start, int64_t count, int32_t terms, const uint32_t *keys,
                const float *scale) {
    float sum[2][LANES], z[2][LANES];
    const int64_t stop = start + count;
    for (int64_t group = start / (2 * LANES); group * 2 * LANES < stop; group++) {
        const int64_t first = group * 2 * LANES; /* element of lane 0 */
        /* The lanes wanted: all, unless the range begins or ends within one half of the group. */
        int low = 0, high = LANES;
        const int64_t from = start > first ? start - first : 0;
        const int64_t to = stop - first < 2 * LANES ? stop - first : 2 * LANES;
        if (to <= LANES || from >= LANES) {
            low = (int)(from % LANES);
            high = (int)((to - 1) % LANES) + 1;
        }
        const int n = high - low;
        for (int k = 0; k < terms; k++) {
            pairs((uint32_t)(group * LANES + low), n, keys[2 * k], keys[2 * k + 1], z[0], z[1]);
            for (int half = 0; half < 2; half++)
                for (int i = 0; i < n; i++) {
                    const float term = scale[k] * z[half][i];
                    sum[half][i] = k ? sum[half][i] + term : term;
                }
        }
        for (int half = 0; half < 2; half++) {
            const int64_t lane0 = first + half * LANES + low; /* element of sum[half][0] */
            const int64_t a = lane0 > start ? lane0 : start;
            const int64_t b = lane0 + n < stop ? lane0 + n : stop;
            for (int64_t e = a; e < b; e++) {
                const float value = sum[half][e - lane0];
                out[e - start] = base ? base[e - start] + value : value;
            }
        }
    }
}

#define WORDS 64 /* of signs that are hashed together; LANES is a multiple */

/* As zo_combine, of signs: element e of z_k is +1 if bit e mod 32 of word e / 32 is set, and -1 if not. */
void zo_signs(float *out, const float *base, int64_t start, int64_t count, int32_t terms, const uint32_t *keys,
              const float *scale) {
    uint32_t unset[WORDS];
    float sum[WORDS * 32];
    const int64_t stop = start + count;
    for (int64_t word = start / (WORDS * 32) * WORDS; word * 32 < stop; word += WORDS) {
        const uint32_t counter = (uint32_t)(word / (2 * LANES) * LANES + word % LANES);
        for (int k = 0; k < terms; k++) {
            const uint32_t c = as_bits(scale[k]), k0 = keys[2 * k], k1 = keys[2 * k + 1];
            for (int i = 0; i < WORDS; i++)
                unset[i] = ~word_0(counter + (uint32_t)i, k0, k1);
            if (word % (2 * LANES) >= LANES)
                for (int i = 0; i < WORDS; i++)
                    unset[i] = ~word_1(~unset[i], k0);
            for (int i = 0; i < WORDS; i++)
                for (int j = 0; j < 32; j++) {
                    const float term = as_float(c ^ (unset[i] >> j & 1u) << 31);
                    sum[32 * i + j] = k ? sum[32 * i + j] + term : term;
                }
        }
        const int64_t first = word * 32, end = first + WORDS * 32;
        const int64_t a = first > start ? first : start, b = end < stop ? end : stop;
        float *to = out + (a - start);
        const float *from = base ? base + (a - start) : 0, *add = sum + (a - first);
        int64_t i = 0;
        if (from)
            for (; i + 32 <= b - a; i += 32)
                for (int j = 0; j < 32; j++) /* of a fixed length: vectorized, also in place */
                    to[i + j] = from[i + j] + add[i + j];
        for (; i < b - a; i++)
            to[i] = from ? from[i] + add[i] : add[i];
    }
}
