/* head.c - The head of the model, a chunk of rows at a time, with either backend. */
#include "head.h"
#include "check_ops.h"
#include "device.h"
#include "matmul.h"

/* Elements first .. first + count - 1 of a packed tensor of F32 or I32. */
static Tensor elements(Tensor t, int64_t first, int64_t count) {
    return tensor_of((char *)t.data + (size_t)first * dtype_bytes(t.dtype), t.dtype, 1, count);
}

void head_loss(Tensor losses, Tensor dx, Tensor dwte, Tensor x, Tensor wte, Tensor targets,
               int V, float dloss, Into dwte_into, Tensor work) {
    const char *op = "head";
    check_float(op, "x", x, 3);
    check_float(op, "wte", wte, 2);
    const int64_t C = tensor_columns(x), Vp = wte.dim[0];
    check_packed(op, "x", x);
    check_tensor(op, "wte", wte, x.dtype, 2, Vp, C);
    check_per_row(op, "losses", losses, F32, x);
    check_per_row(op, "targets", targets, I32, x);
    check_vocabulary(op, V, Vp);
    check_float(op, "work", work, 2);
    check_tensor(op, "work", work, dx.data ? x.dtype : F32, 2, work.dim[0], Vp);
    REQUIRE(work.dim[0] >= 1, "head: work has no row, want 1 or more");
    REQUIRE(!dx.data == !dwte.data, "head: one of dx and dwte is absent, want both or none");
    if (dx.data) {
        check_like(op, "dx", dx, x.dtype, x, C);
        check_packed(op, "dx", dx);
        check_tensor(op, "dwte", dwte, F32, 2, Vp, C);
    }

    const int64_t rows = tensor_rows(x), chunk = work.dim[0];
    for (int64_t first = 0; first < rows; first += chunk) {
        const int64_t count = rows - first < chunk ? rows - first : chunk;
        const Tensor x_rows = tensor_row_range(x, first, count), logits = tensor_row_range(work, 0, count);
        const Tensor dlogits = dx.data ? logits : ABSENT;
        device_overlap_wait();              /* dwte of the chunk before reads the logits */
        matmul_forward(logits, ABSENT, x_rows, wte, ABSENT);
        softmax_cross_entropy(elements(losses, first, count), dlogits, logits, elements(targets, first, count), V,
                              dloss);
        if (dx.data)
            matmul_backward(tensor_row_range(dx, first, count), dwte, ABSENT, ABSENT, dlogits, x_rows, ABSENT, wte,
                            first ? ACCUMULATE : dwte_into);
    }
}
