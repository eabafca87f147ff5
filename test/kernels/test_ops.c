/* The ops of the network on the linked backend, attention aside, against the oracle on the same inputs widened to
   double. arena.h holds the operands and derives the bounds. */
#include "../../kernels/autotune.h"
#include "../../kernels/embedding.h"
#include "../../kernels/gelu.h"
#include "../../kernels/head.h"
#include "../../kernels/layernorm.h"
#include "../../kernels/matmul.h"
#include "../../kernels/normal.h"
#include "../../kernels/sample.h"
#include "arena.h"

static const char *const into_name[] = { "=", "+=" };

static void sums_of_columns(double *sum, const double *a, int rows, int columns) {
    for (int j = 0; j < columns; j++) sum[j] = 0;
    for (int k = 0; k < rows * columns; k++) sum[k % columns] += a[k];
}

/* ---- embedding */

/* Positions 0, 1, ...; those of a tensor, from the last row of wpe down, as of a rank that shares sequences; or behind
   other tokens, as in a cache, which has no backward pass. The oracle gets the rows of wpe in their order. */
TEST_EACH_DTYPE(embedding) {
    enum { IN_ORDER, GIVEN, BEHIND, KINDS };
    static const struct { int B, T, C, Vp, positions; } shapes[] = {
        {1, 1, 1, 1, 1}, {3, 7, 5, 9, 8}, {2, 63, 33, 50, 65}, {1, 65, 64, 257, 65}, {5, 64, 96, 7, 70},
        {9, 1000, 8, 5, 1000}, {16, 600, 4, 300, 601}, {1, 40, 1, 66000, 40}, {6, 50, 264, 11, 501},
        {20, 1000, 8, 70000, 1000}, {70, 1000, 8, 3, 1001}, {8, 250, 264, 3, 250},     /* chunks share tokens */
    };
    for (int i = 0; i < 2 * KINDS * COUNT(shapes); i++) {
        const int shape = i / 2 / KINDS, kind = i / 2 % KINDS, B = shapes[shape].B, T = shapes[shape].T;
        const int C = shapes[shape].C, Vp = shapes[shape].Vp, positions = shapes[shape].positions;
        const int first = kind == GIVEN ? positions - 1 : kind == BEHIND ? positions - T : 0;
        const int step = kind == GIVEN ? -1 : 1;
        Into into = i % 2 ? ACCUMULATE : OVERWRITE;
        if (refuses_rows(C)) continue;
        arena_begin("embedding", "B=%d T=%d C=%d Vp=%d %d positions from %d, dwpe%s", B, T, C, Vp, positions, first,
                    into_name[into]);
        Tensor tokens = integers(0, Vp - 1, B, T), wte = input(1, Vp, C), wpe = input(1, positions, C);
        Tensor x = output(B, T, C), dx = input(1, B, T, C);
        Tensor dwte = f32_output_into(ACCUMULATE, Vp, C), dwpe = f32_output_into(into, positions, C);
        Tensor position = kind == IN_ORDER ? ABSENT : kind == GIVEN ? integers(0, 0, T) : integers(first, first, 1);
        for (int t = 0; t < T && kind == GIVEN; t++) ((int32_t *)arena_host(position))[t] = first - t;
        EACH_RUN {
            embedding_forward(x, tokens, wte, wpe, position);
            if (kind == BEHIND) continue;
            embedding_sort(tokens, Vp);
            embedding_backward(dwte, dwpe, dx, tokens, position, into);
        }
        double *want_x = doubles(B * T * C), *want_dwte = doubles(Vp * C), *want_dwpe = doubles(positions * C);
        double *rows = doubles(T * C), *drows = doubles(T * C), *places = given(wpe);
        const size_t bytes = (size_t)C * sizeof *rows;
        for (int t = 0; t < T; t++) memcpy(rows + t * C, places + (first + step * t) * C, bytes);
        oracle_embedding_forward(want_x, arena_host(tokens), given(wte), rows, B, T, C);
        compare(x, want_x, .roundings = 1);
        if (kind == BEHIND) continue;
        oracle_embedding_backward(want_dwte, drows, given(dx), arena_host(tokens), B, T, C, Vp, T);
        memset(want_dwpe, 0, (size_t)positions * bytes);
        for (int t = 0; t < T; t++) memcpy(want_dwpe + (first + step * t) * C, drows + t * C, bytes);
        compare(dwte, want_dwte, .roundings = B * T, .floor = 1);
        compare(dwpe, want_dwpe, .roundings = B, .floor = 1);
    }
}

/* Rows of qkv, from the position on; what is there before and behind stays. */
TEST_EACH_DTYPE(cache) {
    static const struct { int B, n, T, C, first; } shapes[] = {
        {1, 1, 1, 1, 0}, {3, 1, 9, 40, 8}, {2, 5, 12, 33, 6}, {5, 7, 8, 64, 1}, {1, 30, 70, 96, 40},
    };
    for (int i = 0; i < COUNT(shapes); i++) {
        int B = shapes[i].B, n = shapes[i].n, T = shapes[i].T, C = shapes[i].C, first = shapes[i].first;
        if (refuses_rows(C)) continue;
        arena_begin("cache", "B=%d n=%d T=%d C=%d first=%d", B, n, T, C, first);
        Tensor position = integers(first, first, 1), cache = base(1, B, T, C);
        Tensor rows = tensor_column_range(input(1, B, n, 3 * C), C, C);
        EACH_RUN cache_append(cache, rows, position);
        double *want = given(cache), *from = given(rows), *got = result(cache);
        for (int b = 0; b < B; b++)
            memcpy(want + (b * T + first) * C, from + b * n * C, sizeof *want * (size_t)(n * C));
        EXPECT(!memcmp(got, want, sizeof *want * (size_t)(B * T * C)), "%s: the cache differs", arena_case);
    }
}

/* ---- layernorm */

/* offset: of all x, many times their spread; a variance computed as mean(x^2) - mean(x)^2 does not survive it. */
TEST_EACH_DTYPE(layernorm) {
    static const struct { int B, T, C; double offset; } shapes[] = {
        {1, 1, 1, 0}, {3, 7, 5, 0}, {1, 63, 64, 0}, {2, 65, 129, 0}, {1, 1, 1001, 0}, {3, 7, 40, 100},
        {1, 9, 768, -100}, {3, 1001, 8, 0}, {5, 151, 256, 0}, {2, 67, 384, 0}, {1, 131, 1280, 0}, {1, 65, 1600, 0},
        {1, 67, 2048, 0}, {1, 66, 2056, 0}, {1, 140, 4096, 0},
        {9, 1500, 8, 0}, {13, 257, 264, 0},       /* several rows a team */
    };
    enum { BRANCH = 1, IN_PLACE = 2, DX_ADD = 4, DW_ADD = 8, DX_SUM = 16 };
    static const int variants[] = { DX_SUM, BRANCH | DX_ADD, DW_ADD, BRANCH | IN_PLACE | DX_ADD | DW_ADD | DX_SUM };
    for (int i = 0; i < COUNT(variants) * COUNT(shapes); i++) {
        int B = shapes[i / 4].B, T = shapes[i / 4].T, C = shapes[i / 4].C, rows = B * T, variant = variants[i % 4];
        Into dx_into = variant & DX_ADD ? ACCUMULATE : OVERWRITE, dw_into = variant & DW_ADD ? ACCUMULATE : OVERWRITE;
        double offset = shapes[i / 4].offset, n = C + 6;
        if (refuses_rows(C)) continue;
        arena_begin("layernorm", "B=%d T=%d C=%d offset %g, variant %d", B, T, C, offset, variant);
        Tensor x = fill(place(arena_dtype, variant & IN_PLACE ? WRITTEN : KEPT, 0, DIMS(B, T, C)), offset, 1);
        Tensor branch = variant & BRANCH ? input(1, B, T, C) : ABSENT;
        Tensor sum = variant & IN_PLACE ? x : variant & BRANCH ? output(B, T, C) : ABSENT;
        Tensor weight = input(2, C), bias = input(1, C), normed = output(B, T, C);
        Tensor mean = f32_output(B, T), rstd = f32_output(B, T);
        double *want_sum = doubles(rows * C), *want_normed = doubles(rows * C);
        double *want_mean = doubles(rows), *want_rstd = doubles(rows);
        oracle_residual_layernorm_forward(want_sum, want_normed, want_mean, want_rstd, given(x),
                                          branch.data ? given(branch) : NULL, given(weight), given(bias), rows, C);
        double *kept_sum = doubles(rows * C), *kept_normed = doubles(rows * C);
        double *kept_mean = doubles(rows), *kept_rstd = doubles(rows);
        oracle_stores = arena_dtype == BF16;
        oracle_residual_layernorm_forward(kept_sum, kept_normed, kept_mean, kept_rstd, given(x),
                                          branch.data ? given(branch) : NULL, given(weight), given(bias), rows, C);
        oracle_stores = 0;

        /* The backward pass gets the oracle's mean and rstd, rounded: its errors are its own. */
        Tensor s = input(0, B, T, C), dnormed = input(1, B, T, C);
        Tensor mean_in = f32_input(0, B, T), rstd_in = f32_input(0, B, T);
        double max_rstd = 0, condition = 0;
        for (int r = 0; r < rows; r++) {
            set(mean_in, r, want_mean[r]);
            set(rstd_in, r, want_rstd[r]);
            max_rstd = fmax(max_rstd, want_rstd[r]);
            condition = fmax(condition, (fabs(offset) + 2) * want_rstd[r]);      /* x - mean, of values near offset */
        }
        for (int k = 0; k < rows * C; k++) set(s, k, want_sum[k]);
        Tensor dx = output_into(dx_into, B, T, C);
        Tensor dweight = f32_output_into(dw_into, C), dbias = f32_output_into(dw_into, C);
        Tensor dx_sum = variant & DX_SUM ? f32_output_into(dw_into, C) : ABSENT;
        EACH_RUN {
            residual_layernorm_forward(sum, normed, mean, rstd, x, branch, weight, bias);
            layernorm_backward(dx, dweight, dbias, dx_sum, dnormed, s, mean_in, rstd_in, weight, dx_into, dw_into);
        }
        compare(sum, want_sum, .roundings = 1);
        compare(mean, want_mean, .roundings = n, .floor = 1 / sqrt(C), .kept = kept_mean);
        compare(rstd, want_rstd, .roundings = n, .condition = condition, .kept = kept_rstd);
        compare(normed, want_normed, .roundings = n, .condition = condition, .kept = kept_normed);

        double *want_dx = doubles(rows * C), *want_dweight = doubles(C), *want_dbias = doubles(C);
        oracle_layernorm_backward(want_dx, want_dweight, want_dbias, given(dnormed), given(s), given(mean_in),
                                  given(rstd_in), given(weight), rows, C);
        compare(dx, want_dx, .roundings = n, .floor = max_rstd);
        compare(dweight, want_dweight, .roundings = rows + 2, .floor = sqrt(rows));
        compare(dbias, want_dbias, .roundings = rows + 1, .floor = sqrt(rows) / 2);

        /* The sum of dx as it is stored; dx itself has been compared. */
        double *want_dx_sum = doubles(C);
        sums_of_columns(want_dx_sum, result(dx), rows, C);
        compare(dx_sum, want_dx_sum, .roundings = rows + 1, .floor = sqrt(rows) * max_rstd / 2);
    }
}

/* ---- matmul */

/* Without a bias out may be F32 where x is BF16, as the logits of evaluation. */
TEST_EACH_DTYPE(matmul) {
    static const struct { int B, T, N, K, gap; } shapes[] = {      /* gap: between rows */
        {1, 1, 1, 1, 0}, {1, 7, 3, 5, 0}, {3, 7, 13, 31, 0}, {1, 63, 65, 129, 0}, {2, 65, 33, 7, 0}, {1, 1, 257, 63, 0},
        {5, 129, 101, 77, 0}, {1, 3, 5, 1001, 0}, {1, 1000, 3, 9, 0}, {1, 5, 1000, 3, 0}, {2, 64, 192, 64, 0},
        {1, 27, 601, 301, 0}, {5, 129, 104, 80, 0}, {1, 1000, 8, 9, 0},
        {3, 7, 40, 1000, 0}, {2, 5, 49, 25, 0},                  /* one column more than a vector: of 16 and of 8 */
        {1, 1, 300, 768, 0}, {1, 2, 77, 3072, 0}, {2, 2, 100, 1544, 0}, {1, 8, 96, 1024, 0},          /* few rows */
        {1, 7, 5, 3, 1}, {1, 7, 5, 3, 1}, {5, 13, 33, 129, 3}, {5, 13, 33, 129, 3},          /* twice: each Into */
        {1, 64, 64, 192, 8}, {1, 64, 64, 192, 8}, {1, 1, 320, 65, 0}, {1, 7, 128, 33, 0}, {1, 1, 1024, 768, 0},
        {1, 1, 8500, 72, 0}, {1, 2, 8449, 40, 0}, {1, 4, 8450, 64, 0}, {1, 8, 8456, 128, 0}, {1, 5, 64, 3072, 0},
    };
    for (int i = 0; i < 2 * COUNT(shapes); i++) {
        int B = shapes[i / 2].B, T = shapes[i / 2].T, N = shapes[i / 2].N, K = shapes[i / 2].K, rows = B * T;
        int gap = shapes[i / 2].gap, whole = i % 2 == 0;      /* else bias, dx and dbias are absent */
        Into into = i % 4 < 2 ? OVERWRITE : ACCUMULATE;
        if (refuses_rows(N)) whole = 0;             /* for the column sums in dbias */
        arena_begin("matmul", "B=%d T=%d N=%d K=%d, gaps of %d, dweight%s%s", B, T, N, K, gap, into_name[into],
                    whole ? "" : " alone");
        Tensor x = fill(place(arena_dtype, KEPT, K + gap, DIMS(B, T, K)), 0, 1), weight = input(1, N, K);
        Tensor dout = fill(place(arena_dtype, KEPT, N + gap, DIMS(B, T, N)), 0, 1);
        Tensor out = place(arena_dtype, WRITTEN, N + gap, DIMS(B, T, N)), bias = whole ? input(1, N) : ABSENT;
        Tensor to_f32 = f32_output(B, T, N);
        Tensor dx = whole ? place(arena_dtype, WRITTEN, K + gap, DIMS(B, T, K)) : ABSENT;
        Tensor dweight = f32_output_into(into, N, K), dbias = whole ? f32_output_into(into, N) : ABSENT;
        EACH_RUN {
            matmul_forward(out, ABSENT, x, weight, bias);
            if (!whole && !gap) matmul_forward(to_f32, ABSENT, x, weight, bias);
            matmul_backward(dx, dweight, dbias, ABSENT, dout, x, ABSENT, weight, into);
        }
        double *want_out = doubles(rows * N), *want_dx = doubles(rows * K), *want_dweight = doubles(N * K);
        double *want_dbias = doubles(N);
        oracle_matmul_forward(want_out, given(x), given(weight), whole ? given(bias) : NULL, rows, N, K);
        oracle_matmul_backward(want_dx, want_dweight, want_dbias, given(dout), given(x), given(weight), rows, N, K);
        /* A product of two numbers uniform in [-1, 1) has size 1/3, n of them with random signs sqrt(n)/3. */
        compare(out, want_out, .roundings = K + whole, .floor = sqrt(K) / 3);
        if (!whole && !gap) compare(to_f32, want_out, .roundings = K, .floor = sqrt(K) / 3);
        compare(dweight, want_dweight, .roundings = rows + 1, .floor = sqrt(rows) / 3);
        compare(dx, want_dx, .roundings = N, .floor = sqrt(N) / 3);
        compare(dbias, want_dbias, .roundings = rows + 1, .floor = sqrt(rows) / 2);
    }
}

/* ---- fill: the host's own figures bit for bit, and those of libm */

TEST(fill_with_normal) {
    enum { N = 5003 };
    static const uint64_t key = 0x123456789abcdef;
    arena_begin("fill", "N=%d", N);
    Tensor t = f32_output(N, 1), ones = f32_output(17);
    EACH_RUN {
        fill_normal(t, 0.5, 0.02, key, 3, 77);
        fill_normal(ones, 1, 0, key, 3, 77);
    }
    const double *got = result(t);
    for (int i = 0; i < N; i++) {
        const Random128 r = philox4x32((Random128){{ (uint32_t)i, 0, 3, 77 }}, key);
        const double u = 1 - uniform_of(r.word[0], r.word[1]), v = uniform_of(r.word[2], r.word[3]);
        const double normal = sqrt(-2 * log(u)) * cos(2 * acos(-1) * v), bound = 0x1p-50 * 8.6;
        EXPECT(fabs(normal_of(r) - normal) <= bound, "element %d: %.17g, libm has %.17g", i, normal_of(r), normal);
        EXPECT(got[i] == (float)fma(0.02, normal_of(r), 0.5), "element %d: %.9g, the host has another value", i,
               got[i]);
    }
    for (int i = 0; i < 17; i++) EXPECT(result(ones)[i] == 1, "element %d is not 1", i);
}

/* A GELU behind the forward pass; one before x, which the backward pass goes through. */
TEST_EACH_DTYPE(matmul_gelu) {
    static const struct { int B, T, N, K; } shapes[] = {
        {1, 1, 1, 1}, {3, 7, 13, 31}, {1, 63, 65, 129}, {2, 64, 192, 64}, {5, 129, 24, 264}, {1, 1, 8, 16},
        {3, 21, 104, 72},
        {1, 1, 96, 768}, {2, 4, 50, 72},
    };
    for (int i = 0; i < 2 * COUNT(shapes); i++) {
        int B = shapes[i / 2].B, T = shapes[i / 2].T, N = shapes[i / 2].N, K = shapes[i / 2].K, rows = B * T;
        int biased = i % 2;
        if (refuses_rows(N) || refuses_rows(K)) continue;
        Into into = i % 2 ? ACCUMULATE : OVERWRITE;
        arena_begin("matmul_gelu", "B=%d T=%d N=%d K=%d dweight%s", B, T, N, K, into_name[into]);
        Tensor x_pre_gelu = input(3, B, T, K), x = input(0, B, T, K), weight = input(1, N, K);
        Tensor bias = biased ? input(1, N) : ABSENT, pre_gelu = output(B, T, N), out = output(B, T, N);
        Tensor dout = input(1, B, T, N), dx = output(B, T, K), dweight = f32_output_into(into, N, K);
        Tensor dx_bias = i % 3 ? f32_output_into(into, K) : ABSENT;
        double *activated = doubles(rows * K);
        oracle_gelu_forward(activated, given(x_pre_gelu), rows * K);
        for (int k = 0; k < rows * K; k++) set(x, k, activated[k]);
        Tensor in_place = copy_of(x), dweight_too = copy_of(dweight);       /* dx over x */
        EACH_RUN {
            matmul_forward(out, pre_gelu, x, weight, bias);
            matmul_backward(dx, dweight, ABSENT, dx_bias, dout, x, x_pre_gelu, weight, into);
            matmul_backward(in_place, dweight_too, ABSENT, ABSENT, dout, in_place, x_pre_gelu, weight, into);
        }
        EXPECT(same_bits(dx, in_place), "dx over x differs");
        EXPECT(same_bits(dweight, dweight_too), "dweight with dx over x differs");
        double *want_pre = doubles(rows * N), *want_out = doubles(rows * N), *kept_out = doubles(rows * N);
        double *want_dx = doubles(rows * K), *kept_dx = doubles(rows * K), *want_dweight = doubles(N * K);
        double *want_dbias = doubles(N);
        oracle_matmul_forward(want_pre, given(x), given(weight), biased ? given(bias) : NULL, rows, N, K);
        oracle_matmul_backward(want_dx, want_dweight, want_dbias, given(dout), given(x), given(weight), rows, N, K);
        oracle_gelu_forward(want_out, want_pre, rows * N);
        compare(pre_gelu, want_pre, .roundings = K + biased, .floor = sqrt(K) / 3);
        compare(dweight, want_dweight, .roundings = rows + 1, .floor = sqrt(rows));
        /* in bf16 what lies between matmul and GELU may be rounded */
        for (int k = 0; k < rows * N; k++) want_pre[k] = round_bf16(want_pre[k]);
        for (int k = 0; k < rows * K; k++) kept_dx[k] = round_bf16(want_dx[k]);
        oracle_gelu_forward(kept_out, want_pre, rows * N);
        oracle_gelu_backward(want_dx, want_dx, given(x_pre_gelu), rows * K);
        oracle_gelu_backward(kept_dx, kept_dx, given(x_pre_gelu), rows * K);
        compare(out, want_out, .roundings = K + biased + 5, .floor = fmax(sqrt(K) / 3, 1), .kept = kept_out);
        compare(dx, want_dx, .roundings = N + 18, .floor = fmax(sqrt(N) / 3, 1), .kept = kept_dx);
        /* each summand may be rounded twice, before and after the GELU's slope: random errors of 2^-9 of the largest */
        double *want_sum = doubles(K), largest = 0;
        for (int k = 0; k < rows * K; k++) largest = fmax(largest, fabs(want_dx[k]));
        sums_of_columns(want_sum, want_dx, rows, K);
        compare(dx_bias, want_sum, .roundings = N + rows + 19, .floor = sqrt(rows) * fmax(sqrt(N) / 3, 1),
                .emulated = arena_dtype == BF16 ? 0x1p-9 * largest * sqrt(2 * rows) : 0);
    }
}

TEST_EACH_DTYPE(matmul_measured) {
    autotune_enable(1);
    matmul();
    matmul_gelu();
    autotune_enable(0);
}

/* With the GELU in the GEMM wherever the backend can: such choices count from 100 (kernels/cuda/gemm.c). */
TEST_EACH_DTYPE(matmul_fused) {
    char *text = test_keep(strdup(autotune_text())), *edited;
    size_t size;
    FILE *file = open_memstream(&edited, &size);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        const char *colon = strstr(line, ": ");
        if (strncmp(line, "gemm+", 5)) fprintf(file, "%s\n", line);
        else                           fprintf(file, "%.*s: 100\n", (int)(colon - line), line);
    }
    fclose(file);
    EXPECT(!*edited || autotune_adopt(edited), "not adopted: %s", edited);
    free(edited);
    matmul_gelu();
}

/* ---- gelu */

/* And the column sums of dx: of slices of rows, of rows that 16 bytes divide and others. dx over dy is the same. */
TEST_EACH_DTYPE(gelu) {
    static const struct { int rows, columns, range; } shapes[] = {
        {1, 1, 1}, {1, 7, 5}, {63, 1, 1}, {1, 65, 5}, {1, 1000, 1}, {1, 100003, 5}, {7, 143, 1}, {3, 7, 2},
        {65, 129, 2}, {1000, 24, 2}, {4097, 264, 2}, {33, 520, 2}, {2, 70001, 2}, {1, 8, 2},
        {65, 136, 5}, {2, 70008, 1},
    };
    for (int i = 0; i < 3 * COUNT(shapes); i++) {
        const int rows = shapes[i / 3].rows, columns = shapes[i / 3].columns, n = rows * columns;
        const Into into = i % 3 == 1 ? ACCUMULATE : OVERWRITE;
        if (refuses_rows(columns)) continue;
        arena_begin("gelu", "(%d,%d), |x| < %d, sums%s", rows, columns, shapes[i / 3].range, into_name[into]);
        Tensor x = input(shapes[i / 3].range, rows, columns), y = output(rows, columns), dy = input(1, rows, columns);
        Tensor dx = output(rows, columns), in_place = copy_of(dy);
        Tensor dx_sum = i % 3 == 2 ? ABSENT : f32_output_into(into, columns);
        Tensor same_sum = copy_of(dx_sum);
        EACH_RUN {
            gelu_forward(y, x);
            gelu_backward(dx, dy, x, dx_sum, into);
            gelu_backward(in_place, in_place, x, same_sum, into);
        }
        double *want_y = doubles(n), *want_dx = doubles(n), *want_sum = doubles(columns);
        oracle_gelu_forward(want_y, given(x), n);
        oracle_gelu_backward(want_dx, given(dy), given(x), n);
        sums_of_columns(want_sum, want_dx, rows, columns);
        compare(y, want_y, .roundings = 5, .floor = 1);
        compare(dx, want_dx, .roundings = 18, .floor = 1);
        EXPECT(same_bits(dx, in_place) && (!dx_sum.data || same_bits(dx_sum, same_sum)), "dx over dy differs");
        compare(dx_sum, want_sum, .roundings = rows + 18, .floor = sqrt(rows));
    }
}

/* ---- dropout */

/* In place too; sequences whose number passes 2^32; rows that do not begin at 16 bytes: shift elements behind. */
TEST_EACH_DTYPE(drop) {
    static const struct { int B, T, C, shift; } shapes[] = {
        {1, 1, 1, 0}, {3, 7, 5, 0}, {2, 17, 9, 0}, {1, 16, 8, 0}, {2, 65, 40, 0}, {1, 33, 1600, 0}, {3, 100, 48, 0},
        {2, 24, 64, 1}, {2, 256, 384, 0}, {1, 1003, 20, 0}, {70000, 1, 4, 0}, {4, 15, 12, 0}, {1, 3000, 256, 0},
    };
    static const float rates[] = { 0.2f, 0.1f, 0.5f, 0, 0.95f };
    for (int i = 0; i < COUNT(shapes); i++) {
        const int B = shapes[i].B, T = shapes[i].T, C = shapes[i].C, shift = shapes[i].shift, n = B * T * C;
        if (refuses_rows(C) || refuses_rows(shift)) continue;
        arena_begin("dropout", "B=%d T=%d C=%d, rate %g", B, T, C, rates[i % COUNT(rates)]);
        Tensor number = integers(-1, -1, 2), x = input(1, n + shift), y = output(n + shift), z = copy_of(x);
        Tensor *const all[] = { &x, &y, &z };
        if (shift) mark(y, KEPT);
        ((int32_t *)arena_host(number))[1] = i % 2;             /* 2^32 - 1 or 2^33 - 1 */
        for (int k = 0; k < 3; k++)
            *all[k] = tensor_of((char *)all[k]->data + (size_t)shift * dtype_bytes(x.dtype), x.dtype, 3, B, T, C);
        mark(y, WRITTEN);
        const Dropout d = { .rate = rates[i % COUNT(rates)], .site = (uint32_t)i << 8, .seed = 0x123456789abcull,
                            .sequence = i % 3 == 1 ? NULL : number.data };
        EACH_RUN {
            dropout(y, x, &d);
            dropout(z, z, &d);
        }
        double *want = doubles(n);
        oracle_dropout(want, given(x), &d, d.sequence ? (uint64_t)(i % 2) << 32 | 0xffffffff : 0, B, T, C);
        compare_within("out", y, want, (Bound){ .roundings = 2 });
        EXPECT(same_bits(y, z), "%s: in place it differs", arena_case);
    }
}

/* One at a time, so that no large one hides a small one; relative to x, since 1 + tanh cancels far to the left. */
TEST_EACH_DTYPE(gelu_extremes) {
    static const float values[] = {
        0, 1e-30f, -1e-30f, 1e-6f, 0.5f, 3, -3, -5, 6, -8, 9.5f, -10, 11, -14, 40, 100, -100, 1e4f, -1e4f, 1e20f,
        -1e20f,
    };
    for (int i = 0; i < COUNT(values); i++) {
        arena_begin("gelu", "x = %g", values[i]);
        enum { N = 8 };         /* a vector of equal elements */
        Tensor x = fill(input(0, N), values[i], 0), y = output(N), dy = fill(input(0, N), 1, 0), dx = output(N);
        EACH_RUN {
            gelu_forward(y, x);
            gelu_backward(dx, dy, x, ABSENT, OVERWRITE);
        }
        double want_y[N], want_dx[N];
        oracle_gelu_forward(want_y, given(x), N);
        oracle_gelu_backward(want_dx, given(dy), given(x), N);
        compare(y, want_y, .roundings = 5, .floor = fabs(get(x, 0)));
        /* x/2 (1 - tanh^2) (...): what cancels is multiplied by about x^2, as long as it is not yet zero */
        compare(dx, want_dx, .roundings = 18, .floor = fmin(1 + values[i] * values[i], 10));
    }
}

/* ---- head */

/* The errors of rounded logits, and in dx and dwte of the worst of a few multiples in which dlogits may be kept. */
typedef struct { double losses, dx, dwte; } HeadErrors;
static HeadErrors head_emulation(Tensor losses, Tensor dx, Tensor dwte, const double *want_losses,
                                 const double *want_dx, const double *want_dwte, const double *x, const double *wte,
                                 const int *target, int V, double dloss) {
    int rows = (int)tensor_rows(dx), C = (int)tensor_columns(dx), Vp = (int)dwte.dim[0];
    double *kept_losses = doubles(rows), *kept_dx = doubles(rows * C), *kept_dwte = doubles(Vp * C);
    HeadErrors error = {0};
    for (int i = 0; i < 4 && arena_dtype == BF16; i++) {
        oracle_stores = 1.5 + uniform() / 2;
        oracle_head_loss(kept_losses, kept_dx, kept_dwte, x, wte, target, rows, C, V, Vp, dloss);
        error.losses = off(losses, want_losses, kept_losses);
        error.dx = fmax(error.dx, off(dx, want_dx, kept_dx));
        error.dwte = fmax(error.dwte, off(dwte, want_dwte, kept_dwte));
    }
    oracle_stores = 0;
    return error;
}

/* dloss 0: evaluation only, with f32 logits. One target in ignore is -1; 0: none. amplitude is that of x: 300 makes
   logits of many hundreds, whose exp is infinite unless the maximum is subtracted. The padding of wte holds 1e30: it
   may be anything finite. */
static void head_case(int B, int T, int C, int V, int Vp, int R, double amplitude, double dloss, Into into,
                      int ignore) {
    int rows = B * T, evaluate = dloss == 0;
    arena_begin("head", "B=%d T=%d C=%d V=%d Vp=%d R=%d x %g dwte%s ignore %d%s", B, T, C, V, Vp, R, amplitude,
                into_name[into], ignore, evaluate ? " evaluation" : "");
    Tensor x = input(amplitude, B, T, C), wte = input(1, Vp, C), targets = integers(0, V - 1, B, T);
    Tensor losses = f32_output(B, T), work = scratch_as(evaluate ? F32 : arena_dtype, R, Vp);
    Tensor dx = evaluate ? ABSENT : output(B, T, C), dwte = evaluate ? ABSENT : f32_output_into(into, Vp, C);
    int *target = arena_host(targets), kept = 0;
    for (int k = V * C; k < Vp * C; k++) set(wte, k, 1e30);
    for (int r = 0; r < rows; r++) {
        if (ignore && uniform_int(1, ignore) == 1) target[r] = -1;
        kept += target[r] != -1;
    }
    EACH_RUN head_loss(losses, dx, dwte, x, wte, targets, V, (float)dloss, into, work);

    double *want_losses = doubles(rows), *want_dx = doubles(rows * C), *want_dwte = doubles(Vp * C);
    oracle_head_loss(want_losses, want_dx, want_dwte, given(x), given(wte), target, rows, C, V, Vp, (float)dloss);
    double logit = amplitude * sqrt(C) / 3;      /* the size of one */
    HeadErrors emulated = {0};
    if (!evaluate) emulated = head_emulation(losses, dx, dwte, want_losses, want_dx, want_dwte, given(x), given(wte),
                                             target, V, (float)dloss);
    compare_within(evaluate ? "losses alone" : "losses", losses, want_losses, (Bound){ .roundings = C + V + 6,
                   .floor = 3 * logit + 1, .emulated = emulated.losses });
    for (int r = 0; r < rows; r++)
        EXPECT(target[r] != -1 || result(losses)[r] == 0, "an ignored loss is %g", result(losses)[r]);
    if (evaluate) return;
    double size = kept ? dloss / 2 : 0;
    compare(dx, want_dx, .roundings = C + V + 6, .condition = 3 * logit, .floor = size, .emulated = emulated.dx);
    compare(dwte, want_dwte, .roundings = C + V + rows + 6, .condition = 3 * logit, .floor = size * amplitude,
            .emulated = emulated.dwte);
    double *got_dx = result(dx), *got_dwte = result(dwte), *old = given(dwte);
    for (int k = 0; k < rows * C; k++)
        EXPECT(target[k / C] != -1 || got_dx[k] == 0, "dx of an ignored row is %g", got_dx[k]);
    for (int k = V * C; k < Vp * C; k++)
        EXPECT(got_dwte[k] == (into == ACCUMULATE ? old[k] : 0), "dwte of a padded row is %g", got_dwte[k]);
}

TEST_EACH_DTYPE(head) {
    static const struct { int B, T, C, V, Vp; } shapes[] = {
        {1, 1, 1, 1, 1}, {3, 7, 5, 9, 16}, {3, 9, 48, 65, 128}, {2, 63, 33, 257, 320}, {1, 65, 40, 100, 100},
        {2, 63, 32, 257, 264},
    };
    for (int i = 0; i < COUNT(shapes); i++) {
        int B = shapes[i].B, T = shapes[i].T, C = shapes[i].C, V = shapes[i].V, Vp = shapes[i].Vp;
        if (refuses_rows(Vp)) continue;
        for (int k = 0; k < 3; k++) {
            int R = (const int[]){1, 7, B * T}[k];
            head_case(B, T, C, V, Vp, R, 1, 1.0 / (B * T), OVERWRITE, 0);
            head_case(B, T, C, V, Vp, R, 1, 0.7, ACCUMULATE, 3);
            head_case(B, T, C, V, Vp, R, 1, 0, OVERWRITE, 3);
        }
        head_case(B, T, C, V, Vp, 5, 300, 1, OVERWRITE, 4);
        head_case(B, T, C, V, Vp, 5, 1, 1, OVERWRITE, 1);      /* all are ignored */
        head_case(B, T, C, V, Vp, 5, 1, 1, ACCUMULATE, 1);
    }
}

/* The softmax alone, on given logits: losses and gradients have the errors of f32, whatever type the logits have. The
   shapes take every kernel: rows shared by 32, 256 and 1024 threads, rows longer than registers hold, rows that are not
   whole vectors, and more rows than run at a time. */
TEST_EACH_DTYPE(softmax) {
    static const struct { int rows, V, Vp; } shapes[] = {
        {1, 1, 1}, {70, 9, 13}, {70, 9, 16}, {21, 255, 256}, {21, 256, 256}, {30000, 60, 64}, {1700, 257, 320},
        {5, 8185, 8192}, {401, 8200, 8256}, {5, 50257, 50304}, {3, 57344, 57344}, {3, 57345, 57408}, {3, 60001, 60001},
        {3, 60001, 60008},
    };
    for (int i = 0; i < 2 * COUNT(shapes); i++) {
        int rows = shapes[i / 2].rows, V = shapes[i / 2].V, Vp = shapes[i / 2].Vp;
        if (refuses_rows(Vp)) continue;
        double amplitude = i % 2 ? 60 : 3, dloss = 0.7f;
        arena_begin("softmax", "%d rows, V=%d Vp=%d x %g", rows, V, Vp, amplitude);
        Tensor logits = base(amplitude, rows, Vp), losses = f32_output(rows), targets = integers(-1, V - 1, rows);
        int *target = arena_host(targets);
        target[rows - 1] = V - 1;
        EACH_RUN softmax_cross_entropy(losses, logits, logits, targets, V, (float)dloss);

        double *want_losses = doubles(rows), *want = doubles((int64_t)rows * Vp), *got = result(logits);
        for (int r = 0; r < rows; r++) {
            double max = -INFINITY, sum = 0, *row = want + (int64_t)r * Vp;
            for (int v = 0; v < V; v++) max = fmax(max, get(logits, (int64_t)r * Vp + v));
            for (int v = 0; v < V; v++) sum += exp(get(logits, (int64_t)r * Vp + v) - max);
            for (int v = 0; v < Vp; v++)
                row[v] = target[r] < 0 || v >= V ? 0 : exp(get(logits, (int64_t)r * Vp + v) - max) / sum * dloss;
            want_losses[r] = 0;
            if (target[r] < 0) continue;
            want_losses[r] = log(sum) + max - get(logits, (int64_t)r * Vp + target[r]);
            row[target[r]] -= dloss;
        }
        compare(losses, want_losses, .roundings = V + 3, .floor = amplitude + log(V));
        compare_within("dlogits", logits, want, (Bound){ .roundings = V + 6, .condition = 2 * amplitude });
        int nonzero = 0;
        for (int64_t k = 0; k < (int64_t)rows * Vp; k++)
            nonzero += (k % Vp >= V || target[k / Vp] < 0) && got[k] != 0;
        EXPECT(!nonzero, "%d gradients of padding or of ignored rows are not 0", nonzero);
    }
}

/* A row with a NaN, one with an infinity and one of large numbers, between others. */
TEST_EACH_DTYPE(softmax_extremes) {
    enum { rows = 6, V = 70, Vp = 128 };
    arena_begin("softmax", "extremes");
    Tensor logits = base(1, rows, Vp), losses = f32_output(rows), targets = integers(0, V - 1, rows);
    set(logits, 1 * Vp + 69, NAN);
    set(logits, 2 * Vp, INFINITY);
    for (int v = 0; v < V; v++) set(logits, 4 * Vp + v, v == 33 ? -1e30 : -2e30);
    ((int *)arena_host(targets))[4] = 33;
    EACH_RUN softmax_cross_entropy(losses, logits, logits, targets, V, 1);
    const double *loss = result(losses);
    EXPECT(isfinite(loss[0]) && !isfinite(loss[1]) && !isfinite(loss[2]) && isfinite(loss[3]) && loss[4] == 0
           && isfinite(loss[5]), "losses %g %g %g %g %g %g", loss[0], loss[1], loss[2], loss[3], loss[4], loss[5]);
}

static void call_target(int target) {
    arena_begin("head", "a target outside the vocabulary");
    Tensor x = input(1, 1, 3, 8), wte = input(1, 16, 8), losses = f32_output(1, 3), work = scratch(3, 16);
    Tensor targets = integers(0, 0, 1, 3);
    ((int *)arena_host(targets))[1] = target;
    arena_upload();
    head_loss(losses, ABSENT, ABSENT, x, wte, targets, 11, 1, OVERWRITE, work);
}

/* A GPU does not check targets beforehand: the loss is NaN. */
static void head_bad_target_is_nan(void) {
    arena_begin("head", "two targets outside the vocabulary");
    Tensor x = input(1, 1, 4, 8), wte = input(1, 16, 8), targets = integers(0, 10, 1, 4);
    Tensor losses = f32_output(1, 4), dx = output(1, 4, 8), dwte = f32_output(16, 8);
    Tensor work = scratch_as(arena_dtype, 3, 16);
    ((int *)arena_host(targets))[1] = 11;
    ((int *)arena_host(targets))[3] = -2;
    EACH_RUN head_loss(losses, dx, dwte, x, wte, targets, 11, 1, OVERWRITE, work);
    const double *loss = result(losses);
    EXPECT(isfinite(loss[0]) && isnan(loss[1]) && isfinite(loss[2]) && isnan(loss[3]), "losses %g %g %g %g", loss[0],
           loss[1], loss[2], loss[3]);
}

TEST_EACH_DTYPE(head_bad_target) {
    if (strcmp(backend_name, "cpu")) { head_bad_target_is_nan(); return; }
    device_open((DeviceOptions){ .threads = 1 });      /* no threads are left behind by fork */
    EXPECT_FAILS("11", call_target(11));
    EXPECT_FAILS("-2", call_target(-2));
}

/* ---- refusals */

static void call_embedding(Tensor *t)          { embedding_forward(t[0], t[1], t[2], t[3], t[4]); }
static void call_cache_append(Tensor *t)       { cache_append(t[0], t[1], t[2]); }
static void call_embedding_backward(Tensor *t) {
    if (t[3].data && t[3].dtype == I32 && tensor_is_packed(t[3])) embedding_sort(t[3], 8);
    embedding_backward(t[0], t[1], t[2], t[3], t[4], OVERWRITE);
}
static void call_layernorm(Tensor *t) { residual_layernorm_forward(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7]); }
static void call_layernorm_backward(Tensor *t) {
    layernorm_backward(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], OVERWRITE, OVERWRITE);
}
static void call_matmul(Tensor *t)          { matmul_forward(t[0], t[1], t[2], t[3], t[4]); }
static void call_matmul_backward(Tensor *t) {
    matmul_backward(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], OVERWRITE);
}
static void call_gelu(Tensor *t)            { gelu_forward(t[0], t[1]); }
static void call_gelu_backward(Tensor *t)   { gelu_backward(t[0], t[1], t[2], t[3], OVERWRITE); }
static void call_dropout(Tensor *t)         { dropout(t[0], t[1], &(Dropout){ .rate = 0.5f }); }
static void call_head(Tensor *t)   { head_loss(t[0], t[1], t[2], t[3], t[4], t[5], 7, 1, OVERWRITE, t[6]); }
static void call_head_evaluation(Tensor *t) {
    head_loss(t[0], ABSENT, ABSENT, t[1], t[2], t[3], 7, 1, OVERWRITE, t[4]);
}
static void call_matmul_to_f32(Tensor *t)   { matmul_forward(t[0], ABSENT, t[1], t[2], ABSENT); }
static void call_softmax(Tensor *t)         { softmax_cross_entropy(t[0], t[1], t[2], t[3], 7, 1); }
static void call_adamw(Tensor *t)           { adamw_update(t[0], ABSENT, t[1], t[2], t[3], t[4].data, 0, t[4].data); }

TEST_EACH_DTYPE(refusals) {
    enum { B = 2, T = 3, C = 4, N = 5, Vp = 8 };
    if (!strcmp(backend_name, "cpu")) device_open((DeviceOptions){ .threads = 1 });      /* fork keeps one thread */
    arena_begin("refusals", "B=2 T=3 C=4 N=5 Vp=8");
    Tensor x = input(1, B, T, C), y = output(B, T, C), z = output(B, T, C), u = input(1, B, T, C);
    Tensor row = f32_output(B, T), row2 = f32_output(B, T), ids = integers(0, 6, B, T), out = output(B, T, N);
    Tensor wte = input(1, Vp, C), dwte = f32_output(Vp, C), wpe = input(1, T, C), dwpe = f32_output(T, C);
    Tensor w = input(1, C), dw = f32_output(C), db = f32_output(C), ds = f32_output(C), weight = input(1, N, C);
    Tensor dweight = f32_output(N, C), work = scratch_as(arena_dtype, 2, Vp), bias = input(1, N), dbias = f32_output(N);
    Tensor pre = output(B, T, N), two_losses = f32_output(2), two_ids = integers(0, 6, 2);
    Tensor one = integers(0, 0, 1), three = integers(0, 2, T);
    Tensor two_f32 = f32_output(2, Vp), eights = integers(Vp, Vp, B, T);
    Tensor flat[4] = { f32_base(1, 9), f32_base(1, 9), f32_base(1, 9), f32_input(1, 9) };
    arena_upload();
    Call calls[] = {
        { "embedding",          call_embedding,          5, 1 << 4,     .t = { y, ids, wte, wpe, one } },
        { "cache",              call_cache_append,       3, 0,          .t = { z, x, one } },
        { "embedding backward", call_embedding_backward, 5, 1 << 4,     .t = { dwte, dwpe, x, ids, three },
                                                                        .either = 1 << 2 },
        { "layernorm",          call_layernorm,          8, 1 << 5,     .t = { y, z, row, row2, x, u, w, w } },
        { "layernorm backward", call_layernorm_backward, 9, 1 << 3, .t = { y, dw, db, ds, x, u, row, row2, w } },
        { "matmul",             call_matmul,             5, 1 << 1 | 1 << 4, .t = { out, pre, x, weight, bias } },
        { "matmul",             call_matmul_to_f32,      3, 0,
                                                         .t = { two_f32, tensor_row_range(x, 0, 2), wte } },
        { "head",               call_head_evaluation,    5, 0,          .t = { row, x, wte, ids, two_f32 } },
        { "matmul backward",    call_matmul_backward,    8, 1 << 2 | 1 << 3,
                                                         .t = { y, dweight, dbias, dw, out, x, u, weight } },
        { "gelu",               call_gelu,               2, 0,          .t = { y, x } },
        { "gelu backward",      call_gelu_backward,      4, 1 << 3,     .t = { y, x, u, dw } },
        { "dropout",            call_dropout,            2, 0,          .t = { y, x } },
        { "head",               call_head,               7, 0,          .t = { row, y, dwte, x, wte, ids, work } },
        { "softmax",            call_softmax,            4, 1 << 1,     .t = { two_losses, work, work, two_ids } },
        { "adamw",              call_adamw,              4, 0,          .t = { flat[0], flat[1], flat[2], flat[3],
                                                                         ids } },
    };
    for (int i = 0; i < COUNT(calls); i++) expect_refusals(calls[i]);

    Tensor doubles_of = tensor_of(two_f32.data, F64, 1, 2), few = tensor_of(two_f32.data, F32, 2, 2, 6);
    const Sampling sampling = { 1, 0, 1 };
    if (!strcmp(backend_name, "cpu"))
        EXPECT_FAILS("embedding: token id 8, want 0 .. 7", embedding_forward(y, eights, wte, wpe, ABSENT));
    EXPECT_FAILS("sample: V is 7, want 1 .. 6", sample_tokens(two_ids, few, doubles_of, 7, sampling));
    EXPECT_FAILS("sample: tokens is f32 (2)", sample_tokens(two_losses, few, doubles_of, 7, sampling));
    EXPECT_FAILS("sample: uniform is f32 (2)", sample_tokens(two_ids, two_f32, two_losses, 7, sampling));
    weight.dim[1] = weight.pitch = 3;
    const char *message = arena_dtype == BF16 ? "matmul: weight is bf16 (5,3), want bf16 (5,4)"
                                              : "matmul: weight is f32 (5,3), want f32 (5,4)";
    EXPECT_FAILS(message, matmul_forward(out, ABSENT, x, weight, bias));
}

int main(void) {
    arena_open();
    return test_all();
}
