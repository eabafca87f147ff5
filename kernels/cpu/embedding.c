#include "../embedding.h"
#include "../check_ops.h"
#include "../profile.h"

static int64_t position_of(Tensor position, int64_t t) {
    if (!position.data) return t;
    return position.dim[0] == 1 ? t + *(const int32_t *)position.data : ((const int32_t *)position.data)[t];
}

void embedding_forward(Tensor x, Tensor tokens, Tensor wte, Tensor wpe, Tensor position) {
    check_embedding("embedding", x, tokens, wte, wpe, position);
    op_begin("embedding", op_bytes(3, x, tokens, wpe), 0);
    int64_t rows = tensor_rows(x), T = x.dim[1], C = x.dim[2], Vp = wte.dim[0];
    const int32_t *token = tokens.data;
    for (int64_t r = 0; r < rows; r++)
        REQUIRE(token[r] >= 0 && token[r] < Vp, "embedding: token id %d, want 0 .. %lld", token[r], (long long)Vp - 1);
    #pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        float *to = (float *)x.data + r * C;
        const float *word = (const float *)wte.data + token[r] * wte.pitch;
        const float *place = (const float *)wpe.data + position_of(position, r % T) * wpe.pitch;
        for (int64_t c = 0; c < C; c++) to[c] = word[c] + place[c];
    }
    op_end();
}

void embedding_sort(Tensor tokens, int64_t Vp) { (void)tokens, (void)Vp; }

/* Each thread has a range of columns and adds all rows in order: the same bits for any number of threads. */
void embedding_backward(Tensor dwte, Tensor dwpe, Tensor dx, Tensor tokens, Tensor position, Into dwpe_into) {
    check_embedding("embedding backward", dx, tokens, dwte, dwpe, position);
    op_begin("embedding backward", op_bytes(3, dx, tokens, dwpe), 0);
    int64_t rows = tensor_rows(dx), T = dx.dim[1], C = dx.dim[2];
    const int32_t *token = tokens.data;
    const int64_t stripe = 16;                  /* a cache line */
    #pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < C; first += stripe) {
        int64_t width = C - first < stripe ? C - first : stripe;
        if (dwpe_into == OVERWRITE)
            for (int64_t t = 0; t < dwpe.dim[0]; t++)
                for (int64_t c = 0; c < width; c++) ((float *)dwpe.data)[t * dwpe.pitch + first + c] = 0.0f;
        for (int64_t r = 0; r < rows; r++) {
            const float *from = (const float *)dx.data + r * C + first;
            float *word = (float *)dwte.data + token[r] * dwte.pitch + first;
            float *place = (float *)dwpe.data + position_of(position, r % T) * dwpe.pitch + first;
            for (int64_t c = 0; c < width; c++) {
                word[c] += from[c];
                place[c] += from[c];
            }
        }
    }
    op_end();
}
